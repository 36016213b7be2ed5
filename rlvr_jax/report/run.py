"""Reads the files of a run, whatever is there, and notes what is missing or odd."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvr_jax.metrics import iterate_jsonl, read_jsonl


@dataclasses.dataclass
class Run:
    """The files of a workdir as plain values; empty where a file is absent."""

    workdir: Path
    config: dict[str, Any]  # nested, without the environment
    environment: dict[str, Any]
    metrics: list[dict]  # one a step, in order of step
    evaluations: list[dict]  # of the split that is reported, in order of step
    difference: dict[str, dict]  # mode ("greedy", "sampled") → difference, low, high
    extremes: list[dict]  # of each step the best and the worst recorded rollout, in order of step
    notes: list[str]  # what is missing or odd, one sentence each

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """Steps and values of one metric; NaN where it was measured and is not finite."""
        found = [(line["step"], line[key]) for line in self.metrics if key in line]
        return [step for step, _ in found], [_float(value) for _, value in found]

    @property
    def steps_planned(self) -> int | None:
        steps = self.config.get("steps")
        return steps if isinstance(steps, int) else None

    @property
    def steps_done(self) -> int:
        """Training steps with metrics (a line that holds only an evaluation is none)."""
        return max((line["step"] + 1 for line in self.metrics if any(map(_of_training, line))), default=0)


def read_run(workdir: str | Path) -> Run:
    """Reads a run's directory.

    Raises: FileNotFoundError when the directory does not exist or holds no file of a run.
    """
    workdir = Path(workdir)
    names = ("config.json", "metrics.jsonl", "rollouts.jsonl", "evaluation.json")
    if not any((workdir / name).exists() for name in names):
        raise FileNotFoundError(f"{workdir}: no run here (none of {', '.join(names)})")
    notes: list[str] = []
    config = _read_json(workdir / "config.json", notes)
    environment = config.pop("environment", None)
    metrics = _read_metrics(workdir / "metrics.jsonl", notes)
    report = _read_json(workdir / "evaluation.json", notes)
    evaluations = report.get("evaluations") or []
    if not evaluations and (evaluations := _evaluations_of(metrics)):
        notes.append("The held-out results are those of metrics.jsonl, without an interval of the difference.")
    run = Run(
        workdir=workdir,
        config=config,
        environment=environment if isinstance(environment, dict) else {},
        metrics=metrics,
        evaluations=_one_split(evaluations, notes),
        difference=report.get("difference") or {},
        extremes=_read_extremes(workdir / "rollouts.jsonl", notes),
        notes=notes,
    )
    _note_what_is_odd(run)
    return run


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested names to dotted ones."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _float(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan


def _of_training(key: str) -> bool:
    return key.startswith(("rollout/", "update/"))


def _read_json(path: Path, notes: list[str]) -> dict:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        notes.append(f"There is no {path.name}.")
        return {}
    except ValueError:
        notes.append(f"{path.name} could not be read as JSON.")
        return {}
    if isinstance(value, dict):
        return value
    notes.append(f"{path.name} is not a JSON object.")
    return {}


def _read_metrics(path: Path, notes: list[str]) -> list[dict]:
    lines, torn = read_jsonl(path)
    if not path.exists():
        notes.append("There is no metrics.jsonl, so there are no curves.")
    if torn:
        notes.append(f"{torn} line(s) of metrics.jsonl could not be read and were left out.")
    merged: dict[int, dict] = {}
    for line in lines:
        merged.setdefault(line["step"], {}).update(line)
    if len(merged) < len(lines):
        notes.append(f"{len(lines) - len(merged)} step(s) were logged twice; the later values are shown.")
    return [merged[step] for step in sorted(merged)]


def _read_extremes(path: Path, notes: list[str]) -> list[dict]:
    """One pass that keeps two rollouts a step, so that a long log needs little memory."""
    best: dict[int, dict] = {}
    worst: dict[int, dict] = {}
    torn = 0
    for rollout in iterate_jsonl(path):
        if rollout is None:
            torn += 1
            continue
        step, merit = rollout["step"], _merit(rollout)
        if step not in best or merit > _merit(best[step]):
            best[step] = rollout
        if step not in worst or merit < _merit(worst[step]):
            worst[step] = rollout
    if torn:
        notes.append(f"{torn} line(s) of rollouts.jsonl could not be read and were left out.")
    return [
        rollout
        for step in sorted(best)
        for rollout in ([best[step], worst[step]] if worst[step] is not best[step] else [best[step]])
    ]


def _merit(rollout: dict) -> tuple[float, float]:
    return tuple(
        value if math.isfinite(value) else -math.inf
        for value in (_float(rollout.get("outcome")), _float(rollout.get("advantage")))
    )


def _evaluations_of(metrics: list[dict]) -> list[dict]:
    """Evaluations as far as metrics.jsonl has them (eval/greedy_pass@1, …): an interrupted run's."""
    evaluations = []
    for line in metrics:
        modes: dict[str, dict] = {}
        for key, value in line.items():
            mode, _, name = key.removeprefix("eval/").partition("_")
            if key.startswith("eval/") and mode in ("greedy", "sampled") and name:
                modes.setdefault(mode, {})[name] = value
        if modes:
            evaluations.append({"step": line["step"], "split": "held_out", **modes})
    return evaluations


def _one_split(evaluations: list[dict], notes: list[str]) -> list[dict]:
    """The held-out evaluations (of the first split when none is named so), in order of step."""
    evaluations = [item for item in evaluations if isinstance(item.get("step"), int)]
    splits = list(dict.fromkeys(item.get("split", "held_out") for item in evaluations))
    if not splits:
        return []
    split = "held_out" if "held_out" in splits else splits[0]
    if len(splits) > 1:
        notes.append(
            f"Only the split {split!r} is shown; evaluation.json also has "
            + ", ".join(repr(other) for other in splits if other != split)
            + "."
        )
    kept = [item for item in evaluations if item.get("split", "held_out") == split]
    return sorted(kept, key=lambda item: item["step"])


def _note_what_is_odd(run: Run) -> None:
    done, planned = run.steps_done, run.steps_planned
    if planned and run.metrics and done < planned:
        run.notes.append(f"The run is not finished: {done} of {planned} steps.")
    if not run.evaluations:
        run.notes.append(
            "There is no held-out evaluation: the training curves alone do not say how well the "
            "policy does on problems it has not seen."
        )
    elif run.evaluations[-1].get("split") == "train":
        run.notes.append(
            "The evaluations are of training problems: they say what was learnt, not whether it carries over to "
            "problems the policy has not seen."
        )
    if len({item["step"] for item in run.evaluations}) == 1:
        run.notes.append("There is one evaluation, so there is no before and after.")
    for key, name in (("update/loss", "loss"), ("update/gradient_norm", "gradient norm")):
        steps, values = run.series(key)
        broken = [step for step, value in zip(steps, values) if math.isnan(value)]
        if broken:
            shown = ", ".join(map(str, broken[:5])) + (", …" if len(broken) > 5 else "")
            run.notes.append(f"The {name} was not finite at {len(broken)} step(s): {shown}.")
