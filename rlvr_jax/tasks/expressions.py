r"""Expressions of school mathematics, read from LaTeX or plain text and compared exactly or to eighty digits.

Nothing is ever evaluated as code: a text becomes tuples, tuples become fractions. What is not in the grammar is
`Unreadable`, what would grow too large is `TooLarge`; both are decided before any large number is computed.
"""

from __future__ import annotations

import re
from fractions import Fraction

TOKENS, DEPTH, DIGITS = 250, 60, 1000  # longest text, deepest nesting, longest number that are read
BITS = 6000  # of any number met on the way; 2^{6000} has 1,807 digits


class Unreadable(ValueError):
    """Not an expression of the grammar."""


class TooLarge(Unreadable):
    """An expression that is not computed, for its size."""


_FUNCTIONS = "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log exp sqrt"
FUNCTIONS = _FUNCTIONS.split()
_GREEK = "alpha beta gamma delta theta lambda mu nu rho sigma tau phi varphi omega xi eta epsilon zeta kappa psi"
GREEK = _GREEK.split()
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+\.?\d*(?:[eE][-+]?\d{1,4}(?![\w.]))?|\.\d+)"
    r"|\\(?P<command>[A-Za-z]+)|(?P<degree>\^\s*\\circ(?![A-Za-z]))|(?P<letters>[A-Za-z]+)|(?P<quoted>\"[^\"]*\")"
    r"|(?P<sign>[-+*/^_!%()\[\]{}|]))",
    re.ASCII,
)
_LETTERS = re.compile("|".join(sorted([*FUNCTIONS, "pi"], key=len, reverse=True)) + "|[A-Za-z]")


def _letters(word: str) -> list[tuple[str, str]]:
    """ "xy" → x, y; "sinx" → sin, x; a word of a language is no product of its letters."""
    found = _LETTERS.findall(word)
    singles = [part for part in found if len(part) == 1]
    if len(singles) > 2 and not set(singles) <= set("xyz") and not set(singles) <= set("abc"):
        raise Unreadable(f"the word {word[:20]!r}")
    return [("command", part) if len(part) > 1 else ("letter", part) for part in found]


def tokenize(text: str) -> list[tuple[str, str]]:
    """(kind, text) of every token.

    Raises:
      Unreadable: a sign that no rule knows, or too many tokens.
    """
    tokens, position = [], 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise Unreadable(f"{text[position : position + 10]!r}")
        kind, value = match.lastgroup, match.group(match.lastgroup)
        position = match.end()
        if kind == "letters":
            tokens += _letters(value)
        elif kind == "quoted":
            letter = value.strip('" ')
            if len(letter) != 1 or not letter.isascii() or not letter.isalpha():
                raise Unreadable(f"the words {value[:20]}")
            tokens.append(("letter", letter))
        else:
            tokens.append((kind, value))
        if len(tokens) > TOKENS:
            raise TooLarge("too long")
    return tokens


class _Reader:
    """A recursive descent over the tokens. Nodes are tuples: an operation, then nodes or plain values."""

    def __init__(self, text: str):
        self.tokens, self.at, self.depth = tokenize(text), 0, 0

    def peek(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")

    def take(self, *values: str) -> str | None:
        kind, value = self.peek()
        if value in values and kind in ("sign", "command"):
            self.at += 1
            return value
        return None

    def expect(self, value: str) -> None:
        if self.take(value) is None:
            raise Unreadable(f"no {value} before {self.peek()[1]!r}")

    def sum(self) -> tuple:
        self.depth += 1
        if self.depth > DEPTH:
            raise TooLarge("nested too deeply")
        sign = self.take("pm", "mp")
        left = ("pm", ("num", Fraction(0)), self.product(), sign) if sign else self.product()
        while operation := self.take("+", "-", "pm", "mp"):
            right = self.product()
            left = ("pm", left, right, operation) if operation in ("pm", "mp") else (operation, left, right)
        self.depth -= 1
        return left

    def product(self) -> tuple:
        negative = False
        while sign := self.take("+", "-"):
            negative ^= sign == "-"
        left = self.power(first=True)
        while True:
            if operation := self.take("*", "/", "cdot", "times", "div"):
                right_negative = self.take("-") is not None
                right = self.power(first=operation not in ("/", "div"))
                right = ("neg", right) if right_negative else right
                left = ("/" if operation in ("/", "div") else "*", left, right)
            elif self.starts_atom():
                left = ("*", left, self.power())
            else:
                return ("neg", left) if negative else left

    def starts_atom(self) -> bool:
        kind, value = self.peek()
        if kind == "sign":
            return value in "({["
        if kind == "number":  # "3 4" is no product
            return self.at > 0 and self.tokens[self.at - 1][0] in ("sign", "letter", "command")
        return kind == "letter" or (kind == "command" and value not in ("cdot", "times", "div", "pm", "mp"))

    def power(self, first: bool = False) -> tuple:
        mixed = self.mixed() if first else None
        node = mixed or self.atom()
        while True:
            if self.take("^"):
                node = ("^", node, self.argument())
            elif self.take("!"):
                node = ("factorial", node)
            elif self.take("%"):
                node = ("/", node, ("num", Fraction(100)))
            elif self.peek()[0] == "degree":
                self.at += 1
                node = ("/", ("*", node, ("const", "pi")), ("num", Fraction(180)))
            else:
                return node

    def mixed(self) -> tuple | None:
        r"""A whole number with a proper fraction behind it, as in 3\frac{2}{5} or 3 2/5: their sum."""
        start = self.at
        whole, after = self.whole(), self.peek()
        if whole is not None and after == ("command", "frac"):
            self.at += 1
            top, bottom = self.argument(), self.argument()
            parts = [node[1] for node in (top, bottom) if node[0] == "num"]
        elif whole is not None and after[0] == "number":
            top = self.whole()
            parts = [top, self.whole()] if top is not None and self.take("/") else []
        else:
            parts = []
        if len(parts) == 2 and None not in parts and 0 < parts[0] < parts[1]:
            return ("num", whole + parts[0] / parts[1])
        self.at = start
        return None

    def whole(self) -> Fraction | None:
        kind, value = self.peek()
        if kind != "number" or not value.replace(",", "").isdigit() or len(value) > DIGITS:
            return None
        self.at += 1
        return Fraction(value.replace(",", ""))

    def argument(self) -> tuple:
        r"""What \frac, \sqrt and ^ take: a group, or one digit or letter (\frac37)."""
        kind, value = self.peek()
        if self.take("{"):
            return self.until("}")
        if kind == "number" and self.tokens[self.at - 1] != ("sign", "^"):
            self.tokens[self.at : self.at + 1] = [("number", value[0])] + ([("number", value[1:])] if value[1:] else [])
        elif self.take("-"):
            return ("neg", self.argument())
        return self.atom()

    def until(self, closing: str) -> tuple:
        node = self.sum()
        self.expect(closing)
        return node

    def atom(self) -> tuple:
        self.depth += 1
        if self.depth > DEPTH:
            raise TooLarge("nested too deeply")
        node = self.bare_atom()
        self.depth -= 1
        return node

    def bare_atom(self) -> tuple:
        kind, value = self.peek()
        self.at += 1
        if kind == "number":
            if len(value) > DIGITS:
                raise TooLarge("a number of too many digits")
            return ("num", Fraction(value.replace(",", "").rstrip(".")))
        if kind == "letter":
            return self.name(value)
        if kind == "sign" and value in "({[":
            return self.until({"(": ")", "{": "}", "[": "]"}[value])
        if kind == "sign" and value == "|":
            return ("abs", self.until("|"))
        if kind == "command":
            return self.command(value)
        raise Unreadable(f"unexpected {value!r}")

    def name(self, value: str) -> tuple:
        if value in ("e", "i"):
            return ("const", value)
        if self.take("_"):
            self.take("{")
            value += "_" + self.peek()[1]
            if self.peek()[0] not in ("number", "letter"):
                raise Unreadable("a subscript")
            self.at += 1
            self.take("}")
        return ("name", value)

    def command(self, value: str) -> tuple:
        if value in ("frac", "binom"):
            return ("/" if value == "frac" else "binom", self.argument(), self.argument())
        if value in ("pi", "infty"):
            return ("const", value)
        if value == "surd":
            return ("root", self.atom(), ("num", Fraction(2)))
        if value == "sqrt":
            index = self.until("]") if self.take("[") else ("num", Fraction(2))
            return ("root", self.until(")") if self.take("(") else self.argument(), index)
        if value in FUNCTIONS:
            return self.function(value)
        if value in GREEK:
            return self.name("\\" + value)
        raise Unreadable(f"\\{value[:20]}")

    def function(self, value: str) -> tuple:
        base = None
        if value == "log" and self.take("_"):
            base = self.argument()
        exponent = self.argument() if self.take("^") else None
        if self.peek()[1] in ("(", "{", "["):
            inner = self.atom()
        else:
            inner = self.power()
            while self.peek()[0] in ("letter", "number") or self.peek() == ("command", "pi"):
                inner = ("*", inner, self.power())
        node = ("call", value, inner) if base is None else ("log", inner, base)
        return node if exponent is None else ("^", node, exponent)


def read_expression(text: str) -> tuple:
    """The tree of an expression in the spelling of `notation.tidy`.

    Raises:
      Unreadable, TooLarge
    """
    reader = _Reader(text)
    node = reader.sum()
    if reader.peek()[0] != "end":
        raise Unreadable(f"unexpected {reader.peek()[1]!r}")
    return node
