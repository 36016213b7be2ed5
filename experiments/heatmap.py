"""heatmap.png of a table: arms × cases, one panel for every measure (down) and column (across)."""

from __future__ import annotations

import textwrap

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from experiments.summary import Summary
from rlvr_jax.report.table import MISSING, number

# From white to a dark blue: lightness alone says it, so it survives black and white. The middle is the blue of every
# other figure.
SEQUENTIAL = matplotlib.colors.LinearSegmentedColormap.from_list("white to blue", ("#ffffff", "#0072B2", "#00243b"))
DIGITS = 2
INK, SOFT = "#1c1d1f", "#5c6066"
CELL = (0.78, 0.36)  # inches


def heatmap(summary: Summary, column_titles: dict[str, str]) -> Figure | None:
    """Mean over seeds in every cell, as number and colour; one scale for the panels of a measure. None without any."""
    table = summary.table
    labels, across = list(table.heatmaps), list(table.columns)
    if not labels:
        return None
    cases, arms = list(table.cases), list(table.arms)
    names = [textwrap.fill(case, 11) for case in cases]
    margins = {"left": 0.3 + 0.085 * max(map(len, arms)), "right": 1.0, "top": 0.75, "bottom": 0.25}
    below = 0.2 * max(name.count("\n") + 1 for name in names) + 0.2  # the cases' names
    panel = (CELL[0] * len(cases), CELL[1] * len(arms))
    gap = (0.3, below + 0.5)
    width = max(5.0, margins["left"] + margins["right"] + len(across) * (panel[0] + gap[0]) - gap[0])
    height = margins["top"] + margins["bottom"] + below + len(labels) * (panel[1] + gap[1]) - gap[1]
    figure = Figure(figsize=(width, height))
    for row, label in enumerate(labels):
        top = height - margins["top"] - row * (panel[1] + gap[1])
        means = {column: _means(summary, label, column) for column in across}
        limits = _limits(list(means.values()))
        title = f"{label} ({_over(summary, label)})"
        figure.text(0.1 / width, (top + 0.36) / height, title, fontsize=13, fontweight="bold", color=INK, va="bottom")
        for place, column in enumerate(across):
            left = margins["left"] + place * (panel[0] + gap[0])
            box = (left / width, (top - panel[1]) / height, panel[0] / width, panel[1] / height)
            axis = figure.add_axes(box)
            image = _panel(axis, means[column], limits)
            axis.set_title(column_titles.get(column, column), fontsize=11, loc="left", pad=4)
            axis.set_xticks(range(len(cases)), names, fontsize=10)
            axis.set_yticks(range(len(arms)), arms if place == 0 else [], fontsize=10.5)
        left = margins["left"] + len(across) * (panel[0] + gap[0]) - gap[0] + 0.15
        scale = figure.add_axes((left / width, (top - panel[1]) / height, 0.14 / width, panel[1] / height))
        figure.colorbar(image, cax=scale).outline.set_visible(False)
        scale.tick_params(labelsize=9, length=2, color=SOFT)
        scale.grid(visible=False)
    return figure


def _means(summary: Summary, label: str, column: str) -> np.ndarray:
    """f64[arms, cases]; NaN where no seed has a value."""
    table = summary.table
    mean = lambda case, arm: _mean(summary.values[label, case, column, arm])
    return np.asarray([[mean(case, arm) for case in table.cases] for arm in table.arms])


def _mean(values: np.ndarray) -> float:
    present = values[np.isfinite(values)]
    return float(present.mean()) if present.size else np.nan


def _over(summary: Summary, label: str) -> str:
    """What the means of a measure are over."""
    lost = any(np.isnan(values).any() for (measure, *_), values in summary.values.items() if measure == label)
    seeds = f"mean over {len(summary.seeds)} seeds"
    return f"{seeds}, or those of them with a value; hatched: none" if lost else seeds


def _limits(arrays: list[np.ndarray]) -> tuple[float, float]:
    """The smallest and the largest mean of a measure; apart also where they are equal."""
    values = np.concatenate([array[np.isfinite(array)] for array in arrays])
    if not values.size:
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _panel(axis, means: np.ndarray, limits: tuple[float, float]):
    """The cells of one panel, white lines between them; hatched where there is no value."""
    low, high = limits
    shades = SEQUENTIAL.with_extremes(bad="#f1f1f1")
    image = axis.imshow(np.ma.masked_invalid(means), cmap=shades, vmin=low, vmax=high, aspect="auto")
    for (y, x), value in np.ndenumerate(means):
        if not np.isfinite(value):
            box = {"fill": False, "hatch": "///", "edgecolor": "#c4c7cc", "linewidth": 0}
            axis.add_patch(matplotlib.patches.Rectangle((x - 0.5, y - 0.5), 1, 1, **box))
            axis.text(x, y, MISSING, ha="center", va="center", fontsize=11, color=INK)
            continue
        colour = ink_on(SEQUENTIAL((value - low) / (high - low)))
        axis.text(x, y, number(value, DIGITS), ha="center", va="center", fontsize=11, color=colour)
    axis.set_xticks(np.arange(means.shape[1] + 1) - 0.5, minor=True)
    axis.set_yticks(np.arange(means.shape[0] + 1) - 0.5, minor=True)
    axis.grid(visible=False)
    axis.grid(which="minor", color="white", linewidth=1.5)
    axis.tick_params(which="both", length=0)
    axis.spines[:].set_visible(True)
    axis.spines[:].set_color("#c9ccd1")
    return image


def ink_on(rgba: tuple[float, float, float, float]) -> str:
    """Black or white, whichever contrasts more (relative luminance of WCAG 2)."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in rgba[:3]]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "black" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "white"
