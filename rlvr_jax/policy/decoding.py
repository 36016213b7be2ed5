"""A decoder one token at a time: prompts are read once, completions keep what they have read in a cache."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlvr_jax.policy.attention import Cache, PromptCache, attend_cached, attend_row, visible
from rlvr_jax.policy.decoder import Decoder
from rlvr_jax.types import Array, PyTree


class CachedDecoder(Decoder):
    """The functions of one architecture; its methods are what a Policy holds."""

    def prefill(self, params: PyTree, tokens: Array, mask: Array) -> tuple[Array, PromptCache]:
        rope = self._rope(jnp.maximum(jnp.cumsum(mask, axis=-1) - 1, 0))
        attend = attend_row(visible(mask.astype(jnp.int32)))
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
            attend = attend_cached(index, (prompt_keys, prompt_values), (keys, values), prompt.mask)
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
