"""`"name(keyword=literal)"` → a part. A wrong name or keyword is answered with the valid ones.

The string is read with `ast` (names and literals only): readable, hashable, printable, overridable from a command
line, and unable to run code.
"""

from __future__ import annotations

import ast
import difflib
import inspect
from collections.abc import Callable, Iterable


def nearest(name: str, choices: Iterable[str]) -> str:
    """ ". Did you mean 'x'?" for the closest of `choices`, or "." when none is close: ends a sentence."""
    close = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.5)
    return f". Did you mean {close[0]!r}?" if close else "."


def parse_call(text: str, what: str) -> tuple[str, dict]:
    """ "name(a=1, b='x')" → ("name", {"a": 1, "b": "x"}).

    Raises:
      ValueError: `text` is not one name with keyword literals; the message names `what` and the text.
    """
    wrong = f"{what}={text!r}: expected name or name(keyword=literal, ...)"
    try:
        node = ast.parse(str(text).strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(wrong) from None
    if isinstance(node, ast.Name):
        return node.id, {}
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)) or node.args:
        raise ValueError(wrong)
    keywords = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError(f"{wrong}; ** is not understood")
        try:
            keywords[keyword.arg] = ast.literal_eval(keyword.value)
        except (ValueError, TypeError):
            raise ValueError(f"{wrong}; the value of {keyword.arg!r} is not a literal") from None
    return node.func.id, keywords


class Registry:
    """Named factories of one slot. `registry.register` is a decorator; `registry.make(text)` builds a part."""

    def __init__(self, slot: str):
        self.slot = slot
        self.factories: dict[str, Callable] = {}

    def register(self, factory: Callable) -> Callable:
        """Adds a factory under its own name (a trailing underscore, for Python's keywords, is dropped)."""
        self.factories[factory.__name__.rstrip("_")] = factory
        return factory

    def names(self) -> list[str]:
        return sorted(self.factories)

    def parse(self, text: str) -> tuple[Callable, dict]:
        """The factory and keywords that `text` names, both checked.

        Raises:
          ValueError: unknown name or keyword; names the slot, the value, the nearest and the valid choices.
        """
        name, keywords = parse_call(text, self.slot)
        if name not in self.factories:
            hint = nearest(name, self.factories)
            raise ValueError(f"{self.slot}={text!r}: unknown option {name!r}{hint} Choose from {self.names()}")
        factory = self.factories[name]
        valid = inspect.signature(factory).parameters
        for keyword in keywords:
            if keyword not in valid:
                hint = nearest(keyword, valid)
                raise ValueError(
                    f"{self.slot}={text!r}: {name} has no keyword {keyword!r}{hint} It takes {self.usage(name)}"
                )
        missing = [k for k, p in valid.items() if p.default is inspect.Parameter.empty and k not in keywords]
        if missing:
            raise ValueError(f"{self.slot}={text!r}: {name} needs {', '.join(missing)}. It takes {self.usage(name)}")
        return factory, keywords

    def usage(self, name: str) -> str:
        """ "name(keyword=default, ...)", as one would write it in a config."""
        parameters = inspect.signature(self.factories[name]).parameters.values()
        shown = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters]
        return f"{name}({', '.join(shown)})"

    def make(self, text: str):
        factory, keywords = self.parse(text)
        return factory(**keywords)
