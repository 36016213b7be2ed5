"""Where arrays live: a mesh, a list of rules, and shardings by parameter name."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import mesh_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from rlvr_jax.hosts import put
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


def make_mesh(data: int = -1, model: int = 1, replica: int = 1, devices: Sequence | None = None) -> jax.sharding.Mesh:
    """A mesh with axes ("data", "model"); data=−1 takes all devices that the others leave. Devices that lie side by
    side in the torus are neighbours on the axes.

    `replica` slices, joined by the data centre's network alone, hold the same parameters each: an axis "replica" in
    front, which cuts the rows and nothing else. It is there only where it is above 1.

    Raises:
      ValueError: the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else list(devices)
    count, fixed = len(devices), model * replica
    data = count // fixed if data == -1 and fixed > 0 else data
    if model < 1 or data < 1 or replica < 1 or data * fixed != count:
        times = f" × mesh.replica={replica}" if replica != 1 else ""
        raise ValueError(f"mesh.data={data} × mesh.model={model}{times} must equal the number of devices, {count}")
    if replica == 1:
        return jax.make_mesh((data, model), ("data", "model"), (AxisType.Auto,) * 2, devices=devices)
    sizes, slices = (replica, data, model), {getattr(device, "slice_index", 0) for device in devices}
    if len(slices) == replica:
        placed = mesh_utils.create_hybrid_device_mesh((1, data, model), (replica, 1, 1), devices=devices)
    else:  # one slice, or devices that do not say
        placed = mesh_utils.create_device_mesh(sizes, devices=devices, allow_split_physical_axes=True)
    return jax.sharding.Mesh(placed, ("replica", "data", "model"), axis_types=(AxisType.Auto,) * 3)


def rows_axes(mesh: jax.sharding.Mesh) -> tuple[str, ...]:
    """The axes that cut rows."""
    return ("replica", "data") if "replica" in mesh.shape else ("data",)


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
    axes = rows_axes(mesh)
    even = rows % math.prod(mesh.shape[axis] for axis in axes) == 0
    return NamedSharding(mesh, PartitionSpec((axes if len(axes) > 1 else "data") if even else None))


def put_rows(tree: PyTree, mesh: jax.sharding.Mesh) -> PyTree:
    """Host arrays onto the devices, explicitly, first axis over `data`."""
    return jax.tree.map(lambda x: put(x, rows_sharding(mesh, x.shape[0])), tree)


class Spread(NamedTuple):
    """Fully sharded data parallelism written out (Rajbhandari et al. 2019, 1910.02054): every device computes its own
    rows, gathers a layer's weights when the layer runs, and its gradients leave it cut as the parameters are. Left to
    itself, the compiler sums whole gradients on every chip.

    - `layer(block) → block`, for the policy: one layer's weights, of the computing dtype, from all devices of `data`
    - `over_rows(function) → function(params, *rows)`, for what computes each row [B, …] by itself; `data` must divide B
    """

    layer: Callable
    over_rows: Callable


def two_stages(mesh: jax.sharding.Mesh) -> tuple[jax.sharding.Mesh, tuple[str, ...]]:
    """`mesh` with its axis "data" in two where its devices lie in a torus of several dimensions, and the names that
    stand for "data". Each half is whole dimensions of the torus: the TPU compiler then gathers and scatters along
    them, where over a line of devices that turns corners it sums padded copies of the whole on every chip.
    """
    names, size = list(mesh.axis_names), mesh.shape["data"]
    line = mesh.devices.reshape(-1, size, mesh.shape["model"])[0, :, 0]
    places = [getattr(device, "coords", ()) for device in line]
    # the inner half is the dimension that changes fastest: its gathers, of the smaller half, come in addition
    runs = [
        next((n for n, place in enumerate(places) if place[k] != places[0][k]), size) for k in range(len(places[0]))
    ]
    inner = min((run for run in runs if 1 < run < size), default=1)
    if inner == 1 or size % inner:
        return mesh, ("data",)
    at = names.index("data")
    shape = [*mesh.devices.shape[:at], size // inner, inner, *mesh.devices.shape[at + 1 :]]
    halves = ("data_outer", "data_inner")
    names[at : at + 1] = halves
    types = (AxisType.Auto,) * len(names)
    return jax.sharding.Mesh(mesh.devices.reshape(shape), names, axis_types=types), halves


def make_spread(mesh: jax.sharding.Mesh, params: PyTree, dtype: str, rules=RULES) -> Spread | None:
    """The Spread of a policy's parameters (arrays or shapes, whole); None where rows lie on one device, and there is
    nothing to gather."""
    axes = rows_axes(mesh)
    if mesh.size == mesh.shape["model"]:
        return None
    staged, data = two_stages(mesh)
    by_row = PartitionSpec((*axes[:-1], *data))
    # an axis of one device is no affair of the compiler's: kernels run only where none is
    own_axes = {*axes[:-1], *data, *(("model",) if mesh.shape["model"] == 1 else ())}

    def cut(path, x):
        """The dimension of an array that `data` cuts, −1 for none; the rest stays the compiler's affair."""
        spec = tuple(spec_for(path_name(path), x.shape, mesh, rules))
        return spec.index("data") if "data" in spec else -1

    def gather(x, axis):
        if axis < 0:
            return x
        # pieces side by side on a dimension of their own: it has no tiles, so no piece is padded
        x = jnp.moveaxis(x.astype(dtype), axis, 0)
        whole = x[None]
        for name in reversed(data):
            whole = jax.lax.all_gather(whole, name, axis=0, tiled=True)
        return jnp.moveaxis(whole.reshape(-1, *x.shape[1:]), 0, axis)

    cuts = jax.tree_util.tree_map_with_path(cut, params)
    of_layers = {  # by their name within a layer; a layer's leaf lacks the axis of layers
        path_name(path).partition("blocks/")[2]: axis - 1 if axis > 0 else -1
        for path, axis in jax.tree.leaves_with_path(cuts)
        if "blocks/" in path_name(path)
    }

    def layer(block):
        one = lambda path, x: gather(x, of_layers[path_name(path)])
        return jax.tree_util.tree_map_with_path(one, block)

    def over_rows(function):
        def own(params, *rows):
            # what is of no layer is gathered once, for however many pieces use it
            whole = lambda path, x, axis: x if "blocks/" in path_name(path) else gather(x, axis)
            return function(jax.tree_util.tree_map_with_path(whole, params, cuts), *rows)

        def spread(params, *rows):
            spec = lambda axis: PartitionSpec(*(None,) * axis, data) if axis >= 0 else PartitionSpec()
            spread = jax.shard_map(
                own,
                mesh=staged,
                in_specs=(jax.tree.map(spec, cuts), *(by_row,) * len(rows)),
                out_specs=by_row,
                axis_names=own_axes,
                check_vma=False,
            )
            return spread(params, *rows)

        return spread

    return Spread(layer, over_rows)
