"""One small real model: six estimators on sums and differences within 10."""

from experiments.table import Claim, Measure, Table

NAMES = ("grpo", "dr_grpo", "dapo", "balanced", "sign_balance", "ha_dw_grpo")

TABLE = Table(
    name="smollm2",
    title="SmolLM2-135M-Instruct, six estimators",
    question="Do the estimators differ on a small real model, with the same prompts, keys and Adam?",
    base="configs/addsub10.py:grpo",
    common={"steps": 30, "evaluate.every": 30, "checkpoint.every": 30},
    arms={name: {"estimator.name": name} for name in NAMES},
    reference="grpo",
    seeds=(11, 12),
    measures=(
        Measure("sampled pass@1", "eval/sampled_pass@1", first=30, better="higher"),
        Measure("greedy pass@1", "eval/greedy_pass@1", first=30, better="higher"),
        Measure("pass@1, steps 20–29", "rollout/pass@1", first=20, better="higher"),
        Measure("right length, steps 20–29", "rollout/length_correct", first=20, digits=2),
        Measure("wrong length, steps 20–29", "rollout/length_wrong", first=20, digits=2),
        Measure("truncated, steps 20–29", "rollout/truncated", first=20),
    ),
    claims=(
        Claim(
            "dr_grpo's wrong answers are shorter",
            "Liu et al. 2025, Dr. GRPO, arXiv:2503.20783",
            "no number",
            "dr_grpo",
            "wrong length, steps 20–29",
            "-",
        ),
        Claim(
            "dapo ends better than grpo",
            "Yu et al. 2025, DAPO, arXiv:2503.14476",
            "AIME24 avg@32, Qwen2.5-32B: 30 → 50 with dynamic sampling, which is off here",
            "dapo",
            "sampled pass@1",
            "+",
        ),
        Claim(
            "balanced ends better than grpo",
            "Balanced Aggregation 2026, arXiv:2605.04077",
            "Qwen3-1.7B on DAPO-17k and Polaris: .4481 → .4695, .4614 → .4640",
            "balanced",
            "sampled pass@1",
            "+",
        ),
        Claim(
            "sign_balance ends better than grpo",
            "SignBalance 2026, arXiv:2609.04063",
            "Qwen2.5-0.5B, mean of eight sets: 34.24 → 36.61",
            "sign_balance",
            "sampled pass@1",
            "+",
        ),
        Claim(
            "ha_dw_grpo ends better than grpo",
            "Yang et al. 2026, HA-DW, arXiv:2601.08521",
            "mean of five sets: Qwen3-4B 46.5 → 48.7",
            "ha_dw_grpo",
            "sampled pass@1",
            "+",
        ),
    ),
    curves=("rollout/pass@1", "rollout/length_correct", "rollout/length_wrong"),
    notes=(
        "Started one by one with the `rlvr train` commands that launch uses, at the commit above. One "
        "column: Adam after clipping to norm 1. Adam hides a constant scale; the clip still weighs an"
        " arm's large steps less. One update a rollout: a PPO clip never acts, so dapo differs here by "
        "penalty, dropped groups and token mean. Two seeds: one degree of freedom, and only enormous "
        "differences could be seen."
    ),
)
