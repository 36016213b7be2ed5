"""Problems that come as rows: what every problem set of files has in common, and your own JSON-lines files.

Nothing unusable reaches a training step: rows are checked when they are read (`rlvr_jax.tasks.checks`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping

from rlvr_jax.tasks.checks import Findings, same_prompt, settle_checks
from rlvr_jax.tasks.grade import Item, grade, make_check, unusable
from rlvr_jax.tasks.rows import Row, Unusable, answers_of, read_rows, text_of
from rlvr_jax.tasks.task import SPLITS, TASKS, Problem, Task

LETTERS = "ABCDEFGHIJ"
BOXED = "Think step by step, then put the final answer in \\boxed{}."
Reader = Callable[[Mapping], tuple[str, str, float]]  # a row → (prompt, answer, difficulty); raises Unusable


class FileTask(Task):
    """Problems out of rows. Problem ids count the usable rows, training ones first, and do not depend on the order.

    verifier: see `rlvr_jax.tasks.grade`. findings: what was found while reading, and what is done about it.

    Raises:
      ValueError: something that `findings.checks` refuses, with the rows' places; a split without problems.
    """

    def __init__(
        self,
        rows: Mapping[str, Iterable[Row]],
        reader: Reader,
        verifier: str,
        findings: Findings,
        *,
        example: str = "",
        instruction: str = "",
    ):
        """rows: by split. example: "question → answer", shown before every problem as a turn of its own, or "".
        instruction: a line after every question, or ""."""
        self.name, self.grader, self.findings = findings.task, verifier, findings
        self.instruction, self._check = instruction, make_check(verifier)
        self._where: dict[int, str] = {}
        read = {split: self._read(split_rows, reader) for split, split_rows in rows.items()}
        self._without_overlap(read)
        findings.refuse()
        self._splits = {}
        for split in SPLITS:
            start = len(self._where)
            self._where |= {start + i: where for i, (where, _) in enumerate(read[split])}
            self._splits[split] = [Problem(start + i, *parts) for i, (_, parts) in enumerate(read[split])]
            if not read[split]:
                raise ValueError(f"task={self.name}: the split {split!r} has no problems")
        self.size, self.held_out = len(self._where), len(self._splits["held_out"])
        if example:
            question, arrow, answer = example.partition("→")
            if not arrow:
                raise ValueError(f"task={self.name}: example={example!r}; expected 'question → answer'")
            self.example = (self._asked(question.strip()), self._answered(answer.strip()))

    def _read(self, rows: Iterable[Row], reader: Reader) -> list[tuple[str, tuple[str, str, float]]]:
        """(where, (prompt, answer, difficulty)) of the rows of one split that are kept."""
        kept, seen = [], {}
        for row in rows:
            try:
                prompt, answer, difficulty = reader(row.value)
                if fault := unusable(self.grader, answer):
                    raise Unusable("answers", f"the answer {answer!r:.80} cannot be used: {fault}")
            except Unusable as error:
                self.findings.add(error.kind, row.where, str(error))
                continue
            key = same_prompt(prompt)
            if key in seen and self.findings.add("repeats", row.where, f"the same prompt as {seen[key]}"):
                continue
            seen.setdefault(key, row.where)
            kept.append((row.where, (prompt, answer, difficulty)))
        return kept

    def _without_overlap(self, read: dict[str, list]) -> None:
        held_out = {same_prompt(parts[0]): where for where, parts in read["held_out"]}
        gone, told = set(), set()
        for where, parts in read["train"]:
            key = same_prompt(parts[0])
            if key in held_out and key not in told:
                told.add(key)
                if self.findings.add("overlap", where, f"the same prompt as {held_out[key]}, which is held out"):
                    gone.add(key)
        read["train"] = [item for item in read["train"] if same_prompt(item[1][0]) not in gone]

    def where(self, problem: Problem) -> str:
        """The place of a problem's row: "train.jsonl, line 3"."""
        return self._where[problem.problem_id]

    def report(self) -> list[str]:
        counts = f"{self.name}: {self.size - self.held_out} problems to train on, {self.held_out} held out"
        return [counts, *self.findings.lines()]

    def _asked(self, question: str) -> str:
        return f"{question}\n{self.instruction}" if self.instruction else question

    def messages(self, problem: Problem) -> list[dict[str, str]]:
        *before, last = super().messages(problem)
        return [*before, {**last, "content": self._asked(last["content"])}]

    def _answered(self, answer: str) -> str:
        first = answer.split("\n")[0]
        if self.grader == "answer_line":
            return f"Answer: {first}"
        return first if self.grader == "bare_number" else f"\\boxed{{{first}}}"

    def solution(self, problem: Problem) -> str:
        return self._answered(problem.answer)

    def verify(self, answer, completion, finished):
        return grade(self._check, Item(answer, completion, finished))


def set_apart(rows: list[Row], count: int, findings: Findings) -> dict[str, list[Row]]:
    """`count` of the rows as the held-out split, chosen by a hash of their place: the same ones everywhere.

    Raises:
      ValueError: not a number of rows that leaves some to train on.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count < len(rows):
        raise ValueError(f"task={findings.task}: held_out={count!r}; choose a file or a number in 1 … {len(rows) - 1}")
    order = lambda number: hashlib.blake2b(f"{findings.task}: {number}".encode(), digest_size=8).digest()
    chosen = set(sorted(range(len(rows)), key=order)[:count])
    return {
        "train": [row for number, row in enumerate(rows) if number not in chosen],
        "held_out": [row for number, row in enumerate(rows) if number in chosen],
    }


def read_splits(train: str, held_out: str | int, findings: Findings) -> dict[str, list[Row]]:
    """The rows of two files, or of one of which a number is set apart."""
    rows = read_rows(train, findings)
    if not isinstance(held_out, str):
        return set_apart(rows, held_out, findings)
    return {"train": rows, "held_out": read_rows(held_out, findings)}


# --- fields to problems ---


def joined(question: str, options: list[str]) -> str:
    """A question with its options below it, labelled A), B), …"""
    return "\n".join([question, *(f"{letter}) {text}" for letter, text in zip(LETTERS, options))])


def options_of(row: Mapping, field: str) -> list[str]:
    """The texts of the options without their labels: a list ("A) 3", "(A)3" or "3"), or an object by letter.

    Raises:
      Unusable: fewer than two or more than ten, one empty, or labels out of order.
    """
    value = row.get(field)
    if isinstance(value, dict):
        value = [f"{label}) {text}" for label, text in sorted(value.items())]
    if not isinstance(value, list) or not 2 <= len(value) <= len(LETTERS):
        raise Unusable("fields", f"the {field} are not two to ten texts: {value!r:.80}")
    bodies = [_unlabelled(str(text), letter) for text, letter in zip(value, LETTERS)]
    labelled = [body is not None for body in bodies]
    if any(labelled) and not all(labelled):
        raise Unusable("fields", f"the labels of the {field} are not A, B, … in order: {value!r:.80}")
    bodies = bodies if all(labelled) else [" ".join(str(text).split()) for text in value]
    if not all(bodies):
        raise Unusable("fields", f"one of the {field} is empty: {value!r:.80}")
    return bodies


def _unlabelled(text: str, letter: str) -> str | None:
    """The text of an option after its label, on one line; None where it has not this label."""
    text = " ".join(text.split())
    for label in (f"({letter})", f"{letter})", f"{letter}.", f"{letter}:"):
        if text.startswith(label):
            return text[len(label) :].strip()
    return None


def choice_answer(letter: str, options: list[str]) -> str:
    """A letter and the options as the verifier "choice" takes them.

    Raises:
      Unusable: no letter of an option.
    """
    letter = letter.strip(" ().").upper()
    if len(letter) != 1 or letter not in LETTERS[: len(options)]:
        raise Unusable("answers", f"the right option {letter!r:.20} is none of {LETTERS[: len(options)]}")
    return joined(letter, options)


def declared(question: str, answer: str, options: str, difficulty: str, verifier: str) -> Reader:
    """The reader of rows with these field names ("" where there is none)."""

    def read(row: Mapping) -> tuple[str, str, float]:
        prompt, golds = text_of(row, question), answers_of(row, answer)
        level = _level(row, difficulty) if difficulty else 0.0
        if options:
            texts = options_of(row, options)
            return joined(prompt, texts), choice_answer(golds[0], texts), level
        if len(golds) > 1 and verifier not in ("exact", "f1"):
            raise Unusable("answers", f"the {answer} is a list; only the verifiers 'exact' and 'f1' take several")
        several = verifier in ("exact", "f1")
        return prompt, "\n".join(" ".join(gold.split()) if several else gold for gold in golds), level

    return read


def _level(row: Mapping, field: str) -> float:
    """A number, or the number in a text such as "Level 3"."""
    digits = "".join(sign for sign in str(row.get(field, "")) if sign.isdigit() or sign in ".-")
    try:
        return float(digits)
    except ValueError:
        raise Unusable("fields", f"the {field} {row.get(field)!r:.40} is no number") from None


def check_verifier(task: str, verifier: str, options: str) -> str:
    """The verifier of a schema: "choice" where there are options.

    Raises:
      ValueError: unknown, or not one for options.
    """
    make_check(verifier)
    if options and verifier not in ("choice", "answer_line"):
        raise ValueError(f"task={task}: verifier={verifier!r}: with options={options!r} it is 'choice'")
    if verifier == "choice" and not options:
        raise ValueError(f"task={task}: verifier='choice' needs the name of the field options=")
    return "choice" if options else verifier


@TASKS.register
def jsonl(
    train: str,
    held_out: str | int,
    question: str = "question",
    answer: str = "answer",
    options: str = "",
    difficulty: str = "",
    verifier: str = "answer_line",
    example: str = "",
    instruction: str = "",
    checks: dict | None = None,
) -> Task:
    """JSON-lines files of your own, one object a line; the keywords from question to difficulty name its fields.

    `held_out`: a second file, or so many rows of the first. `verifier`: one of `rlvr_jax.tasks.grade`.
    """
    verifier = check_verifier("jsonl", verifier, options)
    findings = Findings("jsonl", settle_checks(checks))
    rows = read_splits(train, held_out, findings)
    reader = declared(question, answer, options, difficulty, verifier)
    return FileTask(rows, reader, verifier, findings, example=example, instruction=instruction)
