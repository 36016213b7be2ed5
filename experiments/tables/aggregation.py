"""Token, sequence, constant or balanced aggregation, by which side is longer."""

from experiments.panels import coupling
from experiments.table import Claim, Measure, Panel, Table
from experiments.tables._common import SCALE, SEEDS, columns, entry

BALANCED = "Balanced Aggregation 2026, arXiv:2605.04077"
CELLS = (
    "last-step accuracy, sequence / token / balanced, on DAPO-17k and Polaris: Qwen2.5-Math-7B "
    ".3446/.3364/.3424 and .3172/.3292/.3319, Qwen3-1.7B .4481/.4360/.4695 and .4614/.4349/.4640; "
    "balanced loses to sequence in the first, token beats sequence in the second"
)
AREA = CELLS + "; last steps, not areas"
task = lambda right, wrong: {"task": f"lookup(prompts=16, options=8, stop_right={right}, stop_wrong={wrong})"}

TABLE = Table(
    name="aggregation",
    title="Aggregation and the length gap",
    question="Which aggregation learns fastest when wrong answers are longer, as long, or shorter than right ones, and "
    "is it more than its step size?",
    base="configs/lab.py:grpo",
    common={"steps": 150, "sampling.completion_length": 16},
    arms={
        "sequence": entry("grpo"),
        "token, batch": entry("grpo", aggregate="token_mean"),
        "token, group": entry("grpo", aggregate="token_mean(scope='group')"),
        "constant": entry("grpo", aggregate="constant(length='completion')"),
        "balanced": entry("balanced"),
    },
    reference="sequence",
    cases={"wrong longer": task(0.6, 0.25), "equal": task(0.4, 0.4), "right longer": task(0.25, 0.6)},
    columns=columns(raw=0.3, matched=0.3, adam=0.002),
    seeds=SEEDS,
    measures=(
        Measure("pass@1, area", "rollout/pass@1", "area", better="higher"),
        Measure("pass@1, end", "rollout/pass@1", first=130, better="higher"),
        Measure("length, end", "rollout/length", first=130, digits=2),
        Measure("truncated, end", "rollout/truncated", first=130, better="lower"),
    ),
    claims=(
        Claim("balanced learns better than the sequence mean", BALANCED, AREA, "balanced", "pass@1, area", "+"),
        Claim(
            "balanced learns better than the token mean (group)",
            BALANCED,
            AREA,
            "balanced",
            "pass@1, area",
            "+",
            against="token, group",
        ),
        Claim(
            "the token mean (group, as in the paper) loses to the sequence mean",
            BALANCED,
            AREA + "; Qwen3-1.7B, Polaris: token falls from .6058 to .5608",
            "token, group",
            "pass@1, area",
            "-",
        ),
        Claim(
            "counted over the batch it loses too",
            "a control: the scope of the token mean",
            "no number",
            "token, batch",
            "pass@1, area",
            "-",
        ),
        Claim("balanced ends better than the sequence mean", BALANCED, CELLS, "balanced", "pass@1, end", "+"),
        Claim(
            "balanced ends better than the token mean (group)",
            BALANCED,
            CELLS,
            "balanced",
            "pass@1, end",
            "+",
            against="token, group",
        ),
        Claim(
            "balanced truncates more in the end",
            "a control: the drift table says that it lengthens where most answers are right",
            "no number",
            "balanced",
            "truncated, end",
            "+",
        ),
    ),
    curves=("rollout/pass@1", "rollout/length"),
    panels=(Panel("coupling", "Sign-length coupling, no training", BALANCED, coupling.sign_length),),
    notes=SCALE,
)
