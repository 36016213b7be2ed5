"""The figures of an audit; line styles, markers and hatches stand for what colours say."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from rlvr_jax.diagnose.audit import BANDS, QUARTERS, STRETCH, Curves, OnLog
from rlvr_jax.report.drawing import STYLE, WIDTH, legend, png

LOOKS = (
    ("-", "o", "#4d4d4d", ""),
    ("--", "s", "#D55E00", "//"),
    ("-.", "^", "#0072B2", ".."),
    (":", "D", "#009E73", "xx"),
    ((0, (5, 1, 1, 1, 1, 1)), "v", "#CC79A7", "\\\\"),
    ((0, (1, 3)), "P", "#E69F00", "++"),
)
MOST = len(LOOKS)  # estimators in one figure
Item = tuple[str, Curves, OnLog | None]


def draw(items: Sequence[Item]) -> dict[str, tuple[bytes, str, str]]:
    """name → (PNG, title, caption); the first `MOST` estimators."""
    items = items[:MOST]
    with matplotlib.rc_context(STYLE):
        made = {"length": _over_length(items), "accuracy": _over_accuracy(items)}
        if items[0][2] is not None:
            made |= {"quarters": _quarters(items), "bands": _bands(items)}
        return {name: (png(figure), title, caption) for name, (figure, title, caption) in made.items()}


def _figure(height: float):
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots()


def _line(axis, x, y, look, label=None, hollow=False):
    style, marker, colour, _ = look
    face = "white" if hollow else colour
    axis.plot(x, y, linestyle=style, marker=marker, color=colour, markerfacecolor=face, linewidth=1.6, label=label)


def _over_length(items: Sequence[Item]):
    figure, axis = _figure(3.9)
    for look, (name, curve, _) in zip(LOOKS, items):
        half = int(np.flatnonzero(curve.right == curve.group_size // 2)[0])
        _line(axis, curve.lengths, np.abs(curve.values[0, half]), look, name)
        _line(axis, curve.lengths, np.abs(curve.values[1, half]), look, hollow=True)
    lengths = items[0][1].lengths
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_xticks(lengths, [f"{length:.0f}" for length in lengths])
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.minorticks_off()
    axis.set_xlabel("tokens of the response")
    axis.set_ylabel("size of a token's weight")
    legend(axis)
    reference = items[0][1].reference
    caption = (
        f"A group half right; the other responses have {reference:.0f} tokens. Filled: a right response, hollow: a "
        "wrong one. 1 is a right one of the reference length."
    )
    return figure, "Weight of a token by length", caption


def _over_accuracy(items: Sequence[Item]):
    figure, axis = _figure(3.9)
    column = STRETCH.index(1.0)
    for look, (name, curve, _) in zip(LOOKS, items):
        share = curve.right / curve.group_size
        _line(axis, share, curve.values[0, :, column], look, name)
        _line(axis, share, curve.values[1, :, column], look, hollow=True)
    axis.axhline(0, color="#444444", linewidth=1)
    axis.set_xlabel("share of the group that is right")
    axis.set_ylabel("weight of a token")
    axis.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    legend(axis)
    caption = "All responses of one length. Filled: a right response (pushed up), hollow: a wrong one (pushed down)."
    return figure, "Weight of a token by group accuracy", caption


def _grouped(axis, labels, columns, looks):
    """Bars side by side; the first column is what there is, the others what gets weight."""
    width = 0.8 / len(columns)
    for place, ((name, values), look) in enumerate(zip(columns, looks)):
        at = np.arange(len(labels)) + (place - (len(columns) - 1) / 2) * width
        axis.bar(at, values, width, color=look[2], hatch=look[3], edgecolor="white", linewidth=0.5, label=name)
    axis.set_xticks(range(len(labels)), labels)
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.grid(axis="x", visible=False)
    legend(axis)


def _quarters(items: Sequence[Item]):
    figure, axis = _figure(3.9)
    labels = [f"{name}\n{side}" for name in QUARTERS for side in ("right", "wrong")]
    columns = [("responses", items[0][2].rows_by_length.ravel())]
    columns += [(name, found.by_length.ravel()) for name, _, found in items]
    _grouped(axis, labels, columns, [("", "", "#bbbbbb", ""), *LOOKS])
    axis.tick_params(axis="x", labelsize=8.5)
    axis.set_ylabel("share")
    return (
        figure,
        "Weight by quarter of the lengths",
        "Grey: the responses themselves. Others: their share of the weight.",
    )


def _bands(items: Sequence[Item]):
    figure, axis = _figure(3.6)
    columns = [("groups", items[0][2].groups_by_band), *((name, found.by_band) for name, _, found in items)]
    _grouped(axis, BANDS, columns, [("", "", "#bbbbbb", ""), *LOOKS])
    axis.set_ylabel("share")
    caption = "Grey: the groups themselves, by how many of them are right. Others: their share of the weight."
    return figure, "Weight by group accuracy", caption
