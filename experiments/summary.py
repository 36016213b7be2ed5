"""A table's runs as numbers: means, paired effects, verdicts, curves; what is missing is counted, never filled in."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from experiments.launch_file import hardware, panel_path, read_launches
from experiments.measures import metrics_of, smoothed, value_of
from experiments.runs import Runs, Status, date_of
from experiments.table import Claim, Measure, RunKey, Table, block_keys
from experiments.verdict import Row, Verdict, verdict
from rlvr_jax.diagnose.effects import Effect, MeanInterval, effect, holm, mean_interval


class Comparison(NamedTuple):
    """arm − against in a measure, for one case and column."""

    measure: str
    case: str
    column: str
    arm: str
    against: str


class Tested(NamedTuple):
    """A paired effect and its p value, adjusted over the family."""

    effect: Effect
    p: float


class Judged(NamedTuple):
    """A claim, its comparisons and what they say."""

    claim: Claim
    rows: tuple[Row, ...]
    verdict: Verdict


class Curve(NamedTuple):
    """Mean over seeds and its 95 % t interval by step, each [steps]; NaN where fewer than one (two) seeds have a
    value."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclasses.dataclass(frozen=True)
class Summary:
    """Everything a page of results says."""

    table: Table
    seeds: tuple[int, ...]
    values: dict[tuple[str, str, str, str], np.ndarray]  # (measure, case, column, arm) → [seeds], NaN: never, missing
    tests: dict[Comparison, Tested]
    family: int  # tests with a p value, over which Holm's correction goes
    judged: tuple[Judged, ...]
    curves: dict[tuple[str, str, str, str], Curve]  # (metric, case, column, arm)
    smooth: int  # steps over which the curves are smoothed
    panels: tuple[tuple[str, dict[str, Any] | None], ...]  # name and content, None: not computed
    provenance: dict[str, str]
    missing: tuple[RunKey, ...]

    def interval(self, measure: str, case: str, column: str, arm: str) -> MeanInterval:
        return mean_interval(self.values[measure, case, column, arm])

    def counts(self, case: str, column: str, arm: str, measure: str) -> tuple[int, int, int]:
        """(seeds with a value, seeds in which it never came about, missing runs)."""
        there = int(np.isfinite(self.values[measure, case, column, arm]).sum())
        missing = sum(key[:3] == (case, arm, column) for key in self.missing)
        return there, len(self.seeds) - there - missing, missing


def summarise(table: Table, root: str | Path, seeds: Sequence[int], partial: bool = False) -> Summary:
    """Reads the runs of a checked table and computes what its pages say.

    Raises:
      ValueError: runs are missing and `partial` is False, a run is of another config, fewer than two seeds of a case
        are whole, or no run wrote a metric that the table names.
    """
    runs = Runs(table, root)
    statuses = runs.statuses(seeds) if table.arms else {}
    missing = _check_statuses(runs, statuses, seeds, partial)
    there = [key for key in statuses if key not in missing]
    _check_metrics(table, runs, there)
    values, curves, smooth = _read(table, runs, there, seeds)
    tests = _tests(table, values)
    judged = tuple(_judge(table, claim, tests) for claim in table.claims)
    return Summary(
        table=table,
        seeds=tuple(seeds),
        values=values,
        tests=tests,
        family=sum(np.isfinite(test.p) for test in tests.values()),
        judged=judged,
        curves=curves,
        smooth=smooth,
        panels=tuple((panel.name, _panel(table, root, panel.name)) for panel in table.panels),
        provenance=_provenance(table, runs, there),
        missing=tuple(missing),
    )


def _check_statuses(
    runs: Runs, statuses: Mapping[RunKey, Status], seeds: Sequence[int], partial: bool
) -> dict[RunKey, Status]:
    table = runs.table
    for key, status in statuses.items():
        if status.kind == "different":
            raise ValueError(
                f"table {table.name}: {runs.path(key)} is a run of another config (there → table): {status.detail}. "
                "Give another --root, or delete that run and launch again"
            )
    missing = {key: status for key, status in statuses.items() if status.kind != "complete"}
    launch = f"python -m experiments.launch {table.name}"
    if missing and not partial:
        first, status = next(iter(missing.items()))
        detail = f" ({status.detail})" if status.detail else ""
        raise ValueError(
            f"table {table.name}: {len(missing)} of {len(statuses)} runs are missing, the first {first}{detail}; run "
            f"`{launch}`, or give --partial to see what is there"
        )
    for case in table.cases if table.arms else ():
        whole = [seed for seed in seeds if not any(key in missing for key in block_keys(table, case, seed))]
        if len(whole) >= 2:
            break
    else:
        if table.arms:
            raise ValueError(
                f"table {table.name}: fewer than 2 whole seeds in any case, and an interval over seeds needs 2; run "
                f"`{launch}`"
            )
    return missing


def _check_metrics(table: Table, runs: Runs, there: Sequence[RunKey]) -> None:
    wanted = {name: f"measure {m.label!r}" for m in table.measures for name in metrics_of(m)}
    wanted |= {name: "curves" for name in table.curves if name not in wanted}
    lacking = dict(wanted)
    written: set[str] = set()
    for key in there:
        if not lacking:
            return
        names = runs.stored(key).metrics
        written.update(names)
        lacking = {name: where for name, where in lacking.items() if name not in names}
    for name, where in lacking.items():
        near = difflib.get_close_matches(name, sorted(written), n=3, cutoff=0.4)
        raise ValueError(
            f"table {table.name}: {where}: no run wrote the metric {name!r}. Nearest: {near or 'none'}; all: "
            f"{sorted(written)}"
        )


def _read(table: Table, runs: Runs, there: Sequence[RunKey], seeds: Sequence[int]):
    """(values, curves, smoothing) out of every run, each file read once; a metric a run lacks is NaN there."""
    names = {name for measure in table.measures for name in metrics_of(measure)} | set(table.curves)
    place = {seed: index for index, seed in enumerate(seeds)}
    values = {
        (measure.label, case, column, arm): np.full(len(seeds), np.nan)
        for measure in table.measures
        for case in table.cases
        for column in table.columns
        for arm in table.arms
    }
    stacks: dict[tuple[str, str, str, str], list[np.ndarray]] = {}
    longest = 1
    for key in there:
        found = runs.read(key, sorted(names))
        length = max((len(array) for array in found.values()), default=1)
        longest = max(longest, length)
        found = {name: found.get(name, np.full(length, np.nan)) for name in names}
        for measure in table.measures:
            cell = (measure.label, key.case, key.column, key.arm)
            values[cell][place[key.seed]] = value_of(measure, found)
        for name in table.curves:
            stacks.setdefault((name, key.case, key.column, key.arm), []).append(found[name])
    smooth = max(1, longest // 25)
    curves = {cell: _curve([smoothed(array, smooth) for array in arrays]) for cell, arrays in stacks.items()}
    return values, curves, smooth


def _curve(arrays: Sequence[np.ndarray]) -> Curve:
    length = max(map(len, arrays))
    stack = np.full((len(arrays), length), np.nan)
    for row, array in zip(stack, arrays):
        row[: len(array)] = array
    n = np.isfinite(stack).sum(0)
    filled = np.where(np.isfinite(stack), stack, 0.0)
    mean = np.where(n > 0, filled.sum(0) / np.maximum(n, 1), np.nan)
    squares = np.where(np.isfinite(stack), (stack - mean) ** 2, 0.0).sum(0)
    two = np.maximum(n, 2)
    half = special.stdtrit(two - 1.0, 0.975) * np.sqrt(squares / (two - 1) / two)
    half = np.where(n > 1, half, np.nan)
    return Curve(mean, mean - half, mean + half)


def comparisons(table: Table) -> list[Comparison]:
    """The family: every arm against the reference in every measure, case and column, and each claim against another."""
    cells = [
        (measure.label, case, column) for measure in table.measures for case in table.cases for column in table.columns
    ]
    found = {Comparison(*cell, arm, table.reference) for cell in cells for arm in table.arms if arm != table.reference}
    ordered = [
        Comparison(*cell, arm, table.reference) for cell in cells for arm in table.arms if arm != table.reference
    ]
    for claim in table.claims:
        for comparison in rows_of(table, claim):
            if comparison not in found:
                found.add(comparison)
                ordered.append(comparison)
    return ordered


def rows_of(table: Table, claim: Claim) -> list[Comparison]:
    """The comparisons a claim speaks of."""
    against = claim.against or table.reference
    return [
        Comparison(claim.measure, case, column, claim.arm, against)
        for case in claim.cases or table.cases
        for column in claim.columns or table.columns
    ]


def _tests(table: Table, values: Mapping[tuple, np.ndarray]) -> dict[Comparison, Tested]:
    family = comparisons(table) if table.arms else []
    of = lambda c, arm: values[c.measure, c.case, c.column, arm]
    effects = [effect(of(c, c.arm), of(c, c.against)) for c in family]
    adjusted = holm([e.p for e in effects]) if effects else []
    return {c: Tested(e, float(p)) for c, e, p in zip(family, effects, adjusted)}


def measure_of(table: Table, label: str) -> Measure:
    return next(measure for measure in table.measures if measure.label == label)


def _judge(table: Table, claim: Claim, tests: Mapping[Comparison, Tested]) -> Judged:
    rows = tuple(Row(c.case, c.column, *tests[c]) for c in rows_of(table, claim))
    digits = measure_of(table, claim.measure).digits
    return Judged(claim, rows, verdict(claim.direction, rows, margin=claim.margin, digits=digits))


def _panel(table: Table, root: str | Path, name: str) -> dict[str, Any] | None:
    try:
        return json.loads(panel_path(Path(root), table, name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _provenance(table: Table, runs: Runs, there: Sequence[RunKey]) -> dict[str, str]:
    """Command, commit, date, hardware, programs, minutes: from the launches' file and the runs' own environment."""
    launches = read_launches(runs.root / table.name)
    commits, machines = set(), set()
    for key in there:
        environment = runs.stored(key).environment
        commits.add(environment.get("commit", "unknown"))
        machines.add(hardware(environment))
    dates = sorted({entry["date"] for entry in launches}) or sorted({date_of(runs.path(key)) for key in there})
    total = lambda name: sum(entry.get(name) or 0 for entry in launches)
    known = lambda text: text if launches else "not recorded"
    return {
        "command": launches[-1]["command"] if launches else f"python -m experiments.launch {table.name}",
        "commit": ", ".join(sorted(commits)) or "–",
        "date": dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}" if dates else "–",
        "hardware": "; ".join(sorted(machines)) or "–",
        "programs compiled": known(str(total("programs"))),
        "minutes": known(f"{total('seconds') / 60:.1f}"),
    }
