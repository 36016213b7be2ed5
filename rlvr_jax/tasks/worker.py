"""One grading process of `rlvr_jax.tasks.pool`: python -m rlvr_jax.tasks.worker VERIFIER MEMORY_MB TIME_LIMIT

Reads lines of JSON, each a list of [number, answer, completion, finished], and writes one line for each item:
[number, outcome, extracted, reason]. What a verifier prints goes to standard error, never into the answers. No jax.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys

from rlvr_jax.tasks.grade import MEMORY, READY, Item, grade, make_check, verifier_is_ours
from rlvr_jax.tasks.guard import refuse_side_effects

GRACE = 0.5  # seconds beyond the limit after which a process ends itself, should nobody do it


def _limit_memory(megabytes: int) -> None:
    """Asking for more than `megabytes` beside what is mapped already raises MemoryError; a crash writes no core."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if megabytes:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        size = (megabytes << 20) + _mapped()
        resource.setrlimit(resource.RLIMIT_AS, (size if hard < 0 else min(size, hard), hard))


def _mapped() -> int:
    """Bytes of address space in use: on machines with many processors the libraries alone reserve gigabytes."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 1 << 30


def _own_output():
    """The pipe to the parent, taken out of the reach of print: descriptor 1 becomes standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    return answers


def main(verifier: str, megabytes: int, seconds: float) -> int:
    requests = os.fdopen(os.dup(0), "r", encoding="ascii")
    answers = _own_output()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def say(value) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    try:
        check = make_check(verifier)
        _limit_memory(megabytes)
        if verifier_is_ours(verifier):
            refuse_side_effects()
    except Exception as error:  # told to the parent, which raises it
        say({"error": f"{type(error).__name__}: {error}"})
        return 1
    say(READY)
    for line in requests:
        for number, answer, completion, finished in json.loads(line):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, whatever it is doing
            signal.setitimer(signal.ITIMER_REAL, seconds + GRACE)
            try:
                outcome, extracted, reason = grade(check, Item(answer, completion, finished))
                extracted = None if extracted is None else str(extracted)[:2000]
            except MemoryError:
                signal.setitimer(signal.ITIMER_REAL, 0)
                say([number, 0.0, None, MEMORY])
                return 0  # what is left of the memory is in pieces: a new process goes on
            signal.setitimer(signal.ITIMER_REAL, 0)
            say([number, outcome, extracted, str(reason)[:2000]])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
