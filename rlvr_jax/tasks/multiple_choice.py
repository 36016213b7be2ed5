"""Questions with labelled options: AQuA-RAT (Ling et al. 2017, arXiv:1705.04146), the SAT questions of AGIEval (Zhong
et al. 2023, arXiv:2304.06364), and files of their form."""

from __future__ import annotations

from collections.abc import Mapping

from rlvr_jax.tasks.checks import Findings, settle_checks
from rlvr_jax.tasks.files import LETTERS, FileTask, choice_answer, joined, options_of, read_splits
from rlvr_jax.tasks.rows import Unusable, text_of
from rlvr_jax.tasks.task import TASKS, Task

LETTER = "Think step by step, then put the letter of the right option in \\boxed{}."
_RIGHT = ("correct", "label", "answer", "answerKey")  # the fields that may hold the letter, or its place from 0


def _choice(row: Mapping) -> tuple[str, str, float]:
    question, options = text_of(row, "question"), options_of(row, "choices" if "choices" in row else "options")
    passage = text_of(row, "passage", optional=True)
    field = next((name for name in _RIGHT if row.get(name) is not None), None)
    if field is None:
        raise Unusable("fields", f"none of the fields {list(_RIGHT)}; the row has {sorted(row)}")
    right = row[field]
    if isinstance(right, int) and not isinstance(right, bool) and 0 <= right < len(options):
        right = LETTERS[right]
    prompt = joined(f"{passage}\n{question}" if passage else question, options)
    return prompt, choice_answer(str(right), options), 0.0


@TASKS.register
def multiple_choice(
    train: str, held_out: str | int, instruction: str = LETTER, example: str = "", checks: dict | None = None
) -> Task:
    """JSON lines with question, options (or choices), the right one's letter or place, and a passage if there is one.

    `held_out`: a second file, or a number of rows of the first to set apart.
    """
    findings = Findings("multiple_choice", settle_checks(checks))
    rows = read_splits(train, held_out, findings)
    return FileTask(rows, _choice, "choice", findings, instruction=instruction, example=example)
