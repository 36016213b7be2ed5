"""Rows of a log as the groups that an estimator sees: one padded batch a step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from rlvr_jax.diagnose.foreign import TRUNCATED, UNKNOWN, Chunk

MOST_ROWS = 1_000_000  # more, and only every second step is kept, then every fourth, …
MOST_PADDED = 50_000_000  # places of the padded arrays


class Batches(NamedTuple):
    """Steps in order; a place that holds no response is not valid.

    step:      i64[S]
    outcome:   f32[S, P, G], in [0, 1]: the reward where all rewards lie there, else 1 where correct
    reward:    f32[S, P, G], as logged
    correct:   bool[S, P, G]
    length:    f32[S, P, G]
    finished:  bool[S, P, G], true where not known
    valid:     bool[S, P, G]
    prompt:    i32[S, P], 0 … prompts − 1
    knows_ends: whether every row said how it ended
    every:     1: all steps of the log, n: every n-th
    """

    step: np.ndarray
    outcome: np.ndarray
    reward: np.ndarray
    correct: np.ndarray
    length: np.ndarray
    finished: np.ndarray
    valid: np.ndarray
    prompt: np.ndarray
    knows_ends: bool
    every: int

    @property
    def prompts(self) -> int:
        """Different prompts."""
        return int(self.prompt.max()) + 1

    @property
    def group_size(self) -> int:
        """The commonest size of a group."""
        sizes = self.valid.sum(-1)
        return int(np.bincount(sizes[sizes > 0]).argmax())


def to_batches(chunks: Iterable[Chunk], most_rows: int = MOST_ROWS) -> Batches:
    """All steps of a log, or every n-th of a long one.

    Raises:
      ValueError: groups so unequal that padding them fills memory, which a wrong prompt column does.
    """
    held: list[Chunk] = []
    ranks: dict[int, int] = {}
    rows, every, ends = 0, 1, True
    for chunk in chunks:
        ends &= not (chunk.finished == UNKNOWN).any()
        for step in np.unique(chunk.step).tolist():
            ranks.setdefault(step, len(ranks))
        held.append(_thin(chunk, ranks, every))
        rows += len(held[-1].step)
        while rows > most_rows and len(ranks) > every:
            every *= 2
            held = [_thin(Chunk(*(np.concatenate(columns) for columns in zip(*held))), ranks, every)]
            rows = len(held[0].step)
    table = Chunk(*(np.concatenate(columns) for columns in zip(*held)))
    return _padded(table, ends, every)


def _thin(chunk: Chunk, ranks: dict[int, int], every: int) -> Chunk:
    if every == 1:
        return chunk
    steps, place = np.unique(chunk.step, return_inverse=True)
    keep = np.asarray([ranks[step] % every == 0 for step in steps.tolist()])[place]
    return Chunk(*(column[keep] for column in chunk))


def _padded(table: Chunk, ends: bool, every: int) -> Batches:
    order = np.lexsort((np.arange(len(table.step)), table.group, table.step))
    table = Chunk(*(column[order] for column in table))
    new_step = np.append(True, table.step[1:] != table.step[:-1])
    new_group = new_step | np.append(True, table.group[1:] != table.group[:-1])
    starts = np.flatnonzero(new_group)
    in_group = np.arange(len(table.step)) - np.repeat(starts, np.diff(np.append(starts, len(table.step))))
    step = np.cumsum(new_step) - 1
    group = np.cumsum(new_group) - 1
    group -= group[np.flatnonzero(new_step)][step]
    shape = (step.max() + 1, group.max() + 1, in_group.max() + 1)
    if np.prod(shape, dtype=float) > max(MOST_PADDED, 4 * len(step)):
        raise ValueError(
            f"the largest group has {shape[2]} completions and the largest step {shape[1]} groups: too unequal to be "
            "groups of one prompt each; name the columns with --prompt and --step"
        )
    place = (step, group, in_group)

    def spread(values, dtype, empty=0):
        full = np.full(shape, empty, dtype)
        full[place] = values
        return full

    within = table.reward.min() >= 0 and table.reward.max() <= 1
    _, prompt = np.unique(table.prompt, return_inverse=True)
    prompts = np.zeros(shape[:2], np.int32)
    prompts[place[:2]] = prompt
    return Batches(
        step=table.step[new_step],
        outcome=spread(table.reward if within else table.correct, np.float32),
        reward=spread(table.reward, np.float32),
        correct=spread(table.correct, bool),
        length=spread(table.length, np.float32),
        finished=spread(table.finished != TRUNCATED, bool, True),
        valid=spread(True, bool),
        prompt=prompts,
        knows_ends=ends,
        every=every,
    )
