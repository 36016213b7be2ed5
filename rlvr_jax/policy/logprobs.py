"""Per-token log-probabilities and entropy of completions, by teacher forcing.

`completions_per_row` (R) completions of one prompt may share one row with it: prompt, then R completions that each
see the prompt and themselves, positions restarting after the prompt. The numbers are those of R padded rows; the
prompt is computed once instead of R times. With `row_slots` (W) the completions of a row lie side by side without
their padding, so that short ones cost what they are long. What is static in a jitted program (R, W, the width of the
prompts) comes from the host: `needed_row_slots`, `trimmed_columns` and `bucket`, which keeps compilations few.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.policy.policy import Policy
from rlvr_jax.types import Array, PyTree

SMALL = 64  # vocabulary entries

# --- on the host: how much room the rows of a batch need ---


def needed_row_slots(lengths: Any, completions_per_row: int) -> int:
    """The slots that the fullest row needs: Σ max(length − 1, 0) over its completions, since nothing is predicted from
    a last token.

    lengths: i32[B] on the host, real tokens after the prompt (`attend_mask.sum(-1)`), rows of one prompt adjacent.
    Example: lengths [4, 1, 0, 2], two completions to a row: max(3 + 0, 0 + 1) = 3.

    Raises:
      ValueError: the rows are no multiple of `completions_per_row`.
    """
    lengths = np.asarray(lengths)
    if lengths.size % completions_per_row:
        raise ValueError(f"completions_per_row={completions_per_row}: must divide the {lengths.size} completions")
    return int(np.maximum(lengths - 1, 0).reshape(-1, completions_per_row).sum(axis=1).max(initial=0))


def bucket(needed: int, maximum: int, steps: int = 8) -> int:
    """The smallest of the `steps` sizes ⌈maximum·k/steps⌉, k = 1 … steps, that holds `needed`: a program is compiled
    for each size that occurs, so there are at most `steps`. Example: of maximum 100, 30 are rounded up to 38.

    Raises:
      ValueError: more is needed than `maximum`, or `steps` is below 1.
    """
    if steps < 1:
        raise ValueError(f"steps={steps}: must be at least 1")
    if needed > maximum:
        raise ValueError(f"needed={needed}: must not be above maximum={maximum}")
    return next(size for k in range(1, steps + 1) if (size := -(-maximum * k // steps)) >= needed)


def trimmed_columns(prompt_mask: Any, steps: int = 8) -> int:
    """How many leading columns of left-padded prompts may be cut because all of them are padding: the width that is
    left is one of `bucket`'s sizes. prompt_mask: bool[B, N] on the host."""
    width = prompt_mask.shape[1]
    real = np.asarray(prompt_mask).any(axis=0)
    return width - bucket(width - int(real.argmax()) if real.any() else 1, width, steps)


def trim_prompts(rows: Any, columns: int) -> Any:
    """Rollouts or a Batch without the first `columns` columns of the prompts, which `trimmed_columns` gave."""
    return rows.replace(tokens=rows.tokens[:, columns:], prompt_mask=rows.prompt_mask[:, columns:])


# --- on the device ---


class _Places(NamedTuple):
    """Where the W slots of each of the B/R rows come from, and where the B completions find their numbers."""

    completion: Array  # i32[B/R, W], of the row, 0 … R − 1
    token: Array  # i32[B/R, W], of the completion, 0 … T − 2; 0 where not real
    real: Array  # bool[B/R, W]
    begin: Array  # i32[B/R, R], the first slot of each completion
    fits: Array  # bool[B/R], all of the row's completions have a slot for each token


def _places(attend_mask: Array, share: int, row_slots: int) -> _Places:
    groups, length = attend_mask.shape[0] // share, attend_mask.shape[1]
    if not row_slots:  # every completion has its T − 1 slots, padding among them
        over = lambda x, *axes: jnp.broadcast_to(jnp.expand_dims(x, axes), (groups, share, length - 1))
        steps, number = jnp.arange(length - 1, dtype=jnp.int32), jnp.arange(share, dtype=jnp.int32)
        real = attend_mask[:, : length - 1].reshape(groups, share, length - 1)
        flat = (x.reshape(groups, -1) for x in (over(number, 0, 2), over(steps, 0, 1), real))
        begin = jnp.broadcast_to(number[None] * (length - 1), (groups, share))
        return _Places(*flat, begin, jnp.ones(groups, bool))
    sizes = jnp.maximum(attend_mask.sum(axis=-1, dtype=jnp.int32) - 1, 0).reshape(groups, share)
    ends = jnp.cumsum(sizes, axis=1)
    begin = ends - sizes
    slots = jnp.arange(row_slots, dtype=jnp.int32)[None]
    real = slots < ends[:, -1:]
    completion = (slots[..., None] >= ends[:, None]).sum(axis=-1, dtype=jnp.int32)  # completions that ended before
    completion = jnp.minimum(completion, share - 1)
    token = jnp.where(real, slots - jnp.take_along_axis(begin, completion, axis=1), 0)
    return _Places(completion, token, real, begin, ends[:, -1] <= row_slots)


def _in_places(completions: Array, places: _Places, row_slots: int, ahead: int) -> Array:
    """The token of every slot, or with `ahead` 1 the one after it. i32[B, T] → i32[B/R, W]."""
    groups, length = places.real.shape[0], completions.shape[1]
    if not row_slots:
        return completions[:, ahead : length - 1 + ahead].reshape(groups, -1)
    at = places.completion * length + jnp.minimum(places.token + ahead, length - 1)
    return jnp.take_along_axis(completions.reshape(groups, -1), at, axis=1)


def to_rows(tokens: Array, prompt_mask: Array, attend_mask: Array, completions_per_row: int, row_slots: int = 0):
    """Rows for `Policy.apply` out of rollouts.

    tokens i32[B, S], prompt_mask bool[B, N], attend_mask bool[B, T] →
    (tokens, positions, segments), each i32[B/R, N + W], with W = row_slots or, where that is 0, R·(T−1). The last
    token of a completion is left out: nothing is predicted from it. Rows of one prompt must be adjacent; B must be a
    multiple of R; a completion's real tokens come before its padding. Padding is segment 0.
    """
    places = _places(attend_mask, completions_per_row, row_slots)
    return _rows(tokens, prompt_mask, completions_per_row, row_slots, places)


def _rows(tokens: Array, prompt_mask: Array, share: int, row_slots: int, places: _Places):
    rows, prompt_length = prompt_mask.shape
    groups = rows // share
    first = lambda x: x.reshape(groups, share, *x.shape[1:])[:, 0]
    completions = _in_places(tokens[:, prompt_length:], places, row_slots, ahead=0)
    prompt_mask = first(prompt_mask)
    prompt_positions = jnp.maximum(jnp.cumsum(prompt_mask, axis=-1) - 1, 0)
    # one completion to a row needs no walls: the row is one segment, as in any padded batch
    segments = jnp.where(places.real, places.completion + 2 if share > 1 else 1, 0)
    positions = prompt_mask.sum(axis=-1, dtype=jnp.int32)[:, None] + places.token
    join = lambda prompt, completion: jnp.concatenate([prompt.astype(jnp.int32), completion], axis=-1)
    return (
        join(first(tokens)[:, :prompt_length], completions),
        join(prompt_positions, positions),
        join(prompt_mask, segments),
    )


def _slots(policy: Policy, share: int, row_slots: int, params, tokens, prompt_mask, attend_mask):
    """(hidden [B/R, R + W, D], _Places): the state that each completion's first token is predicted from, R times the
    prompt's last (prompts are left-padded), then that of every slot."""
    places = _places(attend_mask, share, row_slots)
    apart = {} if row_slots or share == 1 else {"completions": (share, attend_mask.shape[1] - 1)}
    hidden = policy.apply(params, *_rows(tokens, prompt_mask, share, row_slots, places), **apart)
    hidden = hidden[:, prompt_mask.shape[1] - 1 :]
    if share > 1:
        start = jnp.broadcast_to(hidden[:, :1], (hidden.shape[0], share, hidden.shape[2]))
        hidden = jnp.concatenate([start, hidden[:, 1:]], axis=1)
    return hidden, places


def _to_completions(values: Array, places: _Places, row_slots: int, length: int) -> Array:
    """Values of the slots [B/R, R + W, …] by completion and token, [B, T, …]; NaN in rows that do not fit."""
    groups, share = places.begin.shape
    if not row_slots:
        first, rest = values[:, :share, None], values[:, share:]
        rest = rest.reshape(groups, share, length - 1, *values.shape[2:])
        return jnp.concatenate([first, rest], axis=2).reshape(groups * share, length, *values.shape[2:])
    steps = jnp.arange(length, dtype=jnp.int32).reshape(1, 1, length)
    number = jnp.arange(share, dtype=jnp.int32).reshape(1, share, 1)
    at = jnp.where(steps == 0, number, jnp.minimum(share + places.begin[..., None] + steps, share + row_slots) - 1)
    over = lambda x: x.reshape(*x.shape, *(1,) * (values.ndim - 2))
    found = jnp.take_along_axis(values, over(at.reshape(groups, -1)), axis=1)
    found = found + over(jnp.where(places.fits, 0.0, jnp.nan)[:, None])  # added, so that gradients are NaN as well
    return found.reshape(groups * share, length, *values.shape[2:])


def make_predictors(policy: Policy, completions_per_row: int = 1, *, row_slots: int = 0) -> Callable:
    """A function (params, tokens i32[B, S], prompt_mask bool[B, N], attend_mask bool[B, T]) → hidden [B, T, D]: the
    state each completion token is predicted from. Token t is predicted from token t − 1, the first from the prompt's
    last (prompts are left-padded). `row_slots` as in `make_logprobs`."""

    def predictors(params: PyTree, tokens: Array, prompt_mask: Array, attend_mask: Array) -> Array:
        rows = (tokens, prompt_mask, attend_mask)
        hidden, places = _slots(policy, completions_per_row, row_slots, params, *rows)
        return _to_completions(hidden, places, row_slots, attend_mask.shape[1])

    return predictors


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _look_up(logits: Array, targets: Array, size: int) -> Array:
    """logits[..., targets] of `size` entries. Its gradient is a comparison: that of a plain lookup is a scatter into
    zeros, which is slow and one more array of the size of the logits."""
    return jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]


def _is_target(targets: Array, size: int) -> Array:
    return targets[..., None] == jnp.arange(size).reshape((1,) * targets.ndim + (size,))


def _look_up_backward(size: int, targets: Array, slope: Array):
    return jnp.where(_is_target(targets, size), slope[..., None], 0.0), None


_look_up.defvjp(lambda logits, targets, size: (_look_up(logits, targets, size), targets), _look_up_backward)


def _chosen(logits: Array, targets: Array) -> Array:
    size = logits.shape[-1]
    if size <= SMALL:  # comparing with every entry of a small row is faster than looking one up
        return jnp.where(_is_target(targets, size), logits, 0.0).sum(axis=-1)
    return _look_up(logits, targets, size)


def _chunked(head: Callable, chunks: int, hidden: Array, targets: Array):
    """`head(hidden [B, n, D], targets i32[B, n]) → values [B, n]` in `chunks` pieces of the second axis one after the
    other, each computed again in the backward pass. The rows stay the axis that is spread over devices."""
    rows, slots = targets.shape
    size = -(-slots // chunks)
    count = -(-slots // size)

    def cut(x):
        padded = jnp.pad(x, ((0, 0), (0, count * size - slots), *((0, 0),) * (x.ndim - 2)))
        return jnp.moveaxis(padded.reshape(rows, count, size, *x.shape[2:]), 1, 0)

    pieces = jax.lax.map(jax.checkpoint(lambda pair: head(*pair)), (cut(hidden), cut(targets)))
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(rows, -1)[:, :slots], pieces)


def make_logprobs(
    policy: Policy,
    *,
    completions_per_row: int = 1,
    temperature: float = 1.0,
    head_chunks: int = 1,
    row_slots: int = 0,
    over_rows: Callable = lambda function: function,
) -> Callable:
    """A function (params, tokens i32[B, S], prompt_mask bool[B, N], attend_mask bool[B, T]) →
    (logprobs f32[B, T], entropy f32[B, T]), both in nats and of the tempered distribution
    softmax(logits / temperature), which is the one that was sampled. Values after a completion's end mean nothing:
    mask them. Only completion positions pass through the head, R + row_slots of a row.

    Args:
      completions_per_row: R, completions that share a row with their prompt.
      temperature: of sampling; 0 (greedy evaluation) is scored as 1.
      head_chunks: pieces of a row that pass the head one after the other. With more than one the logits of a whole
        row never exist, neither forward nor backward, where each piece is computed again; any count will do.
      row_slots: slots for the completions of a row, at least `needed_row_slots` of the batch; 0: R·(T − 1), which
        always is enough. All numbers of a row that does not fit are NaN, never wrong.
      over_rows: what makes a function of all rows one that every device computes for its own (`sharding.make_spread`).
    """
    temperature = temperature or 1.0

    def head(params, hidden, targets):
        logits = policy.logits(params, hidden) / temperature
        log_normaliser = jax.nn.logsumexp(logits, axis=-1)
        probabilities = jnp.exp(logits - log_normaliser[..., None])
        return _chosen(logits, targets) - log_normaliser, log_normaliser - (probabilities * logits).sum(axis=-1)

    def logprobs(params: PyTree, tokens: Array, prompt_mask: Array, attend_mask: Array):
        share, length = completions_per_row, attend_mask.shape[1]
        hidden, places = _slots(policy, share, row_slots, params, tokens, prompt_mask, attend_mask)
        completions = tokens[:, prompt_mask.shape[1] :]
        first, rest = completions[:, 0].reshape(-1, share), _in_places(completions, places, row_slots, ahead=1)
        targets = jnp.concatenate([first, rest], axis=1)
        own = lambda hidden, targets: head(params, hidden, targets)
        values = own(hidden, targets) if head_chunks == 1 else _chunked(own, head_chunks, hidden, targets)
        return jax.tree.map(lambda x: _to_completions(x, places, row_slots, length), values)

    return over_rows(logprobs)
