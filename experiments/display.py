"""What a launch of several tables shows: how far all of them are, and how long they will take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich import progress as bars
from rich.console import Console

LINE_EVERY = 10.0  # seconds between two lines where there is no terminal


class Job(NamedTuple):
    """A table with something to compute: its blocks to run, and the tokens that a block samples."""

    table: str
    blocks: int
    cost: float  # tokens of one block, the mean over the blocks


class Display:
    """How far all tables are: a bar on a terminal, elsewhere a plain line every ten seconds."""

    def __init__(self, jobs: Sequence[Job], console: Console, clock: Callable[[], float] = time.monotonic):
        self.console, self.clock = console, clock
        self.blocks, self.work = sum(job.blocks for job in jobs), sum(job.blocks * job.cost for job in jobs)
        self.done, self.worked, self.last, self.bar = 0, 0.0, clock(), None
        self.start = self.changed = self.last
        self.left: float | None = None

    def __enter__(self) -> Display:
        if self.console.is_terminal and self.blocks:
            columns = (
                bars.TextColumn("{task.description}"),
                bars.BarColumn(bar_width=None),
                bars.TextColumn("{task.fields[note]}"),
            )
            self.bar = bars.Progress(*columns, console=self.console, expand=True, transient=True)
            self.task = self.bar.add_task("tables", total=self.work, note="")
            self.bar.start()
        return self

    def __exit__(self, *_) -> None:
        if self.bar is not None:
            self.bar.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        (self.bar.console if self.bar else self.console).print(text, soft_wrap=True, markup=False, highlight=False)

    def add(self, job: Job) -> None:
        """One more block of a table is done."""
        self.done, self.worked, self.changed = self.done + 1, self.worked + job.cost, self.clock()
        self._estimate()

    def drop(self, job: Job, blocks: int) -> None:
        """Blocks of a table that failed: nobody waits for them."""
        self.blocks, self.work = self.blocks - blocks, self.work - blocks * job.cost
        self._estimate()

    def _estimate(self) -> None:
        """Seconds left: by work, not by blocks, since tables differ in what a block costs."""
        if self.worked:
            self.left = (self.changed - self.start) * (self.work - self.worked) / self.worked

    def words(self) -> str:
        """ "12/310 blocks, 0:35 so far, about 14:20 left"."""
        now = self.clock()
        text = f"{self.done}/{self.blocks} blocks, {clock_text(now - self.start)} so far"
        if self.left is None or self.done >= self.blocks:
            return text
        return f"{text}, about {clock_text(max(self.left - (now - self.changed), 0.0))} left"

    def show(self, running: Sequence[str]) -> None:
        """Called twice a second or more."""
        if not self.blocks:
            return
        if self.bar is not None:
            description = ", ".join(running[:2]) + (f" and {len(running) - 2} more" if len(running) > 2 else "")
            self.bar.update(
                self.task, completed=self.worked, total=self.work, description=description, note=self.words()
            )
        elif self.clock() - self.last >= LINE_EVERY or (not running and self.clock() - self.start > 2.0):
            self.last = self.clock()
            self.say(self.words() + (f" ({', '.join(running)})" if running else ""))


def clock_text(seconds: float) -> str:
    """ "0:35", "1:02:03"."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
