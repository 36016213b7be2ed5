"""The door of the room: a policy as pure functions over a plain nested dict of parameters.

Outside this room nobody can tell that flax exists: `jax.jit`, `jax.grad`, optax and Orbax see a dict

    {"embed": {"embedding": [V, D]}, "blocks": {…each leaf [L, …]}, "final_norm": {"scale": [D]}, ("head": …)}
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from rlvr_jax.policy.transformer import Architecture, Block, Edges, rope_table
from rlvr_jax.types import Array, PyTree


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


class Policy(NamedTuple):
    """Pure functions of one architecture; hashable, static under jit.

    - `init(key) → params`
    - `apply(params, tokens i32[B, S], positions i32[B, S], segments i32[B, S]) → hidden [B, S, D]`; see `visible`
    - `logits(params, hidden [..., D]) → f32[..., V]`
    - `prefill(params, tokens i32[P, N], mask bool[P, N]) → (hidden [P, D] at each last token, PromptCache)`
    - `init_cache(prompts P, group G, length T) → Cache`
    - `decode(params, tokens i32[P, G], index i32[], PromptCache, Cache) → (hidden [P, G, D], Cache)`: `tokens` is
      each completion's token number `index`
    - `for_decoding(params) → params` in the form that a decode loop reads fastest; call it once, outside the loop
    """

    architecture: Architecture
    init: Callable
    apply: Callable
    logits: Callable
    prefill: Callable
    init_cache: Callable
    decode: Callable
    for_decoding: Callable


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


def _attend_row(mask: Array):
    """Attention within rows under `mask` bool[B, S, S]; f32 softmax."""

    def attend(query, key, value):
        return jax.nn.dot_product_attention(query, key, value, mask=mask[:, None])

    return attend


def _attend_cached(index: Array, prompt, own, prompt_mask: Array):
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


def _unstack(tree: PyTree, layers: int) -> tuple:
    """A tree of [L, …] leaves as L trees; `lax.split`, whose transpose is one concatenation."""
    leaves, structure = jax.tree.flatten(tree)
    split = [jax.lax.split(leaf, (1,) * layers, axis=0) for leaf in leaves]
    pick = lambda layer: [jnp.squeeze(parts[layer], 0) for parts in split]
    return tuple(jax.tree.unflatten(structure, pick(layer)) for layer in range(layers))


class _Decoder:
    """The functions of one architecture; its methods are what a Policy holds."""

    def __init__(self, shape: Architecture):
        self.shape, self.dtype = shape, jnp.dtype(shape.dtype)
        self._block, _ = nnx.split(nnx.eval_shape(lambda: Block(shape, nnx.Rngs(0))))
        self._edges, _ = nnx.split(nnx.eval_shape(lambda: Edges(shape, nnx.Rngs(0))))

    def init(self, key: Array) -> PyTree:
        plain = lambda module: nnx.to_pure_dict(nnx.state(module, nnx.Param))
        edge_key, *block_keys = jax.random.split(key, self.shape.layers + 1)
        blocks = jax.vmap(lambda key: plain(Block(self.shape, nnx.Rngs(key))))(jnp.stack(block_keys))
        return {"blocks": blocks, **plain(Edges(self.shape, nnx.Rngs(edge_key)))}

    def apply(self, params: PyTree, tokens: Array, positions: Array, segments: Array) -> Array:
        rope, attend = self._rope(positions), _attend_row(visible(segments))

        @self._remat
        def layer(block, x, _):
            return self._run_block(block, x, rope, attend)[0], ()

        x, _ = self._over_layers(self._blocks_of(params), self._embed(params, tokens), None, layer)
        return self._edges_of(params).final_norm(x)

    def logits(self, params: PyTree, hidden: Array) -> Array:
        if not self.shape.tied:
            return self._edges_of(params).head(hidden).astype(jnp.float32)
        table = params["embed"]["embedding"].astype(self.dtype)
        return jnp.einsum("...d,vd->...v", hidden, table, preferred_element_type=jnp.float32)

    def prefill(self, params: PyTree, tokens: Array, mask: Array) -> tuple[Array, PromptCache]:
        rope = self._rope(jnp.maximum(jnp.cumsum(mask, axis=-1) - 1, 0))
        attend = _attend_row(visible(mask.astype(jnp.int32)))
        by_head = lambda cached: cached.swapaxes(-3, -2)  # [P, N, KV, K] → [P, KV, N, K]: contiguous per head

        def layer(block, x, _):
            x, kv = self._run_block(block, x, rope, attend)
            return x, jax.tree.map(by_head, kv)

        x, (keys, values) = self._over_layers(self._blocks_of(params), self._embed(params, tokens), None, layer)
        last = self._edges_of(params).final_norm(x[:, -1])
        return last, PromptCache(keys, values, mask, mask.sum(axis=-1, dtype=jnp.int32))

    def init_cache(self, prompts: int, group: int, length: int) -> Cache:
        shape = self.shape
        one = jnp.zeros((prompts, group, shape.kv_heads, length, shape.head_size), self.dtype)
        if not shape.scan_layers:
            return Cache((one,) * shape.layers, (one,) * shape.layers)
        stacked = jnp.broadcast_to(one, (shape.layers, *one.shape))
        return Cache(stacked, stacked)

    def decode(
        self, params: PyTree, tokens: Array, index: Array, prompt: PromptCache, cache: Cache
    ) -> tuple[Array, Cache]:
        rope = self._rope(prompt.lengths[:, None] + index)

        def layer(block, x, own):
            prompt_keys, prompt_values, keys, values = own
            attend = _attend_cached(index, (prompt_keys, prompt_values), (keys, values), prompt.mask)
            return self._run_block(block, x, rope, attend)

        blocks, extra = self._blocks_of(params), (prompt.keys, prompt.values, cache.keys, cache.values)
        extra = tuple(zip(*extra)) if isinstance(blocks, tuple) else extra
        x, new = self._over_layers(blocks, self._embed(params, tokens), extra, layer)
        # Only the new token is written: the loop's cache is updated in place, never copied through the layers.
        write = lambda cached, fresh: jax.lax.dynamic_update_slice_in_dim(
            cached, jnp.expand_dims(fresh, -2).astype(cached.dtype), index, axis=cached.ndim - 2
        )
        return self._edges_of(params).final_norm(x), Cache(*jax.tree.map(write, tuple(cache), tuple(new)))

    def for_decoding(self, params: PyTree) -> PyTree:
        return {**params, "blocks": self._blocks_of(params)}

    def _rope(self, positions: Array) -> tuple[Array, Array]:
        return rope_table(positions, self.shape.head_size, self.shape.rope_theta)

    def _embed(self, params: PyTree, tokens: Array) -> Array:
        return params["embed"]["embedding"].astype(self.dtype)[tokens]

    def _run_block(self, params: PyTree, x: Array, rope: tuple[Array, Array], attend: Callable):
        return nnx.merge(self._block, nnx.State(params))(x, rope, attend)

    def _edges_of(self, params: PyTree) -> Edges:
        return nnx.merge(self._edges, nnx.State({name: value for name, value in params.items() if name != "blocks"}))

    def _blocks_of(self, params: PyTree) -> PyTree:
        """Stacked blocks where layers are scanned, else a tuple of one tree per layer."""
        blocks = params["blocks"]
        return blocks if self.shape.scan_layers or isinstance(blocks, tuple) else _unstack(blocks, self.shape.layers)

    def _over_layers(self, blocks: PyTree, x: Array, extra: PyTree, layer: Callable):
        """Runs `layer(block, x, extra of the layer) → (x, kv)` through all layers; `blocks` stacked or a tuple."""
        if not isinstance(blocks, tuple):
            return jax.lax.scan(lambda x, inputs: layer(inputs[0], x, inputs[1]), x, (blocks, extra))
        results = []
        for block, own in zip(blocks, extra if extra is not None else (None,) * len(blocks)):
            x, kv = layer(block, x, own)
            results.append(kv)
        return x, tuple(zip(*results))

    def _remat(self, layer: Callable) -> Callable:
        if self.shape.remat == "none":
            return layer
        saved = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if self.shape.remat == "dots" else None
        return jax.checkpoint(layer, policy=saved)


def make_policy(architecture: Architecture) -> Policy:
    """The policy of an architecture; see `Policy` for its functions."""
    decoder = _Decoder(architecture)
    return Policy(architecture, *(getattr(decoder, name) for name in Policy._fields[1:]))
