"""A decoder's forward pass over whole rows, as functions of a plain dict of parameters."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from rlvr_jax.policy.adapters import merge_module
from rlvr_jax.policy.attention import attend_row, attend_shared, visible, visible_shared
from rlvr_jax.policy.rope import rope_table
from rlvr_jax.policy.splash import attend_splash
from rlvr_jax.policy.transformer import PRODUCT, Architecture, Block, Edges
from rlvr_jax.types import Array, PyTree


def _unstack(tree: PyTree, layers: int) -> tuple:
    """A tree of [L, …] leaves as L trees; `lax.split`, whose transpose is one concatenation."""
    leaves, structure = jax.tree.flatten(tree)
    split = [jax.lax.split(leaf, (1,) * layers, axis=0) for leaf in leaves]
    pick = lambda layer: [jnp.squeeze(parts[layer], 0) for parts in split]
    return tuple(jax.tree.unflatten(structure, pick(layer)) for layer in range(layers))


def pick_kind(views: tuple, kind: int | Array) -> PyTree:
    """Of one tree for each kind of layer the one of `kind`: outright where there is one or the number is known,
    else (layers are scanned) by its number."""
    if len(views) == 1:
        return views[0]
    if isinstance(kind, int):
        return views[kind]
    return jax.tree.map(lambda *leaves: jax.lax.select_n(kind, *leaves), *views)


class Decoder:
    """The functions of one architecture that need no cache."""

    def __init__(self, shape: Architecture, gather_layer: Callable | None = None):
        self.shape, self.dtype, self.gather_layer = shape, jnp.dtype(shape.dtype), gather_layer or (lambda block: block)
        self.kinds, self.kind_of_layer = shape.layer_kinds()
        self._block, _ = nnx.split(nnx.eval_shape(lambda: Block(shape, nnx.Rngs(0))))
        self._edges, _ = nnx.split(nnx.eval_shape(lambda: Edges(shape, nnx.Rngs(0))))

    def init(self, key: Array) -> PyTree:
        plain = lambda module: nnx.to_pure_dict(nnx.state(module, nnx.Param))
        edge_key, *block_keys = jax.random.split(key, self.shape.layers + 1)
        blocks = jax.vmap(lambda key: plain(Block(self.shape, nnx.Rngs(key))))(jnp.stack(block_keys))
        return {"blocks": blocks, **plain(Edges(self.shape, nnx.Rngs(edge_key)))}

    def apply(
        self,
        params: PyTree,
        tokens: Array,
        positions: Array,
        segments: Array,
        completions: tuple[int, int] | None = None,
    ) -> Array:
        blocks, softcap = self._blocks_of(params), self.shape.attention_softcap
        ropes = self._ropes(positions)
        if completions is None:
            masks = tuple(visible(segments, positions, kind.window) for kind in self.kinds)
            attention = lambda mask: attend_row(mask, softcap)
            if self.shape.attention == "splash" and len(self.kinds) == 1:
                attention = lambda _: attend_splash(segments, self.kinds[0].window, softcap)
        else:
            masks = tuple(visible_shared(segments, positions, kind.window, completions) for kind in self.kinds)
            attention = lambda mask: attend_shared(mask, completions, softcap)

        def layer(block, x, kind):
            rope, mask = pick_kind(tuple(zip(ropes, masks)), kind)
            return self._run_block(self.gather_layer(block), x, rope, attention(mask))[0], ()

        layer = self._remat(layer, unrolled=isinstance(blocks, tuple))
        x, _ = self._over_layers(blocks, self._embed(params, tokens), self._kinds_for(blocks), layer)
        return self._edges_of(params).final_norm(x)

    def logits(self, params: PyTree, hidden: Array) -> Array:
        cap = self.shape.logit_softcap
        logits = self._logits(params, hidden)
        return cap * jnp.tanh(logits / cap) if cap else logits

    def _logits(self, params: PyTree, hidden: Array) -> Array:
        if not self.shape.tied:
            return self._edges_of(params).head(hidden).astype(jnp.float32)
        table = params["embed"]["embedding"].astype(self.dtype)
        return jnp.einsum("...d,vd->...v", hidden, table, preferred_element_type=jnp.float32)

    def _rope(self, positions: Array) -> tuple[Array, Array]:
        return rope_table(positions, self.shape.head_size, self.shape.rope_theta, self.shape.rope_scaling)

    def _ropes(self, positions: Array) -> tuple[tuple[Array, Array], ...]:
        """For each kind of layer its cos and sin; kinds that turn alike share the arrays."""
        tables = {}
        for _, *turn in self.kinds:
            if tuple(turn) not in tables:
                tables[tuple(turn)] = rope_table(positions, self.shape.head_size, *turn)
        return tuple(tables[tuple(turn)] for _, *turn in self.kinds)

    def _kinds_for(self, blocks: PyTree) -> Array | tuple[int, ...]:
        """The number of each layer's kind, in the form that `_over_layers` hands out beside `blocks`."""
        return self.kind_of_layer if isinstance(blocks, tuple) else jnp.asarray(self.kind_of_layer, jnp.int32)

    def _embed(self, params: PyTree, tokens: Array) -> Array:
        vectors = params["embed"]["embedding"].astype(self.dtype)[tokens]
        scale = self.shape.embedding_scale
        return vectors if scale == 1.0 else vectors * jnp.asarray(scale, self.dtype)

    def _run_block(self, params: PyTree, x: Array, rope: tuple[Array, Array], attend: Callable):
        return merge_module(self._block, params)(x, rope, attend)

    def _edges_of(self, params: PyTree) -> Edges:
        return merge_module(self._edges, {name: value for name, value in params.items() if name != "blocks"})

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

    def _remat(self, layer: Callable, unrolled: bool = False) -> Callable:
        if self.shape.remat == "none":
            return layer
        saved = jax.checkpoint_policies.save_only_these_names(PRODUCT) if self.shape.remat == "dots" else None
        return jax.checkpoint(layer, policy=saved, static_argnums=(2,) if unrolled else ())
