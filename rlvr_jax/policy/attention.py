"""What a query attends to, with and without a cache."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rlvr_jax.types import Array


class PromptCache(NamedTuple):
    """Keys and values of prompts, held once however many completions each prompt gets."""

    keys: Any  # [L, P, KV, N, K], or a tuple of L arrays [P, KV, N, K] when layers are unrolled
    values: Any
    mask: Array  # bool[P, N]
    lengths: Array  # i32[P], real tokens of each prompt


class Cache(NamedTuple):
    """Keys and values of the completion tokens decoded so far, one slot for each token that may come."""

    keys: Any  # [L, P, G, KV, T, K], or a tuple of L arrays [P, G, KV, T, K]
    values: Any


def visible(segments: Array) -> Array:
    """Which key each query may see, bool[B, S, S]: earlier tokens, of its own segment or of the shared one.

    Segments: 0 padding, 1 the prompt (seen by every later segment of the row), 2… completions, which do not see one
    another. A plain row is segment 1 throughout. Padding sees itself, so that no softmax runs over nothing.
    """
    size = segments.shape[-1]
    query, key = segments[:, :, None], segments[:, None, :]
    causal = jnp.tril(jnp.ones((1, size, size), bool))
    itself = jnp.eye(size, dtype=bool)[None]
    return (causal & ((key == query) | (key == 1)) & (key > 0)) | itself


def attend_row(mask: Array):
    """Attention within rows under `mask` bool[B, S, S]; f32 softmax."""

    def attend(query, key, value):
        return jax.nn.dot_product_attention(query, key, value, mask=mask[:, None])

    return attend


def attend_cached(index: Array, prompt, own, prompt_mask: Array):
    """Attention of one new token per completion: to its prompt (stored once for the group), to the completion so
    far, and to itself. query [P, G, H, K], key and value [P, G, KV, K]."""
    (prompt_keys, prompt_values), (own_keys, own_values) = prompt, own

    def attend(query, key, value):
        prompts, group, heads, size = query.shape
        query = query.reshape(prompts, group, key.shape[2], -1, size) * size**-0.5
        dot = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
        scores = [
            dot("pgkrd,pknd->pgkrn", query, prompt_keys),
            dot("pgkrd,pgktd->pgkrt", query, own_keys),
            dot("pgkrd,pgkd->pgkr", query, key)[..., None],
        ]
        seen = [
            jnp.expand_dims(prompt_mask, (1, 2, 3)),
            jnp.expand_dims(jnp.arange(own_keys.shape[-2]) < index, (0, 1, 2, 3)),
            jnp.ones((1,) * 5, bool),
        ]
        lowest = jnp.finfo(jnp.float32).min
        scores = jnp.concatenate([jnp.where(m, s, lowest) for m, s in zip(seen, scores)], axis=-1)
        weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
        split = (prompt_keys.shape[-2], prompt_keys.shape[-2] + own_keys.shape[-2])
        to_prompt, to_own, to_self = jnp.split(weights, split, axis=-1)
        attended = (
            jnp.einsum("pgkrn,pknd->pgkrd", to_prompt, prompt_values)
            + jnp.einsum("pgkrt,pgktd->pgkrd", to_own, own_values)
            + to_self * value[:, :, :, None, :]
        )
        return attended.reshape(prompts, group, heads, size)

    return attend
