"""The jobs that are timed, and how a system's process is asked to do them, line by line.

Only numpy and the standard library, because it is imported in the peers' environments too.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import resource
import sys
import time
import traceback

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Geometry:
    """The sizes of a decoder with grouped heads, a gated feed-forward part and a tied head; weights are random."""

    vocabulary: int = 49_152
    width: int = 576
    layers: int = 30
    heads: int = 9
    kv_heads: int = 3
    head_size: int = 64
    hidden: int = 1536

    @property
    def block_weights(self) -> int:
        """Weights of the matrix products of all layers."""
        attention = self.width * self.head_size * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.width * self.hidden)

    @property
    def head_weights(self) -> int:
        return self.vocabulary * self.width


SMOLLM2 = Geometry()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """`prompts` prompts of `prompt_length` tokens, each with `group` completions of up to `length` tokens.

    `kind` is "sample" or "update". With `mean` > 0 the completions' lengths are drawn, see `completion_lengths`;
    with 0 all have `length` tokens. `shared` says that a group's rows have one prompt: an update may compute it once.
    """

    kind: str
    prompts: int
    group: int = 1
    prompt_length: int
    length: int
    mean: float = 0.0
    shared: bool = False

    @property
    def rows(self) -> int:
        return self.prompts * self.group


JOBS = {
    "sample16": Job(kind="sample", prompts=16, prompt_length=64, length=64),
    "sample64": Job(kind="sample", prompts=64, prompt_length=64, length=64),
    "realistic": Job(kind="sample", prompts=16, group=8, prompt_length=64, length=256, mean=48.0, shared=True),
    "update": Job(kind="update", prompts=8, prompt_length=64, length=128),
    "update_shared": Job(kind="update", prompts=1, group=8, prompt_length=64, length=128, shared=True),
    "update_demo": Job(kind="update", prompts=8, group=8, prompt_length=51, length=12, shared=True),
}


def completion_lengths(job: Job) -> np.ndarray:
    """i64[P, G]: drawn once from a geometric distribution of mean `mean` and cut at `length`, or all `length`."""
    shape = (job.prompts, job.group)
    if not job.mean:
        return np.full(shape, job.length)
    return np.minimum(np.random.default_rng(1).geometric(1 / job.mean, shape), job.length)


def useful_tokens(job: Job) -> int:
    """Tokens that a job is wanted for: those of the completions when sampling; in an update, those of all rows as
    they are without padding or sharing, so that systems that share are compared on the same count."""
    completions = int(completion_lengths(job).sum())
    return completions if job.kind == "sample" else completions + job.rows * job.prompt_length


def prompt_tokens(job: Job, geometry: Geometry) -> np.ndarray:
    """i64[P, N]; the first 3 ids and the last are left to whoever gives them a meaning."""
    return np.random.default_rng(2).integers(3, geometry.vocabulary - 1, (job.prompts, job.prompt_length))


def update_rows(job: Job, geometry: Geometry) -> dict[str, np.ndarray]:
    """prompt i64[B, N], completion i64[B, T], advantage f32[B] (none is 0), old log-probabilities f32[B, T]."""
    rng = np.random.default_rng(3)
    return {
        "prompt": np.repeat(prompt_tokens(job, geometry), job.group, axis=0),
        "completion": rng.integers(3, geometry.vocabulary - 1, (job.rows, job.length)),
        "advantage": rng.standard_normal(job.rows).astype(np.float32),
        "old": np.full((job.rows, job.length), -np.log(geometry.vocabulary), np.float32),
    }


# ---- a system's side


def serve(set_up, version: str) -> None:
    """Answers questions on standard input with one JSON line each, until it is closed.

    A question with a job sets it up: `set_up(job, name, lengths, geometry)` → a call that does the job once with a
    seed and returns a dict of what it found; the weights and compiled programs of the job before are freed. Any other
    question calls it. Between questions the process waits and uses no core.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    print(json.dumps({"version": version}), file=answers, flush=True)
    call, highest = None, 0.0
    for line in sys.stdin:
        question = json.loads(line)
        try:
            if "job" in question:
                call = None
                gc.collect()
                began = time.perf_counter()
                job, geometry = Job(**question["job"]), Geometry(**question["geometry"])
                call = set_up(job, question["name"], np.asarray(question["lengths"]), geometry)
                reply = {"seconds": time.perf_counter() - began}
            else:
                highest = max(highest, peak_gib())
                forget_peak()
                began = time.perf_counter()
                found = call(question["seed"])
                seconds = time.perf_counter() - began
                highest = max(highest, peak_gib())
                reply = {"seconds": seconds, "peak_gib": highest, "call_gib": peak_gib(), **found}
        except Exception as error:
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
        print(json.dumps(reply), file=answers, flush=True)


def peak_gib() -> float:
    """Most memory that was resident since the process began or the peak was forgotten, GiB."""
    try:
        with open("/proc/self/status") as file:
            return next(float(line.split()[1]) for line in file if line.startswith("VmHWM")) / 2**20
    except (OSError, StopIteration):
        unit = 2**30 if sys.platform == "darwin" else 2**20
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def forget_peak() -> None:
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass
