"""Which of two numbers is larger: a task on which a small language model learns in a few minutes."""

from __future__ import annotations

import itertools

from rlvr_jax.tasks.task import TASKS, GeneratedTask, Problem, Task
from rlvr_jax.tasks.verify import verify_answer_line

_LOW, _HIGH = 10, 99


def _question(a: int, b: int) -> str:
    return f"Which number is larger, {a} or {b}?"


class Compare(GeneratedTask):
    """Two distinct numbers from 10 to 99: 8,010 ordered problems, less the example's pair (48, 11).

    A pair and its swap are in the same split: by default 200 problems held out, 7,808 to train on.
    Difficulty: 0 where the tens differ, 1 where only the units do.
    """

    name = "compare"
    grader = "answer_line"
    example = (_question(48, 11), "Answer: 48")

    def families(self) -> list[list[Problem]]:
        numbers = range(_LOW, _HIGH + 1)
        ids = {pair: i for i, pair in enumerate(itertools.permutations(numbers, 2))}
        return [
            [Problem(ids[pair], _question(*pair), str(b), float(a // 10 == b // 10)) for pair in ((a, b), (b, a))]
            for a, b in itertools.combinations(numbers, 2)  # a < b
            if (a, b) != (11, 48)
        ]

    def solution(self, problem: Problem) -> str:
        return f"Answer: {problem.answer}"

    def verify(self, answer, completion, finished):
        return verify_answer_line(answer, completion, finished)


@TASKS.register
def compare(held_out: int = 200) -> Task:
    """Which of two numbers is larger; `held_out` problems are never trained on."""
    return Compare(held_out)
