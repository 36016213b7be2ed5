"""Grading in processes that can be killed: a time limit, a memory limit, and failures that are counted.

Each process is a new Python that imports the verifiers and no jax; nothing is forked out of a process that holds
devices, and nothing depends on the thread that asks. On several hosts each has its own pool and grades its own rows.

    an answer that takes too long or too much memory    outcome 0, "time limit: 5 s", "memory limit: 2048 MB"
    a fault of the checker, a process that died twice    no outcome, "invalid: …": left out of every statistic

While an item takes long, its process gives way to the others (idle priority) and another takes its place, so that the
ordinary items around it do not wait.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import selectors
import signal
import sys
import threading
import time
from collections.abc import Iterable

from rlvr_jax.tasks.grade import MEMORY, READY, Item, grade, make_check
from rlvr_jax.tasks.process import Process
from rlvr_jax.verdict import Verdict

MOST_WORKERS = 16  # of those that nobody asked for by number
STRICT = ("answer_line", "bare_number")
_PATIENCE = 0.05, 20.0  # an item is slow after so many seconds, and so many times what items take
_SLOWEST = 0.25, 0.125  # but after so many seconds, or that part of the limit, in any case
_START_LIMIT = 120.0  # seconds that a process may need until it is ready
_CHUNK, _CHUNK_TEXT = 32, 1 << 18  # items, and characters, that a process is given at once
_LONGEST_LINE = 1 << 20  # of a process's answer
_SLOW = 3  # times `workers` of slow processes beside the others


def kind_of(verdict: Verdict) -> str | None:
    """What a verdict is counted as: "invalid", "time_limit", "memory_limit", or None: neither."""
    if not verdict.valid:
        return "invalid"
    return {"time limit": "time_limit", "memory limit": "memory_limit"}.get(verdict.reason.partition(":")[0])


class Local:
    """The same interface in this process: no limits, but faults become verdicts and are counted."""

    def __init__(self, verifier: str):
        self._check, self.counts = make_check(verifier), collections.Counter()

    def grade(self, items: Iterable[Item]) -> list[Verdict]:
        verdicts = [grade(self._check, Item(*item)) for item in items]
        self.counts.update(filter(None, map(kind_of, verdicts)))
        return verdicts

    def close(self) -> None:
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Pool:
    """`grade` items in `workers` processes, in order, from any thread (one call at a time).

    counts: failures so far, by kind: "time_limit", "memory_limit", "invalid"; and "replaced", processes that ended.
    """

    def __init__(self, verifier: str, workers: int = 0, time_limit: float = 5.0, memory_mb: int = 2048):
        """
        Args:
          verifier: see `rlvr_jax.tasks.grade`.
          workers: processes; 0: one a processor, at most 16.
          time_limit: seconds that one item may take.
          memory_mb: address space that grading may take in a process; 0: no limit. (Linux; elsewhere unreliable.)

        Raises:
          ValueError: a number outside its range, an unknown verifier.
        """
        if not isinstance(workers, int) or workers < 0:
            raise ValueError(f"workers={workers!r}: must be a whole number, 0 for one a processor")
        if not time_limit > 0:
            raise ValueError(f"time_limit={time_limit!r}: must be above 0 seconds")
        if memory_mb and memory_mb < 256:
            raise ValueError(f"memory_mb={memory_mb!r}: must be at least 256, or 0 for no limit")
        make_check(verifier)
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.workers = workers or min(processors, MOST_WORKERS)
        self.time_limit, self.memory_mb = float(time_limit), int(memory_mb)
        self._most_patience = min(max(_SLOWEST[0], _SLOWEST[1] * self.time_limit), self.time_limit)
        self._usual: float | None = None  # seconds of an item, a moving mean
        self.counts: collections.Counter[str] = collections.Counter()
        self._command = [sys.executable, "-m", "rlvr_jax.tasks.worker", verifier, str(memory_mb), str(time_limit)]
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._processes: list[Process] = []
        self._closed, self._failed_starts = False, 0
        for _ in range(self.workers):
            self._start()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __del__(self):
        with contextlib.suppress(Exception):
            self.close()

    def close(self) -> None:
        """Ends all processes."""
        self._closed = True
        for process in list(self._processes):
            self._end(process)
        self._selector.close()

    def grade(self, items: Iterable[Item]) -> list[Verdict]:
        """A verdict for each (answer, completion, finished), in order.

        Raises:
          RuntimeError: the pool is closed, or its processes do not start; says what they said.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("this pool is closed")
            self._items = [Item(*item) for item in items]
            self._verdicts: list[Verdict | None] = [None] * len(self._items)
            self._open = len(self._items)
            self._waiting = collections.deque(range(len(self._items)))
            self._tried: collections.Counter[int] = collections.Counter()  # processes that an item has cost
            try:
                while self._open:
                    self._turn()
            finally:  # a process that is still at an item has it twice, or the call was interrupted
                for process in [p for p in self._processes if p.items]:
                    self._end(process)
                verdicts, self._verdicts, self._items = self._verdicts, [], []
            self.counts.update(filter(None, map(kind_of, verdicts)))
            return verdicts

    # --- one turn of the loop ---

    def _turn(self) -> None:
        self._fill_up()
        for process in self._processes:
            if process.ready and not process.items and self._waiting:
                self._give(process)
        for key, events in self._selector.select(self._seconds_left()):
            process = key.data
            if process not in self._processes:
                continue  # ended by the other event of this turn
            if events & selectors.EVENT_WRITE:
                self._write(process)
            elif events & selectors.EVENT_READ:
                self._read(process)
        now = time.monotonic()
        for process in list(self._processes):
            self._check_time(process, now)

    def _fill_up(self) -> None:
        """As many processes as there are workers, those at a slow item not counted, while there is work for them."""
        slow = sum(process.slow for process in self._processes)
        ordinary = len(self._processes) - slow
        wanted = min(self.workers, ordinary + len(self._waiting)) if slow < _SLOW * self.workers else ordinary
        for _ in range(max(wanted, not self._processes) - ordinary):
            self._start()
        for process in self._processes[:]:
            if ordinary > self.workers and process.ready and not process.items:
                self._end(process)
                ordinary -= 1

    @property
    def _patience(self) -> float:
        """Seconds after which an item is slow, beside those that were graded before it."""
        usual = self._most_patience if self._usual is None else self._usual
        return min(max(_PATIENCE[0], _PATIENCE[1] * usual), self._most_patience)

    def _seconds_left(self) -> float:
        """Seconds until a process has to be looked at."""
        now, times = time.monotonic(), [1.0]
        for process in self._processes:
            if process.items or not process.ready:
                limit = self.time_limit if process.slow else self._patience
                times.append(process.since + (limit if process.ready else _START_LIMIT) - now)
                if process.slow and not process.idle_priority:
                    times.append(_PATIENCE[0])
        return max(min(times), 0.0)

    def _check_time(self, process: Process, now: float) -> None:
        taken = now - process.since
        if not process.ready:
            if taken > _START_LIMIT:
                self._end(process)
                raise RuntimeError(f"a grading process was not ready after {_START_LIMIT:.0f} s: {self._command}")
        elif process.items and taken >= self.time_limit:
            self._overdue(process)
        elif process.items and taken >= self._patience:
            if not process.slow:
                process.slow = True
                rest = list(process.items)[1:]
                self._waiting.extendleft(number for number in reversed(rest) if self._verdicts[number] is None)
            self._let_others_pass(process)

    def _let_others_pass(self, process: Process) -> None:
        """A slow process that has worked all the while steps back; one that waits for the machine, or sleeps, need not.

        An item that has been starved once has its second try at full speed.
        """
        if process.idle_priority or self._tried[process.items[0]] or not (self._waiting or len(self._processes) > 1):
            return
        used = process.cpu_seconds()
        if used is not None and used - process.cpu >= self._patience:
            process.step_back()

    def _overdue(self, process: Process) -> None:
        number, used = process.items[0], process.cpu_seconds()
        starved = process.idle_priority and used is not None and used - process.cpu < 0.5 * self.time_limit
        self._end(process)
        self.counts["replaced"] += 1
        if self._verdicts[number] is not None:
            return
        self._tried[number] += 1
        if starved and self._tried[number] == 1:
            self._waiting.append(number)
        else:
            self._settle(number, Verdict(0.0, None, f"time limit: {self.time_limit:g} s"))

    # --- talking with the processes ---

    def _start(self) -> None:
        process = Process(self._command)
        self._processes.append(process)
        self._selector.register(process.popen.stdout, selectors.EVENT_READ, process)

    def _end(self, process: Process) -> int:
        self._processes.remove(process)
        for pipe in (process.popen.stdin, process.popen.stdout):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(pipe)
        return process.kill()

    def _give(self, process: Process) -> None:
        """The next items, as many as leave the others something to do. A second try goes alone."""
        share = max(1, min(_CHUNK, len(self._waiting) // (2 * self.workers)))
        chunk, text = [], 0
        while self._waiting and len(chunk) < share and text < _CHUNK_TEXT:
            if chunk and self._tried[self._waiting[0]]:
                break
            number = self._waiting.popleft()
            if self._verdicts[number] is None:
                chunk.append(number)
                text += len(self._items[number].completion)
                if self._tried[number]:
                    break
        if not chunk:
            return
        line = json.dumps([[number, *self._items[number]] for number in chunk])
        process.items.extend(chunk)
        process.to_write = memoryview(f"{line}\n".encode("ascii"))
        process.begin()
        self._selector.register(process.popen.stdin, selectors.EVENT_WRITE, process)
        self._write(process)

    def _write(self, process: Process) -> None:
        try:
            while process.to_write:
                process.to_write = process.to_write[os.write(process.popen.stdin.fileno(), process.to_write) :]
        except BlockingIOError:
            return
        except OSError:
            pass  # it has died; reading tells
        process.to_write = memoryview(b"")
        self._selector.unregister(process.popen.stdin)

    def _read(self, process: Process) -> None:
        try:
            data = os.read(process.popen.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return
        process.read += data
        *lines, rest = bytes(process.read).split(b"\n")
        process.read = bytearray(rest)
        try:
            for line in lines:
                if process not in self._processes:
                    return  # what it says after its last item is not waited for
                self._hear(process, json.loads(line))
        except (ValueError, TypeError, LookupError):  # not what a process of ours says
            self._died(process, "answers that cannot be read")
            return
        if len(rest) > _LONGEST_LINE:
            self._died(process, "an answer without end")
        elif not data and process in self._processes:
            self._died(process, "")

    def _hear(self, process: Process, said) -> None:
        if isinstance(said, dict):
            self._end(process)
            raise RuntimeError(f"a grading process does not start: {said['error']}")
        if said == READY:
            process.ready, self._failed_starts = True, 0
            process.begin()
            return
        number, outcome, extracted, reason = said
        if process.items[0] != number:
            raise ValueError("an answer to another item")
        process.items.popleft()
        if reason == MEMORY:
            reason = f"memory limit: {self.memory_mb} MB"
            self._waiting.extendleft(n for n in reversed(process.items) if self._verdicts[n] is None)
        self._settle(number, Verdict(float(outcome), extracted, reason))
        taken = time.monotonic() - process.since
        self._usual = taken if self._usual is None else 0.95 * self._usual + 0.05 * taken
        process.begin()
        # what has run out of memory ends by itself; what stays slow would hold up what it is given next
        if reason.startswith(MEMORY) or (process.slow and not process.come_back()):
            self._end(process)
            self.counts["replaced"] += 1

    def _died(self, process: Process, why: str) -> None:
        """The process ended by itself, or has to. The item it was at has a second try; then it has no verdict."""
        items = list(process.items)
        status = self._end(process)
        self.counts["replaced"] += 1
        if not process.ready:
            self._failed_starts += 1
            if self._failed_starts >= 3:
                raise RuntimeError(
                    f"a grading process ended before it was ready, with status {status}: {self._command}"
                )
        if not items:
            return
        if self._verdicts[items[0]] is None:
            self._tried[items[0]] += 1
            if status == -signal.SIGALRM:
                self._settle(items[0], Verdict(0.0, None, f"time limit: {self.time_limit:g} s"))
            elif self._tried[items[0]] > 1:
                how = why or (f"signal {-status}" if status < 0 else f"exit status {status}")
                self._settle(items[0], Verdict.invalid(f"the grading process died twice: {how}"))
            else:
                self._waiting.append(items[0])
        self._waiting.extendleft(n for n in reversed(items[1:]) if self._verdicts[n] is None)

    def _settle(self, number: int, verdict: Verdict) -> None:
        if self._verdicts[number] is None:
            self._verdicts[number] = verdict
            self._open -= 1


def make_pool(verifier: str, workers: int = 0, time_limit: float = 5.0, memory_mb: int = 2048) -> Pool | Local:
    """The processes for a task's verifier, or none: with `workers` −1, and with 0 for the verifiers of one line, which
    match a pattern and cannot take long."""
    if workers == -1 or (workers == 0 and verifier in STRICT):
        return Local(verifier)
    return Pool(verifier, workers, time_limit, memory_mb)
