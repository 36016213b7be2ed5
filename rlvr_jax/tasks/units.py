"""Units behind a value: which words are one, and when two are the same."""

from __future__ import annotations

import re

from rlvr_jax.tasks.expressions import FUNCTIONS

_SHORT = (
    "mm cm dm km nm kg mg ml mL cl dl kL hl ft in yd mi lb lbs oz hr hrs ms ns min sec mph kph km cc am pm sq cu"
    " Hz kHz MHz kW kN kJ MW kV Pa kPa mol rad deg pt pts gal GB MB KB TB °C"
)
_LETTERS = "mgshLlNJWVKCFA"  # units of one letter: only behind a space, or as \text{m}
# words that change the value before them, or join it to another
_NO_UNIT = (
    "and or not plus minus times over under half halves third thirds quarter quarters fourth fourths fifth fifths"
    " tenth tenths hundred hundreds thousand thousands million millions billion billions trillion dozen dozens"
    " hundredth hundredths thousandths percent than to between squared cubed factorial if mod modulo base"
)
_SHORT_UNITS, _NO_UNITS = set(_SHORT.split()), {*_NO_UNIT.split(), *FUNCTIONS}
_PIECE = (
    r"(?:\"[^\"]*\"|(?<![\\A-Za-z])[A-Za-z]{2,}\.?|(?<=\s)[A-Za-z](?![A-Za-z])|(?<=[/*])[A-Za-z](?![A-Za-z])"
    r"|\^\\circ(?![A-Za-z]))(?:\s*\^\s*(?:\{\s*-?\d\s*\}|-?\d))?"
)
_UNIT = re.compile(rf"(?<=[\d)}}\]%\s!A-Za-z])\s*{_PIECE}(?:[\s/*-]*{_PIECE}|\s*\\cdot\s*{_PIECE})*\s*$")
_PLURALS = re.compile(r"\b([a-z]{3,}[^s\W])s\b")
_SAME = [
    (re.compile(pattern), short)
    for pattern, short in (
        (r"\b(?:square|sq\.?) ?(\w+)", r"\1^2"),
        (r"\b(?:cubic|cu\.?) ?(\w+)", r"\1^3"),
        (r"\b(?:\w*)degree", "°"),
        (r"\^\\circ", "°"),
        (r"\b(?:centimet(?:er|re))\b", "cm"),
        (r"\b(?:millimet(?:er|re))\b", "mm"),
        (r"\b(?:kilomet(?:er|re))\b", "km"),
        (r"\b(?:met(?:er|re))\b", "m"),
        (r"\b(?:kilogram|kilo)\b", "kg"),
        (r"\bgram\b", "g"),
        (r"\b(?:lit(?:er|re))\b", "l"),
        (r"\b(?:hour|hr)\b", "h"),
        (r"\b(?:minute)\b", "min"),
        (r"\b(?:second|sec)\b", "s"),
        (r"\b(?:foot|feet)\b", "ft"),
        (r"\b(?:inch|inches)\b", "in"),
        (r"\bmile\b", "mi"),
        (r"\byard\b", "yd"),
        (r"\b(?:pound|lbs)\b", "lb"),
        (r"\bper\b", "/"),
    )
]


def _is_unit(text: str) -> bool:
    quoted = " ".join(re.findall(r"\"([^\"]*)\"", text))
    bare = re.sub(r"\"[^\"]*\"|\^\\circ|\\cdot", " ", text)
    if re.search(r"\d", quoted) or _NO_UNITS & set(re.findall(r"[a-z]+", (quoted + " " + bare).lower())):
        return False
    for word in re.findall(r"[A-Za-z]+", bare):
        if len(word) == 1 and word not in _LETTERS:
            return False
        if len(word) == 2 and word not in _SHORT_UNITS and not re.search(r"[A-Za-z]{3,}", bare):
            return False
        if len(word) > 2 and (set(word) <= set("xyz") or set(word) <= set("abc")):
            return False
    return True


def _same(unit: str) -> str:
    unit = unit.replace('"', " ").lower()
    unit = re.sub(r"\^\s*\{?\s*(-?\d)\s*\}?", r"^\1", unit)
    unit = _PLURALS.sub(r"\1", " ".join(unit.split()))
    for pattern, short in _SAME:
        unit = pattern.sub(short, unit)
    return re.sub(r"[\s.*]", "", unit)


def split_unit(text: str) -> tuple[str, str]:
    r""" "18 cm^2" → ("18", "cm^2"), '18 "square cm"' → the same; ("4x", "") where nothing behind it is a unit.

    An exponent behind a unit belongs to the unit. The unit comes in one short spelling.
    """
    match = _UNIT.search(text)
    if "\\circ" in text and re.search(r"\\?(?:sin|cos|tan|cot|sec|csc)", text):
        return text, ""  # the angle of a function, not the unit of the whole
    while match is not None and match.start() > 0:
        value = text[: match.start()].strip()
        if value and value[-1] not in "+-*/^_=\\({[," and _is_unit(match.group()):
            return value, _same(match.group())
        match = _UNIT.search(text, match.start() + 1)
    return text, ""
