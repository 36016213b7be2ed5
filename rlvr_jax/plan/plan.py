"""`rlvr plan`: a config compiled for a TPU slice that need not exist."""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from rlvr_jax.plan.chips import Chip, devices_of, parse_slice
from rlvr_jax.plan.hlo import Costs, costs
from rlvr_jax.plan.programs import Program, parts_for, programs_of
from rlvr_jax.types import PyTree

GIB = 2**30
KERNEL_EFFICIENCY = 0.5  # of the peak: assumed, since the compiler estimates no kernel
ESTIMATE = "an estimate of the TPU compiler, nothing of it measured"
NAMES = ("sample_prefill", "sample_decode", "score", "update")


def make_plan(config: ConfigDict, name: str, only: tuple[str, ...] = NAMES) -> dict[str, Any]:
    """What the compiler says of a config's programs on the slice `name`, as plain values: an object for each program,
    and "step" for a whole RL step. Compiles for minutes where the model is large.

    Raises:
      ValueError: an unknown slice, a config that does not fit so many chips, or a program the compiler refuses.
      ImportError: no libtpu.
    """
    chip, _ = parse_slice(name)
    devices = devices_of(name)
    parts, source = parts_for(config, devices)
    architecture = parts.policy.architecture
    plan: dict[str, Any] = {
        "slice": name,
        "chips": len(devices),
        "mesh": {axis: int(size) for axis, size in parts.mesh.shape.items()},
        "model": source,
        "parameters": architecture.parameter_count(),
        "kind": ESTIMATE,
    }
    for program in programs_of(config, parts):
        if program.name in only:
            plan[program.name] = judge(program, chip, len(devices))
    if set(NAMES) <= set(plan):
        plan["step"] = whole_step(config, plan, len(devices))
    return plan


def judge(program: Program, chip: Chip, chips: int) -> dict[str, Any]:
    """Compiles one program and reads its costs.

    Raises:
      ValueError: the compiler refuses it for another reason than its memory.
    """
    start = time.perf_counter()
    try:
        compiled = (
            program.function.trace(*program.arguments, **program.keywords).lower(lowering_platforms=("tpu",)).compile()
        )
    except jax.errors.JaxRuntimeError as error:
        text = " ".join(str(error).split())
        if "RESOURCE_EXHAUSTED" not in text:
            raise ValueError(f"{program.name}: the compiler refuses it: {text[:300]}") from None
        return _too_large(program, chip, text, time.perf_counter() - start)
    seconds = time.perf_counter() - start
    found = costs(compiled.as_text(), chips)
    memory = _memory(program, compiled.memory_analysis())
    return {
        "hbm_gib_per_chip": memory["total"],
        "fits": memory["total"] < chip.memory_gib,
        "hbm_split_gib": {key: value for key, value in memory.items() if key != "total"},
        **_time(program, found, chip, chips),
        "collective_gib": {kind: round(size / GIB, 3) for kind, size in sorted(found.collective_bytes.items())},
        "weights_gib": round(program.weights_bytes / GIB, 3),
        "compile_s": round(seconds, 1),
    }


def _time(program: Program, found: Costs, chip: Chip, chips: int) -> dict[str, Any]:
    own = program.model_flops / chips
    inside = program.kernel_flops / chips
    compiled = max(found.product_flops + inside, own)
    cycles = found.cycles / (chip.clock_ghz * 1e9)
    kernels = inside / (KERNEL_EFFICIENCY * chip.tflops * 1e12)
    seconds = cycles + kernels
    floor = compiled / (chip.tflops * 1e12)
    link = link_seconds(found.collective_bytes, chip, chips)
    notes = []
    if seconds < floor:
        notes.append(f"the cycles are too few for {compiled:.3g} flops: at the peak they take {floor:.3g} s, used here")
        seconds = floor
    if found.unknown_loops:
        notes.append(f"{len(found.unknown_loops)} loops of unknown length are counted once")
    if kernels:
        notes.append(f"of kernels the compiler estimates nothing: {kernels:.3g} s assumed, half the chip's peak")
    return {
        "flops_per_chip": compiled,
        "model_flops_per_chip": own,
        "estimated_compute_s": round(seconds, 5),
        "estimated_mfu": round(own / (chip.tflops * 1e12) / seconds, 3) if seconds else None,
        "estimated_link_s": round(link, 5),
        "notes": notes,
    }


def link_seconds(moved: dict[str, float], chip: Chip, chips: int) -> float:
    """Bytes of the collectives over the chip's links, half of them in each direction: (n − 1)/n of a gather's result
    or a scatter's operand, twice that for a reduction left whole. As if nothing were computed meanwhile."""
    share = (chips - 1) / chips
    passes = {"all-reduce": 2 * share, "all-gather": share, "reduce-scatter": share, "all-to-all": share}
    total = sum(size * passes.get(kind, 1.0) for kind, size in moved.items())
    return total / (chip.link_gbs / 2 * 1e9)


def shard_bytes(tree: PyTree) -> float:
    """Bytes on one device of shapes with shardings."""
    total = 0.0
    for leaf in jax.tree.leaves(tree):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            continue
        sharding = getattr(leaf, "sharding", None)
        shape = sharding.shard_shape(leaf.shape) if sharding is not None else leaf.shape
        total += float(np.prod(shape, dtype=float)) * leaf.dtype.itemsize
    return total


def _memory(program: Program, memory) -> dict[str, float]:
    total = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes
    )
    parts = {name: shard_bytes(getattr(program, name)) for name in ("parameters", "optimiser", "cache")}
    parts["activations"] = max(total - sum(parts.values()), 0.0)
    return {name: round(size / GIB, 3) for name, size in {**parts, "total": total}.items()}


def _too_large(program: Program, chip: Chip, text: str, seconds: float) -> dict[str, Any]:
    """The compiler gave up: it says how much it wanted."""
    import re

    used = re.search(r"Used ([\d.]+)([GM]) of ([\d.]+)G hbm", text)
    total = float(used.group(1)) / (1024 if used.group(2) == "M" else 1) if used else None
    parts = {name: round(shard_bytes(getattr(program, name)) / GIB, 3) for name in ("parameters", "optimiser", "cache")}
    if total:
        parts["activations"] = round(max(total - sum(parts.values()), 0.0), 3)
    nothing = ("flops_per_chip", "model_flops_per_chip", "estimated_compute_s", "estimated_mfu", "estimated_link_s")
    return {
        "hbm_gib_per_chip": total,
        "fits": False,
        "hbm_split_gib": parts,
        **dict.fromkeys(nothing),
        "collective_gib": {},
        "weights_gib": round(program.weights_bytes / GIB, 3),
        "compile_s": round(seconds, 1),
        "notes": [f"refused by the compiler: {text[:200]}"],
    }


def whole_step(config: ConfigDict, plan: dict[str, Any], chips: int) -> dict[str, Any] | None:
    """Seconds of one RL step with every completion at its full length, compute and links one after the other; None
    where a program has no estimate."""
    both = lambda name: plan[name]["estimated_compute_s"] + plan[name]["estimated_link_s"]
    if any(plan[name]["estimated_compute_s"] is None for name in NAMES):
        return None
    rows, length = config.prompts_per_step * config.group_size, config.sampling.completion_length
    turns = -(-rows // (config.sampling.rows_at_once or rows))
    updates = config.updates.epochs * config.updates.minibatches
    seconds = {
        "sample_s": both("sample_prefill") + both("sample_decode") * length * turns,
        "score_s": both("score"),
        "update_s": both("update") * updates,
    }
    total = sum(seconds.values())
    tokens = rows * length
    return {
        **{name: round(value, 3) for name, value in seconds.items()},
        "total_s": round(total, 3),
        "tokens_per_second_per_chip": round(tokens / total / chips, 1),
    }


def advice(config: ConfigDict, plan: dict[str, Any]) -> list[str]:
    """What to change for each program that does not fit, the cheapest first."""
    found = []
    for name in NAMES:
        if name not in plan or plan[name]["fits"]:
            continue
        split = plan[name]["hbm_split_gib"]
        tips = []
        if name.startswith("sample"):
            if split["cache"] >= split["parameters"]:
                tips.append("sampling.rows_at_once below prompts_per_step × group_size (a multiple of the chips)")
            tips.append(f"mesh.sample_model above {config.mesh.sample_model or config.mesh.model}")
        else:
            if config.model.remat != "block":
                tips.append("model.remat='block'")
            tips.append("a smaller updates.micro_batch_rows (a multiple of the chips)")
            tips.append(f"updates.head_chunks above {config.updates.head_chunks}")
            if split["optimiser"] > split.get("activations", 0):
                tips = ["optimizer.moments_dtype='bfloat16'", "optimizer.kind='adafactor'", *tips]
        found.append(f"{name} does not fit; try {', then '.join(tips)}, or a larger slice")
    return found
