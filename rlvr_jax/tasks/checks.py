"""What is looked at when problems are read, before anything is trained on: each kind is refused, or counted and shown.

    fields     a row that is no object, or lacks a field, or has an empty one      refuse, drop
    answers    a gold that no completion can be right for                          refuse, drop
    repeats    a prompt that its split has already                                 refuse, drop, keep
    overlap    a training prompt that is also held out                             refuse, drop, keep
    encoding   a byte order mark, CRLF, U+2028 and other signs that are not text   refuse, keep

"drop" leaves the row out (of an overlap: the training row), "keep" uses it; both are counted, with the rows' places.
"""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rlvr_jax.registry import nearest

CHECKS = {
    "fields": ("refuse", "drop"),
    "answers": ("refuse", "drop"),
    "repeats": ("refuse", "drop", "keep"),
    "overlap": ("refuse", "drop", "keep"),
    "encoding": ("refuse", "keep"),
}
DEFAULTS = {"fields": "refuse", "answers": "refuse", "repeats": "refuse", "overlap": "refuse", "encoding": "keep"}
_SAYS = {
    "fields": "rows with missing or empty fields",
    "answers": "rows with an unusable answer",
    "repeats": "repeated prompts",
    "overlap": "prompts in training and evaluation",
    "encoding": "rows with signs that are not text",
}
_SHOWN = 5  # places that are named of each kind
_ODD = re.compile("[\u2028\u2029\ufeff\ufffd\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200b\u2060]|\r(?!\n)|[\ud800-\udfff]")


class Finding(NamedTuple):
    """One thing found."""

    kind: str  # a key of CHECKS
    where: str  # "train.jsonl, line 3"
    what: str


def settle_checks(given: Mapping[str, str] | None) -> dict[str, str]:
    """DEFAULTS with what was given.

    Raises:
      ValueError: an unknown kind or choice.
    """
    for kind, choice in (given or {}).items():
        if kind not in CHECKS:
            raise ValueError(f"data.{kind}={choice!r}: unknown check{nearest(kind, CHECKS)} Choose from {list(CHECKS)}")
        if choice not in CHECKS[kind]:
            raise ValueError(f"data.{kind}={choice!r}: choose from {list(CHECKS[kind])}")
    return {**DEFAULTS, **(given or {})}


def same_prompt(text: str) -> str:
    """What two prompts have in common that are the same but for spaces and the forms of their signs."""
    return " ".join(unicodedata.normalize("NFKC", text).split())


def odd_signs(texts: Iterable[str]) -> list[str]:
    """Signs that a text should not have, as "U+2028"; a tab and a line break are text, CRLF is looked at apart."""
    found = dict.fromkeys(sign for text in texts for sign in _ODD.findall(text))
    return [f"U+{ord(sign):04X}" for sign in found]


@dataclasses.dataclass
class Findings:
    """All that was found in a problem set, and what is done about it."""

    task: str  # the task's name, for messages
    checks: Mapping[str, str] = dataclasses.field(default_factory=lambda: dict(DEFAULTS))
    found: list[Finding] = dataclasses.field(default_factory=list)

    def add(self, kind: str, where: str, what: str) -> bool:
        """Notes a finding; True when its row is to be left out."""
        self.found.append(Finding(kind, where, what))
        return self.checks[kind] != "keep"

    def refuse(self) -> None:
        """
        Raises:
          ValueError: something was found that is refused; names the first row in full and the places of the others.
        """
        for kind in CHECKS:
            found = [finding for finding in self.found if finding.kind == kind]
            if found and self.checks[kind] == "refuse":
                first, more = found[0], found[1:]
                others = f" and {len(more)} more: {_places(more)}" if more else ""
                instead = [choice for choice in CHECKS[kind] if choice != "refuse"]
                raise ValueError(
                    f"task={self.task}: {first.where}: {first.what} ({len(found)} {_SAYS[kind]}{others}); mend them, "
                    f"or set data.{kind} to {' or '.join(map(repr, instead))}"
                )

    def count(self, kind: str) -> int:
        return sum(finding.kind == kind for finding in self.found)

    def lines(self) -> list[str]:
        """For a person, before training starts: a line for each kind that was found."""
        done = {"drop": "left out", "keep": "kept"}
        return [
            f"{self.task}: {self.count(kind)} {_SAYS[kind]} {done[self.checks[kind]]}: "
            f"{_places([finding for finding in self.found if finding.kind == kind])}"
            for kind in CHECKS
            if self.count(kind)
        ]


def _places(found: list[Finding]) -> str:
    shown = "; ".join(f"{f.where} ({f.what})" if f.kind == "encoding" else f.where for f in found[:_SHOWN])
    return shown + (f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")
