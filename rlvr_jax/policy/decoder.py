"""A decoder's forward pass over whole rows, as functions of a plain dict of parameters."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from rlvr_jax.policy.attention import attend_row, visible
from rlvr_jax.policy.transformer import Architecture, Block, Edges, rope_table
from rlvr_jax.types import Array, PyTree


def _unstack(tree: PyTree, layers: int) -> tuple:
    """A tree of [L, …] leaves as L trees; `lax.split`, whose transpose is one concatenation."""
    leaves, structure = jax.tree.flatten(tree)
    split = [jax.lax.split(leaf, (1,) * layers, axis=0) for leaf in leaves]
    pick = lambda layer: [jnp.squeeze(parts[layer], 0) for parts in split]
    return tuple(jax.tree.unflatten(structure, pick(layer)) for layer in range(layers))


class Decoder:
    """The functions of one architecture that need no cache."""

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
        rope, attend = self._rope(positions), attend_row(visible(segments))

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
