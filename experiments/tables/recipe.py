"""DAPO's ladder, rung by rung, with several updates a rollout."""

from experiments.table import Claim, Measure, Table
from experiments.tables._common import SCALE, SEEDS, columns, entry

SOURCE = "Yu et al. 2025, DAPO, arXiv:2503.14476"
LADDER = (
    "AIME24 avg@32, Qwen2.5-32B: GRPO 30, overlong filtering 36, clip-higher 38, soft overlong punishment 41, token "
    "loss 42, dynamic sampling 50"
)
higher = "ppo(low=0.2, high=0.28)"
TASK = (
    "lookup(prompts=32, options=8, rates=(0.3, 0.8), hard=(0.02, 0.15), stop_right=0.45, stop_wrong=0.3, must_end=True)"
)

TABLE = Table(
    name="recipe",
    title="DAPO's ladder",
    question="Which rung of DAPO's recipe helps, each added to the ones before it?",
    base="configs/lab.py:grpo",
    common={
        "steps": 60,
        "sampling.completion_length": 12,
        "task": TASK,
        "prompts_per_step": 16,
        "updates.epochs": 2,
        "updates.minibatches": 4,
    },
    arms={
        "GRPO": entry("grpo"),
        "+ clip-higher": entry("grpo", clip=higher),
        "+ overlong": entry("grpo", clip=higher, shape="overlong(max_length='completion')"),
        "+ token mean": entry("grpo", clip=higher, shape="overlong(max_length='completion')", aggregate="token_mean"),
        "+ dynamic sampling": {**entry("dapo"), "sampling.dynamic": True},
        "no clip": entry("grpo", clip="none"),
    },
    reference="GRPO",
    columns=columns(raw=0.5, matched=0.3, adam=0.005),
    seeds=SEEDS,
    measures=(
        Measure("pass@1, area", "rollout/pass@1", "area", better="higher"),
        Measure("pass@1 hard, end", "rollout/pass@1_hard", first=50, better="higher"),
        Measure("truncated, end", "rollout/truncated", first=50, better="lower"),
        Measure("entropy, area", "update/entropy", "area"),
    ),
    claims=(
        Claim("clip-higher keeps entropy", SOURCE, "a figure", "+ clip-higher", "entropy, area", "+"),
        Claim(
            "without a clip entropy is higher still",
            "a control: the dose",
            "no number",
            "no clip",
            "entropy, area",
            "+",
            against="+ clip-higher",
        ),
        Claim("clip-higher helps", SOURCE, LADDER, "+ clip-higher", "pass@1, area", "+"),
        Claim("the overlong penalty helps", SOURCE, LADDER, "+ overlong", "pass@1, area", "+", against="+ clip-higher"),
        Claim(
            "the overlong penalty cuts truncation",
            SOURCE,
            "a figure",
            "+ overlong",
            "truncated, end",
            "-",
            against="+ clip-higher",
        ),
        Claim("the token mean helps", SOURCE, LADDER, "+ token mean", "pass@1, area", "+", against="+ overlong"),
        Claim(
            "dynamic sampling helps",
            SOURCE,
            LADDER,
            "+ dynamic sampling",
            "pass@1, area",
            "+",
            against="+ token mean",
            columns=("raw", "adam"),
        ),
        Claim(
            "the whole recipe helps", SOURCE, LADDER, "+ dynamic sampling", "pass@1, area", "+", columns=("raw", "adam")
        ),
    ),
    curves=("rollout/pass@1", "rollout/pass@1_hard", "update/entropy"),
    notes=SCALE
    + (
        " 32 prompts are sampled a step and 16 trained on: random ones, or with dynamic sampling those "
        "whose outcomes differ first. A truncated completion counts as wrong. The paper's first rung, "
        "overlong filtering (36), is left out; its clip-higher stands on that. Every arm samples 32 "
        "prompts, so dynamic sampling costs nothing extra here. Matched norms are those of GRPO on the "
        "arm's own groups: dynamic sampling chooses groups with contrast, on which that norm is larger, "
        "so only Adam controls its step. Entropy is over trained rows and not taken at equal accuracy. Of"
        " the 16 groups a minibatch has 4 on average, not always 4. Under matched norms an arm without "
        "clip takes steps of the clipped gradient's norm."
    ),
)
