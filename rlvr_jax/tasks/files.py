"""Problems of your own: JSON-lines files, or a data set prepared with TensorFlow Datasets (read without TensorFlow).

The answer of every problem is a number; a completion is right when it ends with `Answer: N`, N equal to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from rlvr_jax.tasks.task import SPLITS, TASKS, Problem, Task
from rlvr_jax.tasks.verify import to_number, verify_answer_line


class FileTask(Task):
    """Problems read from files, checked when they are read: nothing unusable reaches a training step.

    Problem ids count through both splits, train first. Difficulty is not known, and 0.

    Raises:
      ValueError: a row without question or answer, an answer that is no number, a question twice in one split or in
        both; names the row.
    """

    def __init__(self, name: str, rows: Mapping[str, Iterable[tuple[str, str, str]]], example: str = ""):
        """rows: split → (where, question, answer), `where` naming the row in errors. example: "question → answer",
        shown before every problem as a turn of its own, or ""."""
        self.name = name
        self._splits, seen = {}, {}
        for split in SPLITS:
            self._splits[split] = problems = []
            for where, question, answer in rows[split]:
                self._check(where, question, answer, seen)
                problems.append(Problem(len(seen) - 1, question, answer))
            if not problems:
                raise ValueError(f"task={name}: the split {split!r} has no problems")
        self.size, self.held_out = len(seen), len(self._splits["held_out"])
        if example:
            question, arrow, answer = example.partition("→")
            if not arrow:
                raise ValueError(f"task={name}: example={example!r}; expected 'question → answer'")
            self.example = (question.strip(), f"Answer: {answer.strip()}")

    def _check(self, where: str, question: str, answer: str, seen: dict[str, str]) -> None:
        if not question.strip():
            raise ValueError(f"{where}: the question is empty")
        if to_number(answer) is None:
            raise ValueError(f"{where}: the answer {answer!r} is not a number")
        key = " ".join(question.split())
        if key in seen:
            raise ValueError(f"{where}: the same question as {seen[key]}; remove one, or the splits overlap")
        seen[key] = where

    def solution(self, problem: Problem) -> str:
        return f"Answer: {problem.answer}"

    def verify(self, answer, completion, finished):
        return verify_answer_line(answer, completion, finished)


def _text(value) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _pick(where: str, row: Mapping, question: str, answer: str) -> tuple[str, str, str]:
    for field in (question, answer):
        if row.get(field) is None:
            raise ValueError(f"{where}: no field {field!r}; the row has {sorted(row)}")
    return where, _text(row[question]), _text(row[answer]).strip()


def _json_rows(path: str, question: str, answer: str) -> Iterable[tuple[str, str, str]]:
    if not Path(path).is_file():
        raise FileNotFoundError(f"task=jsonl: {path} does not exist")
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"task=jsonl: {path} is not UTF-8 ({error.reason} at byte {error.start})") from None
    else:
        for number, line in enumerate(text.rstrip().split("\n") if text.strip() else [], 1):
            where = f"{path}, line {number}"
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{where}: not JSON ({error.msg})") from None
            if not isinstance(row, dict):
                raise ValueError(f"{where}: not a JSON object")
            yield _pick(where, row, question, answer)


@TASKS.register
def jsonl(train: str, held_out: str, question: str = "question", answer: str = "answer", example: str = "") -> Task:
    """Two JSON-lines files, one object a line; `question` and `answer` name its fields."""
    rows = {"train": _json_rows(train, question, answer), "held_out": _json_rows(held_out, question, answer)}
    return FileTask("jsonl", rows, example)


@TASKS.register
def tfds(
    directory: str,
    train: str = "train",
    held_out: str = "test",
    question: str = "question",
    answer: str = "answer",
    example: str = "",
) -> Task:
    """A data set that TensorFlow Datasets wrote as ArrayRecord: `directory` is its version folder (…/name/1.0.0),
    `train` and `held_out` are names or slices of its splits ("test[:200]")."""
    import tensorflow_datasets  # seconds to import, and few runs need it

    try:
        builder = tensorflow_datasets.builder_from_directory(directory)
        sources = {s: builder.as_data_source(split=name) for s, name in (("train", train), ("held_out", held_out))}
    except (tensorflow_datasets.core.DatasetNotFoundError, OSError, ValueError, NotImplementedError) as error:
        raise ValueError(f"task=tfds: directory={directory!r}: {error}") from None

    def read(split: str):
        for index in range(len(sources[split])):
            yield _pick(f"{directory} {split} row {index}", sources[split][index], question, answer)

    rows = {split: read(split) for split in sources}
    return FileTask("tfds", rows, example)
