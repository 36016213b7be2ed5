"""How a low-rank adapter enters a linear layer: beside its kernel, as leaves of the same dict.

{"query": {"kernel": [in, out], "lora_a": [in, r], "lora_b": [r, out]}}   →   x·kernel + (x·a)·b (+ bias)
"""

from __future__ import annotations

import jax
from flax import nnx

from rlvr_jax.policy.transformer import product
from rlvr_jax.types import PyTree

A, B = "lora_a", "lora_b"


def merge_module(graph: nnx.GraphDef, params: PyTree) -> nnx.Module:
    """The module of `graph` with `params`, whose linear layers may have adapters among their leaves."""
    adapters = {}
    module = nnx.merge(graph, nnx.State(_taken_out(params, (), adapters)))
    for path, (a, b) in adapters.items():
        layer = module
        for name in path:
            layer = getattr(layer, name)
        layer.dot_general = _adapted(a, b)
    return module


def _taken_out(params: PyTree, path: tuple[str, ...], found: dict) -> PyTree:
    if not isinstance(params, dict):
        return params
    if A in params:
        found[path] = params[A], params[B]
    return {name: _taken_out(value, (*path, name), found) for name, value in params.items() if name not in (A, B)}


def _adapted(a, b):
    def dot_general(inputs, kernel, dimensions, **options):
        last = (((inputs.ndim - 1,), (0,)), ((), ()))
        low = jax.lax.dot_general(inputs, a.astype(inputs.dtype), last)
        added = jax.lax.dot_general(low, b.astype(inputs.dtype), last)
        return product(inputs, kernel, dimensions, **options) + added

    return dot_general
