r"""Which option does a completion choose? Letters A to J, or as many as there are options.

The answer is looked for as in `rlvr_jax.tasks.verify_math`: the last \boxed{}, `<answer>`, `####`, the last "the
answer is …", the last line. There a letter counts as "B", "(b)", "B.", "B) 12", \text{B}, "option B"; the article
"a", the pronoun "I", the first letter of a word and an option that is refused ("not B") do not. Two letters in that
place are no answer. With the options given, their text counts as well, when it is that of only one of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlvr_jax.tasks import answers
from rlvr_jax.tasks.notation import tidy, words
from rlvr_jax.tasks.readings import Words, plain_number, read
from rlvr_jax.tasks.verify_math import equal
from rlvr_jax.verdict import Verdict

_LETTERS = "ABCDEFGHIJ"
_LABEL = re.compile(r"^\s*\(?([A-J])\s*[).:]\s*")
_LEAD = re.compile(
    r"^(?:\s|[:=*_]|\b(?:the|is|it's|it|option|choice|letter|answer|number|definitely|probably|clearly|either|both)\b)+",
    re.IGNORECASE,
)
_REFUSED = re.compile(r"\b(?:not|n't|rather than|instead of|neither|nor)\s+(?:option |choice )?\(?[A-J]\b\)?[,;]?")
_WRAPPED = r"[(\[{*\"']\s*([A-Ja-j])\s*[)\]}*\"']"
_FIRST = re.compile(rf"{_WRAPPED}|([A-J])(?![A-Za-z0-9'’+*/^=_<>\\-])|([a-j])(?=\s*[).:]|\s*$)")
_AFTER_ARTICLE = re.compile(
    r"\s*$|\s*[.,;:)\]\-—*]|\s+(?:because|since|as|which|so|where|and|or|for|is|by|from|with|based|due|[A-J]\b|\()"
)
_JOINED = re.compile(
    rf"\s*(?:,|/|&|;|\bor\b|\band\b|,\s*(?:or|and)\b)\s*(?:option |choice )?"
    rf"(?:{_WRAPPED}|([B-HJ]|[AI](?! (?!because|since|is|are|as|which|but)[a-z]))(?!\w|'))"
)
_MENTIONS = re.compile(
    r"\b(?:[Oo]ption|[Cc]hoice|[Ll]etter)\s+\(?([A-J])\b|(?<![\w)])\(([A-J])\)(?!\w)"
    r"|(?<!\w )\b([A-J])\s+is\s+(?:the\s+)?(?:correct|right|best|final|answer)\b"
    r"|\b[Ss]o,?\s+([A-J])\s+is\s+(?:the\s+)?(?:correct|right|best|final|answer)\b"
    r"|\b(?:must be|has to be|choose|pick|select|go with)\s+([A-J])(?=\W*$|[.,;])"
)
_ALONE = re.compile(
    r"\s*(?:\(?[A-J]\)|[A-J]\s*[.:]|\(?[A-Ja-j]\)?\s*[.:]?\s*$"
    r"|(?:(?:[Bb]oth|[Ee]ither) )?[A-J](?:\W+(?:or|and)?\W*[A-J])+\W*$)"
)
_STATED_NOUNS = ("answer", "answers", "option", "choice")


def _group(match: re.Match) -> str:
    return next(letter for letter in match.groups() if letter).upper()


def _leading_letters(text: str) -> list[str]:
    """The letter that a statement begins with and those joined to it: [] where it begins with none."""
    text = _LEAD.sub("", _REFUSED.sub(" ", text).strip())
    match = _FIRST.match(text)
    if match is None:
        return []
    if match.group(2) in ("A", "I") and not _AFTER_ARTICLE.match(text, match.end()):
        return []
    letters = [_group(match)]
    position = match.end()
    while joined := _JOINED.match(text, position):
        letters.append(_group(joined))
        position = joined.end()
    return letters


def _body(option: str) -> str:
    return _LABEL.sub("", option).strip()


def _word_for_word(text: str, options: Sequence[str]) -> list[str]:
    """The letters of the options with exactly this text."""
    own = words(tidy(text))
    return [letter for letter, option in zip(_LETTERS, options) if own and words(tidy(_body(option))) == own]


def _matching(text: str, options: Sequence[str]) -> list[str]:
    """The letters of the options that say the same, a label in front of the text aside: in words, else by value."""
    same = _word_for_word(_LABEL.sub("", text), options)
    for candidate in () if same else (text, plain_number(text)):
        reading = read(candidate) if candidate else None
        if reading is not None and not isinstance(reading, Words):
            same = same or [letter for letter, option in zip(_LETTERS, options) if _equal(_body(option), reading)]
    return same


def _equal(option: str, reading) -> bool:
    """An option that cannot be computed is not the answer; the others may still be."""
    try:
        golden = read(option)
        return golden is not None and equal(golden, reading)
    except ValueError:
        return False


def _chosen(text: str, options: Sequence[str]) -> list[str]:
    """The letters that a final statement chooses."""
    same = _word_for_word(text, options)
    text = re.sub(r"\\(?:text|mathrm|mathbf|textbf|mbox)\s*\{([^{}]*)\}", r"\1", answers.unmark(text))
    text = re.sub(r"\$|\\[()\[\]]", " ", text).strip()
    if len(same) == 1 and not re.fullmatch(r"\W*[A-J]\W*", text):
        return same  # "I and II only", or the variable a
    letters = list(dict.fromkeys(_leading_letters(text)))
    matching = same or _matching(text, options)
    if len(letters) == 1 and matching and letters[0] not in matching and not re.fullmatch(r"\W*[A-Ja-j]\W*", text):
        return sorted({*letters, *matching})  # "B) 40" where 40 is the text of A
    return letters or matching


def _last_line(text: str, number: str | None, options: Sequence[str]) -> list[str]:
    line = answers.last_line(answers.unmark(text))[-1000:]
    if len(line) <= 200 and (letters := _chosen_alone(line)):
        return letters
    mentioned = [_group(match) for match in _MENTIONS.finditer(_REFUSED.sub(" ", line))]
    if mentioned:
        return list(dict.fromkeys(mentioned))
    return _word_for_word(line, options) or (_matching(number, options) if number is not None else [])


def _chosen_alone(line: str) -> list[str]:
    """Letters of a line that is an answer by itself: "B", "(B)", "B.", "B) 12"; not of "B is larger than A"."""
    return list(dict.fromkeys(_leading_letters(line))) if _ALONE.match(line) else []


def _letters(text: str, options: Sequence[str]) -> list[str]:
    """The letters that the deciding place of a text chooses."""
    found = answers.find(text)
    if found.rule in ("box", "tag", "hash"):
        return _chosen(found.text, options)
    text = answers.unmark(text)
    for statement in reversed(answers.statements(text, _STATED_NOUNS)):
        line = next((line.strip() for line in statement.split("\n") if re.search(r"\w", line)), "")
        if line:
            same = _word_for_word(line, options)
            if len(same) == 1 and len(line) > 2:
                return same
            several = list(dict.fromkeys(_leading_letters(line)))  # before the sentence is cut: "B. or C"
            return several if len(several) > 1 else _chosen(answers.sentence(line), options) or several
    if found.rule == "stated":
        return _chosen(found.text, options)
    return _last_line(text, found.text, options)


def verify_choice(gold: str, completion: str, options: Sequence[str] | None = None) -> Verdict:
    r"""Outcome 1 when the option that `completion` chooses is `gold`, 0 otherwise; never raises.

    Args:
      gold: the letter of the right option: "B" or "(B)".
      completion: what the policy wrote.
      options: their texts, with or without labels ("B) 12"), first A; None: unknown.
    Reasons: "correct", "≠ B", "no answer", "reasoning not closed", "ambiguous: B, D", "no such option: H", "unusable
    gold", and "checker failed: …" for a fault of the checker, which callers count.
    """
    try:
        options = list(options or ())[: len(_LETTERS)]
        letters = _LETTERS[: len(options)] if options else _LETTERS
        match = re.fullmatch(r"\s*\(?([A-Ja-j])[).]?\s*", gold) if isinstance(gold, str) else None
        right = match.group(1).upper() if match else ""
        if not right or right not in letters:
            return Verdict(0.0, None, "unusable gold")
        text = answers.after_reasoning(answers.own_words(completion))
        if text is None:
            return Verdict(0.0, None, answers.UNFINISHED)
        chosen = _letters(text, options)
    except Exception as error:  # a completion must never end a run; the reason tells it from a wrong answer
        return Verdict(0.0, None, f"checker failed: {type(error).__name__}")
    if not chosen:
        return Verdict(0.0, None, answers.NO_ANSWER)
    if len(chosen) > 1:
        return Verdict(0.0, None, f"ambiguous: {', '.join(chosen)}")
    if chosen[0] not in letters:
        return Verdict(0.0, chosen[0], f"no such option: {chosen[0]}")
    return Verdict(1.0, right, "correct") if chosen[0] == right else Verdict(0.0, chosen[0], f"≠ {right}")
