r"""math-verify, for the answers that the own rules do not read: matrices.

It parses and simplifies with a computer algebra system that can work for hours on a line of text, and its own time
limit needs the main thread. So nothing reaches it but short texts of a few commands with small numbers and powers,
for which it takes milliseconds to tenths of a second. Its reader of plain expressions, which evaluates what it reads,
is never used: only its reader of LaTeX.
"""

from __future__ import annotations

import logging
import re

from rlvr_jax.tasks.notation import ROW

_LENGTH = 120
_KNOWN = {"frac", "sqrt", "pi", "cdot", "times", "begin", "end"}
_ENVIRONMENTS = {"pmatrix", "bmatrix", "vmatrix", "matrix"}
_SIGNS = re.compile(r"[\w\s\\+\-*/^{}().,&]*", re.ASCII)


def admissible(text: str) -> bool:
    """True when math-verify may see the text: one short matrix of known commands, small numbers, flat powers."""
    text = text.strip()
    if len(text) > _LENGTH or not _SIGNS.fullmatch(text) or "_" in text:
        return False
    if not re.fullmatch(r"\\begin\{\w+\}.*\\end\{\w+\}", text) or text.count("\\begin") != 1:
        return False
    environments = set(re.findall(r"\\(?:begin|end)\{(\w*)\}", text))
    if not (environments <= _ENVIRONMENTS and set(re.findall(r"\\([A-Za-z]+)", text)) <= _KNOWN):
        return False
    plain = re.sub(r"\\(?:begin|end)\{\w*\}|\\[A-Za-z]+", " ", text)
    if re.search(r"[A-Za-z]{3,}|\d{10,}", plain) or plain.count("{") > 20:
        return False
    return all(re.match(r"\s*(?:\d(?!\d)|\{\s*-?\d\s*\})", power) for power in plain.split("^")[1:])


def symbolically_equal(gold: str, answer: str) -> bool:
    """What math-verify says of two texts in the spelling of `notation.tidy`; False where it must not be asked.

    Raises:
      whatever its parser or the algebra behind it raises
    """
    gold, answer = (text.replace("⟅", r"\{").replace("⟆", r"\}").replace(ROW, r"\\") for text in (gold, answer))
    if not (admissible(gold) and admissible(answer)):
        return False
    from math_verify import LatexExtractionConfig, parse, verify  # a second to import, and few answers need it

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of every call without its timer
    config = [LatexExtractionConfig()]
    first, second = (
        parse(f"${text}$", config, fallback_mode="no_fallback", parsing_timeout=None) for text in (gold, answer)
    )
    if not first or not second:
        return False
    return bool(verify(first, second, float_rounding=15, numeric_precision=30, timeout_seconds=None))
