"""The figures of a table: curves over steps, a forest plot of paired differences, heat maps; colour is not needed."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from experiments import text
from experiments.heatmap import heatmap
from experiments.markdown import curve_words
from experiments.summary import Comparison, Judged, Summary, measure_of, rows_of
from rlvr_jax.report.drawing import STYLE

FIGURES = ("effects.png", "heatmap.png", "curves.png")
INK, SOFT, GRID = "#1c1d1f", "#5c6066", "#e6e6e6"
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5C00", "#5A4FCF")  # Okabe and Ito's
DASHES = ("-", (0, (5, 1.6)), (0, (1, 1.2)), (0, (6, 1.4, 1, 1.4)), (0, (9, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (2, 2.5)))
MARKERS = ("", "o", "s", "^", "D", "v", "P", "X")  # the second round of arms carries marks
BAR_MARKS = ("o", "s", "^", "D", "v", "P")  # cases in the forest plot
DPI = 110
COLUMN_TITLES = {"raw": "raw steps", "matched": "control: matched norms", "adam": "control: Adam"}
MOST_BANDS = 6  # arms with bands in a panel of curves
MOST_ROWS = 26  # of a forest panel; with more, only the arms of claims


def draw(summary: Summary, folder: Path) -> list[Path]:
    """Writes those of FIGURES that there is something to draw for; returns their paths."""
    written = []
    with matplotlib.rc_context({**STYLE, "font.family": "DejaVu Sans"}):
        for name, figure in zip(FIGURES, (effects(summary), heatmap(summary, COLUMN_TITLES), curves(summary))):
            if figure is not None:
                _save(figure, folder / name)
                written.append(folder / name)
    return written


def _save(figure: Figure, path: Path) -> None:
    """No version and no date inside: equal numbers give equal bytes. 128 colours are a third of the size."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=DPI, format="png")
    Image.open(drawn).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, "PNG", optimize=True)


def curves(summary: Summary) -> Figure | None:
    """Metrics × (case, column): mean over seeds with its 95 % band; None when the table names no curves."""
    table = summary.table
    across, down = _layout(summary)
    if not summary.curves or not across or not down:
        return None
    width, height = max(7.0, 3.5 * len(across) + 0.6), 2.35 * len(down)
    names = list(table.arms)
    columns = max(1, min(len(names), int(width * 11 // (8 + max(map(len, names))))))
    head = 0.24 * -(-len(names) // columns) + 0.2
    words = textwrap.wrap(_curve_note(summary), int(width * 12.5))
    foot = 0.2 * len(words) + 0.1
    total = height + head + foot
    figure = Figure(figsize=(width, total), layout="constrained")
    axes = figure.subplots(len(down), len(across), sharex=True, sharey="row", squeeze=False)
    for row, (metric, case) in zip(axes, down):
        for axis, (own_case, column) in zip(row, across):
            _curve_panel(summary, axis, metric, case if own_case is None else own_case, column)
    _name_panels(table, axes, across, down)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.get_layout_engine().set(rect=(0, foot / total, 1, 1 - (head + foot) / total), w_pad=0.06, h_pad=0.06)
    figure.legend(
        handles, labels, loc="upper left", bbox_to_anchor=(0.0, 1.0), ncol=columns, fontsize=11, handlelength=3.2
    )
    figure.text(0.006, 0.06 / total, "\n".join(words), fontsize=9.5, color=SOFT, va="bottom")
    return figure


def _curve_note(summary: Summary) -> str:
    banded = "" if len(_banded(summary)) == len(summary.table.arms) else " (the reference's and claimed arms' alone)"
    return curve_words(summary).replace("Bands:", f"Bands{banded}:")


def _banded(summary: Summary) -> set[str]:
    """The arms whose bands are drawn: all of a few; of many, those that are spoken of."""
    table = summary.table
    if len(table.arms) <= MOST_BANDS:
        return set(table.arms)
    return {table.reference, *(arm for claim in table.claims for arm in (claim.arm, claim.against) if arm)}


def _layout(summary: Summary):
    """(panels side by side, rows): columns of the table side by side where there are several, else its cases."""
    table = summary.table
    if len(table.columns) > 1:
        across = [(None, column) for column in table.columns]
        down = [(metric, case) for metric in table.curves for case in table.cases]
    else:
        across = [(case, next(iter(table.columns))) for case in table.cases]
        down = [(metric, "") for metric in table.curves]
    return across, down


def _name_panels(table, axes, across, down) -> None:
    for axis, (case, column) in zip(axes[0], across):
        axis.set_title(" · ".join(part for part in (case, column) if part), fontsize=12)
    for row, (metric, case) in zip(axes, down):
        name = metric if len(metric) <= 22 else metric.replace("/", "/\n", 1)
        row[0].set_ylabel(name + (f"\n{textwrap.fill(case, 22)}" if case else ""), fontsize=11)
    for axis in axes[-1]:
        axis.set_xlabel("step", fontsize=11)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))


def _curve_panel(summary: Summary, axis, metric: str, case: str, column: str) -> None:
    arms = [arm for arm in summary.table.arms if arm != summary.table.reference]
    for arm in (summary.table.reference, *arms):
        curve = summary.curves.get((metric, case, column, arm))
        look = style_of(summary, arm)
        if curve is None:
            axis.plot([], [], label=arm, **look)
            continue
        steps = np.flatnonzero(np.isfinite(curve.mean))
        if arm in _banded(summary):
            axis.fill_between(steps, curve.low[steps], curve.high[steps], color=look["color"], alpha=0.13, linewidth=0)
        axis.plot(steps, curve.mean[steps], label=arm, markevery=max(1, len(steps) // 8), markersize=5, **look)
    axis.margins(x=0.01)


def style_of(summary: Summary, arm: str) -> dict:
    """Colour, dashes and, from the eighth on, marks: each arm differs from every other in black and white too."""
    if arm == summary.table.reference:
        return {"color": INK, "linestyle": "-", "linewidth": 2.4}
    index = [name for name in summary.table.arms if name != summary.table.reference].index(arm)
    round_, place = divmod(index, len(DASHES) - 1)
    return {
        "color": PALETTE[index % len(PALETTE)],
        "linestyle": DASHES[1 + place],
        "linewidth": 1.9,
        "marker": MARKERS[round_ % len(MARKERS)],
    }


def effects(summary: Summary) -> Figure | None:
    """Forest plot: one block a measure that claims speak of, its claims and verdicts above it, columns side by side."""
    blocks = _blocks(summary)
    if not blocks:
        return None
    table = summary.table
    across = list(table.columns)
    label_width = 0.6 + 0.085 * max(len(_row_label(summary, c)) for _, rows, _ in blocks for c in rows)
    width = max(8.0, label_width + 2.9 * len(across) + 0.3)
    heads = [_heading(summary, label, judged, int((width - 0.4) * 12.0)) for label, _, judged in blocks]
    named = 0.5 if any(across) else 0.25  # room for the panels' titles
    heights = [(0.26 * len(head) + named, 0.3 * len(rows) + 0.3, 0.55) for head, (_, rows, _) in zip(heads, blocks)]
    notes = textwrap.wrap(_legend_words(summary), int(width * 12.5))
    total = sum(map(sum, heights)) + 0.3 + 0.2 * len(notes)
    figure = Figure(figsize=(width, total))
    top = total - 0.12
    for (label, rows, _), head, (above, body, below) in zip(blocks, heads, heights):
        for index, (line, weight) in enumerate(head):
            place = (0.12 / width, (top - 0.08 - 0.26 * index) / total)
            size, colour = (13, INK) if index == 0 else (11, INK if weight == "bold" else SOFT)
            figure.text(*place, line, fontsize=size, fontweight=weight, color=colour, va="top")
        bottom = top - above - body
        _forest_row(summary, figure, label, rows, across, (label_width, width, bottom, body, total))
        top = bottom - below
    figure.text(0.12 / width, 0.1 / total, "\n".join(notes), fontsize=9.5, color=SOFT, va="bottom")
    return figure


def _blocks(summary: Summary) -> list[tuple[str, list[Comparison], list[Judged]]]:
    """(measure, comparisons of its first column, claims) of the measures that claims speak of; without claims, all."""
    table = summary.table
    claimed = [claim.measure for claim in table.claims]
    labels = [m.label for m in table.measures if not claimed or m.label in claimed]
    first = next(iter(table.columns), "")
    found = []
    for label in labels:
        judged = [one for one in summary.judged if one.claim.measure == label]
        rows = [c for c in summary.tests if c.measure == label and c.column == first]
        pairs = {(c.arm, c.against) for one in judged for c in rows_of(table, one.claim)}
        if len(rows) > MOST_ROWS and pairs:
            rows = [c for c in rows if (c.arm, c.against) in pairs]
        rows += [
            Comparison(label, case, first, arm, against)
            for arm, against in sorted(pairs)
            for case in table.cases
            if Comparison(label, case, first, arm, against) not in rows
            and any(Comparison(label, case, column, arm, against) in summary.tests for column in table.columns)
        ]
        order = {arm: index for index, arm in enumerate(table.arms)}
        places = {case: index for index, case in enumerate(table.cases)}
        rows.sort(key=lambda c: (order[c.arm], order[c.against], places[c.case]))
        if rows:
            found.append((label, rows, judged))
    return found


def _heading(summary: Summary, label: str, judged: Sequence[Judged], letters: int) -> list[tuple[str, str]]:
    """The lines above a block: the measure, then each claim with its published number, and its verdict in bold."""
    measure = measure_of(summary.table, label)
    better = f" ({measure.better} is better)" if measure.better else ""
    lines = [(f"{label}{better}", "bold")]
    for one in judged:
        published = f" Published: {one.claim.published}." if one.claim.published else ""
        claim = f"Claim: {one.claim.text.rstrip('.')}.{published} ({one.claim.source})"
        lines += [(line, "normal") for line in textwrap.wrap(claim, letters)]
        asked = text.asked_words(summary, one)
        lines += [(line, "bold") for line in textwrap.wrap(f"→ {asked}: {one.verdict.word}", int(letters * 0.92))]
    return lines


def _row_label(summary: Summary, comparison: Comparison) -> str:
    against = "" if comparison.against == summary.table.reference else f" − {comparison.against}"
    return comparison.arm + against + (f" · {comparison.case}" if comparison.case else "")


def _forest_row(summary: Summary, figure, label: str, rows: list[Comparison], across: list[str], place) -> None:
    left, width, bottom, body, total = place
    limits = _limits(summary, rows, across)
    each = (width - left - 0.25) / len(across)
    for index, column in enumerate(across):
        box = ((left + index * each) / width, bottom / total, (each - 0.28) / width, body / total)
        axis = figure.add_axes(box)
        _forest_panel(summary, axis, [row._replace(column=column) for row in rows])
        axis.set_xlim(*limits)  # one scale: what a control leaves of an effect is read off beside it
        axis.set_title(COLUMN_TITLES.get(column, column), fontsize=12, fontweight="bold", loc="left")
        axis.set_yticks(range(len(rows)), [_row_label(summary, row) for row in rows] if index == 0 else [])
        axis.tick_params(axis="y", length=0, labelsize=11)
        axis.tick_params(axis="x", labelsize=10)
        if index == 0:
            axis.set_xlabel(f"arm − {summary.table.reference}", fontsize=10, loc="left", color=SOFT)


def _limits(summary: Summary, rows: Sequence[Comparison], across: Sequence[str]) -> tuple[float, float]:
    """The ends of everything drawn in the columns of a measure, zero and margins included, and a little more."""
    places = [row._replace(column=column) for row in rows for column in across]
    effects = [summary.tests[place].effect for place in places if place in summary.tests]
    ends = [end for effect in effects for end in effect[:3] if np.isfinite(end)]
    margins = [m for place, (_, m) in _claimed(summary).items() if place in places and m is not None]
    low, high = min([0.0, *ends, *(-m for m in margins)]), max([0.0, *ends, *margins])
    room = 0.07 * (high - low) or 1.0
    return low - room, high + room


def _claimed(summary: Summary) -> dict[Comparison, tuple[str, float | None]]:
    """Comparison → direction and margin of the claim that speaks of it."""
    return {
        place: (one.claim.direction, one.claim.margin)
        for one in summary.judged
        for place in rows_of(summary.table, one.claim)
    }


def _forest_panel(summary: Summary, axis, rows: list[Comparison]) -> None:
    """One column: filled where the adjusted p is below .05, hollow elsewhere; zero is the reference."""
    cases = list(summary.table.cases)
    claims = _claimed(summary)
    axis.axvline(0, color=INK, linewidth=1.2, zorder=1)
    for y, row in enumerate(rows):
        if y and rows[y - 1][3:] != row[3:]:  # another arm, or against another
            axis.axhline(y - 0.5, color="#c9ccd1", linewidth=0.8)
        tested = summary.tests.get(row)
        if tested is None or not np.isfinite(tested.effect.mean):
            axis.text(0.99, y, "no data", fontsize=9, color=SOFT, ha="right", va="center", transform=_mixed(axis))
            continue
        effect, shown = tested.effect, tested.p < 0.05
        colour = PALETTE[cases.index(row.case) % len(PALETTE)]
        if np.isfinite(effect.low):
            axis.plot([effect.low, effect.high], [y, y], color=colour, linewidth=2.2, solid_capstyle="butt", zorder=2)
        mark = BAR_MARKS[cases.index(row.case) % len(BAR_MARKS)]
        face = colour if shown else "white"
        axis.plot([effect.mean], [y], mark, color=colour, markerfacecolor=face, markersize=7, zorder=3, mew=1.6)
        direction, margin = claims.get(row, ("", None))
        if margin is not None:
            axis.fill_betweenx([y - 0.36, y + 0.36], -margin, margin, color="#dfe2e6", linewidth=0, zorder=0)
        if direction:
            arrow = {"+": "▷", "-": "◁", "0": "="}[direction]
            axis.text(1.01, y, arrow, fontsize=10, color=INK, va="center", ha="left", transform=_mixed(axis))
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)
    axis.spines["left"].set_visible(False)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=5, prune="both"))  # labels of neighbours keep apart
    axis.ticklabel_format(axis="x", style="plain", useOffset=False)


def _mixed(axis):
    """x of the axes (0 to 1), y of the data."""
    return axis.get_yaxis_transform()


def _legend_words(summary: Summary) -> str:
    directions = {claim.direction for claim in summary.table.claims}
    return (
        f"Bars: 95 % intervals of the paired difference over {len(summary.seeds)} seeds. Filled: adjusted p < .05."
        + (" ▷ ◁: the claimed side of zero." if directions & {"+", "-"} else "")
        + (" = and grey: claimed to be no larger than this." if "0" in directions else "")
    )
