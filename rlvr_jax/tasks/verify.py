"""Strict verdicts on short answers. Text is only ever matched and read as a number, never evaluated."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from rlvr_jax.verdict import Verdict

# ASCII digits only: `\d` alone would also take the digits of other scripts.
_ANSWER_LINE = re.compile(r"""\bAnswer:\s*['"]?(-?\d[\d,]*(?:\.\d+)?)['"]?\.?\s*$""", re.ASCII)
_NUMBER = re.compile(r"-?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d+)?", re.ASCII)


def to_number(text: str) -> Decimal | None:
    """Reads "1,234.50" as 1234.50; None where it is no plain number or its commas do not part thousands."""
    if not _NUMBER.fullmatch(text):
        return None
    try:
        return Decimal(text.replace(",", ""))
    except InvalidOperation:
        return None


def _compare(answer: str, extracted: str | None, finished: bool, missing: str) -> Verdict:
    if not finished:
        return Verdict(0.0, extracted, "not ended")
    if extracted is None:
        return Verdict(0.0, None, missing)
    expected = to_number(answer)
    if expected is None:
        raise ValueError(f"answer={answer!r}: the verifier of numbers needs a number")
    if to_number(extracted) == expected:
        return Verdict(1.0, extracted, "correct")
    return Verdict(0.0, extracted, f"≠ {answer}")


def verify_answer_line(answer: str, completion: str, finished: bool) -> Verdict:
    """Outcome 1 when the completion ended and closes with `Answer: N`, N equal to `answer` as a number.

    Quotes around N and a full stop after it are allowed, other text is not. 48, 48.0 and "48" are equal.
    Reasons: "correct", "≠ 48", "no answer line", "not ended".

    Raises:
      ValueError: `answer` is not a number.
    """
    match = _ANSWER_LINE.search(completion)
    return _compare(answer, match and match.group(1), finished, "no answer line")


def verify_number(answer: str, completion: str, finished: bool) -> Verdict:
    """Outcome 1 when the completion ended and is, spaces aside, nothing but a number equal to `answer`.

    Reasons: "correct", "≠ 8", "not a number", "not ended".

    Raises:
      ValueError: `answer` is not a number.
    """
    text = completion.strip(" \n")
    return _compare(answer, text if to_number(text) is not None else None, finished, "not a number")
