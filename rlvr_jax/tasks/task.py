"""The contract of a task: problems of two disjoint splits, what a prompt reads, which verdict follows."""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rlvr_jax.registry import Registry, nearest
from rlvr_jax.verdict import Verdict

SPLITS = ("train", "held_out")
TASKS = Registry("task")


class Item(NamedTuple):
    """One completion to grade."""

    answer: str  # of the problem, in the form its verifier documents
    completion: str  # decoded without special tokens
    finished: bool = True  # an end token was sampled inside the limit


@dataclasses.dataclass(frozen=True)
class Problem:
    """One question.

    problem_id   its place in the task's whole enumeration; does not depend on the splits
    prompt       the question, without chat turns
    answer       what the verifier compares with
    difficulty   in a unit that the task documents; larger is harder
    """

    problem_id: int
    prompt: str
    answer: str
    difficulty: float = 0.0


class Task(abc.ABC):
    """A problem set with its verifier. A subclass gives `name`, `solution`, `verify`, and the two splits.

    name       as in the registry
    size       number of problem ids, 0 … size − 1, those in no split included
    held_out   number of problems in the held-out split
    example    (question, right completion) shown before every problem, or None; in neither split
    grader     the verifier as a text that a grading process understands (`rlvr_jax.tasks.grade`); "": `verify` alone
    """

    name: str
    size: int
    held_out: int
    example: tuple[str, str] | None = None
    grader: str = ""
    graders: Any = None  # a `rlvr_jax.tasks.pool.Pool`, set by who runs the task
    _splits: dict[str, list[Problem]]

    def problems(self, split: str) -> list[Problem]:
        """The problems of "train" or "held_out", in a fixed shuffled order: a prefix is a fair sample."""
        if split not in SPLITS:
            raise ValueError(f"split={split!r}: unknown{nearest(str(split), SPLITS)} Choose from {list(SPLITS)}")
        return list(self._splits[split])

    def messages(self, problem: Problem) -> list[dict[str, str]]:
        """The chat turns that lead to a completion: the example if there is one, then the question."""
        turns = [("user", self.example[0]), ("assistant", self.example[1])] if self.example else []
        turns.append(("user", problem.prompt))
        return [{"role": role, "content": content} for role, content in turns]

    def render(self, problem: Problem, tokenizer) -> str:
        """The text of the prompt, ready for `tokenizer.encode`.

        With a chat template: the turns and the assistant's header, no system turn that nobody asked for.
        Without one: the turns' contents, each on a line; of a task with no example just the question.
        """
        messages = self.messages(problem)
        if tokenizer.chat_template is not None:
            return tokenizer.apply_chat_template(messages, default_system=False)
        if len(messages) == 1:
            return messages[0]["content"]
        return "".join(message["content"] + "\n" for message in messages)

    def report(self) -> list[str]:
        """What a person should know of the problems before training starts: rows left out, and why."""
        return []

    def where(self, problem: Problem) -> str:
        """Where a problem comes from, for messages."""
        return f"{self.name}, problem {problem.problem_id}"

    def grade(self, items: Sequence[Item]) -> list[Verdict]:
        """A verdict for each item, in order: in the processes of `graders` where there are some, else here.

        Never raises for an item: a fault of the checker is a verdict without outcome.
        """
        if self.graders is not None:
            return self.graders.grade(items)
        return [_guarded(self.verify, item) for item in items]

    @abc.abstractmethod
    def solution(self, problem: Problem) -> str:
        """The completion that gets outcome 1, without the end token."""

    @abc.abstractmethod
    def verify(self, answer: str, completion: str, finished: bool) -> Verdict:
        """The verdict on what the policy wrote.

        Args:
          answer: of the problem.
          completion: decoded without special tokens.
          finished: an end token was sampled inside the limit.
        """


def _guarded(verify, item: Item) -> Verdict:
    try:
        return verify(*item)
    except Exception as error:
        return Verdict.invalid(f"{type(error).__name__}: {str(error)[:300]}")


class GeneratedTask(Task):
    """A task that makes its problems; a subclass gives `families` as well. `held_out` problems are set apart."""

    def __init__(self, held_out: int):
        self._families = self.families()
        count = sum(len(family) for family in self._families)
        if not isinstance(held_out, int) or isinstance(held_out, bool) or not 1 <= held_out < count:
            raise ValueError(f"task={self.name}: held_out={held_out!r}; choose a whole number in 1 … {count - 1}")
        self.held_out = held_out
        self.size = 1 + max(problem.problem_id for family in self._families for problem in family)
        self._splits = self._split()

    @abc.abstractmethod
    def families(self) -> list[list[Problem]]:
        """All problems but the example's, those that give one another away (a + b, b + a) side by side."""

    def _split(self) -> dict[str, list[Problem]]:
        train, held_out = [], []
        for family in sorted(self._families, key=lambda family: self._order(f"family {family[0].prompt}")):
            fits = len(held_out) + len(family) <= self.held_out
            (held_out if fits else train).extend(family)
        if len(held_out) < self.held_out or not train:
            raise ValueError(
                f"task={self.name}: held_out={self.held_out} parts problems that give one another away, or"
                f" leaves none to train on; choose {len(held_out) if train else 'less'}"
            )
        by_prompt = lambda problem: self._order(problem.prompt)
        return {"train": sorted(train, key=by_prompt), "held_out": sorted(held_out, key=by_prompt)}

    def _order(self, text: str) -> bytes:
        # a hash, so that the order is the same on every machine and in every version of Python and numpy
        return hashlib.blake2b(f"{self.name}: {text}".encode(), digest_size=8).digest()


def make_task(text: str, checks: Mapping[str, str] | None = None) -> Task:
    """ "compare", "addsub10(held_out=40)", "gsm8k(path='gsm8k')", …

    Args:
      checks: what is done about faults of the data, for tasks that read some (`rlvr_jax.tasks.checks`); a keyword
        `checks` in the text goes first.

    Raises:
      ValueError: unknown task or keyword, or a value outside its range; lists the valid ones. Rows that are refused.
    """
    factory, keywords = TASKS.parse(text)
    if checks is not None and "checks" in inspect.signature(factory).parameters:
        keywords["checks"] = {**checks, **(keywords.get("checks") or {})}
    return factory(**keywords)
