"""Before and after as rows: one set of numbers for the page and for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from rlvr_jax.report.text import split_name

MISSING = "–"
MODES = ("greedy", "sampled")
VERDICTS = {
    "beyond": "the 95 % interval excludes zero",
    "within": "the 95 % interval includes zero, no change shown",
    "": "without an interval",
}


class Cell(NamedTuple):
    """A number and, where there is one, its 95 % interval, as text."""

    value: str
    interval: str = ""


class Row(NamedTuple):
    """One quantity before and after; `verdict` says what the interval of the change says, if there is one."""

    label: str
    before: Cell
    after: Cell
    change: Cell
    verdict: str = ""


def before_after_rows(evaluations: Sequence[Mapping], difference: Mapping | None = None) -> dict[str, list[Row]]:
    """Sampling mode → its rows, from the first and the last evaluation; only what was measured."""
    if not evaluations:
        return {}
    before, after = evaluations[0], evaluations[-1]
    alone = before["step"] == after["step"]
    sections = {}
    for mode in MODES:
        first, last = before.get(mode) or {}, after.get(mode) or {}
        if not first and not last:
            continue
        last = {} if alone else last
        rows = [_pass_row(first, last, (difference or {}).get(mode) or {})]
        k = (last or first).get("k")
        if k:
            rows.append(_row(f"pass@{k}", "pass@k", first, last))
        rows += [
            _row("well-formed", "format", first, last),
            _row("right if well-formed", "", _given_format(first), _given_format(last)),
            _row("truncated", "truncated", first, last),
            _row("length (tokens)", "mean_length", first, last, decimals=1),
            _row("length if correct", "length_correct", first, last, decimals=1),
            _row("length if wrong", "length_wrong", first, last, decimals=1),
        ]
        measured = [row for row in rows if row.before.value != MISSING or row.after.value != MISSING]
        sections[mode] = measured
    return sections


def before_after_table(evaluations: Sequence[Mapping] | Mapping, difference: Mapping | None = None) -> Table:
    """The table of a run's evaluations for the terminal; fits 80 columns.

    Args:
      evaluations: the list in evaluation.json, in order of step, or the whole object of that file.
      difference: its "difference"; needed for the interval of the change.
    """
    if isinstance(evaluations, Mapping):
        evaluations, difference = evaluations.get("evaluations", []), evaluations.get("difference")
    steps = [item["step"] for item in evaluations] or [0]
    problems = evaluations[-1].get("problems") if evaluations else None
    kind = split_name(evaluations[-1]) if evaluations else "held-out"
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{kind.capitalize()} problems" + (f" ({problems})" if problems else ""),
        title_style="bold",
        title_justify="left",
        caption_justify="left",
        pad_edge=False,
    )
    alone = len(set(steps)) == 1
    table.add_column("", no_wrap=True)
    heads = (f"step {steps[0]}",) if alone else (f"before\nstep {steps[0]}", f"after\nstep {steps[-1]}")
    for head in (*heads, *(() if alone else ("change\n\\[95 % interval]",))):
        table.add_column(head, justify="right")
    captions = []
    for mode, rows in before_after_rows(evaluations, difference).items():
        numbers = evaluations[-1].get(mode) or {}
        samples, temperature = numbers.get("samples"), numbers.get("temperature")
        title = mode + (f" ×{samples}" if samples else "") + (f", T = {temperature}" if temperature else "")
        table.add_row(Text(title, style="bold"))
        for row in rows:
            table.add_row("  " + row.label, *map(_rich, row[1:2] if alone else row[1:4]))
        if rows[0].verdict and not alone:
            captions.append(f"change of {mode} pass@1: {VERDICTS[rows[0].verdict]}")
    table.caption = "\n".join(captions) or None
    return table


def _rich(cell: Cell) -> Text:
    return Text.assemble(cell.value, *([("\n" + cell.interval, "dim")] if cell.interval else []))


def mode_title(mode: str, numbers: Mapping) -> str:
    """ "greedy", or "sampled, temperature 1.0, 4 a problem" as far as it is known."""
    parts = [mode]
    if mode == "sampled":
        if numbers.get("temperature") is not None:
            parts.append(f"temperature {numbers['temperature']}")
        if numbers.get("samples"):
            parts.append(f"{numbers['samples']} a problem")
    return ", ".join(parts)


def number(value: Any, decimals: int = 3, sign: bool = False) -> str:
    """A number with a true minus sign; "–" when it is missing or not finite."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return MISSING
    text = f"{value:{'+' if sign else ''}.{decimals}f}"
    if not text.strip("+-0."):
        return text.lstrip("+-")
    return text.replace("-", "−")


def interval(numbers: Mapping, decimals: int = 3, sign: bool = False) -> str:
    """ "[low, high]", or "" when either is missing."""
    ends = [number(numbers.get(end), decimals, sign) for end in ("low", "high")]
    return "" if MISSING in ends else f"[{ends[0]}, {ends[1]}]"


def change_of(first: Mapping, last: Mapping, difference: Mapping) -> float | None:
    """The change in pass@1: as recorded, else after − before, else None."""
    if isinstance(difference.get("difference"), int | float):
        return difference["difference"]
    ends = [numbers.get("pass@1") for numbers in (first, last)]
    return ends[1] - ends[0] if all(isinstance(end, int | float) for end in ends) else None


def verdict_of(difference: Mapping) -> str:
    """ "beyond" or "within": whether zero lies outside the interval of the change; "" without an interval."""
    low, high = difference.get("low"), difference.get("high")
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return ""
    return "beyond" if low > 0 or high < 0 else "within"


def _pass_row(first: Mapping, last: Mapping, difference: Mapping) -> Row:
    difference = difference if last else {}
    change = Cell(number(change_of(first, last, difference), sign=True), interval(difference, sign=True))
    before, after = (Cell(number(numbers.get("pass@1")), interval(numbers)) for numbers in (first, last))
    return Row("pass@1", before, after, change, verdict_of(difference))


def _row(label: str, key: str, first: Mapping, last: Mapping, decimals: int = 3) -> Row:
    ends = [numbers.get(key) for numbers in (first, last)]
    known = all(isinstance(end, int | float) for end in ends)
    change = number(ends[1] - ends[0], decimals, sign=True) if known else MISSING
    return Row(label, Cell(number(ends[0], decimals)), Cell(number(ends[1], decimals)), Cell(change))


def _given_format(numbers: Mapping) -> Mapping:
    """pass@1 ÷ share that is well-formed: how much is more than learning to answer in the wanted form."""
    rate, format = numbers.get("pass@1"), numbers.get("format")
    return {"": rate / format} if isinstance(rate, int | float) and format else {}
