"""Generated sums ("3+5=" → "8") with a difficulty dial, for a tiny policy trained from scratch."""

from __future__ import annotations

from rlvr_jax.tasks.task import TASKS, GeneratedTask, Problem, Task
from rlvr_jax.tasks.verify import verify_number


class Arithmetic(GeneratedTask):
    """All sums a + b with 0 ≤ a, b ≤ largest; the completion is the bare number, then the end token.

    a+b and b+a are in the same split. Difficulty: digits of the result plus its carries.
    """

    name = "arithmetic"
    grader = "bare_number"

    def __init__(self, largest: int, held_out: int):
        self.largest = largest
        super().__init__(held_out)

    def families(self) -> list[list[Problem]]:
        count = self.largest + 1
        return [
            [
                Problem(x * count + y, f"{x}+{y}=", str(a + b), float(_difficulty(a, b)))
                for x, y in dict.fromkeys([(a, b), (b, a)])
            ]
            for a in range(count)
            for b in range(a, count)
        ]

    def solution(self, problem: Problem) -> str:
        return problem.answer

    def verify(self, answer, completion, finished):
        return verify_number(answer, completion, finished)


def _difficulty(a: int, b: int) -> int:
    carries = 0
    modulus = 10
    while modulus <= 10 * max(a, b):
        carries += a % modulus + b % modulus >= modulus
        modulus *= 10
    return len(str(a + b)) + carries


@TASKS.register
def arithmetic(digits: int = 1, largest: int | None = None, held_out: int | None = None) -> Task:
    """Sums of two numbers of up to `digits` digits (1 or 2), or up to `largest` (1 … 199), the finer dial.

    One digit: 100 problems; two: 10,000. `held_out` None: a fifth of them, at most 200.
    """
    if digits not in (1, 2):
        raise ValueError(f"task=arithmetic: digits={digits!r}; choose from [1, 2]")
    largest = 10**digits - 1 if largest is None else largest
    if not isinstance(largest, int) or isinstance(largest, bool) or not 1 <= largest <= 199:
        raise ValueError(f"task=arithmetic: largest={largest!r}; choose a whole number in 1 … 199")
    count = (largest + 1) ** 2
    return Arithmetic(largest, max(1, min(200, count // 5)) if held_out is None else held_out)
