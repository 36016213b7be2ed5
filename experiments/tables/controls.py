"""Random rewards: what each aggregation does to length when there is nothing to learn."""

from experiments.panels import drift
from experiments.table import Claim, Measure, Panel, Table
from experiments.tables._common import SCALE, SEEDS, columns, entry

OURS = "a control of this project; derived in the panel below"
task = lambda p: {"task": f"lookup(prompts=16, options=4, stop_right=0.4, stop_wrong=0.4, random_reward={p})"}

TABLE = Table(
    name="controls",
    title="Random reward",
    question="When the reward is a coin, which estimator moves the length of responses?",
    base="configs/lab.py:grpo",
    common={"steps": 100, "sampling.completion_length": 16},
    arms={
        "constant": entry("grpo", aggregate="constant(length='completion')"),
        "sequence": entry("grpo"),
        "token, batch": entry("grpo", aggregate="token_mean"),
        "token, group": entry("grpo", aggregate="token_mean(scope='group')"),
        "balanced": entry("balanced"),
        "positives only": entry("e3_masked"),
    },
    reference="constant",
    cases={f"coin {p}": task(p) for p in (0.125, 0.5, 0.875)},
    columns=columns(raw=0.1, matched=0.1, adam=0.001),
    seeds=SEEDS,
    measures=(
        Measure("length, end", "rollout/length", first=80, digits=2),
        Measure("truncated, end", "rollout/truncated", first=80),
        Measure("entropy, end", "update/entropy", first=80),
    ),
    claims=(
        Claim(
            "balanced shortens where few are right",
            OURS,
            "none published",
            "balanced",
            "length, end",
            "-",
            cases=("coin 0.125",),
        ),
        Claim(
            "balanced lengthens where most are right",
            OURS,
            "none published",
            "balanced",
            "length, end",
            "+",
            cases=("coin 0.875",),
        ),
        Claim(
            "the sequence mean has no drift of its own",
            OURS,
            "none published",
            "sequence",
            "length, end",
            "0",
            margin=1.0,
        ),
        Claim(
            "the token mean of each group has none",
            OURS,
            "none published",
            "token, group",
            "length, end",
            "0",
            margin=1.0,
        ),
        Claim(
            "the token mean of the batch has none",
            OURS,
            "none published",
            "token, batch",
            "length, end",
            "0",
            margin=1.0,
        ),
        Claim(
            "masking the negatives shortens although there is nothing to learn",
            OURS,
            "none published; Setlur et al. 2025, e3, arXiv:2506.09026 say that masking stops the growth of length",
            "positives only",
            "length, end",
            "-",
            against="sequence",
        ),
    ),
    curves=("rollout/length", "rollout/truncated", "update/entropy"),
    panels=(Panel("drift", "The push on the stop logit, no training", OURS, drift.stop_logit),),
    notes=SCALE
    + (
        " Every completion is paid by a coin of the case's probability. Right answers are not longer or "
        "shorter than wrong ones, and nothing can be learnt. Under 1/|o| successes push towards stopping "
        "and failures away from it, with equal force: masking leaves the first push alone. With the "
        "constant normaliser each push is 0 (panel)."
    ),
)
