"""Untrusted text as HTML: nothing of it is markup, and nothing of it is invisible."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

SPECIAL_TOKEN = re.compile(r"&lt;\|[\w ]{1,40}\|&gt;|&lt;/?(?:s|bos|eos|end|pad|unk)&gt;")
# Control and format characters (also those that turn the direction of what follows), half surrogate pairs,
# private and unassigned ones, and white space that looks like another.
UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs")


def escape(value: Any) -> str:
    """Any value as HTML text, also inside a quoted attribute."""
    return "".join(html.escape(_name(character) or character) for character in str(value))


def completion(text: Any) -> str:
    """Model text for a block that keeps white space: line ends marked, special tokens dimmed."""
    shown = "".join(_mark(name) if (name := _name(character)) else html.escape(character) for character in str(text))
    return SPECIAL_TOKEN.sub(lambda token: _mark(token.group()), shown.replace("\n", _mark("↵") + "\n"))


def _mark(shown: str) -> str:
    return f'<span class="mark">{shown}</span>'


def _name(character: str) -> str | None:
    """What to show instead of a character that cannot be seen; None for one that can."""
    if character in " \n\t" or unicodedata.category(character) not in UNSEEN:
        return None
    return f"⟨U+{ord(character):04X}⟩"  # the control pictures of Unicode are missing in many fonts


def split_name(evaluation: Mapping) -> str:
    """What the problems of an evaluation are called: "held-out", or "training" (which proves no generalisation)."""
    return {"train": "training"}.get(evaluation.get("split"), "held-out")
