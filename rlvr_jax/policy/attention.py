"""What a query attends to, with and without a cache."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rlvr_jax.types import Array


class PromptCache(NamedTuple):
    """Keys and values of prompts, held once however many completions each prompt gets.

    Keys have time on their last axis, values on the last but one: as the two products of attention read them.
    """

    keys: Any  # [L, P, KV, K, N], or a tuple of L arrays [P, KV, K, N] when layers are unrolled; () once in the cache
    values: Any  # [L, P, KV, N, K], likewise
    positions: Array  # i32[P, N], −1 where padded
    lengths: Array  # i32[P], real tokens of each prompt


class Cache(NamedTuple):
    """Keys and values of the completion tokens decoded so far.

    All rows write at one place, `time` modulo the completions' length, whatever number their token has: a row that
    began later only has its first token elsewhere. `positions` say what each place holds.
    """

    keys: Any  # [L, P·G, KV, K, C], or a tuple of L arrays [P·G, KV, K, C]; C = T, or N + T with the prompt in front
    values: Any  # [L, P·G, KV, C, K], likewise
    positions: Array  # i32[P, G, C], −1 where nothing is to be seen
    time: Array  # i32[], tokens written


def visible(segments: Array, positions: Array | None = None, window: int = 0) -> Array:
    """Which key each query may see, bool[B, S, S]: earlier tokens, of its own segment or of the shared one.

    Segments: 0 padding, 1 the prompt (seen by every later segment of the row), 2… completions, which do not see one
    another. A plain row is segment 1 throughout. Padding sees itself, so that no softmax runs over nothing.

    A `window` > 0 leaves of those the keys with query position − key position < window. Positions, not places in the
    row, because completions that share a row all continue at the prompt's end.
    """
    size = segments.shape[-1]
    query, key = segments[:, :, None], segments[:, None, :]
    causal = jnp.tril(jnp.ones((1, size, size), bool))
    itself = jnp.eye(size, dtype=bool)[None]
    seen = causal & ((key == query) | (key == 1)) & (key > 0)
    if window:
        seen = seen & (positions[:, :, None] - positions[:, None, :] < window)
    return seen | itself


class SharedMasks(NamedTuple):
    """`visible` in three pieces, for rows whose completions lie side by side, R of W places each."""

    prompt: Array  # bool[B, N, N], prompt to itself
    back: Array  # bool[B, R·W, N], completions to the prompt
    own: Array  # bool[B·R, W, W], each completion to itself


def visible_shared(segments: Array, positions: Array, window: int, completions: tuple[int, int]) -> SharedMasks:
    """`visible` for rows that end with R completions of W places each (`completions` = (R, W)), without the pieces
    in which nothing is seen: a completion sees the prompt and itself, so R·W·(N + W) pairs instead of (N + R·W)²."""
    count, width = completions
    start = segments.shape[-1] - count * width
    cut = lambda x: (x[:, :start], x[:, start:])
    (prompt, rest), (prompt_positions, rest_positions) = cut(segments), cut(positions)
    back = jnp.broadcast_to((prompt == 1)[:, None], (len(rest), count * width, start))
    if window:
        back = back & (rest_positions[:, :, None] - prompt_positions[:, None] < window)
    rows = lambda x: x.reshape(-1, width)
    return SharedMasks(
        visible(prompt, prompt_positions, window), back, visible(rows(rest), rows(rest_positions), window)
    )


def attend_row(mask: Array, softcap: float = 0.0):
    """Attention within rows under `mask` bool[B, S, S]; f32 softmax. With a softcap c > 0 scores become
    c·tanh(score / c) (Gemma Team 2024, 2408.00118)."""

    def attend(query, key, value):
        return jax.nn.dot_product_attention(query, key, value, mask=mask[:, None])

    def attend_capped(query, key, value):
        rows, length, heads, size = query.shape
        query = query.reshape(rows, length, key.shape[2], -1, size)
        scores = jnp.einsum("bqkrd,bskd->bkrqs", query, key, preferred_element_type=jnp.float32) * size**-0.5
        scores = jnp.where(jnp.expand_dims(mask, (1, 2)), softcap * jnp.tanh(scores / softcap), -jnp.inf)
        weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
        return jnp.einsum("bkrqs,bskd->bqkrd", weights, value).reshape(rows, length, heads, size)

    return attend_capped if softcap else attend


def attend_shared(masks: SharedMasks, completions: tuple[int, int], softcap: float = 0.0):
    """`attend_row` for the rows of `visible_shared`. The softmax of a completion's token runs over two pieces, scores
    to the prompt and to its own completion; what they have in common are the largest score and the sum."""
    count, width = completions
    cap = lambda scores: softcap * jnp.tanh(scores / softcap) if softcap else scores
    lowest = jnp.finfo(jnp.float32).min
    dot = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)

    def attend(query, key, value):
        rows, length, heads, size = query.shape
        start, kv_heads = length - count * width, key.shape[2]
        cut = lambda x: (x[:, :start], x[:, start:])
        (first, query), (keys, key), (values, value) = cut(query), cut(key), cut(value)
        first = attend_row(masks.prompt, softcap)(first, keys, values)
        query = query.reshape(rows, count * width, kv_heads, -1, size) * size**-0.5
        single = lambda x: x.reshape(rows * count, width, *x.shape[2:])
        # to rows of completions and back: [B, KV, R·W, r] ↔ [B·R, KV, W, r]
        apart = lambda x: jnp.swapaxes(x.reshape(rows, kv_heads, count, width, -1), 1, 2).reshape(
            rows * count, kv_heads, width, -1
        )
        joined = lambda x: jnp.swapaxes(x.reshape(rows, count, kv_heads, width, -1), 1, 2).reshape(
            rows, kv_heads, count * width, -1
        )
        back = cap(dot("bqkrd,bskd->bkqrs", query, keys))
        back = jnp.where(masks.back[:, None, :, None], back, lowest)
        own = cap(dot("bqkrd,bskd->bkqrs", single(query), single(key)))
        own = jnp.where(masks.own[:, None, :, None], own, lowest)
        largest = jax.lax.stop_gradient(jnp.maximum(joined(own.max(axis=-1)), back.max(axis=-1)))
        back, own = jnp.exp(back - largest[..., None]), jnp.exp(own - apart(largest)[..., None])
        total = back.sum(axis=-1) + joined(own.sum(axis=-1))
        back, own = back.astype(value.dtype), own.astype(value.dtype)
        attended = dot("bkqrs,bskd->bqkrd", back, values)
        attended = attended + dot("bkqrs,bskd->bqkrd", own, single(value)).reshape(attended.shape)
        attended = attended / jnp.moveaxis(total, 1, 2)[..., None]
        attended = attended.reshape(rows, count * width, heads, size).astype(value.dtype)
        return jnp.concatenate([first, attended], axis=1)

    return attend


def attend_cached(prompt, own, seen, softcap: float = 0.0):
    """Attention of one new token per completion, to its prompt and to the completion up to itself.

    prompt: (keys, values) of one layer, held once for the group, or None where they are in front of a completion's own.
    own: a function (key, value [P·G, KV, K]) → that layer's (keys, values) with the new ones in their place. seen:
    (bool[P, N], bool[P, G, C]). query [P, G, H, K], key and value [P, G, KV, K].
    """

    def attend(query, key, value):
        prompts, group, heads, size = query.shape
        rows, kv_heads, together = prompts * group, key.shape[2], heads // key.shape[2]
        flat = lambda x: x.reshape(rows, *x.shape[2:])
        query = (query * size**-0.5).reshape(rows, kv_heads, together, size)
        keys, values = own(flat(key), flat(value))
        dot = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
        parts = [(dot("bkrd,bkdt->bkrt", query, keys), flat(seen[1]))]
        if prompt is not None:  # all queries of a group against one prompt
            of_group = jnp.swapaxes(query.reshape(prompts, group, kv_heads, together, size), 1, 2)
            of_group = dot("pkxd,pkdn->pkxn", of_group.reshape(prompts, kv_heads, group * together, size), prompt[0])
            of_row = jnp.swapaxes(of_group.reshape(prompts, kv_heads, group, together, -1), 1, 2)
            parts.insert(0, (flat(of_row), jnp.repeat(seen[0], group, axis=0)))
        cap = lambda scores: softcap * jnp.tanh(scores / softcap) if softcap else scores
        lowest = jnp.finfo(jnp.float32).min
        scores = [jnp.where(mask[:, None, None], cap(score), lowest) for score, mask in parts]
        weights = jax.nn.softmax(jnp.concatenate(scores, axis=-1), axis=-1).astype(value.dtype)
        width = weights.shape[-1] - values.shape[-2]
        attended = jnp.einsum("bkrt,bktd->bkrd", weights[..., width:], values)
        if prompt is not None:
            to_prompt = jnp.swapaxes(weights[..., :width].reshape(prompts, group, kv_heads, together, width), 1, 2)
            to_prompt = to_prompt.reshape(prompts, kv_heads, group * together, width)
            of_group = jnp.einsum("pkxn,pknd->pkxd", to_prompt, prompt[1])
            of_row = jnp.swapaxes(of_group.reshape(prompts, kv_heads, group, together, size), 1, 2)
            attended = attended + flat(of_row)
        return attended.reshape(prompts, group, heads, size)

    return attend


def write_at(cached: Array, new: Array, place: Array, axis: int) -> Array:
    """`cached` with `new`, which lacks the axis of time, at `place` of it."""
    new = jnp.expand_dims(new, axis).astype(cached.dtype)
    return jax.lax.dynamic_update_slice_in_dim(cached, new, place, axis=cached.ndim + axis)
