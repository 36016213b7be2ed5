"""pass@1 on held-out problems, greedy and sampled, with intervals; each problem counted once."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rlvr_jax.data import EncodedProblem, to_batch_of_prompts
from rlvr_jax.diagnose.statistics import clustered_interval, paired_difference, proportion_interval
from rlvr_jax.metrics import progress
from rlvr_jax.policy import Policy
from rlvr_jax.rollout import completion_ids, fetch, verify
from rlvr_jax.sampling import SamplingMethod, make_sampler
from rlvr_jax.sharding import put_rows
from rlvr_jax.tasks import Task
from rlvr_jax.tokenizer import Tokenizer
from rlvr_jax.types import Array, PyTree

EXAMPLES = 6  # completions kept of each mode, for a person to read


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One evaluation: what a person reads (`record`) and the outcomes that a comparison needs."""

    record: dict[str, Any]
    outcomes: dict[str, np.ndarray]  # mode → [problems, samples]


def make_evaluate(
    policy: Policy,
    task: Task,
    tokenizer: Tokenizer,
    encoded: Sequence[EncodedProblem],
    mesh: jax.sharding.Mesh,
    *,
    prompt_length: int,
    completion_length: int,
    samples: int,
    prompts_per_batch: int,
    method: SamplingMethod,
) -> Callable[[PyTree, int, Array], Evaluation]:
    """A function evaluate(params, step, key) → Evaluation over all of `encoded`, compiled once per mode.

    Greedy: one completion a problem, Wilson interval. Sampled: `samples` a problem with `method`, interval by
    bootstrap over problems. The last batch is filled up with repeated prompts, whose rows are left out again, so
    every problem counts once whatever the batch size. Two evaluations with one key draw common random numbers.
    """
    size = min(prompts_per_batch, len(encoded))
    options = {
        "completion_length": completion_length,
        "end_ids": tokenizer.end_ids,
        "pad_id": tokenizer.pad_id,
    }
    modes = {"greedy": (SamplingMethod(temperature=0.0), 1), "sampled": (method, samples)}
    samplers = {
        mode: jax.jit(make_sampler(policy, group_size=group, method=how, **options))
        for mode, (how, group) in modes.items()
    }

    def run(params: PyTree, mode: str, key: Array) -> dict:
        group = modes[mode][1]
        rows: dict[str, list] = {"outcome": [], "length": [], "finished": [], "reason": [], "extracted": [], "text": []}
        for start in progress(range(0, len(encoded), size), f"evaluating ({mode})"):
            real = encoded[start : start + size]
            filled = [*real, *encoded[: size - len(real)]]
            batch = to_batch_of_prompts(filled, prompt_length, tokenizer.pad_id)
            ids = np.arange(start * group, (start + size) * group, dtype=np.int32)
            prompts, ids = put_rows((batch.prompts, ids), mesh)
            rollouts = fetch(samplers[mode](params, prompts, key, ids))
            verdicts = verify(task, tokenizer, rollouts, [problem.answer for problem in batch.problems])
            for row in range(len(real) * group):
                rows["outcome"].append(verdicts[row].outcome)
                rows["reason"].append(verdicts[row].reason)
                rows["extracted"].append(verdicts[row].extracted)
                rows["length"].append(int(rollouts.completion_mask[row].sum()))
                rows["finished"].append(bool(rollouts.finished[row]))
                rows["text"].append(tokenizer.decode(completion_ids(rollouts, row), skip_special=False))
        return rows

    def evaluate(params: PyTree, step: int, key: Array) -> Evaluation:
        record = {"step": int(step), "split": "held_out", "problems": len(encoded), "examples": []}
        outcomes = {}
        for mode, (how, group) in modes.items():
            rows = run(params, mode, key)
            outcomes[mode] = np.asarray(rows["outcome"], np.float64).reshape(len(encoded), group)
            record[mode] = _summary(rows, outcomes[mode], how.temperature)
            record["examples"] += _examples(encoded, rows, group, mode)
        return Evaluation(record, outcomes)

    return evaluate


def _summary(rows: dict, outcomes: np.ndarray, temperature: float) -> dict[str, Any]:
    problems, samples = outcomes.shape
    if samples == 1 and np.isin(outcomes, (0, 1)).all():
        interval = proportion_interval(int(outcomes.sum()), problems)
    else:
        interval = clustered_interval(outcomes)
    correct = outcomes.reshape(-1) > 0.5
    lengths = np.asarray(rows["length"], np.float64)
    mean = lambda values: float(values.mean()) if values.size else None
    summary = {
        "pass@1": interval.estimate,
        "low": interval.low,
        "high": interval.high,
        "samples": samples,
        "temperature": temperature,
        "mean_length": mean(lengths),
        "length_correct": mean(lengths[correct]),
        "length_wrong": mean(lengths[~correct]),
        "truncated": 1.0 - float(np.mean(rows["finished"])),
        # an answer was found and the completion ended, right or wrong
        "format": float(np.mean([e is not None and f for e, f in zip(rows["extracted"], rows["finished"])])),
    }
    if samples > 1:
        summary |= {"pass@k": float((outcomes > 0.5).any(axis=1).mean()), "k": samples}
    return summary


def _examples(encoded: Sequence[EncodedProblem], rows: dict, group: int, mode: str) -> list[dict]:
    return [
        {
            "mode": mode,
            "prompt": item.problem.prompt,
            "answer": item.problem.answer,
            "completion": rows["text"][index * group],
            "outcome": float(rows["outcome"][index * group]),
            "extracted": rows["extracted"][index * group],
            "reason": rows["reason"][index * group],
        }
        for index, item in enumerate(encoded[:EXAMPLES])
    ]


def to_scalars(record: dict[str, Any]) -> dict[str, float]:
    """An evaluation's record as metrics: eval/greedy_pass@1, eval/sampled_low, …"""
    return {
        f"eval/{mode}_{name}": value
        for mode in ("greedy", "sampled")
        for name, value in record[mode].items()
        if isinstance(value, float) and math.isfinite(value)
    }


class EvaluationFile:
    """workdir/evaluation.json: all evaluations of a run, and the paired difference of last and first.

    The outcomes by problem are kept in the file, so that a resumed run still compares with its own beginning.
    """

    def __init__(self, workdir: str | Path, before_step: int | None = None):
        """Takes up what the file has; evaluations of steps after `before_step` are dropped (a resumed run makes
        them again)."""
        self.path = Path(workdir) / "evaluation.json"
        self.records: list[dict] = []
        if self.path.exists():
            kept = json.loads(self.path.read_text())["evaluations"]
            self.records = [r for r in kept if before_step is None or r["step"] <= before_step]

    def has(self, step: int) -> bool:
        return any(record["step"] == step for record in self.records)

    def add(self, evaluation: Evaluation) -> dict:
        """Adds an evaluation, writes the file (whole or not at all), returns its content."""
        outcomes = {mode: values.tolist() for mode, values in evaluation.outcomes.items()}
        self.records.append({**evaluation.record, "outcomes": outcomes})
        content = {"evaluations": self.records, "difference": self.difference()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".json.partial")
        partial.write_text(json.dumps(content, indent=1))
        os.replace(partial, self.path)
        return content

    def difference(self) -> dict[str, dict[str, float]]:
        """Mode → pass@1 of the last evaluation minus that of the first, with its paired interval."""
        if len(self.records) < 2:
            return {}
        first, last = self.records[0]["outcomes"], self.records[-1]["outcomes"]
        found = {mode: paired_difference(first[mode], last[mode]) for mode in first}
        return {mode: {"difference": d.difference, "low": d.low, "high": d.high} for mode, d in found.items()}
