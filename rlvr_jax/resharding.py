"""The sampler's own places: weights cut over few devices and whole in each such group, caches cut by rows and heads."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rlvr_jax.policy import Policy
from rlvr_jax.sharding import path_name, spec_for
from rlvr_jax.types import PyTree


def sampling_mesh(mesh: Mesh, model: int = 0) -> Mesh:
    """The devices of a training mesh, in its order, as ("data", "model") with `model` (0: as there) of them together.

    Raises:
      ValueError: `model` does not divide the devices.
    """
    model = model or mesh.shape["model"]
    if mesh.size % model:
        raise ValueError(f"mesh.sample_model={model}: must divide the {mesh.size} devices")
    return Mesh(mesh.devices.reshape(-1, model), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def sampling_shardings(params: PyTree, mesh: Mesh) -> PyTree:
    """Of each parameter (array or shape) the sharding that decoding wants: the training rule without `data`, since
    what is read for every token must not be fetched for every token."""

    def one(path, leaf):
        spec = spec_for(path_name(path), leaf.shape, mesh)
        return NamedSharding(mesh, PartitionSpec(*(axis if axis == "model" else None for axis in spec)))

    return jax.tree_util.tree_map_with_path(one, params)


def make_reshard(policy: Policy, mesh: Mesh) -> Callable[[PyTree], PyTree]:
    """One jitted function params → params for sampling on `mesh` (of `sampling_mesh`): matrices rounded to the
    policy's dtype, then moved. On one device, nothing to do, it returns what it is given."""
    if mesh.size == 1:
        return lambda params: params
    dtype = jnp.dtype(getattr(policy.architecture, "dtype", "float32"))
    shapes = jax.eval_shape(policy.init, jax.random.key(0))
    # norms are computed in float32, whatever the policy's dtype: vectors stay
    matrix = lambda path, x: x.ndim - path_name(path).count("blocks/") > 1
    round_ = lambda path, x: x.astype(dtype) if matrix(path, x) else x
    return jax.jit(
        lambda params: jax.tree_util.tree_map_with_path(round_, params), out_shardings=sampling_shardings(shapes, mesh)
    )


def with_placed_caches(policy: Policy, mesh: Mesh) -> Policy:
    """`policy` whose caches are cut over `mesh`: rows over `data`, heads of keys and values over `model`, each where it
    divides."""
    if mesh.size == 1:
        return policy

    def at(x, *spec):
        fits = [axis if axis and size % mesh.shape[axis] == 0 else None for axis, size in zip(spec, x.shape)]
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*fits)))

    def placed(cache):
        heads = lambda x: at(x, *(None,) * (x.ndim - 4), "data", "model") if x.ndim > 3 else x
        rows = lambda x: at(x, "data") if x.ndim else x
        parts = {name: jax.tree.map(heads, getattr(cache, name)) for name in ("keys", "values")}
        rest = {name: rows(x) for name, x in cache._asdict().items() if name not in parts}
        return type(cache)(**parts, **rest)

    def prefill(params, tokens, mask):
        hidden, cache = policy.prefill(params, at(tokens, "data"), at(mask, "data"))
        return at(hidden, "data"), placed(cache)

    def decode(params, tokens, index, prompt, cache):
        hidden, cache = policy.decode(params, tokens, index, prompt, cache)
        return hidden, placed(cache)

    both = lambda function: lambda *inputs: tuple(placed(cache) for cache in function(*inputs))
    return policy._replace(
        prefill=prefill,
        decode=decode,
        init_cache=lambda *sizes: placed(policy.init_cache(*sizes)),
        gather=policy.gather and both(policy.gather),
        refill=policy.refill and both(policy.refill),
    )
