"""How many updates the lab makes in a second on one core, and what a table costs to compile.

    .venv/bin/python tests/bench/lab.py

The job is that of a prototype which took 0.16 s for 100 updates on one core of another machine (an AMD EPYC, its runs
sampled and differentiated in one pass and had no ratio, clip or memory): 16 prompts × 8 completions of up to 16 tokens,
a gated recurrent unit of about 7,000 parameters. One thread, so the numbers are those of one core.
"""

from __future__ import annotations

import os

os.environ["NPROC"] = "1"  # what XLA's CPU client takes the size of its thread pool from
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import datetime
import statistics
import time

from rlvr_jax.compiles import CompileCounter
from rlvr_jax.config import set_key
from rlvr_jax.lab import lab_defaults, run_block
from rlvr_jax.workdir import environment

ARMS = ("grpo", "grpo_no_std", "balanced", "dr_grpo")
STEPS, ROUNDS, WARM = 100, 5, 1
PROTOTYPE = 0.16


def configs(arms, kinds, seed: int):
    made = []
    for kind in kinds:
        for arm in arms:
            config = lab_defaults(arm)
            changes = {"steps": STEPS, "seed": seed, "optimizer.kind": kind, "warm_start.updates": WARM}
            for key, value in changes.items():
                set_key(config, key, value)
            made.append(config)
    return made


def measure(arms, kinds) -> tuple[float, float, int]:
    """(seconds per 100 updates of one run: median over rounds; seconds to compile; programs)."""
    with CompileCounter() as compiles:
        run_block(configs(arms, kinds, 0), configs(arms, kinds, 0)[0])
        programs, seconds = compiles.take()
    laps = []
    for seed in range(1, ROUNDS + 1):
        block = configs(arms, kinds, seed)
        start = time.perf_counter()
        run_block(block, block[0])
        laps.append((time.perf_counter() - start) / len(block))
    return statistics.median(laps), seconds, programs


def main() -> None:
    here = environment()
    print(f"{here['processor']}, one core, commit {here['commit']}, jax {here['jax']}, {datetime.date.today()}")
    print(f"100 updates of one run, one core; prototype: {PROTOTYPE} s on another machine")
    print(f"{'runs in the block':34s}{'s / 100 updates':>16s}{'updates/s':>11s}{'× prototype':>13s}{'compile s':>11s}")
    for label, arms, kinds in (
        ("1 arm, sgd", ARMS[:1], ("sgd",)),
        ("4 arms, sgd", ARMS, ("sgd",)),
        ("4 arms, sgd + matched + adam", ARMS, ("sgd", "matched", "adam")),
    ):
        seconds, compiling, programs = measure(arms, kinds)
        assert programs == 1, f"{programs} programs for one block"
        print(
            f"{label:34s}{seconds:16.3f}{100 / seconds:11.0f}{seconds / PROTOTYPE:13.2f}{compiling:11.1f}", flush=True
        )


if __name__ == "__main__":
    main()
