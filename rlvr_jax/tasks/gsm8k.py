"""Word problems with a number as the answer: GSM8K (Cobbe et al. 2021, arXiv:2110.14168) and SVAMP (Patel et al. 2021,
arXiv:2103.07191), read from a folder of the user's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rlvr_jax.tasks.checks import Findings, settle_checks
from rlvr_jax.tasks.files import BOXED, FileTask, set_apart
from rlvr_jax.tasks.rows import Unusable, answers_of, read_rows, text_of
from rlvr_jax.tasks.task import TASKS, Task


def _gsm8k(row: Mapping) -> tuple[str, str, float]:
    """The gold stands after "####"; the difficulty is the number of steps before it."""
    steps, mark, gold = text_of(row, "answer").rpartition("####")
    if not mark or not gold.strip():
        raise Unusable("answers", "the answer has no '#### number'")
    return text_of(row, "question"), gold.strip(), float(len([line for line in steps.split("\n") if line.strip()]))


@TASKS.register
def gsm8k(path: str, instruction: str = BOXED, example: str = "", checks: dict | None = None) -> Task:
    """GSM8K: `path` is a folder with train.jsonl and test.jsonl, whose rows have question and answer.

    Difficulty: the number of lines of the worked answer.
    """
    findings = Findings("gsm8k", settle_checks(checks))
    files = {"train": "train.jsonl", "held_out": "test.jsonl"}
    rows = {split: read_rows(Path(path) / file, findings) for split, file in files.items()}
    return FileTask(rows, _gsm8k, "math", findings, instruction=instruction, example=example)


def _svamp(row: Mapping) -> tuple[str, str, float]:
    body, question = text_of(row, "Body"), text_of(row, "Question")
    joint = " " if body.endswith((".", "?", "!", ",")) else ". "
    operations = sum(sign in "+-*/" for sign in str(row.get("Equation", "")))
    return f"{body}{joint}{question}", answers_of(row, "Answer")[0], float(operations)


@TASKS.register
def svamp(
    path: str, held_out: int = 300, instruction: str = BOXED, example: str = "", checks: dict | None = None
) -> Task:
    """SVAMP: `path` is a JSON-lines or JSON file whose rows have Body, Question and Answer; `held_out` rows are set
    apart. Difficulty: the number of operations of the Equation."""
    findings = Findings("svamp", settle_checks(checks))
    rows = set_apart(read_rows(path, findings), held_out, findings)
    return FileTask(rows, _svamp, "math", findings, instruction=instruction, example=example)
