"""What a peer's script shares with ours: files of arrays, random rows, and answering questions line by line.

Only numpy and the standard library, because it is imported in the peers' environments too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import numpy as np

# ---- files: {batch: {array: values}} and a list of cases {"name", "batch", "settings"}


def write(path, batches, cases):
    arrays = {f"{batch}/{name}": values for batch, fields in batches.items() for name, values in fields.items()}
    np.savez(path, cases=np.array(json.dumps(cases)), **arrays)


def read(path):
    """(batches, cases) as they were written."""
    with np.load(path) as file:
        batches = {}
        for key in file.files:
            if key != "cases":
                batch, name = key.split("/")
                batches.setdefault(batch, {})[name] = file[key]
        return batches, json.loads(str(file["cases"]))


# ---- random rows, the same in every process


def random_rows(groups, size, tokens, seed=0):
    """Rewards [P, G], and [B, T] log-probabilities with their masks; half of the tokens are padding."""
    rng = np.random.default_rng(seed)
    rows = groups * size
    lengths = rng.integers(1, tokens + 1, rows)
    lengths[0] = tokens
    policy = -rng.standard_exponential((rows, tokens), dtype=np.float32)
    return {
        "rewards": (rng.random((groups, size)) < rng.random((groups, 1))).astype(np.float32),
        "lengths": lengths,
        "mask": np.arange(tokens)[None] < lengths[:, None],
        "policy": policy,
        "old": policy + np.float32(0.1) * rng.standard_normal((rows, tokens), dtype=np.float32),
        "advantages": rng.standard_normal(rows, dtype=np.float32),
    }


# ---- measuring


class Peer:
    """A peer's process, our side of `--serve`."""

    def __init__(self, python, script, **rows):
        self.process = subprocess.Popen(
            [str(python), str(script), "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"},
        )
        self.version = self.ask(rows=rows)

    def ask(self, **question):
        """The answer; the first question of a kind also prepares it, outside the time that it answers."""
        print(json.dumps(question), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args[1]} ended with {self.process.wait()} at {question}")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def resident(field):
    """A field of this process's memory status, MiB."""
    with open("/proc/self/status") as file:
        return next(float(line.split()[1]) / 1024 for line in file if line.startswith(field))


def compiled_memory(compiled):
    """MiB that a program compiled by XLA allocates: scratch and results."""
    sizes = compiled.memory_analysis()
    return (sizes.temp_size_in_bytes + sizes.output_size_in_bytes) / 2**20


def measure(call):
    """(seconds, peak of resident memory above what was resident before, MiB; None where the system cannot say)."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # forget the old peak
        before = resident("VmRSS")
    except OSError:
        before = None
    began = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - began
    peak = None if before is None else resident("VmHWM") - before
    del result
    return seconds, peak


# ---- the peer's side


def run_peer(make, version):
    """`PEER inputs outputs` answers a file of cases; `PEER --serve` answers questions on its standard input.

    `make(batch, settings)` gives an object with `answer()` → arrays, and, for timing, `advantages()` and `loss()`.
    """
    if sys.argv[1:] != ["--serve"]:
        batches, cases = read(sys.argv[1])
        found = {case["name"]: make(batches[case["batch"]], case["settings"]).answer() for case in cases}
        write(sys.argv[2], found, [{"version": version}])
        return
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the library prints is no answer
    rows = peer = last = None
    for line in sys.stdin:
        question = json.loads(line)
        if "rows" in question:
            rows, reply = random_rows(**question["rows"]), version
        else:
            phase = question["phase"]
            if question != last:
                peer = None  # frees the arrays of the last one
                peer, last = make(rows, question["settings"], timing=True), question
                getattr(peer, phase)()  # compiles, allocates
            reply = measure(getattr(peer, phase))
            if phase == "loss" and hasattr(peer, "memory"):
                reply = reply[0], peer.memory()
        print(json.dumps(reply), file=answers, flush=True)
