"""λ-GRPO: does a learnable preference for length change anything?"""

from experiments.table import Claim, Measure, Table
from experiments.tables._common import SCALE, SEEDS, columns, entry

SOURCE = "Wang et al. 2025, λ-GRPO, arXiv:2510.06870"
PUBLISHED = "against GRPO, mean of eight sets: +1.9, +1.0, +1.7 (Qwen2.5 1.5B, 3B, 7B)"
rate = lambda value: {**entry("lambda_grpo"), "optimizer.estimator_learning_rate": value}
task = lambda right, wrong: {"task": f"lookup(prompts=16, options=4, stop_right={right}, stop_wrong={wrong})"}

TABLE = Table(
    name="lambda",
    title="A learnable length preference",
    question="Does learning λ along with the policy beat the aggregations it contains?",
    base="configs/lab.py:grpo",
    common={"steps": 100, "sampling.completion_length": 16},
    arms={
        "token, group (λ = 0)": entry("grpo", aggregate="token_mean(scope='group')"),
        "GRPO": entry("grpo"),
        "λ-GRPO, rate 0.1": rate(0.1),
        "λ-GRPO, rate 1": rate(1.0),
    },
    reference="token, group (λ = 0)",
    cases={"wrong longer": task(0.6, 0.25), "right longer": task(0.25, 0.6)},
    columns=columns(raw=0.5, matched=0.5, adam=0.002),
    seeds=SEEDS,
    measures=(
        Measure("pass@1, area", "rollout/pass@1", "area", better="higher"),
        Measure("pass@1, end", "rollout/pass@1", first=80, better="higher"),
        Measure("length, end", "rollout/length", first=80, digits=2),
    ),
    claims=(
        Claim(
            "learning λ beats λ = 0",
            SOURCE,
            "no number: the paper's own are against GRPO",
            "λ-GRPO, rate 0.1",
            "pass@1, area",
            "+",
        ),
        Claim(
            "it makes no difference above 0.01",
            "a control",
            "no number",
            "λ-GRPO, rate 0.1",
            "pass@1, area",
            "0",
            margin=0.01,
        ),
        Claim("λ-GRPO beats GRPO", SOURCE, PUBLISHED, "λ-GRPO, rate 0.1", "pass@1, area", "+", against="GRPO"),
        Claim(
            "a faster λ beats λ = 0",
            "a control; the rate 0.1 is third-party code's, the paper prints none that we read",
            "no number",
            "λ-GRPO, rate 1",
            "pass@1, area",
            "+",
        ),
    ),
    curves=("rollout/pass@1", "rollout/length", "update/lambda"),
    notes=SCALE
    + (
        " The norm matched is that of λ = 0, the token mean of each group. λ-GRPO starts as that, so its "
        "difference to GRPO is mostly that aggregation's; learning λ is judged against λ = 0. λ takes "
        "plain steps of its own rate in all three columns."
    ),
)
