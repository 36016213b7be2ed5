"""Toy tables side by side: one worker process a table, at most N at a time, one display over all their blocks.

XLA splits an operation among as many threads as it has, and where it splits one decides how its sums are rounded. So
a worker always has one thread, also when it is the only one: the curves of a table depend neither on the machine's
number of cores nor on how many tables are computed side by side.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from experiments.display import Display, Job
from experiments.runs import Runs
from experiments.table import ROOT, RunKey, Table, block_keys
from rlvr_jax.tasks.toy import make_toy

TAIL_LINES = 12  # of a failed worker's output
PATIENCE = 3.0  # seconds a worker has to end after an interrupt; a block that compiles or computes does not listen
# NPROC is what XLA sizes its pool of threads by. The flag does not change that, but it is part of the key under which
# jax keeps compiled programs (JAX_COMPILATION_CACHE_DIR); NPROC is not, and such a program is of one number of threads.
ONE_THREAD = {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
XLA_FLAG = "--xla_cpu_multi_thread_eigen=false"


class Interrupted(Exception):
    """Ctrl-C: finished runs are on disk."""


class Failure(NamedTuple):
    table: str
    status: int
    output: str  # its last lines


def job_of(table: Table, runs: Runs, todo: Sequence[RunKey]) -> Job:
    """What is to be done; the cost is runs × steps × prompts × group × completion length × passes."""
    blocks = list(dict.fromkeys((key.case, key.seed) for key in todo))
    total = sum(_tokens(runs, key) for case, seed in blocks for key in block_keys(table, case, seed))
    return Job(table.name, len(blocks), total / max(len(blocks), 1))


def _tokens(runs: Runs, key: RunKey) -> float:
    """Token positions, each epoch counted once more; a minibatch costs about as much as an epoch at these sizes."""
    flat = runs.expected(key)
    rows = _prompts(flat["task"]) * flat["group_size"]
    passes = 1 + flat["updates.epochs"] * (1 + flat["updates.minibatches"]) / 2
    return flat["steps"] * rows * flat["sampling.completion_length"] * passes


@functools.lru_cache(maxsize=256)
def _prompts(task: str) -> int:
    return make_toy(task).size


def environment_of_worker(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which XLA on the CPU, and NumPy, compute with one thread."""
    flags = environment.get("XLA_FLAGS", "").split()
    kept = [flag for flag in flags if not flag.startswith(XLA_FLAG.partition("=")[0])]
    said = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}  # so that one that dies leaves its last words
    return {**environment, **ONE_THREAD, **said, "XLA_FLAGS": " ".join([*kept, XLA_FLAG])}


def worker_command(job: Job, root: str | Path, seeds: int | None, command: str, descriptor: int) -> list[str]:
    """The words that start a worker."""
    number = "" if seeds is None else str(seeds)
    return [
        sys.executable,
        "-m",
        "experiments.worker",
        str(descriptor),
        job.table,
        str(Path(root).resolve()),
        number,
        command,
    ]


class Worker:
    """A running worker: its events go to `events` as (worker, event), the last one (worker, None)."""

    def __init__(self, job: Job, root: str | Path, seeds: int | None, command: str, events: queue.Queue):
        self.job, self.done = job, 0
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the worker)
        reading, writing = os.pipe()
        try:
            # A session of its own: Ctrl-C reaches the parent alone, which tells each worker once.
            self.process = subprocess.Popen(
                worker_command(job, root, seeds, command, writing),
                cwd=ROOT,
                env=environment_of_worker(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=self.output,
                stderr=subprocess.STDOUT,
                pass_fds=(writing,),
                start_new_session=True,
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        threading.Thread(target=self._listen, args=(reading, events), daemon=True).start()

    def _listen(self, reading: int, events: queue.Queue) -> None:
        with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                with contextlib.suppress(ValueError):  # the torn last line of one that was killed
                    events.put((self, json.loads(line)))
        self.process.wait()
        events.put((self, None))

    def tail(self) -> str:
        """The last lines it printed."""
        self.output.seek(0)
        lines = self.output.read().decode("utf-8", "replace").splitlines()
        return "\n".join([line for line in lines if line.strip()][-TAIL_LINES:])

    def stop(self, how: int) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(how)


def run_jobs(
    jobs: Sequence[Job],
    number: int,
    root: str | Path,
    seeds: int | None = None,
    command: str = "",
    console: Console | None = None,
) -> list[Failure]:
    """Computes the tables, the longest first, `number` at a time; those that failed are returned, and stop no other.

    Raises:
      Interrupted: on Ctrl-C, after every worker has ended.
    """
    waiting = sorted(jobs, key=lambda job: (-job.blocks * job.cost, job.table))
    events: queue.Queue = queue.Queue()
    running: list[Worker] = []
    failures: list[Failure] = []
    with _endings_are_interrupts(), Display(jobs, console or Console(highlight=False)) as display:
        try:
            while waiting or running:
                while waiting and len(running) < number:
                    running.append(Worker(waiting.pop(0), root, seeds, command, events))
                for worker, event in _arrived(events):
                    if event is not None:
                        _tell(worker, event, display)
                        continue
                    running.remove(worker)
                    failures += _ended(worker, display)
                display.show([worker.job.table for worker in running])
        except KeyboardInterrupt:
            display.say("stopping; finished runs are kept")
            stop_all(running)
            done = display.done + sum(bool(event and "block" in event) for _, event in _arrived(events))
            raise Interrupted(f"{done} of {display.blocks} blocks are done and kept") from None
        finally:
            stop_all(running)
    return failures


@contextlib.contextmanager
def _endings_are_interrupts():
    """A request to end, or a terminal that is closed, stops the workers as Ctrl-C does."""
    before = {}
    try:
        with contextlib.suppress(ValueError):  # only the main thread may
            for number in (signal.SIGTERM, signal.SIGHUP):
                before[number] = signal.signal(number, signal.default_int_handler)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _arrived(events: queue.Queue) -> Iterator[tuple[Worker, dict | None]]:
    """The events of the next half second, at once if there are any."""
    with contextlib.suppress(queue.Empty):
        yield events.get(timeout=0.5)
        while True:
            yield events.get_nowait()


def _tell(worker: Worker, event: dict, display: Display) -> None:
    if "say" in event:
        display.say(f"{worker.job.table}: {event['say'].strip()}")
    if "block" in event:
        worker.done += 1
        display.add(worker.job)


def _ended(worker: Worker, display: Display) -> list[Failure]:
    status = worker.process.returncode
    if status == 0:
        display.say(f"{worker.job.table}: done")
        return []
    failure = Failure(worker.job.table, status, worker.tail())
    display.drop(worker.job, worker.job.blocks - worker.done)
    display.say(failure_words(failure))
    return [failure]


def failure_words(failure: Failure) -> str:
    """Which table failed, how, and the last it said."""
    status = failure.status
    how = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
    output = "".join(f"\n    {line}" for line in failure.output.splitlines()) or " nothing"
    return f"{failure.table}: FAILED: its worker {how}; the last it said:{output}"


def stop_all(workers: Sequence[Worker]) -> None:
    """Interrupts, then ends those that do not listen (a run is written whole or not at all)."""
    try:
        for worker in workers:
            worker.stop(signal.SIGINT)
        end = time.monotonic() + PATIENCE
        for worker in workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, end - time.monotonic()))
    finally:  # also on a second Ctrl-C
        for worker in workers:
            worker.stop(signal.SIGKILL)
            worker.process.wait()
