"""A decoder one token at a time: prompts are read once, completions keep what they have read in a cache."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlvr_jax.policy.attention import Cache, PromptCache, attend_cached, attend_row, visible, write_at
from rlvr_jax.policy.decoder import Decoder, pick_kind
from rlvr_jax.types import Array, PyTree


class CachedDecoder(Decoder):
    """The functions of one architecture; its methods are what a Policy holds."""

    def prefill(self, params: PyTree, tokens: Array, mask: Array) -> tuple[Array, PromptCache]:
        blocks = self._blocks_of(params)
        positions = jnp.cumsum(mask, axis=-1, dtype=jnp.int32) - 1
        places = jnp.maximum(positions, 0)
        ropes = self._ropes(places)
        masks = tuple(visible(mask.astype(jnp.int32), places, kind.window) for kind in self.kinds)

        def layer(block, x, kind):
            rope, seen = pick_kind(tuple(zip(ropes, masks)), kind)
            x, (key, value) = self._run_block(block, x, rope, attend_row(seen, self.shape.attention_softcap))
            return x, (jnp.moveaxis(key, 1, 3), jnp.moveaxis(value, 1, 2))  # [P, KV, K, N], [P, KV, N, K]

        x, (keys, values) = self._over_layers(blocks, self._embed(params, tokens), self._kinds_for(blocks), layer)
        last = self._edges_of(params).final_norm(x[:, -1])
        lengths = mask.sum(axis=-1, dtype=jnp.int32)
        return last, PromptCache(keys, values, jnp.where(mask, positions, -1), lengths)

    def init_cache(self, prompts: int, group: int, length: int) -> Cache:
        shape = self.shape
        lead = (prompts * group, shape.kv_heads)  # one axis of rows: products over two of them copy the cache on CPUs
        keys = jnp.zeros((*lead, shape.head_size, length), self.dtype)
        values = jnp.zeros((*lead, length, shape.head_size), self.dtype)
        stack = lambda x: jnp.broadcast_to(x, (shape.layers, *x.shape)) if shape.scan_layers else (x,) * shape.layers
        nothing = jnp.full((prompts, group, length), -1, jnp.int32)
        return Cache(stack(keys), stack(values), nothing, jnp.zeros((), jnp.int32))

    def decode(
        self, params: PyTree, tokens: Array, index: Array, prompt: PromptCache, cache: Cache
    ) -> tuple[Array, Cache]:
        blocks, apart = self._blocks_of(params), _apart(prompt)
        here = jnp.broadcast_to(prompt.lengths[:, None] + index, tokens.shape)
        front = 0 if apart else prompt.positions.shape[-1]
        place = front + cache.time % (cache.positions.shape[-1] - front)
        positions = write_at(cache.positions, here, place, -1)
        ropes = self._ropes(here)
        # completions that read one prompt together are all at the same token
        seen = tuple(
            (_seen(here[:, 0], prompt.positions, kind.window), _seen(here, positions, kind.window))
            for kind in self.kinds
        )

        write = lambda keys, values, key, value: (write_at(keys, key, place, -1), write_at(values, value, place, -2))

        def layer(block, x, own):
            kind, keys, values, *of_prompt = own
            rope, masks = pick_kind(tuple(zip(ropes, seen)), kind)
            written = []

            def put(key, value):
                written.append(write(keys, values, key, value))
                return written[0]

            attend = attend_cached(of_prompt or None, put, masks, self.shape.attention_softcap)
            x, new = self._run_block(block, x, rope, attend)
            return x, written[0] if isinstance(blocks, tuple) else new

        extra = (self._kinds_for(blocks), cache.keys, cache.values)
        extra = (*extra, prompt.keys, prompt.values) if apart else extra
        extra = tuple(zip(*extra)) if isinstance(blocks, tuple) else extra
        x, (keys, values) = self._over_layers(blocks, self._embed(params, tokens), extra, layer)
        if not isinstance(blocks, tuple):
            # What a scan would hand on is a copy of all it got: only the new token is, and is written in place here.
            rows = lambda new: new.reshape(new.shape[0], -1, *new.shape[3:])  # [L, P, G, KV, K] → [L, P·G, KV, K]
            keys, values = write(cache.keys, cache.values, rows(keys), rows(values))
        return self._edges_of(params).final_norm(x), Cache(keys, values, positions, cache.time + 1)

    def for_decoding(self, params: PyTree) -> PyTree:
        return {**params, "blocks": self._blocks_of(params)}

    def gather(self, prompt: PromptCache, cache: Cache, rows: Array) -> tuple[PromptCache, Cache]:
        """Rows [R] out of the P·G of a cache, each with its prompt in front of its completion: caches [R, 1, …] that
        refer to nothing outside their row."""
        group = cache.positions.shape[1]
        which, lead = rows // group, 1 if self.shape.scan_layers else 0
        own = lambda tree: jax.tree.map(lambda x: jnp.take(x, rows, axis=lead), tree)
        keys, values = own(cache.keys), own(cache.values)
        positions = cache.positions.reshape(-1, 1, cache.positions.shape[-1])[rows]
        if _apart(prompt):
            join = lambda axis: lambda a, b: jnp.concatenate([jnp.take(a, which, axis=lead), b], axis=axis)
            keys, values = jax.tree.map(join(-1), prompt.keys, keys), jax.tree.map(join(-2), prompt.values, values)
            positions = jnp.concatenate([prompt.positions[which][:, None], positions], axis=-1)
        slots = PromptCache((), (), prompt.positions[which], prompt.lengths[which])
        return slots, Cache(keys, values, positions, cache.time)

    def refill(
        self, source: PromptCache, which: Array, fresh: Array, prompt: PromptCache, cache: Cache
    ) -> tuple[PromptCache, Cache]:
        """What `gather` gave, with the rows where `fresh` bool[R] begun anew on prompts `which` i32[R] of `source`."""
        lead = 1 if self.shape.scan_layers else 0
        width = prompt.positions.shape[-1]

        def put(cached, new, axis):
            new = jnp.take(new, which, axis=lead)
            old = jax.lax.slice_in_dim(cached, 0, width, axis=cached.ndim + axis)
            mask = fresh.reshape((1,) * lead + (-1,) + (1,) * (cached.ndim - lead - 1))
            return jax.lax.dynamic_update_slice_in_dim(cached, jnp.where(mask, new, old), 0, axis=cached.ndim + axis)

        keys = jax.tree.map(lambda cached, new: put(cached, new, -1), cache.keys, source.keys)
        values = jax.tree.map(lambda cached, new: put(cached, new, -2), cache.values, source.values)
        there, lengths = source.positions[which], source.lengths[which]
        empty = jnp.full((len(which), cache.positions.shape[-1] - width), -1, jnp.int32)
        positions = jnp.where(fresh[:, None, None], jnp.concatenate([there, empty], axis=-1)[:, None], cache.positions)
        prompt = PromptCache(
            (), (), jnp.where(fresh[:, None], there, prompt.positions), jnp.where(fresh, lengths, prompt.lengths)
        )
        return prompt, Cache(keys, values, positions, cache.time)


def _apart(prompt: PromptCache) -> bool:
    """Whether prompts have a cache of their own, or stand in front of each completion's."""
    return len(jax.tree.leaves(prompt.keys)) > 0


def _seen(here: Array, positions: Array, window: int) -> Array:
    """bool[..., N]: which places hold a token that a query at `here` i32[...] sees; −1 holds none."""
    there = positions >= 0
    return there & (here[..., None] - positions < window) if window else there
