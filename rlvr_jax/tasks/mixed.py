"""Several tasks as one: each problem is asked and graded as its own task does."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence

from rlvr_jax.tasks.task import SPLITS, TASKS, Problem, Task, make_task


class MixedTask(Task):
    """Problem ids count through the members in order. An answer is "I|answer", I the place of its task.

    weights: of the members' shares of the training prompts (`rlvr_jax.mixture.Mixture`), or None: by their sizes.
    """

    name = "mixed"

    def __init__(self, members: Sequence[Task], weights: Sequence[float] | None):
        self.members, self.weights = list(members), weights
        self._starts = [sum(member.size for member in self.members[:i]) for i in range(len(self.members))]
        self.size = sum(member.size for member in self.members)
        self._splits = {split: [] for split in SPLITS}
        for number, member in enumerate(self.members):
            for split in SPLITS:
                self._splits[split] += [self._shifted(number, problem) for problem in member.problems(split)]
        self.held_out = len(self._splits["held_out"])
        self.grader = f"by_number(verifiers={[member.grader for member in self.members]!r})"

    def _shifted(self, number: int, problem: Problem) -> Problem:
        place = self._starts[number] + problem.problem_id
        return dataclasses.replace(problem, problem_id=place, answer=f"{number}|{problem.answer}")

    def _own(self, problem: Problem) -> tuple[Task, Problem]:
        """The member that a problem is of, and the problem as that one knows it."""
        number = bisect.bisect_right(self._starts, problem.problem_id) - 1
        place, answer = problem.problem_id - self._starts[number], problem.answer.partition("|")[2]
        return self.members[number], dataclasses.replace(problem, problem_id=place, answer=answer)

    def sets(self) -> dict[str, list[int]]:
        """Member ("0 gsm8k") → places of its problems in `problems("train")`, as `Mixture` takes it."""
        found: dict[str, list[int]] = {f"{i} {member.name}": [] for i, member in enumerate(self.members)}
        names = list(found)
        for place, problem in enumerate(self._splits["train"]):
            found[names[bisect.bisect_right(self._starts, problem.problem_id) - 1]].append(place)
        return found

    def messages(self, problem):
        member, own = self._own(problem)
        return member.messages(own)

    def solution(self, problem):
        member, own = self._own(problem)
        return member.solution(own)

    def where(self, problem):
        member, own = self._own(problem)
        return member.where(own)

    def report(self):
        return [line for member in self.members for line in member.report()]

    def verify(self, answer, completion, finished):
        number, _, own = answer.partition("|")
        return self.members[int(number)].verify(own, completion, finished)


@TASKS.register
def mixed(tasks: Sequence[str], weights: Sequence[float] | None = None, checks: dict | None = None) -> Task:
    """Several tasks by their texts. The held-out problems are those of all of them, one after the other."""
    if not isinstance(tasks, list | tuple) or len(tasks) < 2 or not all(isinstance(text, str) for text in tasks):
        raise ValueError(f"task=mixed: tasks={tasks!r}; give a list of two or more tasks, each as its text")
    if weights is not None and (len(weights) != len(tasks) or not all(w > 0 for w in weights)):
        raise ValueError(f"task=mixed: weights={weights!r}; give one above 0 for each of the {len(tasks)} tasks")
    return MixedTask([make_task(text, checks) for text in tasks], weights)
