"""Rows summed by step and prompt: all that the split of the length curve needs, in memory that rows do not fill.

A cell is (step, prompt); it holds how many completions of each kind it has and their total length. Kinds:
right and ended, right and cut, wrong and ended, wrong and cut; where ends are not known all count as ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from rlvr_jax.diagnose.foreign import TRUNCATED, UNKNOWN, Chunk, Log
from rlvr_jax.metrics.writer import iterate_jsonl

KINDS = ("right, ended", "right, cut", "wrong, ended", "wrong, cut")
MOST_CELLS = 1_000_000  # about 300 MB while they are summed
FEWEST_BUCKETS = 256


class Cells:
    """Sums by step and prompt.

    steps:    i64[cells], ascending
    prompts:  u64[cells], hash of the prompt, ascending within a step
    counts:   f64[cells, 4], completions by kind
    totals:   f64[cells, 4], their lengths summed
    knows_ends: whether every row said how it ended
    merged:   prompts share buckets, since there were more cells than are held
    doubled:  steps of which every row occurs an even number of times
    """

    def __init__(self, most_cells: int = MOST_CELLS):
        self.steps = np.zeros(0, np.int64)
        self.prompts = np.zeros(0, np.uint64)
        self.counts = np.zeros((0, 4))
        self.totals = np.zeros((0, 4))
        self.knows_ends = True
        self.merged = False
        self.source = "prompts"  # what a cluster is: prompts, groups of a step, or steps where their means are all
        self._most, self._shift = most_cells, 0
        self._pending: list[tuple] = []
        self._waiting = 0
        self._parity: dict[int, list[int]] = {}

    def add(self, chunk: Chunk) -> None:
        """Adds rows."""
        kind = 2 * ~chunk.correct + (chunk.finished == TRUNCATED)
        self.knows_ends &= not (chunk.finished == UNKNOWN).any()
        count = np.zeros((len(kind), 4))
        count[np.arange(len(kind)), kind] = 1.0
        self._note_copies(chunk)
        part = _summed(chunk.step, chunk.prompt >> np.uint64(self._shift), count, count * chunk.length[:, None])
        self._pending.append(part)
        self._waiting += len(part[0])
        if self._waiting > self._most // 2:
            self._settle()

    def finish(self) -> Cells:
        """Sums what waits; returns itself.

        Raises:
          ValueError: more steps than can be held.
        """
        self._settle()
        return self

    @property
    def doubled(self) -> list[int]:
        return sorted(step for step, (parity, rows) in self._parity.items() if parity == 0 and rows > 1)

    def _note_copies(self, chunk: Chunk) -> None:
        """The exclusive or of all rows of a step is 0 when each occurs an even number of times."""
        order = np.argsort(chunk.step, kind="stable")
        steps, starts = np.unique(chunk.step[order], return_index=True)
        parities = np.bitwise_xor.reduceat(chunk.content[order], starts)
        rows = np.diff(np.append(starts, len(order)))
        for step, parity, count in zip(steps.tolist(), parities.tolist(), rows.tolist()):
            held = self._parity.setdefault(step, [0, 0])
            held[0] ^= parity
            held[1] += count

    def _settle(self) -> None:
        if not self._pending:
            return
        parts = [(self.steps, self.prompts, self.counts, self.totals), *self._pending]
        self._pending, self._waiting = [], 0
        self._sum(*(np.concatenate(columns) for columns in zip(*parts)))
        while len(self.steps) > self._most:
            if 64 - self._shift <= np.log2(FEWEST_BUCKETS):
                raise ValueError(
                    f"the log has more than {self._most // FEWEST_BUCKETS} steps: too many to hold one by one; choose "
                    "another column with --step"
                )
            by = 1 if self._shift else 40  # hashes fill 64 bits: the first 40 hardly merge anything
            self._shift += by
            self.merged = True
            self._sum(self.steps, self.prompts >> np.uint64(by), self.counts, self.totals)

    def _sum(self, *columns) -> None:
        self.steps, self.prompts, self.counts, self.totals = _summed(*columns)


def gather(chunks: Iterable[Chunk]) -> Cells:
    """The cells of rows."""
    cells = Cells()
    for chunk in chunks:
        cells.add(chunk)
    return cells.finish()


def of_log(log: Log) -> Cells:
    """The cells of a log."""
    cells = gather(log.chunks())
    cells.source = "prompts" if log.names_prompts else "groups"
    return cells


def _summed(steps, prompts, counts, totals) -> tuple:
    order = np.lexsort((prompts, steps))
    steps, prompts = steps[order], prompts[order]
    new = np.ones(len(steps), bool)
    new[1:] = (steps[1:] != steps[:-1]) | (prompts[1:] != prompts[:-1])
    starts = np.flatnonzero(new)
    if not len(starts):
        return steps, prompts, counts, totals
    add = lambda values: np.add.reduceat(values[order], starts, axis=0)
    return steps[starts], prompts[starts], add(counts), add(totals)


def from_metrics(workdir: str | Path) -> Cells:
    """The cells of a run of this project from its metrics.jsonl, one a step.

    Its rollouts.jsonl is a selection, so the means of the whole batches are taken where they stand. They determine
    the sums by kind when outcomes are 0 or 1: share right a, shares cut t and (of the wrong) t_w, and a completion
    that was cut has the configured length.
    Raises:
      ValueError: no step with lengths, or outcomes between 0 and 1, of which the means say too little.
    """
    workdir = Path(workdir)
    config = json.loads((workdir / "config.json").read_text())
    rows = config["prompts_per_step"] * config["group_size"]
    limit = config["sampling"]["completion_length"]
    cells, graded, steps = Cells(), 0, []
    for line in iterate_jsonl(workdir / "metrics.jsonl"):
        found = None if line is None else _kinds(line, rows, limit)
        if found is None:
            continue
        counts, totals, off = found
        graded += off > 1e-3
        steps.append((line["step"], counts, totals))
    if not steps:
        raise ValueError(f"{workdir}: metrics.jsonl has no step with rollout/length")
    if graded:
        raise ValueError(
            f"{workdir}: in {graded} steps the outcomes are not 0 or 1, and means say too little of them; give a log "
            "with every completion"
        )
    steps.sort(key=lambda item: item[0])
    cells.steps = np.asarray([step for step, _, _ in steps], np.int64)
    cells.prompts = np.arange(len(steps), dtype=np.uint64)
    cells.counts = np.stack([counts for _, counts, _ in steps])
    cells.totals = np.stack([totals for _, _, totals in steps])
    cells.source = "steps"
    return cells


def _kinds(line: dict, rows: int, limit: float):
    """(counts by kind, totals by kind, relative disagreement of the mean length) of a step's metrics; None without."""
    get = lambda name: line.get(f"rollout/{name}")
    length, share, cut = get("length"), get("pass@1"), get("truncated")
    if length is None or share is None or cut is None:
        return None
    cut_wrong = (get("truncated_wrong") or 0.0) * (1 - share)
    counts = np.asarray([share - (cut - cut_wrong), cut - cut_wrong, 1 - share - cut_wrong, cut_wrong])
    counts = rows * np.where(counts < 1e-6, 0.0, counts)  # means are of float32
    right = (get("length_correct") or 0.0) * share * rows
    wrong = (get("length_wrong") or 0.0) * (1 - share) * rows
    off = abs((right + wrong) / rows - length) / max(length, 1.0)
    totals = np.asarray([right - counts[1] * limit, counts[1] * limit, wrong - counts[3] * limit, counts[3] * limit])
    return counts, totals, off
