"""The numbers of an audit as rows, once for the terminal and the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rich.box import SIMPLE
from rich.table import Table

from rlvr_jax.diagnose.advice import Advice, tokens_apart
from rlvr_jax.diagnose.audit import BANDS, QUARTERS, Bias, Curves, OnLog
from rlvr_jax.report.page import scroll
from rlvr_jax.report.text import escape

SIDES = ("right", "wrong")
LONG_NAME = 13  # characters of a name in one line of a terminal
ABREAST = 4  # estimators beside one another in 80 columns


class Audited(NamedTuple):
    """One estimator; `on_log` and `advice` are None without a log."""

    name: str
    slots: dict[str, str]
    curves: Curves
    on_log: OnLog | None
    advice: list[Advice] | None


class AuditReport(NamedTuple):
    """All that `rlvr audit` computed."""

    source: str
    estimators: list[Audited]
    bias: Bias | None
    notes: list[str]
    completion_length: int


class Rows(NamedTuple):
    """A table: the first column names its rows."""

    title: str
    head: list[str]
    rows: list[list[str]]
    note: str = ""


def tables_of(report: AuditReport) -> list[Rows]:
    """All tables, those of the log first."""
    found = []
    if report.bias is not None:
        found = [_summary(report)]
        blocks = [report.estimators[start : start + ABREAST] for start in range(0, len(report.estimators), ABREAST)]
        found += [make(block) for make in (_by_length, _by_band) for block in blocks]
    return found + [_curve_table(item) for item in report.estimators]


def _curve_table(item: Audited) -> Rows:
    curve = item.curves
    head = ["group", "response", *(f"{length:.0f}" for length in curve.lengths)]
    rows = [
        [f"{k} of {curve.group_size} right", side, *(_number(x) for x in curve.values[sign, row])]
        for row, k in enumerate(curve.right)
        for sign, side in enumerate(SIDES)
    ]
    note = (
        f"Columns: tokens of the response; the others of its group have {curve.reference:.0f}. 1 is a right response "
        f"of {curve.reference:.0f} tokens in a group half right."
    )
    return Rows(f"{item.name}: weight of a token", head, rows, note)


def _summary(report: AuditReport) -> Rows:
    head = ["", "no signal", "effective", "positive", "lone right", "lopsided", "cut"]
    rows = []
    for item in report.estimators:
        found = item.on_log
        lopsided = found.by_band[[1, 3]].sum()
        effective = f"{found.effective_groups:.1f} of {found.groups:.1f}"
        shares = (found.positive, found.lone, lopsided, found.cut)
        rows.append([item.name, _percent(found.zero_groups), effective, *map(_percent, shares)])
    note = (
        "no signal: groups without gradient. effective: groups a step that the weight amounts to. positive: weight "
        "that raises probabilities. lone right: of the positive weight, on the only right response of its group. "
        f"lopsided: weight in groups up to 1/4 or from 3/4 right. {_coupling_text(report.estimators[0])}"
        f"{_bias_text(report.bias)}"
    )
    return Rows("Where the weight goes", head, rows, note)


def _coupling_text(item: Audited) -> str:
    if not math.isfinite(item.on_log.gap):
        return ""
    return (
        f"Within groups, positive responses are {tokens_apart(item.on_log.gap)} than negative ones (sign-length "
        f"correlation {_number(item.on_log.coupling)}, signs of {item.name}). "
    )


def _bias_text(found: Bias) -> str:
    return (
        f"Mean pass rate {found.pass_rate:.3f}, G = {found.group_size}: the mean of a group with contrast misses the "
        f"pass rate by {_number(found.at_mean)} there, by {_number(found.hard)} on the prompts below half and "
        f"{_number(found.easy)} on those above (arXiv:2601.08521)."
    )


def _by_length(items: Sequence[Audited]) -> Rows:
    rows = []
    for quarter, name in enumerate(QUARTERS):
        for side, kind in enumerate(SIDES):
            share = items[0].on_log.rows_by_length[quarter, side]
            cells = [_percent(item.on_log.by_length[quarter, side]) for item in items]
            rows.append([name, kind, _percent(share), *cells])
    head = ["length", "", "responses", *(item.name for item in items)]
    return Rows("Weight by quarter of the lengths", head, rows)


def _by_band(items: Sequence[Audited]) -> Rows:
    first = items[0].on_log
    rows = [
        [
            name,
            _percent(first.groups_by_band[band]),
            *(_percent(item.on_log.by_band[band]) for item in items),
        ]
        for band, name in enumerate(BANDS)
    ]
    return Rows("Weight by how many of the group are right", ["", "groups", *(item.name for item in items)], rows)


def _is_text(rows: Rows, place: int) -> bool:
    """Whether a column holds words: left aligned."""
    return place == 0 or any(row[place][:1].isalpha() for row in rows.rows)


def in_terminal(rows: Rows) -> Table:
    """For 80 columns."""
    table = Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for place, name in enumerate(rows.head):
        table.add_column(_folded(name), justify="left" if _is_text(rows, place) else "right", overflow="fold")
    for row in rows.rows:
        table.add_row(_folded(row[0]), *row[1:])
    return table


def _folded(name: str) -> str:
    """A long name in two lines, cut after an underscore."""
    cut = name.rfind("_", 0, LONG_NAME) + 1
    return name if len(name) <= LONG_NAME or not cut else f"{name[:cut]}\n{name[cut:]}"


def in_page(rows: Rows) -> str:
    """The note and the table."""
    words = [_is_text(rows, place) for place in range(len(rows.head))]
    cell = lambda tag, kind, text: f'<{tag} class="n">{escape(text)}</{tag}>' if kind else f"<th>{escape(text)}</th>"
    line = lambda tag, cells: "".join(cell(tag, not word, text) for word, text in zip(words, cells))
    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows.rows)
    note = f'<p class="soft">{escape(rows.note)}</p>' if rows.note else ""
    return note + scroll(f"<thead><tr>{line('th', rows.head)}</tr></thead><tbody>{body}</tbody>", "narrow")


def _percent(value: float) -> str:
    return "–" if not math.isfinite(value) else f"{100 * value:.1f} %"


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    text = (
        f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) >= 0.01 or value == 0 else f"{value:.4f}"
    )
    return text.replace("-", "−")
