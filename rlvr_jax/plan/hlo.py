"""Costs read off a compiled TPU program's text: cycles, collectives, products, every loop multiplied by its turns."""

from __future__ import annotations

import itertools
import math
import re
from typing import NamedTuple

import numpy as np

BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "s32": 4, "u32": 4, "f32": 4}
BYTES |= {"s64": 8, "u64": 8, "f64": 8}
COLLECTIVES = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
_NAME = r"%?([\w.\-]+)"
_HEAD = re.compile(rf"^(ENTRY )?{_NAME} \(.*\) -> .*\{{$")
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
_CALLEES = re.compile(rf"(?:to_apply|true_computation|false_computation|called_computations?)={_NAME}")


class Costs(NamedTuple):
    """Of one program on one chip."""

    cycles: float  # the compiler's own estimates of its fusions, kernels and collectives left out
    collective_bytes: dict[str, float]  # result bytes of each kind (of a reduce-scatter: what goes in)
    product_flops: float  # of matrix products and convolutions in the text; kernels left out
    kernels: float  # calls of kernels (Pallas), whose time nobody estimates
    unknown_loops: tuple[str, ...]  # loops whose bound is not a constant: counted once


def computations(text: str) -> tuple[dict[str, list[str]], str]:
    """{name: its lines} of a module, and the name of its entry. A computation ends at a line "}" before a blank one:
    kernels print bodies of their own, with braces, inside a line."""
    found, current, entry = {}, None, ""
    lines = [*text.splitlines(), ""]
    for line, following in itertools.pairwise(lines):
        head = _HEAD.match(line)
        if head:
            current = head.group(2)
            found[current] = []
            entry = current if head.group(1) else entry
        elif line == "}" and not following.strip():
            current = None
        elif current is not None:
            found[current].append(line.strip())
    return found, entry


def trips(condition: list[str], start: int = 0) -> int | None:
    """The turns of a loop whose condition compares a counter from `start` with one constant; None: not so.

    Read from the comparison itself: a condition may hold other constants.
    """
    constants = {}
    for line in condition:
        known = re.match(rf"(?:ROOT )?{_NAME} = [su]32\[\].* constant\((-?\d+)\)", line)
        if known:
            constants[known.group(1)] = int(known.group(2))
    for line in condition:
        compared = re.search(rf" compare\({_NAME}, {_NAME}\), direction=(\w+)", line)
        if line.startswith("ROOT ") and compared:
            left, right, direction = compared.groups()
            if right in constants and direction in ("LT", "LE"):
                return max(constants[right] - start + (direction == "LE"), 0)
            if left in constants and direction in ("GT", "GE"):
                return max(constants[left] - start + (direction == "GE"), 0)
    if len(constants) == 1 and any("fusion(" in line for line in condition if line.startswith("ROOT ")):
        return max(next(iter(constants.values())) - start, 0)
    return None


def array_bytes(shape: str) -> list[float]:
    """The sizes of all arrays in a shape's text, tuples taken apart."""
    return [
        BYTES[kind] * math.prod(int(n) for n in dims.split(",") if n)
        for kind, dims in _ARRAY.findall(re.sub(r"\{[^}]*\}", "", shape))
        if kind in BYTES
    ]


def _collective(line: str, groups: int) -> tuple[str, float] | None:
    """(kind, bytes) of a line that starts a collective."""
    found = re.match(rf"(?:ROOT )?{_NAME} = (.*?) ({'|'.join(COLLECTIVES)})(-start)?\(", line)
    if not found:
        return None
    _, shape, kind, started = found.groups()
    sizes = array_bytes(shape)
    if started and kind != "all-reduce":  # (operands, results, …): results are half of it
        sizes = sizes[len(sizes) // 2 :] if kind == "all-gather" else sizes[:1]
    total = sum(sizes)
    return kind, total * _group_size(line, groups) if kind == "reduce-scatter" else total


def _group_size(line: str, otherwise: int) -> int:
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", line)
    if listed:
        return listed.group(1).count(",") + 1
    shaped = re.search(r"replica_groups=\[(\d+),(\d+)\]", line)
    return int(shaped.group(2)) if shaped else otherwise


class _Module:
    def __init__(self, text: str, devices: int):
        self.parts, self.entry = computations(text)
        self.devices, self.unknown, self.seen = devices, [], {}

    def total(self, name: str) -> tuple[float, dict[str, float], float, float]:
        """(cycles, bytes by collective, flops, kernels) of one run of a computation."""
        if name in self.seen:
            return self.seen[name]
        cycles, moved, flops, kernels = 0.0, {}, 0.0, 0.0
        shapes = self._shapes(name)
        for line in self.parts.get(name, ()):
            estimate = re.search(r'"estimated_cycles":"(\d+)"', line)
            cycles += int(estimate.group(1)) if estimate else 0
            found = _collective(line, self.devices)
            if found:
                moved[found[0]] = moved.get(found[0], 0.0) + found[1]
            flops += _product(line, shapes)
            kernels += 'custom_call_target="tpu_custom_call"' in line
            for callee, times, whole in self._calls(line):
                more = self.total(callee)
                flops += more[2] * times
                if whole:  # what a fusion holds is in its own estimate
                    cycles, kernels = cycles + more[0] * times, kernels + more[3] * times
                carried = more[1] if whole else self._of_fusion(callee, more[1])
                moved = {k: moved.get(k, 0.0) + carried.get(k, 0.0) * times for k in {*moved, *carried}}
        self.seen[name] = cycles, moved, flops, kernels
        return self.seen[name]

    def _of_fusion(self, name: str, moved: dict[str, float]) -> dict[str, float]:
        """What a fusion moves. One collective that runs beside several fusions is written in each of them: it counts
        where it starts. A sum that is cut at once is a scatter."""
        if not moved or "all-reduce-scatter" in name:
            return {"reduce-scatter": sum(moved.values())} if moved else moved
        return moved if any('"AsyncCollectiveStart"' in line for line in self.parts[name]) else {}

    def _shapes(self, name: str) -> dict[str, tuple[int, ...]]:
        found = {}
        for line in self.parts.get(name, ()):
            one = re.match(rf"(?:ROOT )?{_NAME} = \w+\[([\d,]*)\]", line)
            if one:
                found[one.group(1)] = tuple(int(n) for n in one.group(2).split(",") if n)
        return found

    def _calls(self, line: str):
        """(computation, times, whether all of it counts) for each that a line runs."""
        loop = re.search(rf" while\(.*condition={_NAME}, body={_NAME}", line)
        if loop:
            known = re.search(r'"known_trip_count":\{"n":"(\d+)"', line)
            times = int(known.group(1)) if known else trips(self.parts.get(loop.group(1), []))
            if times is None:
                self.unknown.append(loop.group(2))
                times = 1
            yield loop.group(2), times, True
        elif " call(" in line:
            for callee in _CALLEES.findall(line):
                yield callee, 1, True
        elif " conditional(" in line:  # the dearest branch
            several = re.search(r"branch_computations=\{([^}]*)\}", line)
            names = re.findall(r"[\w.\-]+", several.group(1)) if several else _CALLEES.findall(line)
            yield max(names, key=lambda name: self.total(name)[0]), 1, True
        elif " fusion(" in line:
            for callee in re.findall(rf"calls={_NAME}", line):
                yield callee, 1, False


def _product(line: str, shapes: dict[str, tuple[int, ...]]) -> float:
    """2 · results · terms of a matrix product; the compiler writes most of them as convolutions."""
    dot = re.match(rf"(?:ROOT )?{_NAME} = \w+\[([\d,]*)\].*? (dot|convolution)\({_NAME}, {_NAME}\)", line)
    if not dot:
        return 0.0
    results = math.prod(int(n) for n in dot.group(2).split(",") if n)
    left, right = shapes.get(dot.group(4), ()), shapes.get(dot.group(5), ())
    if dot.group(3) == "dot":
        over = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", line)
        return 2.0 * results * math.prod(left[int(n)] for n in over.group(1).split(",") if n) if left else 0.0
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", line)
    if not labels or not left or not right:
        return 0.0
    inputs, kernel, output = labels.groups()
    out = tuple(int(n) for n in dot.group(2).split(",") if n)
    size = lambda names, shape, name: shape[names.index(name)]
    pairs = size(output, out, "b") * size(output, out, "f") * size(kernel, right, "i")
    for axis in range(len(inputs) - 2):
        pairs *= _taps(line, axis, *(size(names, shape, str(axis)) for names, shape in ((inputs, left), (output, out))))
    return 2.0 * pairs


def _taps(line: str, axis: int, inputs: int, outputs: int) -> int:
    """How many (output, tap) pairs of a convolution's window meet an entry rather than padding: a batched product is
    written as a window of which each output meets one."""
    window = re.search(r"window=\{([^}]*)\}", line)
    given = dict(item.split("=") for item in window.group(1).split()) if window else {}
    of = lambda name, default: given[name].split("x")[axis] if name in given else default
    size, stride, spread, step = (int(of(n, "1")) for n in ("size", "stride", "lhs_dilate", "rhs_dilate"))
    low = int(of("pad", "0_0").split("_")[0])
    places = np.arange(outputs)[:, None] * stride + np.arange(size)[None] * step - low
    return int(((places >= 0) & (places <= (inputs - 1) * spread) & (places % spread == 0)).sum())


def costs(text: str, devices: int) -> Costs:
    """The costs of a compiled program's text, for one of its `devices` chips."""
    module = _Module(text, devices)
    cycles, moved, flops, kernels = module.total(module.entry)
    return Costs(cycles, moved, flops, kernels, tuple(dict.fromkeys(module.unknown)))
