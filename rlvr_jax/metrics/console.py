"""What a run shows while it runs: one aligned table line a step above a progress bar; plain text in a log."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rich import progress as bars
from rich.console import Console
from rich.text import Text

MISSING = "–"


class Column(NamedTuple):
    """One column of the console table; a `rank` above 0 says how early it gives way on a narrow terminal."""

    head: tuple[str, str]  # two lines
    key: str  # the metric; "step" is always there
    width: int  # characters
    decimals: int = 3
    percent: bool = False  # a share in [0, 1], shown as a percentage
    rank: int = 0
    alarm: bool = False  # NaN is a failure worth seeing, not an empty mean


COLUMNS = (
    Column(("", "step"), "step", 4, 0),
    Column(("", "reward"), "rollout/reward", 6),
    Column(("", "pass@1"), "rollout/pass@1", 6),
    Column(("", "length"), "rollout/length", 6, 1),
    Column(("length", "right"), "rollout/length_correct", 6, 1, rank=3),
    Column(("length", "wrong"), "rollout/length_wrong", 6, 1, rank=3),
    Column(("", "trunc"), "rollout/truncated", 5, percent=True, rank=2),
    Column(("no", "contrast"), "rollout/zero_variance_groups", 8, percent=True, rank=2),
    Column(("", "loss"), "update/loss", 6, rank=4, alarm=True),
    Column(("", "|g|"), "update/gradient_norm", 5, 2, rank=1, alarm=True),
    Column(("en-", "tropy"), "update/entropy", 5, 2, rank=5),
    Column(("sec/", "step"), "time/step_s", 5, 1),
)

HEADER_EVERY = 20  # table lines between two headers


class Table:
    """The console: one aligned line a step, above a progress bar where there is a terminal."""

    active: Table | None = None  # the one whose bar is on the screen

    def __init__(self, columns: Sequence[Column], total_steps: int, console: Console, quiet: bool):
        self.columns, self.total_steps, self.console, self.quiet = columns, total_steps, console, quiet
        self.bar = None
        self._lines = 0  # table lines so far

    def start(self, start_step: int) -> None:
        self._outer, Table.active = Table.active, self
        if self.quiet or not self.console.is_terminal:
            return
        self.bar = _bar(self.console)
        self._task = self.bar.add_task("training", total=self.total_steps, completed=start_step, note="")
        self.bar.start()

    def stop(self) -> None:
        Table.active = self._outer
        if self.bar is not None:
            self.bar.stop()

    def print(self, text: Text, words: bool = False) -> None:
        """One line; with `words` a sentence, which a terminal breaks between words and a log does not break."""
        if not self.quiet:
            self.console.print(text, soft_wrap=not (words and self.console.is_terminal), highlight=False)

    def show(self, step: int, scalars: Mapping[str, float]) -> bool:
        """The line of a step; False when the scalars hold nothing that the table shows."""
        columns = _fit(self.columns, self.console.width)
        if not any(column.key in scalars for column in columns):
            return False
        if self._lines % HEADER_EVERY == 0:
            for line in header(columns, self.console.width):
                self.print(line)
        self._lines += 1
        self.print(row(columns, {**scalars, "step": step}, self.console.width))
        if self.bar is not None:
            reward = scalars.get("rollout/reward")
            note = {} if reward is None else {"note": f"reward {_number(reward, 6, 3)}"}
            self.bar.update(self._task, completed=min(step + 1, self.total_steps), **note)
        return True

    def show_evaluation(self, step: int, scalars: Mapping[str, float]) -> None:
        """The evaluation's rates among the scalars (eval/…pass@…) on a line of their own."""
        rates = {name.partition("/")[2]: value for name, value in scalars.items() if "pass@" in name}
        if rates:
            parts = (f"{name.replace('_', ' ')} {_number(value, 6, 3)}" for name, value in rates.items())
            self.print(Text(f"{step:>4} evaluated  " + "  ".join(parts), style="bold cyan"))


def header(columns: Sequence[Column], width: int) -> list[Text]:
    """The two lines above the table."""
    gap = _gap(columns, width)
    lines = (gap.join(f"{column.head[line]:>{column.width}}" for column in columns) for line in (0, 1))
    return [Text(line.rstrip(), style="bold dim") for line in lines]


def row(columns: Sequence[Column], values: Mapping[str, float], width: int) -> Text:
    """One line of the table; what a step did not measure is shown as "–"."""
    cells = []
    for column in columns:
        value = values.get(column.key)
        broken = column.alarm and value is not None and not math.isfinite(value)
        if broken:
            cell, style = str(float(value)), "bold red"
        elif column.percent and value is not None and math.isfinite(value):
            cell, style = f"{100 * value:.0f}%", ""
        else:
            cell, style = _number(value, column.width, column.decimals), ""
        style = style or ("bold" if column.key == "rollout/reward" else "dim" if cell == MISSING else "")
        cells.append(Text(f"{cell:>{column.width}}", style=style))
    return Text(_gap(columns, width)).join(cells)


def _number(value: float | None, width: int, decimals: int) -> str:
    """At most `width` characters where that is possible: decimals go first, then the exponent form."""
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    for places in range(decimals, -1, -1):
        text = f"{value:.{places}f}"
        if len(text) <= width:
            return text[1:] if text.startswith("-") and not text.strip("-0.") else text  # no "-0.000"
    return f"{value:.0e}".replace("e+0", "e").replace("e+", "e")


def _natural(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + len(columns) - 1


def _gap(columns: Sequence[Column], width: int) -> str:
    spare = (width - 1 - _natural(columns)) // max(len(columns) - 1, 1)
    return " " * (1 + min(max(spare, 0), 2))


def _fit(columns: Sequence[Column], width: int) -> list[Column]:
    """The columns that fit: those of highest rank leave first, all of one rank together."""
    kept = list(columns)
    while _natural(kept) >= width and any(column.rank for column in kept):
        highest = max(column.rank for column in kept)
        kept = [column for column in kept if column.rank < highest]
    return kept


def progress(items: Iterable | int, description: str, total: int | None = None, quiet: bool = False) -> Iterator:
    """Iterates over items (a number n means range(n)) and shows how far it is.

    On a terminal a bar that is gone when done, under the training bar if there is one; elsewhere a plain line
    every ten seconds and one at the end if it took more than two. `total` is for iterables without a length.
    """
    items = range(items) if isinstance(items, int) else items
    if total is None:
        total = len(items) if hasattr(items, "__len__") else None
    table = Table.active
    console = table.console if table else Console()
    if quiet or (table and table.quiet):
        yield from items
    elif console.is_terminal:
        yield from _with_bar(items, description, total, table, console)
    else:
        yield from _with_lines(items, description, total, console)


def _bar(console: Console, transient: bool = False) -> bars.Progress:
    return bars.Progress(
        bars.TextColumn("{task.description}"),
        bars.BarColumn(bar_width=None),
        bars.MofNCompleteColumn(),
        bars.TextColumn("{task.fields[note]}"),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(),
        bars.TextColumn("left"),
        console=console,
        expand=True,
        transient=transient,
        speed_estimate_period=120.0,  # steps take seconds; the default 30 s holds too few of them
    )


def _with_bar(items: Iterable, description: str, total: int | None, table: Table | None, console: Console):
    own = None
    if table is None or table.bar is None:
        own = _bar(console, transient=True)
        own.start()
    bar = own or table.bar
    task = bar.add_task(description, total=total, note="")
    try:
        for item in items:
            yield item
            bar.advance(task)
    finally:
        bar.remove_task(task)
        if own:
            own.stop()


def _with_lines(items: Iterable, description: str, total: int | None, console: Console):
    start = last = time.monotonic()
    done = 0
    of = "" if total is None else f"/{total}"

    def line(now: float) -> None:
        text = f"{description}: {done}{of}, {now - start:.0f} s"
        console.print(text, soft_wrap=True, highlight=False, markup=False)

    for item in items:
        yield item
        done += 1
        now = time.monotonic()
        if now - last >= 10.0:
            last = now
            line(now)
    if time.monotonic() - start > 2.0:
        line(time.monotonic())
