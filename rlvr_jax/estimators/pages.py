"""The catalogue for readers: one table, and one page per entry. Returns strings; prints nothing."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from rlvr_jax.estimators.base import SLOTS
from rlvr_jax.estimators.catalogue import catalogue
from rlvr_jax.estimators.estimator import Estimator, entry_slots, make_estimator
from rlvr_jax.estimators.theory import token_coefficient
from rlvr_jax.types import Groups

_OUTCOME = (1.0, 0.0, 0.0, 0.0)
_LENGTHS = (2, 4, 6, 8)
_COMPLETION_LENGTH = 8


def catalogue_rows() -> list[dict[str, str]]:
    """One row per entry: "name" and the ten slots; a slot as in grpo is empty (grpo's own row is full)."""
    grpo = entry_slots("grpo")
    rows = []
    for name in catalogue:
        own = entry_slots(name)
        cells = {slot: own[slot] if name == "grpo" or own[slot] != grpo[slot] else "" for slot in SLOTS}
        rows.append({"name": name, **cells})
    return rows


def catalogue_table() -> str:
    """The catalogue in Markdown: rows are names, columns the ten slots, empty where it is as in grpo."""
    lines = ["| name | " + " | ".join(SLOTS) + " |", "|---" * (len(SLOTS) + 1) + "|"]
    for row in catalogue_rows():
        cells = [f"`{row[slot]}`" if row[slot] else "" for slot in SLOTS]
        lines.append(f"| `{row['name']}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def catalogue_text() -> str:
    """The catalogue for a terminal: each entry's difference from grpo on one line."""
    width = max(map(len, catalogue))
    lines = []
    for row in catalogue_rows():
        changes = " ".join(f"{slot}={row[slot]}" for slot in SLOTS if row[slot])
        lines.append(f"{row['name']:<{width}}  {changes or 'as grpo'}")
    return "\n".join(lines)


def _numbers(values) -> str:
    return "[" + ", ".join(f"{value:.6g}" for value in np.asarray(values)) + "]"


def worked_example(estimator: Estimator) -> str:
    """One group, outcomes (1, 0, 0, 0) with 2, 4, 6 and 8 tokens: advantages, and what each token gets."""
    groups = Groups(outcome=jnp.array([_OUTCOME]), lengths=jnp.array([_LENGTHS], jnp.int32))
    advantages, _, _ = estimator.advantages(groups, estimator.init_memory(1))
    coefficients = token_coefficient(estimator, _LENGTHS, _OUTCOME)
    return "\n".join(
        [
            f"outcome      {_numbers(_OUTCOME)}",
            f"tokens       {_numbers(_LENGTHS)}   (completion_length={_COMPLETION_LENGTH})",
            f"advantage    {_numbers(advantages[0])}",
            f"per token    {_numbers(coefficients)}   (weight · advantage, on-policy)",
        ]
    )


def entry_page(name: str) -> str:
    """One entry: slots, equation, source, departures and a worked example."""
    slots, entry = entry_slots(name), catalogue[name]
    grpo = entry_slots("grpo")
    width = max(map(len, SLOTS))
    lines = [name, "", entry.equation, ""]
    for slot in SLOTS:
        changed = "" if slots[slot] == grpo[slot] else f"   (grpo: {grpo[slot]})"
        lines.append(f"  {slot:<{width}}  {slots[slot]}{changed}")
    lines += ["", f"Reference: {entry.reference}"]
    if entry.departures:
        lines += [f"Departs: {entry.departures}"]
    return "\n".join([*lines, "", worked_example(make_estimator(name, _COMPLETION_LENGTH))])


def describe(which: str | Estimator) -> str:
    """An estimator → its difference from the nearest entry, one line; a catalogue name → that entry's
    page."""
    return which.describe() if isinstance(which, Estimator) else entry_page(which)
