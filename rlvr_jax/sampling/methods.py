"""How the next token is drawn: a frozen value with one method, static under jit."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlvr_jax.types import Array

SMALL = 64  # vocabularies up to this are summed in one product
BLOCK = 128  # vocabulary entries per partial sum of the inverse CDF; divides most vocabularies
LIKELY = 512  # tokens that are ranked first; a nucleus is seldom larger


class Draw(NamedTuple):
    """One drawn token per row, and how likely it was, in nats."""

    token: Array  # i32[..., G]
    logprob: Array  # f32[..., G], of the distribution that was drawn from; 0 for a greedy row
    full_logprob: Array  # f32[..., G], log softmax(logits / temperature) over the whole vocabulary


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingMethod:
    """softmax(logits / temperature), cut to the `top_k` likeliest tokens, then to the smallest set whose
    probability reaches `top_p` (the token that crosses is kept; ties by index), then to tokens at least `min_p` times
    as likely as the likeliest, renormalised.

    temperature 0 is the limit: the likeliest token, whatever the key, with log-probability 0. One temperature for
    each member of a group may be given as a tuple: (0.0, 1.0, 1.0) is one greedy completion and two samples. top_k 0,
    top_p 1 and min_p 0 cut nothing; at least one token is always kept. (Nucleus: Holtzman et al. 2019, 1904.09751;
    min-p: Nguyen et al. 2024, 2407.01082.)

    Raises:
      ValueError: a temperature below 0, top_k below 0, or top_p or min_p outside [0, 1].
    """

    temperature: float | tuple[float, ...] = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self):
        if min(self.temperatures) < 0 or self.top_k < 0 or not (0 <= self.top_p <= 1 and 0 <= self.min_p <= 1):
            raise ValueError(f"{self}: temperature and top_k must not be negative, top_p and min_p must be in [0, 1]")

    @property
    def temperatures(self) -> tuple[float, ...]:
        return self.temperature if isinstance(self.temperature, tuple) else (self.temperature,)

    @property
    def plain(self) -> bool:
        """Nothing is cut and no row is greedy: a token's two log-probabilities are the same."""
        return min(self.temperatures) > 0 and not self.top_k and self.top_p >= 1 and self.min_p <= 0

    def next_token(self, logits: Array, keys: Array) -> tuple[Array, Array]:
        """logits f32[..., G, V], one key per row keys[..., G] → (token i32[..., G], logprob f32[..., G], nats, of
        the distribution that was drawn from)."""
        return self.draw(logits, keys)[:2]

    def draw(self, logits: Array, keys: Array, members: Array | None = None) -> Draw:
        """logits f32[..., V], one key per row keys[...] → the token of each row. `members` i32[...]: which member of
        its group a row is; by default the last axis of rows is the group, in its order."""
        if not any(self.temperatures):
            token = jnp.argmax(logits, axis=-1).astype(jnp.int32)
            return Draw(token, jnp.zeros(token.shape, jnp.float32), logprob_of(logits, token))
        per_row = self._temperature_of_rows(logits, members)
        scaled = logits if per_row is None else logits / jnp.where(per_row > 0, per_row, 1.0)[..., None]
        cut = self.truncate(scaled)
        if logits.shape[-1] <= SMALL:
            logprobs = cut - jax.nn.logsumexp(cut, axis=-1, keepdims=True)
            token = inverse_cdf(jnp.exp(logprobs), keys)
            logprob = jnp.take_along_axis(logprobs, token[..., None], axis=-1)[..., 0]
        else:
            token, logprob = draw_from_logits(cut, keys)
        full = logprob if self.plain else logprob_of(scaled, token)
        if min(self.temperatures) > 0:
            return Draw(token, logprob, full)
        greedy = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        hot = jnp.broadcast_to(per_row > 0, greedy.shape)
        of_greedy = logprob_of(logits, greedy)
        return Draw(jnp.where(hot, token, greedy), jnp.where(hot, logprob, 0.0), jnp.where(hot, full, of_greedy))

    def _temperature_of_rows(self, logits: Array, members: Array | None) -> Array | None:
        """f32, broadcastable to the rows; None where every row has temperature 1."""
        if set(self.temperatures) == {1.0}:
            return None
        temperatures = jnp.asarray(self.temperatures, jnp.float32)
        if members is None:
            return temperatures.reshape((1,) * (logits.ndim - 2) + (-1,))
        return temperatures[members] if len(self.temperatures) > 1 else jnp.full(members.shape, temperatures[0])

    def truncate(self, logits: Array) -> Array:
        """`logits` with −inf outside the kept set."""
        size = logits.shape[-1]
        by_rank = 0 < self.top_k < size or self.top_p < 1
        if by_rank:
            logits = jnp.where(logits == 0, 0.0, logits)  # −0 ranks below 0 and is equal to it
            likely = min(size, max(LIKELY, self.top_k))
            if likely == size or self.top_p >= 1:
                last = self._last_kept(logits, likely)
            else:  # all tokens are ranked only where the likeliest few do not reach top_p
                mass = _mass_of(logits, jax.lax.top_k(logits, likely)[0])
                enough = ((mass >= self.top_p).all()) | (0 < self.top_k <= likely)
                last = jax.lax.cond(
                    enough, lambda: self._last_kept(logits, likely), lambda: self._last_kept(logits, size)
                )
            logits = keep_until(logits, *last)
        if self.min_p > 0:
            best = logits.max(axis=-1, keepdims=True)
            logits = jnp.where(logits >= best + jnp.log(self.min_p), logits, -jnp.inf)
        return logits

    def _last_kept(self, logits: Array, likely: int) -> tuple[Array, Array]:
        """(value, index) [..., 1] of the last kept token by rank, looking at the `likely` likeliest."""
        values, order = jax.lax.top_k(logits, likely)  # ties in the order of the index
        size = logits.shape[-1]
        ranks = jnp.arange(likely).reshape((1,) * (logits.ndim - 1) + (likely,))
        keep = ranks < self.top_k if 0 < self.top_k < size else jnp.ones_like(ranks, bool)
        if self.top_p < 1:
            among = logits.max(axis=-1, keepdims=True)
            weights = jnp.where(keep, jnp.exp(values - among), 0.0)
            cut = 0 < self.top_k < size
            total = weights.sum(axis=-1, keepdims=True) if cut else jnp.exp(logits - among).sum(-1, keepdims=True)
            before = (jnp.cumsum(weights, axis=-1) - weights) / total
            keep = keep & ((before < self.top_p) | (ranks == 0))
        count = jnp.broadcast_to(keep, values.shape).sum(axis=-1, keepdims=True) - 1
        return jnp.take_along_axis(values, count, axis=-1), jnp.take_along_axis(order, count, axis=-1)


def keep_until(logits: Array, value: Array, index: Array) -> Array:
    """`logits` with −inf for all that rank after the entry of `value` at `index`: smaller, or equal and later."""
    places = jnp.arange(logits.shape[-1]).reshape((1,) * (logits.ndim - 1) + (-1,))
    return jnp.where((logits > value) | ((logits == value) & (places <= index)), logits, -jnp.inf)


def _mass_of(logits: Array, likeliest: Array) -> Array:
    """The share of probability that `likeliest` (values out of `logits`) have together, f32[...]."""
    best = likeliest[..., :1]
    return jnp.exp(likeliest - best).sum(axis=-1) / jnp.exp(logits - best).sum(axis=-1)


def logprob_of(logits: Array, token: Array) -> Array:
    """log softmax(logits)[token], f32[...]."""
    chosen = jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0]
    return chosen - jax.nn.logsumexp(logits, axis=-1)


def _uniform(keys: Array) -> Array:
    draw = lambda key: jax.random.uniform(key, (), jnp.float32)
    for _ in keys.shape:
        draw = jax.vmap(draw)
    return draw(keys)


def draw_from_logits(logits: Array, keys: Array) -> tuple[Array, Array]:
    """(token i32[...], its log-probability f32[...]) of softmax(logits f32[..., V]), one key per row.

    The inverse CDF in two levels, with one uniform number per row: sums over blocks of BLOCK entries first, then the
    entries of one block. The logits are read twice (their maximum, their sum) and no array of their size is written,
    where one Gumbel number per entry costs several times the output head at 49,152 entries. An entry of −inf is never
    drawn.
    """
    size, rows = logits.shape[-1], logits.shape[:-1]
    best = logits.max(axis=-1, keepdims=True)
    padded = jnp.pad(logits, [(0, 0)] * len(rows) + [(0, -size % BLOCK)], constant_values=-jnp.inf)
    blocks = padded.reshape(*rows, -1, BLOCK)
    upto = jnp.cumsum(jnp.exp(blocks - best[..., None]).sum(axis=-1), axis=-1)
    total = upto[..., -1:]
    u = _uniform(keys)[..., None] * total  # of the sum as computed, so that rounding leaves no gap at the end
    block = jnp.minimum((upto <= u).sum(axis=-1, keepdims=True), upto.shape[-1] - 1)
    before = jnp.where(block > 0, jnp.take_along_axis(upto, jnp.maximum(block - 1, 0), axis=-1), 0.0)
    inside = jnp.take_along_axis(blocks, block[..., None], axis=-2)[..., 0, :]
    weights = jnp.exp(inside - best)
    position = (jnp.cumsum(weights, axis=-1) <= u - before).sum(axis=-1, keepdims=True)
    last = BLOCK - 1 - jnp.argmax(weights[..., ::-1] > 0, axis=-1, keepdims=True)  # rounding may run past it
    position = jnp.minimum(position, last)
    logprob = jnp.take_along_axis(inside, position, axis=-1) - best - jnp.log(total)
    return (block * BLOCK + position)[..., 0].astype(jnp.int32), logprob[..., 0]


def inverse_cdf(probabilities: Array, keys: Array) -> Array:
    """Draws one index per row with one uniform number per row: the first index whose cumulative sum exceeds u.
    For small vocabularies, whose sums are one product. probabilities f32[..., V] summing to 1, keys[...] → i32[...].
    An entry of probability 0 is never drawn.
    """
    size = probabilities.shape[-1]
    # a product, where a scan would be a loop; rounding may differ between its columns, hence `possible`
    upto = jnp.matmul(probabilities, jnp.triu(jnp.ones((size, size))), precision="highest")
    possible = probabilities > 0
    beyond = (upto > _uniform(keys)[..., None] * upto[..., -1:]) & possible
    last = size - 1 - jnp.argmax(possible[..., ::-1], axis=-1)
    return jnp.where(beyond.any(axis=-1), jnp.argmax(beyond, axis=-1), last).astype(jnp.int32)
