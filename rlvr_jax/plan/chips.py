"""TPU slices by name, and the figures of their chips.

Peak, bandwidth and memory as published for each generation (cloud.google.com/tpu/docs/v4, v5e, v5p, v6e), written down
from memory and not compared with the pages since; `link_gbs` is the interconnect a chip has in all, in GB/s, likewise
(v5e 1,600 Gbit/s, v4 2,400, v5p 4,800, v6e 3,584), half of it in each direction.
The clock turns the compiler's cycles into seconds: 1.05, 1.5, 1.75 GHz for v4,
v5e, v5p as published (2304.01433 for v4; the others from peak = 2 · units · 128² · clock, which v6e's follows too).
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple


class Chip(NamedTuple):
    tflops: float  # bfloat16, dense
    memory_gib: float
    memory_gbs: float
    link_gbs: float
    clock_ghz: float


CHIPS = {
    "v4": Chip(275, 32, 1228, 300, 1.05),
    "v5e": Chip(197, 16, 819, 200, 1.5),
    "v5p": Chip(459, 95, 2765, 600, 1.75),
    "v6e": Chip(918, 32, 1640, 448, 1.75),
}
FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16", "16x16x16")
SHAPES = {"v4": CUBES, "v5e": FLAT, "v5p": CUBES, "v6e": FLAT}


def parse_slice(text: str) -> tuple[Chip, str]:
    """ "v5p:4x4x4" → (its chip, the name).

    Raises:
      ValueError: not such a name, or a slice that is not offered; lists those that are.
    """
    kind, _, shape = text.partition(":")
    if kind not in CHIPS:
        raise ValueError(f"--slice={text!r}: expected KIND:SHAPE, such as v5p:4x4x4; kinds: {list(CHIPS)}")
    if shape not in SHAPES[kind]:
        raise ValueError(f"--slice={text!r}: no such shape of {kind}; choose from {list(SHAPES[kind])}")
    return CHIPS[kind], text


def devices_of(name: str) -> list[Any]:
    """The devices of a slice for the compiler, in its order; none need exist.

    Raises:
      ImportError: no libtpu. ValueError: the compiler does not know the slice.
    """
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # asks no cloud who we are
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # it takes no chip: several plans may be made at once
    try:
        import libtpu  # noqa: F401
    except ImportError:
        raise ImportError(
            "`rlvr plan` asks the TPU compiler, which is in libtpu: pip install libtpu==0.0.42.1, or the extra [tpu]"
        ) from None
    from jax.experimental import topologies

    shape = name.partition(":")[2]
    options = {}
    if shape in ("1x1", "2x2", "2x2x1"):  # less than a host has
        options["chips_per_host_bounds"] = tuple(int(n) for n in (shape + "x1" * (2 - shape.count("x"))).split("x"))
    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices)
    except Exception as error:  # of whatever kind the compiler's are
        raise ValueError(f"--slice={name!r}: the compiler does not take it: {str(error).splitlines()[0]}") from None
