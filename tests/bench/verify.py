"""Throughput of grading: the pool beside a plain math-verify loop, and ordinary items around hostile ones.

    python tests/bench/verify.py [ITEMS]

Answers like those of GSM8K (some lines of text, then a boxed number). Each figure is the median of interleaved rounds;
"core" is a second of a processor that the graders used, parent and processes together. The second part needs a
machine that is idle and normal priority: at nice 19 a process at idle priority takes nearly as much as the others.
"""

from __future__ import annotations

import logging
import os
import random
import resource
import statistics
import sys
import time
from pathlib import Path

from rlvr_jax.tasks.grade import Item
from rlvr_jax.tasks.pool import Pool

sys.path.insert(0, str(Path(__file__).parents[1] / "tasks"))
ROUNDS = 3


def made_items(count: int) -> list[Item]:
    draw = random.Random(0)
    items = []
    for _ in range(count):
        a, b, said = draw.randint(2, 5000), draw.randint(2, 5000), draw.randint(0, 1)
        lines = f"There were {a} clips in April.\nIn May there were {b} more.\nSo we add: {a} + {b} = {a + b}.\n" * 3
        items.append(Item(f"{a + b:,}", f"{lines}The final answer is \\boxed{{{a + b + said}}}."))
    return items


def cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    mine, theirs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime


def timed(work) -> tuple[float, float]:
    """(seconds, seconds of a processor)"""
    wall, cpu = time.perf_counter(), cpu_seconds()
    work()
    return time.perf_counter() - wall, cpu_seconds() - cpu


def plain_loop(items: list[Item]) -> None:
    """What one would write with math-verify alone, without its timers."""
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of every call without its timer

    for item in items:
        verify(
            parse(item.answer, parsing_timeout=None), parse(item.completion, parsing_timeout=None), timeout_seconds=None
        )


def pooled(items: list[Item], workers: int) -> None:
    with Pool("math", workers=workers) as pool:
        verdicts = pool.grade(items)
    assert all(verdict.valid for verdict in verdicts)


def throughput(count: int) -> None:
    items, few = made_items(count), made_items(max(count // 20, 50))
    plain_loop(few[:10])  # its imports
    cores = len(os.sched_getaffinity(0))
    rounds = {"math-verify, one process": [], "pool, 1 process": [], f"pool, {cores} processes": []}
    for _ in range(ROUNDS):
        for name, work, size in zip(
            rounds,
            (lambda: plain_loop(few), lambda: pooled(items, 1), lambda: pooled(items, cores)),
            (len(few), count, count),
        ):
            wall, cpu = timed(work)
            rounds[name].append((size / wall, size / cpu))
    base = statistics.median(rate for _, rate in rounds["math-verify, one process"])
    print(f"{count} items like GSM8K's, the start of the processes included")
    print("| | items a second | a second of a core | × math-verify (core) |\n|---|---|---|---|")
    for name, rates in rounds.items():
        wall, cpu = (statistics.median(values) for values in zip(*rates))
        print(f"| {name} | {wall:,.0f} | {cpu:,.0f} | {cpu / base:.1f} |")


def around_hostile(count: int) -> None:
    """Ordinary items of about 2 ms each, alone and around eight that spin until they are killed: when were the
    ordinary ones done? The share of throughput that is kept."""
    ordinary = [Item("x", f"spin 0.002 {i}") for i in range(count)]
    spread = count // 8

    def last_ordinary(hostile: bool) -> float:
        items = [
            item for i in range(8) for item in ([Item("1", "spin 600")] * hostile + ordinary[i * spread :][:spread])
        ]
        done = []
        with Pool("pool_graders:spinning", time_limit=4.0) as pool:
            pool.grade([Item("1", "1")] * 100)  # started
            settle = pool._settle
            pool._settle = lambda n, v: (
                done.append(time.perf_counter()) if items[n].answer == "x" else None,
                settle(n, v),
            )
            start = time.perf_counter()
            pool.grade(items)
        return done[-1] - start

    kept, memory = [], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(ROUNDS):
        alone, around = last_ordinary(False), last_ordinary(True)
        kept.append(alone / around)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    print(f"{count} ordinary items around 8 that never end: {statistics.median(kept):.0%} of the throughput is kept")
    print(f"({', '.join(f'{k:.0%}' for k in kept)}); the parent's memory grew by {grown / 1024:.1f} MiB")


if __name__ == "__main__":
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    throughput(size)
    around_hostile(size)
