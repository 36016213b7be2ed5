r"""Short answers in words against one or several golds: exact match, and the overlap of words F1.

Both after the usual normalisation of question answering (Rajpurkar et al. 2016, SQuAD, arXiv:1606.05250): lower case,
no punctuation, no articles, single spaces. The answer is the last \boxed{}, else `<answer>…</answer>`, `#### …`, the
last "answer is …", else the last line. What a tool returned, and reasoning that is closed, are not looked at.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

from rlvr_jax.tasks import answers
from rlvr_jax.verdict import Verdict

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_ASCII = frozenset(string.punctuation)
_LONGEST = 2000  # characters of an answer
_CLOSED = ("yes", "no", "noanswer")  # they share no words with a longer answer that contains them


def _is_punctuation(sign: str) -> bool:
    return sign in _ASCII or (not sign.isascii() and unicodedata.category(sign).startswith("P"))


def normalise(text: str) -> str:
    """ "The U.S. Navy!" → "us navy". Forms of one letter are one; where only an article is left, it stays."""
    text = unicodedata.normalize("NFKC", text).casefold()
    text = "".join(sign for sign in text if not _is_punctuation(sign))
    return " ".join(_ARTICLES.sub(" ", text).split()) or " ".join(text.split())


def _candidates(completion: str) -> tuple[list[str], str]:
    """The answer as it may have been meant, longest first: [] and the reason where there is none.

    A statement ends with its line or with its first sentence: "St. Louis." and "Paris, because …" are both answers.
    """
    text = answers.after_reasoning(answers.own_words(completion))
    if text is None:
        return [], answers.UNFINISHED
    found = answers.find(text)
    if found.text is not None and found.rule in ("box", "tag", "hash"):
        return [_unwrapped(found.text)], ""
    text = answers.unmark(text)
    for statement in reversed(answers.statements(text)):
        line = next((line.strip() for line in statement.split("\n") if line.strip()), "")
        if line:
            return list(dict.fromkeys([line[:_LONGEST], answers.sentence(line)])), ""
    if found.text is not None and found.rule == "stated":  # a heading, the answer on the next line
        return [found.text], ""
    line = answers.last_line(text)
    return ([line[:_LONGEST]], "") if line else ([], answers.NO_ANSWER)


def _unwrapped(text: str) -> str:
    r"""The content of a box without \text{…} around it."""
    inner = re.fullmatch(r"\s*\\(?:text|textbf|mathrm|mbox)\s*\{([^{}]*)\}\s*", text[:_LONGEST])
    return inner.group(1) if inner else text[:_LONGEST]


def f1(gold: str, answer: str) -> float:
    """2·precision·recall / (precision + recall) of the words of two normalised texts, repeated ones counted."""
    if (gold in _CLOSED or answer in _CLOSED) and gold != answer:
        return 0.0
    first, second = gold.split(), answer.split()
    shared = sum((Counter(first) & Counter(second)).values())
    return 2 * shared / (len(first) + len(second)) if shared else 0.0


def _best(golds: str | Sequence[str], completion: str, score) -> Verdict:
    """The best pair of a gold and a candidate."""
    golds = [golds] if isinstance(golds, str) else list(golds)
    wanted = [normal for gold in golds if isinstance(gold, str) and (normal := normalise(gold))]
    if not wanted:
        return Verdict(0.0, None, "unusable gold")
    candidates, reason = _candidates(completion)
    if not candidates:
        return Verdict(0.0, None, reason)
    pairs = [(score(gold, normalise(text)), text) for text in candidates for gold in wanted]
    outcome, text = max(pairs, key=lambda pair: pair[0])
    if outcome == 0.0:
        text = candidates[-1]
    several = f" or {len(golds) - 1} more" if len(golds) > 1 else ""
    reason = "correct" if outcome == 1.0 else f"≠ {golds[0]}{several}" if not outcome else f"F1 {outcome:.3f}"
    return Verdict(outcome, text, reason)


def verify_exact(golds: str | Sequence[str], completion: str) -> Verdict:
    """Outcome 1 when the final answer of `completion` is, normalised, one of `golds`; 0 otherwise.

    Reasons: "correct", "≠ gold", "no answer", "reasoning not closed", "unusable gold".
    """
    return _best(golds, completion, lambda gold, answer: float(gold == answer))


def verify_f1(golds: str | Sequence[str], completion: str) -> Verdict:
    """Outcome: the largest F1 of the final answer with one of `golds`, in [0, 1]; yes and no overlap only themselves.

    Reasons: as `verify_exact`, and "F1 0.667" between 0 and 1.
    """
    return _best(golds, completion, f1)
