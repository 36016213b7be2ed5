"""One grading process as its parent sees it: pipes that do not block, its priority, its end."""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from rlvr_jax.tasks.grade import HASH_SEED

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class Process:
    """A grading process and what it has been given."""

    def __init__(self, command: Sequence[str]):
        path = os.pathsep.join(filter(None, sys.path))
        self.popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": HASH_SEED, **_ONE_THREAD},
            start_new_session=True,  # ctrl-C is the parent's affair, and its own children end with it
        )
        for pipe in (self.popen.stdin, self.popen.stdout):
            os.set_blocking(pipe.fileno(), False)
        self.ready, self.idle_priority, self.slow = False, False, False
        self.since = time.monotonic()  # when its current item, or itself, was begun
        self.cpu = 0.0  # seconds of a processor that it had used then
        self.items: collections.deque[int] = collections.deque()  # numbers, the one being graded first
        self.to_write = memoryview(b"")
        self.read = bytearray()

    def cpu_seconds(self) -> float | None:
        """Seconds of a processor used, None where the system does not tell."""
        try:
            with open(f"/proc/{self.popen.pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            return (int(fields[11]) + int(fields[12])) / _TICKS
        except (OSError, ValueError, IndexError):
            return None

    def begin(self) -> None:
        self.since = time.monotonic()
        self.cpu = self.cpu_seconds() or 0.0

    def step_back(self) -> None:
        """Takes what the others leave."""
        with contextlib.suppress(OSError, AttributeError):
            os.sched_setscheduler(self.popen.pid, os.SCHED_IDLE, os.sched_param(0))
            self.idle_priority = True

    def come_back(self) -> bool:
        """Among the others again; False where that takes privileges which this process has not."""
        if self.idle_priority:
            try:
                os.sched_setscheduler(self.popen.pid, os.SCHED_OTHER, os.sched_param(0))
            except OSError:
                return False
        self.idle_priority = self.slow = False
        return True

    def kill(self) -> int:
        """Ends the process and its children; returns its exit status."""
        with contextlib.suppress(OSError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.kill()
        for pipe in (self.popen.stdin, self.popen.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        return self.popen.wait()
