"""Stratified GRPO: compare only what is alike, how much, and when."""

from experiments.table import Claim, Measure, Table
from experiments.tables._common import SCALE, SEEDS, columns, entry

SOURCE = "Zhu et al. 2025, Stratified GRPO, arXiv:2510.06214"
PUBLISHED = "Qwen2.5-3B, seven QA sets: up to +11.3 exact match on average; about 2.5 searches learnt, GRPO about 1"
blend = lambda alpha: entry(
    "stratified_grpo", baseline=f"stratified(alpha={alpha})", aggregate="constant(length='completion')"
)
task = lambda skill: {"task": f"tools(prompts=8, options=4, prior=0.4, clear=0.55, skill={skill}, mix=(0.4, 0.4, 0.2))"}

TABLE = Table(
    name="strata",
    title="Stratified advantages and tool calls",
    question="Does comparing completions within their number of calls let a policy find the longer way that pays?",
    base="configs/lab.py:grpo",
    common={"steps": 200, "group_size": 16, "sampling.completion_length": 8},
    arms={f"α {alpha}": blend(alpha) for alpha in (0.0, 0.6, 0.8, 0.9, 1.0)},
    reference="α 0.0",
    cases={f"skill {skill}": task(skill) for skill in (0.1, 0.2, 0.3)},
    columns=columns(raw=1.0, matched=0.3, adam=0.003),
    seeds=SEEDS,
    measures=(
        Measure("reward, end", "rollout/pass@1", first=180, better="higher"),
        Measure("calls, end", "rollout/calls", first=180, digits=2),
        Measure("skill with two calls, end", "rollout/pass@1_calls2", first=180, better="higher"),
    ),
    claims=(
        Claim("the paper's blend (α = 0.6) ends with more reward", SOURCE, PUBLISHED, "α 0.6", "reward, end", "+"),
        Claim(
            "the paper's blend calls more often",
            SOURCE,
            "about 2.5 searches learnt, GRPO about 1",
            "α 0.6",
            "calls, end",
            "+",
        ),
        Claim(
            "a blend near the stratified end ends with more reward",
            "a variation of ours",
            "no number",
            "α 0.9",
            "reward, end",
            "+",
        ),
        Claim("it calls more often", "a variation of ours", "no number", "α 0.9", "calls, end", "+"),
        Claim(
            "pure stratification (α = 1) ends worse than a blend",
            SOURCE,
            "no number; the paper uses a blend, α = 0.6 for Qwen2.5-3B Base (second-hand)",
            "α 1.0",
            "reward, end",
            "-",
            against="α 0.9",
        ),
    ),
    curves=("rollout/pass@1", "rollout/calls"),
    heatmaps=("reward, end", "calls, end"),
    notes=SCALE
    + (
        " No call: right at 0.4 by the prior; one call: 0.55 at best; two calls: right always, once their"
        " code is read, which the policy starts to do at the rate named by the case. Skill with two calls"
        " is over completions that made two: few in some arms. All arms use the constant normaliser and "
        "ddof 0."
    ),
)
