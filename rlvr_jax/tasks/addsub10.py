"""Sums and differences of whole numbers up to 10 ("What is 9 - 7?"), for a small language model."""

from __future__ import annotations

import itertools

from rlvr_jax.tasks.task import TASKS, GeneratedTask, Problem, Task
from rlvr_jax.tasks.verify import verify_answer_line

_LARGEST = 10


class AddSub10(GeneratedTask):
    """Operands 0 to 10, no negative results: 121 sums and 66 differences, 187 problems.

    One is the example. a + b and b + a are in the same split: by default 50 held out, 136 to train on.
    Difficulty: the result of a sum, the first operand of a difference.
    """

    name = "addsub10"
    grader = "answer_line"
    example = ("What is 9 - 7?", "Answer: 2")

    def families(self) -> list[list[Problem]]:
        pairs = list(itertools.product(range(_LARGEST + 1), repeat=2))
        sums = [(f"What is {a} + {b}?", a + b, a + b, (min(a, b), max(a, b))) for a, b in pairs]
        differences = [(f"What is {a} - {b}?", a - b, a, f"{a} - {b}") for a, b in pairs if a >= b]
        families = {}
        for i, (prompt, result, difficulty, family) in enumerate(sums + differences):
            if prompt != self.example[0]:
                problem = Problem(i, prompt, str(result), float(difficulty))
                families.setdefault(family, []).append(problem)
        return list(families.values())

    def solution(self, problem: Problem) -> str:
        return f"Answer: {problem.answer}"

    def verify(self, answer, completion, finished):
        return verify_answer_line(answer, completion, finished)


@TASKS.register
def addsub10(held_out: int = 50) -> Task:
    """Sums and differences within 10; `held_out` problems are never trained on."""
    return AddSub10(held_out)
