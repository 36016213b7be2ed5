"""pass@1 on problems, usually held-out ones, greedy and sampled, with intervals; each problem counted once."""

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
from rlvr_jax.hosts import exchange, first, from_first, own_rows
from rlvr_jax.metrics import progress
from rlvr_jax.policy import Policy
from rlvr_jax.rollout import Graded, fetch, in_order, to_graded, verify
from rlvr_jax.sampling import SamplingMethod, make_sampler
from rlvr_jax.sharding import put_rows, rows_sharding
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
    split: str,
    prompt_length: int,
    samples: int,
    prompts_per_batch: int,
    method: SamplingMethod,
    **sampler_options: Any,
) -> Callable[[PyTree, int, Array], Evaluation]:
    """A function evaluate(params, step, key) → Evaluation over all of `encoded`; one compiled sampler.

    Each problem gets one greedy completion (Wilson interval) and `samples` with `method` (interval by bootstrap over
    problems) out of one prefill. The last batch is filled up with repeated prompts, whose rows are left out again,
    so every problem counts once whatever the batch size. Two evaluations with one key draw common random numbers.
    `sampler_options` are keywords of `make_sampler`.
    """
    size = min(prompts_per_batch, len(encoded))
    group = 1 + samples
    both = dataclasses.replace(method, temperature=(0.0, *(float(method.temperature),) * samples))
    sampler = make_sampler(policy, group_size=group, method=both, **sampler_options)
    rows = rows_sharding(mesh, size * group)
    sample = jax.jit(sampler, out_shardings=rows)

    def run(params: PyTree, key: Array) -> list[list[Graded]]:
        graded, own = [], own_rows(rows, size * group)
        for start in progress(range(0, len(encoded), size), "evaluating", quiet=not first()):
            real = encoded[start : start + size]
            filled = [*real, *encoded[: size - len(real)]]
            batch = to_batch_of_prompts(filled, prompt_length, tokenizer.pad_id)
            ids = np.arange(start * group, (start + size) * group, dtype=np.int32)
            prompts, ids = put_rows((batch.prompts, ids), mesh)
            seen = fetch(sample(params, prompts, key, ids), own)

            read = {problem * group + k for problem in range(max(EXAMPLES - start, 0)) for k in (0, 1)}

            def grade(seen=seen, batch=batch, read=read):
                verdicts = verify(task, tokenizer, seen, [batch.problems[row // group].answer for row in own])
                return to_graded(tokenizer, seen, verdicts, own, read)  # texts: the first of each mode

            found = in_order(exchange(grade))
            graded += [found[problem * group : (problem + 1) * group] for problem in range(len(real))]
        return graded

    def evaluate(params: PyTree, step: int, key: Array) -> Evaluation:
        graded = run(params, key)
        modes = {"greedy": [rows[:1] for rows in graded], "sampled": [rows[1:] for rows in graded]}
        temperatures = {"greedy": 0.0, "sampled": float(method.temperature)}
        record = {"step": int(step), "split": split, "problems": len(encoded)}
        record |= {mode: _summary(rows, temperatures[mode]) for mode, rows in modes.items()}
        record["examples"] = [e for mode, rows in modes.items() for e in _examples(encoded, rows, mode)]
        return Evaluation(record, {mode: _outcomes(rows) for mode, rows in modes.items()})

    return evaluate


def _outcomes(graded: Sequence[Sequence[Graded]]) -> np.ndarray:
    """f64[problems, samples]"""
    return np.asarray([[row.verdict.outcome for row in rows] for rows in graded], np.float64)


def by_problem(outcomes: np.ndarray) -> np.ndarray:
    """f64[problems], the mean over the samples that have a verdict; NaN where none has."""
    known = ~np.isnan(outcomes)
    total = np.where(known, outcomes, 0.0).sum(axis=1)
    return np.where(known.any(axis=1), total / np.maximum(known.sum(axis=1), 1), np.nan)


def _summary(graded: Sequence[Sequence[Graded]], temperature: float) -> dict[str, Any]:
    outcomes = _outcomes(graded)
    samples, known = outcomes.shape[1], ~np.isnan(outcomes)  # without a verdict a completion is neither right nor wrong
    if not known.any():
        raise ValueError(f"evaluation: no completion has a verdict; the first says {graded[0][0].verdict.reason!r}")
    if samples == 1 and np.isin(outcomes[known], (0, 1)).all():
        interval = proportion_interval(int(outcomes[known].sum()), int(known.sum()))
    else:
        interval = clustered_interval(by_problem(outcomes)[known.any(axis=1)])
    rows = [row for of_problem in graded for row in of_problem]
    correct, judged = outcomes.reshape(-1) > 0.5, known.reshape(-1)
    lengths = np.asarray([row.length for row in rows], np.float64)
    mean = lambda values: float(values.mean()) if values.size else None
    summary = {
        "pass@1": interval.estimate,
        "low": interval.low,
        "high": interval.high,
        "samples": samples,
        "temperature": temperature,
        "mean_length": mean(lengths),
        "length_correct": mean(lengths[correct]),
        "length_wrong": mean(lengths[judged & ~correct]),
        "invalid": float(1 - known.mean()),  # share without a verdict, left out of the others
        "truncated": 1.0 - float(np.mean([row.finished for row in rows])),
        # an answer was found and the completion ended, right or wrong
        "format": float(np.mean([row.verdict.extracted is not None and row.finished for row in rows])),
    }
    if samples > 1:
        summary |= {"pass@k": float((outcomes > 0.5).any(axis=1)[known.any(axis=1)].mean()), "k": samples}
    return summary


def _examples(encoded: Sequence[EncodedProblem], graded: Sequence[Sequence[Graded]], mode: str) -> list[dict]:
    return [
        {
            "mode": mode,
            "prompt": item.problem.prompt,
            "answer": item.problem.answer,
            "completion": rows[0].text,
            "outcome": float(rows[0].verdict.outcome),
            "extracted": rows[0].verdict.extracted,
            "reason": rows[0].verdict.reason,
        }
        for item, rows in zip(encoded[:EXAMPLES], graded)
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

    def __init__(self, workdir: str | Path, before_step: int | None = None, shared: bool = False):
        """Takes up what the file has; evaluations of steps after `before_step` are dropped (a resumed run makes
        them again). `shared`: all hosts open it together, of which the first reads and writes."""
        self.path = Path(workdir) / "evaluation.json"
        self._writes = first() if shared else True
        read = lambda: [r for r in self._read() if before_step is None or r["step"] <= before_step]
        self.records: list[dict] = from_first(read) if shared else read()

    def _read(self) -> list[dict]:
        if not self.path.exists():
            return []
        try:
            return json.loads(self.path.read_text())["evaluations"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.path}: not a list of evaluations ({error}); remove it") from None

    def has(self, step: int) -> bool:
        return any(record["step"] == step for record in self.records)

    def add(self, evaluation: Evaluation) -> dict:
        """Adds an evaluation, writes the file (whole or not at all), returns its content."""
        outcomes = {mode: values.tolist() for mode, values in evaluation.outcomes.items()}
        self.records.append({**evaluation.record, "outcomes": outcomes})
        content = {"evaluations": self.records, "difference": self.difference()}
        if not self._writes:
            return content
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

        def between(mode):  # of the problems that both have a verdict for
            before, after = (by_problem(np.asarray(outcomes[mode], np.float64)) for outcomes in (first, last))
            both = ~np.isnan(before) & ~np.isnan(after)
            return paired_difference(before[both], after[both]) if both.any() else None

        found = {mode: value for mode in first if (value := between(mode)) is not None}
        return {mode: {"difference": d.difference, "low": d.low, "high": d.high} for mode, d in found.items()}
