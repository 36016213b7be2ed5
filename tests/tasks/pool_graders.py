"""Verifiers that misbehave, for the tests of the pool: what they do is written in the completion."""

import os
import signal
import sys
import time

from rlvr_jax.verdict import Verdict

_SEEN = []


def misbehave(answer, completion):
    """Does what the completion says; any other completion is compared with the answer."""
    word, _, argument = completion.partition(" ")
    if word == "spin":
        end = time.process_time() + float(argument)
        while time.process_time() < end:
            pass
    elif word == "sleep":
        time.sleep(float(argument))
    elif word == "tower":
        return 9 ** (9**9) == 1  # one call into C for hours: no signal handler of Python's would run
    elif word == "unblock":
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        time.sleep(float(argument))
    elif word == "memory":
        return len(bytearray(int(argument) << 20)) == 0
    elif word == "raise":
        raise KeyError(argument)
    elif word == "exit":
        os._exit(int(argument))
    elif word == "print":
        print("0.0 noise", flush=True)
        os.write(1, b"[0, 1.0, null, null]\n")
    elif word == "child":
        if os.fork() == 0:
            time.sleep(float(argument))
            os._exit(0)
        time.sleep(float(argument))
    elif word == "modules":
        return Verdict(1.0, " ".join(sorted(m for m in sys.modules if m in ("jax", "jaxlib", "flax"))), "")
    elif word == "pid":
        return Verdict(1.0, f"{os.getpid()} {len(_SEEN)}", "")
    elif word == "outcome":
        return float(argument)
    return completion == answer


def spinning(answer, completion):
    """ "spin S …": busy for S seconds of its processor, then right."""
    word, *arguments = completion.split()
    end = time.process_time() + (float(arguments[0]) if word == "spin" else 0.0)
    while time.process_time() < end:
        pass
    return True
