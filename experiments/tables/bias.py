"""The bias of the group baseline, exactly; and whether HA-DW's remedy is more than a learning rate."""

from experiments.panels import bias
from experiments.table import Claim, Measure, Panel, Table
from experiments.tables._common import LOOKUP_HARD_EASY, SCALE, SEEDS, columns, entry

SOURCE = "Yang et al. 2026, HA-DW, arXiv:2601.08521"
PUBLISHED = "mean of five sets, GRPO → with HA-DW: Qwen3-4B 46.5 → 48.7, Qwen3-8B 49.6 → 52.5, Llama-3.2-3B 25.7 → 27.1"
ABLATION = (
    "Qwen3-4B, mean of five sets: without 46.5; λ = 0.5: 46.5, 0.8: 47.2, 1.0: 47.4, 1.3: 48.7, 1.5: 48.6, 1.7: 48.1, "
    "2.0: 47.3"
)
history = lambda **keywords: entry(
    "grpo", reweight="history(" + ", ".join(f"{name}={value!r}" for name, value in keywords.items()) + ")"
)

TABLE = Table(
    name="bias",
    title="Difficulty bias and HA-DW",
    question="Is the group baseline biased by difficulty as the closed form says, and does reweighting by history help "
    "beyond larger steps?",
    base="configs/lab.py:grpo",
    common={"steps": 200, "sampling.completion_length": 6, "task": LOOKUP_HARD_EASY},
    arms={
        "GRPO": entry("grpo"),
        "GRPO, steps × 1.3": {**entry("grpo"), "optimizer.rate_factor": 1.3},
        "HA-DW λ 1": history(variant="window", strength=1.0),
        "HA-DW λ 1.3": history(variant="window", strength=1.3),
        "HA-DW λ 1.3, anchor": history(variant="anchor", strength=1.3),
        "reversed, λ 1": history(variant="window", strength=1.0, slope=-1.0),
    },
    reference="GRPO",
    columns=columns(raw=0.5, matched=0.5, adam=0.003),
    seeds=SEEDS,
    measures=(
        Measure("hard, area", "rollout/pass@1_hard", "area", better="higher"),
        Measure("pass@1, area", "rollout/pass@1", "area", better="higher"),
        Measure("pass@1, end", "rollout/pass@1", first=180, better="higher"),
    ),
    claims=(
        Claim(
            "HA-DW learns hard prompts faster",
            SOURCE,
            "no number for hard prompts; " + PUBLISHED,
            "HA-DW λ 1.3",
            "hard, area",
            "+",
        ),
        Claim("with the paper's anchor too", SOURCE, PUBLISHED, "HA-DW λ 1.3, anchor", "hard, area", "+"),
        Claim("with λ = 1 too", SOURCE, ABLATION, "HA-DW λ 1", "hard, area", "+"),
        Claim("λ = 1.3 is better than λ = 1", SOURCE, ABLATION, "HA-DW λ 1.3", "hard, area", "+", against="HA-DW λ 1"),
        Claim(
            "HA-DW is better than GRPO with steps 1.3 times as large",
            "a control: λ multiplies every advantage; the rest of the factor changes norms too, so this alone shows no "
            "better direction (see matched)",
            "no number",
            "HA-DW λ 1.3",
            "hard, area",
            "+",
            against="GRPO, steps × 1.3",
            columns=("raw",),
        ),
        Claim(
            "the reversed sign hurts",
            "a control: the direction of the reweighting",
            "no number",
            "reversed, λ 1",
            "hard, area",
            "-",
        ),
        Claim(
            "the sign of the reweighting matters",
            "a control",
            "no number",
            "reversed, λ 1",
            "hard, area",
            "-",
            against="HA-DW λ 1",
        ),
        Claim("HA-DW ends better", SOURCE, PUBLISHED, "HA-DW λ 1.3", "pass@1, end", "+"),
    ),
    curves=("rollout/pass@1_hard", "rollout/pass@1_easy", "update/gradient_norm"),
    panels=(
        Panel("closed_form", "E[p̂ | S] − p: closed form and Monte Carlo", SOURCE, bias.closed_form),
        Panel("conditioning", "What is held fixed decides what the bias is", SOURCE, bias.conditioning),
        Panel("history", "What HA-DW's factor does to it", SOURCE, bias.history),
    ),
    notes=SCALE
    + (
        " λ is HA-DW's strength; \"window\" is the form of the authors' code (a mean of the last ten "
        'batches; there λ = 1.5), "anchor" the paper\'s filter (its η and window are not printed). Steps ×'
        " 1.3 holds in matched and adam too."
    ),
)
