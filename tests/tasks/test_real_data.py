"""The verifiers on public data sets: every gold is right for itself in every form, and for no other row's.

Needs the files, which are not shipped: RLVR_DATA=FOLDER with gsm8k/, aqua_rat/, agieval/ and svamp/ as published.
`RLVR_DATA=… python tests/tasks/test_real_data.py` prints the counts and the rows that fail.
"""

import os
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from rlvr_jax.tasks import make_task, verify_math
from rlvr_jax.tasks.grade import Item, grade, make_check

ROOT = Path(os.environ.get("RLVR_DATA") or "/nowhere")
SETS = {
    "gsm8k": f"gsm8k(path='{ROOT}/gsm8k')",
    "svamp": f"svamp(path='{ROOT}/svamp/test.jsonl')",
    "aqua": f"multiple_choice(train='{ROOT}/aqua_rat/dev.jsonl', held_out='{ROOT}/aqua_rat/test.jsonl')",
    "sat": f"multiple_choice(train='{ROOT}/agieval/sat-math.jsonl', held_out=50)",
}
LENIENT = {"fields": "drop", "answers": "drop", "repeats": "drop", "overlap": "drop"}


def number_forms(gold):
    """A number in the ways one writes it; the fraction and the decimal only where they are exact."""
    value = Fraction(gold.replace(",", ""))
    forms = {
        "boxed": rf"Step by step. \boxed{{{gold}}}",
        "sentence": f"We add them up. The answer is {gold}.",
        "hash": f"We add them up.\n#### {gold}",
        "decimal": rf"\boxed{{{float(value):.2f}}}" if value * 100 % 1 == 0 and abs(value) < 2**50 else None,
        "fraction": rf"\boxed{{\frac{{{value.numerator * 6}}}{{{value.denominator * 6}}}}}",
        "thousands": f"The answer is {value.numerator:,}." if value.denominator == 1 else None,
        "dollars": f"So she has ${gold}.00 left." if value.denominator == 1 else None,
    }
    return {name: text for name, text in forms.items() if text}


def choice_forms(answer):
    """A letter in the ways one gives it, and the text of its option where no other option has it."""
    letter, *options = answer.split("\n")
    body = next(option[3:] for option in options if option.startswith(f"{letter})"))
    forms = {
        "boxed": rf"Step by step. \boxed{{{letter}}}",
        "sentence": f"We compare them. The answer is {letter}.",
        "labelled": f"The answer is ({letter}) {body}",
        "tag": f"<answer>{letter}</answer>",
    }
    if sum(option[3:] == body for option in options) == 1:
        forms["text"] = rf"The answer is: {body}"
    return forms


def examine(name, checks=None):
    """(counts by form, rows that fail) of a set: each gold against itself in every form, and against the next row's."""
    task = make_task(SETS[name], checks or LENIENT)
    problems = [*task.problems("train"), *task.problems("held_out")]
    check = make_check(task.grader)
    counts, failures = {}, []
    for problem, other in zip(problems, problems[1:] + problems[:1]):
        choice = task.grader == "choice"
        forms = choice_forms(problem.answer) if choice else number_forms(problem.answer)
        for form, text in forms.items():
            verdict = grade(check, Item(problem.answer, text))
            counts[form] = counts.get(form, 0) + 1
            if verdict.outcome != 1.0:
                failures.append((form, task.where(problem), problem.answer, text, verdict))
        same = problem.answer[0] == other.answer[0] if choice else equal(problem.answer, other.answer)
        if not same:
            theirs = choice_forms(other.answer) if choice else number_forms(other.answer)
            for form in ("boxed", "sentence"):
                verdict = grade(check, Item(problem.answer, theirs[form]))
                counts["next row"] = counts.get("next row", 0) + 1
                if verdict.outcome != 0.0:
                    failures.append((f"next row, {form}", task.where(problem), problem.answer, theirs[form], verdict))
    return task, counts, failures


def equal(first, second):
    return Fraction(first.replace(",", "")) == Fraction(second.replace(",", ""))


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_every_gold_is_right_for_itself_alone(name):
    if not ROOT.is_dir():
        pytest.skip("the public data sets are not here: set RLVR_DATA to their folder")
    _, counts, failures = examine(name)
    assert sum(counts.values()) > 500 and not failures


def main():
    if not ROOT.is_dir():
        sys.exit("set RLVR_DATA to the folder of the public data sets")
    for name in SETS:
        task, counts, failures = examine(name)
        print("\n".join(task.report()))
        print(f"  graded {sum(counts.values())}: {counts}; failures {len(failures)}")
        for failure in failures:
            print("   ", *failure, sep=" | ")
    assert verify_math("1", "1").outcome == 1.0


if __name__ == "__main__":
    main()
