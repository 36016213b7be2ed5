"""Any data set of reasoning-gym by its name, with its own settings and its own scorer: made, not downloaded.

An answer is "entry I: text": where it is graded the data set is made again and its entry I scored, so that whatever a
scorer needs of an entry is there. An entry that comes out different there gives no verdict rather than a wrong one.

Some scorers evaluate what they are given. What looks like code never reaches one, and a process of the pool refuses
to write files, start processes or use the network (`rlvr_jax.tasks.guard`).
"""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping

from rlvr_jax.registry import nearest
from rlvr_jax.tasks import answers
from rlvr_jax.tasks.checks import Findings, settle_checks
from rlvr_jax.tasks.files import FileTask
from rlvr_jax.tasks.grade import HASH_SEED
from rlvr_jax.tasks.rows import Row, Unusable
from rlvr_jax.tasks.task import TASKS, Task
from rlvr_jax.verdict import Verdict

TAGGED = "Think step by step, then give the final answer as <answer>…</answer>, and nothing else in the tags."
_LONGEST = 20_000  # characters of an answer that a scorer may see
_CODE = re.compile(
    r"__|\b(?:import|lambda|eval|exec|compile|open|input|getattr|setattr|delattr|globals|locals|vars|breakpoint|sympify"
    r"|lambdify|preview|subprocess|builtins|os|sys)\b\s*[(.]|\bimport\b|\\x[0-9a-fA-F]{2}|\*\*\s*\(?\s*\d{4,}"
    r"|\*\*[^*\n]{1,40}\*\*"
)
_ENTRY = re.compile(r"entry (\d+): (.*)", re.DOTALL)


def make_dataset(name: str, settings: Mapping, seed: int, size: int):
    """
    Raises:
      ValueError: reasoning-gym is not installed, has no such data set, or refuses the settings.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise ValueError("task=gym: reasoning-gym is not installed: pip install 'rlvr-jax[gym]'") from None
    if name not in DATASETS:
        raise ValueError(f"task=gym: name={name!r}: unknown{nearest(name, DATASETS)} Choose from {sorted(DATASETS)}")
    try:
        return reasoning_gym.create_dataset(name, seed=seed, size=size, **settings)
    except (TypeError, AssertionError, ValueError) as error:
        raise ValueError(f"task=gym: name={name!r}, settings={dict(settings)!r}: {error}") from None


def final_text(completion: str) -> tuple[str | None, str]:
    r"""What a scorer is given: the last box, `<answer>`, "####" or stated answer, else all that follows the reasoning;
    or None and why."""
    text = answers.own_words(completion).rpartition("</think>")[2]
    if "<think>" in text:
        return None, answers.UNFINISHED
    tagged = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL | re.IGNORECASE)
    if tagged:  # before a box: a box inside is taken off below, and grids in tags keep their lines
        box = answers.last_box(tagged[-1])
        return (tagged[-1] if box is None else box).strip("\n"), ""
    found = answers.find(answers.after_reasoning(text))
    if found.text is not None and found.rule in ("box", "hash", "stated"):
        return found.text, ""
    return (text.strip(), "") if text.strip() else (None, answers.NO_ANSWER)


def make_check(name: str, settings: Mapping, seed: int, size: int):
    """(answer, completion) → Verdict by the data set's scorer."""
    dataset = make_dataset(name, settings, seed, size)

    def check(answer: str, completion: str) -> Verdict:
        index, gold = _ENTRY.fullmatch(answer).groups()
        text, reason = final_text(completion)
        if text is None:
            return Verdict(0.0, None, reason)
        if len(text) > _LONGEST or _CODE.search(text):
            return Verdict(0.0, text[:2000], "refused: looks like code" if len(text) <= _LONGEST else "answer too long")
        entry = dataset[int(index)]
        if str(entry["answer"]) != gold:
            raise RuntimeError(f"entry {index} of {name} is another one in this process; grade in processes of a pool")
        score = min(max(float(dataset.score_answer(answer=text, entry=entry)), 0.0), 1.0)
        return Verdict(score, text[:2000], "correct" if score == 1.0 else f"scored {score:.3g}")

    return check


class GymTask(FileTask):
    """A made data set; rows are its entries."""

    def solution(self, problem):
        gold = _ENTRY.fullmatch(problem.answer).group(2)
        return f"<answer>{gold}</answer>"


def _entry(row: Mapping) -> tuple[str, str, float]:
    if not row["question"].strip():
        raise Unusable("fields", "the question is empty")
    return row["question"], f"entry {row['index']}: {row['answer']}", row["difficulty"]


@functools.lru_cache(maxsize=8)
def _entries(name: str, settings: str, seed: int, size: int) -> tuple[dict, ...]:
    """The entries of a data set, made in a process of their own whose hashes are those of the grading processes: some
    data sets depend on the order of a set, and would differ by host and by start.

    Raises:
      ValueError: what that process said.
    """
    make_dataset(name, ast.literal_eval(settings), seed, size)  # what is wrong with them is said here
    command = [sys.executable, "-m", "rlvr_jax.tasks.entries", name, settings, str(seed), str(size)]
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        command, capture_output=True, env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": HASH_SEED}
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ValueError(f"task=gym: name={name!r}, settings={settings}: {' '.join(last)}")
    return tuple(json.loads(line) for line in done.stdout.splitlines())


@TASKS.register
def gym(
    name: str,
    train: int = 1000,
    held_out: int = 100,
    seed: int = 0,
    settings: dict | None = None,
    instruction: str = TAGGED,
    checks: dict | None = None,
) -> Task:
    """reasoning-gym's `name`: `train` + `held_out` entries of one seed; `settings` are its own (difficulty among them).

    Entries that repeat are not refused: they are left out, or kept where `checks` says so. Difficulty: the mean of the
    numbers that the entry gives for it.
    """
    for key, value in (("train", train), ("held_out", held_out)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"task=gym: {key}={value!r}; choose a whole number of at least 1")
    settings, size = repr(dict(settings or {})), train + held_out
    made = [Row(f"{name}, entry {entry['index']}", entry) for entry in _entries(name, settings, seed, size)]
    checks = settle_checks(checks)
    checks |= {kind: "drop" for kind in ("repeats", "overlap") if checks[kind] == "refuse"}
    verifier = f"gym(name={name!r}, settings={settings}, seed={seed}, size={size})"
    rows = {"train": made[:train], "held_out": made[train:]}
    return GymTask(rows, _entry, verifier, Findings(f"gym {name}", checks), instruction=instruction)
