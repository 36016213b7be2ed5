"""What a run leaves behind: one JSON object a step in metrics.jsonl, single rollouts in rollouts.jsonl.

Plain floats in; nothing here touches a device.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from rlvr_jax.metrics.console import COLUMNS, Column, Table


class MetricsWriter:
    """Writes a run's metrics, rollouts and console table; a context manager.

    `write` may be called several times for one step; the parts become one object, written when the step
    closes: on `close_step()`, on the first write of a later step, or on exit. With `start_step=k` (a resumed
    run) lines of both files with step ≥ k are removed first, as are unreadable ones (`torn_lines` counts
    them), so no step is there twice: whatever was measured at step k or later must be measured again.

    Args:
      workdir: directory of the run; made if absent.
      total_steps: length of the progress bar, in steps.
      start_step: first step this process will write.
      columns: the console table; see `Column`.
      tensorboard: also write event files to workdir/tensorboard.
      quiet: no console output.
      enabled: False makes every method a no-op (processes other than the first).
      console: where the table goes; default stdout.
    Raises:
      ImportError: TensorBoard was asked for and tensorboardX is not installed.
      ValueError: a write for a step that is already closed.
    """

    def __init__(
        self,
        workdir: str | Path,
        total_steps: int,
        start_step: int = 0,
        columns: Sequence[Column] = COLUMNS,
        tensorboard: bool = False,
        quiet: bool = False,
        *,
        enabled: bool = True,
        console: Console | None = None,
    ):
        self.workdir = Path(workdir)
        self.total_steps, self.start_step = total_steps, start_step
        self.columns, self.enabled = tuple(columns), enabled
        self.torn_lines = self.removed_lines = 0
        self._table = Table(columns, total_steps, console or Console(), quiet=quiet or not enabled)
        self._summary = _summary_writer(self.workdir, start_step) if tensorboard and enabled else None
        self._step: int | None = None  # the open step
        self._next = start_step  # the first step that may still be written
        self._scalars: dict[str, float] = {}
        self._shown = False  # whether the open step has its line in the table
        self._metrics = self._rollouts = None  # open files

    def __enter__(self) -> MetricsWriter:
        if self.enabled:
            self.workdir.mkdir(parents=True, exist_ok=True)
            paths = [self.workdir / name for name in ("metrics.jsonl", "rollouts.jsonl")]
            dropped = [_drop_from(path, self.start_step) for path in paths]
            self.removed_lines, self.torn_lines = (sum(counts) for counts in zip(*dropped))
            self._metrics, self._rollouts = (path.open("ab") for path in paths)
        self._table.start(self.start_step)
        if self.removed_lines:
            self.say(
                f"{self.removed_lines} line(s) of steps from {self.start_step} on removed from metrics.jsonl and "
                "rollouts.jsonl: no checkpoint has them, they are measured again"
            )
        if self.torn_lines:
            self.say(f"{self.torn_lines} unreadable line(s) dropped from metrics.jsonl and rollouts.jsonl")
        return self

    def __exit__(self, *exception) -> None:
        try:
            self.close_step()
        finally:
            self._table.stop()
            for file in (self._metrics, self._rollouts, self._summary):
                if file is not None:
                    file.close()

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Adds scalars (slash-separated name → float) to a step; NaN and infinity become null in the file."""
        if not self.enabled:
            return
        self._open(step)
        scalars = {name: float(value) for name, value in scalars.items()}
        self._scalars.update(scalars)
        held_out = {name: value for name, value in scalars.items() if name.startswith("eval/")}
        if held_out:  # news that should not wait for the step to close; the step's own line comes first
            self._show()
            self._table.show_evaluation(step, held_out)

    def write_rollouts(self, step: int, rollouts: Iterable[Mapping[str, Any]]) -> None:
        """Appends rollouts to rollouts.jsonl, one object a line, "step" added."""
        if not self.enabled:
            return
        self._open(step)
        for rollout in rollouts:
            self._rollouts.write(_to_line({"step": step, **rollout}))
        self._rollouts.flush()

    def close_step(self) -> None:
        """Writes the open step, if there is one, and shows its line; the step cannot be written any more."""
        if self._step is None:
            return
        self._show()
        step, scalars = self._step, self._scalars
        self._step, self._next, self._scalars, self._shown = None, step + 1, {}, False
        if not scalars:
            return
        self._metrics.write(_to_line({"step": step, **scalars}))
        self._metrics.flush()
        if self._summary is not None:
            for name, value in scalars.items():
                if math.isfinite(value):  # the mean of nothing has no point on a curve
                    self._summary.add_scalar(name, value, step)
            self._summary.flush()

    def say(self, message: str) -> None:
        """Prints a line above the progress bar."""
        self._table.print(Text(message), words=True)

    def _show(self) -> None:
        if not self._shown:
            self._shown = self._table.show(self._step, self._scalars)

    def _open(self, step: int) -> None:
        if self._metrics is None:
            raise RuntimeError("MetricsWriter is a context manager: write inside `with MetricsWriter(...)`")
        step = int(step)
        if self._step is not None and step > self._step:
            self.close_step()
        if step < self._next or (self._step is not None and step < self._step):
            raise ValueError(f"step {step} is closed already: the next that can be written is {self._next}")
        self._step = step


def iterate_jsonl(path: str | Path) -> Iterator[dict | None]:
    """The lines of a JSON-lines file as objects with a "step", None for a line that is not such; lazily.

    Nothing when there is no file.
    """
    path = Path(path)
    if not path.exists():
        return
    # A binary file ends lines at \n only; text mode and splitlines would also cut inside some completions.
    with path.open("rb") as file:
        for line in file:
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except ValueError:
                value = None
            yield value if isinstance(value, dict) and isinstance(value.get("step"), int) else None


def read_jsonl(path: str | Path) -> tuple[list[dict], int]:
    """All objects of a JSON-lines file and the number of lines that could not be read."""
    lines = list(iterate_jsonl(path))
    objects = [line for line in lines if line is not None]
    return objects, len(lines) - len(objects)


def _plain(value: Any) -> Any:
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value


def _to_line(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)
    # A completion may hold half a surrogate pair: as a \uXXXX escape the line stays valid JSON and UTF-8.
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _drop_from(path: Path, start_step: int) -> tuple[int, int]:
    """Removes the lines of steps ≥ start_step and the unreadable ones, atomically; counts both."""
    if not path.exists():
        return 0, 0
    removed = torn = 0
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        for value in iterate_jsonl(path):
            if value is None:
                torn += 1
            elif value["step"] < start_step:
                file.write(_to_line(value))
            else:
                removed += 1
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return removed, torn


def _summary_writer(workdir: Path, start_step: int):
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "TensorBoard output needs tensorboardX: pip install 'rlvr-jax[tensorboard]', or switch it off"
        ) from error
    return SummaryWriter(str(workdir / "tensorboard"), purge_step=start_step or None)
