"""The commands of a table for machines with TPUs, and what they would cost by arithmetic. Runs nothing."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from experiments.runs import Runs
from experiments.table import RunKey, Table
from rlvr_jax.config import check, estimator_of
from rlvr_jax.policy import Architecture
from rlvr_jax.run import open_model

# Published dense bfloat16 peak of one chip, FLOP/s (cloud.google.com/tpu/docs), and dimensions of a topology.
PEAKS = {"v4": 275e12, "v5e": 197e12, "v5p": 459e12, "v6e": 918e12}
DIMENSIONS = {"v4": 3, "v5e": 2, "v5p": 3, "v6e": 2}
UPDATE_USE, SAMPLING_USE = 0.40, 0.10  # assumed shares of the peak
SAYS = "estimate by arithmetic, not compiled, not measured"


class Slice(NamedTuple):
    """A TPU slice, such as v5e:8x8."""

    kind: str
    topology: str
    chips: int


def parse_slice(text: str) -> Slice:
    """ "v5e:8x8" → a slice.

    Raises:
      ValueError: an unknown kind, or a topology of the wrong number of dimensions.
    """
    kind, _, topology = text.strip().lower().partition(":")
    if kind not in PEAKS:
        raise ValueError(f"--slice={text}: unknown kind {kind!r}; choose from {list(PEAKS)}, as in v5e:8x8")
    sizes = [int(size) for size in topology.split("x")] if re.fullmatch(r"\d+(x\d+)*", topology) else []
    if len(sizes) != DIMENSIONS[kind] or min(sizes) < 1:
        example = {2: "8x8", 3: "2x2x4"}[DIMENSIONS[kind]]
        raise ValueError(
            f"--slice={text}: a topology of {kind} has {DIMENSIONS[kind]} dimensions, as in {kind}:{example}; kinds: "
            f"{list(PEAKS)}"
        )
    return Slice(kind, topology, math.prod(sizes))


def train_command(table: Table, runs: Runs, key: RunKey, python: str = "python") -> list[str]:
    """The words of the `rlvr train` that makes a run; it is to be started in the checkout."""
    differences: dict[str, Any] = {
        **table.common,
        **table.cases[key.case],
        **table.arms[key.arm],
        **table.columns[key.column],
        "seed": key.seed,
    }
    keys = [f"--config.{name}={value}" for name, value in differences.items()]
    train = [python, "-m", "rlvr_jax.cli", "train", f"--config={table.base}"]
    return [*train, *keys, f"--workdir={Path(runs.path(key)).as_posix()}"]


def slice_lines(table: Table, runs: Runs, keys: list[RunKey], where: Slice) -> list[str]:
    """One command a run, those of real models each followed by a comment with its estimate."""
    lines = [f"# {table.name}: {len(keys)} runs, each on {where.kind}:{where.topology} ({where.chips} chips)"]
    if not table.toy:
        lines.append("# (the trainer is one process so far: slices of one host; see the README's limits)")
    estimates: dict[tuple, str] = {}
    for key in keys:
        lines.append(shlex.join(train_command(table, runs, key)))
        if not table.toy:
            if key[:3] not in estimates:  # the seed changes no cost
                estimates[key[:3]] = estimate(runs.config(key), where)
            lines.append(f"#   {estimates[key[:3]]}")
    return lines


def estimate(config: ConfigDict, where: Slice) -> str:
    """The cost of a run in words.

    With N parameters and T = prompts × group × (prompt + completion length) tokens a step: sampling 2·N·T FLOP;
    scoring 2·N·T for old log-probabilities (more than one update a step) and for a reference; updates 6·N·T an
    epoch. Evaluation, attention's square and recomputation are left out.
    """
    parameters, from_config = _parameters(config)
    tokens = (
        config.prompts_per_step
        * config.group_size
        * (config.sampling.prompt_length + config.sampling.completion_length)
    )
    scored = (config.updates.epochs * config.updates.minibatches > 1) + ("reference" in estimator_of(config).needs)
    sampling = 2 * parameters * tokens
    updates = (6 * config.updates.epochs + 2 * scored) * parameters * tokens
    peak = where.chips * PEAKS[where.kind]
    seconds = config.steps * (sampling / (peak * SAMPLING_USE) + updates / (peak * UPDATE_USE))
    named = " (by the config's sizes, without the embedding: no model file here)" if from_config else ""
    return (
        f"{parameters / 1e6:.4g} M parameters{named}, {tokens} tokens a step, {config.steps} steps: "
        f"{config.steps * (sampling + updates):.2e} FLOP, {_duration(seconds)}, "
        f"{seconds * where.chips / 3600:.2g} chip-hours at {UPDATE_USE:.0%} of the peak in updates and "
        f"{SAMPLING_USE:.0%} in sampling ({SAYS}){'' if from_config else _fit(config, where)}"
    )


def _parameters(config: ConfigDict) -> tuple[int, bool]:
    """(number, whether it rests on the config's sizes because the model's file is not here)."""
    try:
        return open_model(config)[0].parameter_count(), False
    except (OSError, ValueError, ImportError):
        names = ("width", "layers", "heads", "kv_heads", "head_size", "hidden")
        return Architecture(vocabulary=0, **{name: config.model[name] for name in names}).parameter_count(), True


def _fit(config: ConfigDict, where: Slice) -> str:
    """What the trainer would say of the batch on so many devices; "" when it fits."""
    try:
        check(config, devices=where.chips)
    except (ValueError, OSError) as error:
        return f"; the trainer refuses it there: {' '.join(str(error).split())}"
    return ""


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
