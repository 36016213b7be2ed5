r"""An answer taken apart: a value with its unit, words, a list, a pair, an interval, an equation.

"4,200 cm"        Value 4200, unit "cm"        "2, 7" or "2 and 7"   Group "list", no order
"x = 5"           Value 5, name "x"            "\{2, 7\}"            Group "set", no order
"2x + y = 5"      Equation                     "(2, 7)", "[2, 7)"    Group "ordered", with its brackets
"x + y > 3"       Equation, its order "<"    "(1, 2) \cup (4, 5)"  Group "union", no order
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from rlvr_jax.tasks.expressions import TooLarge, Unreadable, read_expression
from rlvr_jax.tasks.notation import SET_OPEN, enclosed, split, tidy, words
from rlvr_jax.tasks.units import split_unit
from rlvr_jax.tasks.values import has, names

LONGEST = 400  # characters of an answer that is more than words


class Value(NamedTuple):
    tree: tuple
    unit: str = ""
    name: str = ""


class Words(NamedTuple):
    text: str
    problem: str = ""  # why it is no value: "too large", or ""


class Group(NamedTuple):
    kind: str  # "list", "set", "ordered", "union"
    items: tuple
    brackets: str = ""


class Equation(NamedTuple):
    left: tuple
    right: tuple
    order: str = "="  # or "<", "\\le", "\\ne": an inequality


Reading = Value | Words | Group | Equation

_PLAIN = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d{1,300})(?:\.\d{1,300})?", re.ASCII)
_COMMA = re.compile(r",|;")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,])", re.ASCII)
_SEPARATED = re.compile(r"[,;](?=\s|\D|\d{1,2}(?!\d)|\d{4})|(?<=\s)(?:and|or)(?=\s)|\"\s*(?:and|or)\s*\"")
_RELATION = re.compile(r"=|\\approx(?![A-Za-z])|\\equiv(?![A-Za-z])")
_ORDER = re.compile(r"[<>]|\\(?:le|ge|ne)(?![A-Za-z])")
_UNION = re.compile(r"\\cup(?![A-Za-z])")
_NAME = re.compile(r"\\?[A-Za-z]+(?:_\{?\w+\}?)?(?:\([A-Za-z](?:, ?[A-Za-z])*\))?(?:'+)?")
_MEMBER = re.compile(r"^\\?[A-Za-z]\s*\\in(?![A-Za-z])\s*")
_BRACKET_KINDS = {SET_OPEN: "set", "(": "ordered", "[": "ordered", "⟨": "ordered"}


def plus_minus(tree: tuple) -> list[tuple]:
    """The trees of both signs of a ±, or the tree itself."""
    if not has(tree, "pm"):
        return [tree]
    return [_signed(tree, sign) for sign in (1, -1)]


def _signed(tree: tuple, sign: int) -> tuple:
    if tree[0] == "pm":
        plus = (sign > 0) == (tree[3] == "pm")
        return ("+" if plus else "-", _signed(tree[1], sign), _signed(tree[2], sign))
    return tuple(_signed(child, sign) if isinstance(child, tuple) else child for child in tree)


def _scalar(text: str, name: str = "") -> Reading:
    if _PLAIN.fullmatch(text):
        return Value(("num", Fraction(text.replace(",", ""))), name=name)
    value, unit = split_unit(text)
    try:
        tree = read_expression(value)
    except TooLarge as error:
        return Words(words(text), str(error))
    except Unreadable:
        return Words(words(text))
    if names(tree) and re.fullmatch(r"[A-Za-z]{2,}", text):
        return Words(words(text))  # "no" is a word, not n times o
    trees = plus_minus(tree)
    if len(trees) > 1:
        return Group("list", tuple(Value(tree, unit, name) for tree in trees))
    return Value(tree, unit, name)


def _single(text: str) -> Reading:
    """One element: an expression, an assignment, an equation, an inequality."""
    sides, orders = split(text, _ORDER)
    if orders:
        return _interval(sides, orders) or _inequality(sides, orders) or Words(words(text))
    sides, relations = split(text, _RELATION)
    if not relations:
        return _scalar(text)
    last = _scalar(sides[-1])
    if _NAME.fullmatch(sides[0]) and isinstance(last, Value | Group):
        return _named(last, sides[0])
    first = _scalar(sides[0])
    if not (isinstance(first, Value) and isinstance(last, Value)):
        return Words(words(text))
    if names(first.tree):
        return Equation(first.tree, last.tree) if relations == ["="] else Words(words(text))
    return last  # 18 + 24 = 42: the value is what the computation ends with


def _inequality(sides: list[str], orders: list[str]) -> Equation | None:
    """x + y > 2 as 2 < x + y; None for a chain of them."""
    readings = [_scalar(side) for side in sides]
    if len(sides) != 2 or not all(isinstance(reading, Value) for reading in readings):
        return None
    order = {">": "<", "\\ge": "\\le"}.get(orders[0])
    left, right = readings[::-1] if order else readings
    return Equation(left.tree, right.tree, order or orders[0])


def _interval(sides: list[str], orders: list[str]) -> Group | None:
    """x > 3 as (3, ∞), 2 ≤ x < 7 as [2, 7); None for what is not one letter between numbers."""
    if orders[0] in (">", "\\ge"):
        sides, orders = sides[::-1], [{">": "<", "\\ge": "\\le"}.get(order, "") for order in reversed(orders)]
    if not set(orders) <= {"<", "\\le"} or len(sides) > 3:
        return None
    infinity = ("const", "infty")
    if len(sides) == 2:
        below = re.fullmatch(r"[A-Za-z]", sides[0])
        sides, orders = (["", *sides], ["<", *orders]) if below else ([*sides, ""], [*orders, "<"])
    name = sides[1]
    if not re.fullmatch(r"[A-Za-z]", name):
        return None
    ends = [_scalar(side, name) if side else None for side in (sides[0], sides[2])]
    low = ends[0] or Value(("neg", infinity), name=name)
    high = ends[1] or Value(infinity, name=name)
    if not all(isinstance(end, Value) and not names(end.tree) for end in (low, high)):
        return None
    items = tuple(end._replace(name=name) for end in (low, high))
    return Group("ordered", items, ("[" if orders[0] == "\\le" else "(") + ("]" if orders[1] == "\\le" else ")"))


def _named(reading: Value | Group, name: str) -> Reading:
    if isinstance(reading, Value):
        return reading._replace(name=name)
    return reading._replace(items=tuple(item._replace(name=name) for item in reading.items))


def _elements(text: str, separators: re.Pattern) -> list[str]:
    return [part for part in split(text, separators)[0] if part]


def _listed(parts: list[str]) -> Reading:
    """A bare list. "n = 4, 6" names all that follow; the two values of a ± are two of its elements."""
    items = []
    for part in parts:
        reading = _single(part)
        items += reading.items if isinstance(reading, Group) and reading.kind == "list" else [reading]
    first = items[0]
    if isinstance(first, Value) and first.name:
        items = [i._replace(name=first.name) if isinstance(i, Value) and not i.name else i for i in items]
    return Group("list", tuple(items))


def _bracketed(text: str) -> Reading | None:
    parts = [part for part in split(text[1:-1], _COMMA)[0] if part]
    kind = _BRACKET_KINDS.get(text[0])
    if kind is None or not parts or (kind == "ordered" and len(parts) < 2):
        return None
    return Group(kind, tuple(_inner(part) for part in parts), text[0] + text[-1] if kind == "ordered" else "")


def _inner(text: str) -> Reading:
    return (_bracketed(text) if enclosed(text) else None) or _single(text)


def _whole(text: str) -> Reading:
    if _PLAIN.fullmatch(text):
        return _scalar(text)
    text = _MEMBER.sub("", text)
    pieces = _elements(text, _UNION)
    if len(pieces) > 1:
        return Group("union", tuple(_inner(piece) for piece in pieces))
    head, found = split(text, re.compile("="))
    # (x, y) = (1, 2) or S = {1, 2}
    named = _NAME.fullmatch(head[0]) or (enclosed(head[0]) and _bracketed(head[0]))
    if len(found) == 1 and named and enclosed(head[1]):
        text = head[1]
    if enclosed(text):
        group = _bracketed(text)
        if group is not None:
            return group
        if text[0] == "(" and text[-1] == ")":
            return _whole(text[1:-1].strip()) if text[1:-1].strip() else Words("()")
    text = re.sub(r"^either ", "", text)
    parts = _elements(text, _SEPARATED)
    return _listed(parts) if len(parts) > 1 else _single(text)


@lru_cache(maxsize=4096)
def read(text: str) -> Reading | None:
    r"""The reading of an answer as written, \boxed already taken off; None where there is nothing to read."""
    text = tidy(text)
    while len(text) > 2 and text[0] == text[-1] == '"' and '"' not in text[1:-1]:
        inner = tidy(text[1:-1])
        if not re.search(r"\d", inner):
            return Words(words(inner)) if words(inner) else None
        text = inner
    if not text or not re.search(r"\w|\\", text):
        return None
    if len(text) > LONGEST:
        return Words(text, "too long")
    return _whole(text)


def as_list(text: str) -> Group | None:
    """ "1,200" read as the two numbers 1 and 200, for a gold that is a list."""
    text = tidy(text)
    if not _THOUSANDS.fullmatch(text):
        return None
    return _listed(text.split(","))


_ONE_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?%?(?!\w)", re.ASCII)
_DECISIVE = re.compile(
    r"\b(?:not|no|never|than|least|most|over|under|above|below|between|half|hundred|thousand|million|billion|dozen"
    r"|twice|double|third|quarter|or|and|minus|negative|nearly|almost|up to)\b|n't|[\\^_+*=<>]",
    re.IGNORECASE,
)


def plain_number(text: str) -> str | None:
    """The only number of a statement in words ("a total of 5 apples"); None where the words may change its value."""
    text = tidy(text)
    found = list(_ONE_NUMBER.finditer(text))
    if len(found) != 1 or _DECISIVE.search(text):
        return None
    rest = text[: found[0].start()] + " " + text[found[0].end() :]
    return found[0].group() if re.fullmatch(r"[A-Za-z\s,.'\"()-]*", rest) else None
