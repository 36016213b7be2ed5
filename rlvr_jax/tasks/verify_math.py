r"""Is the final answer of a completion the right one? For answers of school and competition mathematics.

The policy on answers:

1. Of a completion the last balanced \boxed{} counts; else `<answer>…</answer>`, then `#### …`, then a stated
   "answer is …" or "Final answer: …", then the last number of the last line. `rlvr_jax.tasks.answers` finds it.
2. After a closed `</think>` only what follows it counts; a `<think>` never closed means no answer. What stands in
   the tags of a tool's reply is never graded.
3. A bare list has no order and must be complete, {…} is a set, (a, b) has an order, the brackets of an interval
   matter. ± stands for two values.
4. An exact gold needs an exact value: 0.33 is not 1/3. 35% is 0.35. Currency signs and LaTeX's wrappers mean
   nothing. A unit is ignored where the gold has none, may be left out where it has one, and must not be another.
5. A gold that cannot be used (empty, braces that do not close) never gives outcome 1.

No text is executed. Own rules decide wherever both sides can be read by them; math-verify is asked about the rest
(matrices), behind limits on length, commands, powers and numbers, so that no timer is needed.
"""

from __future__ import annotations

import re

from rlvr_jax.tasks.answers import final_answer, last_box
from rlvr_jax.tasks.expressions import Unreadable
from rlvr_jax.tasks.notation import balanced, tidy, words
from rlvr_jax.tasks.readings import Equation, Group, Reading, Value, Words, as_list, plain_number, read
from rlvr_jax.tasks.symbolic import symbolically_equal
from rlvr_jax.tasks.values import has, same_equation, same_value
from rlvr_jax.verdict import Verdict

_GOLD_LENGTH = 2000


def usable_gold(gold: str) -> bool:
    """False for a gold that no completion can be right for: no text, nothing to compare, braces that do not close."""
    return isinstance(gold, str) and len(gold) <= _GOLD_LENGTH and balanced(gold) and read(_unbox(gold)) is not None


def _unbox(gold: str) -> str:
    box = last_box(gold) if "boxed" in gold else None
    return gold if box is None else box


def _same_unit(gold: Value, answer: Value) -> bool:
    return not gold.unit or not answer.unit or gold.unit == answer.unit


def _same_name(gold: Value, answer: Value) -> bool:
    return not gold.name or not answer.name or gold.name == answer.name


def _paired(gold: tuple, answer: tuple) -> bool:
    """True when the items can be matched one to one in some order; equality is an equivalence, so greedily."""
    rest = list(answer)
    for item in gold:
        match = next((i for i, other in enumerate(rest) if equal(item, other)), None)
        if match is None:
            return False
        del rest[match]
    return not rest


def _distinct(items: tuple) -> tuple:
    kept = []
    for item in items:
        if not any(equal(item, other) for other in kept):
            kept.append(item)
    return tuple(kept)


def _equal_groups(gold: Group, answer: Group) -> bool:
    if {gold.kind, answer.kind} <= {"list", "set"}:
        if "set" in (gold.kind, answer.kind):
            return _paired(_distinct(gold.items), _distinct(answer.items))
        return _paired(gold.items, answer.items)
    if gold.kind != answer.kind or gold.brackets != answer.brackets or len(gold.items) != len(answer.items):
        return False
    if gold.kind == "union":
        return _paired(gold.items, answer.items)
    return all(equal(one, other) for one, other in zip(gold.items, answer.items))


def equal(gold: Reading, answer: Reading) -> bool:
    """True when two readings say the same, by rules 3 and 4.

    Raises:
      Unreadable, TooLarge: a value that cannot be computed.
    """
    if isinstance(gold, Value) and isinstance(answer, Value):
        if not _same_unit(gold, answer) or not _same_name(gold, answer):
            return False
        if gold.tree == answer.tree:
            return True
        infinite = has(gold.tree, ("const", "infty")) or has(answer.tree, ("const", "infty"))
        return not infinite and same_value(gold.tree, answer.tree)
    if isinstance(gold, Words) and isinstance(answer, Words):
        return gold.text == answer.text
    if isinstance(gold, Group) and isinstance(answer, Group):
        return _equal_groups(gold, answer)
    if isinstance(gold, Equation) and isinstance(answer, Equation):
        directed = gold.order in ("<", "\\le")
        return gold.order == answer.order and same_equation(gold[:2], answer[:2], directed)
    if isinstance(gold, Equation) or isinstance(answer, Equation):
        return _equal_to_assignment(gold, answer)
    for one, other in ((gold, answer), (answer, gold)):  # a set of one element, and the element
        if isinstance(one, Group) and one.kind in ("set", "list") and len(one.items) == 1:
            return equal(one.items[0], other)
    return False


def _equal_to_assignment(gold: Reading, answer: Reading) -> bool:
    """y = 2x + 1 is also the equation 2x - y + 1 = 0; x = 5 is not 2x = 10, which is still to be solved."""
    equation, other = (gold, answer) if isinstance(gold, Equation) else (answer, gold)
    if (
        equation.order != "="
        or not isinstance(other, Value)
        or not re.fullmatch(r"[A-Za-z]", other.name)
        or other.tree[0] == "num"
    ):
        return False
    return same_equation((equation.left, equation.right), (("name", other.name), other.tree))


def _has_words(reading: Reading) -> bool:
    if isinstance(reading, Group):
        return any(_has_words(item) for item in reading.items)
    return isinstance(reading, Words)


def _same_words(reading: Reading, text: str) -> bool:
    """A word, and the same word not marked as one: \\text{B} and B."""
    return isinstance(reading, Words) and reading.text == words(tidy(text))


def _judge(gold: str, answer: str) -> tuple[bool, str]:
    """Whether they are equal, and the reason if not."""
    golden, reading = read(gold), read(answer)
    if reading is None:
        return False, "empty answer"
    wrong = f"≠ {gold}"
    if isinstance(reading, Words) and reading.problem == "too long":
        return False, "answer too long"
    if tidy(gold) == tidy(answer) or _same_words(golden, answer) or _same_words(reading, gold):
        return True, "correct"
    try:
        if equal(golden, reading):
            return True, "correct"
        if isinstance(golden, Group) and (listed := as_list(answer)) and equal(golden, listed):
            return True, "correct"
    except Unreadable as error:
        return False, f"{wrong} ({error})"
    if isinstance(reading, Words) and reading.problem:
        return False, f"{wrong} ({reading.problem})"
    if _has_words(golden) and _has_words(reading):
        return (True, "correct") if symbolically_equal(tidy(gold), tidy(answer)) else (False, wrong)
    return False, wrong


def verify_math(gold: str, completion: str) -> Verdict:
    r"""Outcome 1 when the final answer of `completion` equals `gold`, 0 otherwise; never raises.

    Args:
      gold: the right answer: a number, LaTeX, words; with or without \boxed{}.
      completion: what the policy wrote.
    Reasons: "correct", "≠ gold", "no answer", "reasoning not closed", "several candidates", "empty answer",
    "answer too long", "unusable gold", and "checker failed: …" for a fault of the checker, which callers count.
    """
    try:
        if not usable_gold(gold):
            return Verdict(0.0, None, "unusable gold")
        gold = _unbox(gold).strip()
        found = final_answer(completion)
        if found.text is None:
            return Verdict(0.0, None, found.rule)
        right, reason = _judge(gold, found.text)
        if not right and found.rule in ("stated", "hash", "tag") and isinstance(read(found.text), Words):
            number = plain_number(found.text)  # "a total of 5 apples"
            if number is not None:
                right, reason = _judge(gold, number)
        return Verdict(float(right), found.text[:_GOLD_LENGTH], reason)
    except Exception as error:  # a completion must never end a run; the reason tells it from a wrong answer
        return Verdict(0.0, None, f"checker failed: {type(error).__name__}")
