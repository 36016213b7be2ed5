"""Rollouts to verdicts to groups: the only host work of a step."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from rlvr_jax.data import PromptBatch
from rlvr_jax.hosts import fetch_rows
from rlvr_jax.masked import masked_std
from rlvr_jax.means import Max, Mean
from rlvr_jax.tasks import Item, Task
from rlvr_jax.tokenizer import Tokenizer
from rlvr_jax.types import Array, Batch, Groups, Rollouts, Verdict


class Graded(NamedTuple):
    """A completion with its verdict, as every host may know it."""

    verdict: Verdict
    text: str  # special tokens included; "" where nobody reads it
    length: int  # tokens the policy wrote, the end token included
    attended: int  # tokens after the prompt, a tool's too
    finished: bool


def fetch(rollouts: Rollouts, rows: np.ndarray | None = None) -> Rollouts:
    """One explicit copy of `rows` (all by default) to the host, as numpy arrays; of those this process holds."""
    return fetch_rows(rollouts, np.arange(rollouts.tokens.shape[0]) if rows is None else rows)


def completion_ids(rollouts: Rollouts, row: int) -> list[int]:
    """The tokens the policy wrote in a row of fetched rollouts, the end token included."""
    completion = rollouts.tokens[row, rollouts.prompt_mask.shape[1] :]
    return completion[rollouts.completion_mask[row]].tolist()


def verify(task: Task, tokenizer: Tokenizer, rollouts: Rollouts, answers: Sequence[str]) -> list[Verdict]:
    """A verdict for each row of fetched rollouts; `answers` has one entry per prompt, rows of one prompt are
    adjacent. Only what the policy wrote is graded, without its end token, and all rows at once (`Task.grade`)."""
    rows = rollouts.tokens.shape[0]
    group_size = rows // max(len(answers), 1)
    text = lambda row: tokenizer.decode(completion_ids(rollouts, row))
    items = [Item(answers[row // group_size], text(row), bool(rollouts.finished[row])) for row in range(rows)]
    return task.grade(items)


def to_graded(
    tokenizer: Tokenizer,
    rollouts: Rollouts,
    verdicts: Sequence[Verdict],
    rows: Sequence[int],
    read: Collection[int] = (),
) -> dict[int, Graded]:
    """Row of the batch → Graded, of fetched rollouts that are its `rows`; with their texts those of rows in `read`."""
    lengths, attended = rollouts.completion_mask.sum(axis=-1), rollouts.attend_mask.sum(axis=-1)
    text = lambda i: tokenizer.decode(completion_ids(rollouts, i), skip_special=False)
    return {
        int(row): Graded(
            verdicts[i],
            text(i) if int(row) in read else "",
            int(lengths[i]),
            int(attended[i]),
            bool(rollouts.finished[i]),
        )
        for i, row in enumerate(rows)
    }


def in_order(parts: Iterable[Mapping[int, Graded]]) -> list[Graded]:
    """What several hosts have graded, by row; every row is some host's, and none is another's too."""
    together = [item for part in parts for item in part.items()]
    ordered = sorted(together)
    assert [row for row, _ in ordered] == list(range(len(ordered))), "each row is graded once"
    return [graded for _, graded in ordered]


def to_groups(graded: Sequence[Graded], prompt_id: np.ndarray, group_size: int) -> Groups:
    """Verdicts and lengths of rows as Groups [P, G] of numpy arrays (put them on the devices explicitly).

    A row without a verdict is not valid: no part of any statistic of its group, and without loss."""
    shape = (len(graded) // group_size, group_size)
    of = lambda values, kind: np.asarray(values, kind).reshape(shape)
    outcomes = [row.verdict.outcome if row.verdict.valid else 0.0 for row in graded]
    return Groups(
        outcome=of(outcomes, np.float32),
        lengths=of([row.length for row in graded], np.int32),
        rewards=of(outcomes, np.float32),
        finished=of([row.finished for row in graded], bool),
        stratum=np.zeros(shape, np.int32),
        valid=of([row.verdict.valid for row in graded], bool),
        prompt_id=np.asarray(prompt_id),
    )


def to_batch(rollouts: Rollouts, groups: Groups, advantages, old=None, reference=None) -> Batch:
    """Rows for the gradient out of rollouts [B, …] and advantages [P, G]; row r belongs to group r // G."""
    prompts, group_size = advantages.shape[:2]
    rows = prompts * group_size
    group = np.arange(rows, dtype=np.int32) // group_size
    return Batch(
        tokens=rollouts.tokens,
        prompt_mask=rollouts.prompt_mask,
        completion_mask=rollouts.completion_mask,
        attend_mask=rollouts.attend_mask,
        advantages=advantages.reshape(rows, *advantages.shape[2:]),
        group=jnp.asarray(group),
        valid=groups.valid.reshape(rows),
        behaviour_logprobs=rollouts.behaviour_logprobs,
        old_logprobs=old,
        reference_logprobs=reference,
        full_logprobs=rollouts.full_logprobs,
    )


def mismatch(rollouts: Rollouts, logprobs: Array) -> dict[str, Mean | Max]:
    """How far the sampler's log-probabilities (`full_logprobs`) are from the learner's of the same tokens f32[B, T]:
    their mean absolute difference in nats, and the largest ratio of the two probabilities, either way."""
    gap = jnp.where(rollouts.completion_mask, jnp.abs(logprobs - rollouts.full_logprobs), 0.0)
    return {
        "behaviour_mismatch": Mean.of(gap, rollouts.completion_mask),
        "behaviour_ratio_max": Max.of(jnp.exp(gap), rollouts.completion_mask),
    }


def from_groups(groups: Groups) -> dict[str, Mean]:
    """What a person wants to see of a rollout batch, as mergeable means; pure, runs on the device.

    `length_correct` and `length_wrong` split the length curve by the verdict (outcome above 0.5 is correct).
    """
    valid, lengths = groups.valid, groups.lengths.astype(np.float32)
    correct = groups.outcome > 0.5
    spread = masked_std(groups.outcome, valid, axis=-1)
    return {
        "reward": Mean.of(groups.rewards, valid),
        "pass@1": Mean.of(groups.outcome, valid),
        "pass@G": Mean.of((correct & valid).any(axis=-1), valid.any(axis=-1)),
        "length": Mean.of(lengths, valid),
        "length_correct": Mean.of(lengths, valid & correct),
        "length_wrong": Mean.of(lengths, valid & ~correct),
        "truncated": Mean.of(~groups.finished, valid),
        "truncated_wrong": Mean.of(~groups.finished, valid & ~correct),
        "outcome_std": Mean.of(spread, valid.any(axis=-1)),
        "invalid": Mean.of(~valid, jnp.ones_like(valid)),  # rows without a verdict
    }


def to_records(
    batch: PromptBatch, graded: Sequence[Graded], advantages: np.ndarray, groups: Sequence[int]
) -> list[dict]:
    """The rollouts a person will read: for each of `groups` the best, the worst and the longest wrong completion
    (fewer when they coincide), as plain dicts. advantages: f32[P, G]; texts must be there of the groups' rows."""
    group_size = len(graded) // len(batch.problems)
    verdicts, lengths = [row.verdict for row in graded], [row.length for row in graded]
    records = []
    for group in groups:
        rows = range(group * group_size, (group + 1) * group_size)
        best = max(rows, key=lambda row: (verdicts[row].outcome, -lengths[row]))
        worst = min(rows, key=lambda row: (verdicts[row].outcome, -lengths[row]))
        wrong = [row for row in rows if verdicts[row].outcome <= 0.5]
        longest = [max(wrong, key=lambda row: lengths[row])] if wrong else []
        for row in dict.fromkeys([best, worst, *longest]):
            records.append(
                {
                    "group": int(group),
                    "prompt": batch.problems[group].prompt,
                    "answer": batch.problems[group].answer,
                    "completion": graded[row].text,
                    "outcome": float(verdicts[row].outcome),
                    "extracted": verdicts[row].extracted,
                    "reason": verdicts[row].reason,
                    "length": lengths[row],
                    "finished": graded[row].finished,
                    "advantage": float(advantages.reshape(-1)[row]),
                }
            )
    return records
