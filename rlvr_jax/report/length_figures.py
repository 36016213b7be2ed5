"""The figures of a split length curve; they can be read without colour."""

from __future__ import annotations

import math
from typing import NamedTuple

import matplotlib
import numpy as np

from rlvr_jax.diagnose.lengths import Curve, Split
from rlvr_jax.report.drawing import COLOURS, STYLE, legend, new_figure, png, share

LABELS = {
    "accuracy": "share of right ones",
    "within_right": "right: length of ended ones",
    "within_wrong": "wrong: length of ended ones",
    "cut_right": "right: cut by the limit",
    "cut_wrong": "wrong: cut by the limit",
}
# Line style and marker tell the kinds apart without colour, hatches the parts.
KINDS = {
    "all": ("length", "-", "", COLOURS["all"]),
    "wrong": ("length_wrong", "-.", "s", COLOURS["wrong"]),
    "right": ("length_right", "--", "o", COLOURS["correct"]),
}
PARTS = {
    "accuracy": (":", "^", "#009E73", "..."),
    "within_right": ("--", "o", COLOURS["correct"], "//"),
    "within_wrong": ("-.", "s", COLOURS["wrong"], ""),
    "cut_right": ("--", "v", "#56B4E9", "xx"),
    "cut_wrong": ("-.", "D", COLOURS["truncated"], "\\\\"),
}


class _Drawn(NamedTuple):
    split: Split
    curve: Curve
    unit: str
    knows_ends: bool


def label_of(part: str, knows_ends: bool) -> str:
    """A part in words; where ends are not known all completions count as ended."""
    return LABELS[part] if knows_ends else LABELS[part].removesuffix(" of ended ones")


def draw(split: Split, curve: Curve, unit: str, knows_ends: bool) -> dict[str, tuple[bytes, str, str]]:
    """name → (PNG, title, caption). `unit` of the lengths; without `knows_ends` nothing is said of cut completions."""
    report = _Drawn(split, curve, unit, knows_ends)
    with matplotlib.rc_context(STYLE):
        made = {"length": _length(report), "split": _split(report), "over-time": _over_time(report)}
        return {name: (png(figure), title, caption) for name, (figure, title, caption) in made.items()}


def _marked(axis, x, y, style, marker, colour, label):
    every = max(1, len(x) // 12)
    axis.plot(
        x, y, linestyle=style, marker=marker, markevery=every, markersize=4.5, color=colour, linewidth=1.8, label=label
    )


def _length(report: _Drawn):
    curve = report.curve
    figure, axes = new_figure(2, (3, 1), 4.6) if report.knows_ends else new_figure(height=3.6)
    for label, (name, style, marker, colour) in KINDS.items():
        _marked(axes[0], curve.steps, [getattr(m, name) for m in curve.means], style, marker, colour, label)
    for window in (report.split.before, report.split.after):
        for axis in axes:
            axis.axvspan(window.first - 0.5, window.last + 0.5, color="#dddddd", alpha=0.5, linewidth=0)
    axes[0].set_ylabel(f"mean length ({report.unit})")
    axes[0].set_ylim(bottom=0)
    legend(axes[0])
    if report.knows_ends:
        axes[1].plot(curve.steps, [m.cut for m in curve.means], color=COLOURS["all"], linewidth=1.8)
        share(axes[1], "cut")
    return (
        figure,
        "Length, right and wrong",
        "Shaded: the two windows that are compared. Neighbouring steps are pooled.",
    )


def _split(report: _Drawn):
    split = report.split
    names = [name for name in split.parts if report.knows_ends or "cut" not in name]
    figure, (axis,) = new_figure(height=1.3 + 0.42 * len(names))
    every = [*names, "change"]
    for place, name in enumerate(reversed(every)):
        part = split.change if name == "change" else split.parts[name]
        colour, hatch = (COLOURS["all"], "") if name == "change" else PARTS[name][2:]
        axis.barh(place, part.value, color=colour, hatch=hatch, edgecolor="white" if hatch else colour, height=0.62)
        if math.isfinite(part.low):
            axis.plot([part.low, part.high], [place, place], color="black", linewidth=1.6, marker="|", markersize=8)
    axis.axvline(0, color="#444444", linewidth=1)
    labels = [*(label_of(name, report.knows_ends) for name in names), "change of the mean"][::-1]
    axis.set_yticks(range(len(every)), labels)
    axis.grid(axis="y", visible=False)
    axis.set_xlabel(report.unit)
    caption = f"Steps {split.before} to {split.after}; the parts sum to the change. Black: 95 % intervals."
    return figure, "What moved the mean length", caption


def _over_time(report: _Drawn):
    figure, (axis,) = new_figure(height=3.9)
    shown = [name for name in report.split.parts if report.knows_ends or "cut" not in name]
    places = list(report.split.parts)
    for name in shown:
        style, marker, colour, _ = PARTS[name]
        values = report.curve.split_of[:, places.index(name)]
        if np.abs(values).max() > 0:
            _marked(axis, report.curve.steps, values, style, marker, colour, label_of(name, report.knows_ends))
    _marked(axis, report.curve.steps, report.curve.split_of.sum(1), "-", "", COLOURS["all"], "change of the mean")
    axis.axhline(0, color="#444444", linewidth=1)
    axis.set_ylabel(f"change ({report.unit})")
    legend(axis)
    caption = (
        f"The split of every bin of steps from steps {report.split.before}; at each step the parts sum to the change."
    )
    return figure, "The split over training", caption
