"""One small real model: six estimators on sums and differences within 10."""

from experiments.table import Claim, Measure, Table

NAMES = ("grpo", "dr_grpo", "dapo", "balanced", "sign_balance", "ha_dw_grpo")
NO_NUMBER = "at other scales only: see the toy tables"

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
        Measure("sampled pass@1", "evaluate/pass@1_sampled", first=30, better="higher"),
        Measure("greedy pass@1", "evaluate/pass@1_greedy", first=30, better="higher"),
        Measure("reward, steps 20–29", "rollout/reward", first=20, better="higher"),
        Measure("right length, steps 20–29", "rollout/length_correct", first=20, digits=2),
        Measure("wrong length, steps 20–29", "rollout/length_wrong", first=20, digits=2),
        Measure("truncated, steps 20–29", "rollout/truncated", first=20),
    ),
    claims=tuple(
        Claim(f"{name} ends better than grpo", "the entry's paper", NO_NUMBER, name, "sampled pass@1", "+")
        for name in NAMES[1:]
    ),
    curves=("rollout/reward", "rollout/length_correct", "rollout/length_wrong"),
    notes="One column: Adam with gradients clipped to norm 1, so the estimator's scale has no say. Few seeds: the "
    "smallest detectable effects are large, and a row that shows nothing says little.",
)
