"""Reads and writes the runs of a table, toy and real: which are complete, whose they are, and their curves.

A toy run is curves.npz: a metric → f32[steps], NaN where a step counted nothing, and two strings of JSON, "config" and
"environment". A real run is a workdir of `rlvr train`.
"""

from __future__ import annotations

import json
import os
import time
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from experiments.table import RunKey, Table, copy_of, resolve, run_dir, run_keys
from rlvr_jax.config import flatten
from rlvr_jax.metrics import iterate_jsonl, read_jsonl
from rlvr_jax.workdir import read_config

TEXTS = ("config", "environment")
# What may differ between a real run and its table: what it shows and keeps, not what it computes.
SHOWN_KEYS = ("checkpoint.", "log.", "evaluate.prompts_per_batch")


class Status(NamedTuple):
    """What is there of a run. kind: "complete", "missing", "partial" (begun, or unreadable) or "different" (of another
    config); `detail` says what is wrong."""

    kind: str
    detail: str = ""


class Stored(NamedTuple):
    """What a run left: its config (flat) and environment, the metrics it has, its length in steps."""

    config: dict[str, Any]
    environment: dict[str, str]
    metrics: tuple[str, ...]
    steps: int


class Unreadable(Exception):
    """A run's file that is torn or is not one."""


class Runs:
    """The runs of a table under `root`. Configs are resolved once for all seeds."""

    def __init__(self, table: Table, root: str | Path):
        self.table, self.root = table, Path(root)
        self._configs: dict[tuple[str, str, str], ConfigDict] = {}
        self._expected: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._stored: dict[RunKey, Stored] = {}

    def config(self, key: RunKey) -> ConfigDict:
        """The locked config of a run, unshared."""
        cell = key[:3]
        if cell not in self._configs:
            self._configs[cell] = resolve(self.table, *key)
        config = copy_of(self._configs[cell])
        config.seed = key.seed
        return config

    def expected(self, key: RunKey) -> dict[str, Any]:
        """The same, flat, as JSON gives it back."""
        cell = key[:3]
        if cell not in self._expected:
            self._expected[cell] = flatten(json.loads(json.dumps(self.config(key).to_dict())))
        return {**self._expected[cell], "seed": key.seed}

    def path(self, key: RunKey) -> Path:
        return run_dir(self.root, self.table, *key)

    def status(self, key: RunKey) -> Status:
        """Whether the run is there, whole, and of this config."""
        path, expected = self.path(key), self.expected(key)
        try:
            stored = read_stored(path)
        except Unreadable as error:
            return Status("partial", str(error))
        if stored is None:
            return Status("missing")
        self._stored[key] = stored
        different = first_difference(expected, stored.config, () if is_lab(path) else (*SHOWN_KEYS, "steps"))
        if different:
            return Status("different", different)
        wanted = expected.get("steps")
        if wanted is None or stored.steps == wanted:
            return Status("complete")
        if stored.steps > wanted or is_lab(path):
            return Status("different" if stored.steps > wanted else "partial", f"steps: {stored.steps} → {wanted}")
        return Status("partial", f"{stored.steps} of {wanted} steps")

    def stored(self, key: RunKey) -> Stored:
        """What a run left, as `status` last found it."""
        return self._stored[key]

    def read(self, key: RunKey, metrics: Iterable[str]) -> dict[str, np.ndarray]:
        """metric → f64 by step; a metric the run did not write is left out."""
        return read_curves(self.path(key), metrics)

    def statuses(self, seeds: Iterable[int] | None = None) -> dict[RunKey, Status]:
        """Of every run, or of those of some seeds."""
        seeds = None if seeds is None else set(seeds)
        return {key: self.status(key) for key in run_keys(self.table) if seeds is None or key.seed in seeds}


def is_lab(path: Path) -> bool:
    return (path / "curves.npz").exists()


def first_difference(ours: Mapping[str, Any], theirs: Mapping[str, Any], free: Iterable[str] = ()) -> str:
    """ "key: theirs → ours" of the first key that differs; "" when none does."""
    is_free = lambda key: any(key == name or (name.endswith(".") and key.startswith(name)) for name in free)
    for key in {**ours, **theirs}:
        if ours.get(key) != theirs.get(key) and not is_free(key):
            return f"{key}: {theirs.get(key)!r} → {ours.get(key)!r}"
    return ""


def write_lab_run(path: Path, curves: Mapping[str, np.ndarray], config: ConfigDict, environment: Mapping) -> None:
    """Writes path/curves.npz, whole or not at all."""
    path.mkdir(parents=True, exist_ok=True)
    partial = path / "curves.npz.partial"
    texts = {"config": json.dumps(config.to_dict()), "environment": json.dumps(dict(environment))}
    arrays = {name: np.asarray(values, np.float32) for name, values in curves.items()}
    with partial.open("wb") as file:
        np.savez_compressed(file, **arrays, **{name: np.asarray(text) for name, text in texts.items()})
    os.replace(partial, path / "curves.npz")


def read_stored(path: Path) -> Stored | None:
    """What lies at `path`, None if nothing of a run.

    Raises:
      Unreadable: torn, or not a run's file.
    """
    if is_lab(path):
        return _stored_lab(path)
    if not (path / "config.json").exists():
        return None
    return _stored_workdir(path)


def _stored_lab(path: Path) -> Stored:
    try:
        with np.load(path / "curves.npz", allow_pickle=False) as file:
            config, environment = (json.loads(str(file[name])) for name in TEXTS)
            names = tuple(sorted(set(file.files) - set(TEXTS)))
            steps = max((len(file[name]) for name in names[:1]), default=0)
            return Stored(flatten(config), environment, names, steps)
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise Unreadable(f"curves.npz cannot be read ({type(error).__name__})") from None


def _stored_workdir(path: Path) -> Stored:
    try:
        config = read_config(path)
        environment = json.loads((path / "config.json").read_text()).get("environment") or {}
        lines = [line for line in iterate_jsonl(path / "metrics.jsonl") if line is not None]
    except (OSError, ValueError) as error:
        raise Unreadable(f"the workdir cannot be read ({type(error).__name__})") from None
    steps = len({line["step"] for line in lines if "rollout/reward" in line or "update/loss" in line})
    if steps >= (config.get("steps") or 0) and _last_evaluation(path) < steps:
        steps -= 1  # trained to the end, not evaluated there: not whole
    return Stored(flatten(config), environment, tuple(sorted({name for line in lines for name in line})), steps)


def _last_evaluation(path: Path) -> int:
    """Step of the last evaluation; −1 without one."""
    try:
        records = json.loads((path / "evaluation.json").read_text())["evaluations"]
        return max((record["step"] for record in records), default=-1)
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def read_curves(path: Path, metrics: Iterable[str]) -> dict[str, np.ndarray]:
    """metric → f64[steps], NaN where a step has no value; those the run did not write are left out.

    Raises:
      Unreadable: torn, or not a run's file.
    """
    if not is_lab(path):
        return _workdir_curves(path, metrics)
    try:
        with np.load(path / "curves.npz", allow_pickle=False) as file:
            return {name: np.asarray(file[name], np.float64) for name in metrics if name in file.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise Unreadable(f"{path}: curves.npz cannot be read ({type(error).__name__})") from None


def _workdir_curves(path: Path, metrics: Iterable[str]) -> dict[str, np.ndarray]:
    """An evaluation after the last step makes the arrays one longer than the run."""
    lines, _ = read_jsonl(path / "metrics.jsonl")
    length = max((line["step"] + 1 for line in lines), default=0)
    curves = {}
    for name in metrics:
        values = np.full(length, np.nan)
        there = False
        for line in lines:
            if name in line:
                there = True
                values[line["step"]] = np.nan if line[name] is None else line[name]
        if there:
            curves[name] = values
    return curves


def date_of(path: Path) -> str:
    """UTC date at which a run was written."""
    names = [path / "curves.npz", path / "evaluation.json", path / "config.json"]
    file = next(name for name in names if name.exists())
    return time.strftime("%Y-%m-%d", time.gmtime(file.stat().st_mtime))
