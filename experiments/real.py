"""A toy table's arms on a real model's config: the same differences, the same measures where the trainer has them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.table import Measure, Table, load_base
from rlvr_jax.config import flatten

SEEDS = (1, 2, 3)
# What every training run writes, whatever its task.
SHARED_METRICS = (
    "rollout/pass@1",
    "rollout/reward",
    "rollout/length",
    "rollout/length_correct",
    "rollout/length_wrong",
    "rollout/truncated",
    "rollout/truncated_wrong",
    "rollout/zero_variance_groups",
    "update/entropy",
    "update/gradient_norm",
)


def on_base(table: Table, base: str) -> tuple[Table, list[str]]:
    """(the table with `base` in place of the toy, what was left out, in words).

    Arms keep the differences that the base's config knows; an arm that has others (curricula, dynamic sampling, larger
    steps as an arm) is left out, as are cases, columns, panels, measures of metrics that only the toy has, and claims
    about what was left out. Windows of steps are stretched to the base's number of steps. Seeds are 1, 2, 3.

    Raises:
      ValueError: a base that does not exist, a table of a real model already, or nothing left to compare.
    """
    if not table.toy:
        raise ValueError(f"table {table.name}: --base is for toy tables; this one has a real model's config already")
    name = f"{table.name}-{Path(base.partition(':')[0]).stem}"
    real = dataclasses.replace(table, name=name, base=base, common={}, cases={"": {}}, columns={"": {}}, seeds=SEEDS)
    if real.toy:
        raise ValueError(f"--base={base}: is the toy's own config")
    config = load_base(real)
    known = flatten(config)
    arms = {label: difference for label, difference in table.arms.items() if set(difference) <= set(known)}
    gone = [f"arm {label!r}: {_foreign(table.arms[label], known)}" for label in table.arms if label not in arms]
    if table.reference not in arms:
        raise ValueError(f"table {table.name}: the reference arm {table.reference!r} cannot run on {base}: {gone}")
    toy_steps = int(table.common.get("steps", 200))
    measures = tuple(
        _stretched(measure, config.steps / toy_steps) for measure in table.measures if _everywhere(measure)
    )
    gone += [f"measure {m.label!r}: only the toy has it" for m in table.measures if not _everywhere(m)]
    labels = {measure.label for measure in measures}
    claims = [
        claim
        for claim in table.claims
        if claim.measure in labels and {claim.arm, claim.against or claim.arm} <= set(arms)
    ]
    gone += [f"claim {claim.text!r}" for claim in table.claims if claim not in claims]
    if len(arms) < 2 or not measures:
        raise ValueError(f"table {table.name}: nothing is left to compare on {base}: {gone}")
    claims = tuple(dataclasses.replace(claim, cases=(), columns=()) for claim in claims)
    curves = tuple(metric for metric in table.curves if metric in SHARED_METRICS)
    replaced = {"arms": arms, "measures": measures, "claims": claims, "curves": curves, "panels": (), "heatmaps": ()}
    return dataclasses.replace(real, notes=f"The arms of the table {table.name} on {base}.", **replaced), gone


def _foreign(difference: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    return "the trainer has no key " + ", ".join(key for key in difference if key not in known)


def _everywhere(measure: Measure) -> bool:
    return {measure.metric, measure.minus or measure.metric, measure.by} <= set(SHARED_METRICS)


def _stretched(measure: Measure, factor: float) -> Measure:
    last = None if measure.last is None else round((measure.last + 1) * factor) - 1
    return dataclasses.replace(measure, first=round(measure.first * factor), last=last)
