"""Per-token log-probabilities and entropy of completions, by teacher forcing.

`completions_per_row` (R) completions of one prompt may share one row with it: prompt, then R completions that each
see the prompt and themselves, positions restarting after the prompt. The numbers are those of R padded rows; the
prompt is computed once instead of R times.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rlvr_jax.policy.policy import Policy
from rlvr_jax.types import Array, PyTree

SMALL = 64  # vocabulary entries


def to_rows(tokens: Array, prompt_mask: Array, attend_mask: Array, completions_per_row: int):
    """Rows for `Policy.apply` out of rollouts.

    tokens i32[B, S], prompt_mask bool[B, N], attend_mask bool[B, T] →
    (tokens, positions, segments), each i32[B/R, N + R·(T−1)]. The last token of a completion is left out: nothing
    is predicted from it. Rows of one prompt must be adjacent; B must be a multiple of R.
    """
    rows, prompt_length = prompt_mask.shape
    share, length = completions_per_row, attend_mask.shape[1]
    groups = rows // share
    first = lambda x: x.reshape(groups, share, *x.shape[1:])[:, 0]
    completions = tokens[:, prompt_length:-1].reshape(groups, share * (length - 1))
    real = attend_mask[:, : length - 1].reshape(groups, share, length - 1)
    prompt_mask = first(prompt_mask)
    prompt_positions = jnp.maximum(jnp.cumsum(prompt_mask, axis=-1) - 1, 0)
    number = jnp.arange(share, dtype=jnp.int32).reshape(1, share, 1) + 2
    # one completion to a row needs no walls: the row is one segment, as in any padded batch
    segments = jnp.where(real, number if share > 1 else 1, 0).reshape(groups, -1)
    prompt_sizes = prompt_mask.sum(axis=-1, dtype=jnp.int32).reshape(groups, 1, 1)
    steps = jnp.arange(length - 1, dtype=jnp.int32).reshape(1, 1, -1)
    positions = jnp.broadcast_to(prompt_sizes + steps, real.shape).reshape(groups, -1)
    join = lambda prompt, completion: jnp.concatenate([prompt.astype(jnp.int32), completion], axis=-1)
    return (
        join(first(tokens)[:, :prompt_length], completions),
        join(prompt_positions, positions),
        join(prompt_mask, segments),
    )


def make_predictors(policy: Policy, completions_per_row: int = 1) -> Callable:
    """A function (params, tokens i32[B, S], prompt_mask bool[B, N], attend_mask bool[B, T]) → hidden [B, T, D]: the
    state each completion token is predicted from. Token t is predicted from token t − 1, the first from the prompt's
    last (prompts are left-padded)."""

    def predictors(params: PyTree, tokens: Array, prompt_mask: Array, attend_mask: Array) -> Array:
        rows, length = attend_mask.shape
        prompt_length = prompt_mask.shape[1]
        groups = rows // completions_per_row
        hidden = policy.apply(params, *to_rows(tokens, prompt_mask, attend_mask, completions_per_row))
        width = hidden.shape[-1]
        start = jnp.broadcast_to(
            hidden[:, None, prompt_length - 1 : prompt_length], (groups, completions_per_row, 1, width)
        )
        rest = hidden[:, prompt_length:].reshape(groups, completions_per_row, length - 1, width)
        return jnp.concatenate([start, rest], axis=2).reshape(rows, length, width)

    return predictors


def make_logprobs(
    policy: Policy, *, completions_per_row: int = 1, temperature: float = 1.0, head_chunks: int = 1
) -> Callable:
    """A function (params, tokens i32[B, S], prompt_mask bool[B, N], attend_mask bool[B, T]) →
    (logprobs f32[B, T], entropy f32[B, T]), both in nats and of the tempered distribution
    softmax(logits / temperature), which is the one that was sampled. Values after a completion's end mean nothing:
    mask them. Only completion positions pass through the head; with `head_chunks` > 1 the [B, T, V] logits never exist
    as a whole and are recomputed in the backward pass.

    temperature 0 (greedy evaluation) is scored as temperature 1.
    """
    temperature = temperature or 1.0
    predictors = make_predictors(policy, completions_per_row)

    def head(params, hidden, targets):
        logits = policy.logits(params, hidden) / temperature
        log_normaliser = jax.nn.logsumexp(logits, axis=-1)
        if logits.shape[-1] <= SMALL:  # the backward pass of a lookup is a scatter, slower than all of a small row
            here = targets[..., None] == jnp.arange(logits.shape[-1]).reshape((1,) * targets.ndim + (-1,))
            chosen = jnp.where(here, logits, 0.0).sum(axis=-1)
        else:
            chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        probabilities = jnp.exp(logits - log_normaliser[..., None])
        return chosen - log_normaliser, log_normaliser - (probabilities * logits).sum(axis=-1)

    def logprobs(params: PyTree, tokens: Array, prompt_mask: Array, attend_mask: Array):
        rows, length = attend_mask.shape
        hidden = predictors(params, tokens, prompt_mask, attend_mask)
        targets = tokens[:, prompt_mask.shape[1] :]
        if head_chunks == 1:
            return head(params, hidden, targets)
        cut = lambda x: jnp.moveaxis(x.reshape(rows, head_chunks, length // head_chunks, *x.shape[2:]), 1, 0)
        checked = jax.checkpoint(lambda pair: head(params, *pair))
        pieces = jax.lax.map(checked, (cut(hidden), cut(targets)))
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(rows, length), pieces)

    return logprobs
