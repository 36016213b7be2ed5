r"""Where a completion states its final answer. Nothing here knows the right one.

Only what the policy wrote after its reasoning counts. Then, the first rule that finds something decides:

    box      the last balanced \boxed{…}
    tag      the last <answer>…</answer>
    hash     the last line "#### …"
    stated   the last "answer is …", "Final answer: …", …
    number   the last number of the last line

All patterns are linear in the length of the completion.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Found(NamedTuple):
    """A final answer as written, or none and why."""

    text: str | None
    rule: str  # "box", "tag", "hash", "stated", "number"; without an answer the reason for it


NO_ANSWER = "no answer"
UNFINISHED = "reasoning not closed"
SEVERAL = "several candidates"
_WORD = re.compile(r"\w")
_LINE = 1000  # characters of a line that are looked at
_TAIL = 100_000  # characters before the end that are looked at: more than any policy is given tokens for

_TOOLS = "tool_response|tool_result|tool_output|function_result|function_response|observation|interpreter|information"
_TOOL = re.compile(rf"<(?:{_TOOLS}|output)>|</(?:{_TOOLS}|output)>|```output\b|```", re.IGNORECASE)
_BRACES = re.compile(r"\\f?boxed\s*\{|\\.|[{}]", re.DOTALL)
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_HASH = re.compile(r"^[ \t]*####(?!#)[ \t]*(.*)$", re.MULTILINE)
_ADVERBS = r"(?:(?:therefore|thus|then|hence|simply|just|indeed|now|clearly|also|actually)\b[ ,]{0,4}){0,3}"
_VERB = rf"{_ADVERBS}(?:(?:is|are|was|equals|becomes)\b|(?:should|must|would|will)[ ]be\b|comes[ ]to\b)[ ]{{0,4}}[:=]?"
_STATED = re.compile(
    rf"\b(?P<noun>answers?|option|choice|solution)\b(?:[ ]to[ ](?:the|this)[ ](?:question|problem))?"
    rf"[ ]{{0,4}},?[ ]{{0,4}}(?:{_VERB}|[:=])[ ]{{0,4}}{_ADVERBS}",
    re.IGNORECASE,
)
_HEADING = re.compile(r"^\W*(?:the )?(?:final )?answer\W*$", re.IGNORECASE)
_NEGATED = re.compile(r"^[ ]*(?:not|never|neither|n't|isn't|wrong|incorrect)\b", re.IGNORECASE)
_BUT = re.compile(r"^[ ]*not[ ][^.,;\n]{1,40}?,?[ ]but[ ](?:rather[ ]|instead[ ])?", re.IGNORECASE)
_CLAUSE = re.compile(
    r"(?<!\bRs)[.!?](?=[ \"')\]]*(?:[ ]|$))|;[ ]|[ ]—|"
    r",?[ ](?:because|since|as|which|so|where|when|given|due|after|if|but|for"
    r"|assuming|meaning|thus|therefore|hence)[ ,]",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    r"(?<![\w^_{\\.,/])(?:(?<![)}\]])[-−–+])?[$€£]?[-−–]?"
    r"(?:\d+[ ]\d+/\d+|\d+(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:/\d+(?:\.\d+)?)?"
    r"(?:[eE][-+]?\d+)?(?:[ ]?(?:\\?%|percent\b))?",
    re.ASCII,
)
# behind a number: it is part of an expression; letters may be a unit, as in 25km
_PART = re.compile(
    r"\s*[\^_]|\s*\\[A-Za-z]|[{}(]|\s+(?:and (?:a|one|two|three) |half|dozen|(?:hundr|thous|mill|bill|trill))"
    r"|(?![A-Za-z]{2,}\b|[mgshLl]\b)\w"
)
_MATH_SPAN = re.compile(r"\$([^$]{1,300})\$|\\\((.{1,300}?)\\\)")


def own_words(completion: str) -> str:
    """The completion without what a tool returned: those blocks are somebody else's words, closed or cut off."""
    kept, start, closing = [], 0, None
    for match in _TOOL.finditer(completion):
        mark = match.group().lower()
        if closing is None and mark.startswith("<") and not mark.startswith("</"):
            closing = "</" + mark[1:]
        elif closing is None and mark == "```output":
            closing = "```"
        elif mark == closing:
            closing, start = None, match.end()
            continue
        else:
            continue
        kept.append(completion[start : match.start()])
    if closing is None:
        kept.append(completion[start:])
    return "\n".join(kept)


def after_reasoning(text: str) -> str | None:
    """The end of what follows the last `</think>`, without blank lines; None where a `<think>` is left open."""
    text = text.rpartition("</think>")[2]
    return None if "<think>" in text else re.sub(r"\n\s+", "\n", text[-_TAIL:])


def last_box(text: str) -> str | None:
    r"""The content of the last \boxed{…} whose braces balance, in one pass over the text."""
    stack, best = [], (-1, -1)
    for match in _BRACES.finditer(text):
        token = match.group()
        if token == "{" or token.endswith("boxed{") or token.startswith(("\\boxed", "\\fbox")):
            stack.append(match.end() if len(token) > 1 else -1)
        elif token == "}" and stack:
            begin = stack.pop()
            if begin > best[0]:
                best = (begin, match.start())
    return text[best[0] : best[1]] if best[0] >= 0 else None


def _last_tag(text: str) -> str | None:
    begin, content = None, None
    for match in _TAG.finditer(text):
        if not match.group(1):
            begin = match.end()
        elif begin is not None:
            content, begin = text[begin : match.start()], None
    return content


def _last_hash(text: str) -> str | None:
    """A "####" line; a heading of words with more text below it is a title, not an answer."""
    found, end = None, len(text.rstrip())
    for match in _HASH.finditer(text):
        line = match.group(1).strip()
        if line and (not line[0].isalpha() or match.end() >= end):
            found = line
    return found


def sentence(text: str) -> str:
    """The first line of a statement, up to its full stop or the clause that explains it."""
    line = next((line.strip() for line in text.split("\n") if _WORD.search(line)), "")
    line = line[:_LINE]
    cut = _CLAUSE.search(line, 1)
    return (line[: cut.start()] if cut else line).strip(" *_`\t\"'")


def unmark(text: str) -> str:
    """Without the signs of Markdown for bold and code; ** between two digits is a power and stays."""
    return re.sub(r"(?<!\d)\*\*|\*\*(?!\d)|`", "", text)


def statements(text: str, nouns: tuple[str, ...] = ("answer", "answers")) -> list[str]:
    """What follows each "answer is …" of a text, first to last, those that say "is not" left out; of "is not … but …"
    what follows the but."""
    found = []
    for match in _STATED.finditer(text):
        tail = text[match.end() : match.end() + _LINE]
        if but := _BUT.match(tail):
            tail = tail[but.end() :]
        if match.group("noun").lower() in nouns and not _NEGATED.match(tail):
            found.append(tail)
    return found


def last_line(text: str) -> str:
    """The last line with a letter or digit on it."""
    return next((line.strip() for line in reversed(text.split("\n")) if _WORD.search(line)), "")


def _last_number(text: str) -> Found:
    line = last_line(text)[-_LINE:]
    if re.search(r"\banswers?\b[^.]{0,40}(?:\bnot\b|n't\b)", line, re.IGNORECASE):
        return Found(None, NO_ANSWER)  # "the answer is not 5" names what it refuses
    spans = [span for span in _MATH_SPAN.finditer(line) if not re.search(r"\d", line[span.end() :])]
    if spans and re.search(r"\d", spans[-1].group()):
        return Found((spans[-1].group(1) or spans[-1].group(2)).strip(), "number")
    numbers = list(_NUMBER.finditer(line))
    if not numbers or re.search(r"[\d√]", line[numbers[-1].end() :]):
        return Found(None, NO_ANSWER)  # the last digits belong to something larger, of which no part counts
    last = numbers[-1]
    if _PART.match(line, last.end()):
        return Found(None, NO_ANSWER)
    if len(numbers) > 1 and re.fullmatch(r"[^\d.]{0,20}\bor\s+", line[numbers[-2].end() : last.start()] + " "):
        return Found(None, SEVERAL)
    return Found(last.group().strip(" +"), "number")


def _stated(text: str) -> str | None:
    lines = text.split("\n")
    for index in range(len(lines) - 2, -1, -1):  # "Final answer", and the answer on the next line
        if _HEADING.match(lines[index]):
            rest = "\n".join(lines[index + 1 :])
            return None if statements(rest) else sentence(rest) or None
        if _STATED.search(lines[index]):
            break
    found = statements(text)
    return (sentence(found[-1]) or None) if found else None


def final_answer(completion: str) -> Found:
    """The answer that a completion ends with, by the rules above."""
    text = after_reasoning(own_words(completion))
    return Found(None, UNFINISHED) if text is None else find(text)


def find(text: str) -> Found:
    """The answer that a text ends with, tools and reasoning already taken off."""
    box = last_box(text)
    if box is not None:
        return Found(box.strip(), "box")
    tag = _last_tag(text)
    if tag is not None:
        inner = find(tag) if "\n" in tag.strip() or _STATED.search(tag) else Found(None, "")
        return inner if inner.text is not None else Found(unmark(tag).strip(), "tag")
    found = _last_hash(text)
    if found is not None:
        return Found(sentence(unmark(found)), "hash")
    text = unmark(text)
    found = _stated(text)
    if found is not None:
        return Found(found, "stated")
    return _last_number(text)
