"""The entries of a data set of reasoning-gym as JSON lines: python -m rlvr_jax.tasks.entries NAME SETTINGS SEED SIZE

A process of its own (see `rlvr_jax.tasks.gym`): its hashes are those of the grading processes.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Mapping

from rlvr_jax.tasks.gym import make_dataset


def _level(difficulty) -> float:
    """One number for what an entry says of its difficulty: the mean of its numbers, of a range the upper end."""
    values = difficulty.values() if isinstance(difficulty, Mapping) else [difficulty]
    values = [max(v) if isinstance(v, list | tuple) and v else v for v in values]
    values = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return sum(values) / len(values) if values else 0.0


def main(name: str, settings: str, seed: int, size: int) -> None:
    """Writes question, answer, difficulty and index of every entry to standard output."""
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what a data set prints is no entry
    dataset = make_dataset(name, ast.literal_eval(settings), seed, size)
    for index in range(size):
        entry = dataset[index]
        difficulty = _level((entry.get("metadata") or {}).get("difficulty"))
        row = {"question": entry["question"], "answer": str(entry["answer"]), "difficulty": difficulty, "index": index}
        out.write(json.dumps(row) + "\n")
    out.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
