"""What ends a run before its last step: a step that stands still, a host that is gone, SIGTERM. Each is said by name,
with an exit status that tells whoever started the run to start it again."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import jax

from rlvr_jax import hosts

STOPPED, STUCK, LOST = 75, 76, 77  # exit statuses: start again with the same command
AGAIN = "Start again with the same command: the run goes on from its newest checkpoint."


class Stopped(SystemExit):
    """The run was told to end and did, in order."""

    def __init__(self):
        super().__init__(STOPPED)


class Beat(NamedTuple):
    """Where a process was when it last said so."""

    host: str
    beat: int  # how often it has said so
    reached: int  # points so far; the same program on every host, so the smallest is behind
    where: str  # "step 3, verify"
    seconds: float  # since it got there


class Watch:
    """Watches a run from a thread of its own: `step` and `other` begin something that must end in time, `reach` says
    how far it is.

    Args:
      step_seconds: longest time of a step; 0: any.
      other_seconds: the same for what is no step, and for the first step, which compiles; 0: any.
      lost_seconds: a host that has not been heard of for so long is gone; 0: only jax says so.
      say, leave: take the message, and the exit status.

    With several processes an error that leaves the context is told to the others, which end too; an error that only
    says that another process is gone becomes the message that names it.
    """

    def __init__(
        self,
        step_seconds: float = 0.0,
        other_seconds: float = 0.0,
        lost_seconds: float = 0.0,
        *,
        interval: float = 1.0,
        say: Callable[[str], None] | None = None,
        leave: Callable[[int], None] = hosts.leave,
    ):
        self._limits = {"step": step_seconds, "other": other_seconds if step_seconds else 0.0}
        self._lost, self._interval = lost_seconds, interval
        self._say, self._leave = say or _to_stderr, leave
        self._steps, self._step = 0, "the start"
        self._reached, self._where, self._since = 0, "the start", time.monotonic()
        self._begun, self._kind = self._since, "other"
        self._beats = 0
        self._heard: dict[int, tuple[Beat, float]] = {}  # process → its newest beat, and when that was new
        self._ended, self._ending = threading.Event(), threading.Lock()

    def __enter__(self) -> Watch:
        self._several = hosts.count() > 1
        self._channel = hosts.Channel() if self._several else None
        self._begin("other", "the start")
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        if self._several or any(self._limits.values()):
            self._thread.start()
        return self

    def step(self, step: int) -> None:
        """Step number `step` begins, and what came before has ended."""
        self._step = f"step {step}"
        self._begin("step" if self._steps else "other", f"{self._step}, prompts")
        self._steps += 1

    def other(self, what: str) -> None:
        """Something that is no step begins: an evaluation, the end."""
        self._begin("other", what)

    def reach(self, point: str) -> None:
        """The step that began has come to `point`."""
        self._move(f"{self._step}, {point}")

    @property
    def where(self) -> str:
        """The last reached point: "step 3, verify"."""
        return self._where

    def _begin(self, kind: str, where: str) -> None:
        self._kind, self._begun = kind, time.monotonic()
        self._move(where)
        if self._limits[kind]:  # where native code holds the interpreter, no Python thread runs: this one is native too
            faulthandler.dump_traceback_later(self._limits[kind] + 30, exit=True, file=sys.__stderr__)
        elif any(self._limits.values()):
            faulthandler.cancel_dump_traceback_later()

    def _move(self, where: str) -> None:
        self._reached, self._where, self._since = self._reached + 1, where, time.monotonic()

    # --- the thread ---

    def _run(self) -> None:
        shortest = min((limit for limit in self._limits.values() if limit), default=self._interval)
        while not self._ended.wait(min(self._interval, shortest / 4)):
            self._look()

    def _look(self) -> None:
        if self._several:
            self._exchange()
            for process, text in self._channel.read("failed").items():
                if process != hosts.index():
                    self._follow(process, json.loads(text))
            for process, (beat, when) in self._heard.items():
                silent = time.monotonic() - when
                if self._lost and silent > self._lost:
                    self._lose(process, beat, silent)
        limit = self._limits[self._kind]
        if limit and time.monotonic() - self._begun > limit:
            self._bark(limit)

    def _exchange(self) -> None:
        self._beats += 1
        own = Beat(socket.gethostname(), self._beats, self._reached, self._where, time.monotonic() - self._since)
        self._channel.set(f"beats/{hosts.index()}", json.dumps(own))
        for process, text in self._channel.read("beats").items():
            beat = Beat(*json.loads(text))
            if process != hosts.index() and (process not in self._heard or self._heard[process][0].beat != beat.beat):
                self._heard[process] = beat, time.monotonic()

    def _bark(self, limit: float) -> None:
        """The step has not ended in time."""
        key = f"config.watchdog.{self._kind}_seconds"
        text = f"{hosts.label()}: {self._where.partition(',')[0]} did not end within {limit:g} s ({key})\n"
        text += f"{self.table()}\nThe stacks of {hosts.label()}:"
        self._end(STUCK, text)

    def table(self) -> str:
        """The last reached point of every process, one line each; those that are behind the others are marked."""
        now = time.monotonic()
        own = Beat(socket.gethostname(), self._beats, self._reached, self._where, now - self._since)
        known = {hosts.index(): (own, now), **self._heard}
        least, most = (pick(beat.reached for beat, _ in known.values()) for pick in (min, max))
        lines = []
        for process, (beat, when) in sorted(known.items()):
            behind = "   ← behind" if beat.reached == least < most else ""
            seconds = beat.seconds + now - when
            lines.append(f"  {hosts.label(process, beat.host)}: {beat.where}, for {seconds:.0f} s{behind}")
        return "\n".join(lines)

    def _lose(self, process: int, beat: Beat, silent: float) -> None:
        name = hosts.label(process, beat.host)
        self._end(LOST, f"{name} is gone: not heard of for {silent:.0f} s, last reached point: {beat.where}. {AGAIN}")

    def _follow(self, process: int, failure: dict) -> None:
        """Another process has said that it ends, and why."""
        self._end(
            failure["status"] if failure["status"] == STUCK else LOST,
            f"{hosts.label(process, failure['host'])} failed at {failure['where']}: {failure['text']}\n"
            f"{hosts.label()} ends with it, at {self._where}. {AGAIN}",
        )

    def _end(self, status: int, text: str) -> None:
        if not self._ending.acquire(blocking=False):  # the other thread is at it
            return self._ended.wait(60)
        self._say(text)
        if status == STUCK:
            with contextlib.suppress(OSError, ValueError):  # a stderr that is no file
                faulthandler.dump_traceback(file=sys.__stderr__)
            self._say(AGAIN)
        if self._several:
            self.tell(status, text.partition("\n")[0])
        self._leave(status)

    # --- an error that leaves the context ---

    def tell(self, status: int, text: str) -> None:
        """Tells the others that this process ends, and why. The first, which keeps the store, waits until they know."""
        failure = {"status": status, "host": socket.gethostname(), "where": self._where, "text": text}
        self._channel.set(f"failed/{hosts.index()}", json.dumps(failure))
        deadline = time.monotonic() + 10 * self._interval
        while hosts.first() and time.monotonic() < deadline:
            if len(self._channel.read("failed")) == hosts.count():
                time.sleep(self._interval / 2)  # the time to read it and go
                return
            time.sleep(self._interval / 4)

    def __exit__(self, kind, error, _) -> None:
        if self._several and error is not None and not isinstance(error, (hosts.OnEveryHost, Stopped)):
            if isinstance(error, jax.errors.JaxRuntimeError):
                self._blame()
            self._ended.set()
            status = 2 if isinstance(error, (ValueError, OSError, ImportError)) else 1
            self.tell(status, f"{type(error).__name__}: {error}")
        self._ended.set()
        faulthandler.cancel_dump_traceback_later()
        if self._thread.is_alive():
            self._thread.join()

    def _blame(self) -> None:
        """A collective failed: is it because another process is gone? The thread follows one that has said why."""
        deadline = time.monotonic() + 8 * self._interval
        while time.monotonic() < deadline:
            time.sleep(self._interval / 4)
            for process, (beat, when) in dict(self._heard).items():
                if time.monotonic() - when > 5 * self._interval:
                    self._lose(process, beat, time.monotonic() - when)


def _to_stderr(text: str) -> None:
    print(f"rlvr: {text}", file=sys.stderr, flush=True)


class Stop:
    """`with Stop(grace) as stop`: SIGTERM does not end the process, it sets `stop.asked`. Where the run has not ended
    by itself `grace_seconds` later, it is ended, with status 75 and what `late()` says. Only a main thread can listen.
    """

    def __init__(self, grace_seconds: float, late: Callable[[], str] = str, leave: Callable[[int], None] = hosts.leave):
        self.asked = False
        self.late = late
        self._grace, self._leave = grace_seconds, leave
        self._ended = threading.Event()
        self._listens = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Stop:
        if self._listens:
            # The main thread may be waiting for a device when the signal comes: a byte in a pipe wakes another.
            self._read, self._write = os.pipe()
            os.set_blocking(self._write, False)
            self._before = signal.signal(signal.SIGTERM, lambda *_: None), signal.set_wakeup_fd(self._write)
            threading.Thread(target=self._wait, name="stop", daemon=True).start()
        return self

    def _wait(self) -> None:
        while (number := os.read(self._read, 1)) and number[0] != signal.SIGTERM:
            pass
        if not number:  # closed: the run has ended
            os.close(self._read)
            return
        self.asked = True
        if not self._ended.wait(self._grace) and not self._ended.is_set():
            _to_stderr(f"{hosts.label()}: SIGTERM, and after {self._grace:g} s {self.late()}. {AGAIN}")
            self._leave(STOPPED)
        os.close(self._read)

    def __exit__(self, *_) -> None:
        self._ended.set()
        if self._listens:
            signal.set_wakeup_fd(self._before[1])
            signal.signal(signal.SIGTERM, self._before[0])
            os.close(self._write)
