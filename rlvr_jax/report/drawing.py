"""How every figure of a report is drawn: one colour, one meaning; the palette is that of Okabe and Ito."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from rlvr_jax.report.run import Run

COLOURS = {
    "all": "#4d4d4d",
    "correct": "#0072B2",
    "wrong": "#D55E00",
    "truncated": "#E69F00",
    "reward": "#56B4E9",
    "greedy": "#009E73",
    "sampled": "#CC79A7",
    "sample": "#56B4E9",
    "verify": "#F0E442",
    "update": "#0072B2",
    "other": "#BBBBBB",
}
STYLE = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": "#888888",
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "legend.frameon": False,
}
WIDTH = 5.6  # inches: small enough that the text survives on a telephone
FEW = 8  # with fewer steps every value is a mark, and nothing is smoothed


def smooth(
    steps: Sequence[int], values: Sequence[float], width: float, points: int = 400
) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian mean over steps, `width` its standard deviation in steps; NaN stays NaN and weighs nothing.

    Taken at about `points` of the steps, so that a long run costs no square of its length; returns those
    steps and the means.
    """
    steps, values = np.asarray(steps, float), np.asarray(values, float)
    present = np.isfinite(values)
    filled = np.where(present, values, 0.0)
    chosen = np.arange(0, len(steps), max(1, len(steps) // points))
    smoothed = np.full(len(chosen), np.nan)
    for place, index in enumerate(chosen):
        if present[index]:
            weights = np.exp(-0.5 * ((steps - steps[index]) / width) ** 2) * present
            smoothed[place] = weights @ filled / weights.sum()
    return steps[chosen], smoothed


def _width(run: Run) -> float:
    return max(1.0, len(run.metrics) / 30)


def how_to_read(run: Run) -> str:
    """What thin and thick lines are, once for all figures; "" when nothing is smoothed."""
    if len(run.metrics) < FEW:
        return ""
    width = f"standard deviation in steps: {_width(run):.3g}"
    return f"Thin lines: each step. Thick lines: Gaussian mean over neighbouring steps ({width})."


def new_figure(rows: int = 1, heights: Sequence[float] = (1,), height: float = 3.4):
    """A figure and its panels, one above the other, with relative `heights`; total `height` in inches."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots(rows, 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    axes[-1].set_xlabel("step (rollout batches)")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10]))
    return figure, axes


def curve(axis, run: Run, key: str, label: str, colour: str) -> bool:
    """Raw and smoothed; False when there is no finite value to draw."""
    steps, values = run.series(key)
    if not np.isfinite(values).any():
        return False
    if len(steps) < FEW:
        axis.plot(steps, values, color=colour, linewidth=1.8, marker="o", markersize=4, label=label)
    else:
        faint = 0.4 if len(steps) < 300 else 0.2
        axis.plot(steps, values, color=colour, linewidth=0.8 if faint > 0.2 else 0.4, alpha=faint)
        axis.plot(*smooth(steps, values, _width(run)), color=colour, linewidth=2.2, label=label)
        # A value between two gaps has no line: give it a mark, or it would be invisible.
        padded = np.isfinite(np.concatenate([[np.nan], values, [np.nan]]))
        lonely = padded[1:-1] & ~padded[:-2] & ~padded[2:]
        axis.plot(np.asarray(steps)[lonely], np.asarray(values)[lonely], "o", color=colour, markersize=3)
    return True


def legend(axis) -> None:
    """Above the panel, outside the data."""
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        columns = 4 if sum(map(len, labels)) < 40 else 2
        axis.legend(
            handles,
            labels,
            loc="lower left",
            bbox_to_anchor=(-0.02, 1.0),
            ncol=columns,
            fontsize=10,
            handlelength=1.4,
            columnspacing=1.2,
            borderaxespad=0.2,
        )


def share(axis, label: str) -> None:
    """Makes the vertical axis one of shares, from 0 to a little above the largest."""
    highest = max((np.nanmax(line.get_ydata(), initial=0.0) for line in axis.lines), default=0.0)
    limit = min(1.0, max(0.1, 1.1 * float(highest)))
    axis.set_ylim(-0.03 * limit, limit * 1.03)
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.set_ylabel(label)


def png(figure, dpi: int = 180) -> bytes:
    """The figure as the bytes of a PNG file."""
    FigureCanvasAgg(figure)
    file = io.BytesIO()
    figure.savefig(file, dpi=dpi, format="png")
    return file.getvalue()
