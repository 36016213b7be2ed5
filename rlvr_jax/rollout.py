"""Rollouts to verdicts to groups: the only host work of a step."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.data import PromptBatch
from rlvr_jax.masked import masked_std
from rlvr_jax.means import Max, Mean
from rlvr_jax.tasks import Task
from rlvr_jax.tokenizer import Tokenizer
from rlvr_jax.types import Array, Batch, Groups, Rollouts, Verdict


def fetch(rollouts: Rollouts) -> Rollouts:
    """One explicit copy of what verification reads to the host, as numpy arrays."""
    return jax.device_get(rollouts)


def completion_ids(rollouts: Rollouts, row: int) -> list[int]:
    """The tokens the policy wrote in a row of fetched rollouts, the end token included."""
    completion = rollouts.tokens[row, rollouts.prompt_mask.shape[1] :]
    return completion[rollouts.completion_mask[row]].tolist()


def verify(task: Task, tokenizer: Tokenizer, rollouts: Rollouts, answers: Sequence[str]) -> list[Verdict]:
    """A verdict for each row of fetched rollouts; `answers` has one entry per prompt, rows of one prompt are
    adjacent. Only what the policy wrote is graded, without its end token."""
    rows = rollouts.tokens.shape[0]
    group_size = rows // len(answers)
    verdicts = []
    for row in range(rows):
        completion = tokenizer.decode(completion_ids(rollouts, row))
        finished = bool(rollouts.finished[row])
        verdicts.append(task.verify(answers[row // group_size], completion, finished))
    return verdicts


def to_groups(rollouts: Rollouts, verdicts: Sequence[Verdict], group_size: int) -> Groups:
    """Verdicts and lengths as Groups [P, G] of numpy arrays (put them on the devices explicitly)."""
    shape = (len(verdicts) // group_size, group_size)
    return Groups(
        outcome=np.asarray([verdict.outcome for verdict in verdicts], np.float32).reshape(shape),
        lengths=rollouts.completion_mask.sum(axis=-1).astype(np.int32).reshape(shape),
        rewards=np.asarray([verdict.outcome for verdict in verdicts], np.float32).reshape(shape),
        finished=np.asarray(rollouts.finished).reshape(shape),
        stratum=np.zeros(shape, np.int32),
        valid=np.ones(shape, bool),
        prompt_id=np.asarray(rollouts.prompt_id).reshape(shape)[:, 0],
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
    }


def to_records(
    batch: PromptBatch,
    tokenizer: Tokenizer,
    rollouts: Rollouts,
    verdicts: Sequence[Verdict],
    advantages: np.ndarray,
    groups: Sequence[int],
) -> list[dict]:
    """The rollouts a person will read: for each of `groups` the best, the worst and the longest wrong completion
    (fewer when they coincide), as plain dicts."""
    group_size = len(verdicts) // len(batch.problems)
    lengths = rollouts.completion_mask.sum(axis=-1)
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
                    "completion": tokenizer.decode(completion_ids(rollouts, row), skip_special=False),
                    "outcome": float(verdicts[row].outcome),
                    "extracted": verdicts[row].extracted,
                    "reason": verdicts[row].reason,
                    "length": int(lengths[row]),
                    "finished": bool(rollouts.finished[row]),
                    "advantage": float(np.mean(advantages.reshape(len(verdicts), -1)[row])),
                }
            )
    return records
