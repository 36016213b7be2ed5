"""What a split of the length curve says, in one paragraph, and what must be known beside it."""

from __future__ import annotations

import math

from rlvr_jax.diagnose.cells import Cells
from rlvr_jax.diagnose.lengths import FEW, Estimate, Split

NEITHER = (
    "The length of wrong responses is moved by how the loss weights long ones (Liu et al. 2025, arXiv:2503.20783) as "
    "well as by how long the policy searches where it has no answer yet (Setlur et al. 2025, arXiv:2506.09026): this "
    "split alone proves neither. The same config trained with another aggregate, at matched gradient norms, would tell "
    "them apart."
)
FEW_SHARED = 0.5  # windows that share fewer prompts may differ in difficulty


def verdict(split: Split, unit: str, knows_ends: bool) -> str:
    """One plain paragraph: how far the mean moved, how much of that sits in wrong responses, and what is not shown."""
    first, second = split.means
    show = formatter(split)
    ends = f"from {show(first.length)} to {show(second.length)} {unit}"
    where = f"between steps {split.before} and {split.after}"
    if not split.change.beyond:
        known = "" if math.isfinite(split.change.low) else "; there is no interval to judge it by"
        lead = f"No change of the mean length is shown {where}: {show(split.change, True)} {unit}, {ends}{known}."
        moved = "of it"
    else:
        verb, moved = ("grew", "of the growth") if split.change.value > 0 else ("fell", "of the fall")
        lead = f"The mean length {verb} {where}, {ends}: {show(split.change, True)}."
    share = lambda part: f" ({100 * part.value / split.change.value:.0f}% {moved})".replace("-", "−")
    of = share if split.change.beyond else lambda part: ""
    rates = f"{_rate(first.right)} → {_rate(second.right)}"
    accuracy = split.parts["accuracy"]
    cut = f" Being cut by the limit is {show(split.truncation, True)} of these." if knows_ends else ""
    return (
        f"{lead} Wrong responses account for {show(split.in_wrong, True)}{of(split.in_wrong)}, right ones for "
        f"{show(split.in_right, True)}{of(split.in_right)}, and the share of right ones alone, {rates}, for "
        f"{show(accuracy, True)}{of(accuracy)}.{cut} {NEITHER}"
    )


def cautions(split: Split, cells: Cells) -> list[str]:
    """What could mislead, in sentences."""
    first, second = split.means
    said = []
    if cells.source == "steps":
        said.append(
            "From metrics.jsonl of a run of this project: exact means, and no single completions. Intervals resample "
            "steps, not prompts."
        )
    elif split.clusters < FEW:
        said.append(f"{split.clusters} prompts in all: with fewer than {FEW} the intervals are too narrow, or missing.")
    elif cells.source == "groups":
        said.append(
            "The log names groups and no prompts: every group of a step is resampled by itself, and whether the "
            "windows have the same prompts is not known."
        )
    elif split.shared < FEW_SHARED:
        said.append(
            f"{100 * split.shared:.0f} % of the prompts of the second window are in the first too: harder or easier "
            "prompts would look the same."
        )
    for window, means in zip((split.before, split.after), split.means):
        for share, kind in ((means.right, "right"), (1 - means.right, "wrong")):
            if share == 0:
                said.append(f"Steps {window} have no {kind} response: its absence counts as a change of accuracy.")
    if not cells.knows_ends:
        said.append("The log does not say which responses were cut; --limit, the completion limit, would split it off.")
    if cells.merged:
        said.append("There are more pairs of step and prompt than are held: prompts share buckets in the intervals.")
    if cells.doubled:
        steps = cells.doubled
        said.append(
            f"In {len(steps)} steps ({steps[0]} first) every row occurs an even number of times, as if the log held it "
            "twice: means and intervals stay, counts are doubled."
        )
    if cells.source != "steps" and first.rows + second.rows <= first.prompts + second.prompts:
        said.append("Every group holds one completion: nothing is compared within a prompt.")
    return said


def formatter(split: Split):
    """A function of a number or an Estimate (and whether to show a plus) → text, with decimals that fit the lengths."""
    decimals = 1 if max(means.length for means in split.means) >= 20 else 3

    def show(value: float | Estimate, sign: bool = False) -> str:
        one = lambda number: f"{number:{'+' if sign else ''}.{decimals}f}".replace("-", "−")
        if not isinstance(value, Estimate):
            return "–" if math.isnan(value) else one(value)
        if not math.isfinite(value.low):
            return one(value.value)
        return f"{one(value.value)} [{one(value.low)}, {one(value.high)}]"

    return show


def _rate(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"
