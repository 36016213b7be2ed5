"""Does dividing by the response's length make wrong answers long?"""

from experiments.table import Claim, Measure, Table
from experiments.tables._common import SCALE, SEEDS, columns, entry

LIU = "Liu et al. 2025, Dr. GRPO, arXiv:2503.20783"
task = lambda right, wrong: {"task": f"lookup(prompts=16, options=4, stop_right={right}, stop_wrong={wrong})"}

TABLE = Table(
    name="length",
    title="Length of wrong answers under 1/|o|",
    question="Does dividing each response's loss by its length make wrong answers grow, at equal accuracy?",
    base="configs/lab.py:grpo",
    common={"steps": 120, "sampling.completion_length": 16},
    arms={
        "GRPO": entry("grpo"),
        "no std": entry("grpo_no_std"),
        "token mean": entry("grpo", aggregate="token_mean"),
        "token mean, group": entry("grpo", aggregate="token_mean(scope='group')"),
        "balanced": entry("balanced"),
        "Dr. GRPO": entry("dr_grpo"),
    },
    reference="GRPO",
    cases={
        "tells well": task(0.6, 0.25),
        "tells a little": task(0.45, 0.32),
        "cannot tell": task(0.4, 0.4),
    },
    columns=columns(raw=0.3, matched=0.2, adam=0.002),
    seeds=SEEDS,
    measures=(
        Measure("wrong length, steps 0–4", "rollout/length_wrong", first=0, last=4, digits=2),
        Measure("wrong length", "rollout/length_wrong", "at_equal", value=0.6, digits=2),
        Measure("right length", "rollout/length_correct", "at_equal", value=0.6, digits=2),
        Measure(
            "wrong − right length",
            "rollout/length_wrong",
            "at_equal",
            value=0.6,
            minus="rollout/length_correct",
            digits=2,
        ),
        Measure("late wrong length", "rollout/length_wrong", first=100, last=119, digits=2),
        Measure("late wrong truncated", "rollout/truncated_wrong", first=100, last=119),
        Measure("late pass@1", "rollout/pass@1", first=100, last=119, better="higher"),
    ),
    claims=(
        Claim(
            "wrong answers are longer under GRPO than under Dr. GRPO, at equal accuracy",
            LIU,
            "GRPO lengthens wrong answers, Dr. GRPO does not (a figure, no number)",
            arm="Dr. GRPO",
            measure="wrong length",
            direction="-",
            columns=("matched", "adam"),
        ),
        Claim(
            "1/|o| alone lengthens wrong answers",
            LIU,
            "no number",
            arm="Dr. GRPO",
            against="no std",
            measure="wrong length",
            direction="-",
            columns=("matched", "adam"),
        ),
        Claim(
            "1/|o| alone widens the gap between wrong and right answers",
            LIU,
            "no number",
            arm="Dr. GRPO",
            against="no std",
            measure="wrong − right length",
            direction="-",
            columns=("matched", "adam"),
        ),
        Claim(
            "the std has no part in it",
            "a control; Liu et al. remove the std for its bias towards easy and hard questions, not for length",
            "no number",
            arm="no std",
            measure="wrong length",
            direction="0",
            margin=0.5,
            columns=("matched", "adam"),
        ),
        Claim(
            "right answers are as long under Dr. GRPO",
            "a control",
            "no number",
            arm="Dr. GRPO",
            measure="right length",
            direction="0",
            margin=0.5,
            cases=("tells well", "tells a little"),
            columns=("matched", "adam"),
        ),
        Claim(
            "with raw steps Dr. GRPO's late wrong answers are shorter",
            "a control",
            "no number",
            arm="Dr. GRPO",
            measure="late wrong length",
            direction="-",
            columns=("raw",),
        ),
        Claim(
            "… but there it has hardly learnt: a trap",
            "a control: the constant normaliser shrinks the gradient about fifteen times at this length",
            "no number",
            arm="Dr. GRPO",
            measure="late pass@1",
            direction="-",
        ),
    ),
    curves=("rollout/length_wrong", "rollout/length_correct", "rollout/pass@1"),
    notes=SCALE
    + (
        " Lengths are compared where the smoothed pass rate first reaches 0.6. The cases are a dial: how "
        "far a policy can tell right from wrong after it has answered. A truncated answer counts if its "
        "digit is right, so length costs nothing; 16 tokens cap it (see truncated). Late lengths are "
        "means of steps, however few answers were wrong in a step, and compare arms at whatever accuracy "
        "they have."
    ),
)
