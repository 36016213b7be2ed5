"""Where arrays live: a mesh, a list of rules, and shardings by parameter name."""

from __future__ import annotations

import re
from collections.abc import Sequence

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from rlvr_jax.types import PyTree

# First match wins; an unmatched array of more than one element is an error. `data` cuts for memory (FSDP), `model`
# for tensor parallelism. Leaves of `blocks` have the layers on their first axis.
RULES: tuple[tuple[str, PartitionSpec], ...] = (
    (r"embed/embedding$", PartitionSpec("model", "data")),
    (r"blocks/.*(query|key|value|gate|up)/kernel$", PartitionSpec(None, "data", "model")),
    (r"blocks/.*(query|key|value)/bias$", PartitionSpec(None, "model")),
    (r"blocks/.*(output|down)/kernel$", PartitionSpec(None, "model", "data")),
    (r"head/kernel$", PartitionSpec("data", "model")),
    # adapters: cut along `model` where their kernel is, on the side that is wide
    (r"blocks/.*(output|down)/lora_a$", PartitionSpec(None, "model", None)),
    (r"blocks/.*(query|key|value|gate|up)/lora_b$", PartitionSpec(None, None, "model")),
    (r"head/lora_b$", PartitionSpec(None, "model")),
    (r"/lora_[ab]$", PartitionSpec()),
    (r"norm/scale$", PartitionSpec()),
    (r"(^|/)(memory|estimator)/", PartitionSpec()),
)


def make_mesh(data: int = -1, model: int = 1, devices: Sequence | None = None) -> jax.sharding.Mesh:
    """A mesh with axes ("data", "model"); data=−1 takes all devices that `model` leaves.

    Raises:
      ValueError: the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else list(devices)
    count = len(devices)
    data = count // model if data == -1 and model > 0 else data
    if model < 1 or data < 1 or data * model != count:
        raise ValueError(f"mesh.data={data} × mesh.model={model} must equal the number of devices, {count}")
    return jax.make_mesh((data, model), ("data", "model"), (AxisType.Auto,) * 2, devices=devices)


def path_name(path) -> str:
    """A tree path as slash-separated text: "params/policy/embed/embedding"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def spec_for(name: str, shape: Sequence[int], mesh: jax.sharding.Mesh, rules=RULES) -> PartitionSpec:
    """The first rule that matches `name`; an axis that does not divide its dimension is left out of it.

    Raises:
      ValueError: no rule matches an array of more than one element.
    """
    for pattern, spec in rules:
        if re.search(pattern, name):
            sizes = [mesh.shape[axis] if axis else 1 for axis in spec]
            fits = [axis if dim % size == 0 else None for axis, dim, size in zip(spec, shape, sizes)]
            return PartitionSpec(*fits)
    if all(dim == 1 for dim in shape):
        return PartitionSpec()
    raise ValueError(f"no sharding rule matches {name!r} of shape {tuple(shape)}; patterns: {[p for p, _ in rules]}")


def shardings_for(tree: PyTree, mesh: jax.sharding.Mesh, rules=RULES) -> PyTree:
    """A NamedSharding for each leaf (array or shape struct) of `tree`, by its path."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: NamedSharding(mesh, spec_for(path_name(path), leaf.shape, mesh, rules)), tree
    )


def replicated(mesh: jax.sharding.Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def rows_sharding(mesh: jax.sharding.Mesh, rows: int) -> NamedSharding:
    """Rows over `data`; replicated where they cannot be cut evenly."""
    return NamedSharding(mesh, PartitionSpec("data" if rows % mesh.shape["data"] == 0 else None))


def put_rows(tree: PyTree, mesh: jax.sharding.Mesh) -> PyTree:
    """Host arrays onto the devices, explicitly, first axis over `data`."""
    return jax.tree.map(lambda x: jax.device_put(x, rows_sharding(mesh, x.shape[0])), tree)
