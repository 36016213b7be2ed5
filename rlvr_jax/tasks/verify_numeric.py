r"""Is the final answer of a completion the right number, within a tolerance? And nothing but a number.

The answer stands where `rlvr_jax.tasks.answers` finds it and is read like any answer of mathematics: thousands,
currency, units, percent, fractions, powers of ten. Without a tolerance 0.33 is not 1/3.
"""

from __future__ import annotations

from fractions import Fraction

from rlvr_jax.tasks.answers import final_answer
from rlvr_jax.tasks.expressions import Unreadable
from rlvr_jax.tasks.readings import Value, plain_number, read
from rlvr_jax.tasks.values import close, evaluate, names
from rlvr_jax.verdict import Verdict


def number(text: str):
    """(value, unit) of a text that is one real number: a Fraction, or a float of mpmath; None where it is not.

    Raises:
      Unreadable, TooLarge, ZeroDivisionError: it has no value that can be computed.
    """
    reading = read(text)
    if not isinstance(reading, Value) or names(reading.tree):
        return None
    value = evaluate(reading.tree, {})
    if not isinstance(value, Fraction):
        if getattr(value, "imag", 0) != 0:
            return None
        value = value.real
    return value, reading.unit


def _within(gold, answer, relative: float, absolute: float) -> bool:
    """|answer − gold| ≤ max(absolute, relative·|gold|); equality where both tolerances are 0."""
    if not relative and not absolute:
        return close(gold, answer)
    room = max(Fraction(absolute), Fraction(relative) * _exact(abs(gold)))
    return abs(_exact(answer) - _exact(gold)) <= room


def _exact(value) -> Fraction:
    """A float of mpmath as the fraction it is."""
    if isinstance(value, Fraction):
        return value
    sign, mantissa, exponent, _ = value._mpf_
    return (-1) ** sign * Fraction(int(mantissa)) * Fraction(2) ** int(exponent)


def verify_numeric(gold: str, completion: str, relative: float = 0.0, absolute: float = 0.0) -> Verdict:
    """Outcome 1 when the final answer is a number with |answer − gold| ≤ max(absolute, relative·|gold|).

    Args:
      gold: a number as text, "3,200", "7/8", "2.5 km". A unit is ignored where the gold has none, may be left out
        where it has one, and must not be another.
      completion: what the policy wrote.
    Reasons: "correct", "≠ gold", "no answer", "not a number", "reasoning not closed", "several candidates",
    "unusable gold".

    Raises:
      whatever a fault of the checker raises: callers mark such a sample as invalid (`rlvr_jax.tasks.grade`).
    """
    try:
        golden = number(gold) if isinstance(gold, str) else None
    except (Unreadable, ZeroDivisionError):
        golden = None
    if golden is None:
        return Verdict(0.0, None, "unusable gold")
    found = final_answer(completion)
    if found.text is None:
        return Verdict(0.0, None, found.rule)
    try:
        answer = number(found.text)
        if answer is None and found.rule in ("stated", "hash", "tag") and (plain := plain_number(found.text)):
            answer = number(plain)
    except (Unreadable, ZeroDivisionError) as error:
        return Verdict(0.0, found.text[:2000], f"≠ {gold} ({error or 'division by zero'})")
    if answer is None:
        return Verdict(0.0, found.text[:2000], "not a number")
    units = golden[1], answer[1]
    if (all(units) and units[0] != units[1]) or not _within(golden[0], answer[0], relative, absolute):
        return Verdict(0.0, found.text[:2000], f"≠ {gold}")
    return Verdict(1.0, found.text[:2000], "correct")
