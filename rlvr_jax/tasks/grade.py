"""Verifiers by name: what a task says of its answers, as text that a process without the task understands.

"math", "numeric(relative=0.01)", "choice", "f1", … or "package.module:function", a function of your own
(answer, completion) → Verdict, or a number in [0, 1], or a truth value.

A grader never ends a run: a fault of the checker, and an answer it cannot use, are verdicts without an outcome.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence

from rlvr_jax.registry import Registry
from rlvr_jax.tasks.task import Item
from rlvr_jax.tasks.verify import to_number, verify_answer_line, verify_number
from rlvr_jax.tasks.verify_choice import verify_choice
from rlvr_jax.tasks.verify_math import usable_gold, verify_math
from rlvr_jax.tasks.verify_numeric import verify_numeric
from rlvr_jax.tasks.verify_text import normalise, verify_exact, verify_f1
from rlvr_jax.verdict import Verdict

VERIFIERS = Registry("verifier")
Check = Callable[[str, str], Verdict]
HASH_SEED = "0"  # PYTHONHASHSEED of every grading process: what depends on the order of a set is the same in all
READY = "ready"  # what a grading process says when it is
MEMORY = "memory limit"  # the reason of its last verdict when it has run out
_FAULTS = ("checker failed", "unusable gold")  # what the verifiers say when the fault is not the policy's


@VERIFIERS.register
def math_() -> Check:
    """The answer policy of `verify_math`. Answer: a number, LaTeX, words."""
    return verify_math


@VERIFIERS.register
def numeric(relative: float = 0.0, absolute: float = 0.0) -> Check:
    """A number within max(absolute, relative·|answer|)."""
    for name, value in (("relative", relative), ("absolute", absolute)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ValueError(f"verifier=numeric: {name}={value!r}; choose a number of at least 0")
    return lambda answer, completion: verify_numeric(answer, completion, relative, absolute)


@VERIFIERS.register
def choice() -> Check:
    """A letter. Answer: the letter, then, a line each, the labelled options, if there are any ("B", "A) 3", "B) 5")."""

    def check(answer: str, completion: str) -> Verdict:
        letter, *options = answer.split("\n")
        return verify_choice(letter, completion, options or None)

    return check


@VERIFIERS.register
def exact() -> Check:
    """Exact match after normalisation. Answer: one or several golds, a line each."""
    return lambda answer, completion: verify_exact(answer.split("\n"), completion)


@VERIFIERS.register
def f1() -> Check:
    """F1 of the words after normalisation. Answer: one or several golds, a line each."""
    return lambda answer, completion: verify_f1(answer.split("\n"), completion)


@VERIFIERS.register
def answer_line() -> Check:
    """The completion closes with `Answer: N`."""
    return lambda answer, completion: verify_answer_line(answer, completion, True)


@VERIFIERS.register
def bare_number() -> Check:
    """The completion is a number and nothing else."""
    return lambda answer, completion: verify_number(answer, completion, True)


@VERIFIERS.register
def gym(name: str, settings: dict | None = None, seed: int = 0, size: int = 1) -> Check:
    """The scorer of a data set of reasoning-gym. Answer: "entry I: text", I its index in the data set."""
    from rlvr_jax.tasks.gym import make_check  # the data set is made again where it grades

    return make_check(name, settings or {}, seed, size)


@VERIFIERS.register
def by_number(verifiers: Sequence[str]) -> Check:
    """Several verifiers, for problem sets that are mixed. Answer: "I|…", I the place of its verifier in the list."""
    checks = [make_check(text) for text in verifiers]

    def check(answer: str, completion: str) -> Verdict:
        number, _, rest = answer.partition("|")
        return checks[int(number)](rest, completion)

    return check


def verifier_is_ours(text: str) -> bool:
    """False for "package.module:function"."""
    module, colon, _ = text.partition(":")
    return not colon or "(" in module


def make_check(text: str) -> Check:
    """The function that a verifier's text names, as it is: it may raise.

    Raises:
      ValueError: no such verifier, keyword, module or function.
    """
    if verifier_is_ours(text):
        return VERIFIERS.make(text)
    module, _, name = text.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"verifier={text!r}: {error}; expected package.module:function") from None
    if not callable(function):
        raise ValueError(f"verifier={text!r}: {name} is no function")
    return function


def to_verdict(value) -> Verdict:
    """What a check returned as a Verdict: a Verdict, a number in [0, 1] or a truth value.

    Raises:
      ValueError: an outcome that is no number in [0, 1] (NaN is: there is none).
    """
    verdict = Verdict(*value) if isinstance(value, tuple) else Verdict(float(value), None, "")
    if not (0.0 <= verdict.outcome <= 1.0 or not verdict.valid):
        raise ValueError(f"outcome {verdict.outcome!r} is not in [0, 1]")
    if verdict.valid and verdict.reason.startswith(_FAULTS):
        return Verdict.invalid(verdict.reason)
    return verdict._replace(outcome=float(verdict.outcome))


def grade(check: Check, item: Item) -> Verdict:
    """The verdict on one item. A completion that was cut off is wrong, whatever it has by then: "The answer is 12" may
    have been going to be 125.

    Raises:
      MemoryError: the process has no more. Any other fault becomes a verdict without outcome.
    """
    try:
        verdict = to_verdict(check(item.answer, item.completion))
    except MemoryError:
        raise
    except Exception as error:
        return Verdict.invalid(f"{type(error).__name__}: {str(error)[:300]}")
    if verdict.reason.endswith("checker failed: MemoryError"):  # a verifier that never raises says it so
        raise MemoryError
    if item.finished or not verdict.valid:
        return verdict
    return Verdict(0.0, verdict.extracted, "not ended")


def unusable(verifier: str, answer: str) -> str | None:
    """Why no completion can be right for an answer, or None. For the built-in verifiers only; read at load time."""
    name = verifier.partition("(")[0]
    if name == "math" and not usable_gold(answer):
        return "nothing to compare with"
    if name == "numeric" and make_check("numeric")(answer, "").reason == "unusable gold":
        return "not a number"
    if name in ("answer_line", "bare_number"):
        return None if to_number(answer) is not None else "not a number"
    if name == "choice" and make_check("choice")(answer, "").reason == "unusable gold":
        return "not the letter of an option"
    if name in ("exact", "f1") and not any(normalise(line) for line in answer.split("\n")):
        return "no text"
    return None
