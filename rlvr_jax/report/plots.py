"""The figures of a report."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg

from rlvr_jax.report.drawing import COLOURS, STYLE, curve, legend, new_figure, share
from rlvr_jax.report.run import Run
from rlvr_jax.report.text import split_name

DPI = 180
BARS = 150  # of a long run, neighbouring steps share a bar


class Plot(NamedTuple):
    """A figure on disk with what a reader is told beside it."""

    path: Path
    title: str
    caption: str


def draw(run: Run, folder: Path) -> dict[str, Plot]:
    """Draws what the run has values for; name → plot, in the order in which they should be read."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {}
    with matplotlib.rc_context(STYLE):
        for name, make in (
            ("pass", _pass),
            ("length", _length),
            ("update", _update),
            ("contrast", _contrast),
            ("time", _time),
        ):
            made = make(run)
            if made is None:
                continue
            figure, title, caption = made
            if run.steps_done == 1:
                figure.axes[0].set_xlim(-1, 1)  # a single value has no scale of its own
            path = folder / f"{name}.png"
            FigureCanvasAgg(figure)
            figure.savefig(path, dpi=DPI)
            drawn[name] = Plot(path, title, caption)
    return drawn


def _pass(run: Run):
    figure, (axis,) = new_figure(height=3.9)
    rewards, rates = run.series("rollout/reward")[1], run.series("rollout/pass@1")[1]
    same = rewards and np.allclose(rewards, rates, equal_nan=True) if len(rewards) == len(rates) else False
    name = "training: pass@1" + (" = reward" if same else "")
    drawn = curve(axis, run, "rollout/pass@1", name, COLOURS["all"])
    if not same:
        drawn |= curve(axis, run, "rollout/reward", "training: reward", COLOURS["reward"])
    for mode, marker, shift in (("sampled", "o", -1), ("greedy", "s", 1)):
        drawn |= _held_out(axis, run, mode, marker, shift)
    if not drawn:
        return None
    if same or not rewards:
        axis.set_ylim(-0.02, 1.02)
    axis.set_ylabel("share of completions right" if same or not rewards else "pass@1, reward")
    legend(axis)
    return (
        figure,
        "Pass@1 and reward",
        (
            "Lines: prompts of the training set, sampled as in training. Marks: "
            f"{split_name(run.evaluations[-1]) if run.evaluations else 'held-out'} problems with their 95 % intervals."
        ),
    )


def _held_out(axis, run: Run, mode: str, marker: str, shift: float) -> bool:
    points = [
        (item["step"], item[mode])
        for item in run.evaluations
        if isinstance((item.get(mode) or {}).get("pass@1"), int | float)
    ]
    if not points:
        return False
    # Both modes are measured at the same steps: moved apart by a hair so that the bars can be told apart.
    offset = shift * 0.004 * max(run.steps_done, points[-1][0], 1)
    for index, (step, numbers) in enumerate(points):
        rate = numbers["pass@1"]
        ends = [numbers.get(end) for end in ("low", "high")]
        known = all(isinstance(end, int | float) for end in ends)
        bars = [[max(rate - ends[0], 0)], [max(ends[1] - rate, 0)]] if known else None
        axis.errorbar(
            [step + offset],
            [rate],
            yerr=bars,
            fmt=marker,
            color=COLOURS[mode],
            markersize=6,
            capsize=3,
            elinewidth=1.5,
            markeredgecolor="white",
            zorder=5,
            label=f"{split_name(run.evaluations[-1])}: {mode}" if index == 0 else None,
        )
    return True


def _length(run: Run):
    truncated = np.isfinite(run.series("rollout/truncated")[1]).any()
    figure, axes = new_figure(2, (3, 1), 4.6) if truncated else new_figure(height=3.6)
    drawn = False
    for key, name in (("length", "all"), ("length_wrong", "wrong"), ("length_correct", "correct")):
        drawn |= curve(axes[0], run, f"rollout/{key}", name, COLOURS[name])
    if not drawn:
        return None
    axes[0].set_ylabel("mean length (tokens)")
    legend(axes[0])
    if truncated:
        curve(axes[1], run, "rollout/truncated", "truncated", COLOURS["truncated"])
        share(axes[1], "truncated")
    return (
        figure,
        "Length, split by correctness",
        (
            "Mean tokens of a completion, end token included. A gap: no completion of that kind in the step. "
            "The mean over all can move merely because the shares of correct and wrong change."
        ),
    )


def _update(run: Run):
    panels = [
        panel
        for panel in (
            ("update/loss", "loss"),
            ("update/gradient_norm", "gradient norm"),
            ("update/entropy", "entropy (nats)"),
        )
        if np.isfinite(run.series(panel[0])[1]).any()
    ]
    if not panels:
        return None
    figure, axes = new_figure(len(panels), (1,) * len(panels), 1.0 + 1.45 * len(panels))
    for axis, (key, label) in zip(axes, panels):
        curve(axis, run, key, label, COLOURS["all"])
        axis.set_ylabel(label)
    figure.align_ylabels(axes)
    return (
        figure,
        "Loss, gradient norm, entropy",
        "With one update a batch every ratio is 1, and advantages that sum to 0 in a group make their part of the "
        "loss about 0 whatever is learnt. Gradient norm before clipping; entropy of the policy, mean over the tokens "
        "the update computed.",
    )


def _contrast(run: Run):
    figure, (axis,) = new_figure(height=2.7)
    if not curve(axis, run, "rollout/zero_variance_groups", "no contrast", COLOURS["wrong"]):
        return None
    share(axis, "share of groups")
    return (
        figure,
        "Groups without contrast",
        (
            "Share of groups whose completions all got the same reward. A group-relative advantage is zero "
            "there: these groups cost sampling, and teach nothing but what a penalty or an entropy bonus does."
        ),
    )


def _time(run: Run):
    parts = {name: run.series(f"time/{name}_s") for name in ("sample", "verify", "update", "step")}
    parts = {name: dict(zip(*series)) for name, series in parts.items() if np.isfinite(series[1]).any()}
    steps = sorted(set().union(*parts.values()))
    if not steps:
        return None
    seconds = {name: np.nan_to_num([found.get(step, 0.0) for step in steps]) for name, found in parts.items()}
    total = seconds.pop("step", np.zeros(len(steps)))
    rest = np.clip(total - sum(seconds.values(), np.zeros(len(steps))), 0, None)
    seconds["other" if seconds else "whole step"] = rest
    figure, (axis,) = new_figure(height=3.4)
    together = -(-len(steps) // BARS)
    cuts = range(0, len(steps), together)
    bottom = np.zeros(len(cuts))
    for name, values in seconds.items():
        means = np.asarray([values[cut : cut + together].mean() for cut in cuts])
        middle = [np.mean(steps[cut : cut + together]) for cut in cuts]
        axis.bar(middle, means, together, bottom, color=COLOURS.get(name, COLOURS["other"]), label=name)
        bottom = bottom + means
    _cut_first_bar(axis, bottom, steps[0])
    axis.set_ylabel("seconds")
    axis.margins(x=0.01)
    legend(axis)
    note = f" A bar is the mean of {together} steps." if together > 1 else ""
    return figure, "Time a step", "Wall time of a step, split by what it was spent on; stacked." + note


def _cut_first_bar(axis, heights: np.ndarray, first: int) -> None:
    """The first step compiles; where it towers over all others it is cut off and told in words."""
    highest = float(heights[1:].max()) if len(heights) > 2 else 0.0
    if not 0 < 2 * highest < heights[0]:
        return
    top = 1.15 * highest
    axis.set_ylim(0, top)
    label = f"first bar: {heights[0]:.0f} s (compilation)"
    axis.annotate(label, (first, top), (8, -4), textcoords="offset points", va="top", fontsize=10)
