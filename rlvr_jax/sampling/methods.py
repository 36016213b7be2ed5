"""How the next token is drawn: a frozen value with one method, static under jit."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from rlvr_jax.types import Array

SMALL = 64  # vocabularies up to this are summed in one product
BLOCK = 256  # vocabulary entries per partial sum of the inverse CDF


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingMethod:
    """softmax(logits / temperature), cut to the `top_k` likeliest tokens, then to the smallest set whose
    probability reaches `top_p` (the token that crosses is kept; ties by index), renormalised.

    temperature 0 is the limit: the likeliest token, whatever the key, with log-probability 0. One temperature for
    each member of a group may be given as a tuple: (0.0, 1.0, 1.0) is one greedy completion and two samples. top_k 0
    and top_p 1 cut nothing; at least one token is always kept. (Nucleus: Holtzman et al. 2019, 1904.09751.)

    Raises:
      ValueError: a temperature below 0, top_k below 0, or top_p outside [0, 1].
    """

    temperature: float | tuple[float, ...] = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self):
        if min(self.temperatures) < 0 or self.top_k < 0 or not 0 <= self.top_p <= 1:
            raise ValueError(f"{self}: temperature and top_k must not be negative, top_p must be in [0, 1]")

    @property
    def temperatures(self) -> tuple[float, ...]:
        return self.temperature if isinstance(self.temperature, tuple) else (self.temperature,)

    def next_token(self, logits: Array, keys: Array) -> tuple[Array, Array]:
        """logits f32[..., G, V], one key per row keys[..., G] → (token i32[..., G], logprob f32[..., G], nats, of
        the distribution that was drawn from)."""
        greedy = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        if not any(self.temperatures):
            return greedy, jnp.zeros(greedy.shape, jnp.float32)
        per_row = jnp.asarray(self.temperatures, jnp.float32).reshape((1,) * (greedy.ndim - 1) + (-1,))
        hot = jnp.broadcast_to(per_row > 0, greedy.shape)
        logits = self.truncate(logits / jnp.where(per_row > 0, per_row, 1.0)[..., None])
        logprobs = logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        token = jnp.where(hot, inverse_cdf(jnp.exp(logprobs), keys), greedy)
        logprob = jnp.take_along_axis(logprobs, token[..., None], axis=-1)[..., 0]
        return token, jnp.where(hot, logprob, 0.0)

    def truncate(self, logits: Array) -> Array:
        """`logits` with −inf outside the kept set."""
        size = logits.shape[-1]
        if (not 0 < self.top_k < size) and self.top_p >= 1:
            return logits
        order = jnp.argsort(logits, axis=-1, descending=True, stable=True)
        ranked = jnp.take_along_axis(logits, order, axis=-1)
        ranks = jnp.arange(size).reshape((1,) * (logits.ndim - 1) + (size,))
        keep = ranks < self.top_k if 0 < self.top_k < size else jnp.ones_like(ranks, bool)
        if self.top_p < 1:
            probabilities = jax.nn.softmax(jnp.where(keep, ranked, -jnp.inf), axis=-1)
            before = jnp.cumsum(probabilities, axis=-1) - probabilities
            keep = keep & ((before < self.top_p) | (ranks == 0))
        rank_of_token = jnp.argsort(order, axis=-1)
        kept = jnp.take_along_axis(jnp.broadcast_to(keep, logits.shape), rank_of_token, axis=-1)
        return jnp.where(kept, logits, -jnp.inf)


def inverse_cdf(probabilities: Array, keys: Array) -> Array:
    """Draws one index per row with one uniform number per row: the first index whose cumulative sum exceeds u.

    Two levels (sums of BLOCK entries, then the entries of one block) keep it at about the cost of the softmax; one
    Gumbel number per vocabulary entry costs several times the output head at 49,152 entries. probabilities
    f32[..., V] summing to 1, keys[...] → i32[...]. An entry of probability 0 is never drawn.
    """
    size = probabilities.shape[-1]
    rows = probabilities.shape[:-1]
    draw = lambda key: jax.random.uniform(key, (), jnp.float32)
    for _ in rows:
        draw = jax.vmap(draw)
    if size <= SMALL:
        # a product, where a scan would be a loop; rounding may differ between its columns, hence `possible`
        upto = jnp.matmul(probabilities, jnp.triu(jnp.ones((size, size))), precision="highest")
        possible = probabilities > 0
        beyond = (upto > draw(keys)[..., None] * upto[..., -1:]) & possible
        last = size - 1 - jnp.argmax(possible[..., ::-1], axis=-1)
        return jnp.where(beyond.any(axis=-1), jnp.argmax(beyond, axis=-1), last).astype(jnp.int32)
    padded = jnp.pad(probabilities, [(0, 0)] * len(rows) + [(0, -size % BLOCK)])
    blocks = padded.reshape(*rows, -1, BLOCK)
    upto = jnp.cumsum(blocks.sum(axis=-1), axis=-1)
    u = draw(keys)[..., None] * upto[..., -1:]  # of the sum as computed, so that rounding leaves no gap at the end
    block = (upto <= u).sum(axis=-1, keepdims=True)
    block = jnp.minimum(block, upto.shape[-1] - 1)
    before = jnp.where(block > 0, jnp.take_along_axis(upto, jnp.maximum(block - 1, 0), axis=-1), 0.0)
    inside = jnp.take_along_axis(blocks, block[..., None], axis=-2)[..., 0, :]
    position = (jnp.cumsum(inside, axis=-1) <= u - before).sum(axis=-1)
    last = BLOCK - 1 - jnp.argmax(inside[..., ::-1] > 0, axis=-1)  # rounding may run past the last possible entry
    return (block[..., 0] * BLOCK + jnp.minimum(position, last)).astype(jnp.int32)
