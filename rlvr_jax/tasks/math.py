r"""Competition mathematics in the form of MATH (Hendrycks et al. 2021, arXiv:2103.03874): problem, solution, level."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rlvr_jax.tasks.answers import last_box
from rlvr_jax.tasks.checks import Findings, settle_checks
from rlvr_jax.tasks.files import BOXED, FileTask, read_splits
from rlvr_jax.tasks.rows import Unusable, answers_of, text_of
from rlvr_jax.tasks.task import TASKS, Task


def _math(row: Mapping) -> tuple[str, str, float]:
    r"""The gold is the field answer, else the last \boxed{} of the solution; the difficulty its level, 0 if unknown."""
    if row.get("answer") is not None:
        gold = answers_of(row, "answer")[0]
    else:
        gold = last_box(text_of(row, "solution"))
        if gold is None or not gold.strip():
            raise Unusable("answers", "the solution has no \\boxed{answer}, and there is no field 'answer'")
    level = str(row.get("level", "")).rpartition(" ")[2]
    return text_of(row, "problem"), gold.strip(), float(level) if level.isdigit() else 0.0


@TASKS.register
def math(
    path: str = "",
    train: str = "",
    held_out: str | int = "",
    instruction: str = BOXED,
    example: str = "",
    checks: dict | None = None,
) -> Task:
    """MATH and its like. `path`: a folder with train and test, each a .jsonl file or a folder of .json files, one
    problem a file. Or `train` and `held_out`: files or folders (`held_out` may be a number of problems to set apart).
    """
    findings = Findings("math", settle_checks(checks))
    if bool(path) == bool(train):
        raise ValueError(f"task=math: path={path!r}, train={train!r}; give one of the two")
    if path:
        train, held_out = (_source(Path(path), name) for name in ("train", "test"))
    elif not held_out:
        raise ValueError("task=math: held_out=''; give a file, a folder or a number of problems")
    rows = read_splits(train, held_out, findings)
    return FileTask(rows, _math, "math", findings, instruction=instruction, example=example)


def _source(folder: Path, name: str) -> str:
    choices = [folder / f"{name}.jsonl", folder / f"{name}.json", folder / name]
    found = next((choice for choice in choices if choice.exists()), None)
    if found is None:
        raise FileNotFoundError(f"task=math: path={str(folder)!r}: none of {[choice.name for choice in choices]} there")
    return str(found)
