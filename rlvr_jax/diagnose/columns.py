"""Which column of a rollout log means what: the formats of this project, TRL, verl and OpenRLHF, and plain names.

What is read of each (a row is one completion):

    this project  step, group, prompt, outcome, length, finished                           rollouts.jsonl
    TRL 1.16      step, prompt, completion, one column a reward function, extras, advantage
                  (parquet or JSON lines; GRPOTrainer with log_completions=True)
    verl          input, output, score, step, extras; a file a step                        trainer.rollout_data_dir
    OpenRLHF      input, output, reward; a file an iteration                               cli.batch_inference
    plain         step, group or prompt, reward, length; optional finished, tokens, text   and the names below
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

PLAIN = {
    "step": ("step", "global_step", "global_steps", "iteration"),
    "prompt": ("prompt_id", "prompt", "input", "question"),
    "group": ("group", "group_id", "uid"),
    "reward": ("outcome", "correct", "reward", "score"),
    "length": ("length", "response_length", "completion_length", "num_tokens"),
    "tokens": ("tokens", "response_tokens", "completion_tokens", "completion_ids", "response_ids"),
    "text": ("completion", "response", "output", "text"),
    "finished": ("finished", "truncated", "finish_reason"),
    "identity": ("rollout_id", "completion_id", "response_id", "sample_id"),
}
OPTIONS = {"step": "--step", "prompt": "--prompt", "reward": "--reward", "length": "--length-column"}
NOT_REWARDS = {name for names in PLAIN.values() for name in names} | {"advantage", "advantages", "image", "images"}


class Columns(NamedTuple):
    """Names of the columns of one file; None where it has none.

    format:   "rlvr", "trl", "verl", "openrlhf" or "plain"
    step:     optimiser step or iteration; None: the file is one step
    prompt:   identity of the problem over the whole log
    group:    identity of the group within its step
    reward:   what says whether the answer is right
    measure:  "length", "tokens" or "text": what the column `length` holds
    """

    format: str
    step: str | None
    prompt: str | None
    group: str | None
    reward: str
    length: str
    measure: str
    finished: str | None
    identity: str | None

    @property
    def read(self) -> list[str]:
        """All columns that must be read."""
        fields = (self.step, self.prompt, self.group, self.reward, self.length, self.finished, self.identity)
        return list(dict.fromkeys(name for name in fields if name))


def resolve(row: Mapping[str, Any], chosen: Mapping[str, str | None], where: str) -> Columns:
    """The columns of a file by its first row.

    Args:
      row: the first readable row.
      chosen: what the user named, by "step", "prompt", "reward", "length"; None where nothing.
      where: the file, for messages.
    Raises:
      ValueError: a named column is absent, or no column holds prompt, reward or length; lists what is there.
    """
    for field, name in chosen.items():
        if name and name not in row:
            raise ValueError(f"{where}: {OPTIONS[field]}={name!r} is no column of it. Choose from {sorted(row)}")
    format = _format(row)
    found = {field: _first(row, names) for field, names in PLAIN.items()}
    if format == "trl" and not chosen.get("reward"):
        found["reward"] = _trl_reward(row, where)
    if format == "verl" and "acc" in row:
        found["reward"] = "acc"  # its verdict; the score may hold more than the verdict
    found |= {field: name for field, name in chosen.items() if name}
    measure = next((field for field in ("length", "tokens", "text") if found[field]), None)
    if found["reward"] is None:
        raise ValueError(_missing(where, "the reward", "reward", row))
    if measure is None:
        raise ValueError(_missing(where, "the length, tokens or text", "length", row))
    if found["prompt"] is None and found["group"] is None:
        raise ValueError(_missing(where, "the prompt or group", "prompt", row))
    return Columns(
        format,
        found["step"],
        found["prompt"],
        found["group"],
        found["reward"],
        found[measure],
        measure,
        found["finished"],
        found["identity"],
    )


def _first(row: Mapping, names: Sequence[str]) -> str | None:
    return next((name for name in names if name in row), None)


def _format(row: Mapping) -> str:
    has = lambda *names: all(name in row for name in names)
    if has("step", "group", "outcome", "length"):
        return "rlvr"
    if has("prompt", "completion", "advantage"):
        return "trl"
    if has("input", "output", "score"):
        return "verl"
    if has("input", "output", "reward"):
        return "openrlhf"
    return "plain"


def _trl_reward(row: Mapping, where: str) -> str:
    """TRL writes a column for each reward function and none for their weighted sum."""
    number = lambda value: value is None or isinstance(value, bool | int | float)
    found = [name for name, value in row.items() if name not in NOT_REWARDS and number(value)]
    if len(found) != 1:
        raise ValueError(
            f"{where}: {'no column looks' if not found else 'several columns look'} like a reward function of TRL's. "
            f"Name the one that says whether the answer is right with --reward. Choose from {found or sorted(row)}"
        )
    return found[0]


def _missing(where: str, what: str, field: str, row: Mapping) -> str:
    names = [*PLAIN[field], *(PLAIN["tokens"] + PLAIN["text"] if field == "length" else ())]
    if field == "prompt":
        names += PLAIN["group"]
    return (
        f"{where}: no column holds {what} (looked for {', '.join(names)}); name it with {OPTIONS[field]}. "
        f"Choose from {sorted(row)}"
    )
