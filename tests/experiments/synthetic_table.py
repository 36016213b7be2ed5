"""A toy table whose runs were never trained: curves with planted differences between arms, written in no time."""

import json

import numpy as np

from experiments.runs import Runs, write_lab_run
from experiments.table import Claim, Measure, Panel, Table, run_keys
from rlvr_jax.workdir import save_config

STEPS = 60
ENVIRONMENT = {"commit": "0123abc", "device": "1 × cpu", "processor": "a processor", "cores": "2"}
METRICS = ("rollout/pass@1", "rollout/length_wrong", "rollout/length_correct", "update/gradient_norm")
# How much faster an arm learns and how much longer its wrong answers grow, in the raw column; the controls keep the
# second number only for the arm whose claim is no matter of step size.
PLANTED = {"GRPO": (0.0, 0.0), "Dr. GRPO": (0.0, -2.0), "RLOO": (0.0, 0.0), "DAPO": (0.5, 0.0), "λ-GRPO": (0.0, 1.0)}
SIZE_ONLY = ("DAPO",)


def make_table(**changes) -> Table:
    """5 arms × 3 columns × 2 cases × 10 seeds, or as `changes` say."""
    claims = (
        Claim(
            "Without the length normaliser, wrong answers stop growing",
            "Liu et al. 2025, fig. 5",
            "about −40 % tokens in wrong answers",
            "Dr. GRPO",
            "length of wrong",
            "-",
        ),
        Claim(
            "Clip-higher and token mean learn faster", "Yu et al. 2025, tab. 1", "30 → 50 AIME", "DAPO", "pass@1", "+"
        ),
        Claim("Leave-one-out is as good", "Ahmadian et al. 2024", "no difference", "RLOO", "pass@1", "0", margin=0.02),
    )
    columns = {
        "raw": {"optimizer.kind": "sgd", "optimizer.learning_rate": 0.5},
        "matched": {"optimizer.kind": "matched", "optimizer.learning_rate": 0.5},
        "adam": {"optimizer.kind": "adam", "optimizer.learning_rate": 0.01},
    }
    table = {
        "name": "synthetic",
        "title": "Does the normaliser make wrong answers long?",
        "question": "Which parts of an estimator change the length of wrong answers, which only the size of a step?",
        "base": "configs/lab.py:grpo",
        "common": {"steps": STEPS},
        "arms": {
            "GRPO": {},
            "Dr. GRPO": {"estimator.name": "dr_grpo"},
            "RLOO": {"estimator.name": "rloo"},
            "DAPO": {"estimator.name": "dapo"},
            "λ-GRPO": {"estimator.name": "lambda_grpo"},
        },
        "reference": "GRPO",
        "cases": {
            "short answers": {"sampling.completion_length": 12},
            "long answers": {"sampling.completion_length": 16},
        },
        "columns": columns,
        "seeds": tuple(range(10)),
        "measures": (
            Measure("pass@1", "rollout/pass@1", first=40, better="higher"),
            Measure("length of wrong", "rollout/length_wrong", first=40, digits=2),
            Measure(
                "gap at equal pass@1", "rollout/length_wrong", "at_equal", value=0.5, minus="rollout/length_correct"
            ),
            Measure("steps to 0.6", "rollout/pass@1", "steps_to", value=0.6, better="lower", digits=1),
        ),
        "claims": claims,
        "curves": ("rollout/pass@1", "rollout/length_wrong", "update/gradient_norm"),
        "panels": (Panel("bias", "Bias of the baseline", "by arithmetic", bias),),
        "notes": "Lengths here are of toy answers of at most 16 tokens; the papers' are of thousands.",
    }
    return Table(**{**table, **changes})


def bias():
    rows = [["GRPO", 4, -0.125, True], ["RLOO", 4, 0.0, False]]
    return {"columns": ["estimator", "G", "bias", "biased"], "rows": rows, "note": "Exact.", "holds": True}


def small(**changes) -> Table:
    """2 arms × 1 column × 1 case × 3 seeds."""
    arms = {"GRPO": {}, "Dr. GRPO": {"estimator.name": "dr_grpo"}}
    keep = make_table()
    defaults = {
        "name": "small",
        "arms": arms,
        "cases": {"": {}},
        "columns": {"": {}},
        "seeds": (3, 5, 8),
        "claims": keep.claims[:1],
        "panels": (),
        "curves": ("rollout/pass@1",),
    }
    return make_table(**{**defaults, **changes})


def curves_of(key, steps=STEPS) -> dict[str, np.ndarray]:
    """metric → f32[steps] of one run; a block shares its chance, an arm adds a little of its own."""
    shared = np.random.default_rng([key.seed, len(key.case)])
    own = np.random.default_rng([key.seed, len(key.case), *map(ord, key.arm + key.column)])
    faster, longer = PLANTED[key.arm]
    if key.arm in SIZE_ONLY and key.column in ("matched", "adam"):
        faster = 0.0
    t = np.arange(steps) / steps
    rate = 3.0 + faster * 2 + shared.normal(0, 0.3) + own.normal(0, 0.08)
    right = 0.2 + 0.75 * (1 - np.exp(-rate * t)) + own.normal(0, 0.02, steps)
    long = len(key.case) > 12
    wrong = 8.0 + 4 * t * (1 + 0.2 * long) + longer * t + shared.normal(0, 0.4) + own.normal(0, 0.25, steps)
    wrong[::17] = np.nan
    norm = (1 + faster) * (1.3 - t) * own.uniform(0.8, 1.2, steps)
    arrays = (right, wrong, 7 + t + own.normal(0, 0.1, steps), norm)
    return {name: array.astype(np.float32) for name, array in zip(METRICS, arrays)}


def write_runs(table, root, keys=None) -> None:
    runs = Runs(table, root)
    for key in run_keys(table) if keys is None else keys:
        config = runs.config(key)
        write_lab_run(runs.path(key), curves_of(key, config.steps), config, ENVIRONMENT)


def real(**changes) -> Table:
    """2 arms × 2 seeds of the trainer."""
    measures = (Measure("reward", "rollout/reward"), Measure("held-out", "eval/greedy_pass@1", first=2))
    defaults = {"base": "configs/tiny.py:grpo", "common": {"steps": 2}, "seeds": (1, 2), "claims": ()}
    return small(**{**defaults, "measures": measures, "curves": ("rollout/reward",), **changes})


def fake_workdir(runs, key, reward=0.5) -> None:
    """What `rlvr train` leaves of a run, without its checkpoints."""
    path, config = runs.path(key), runs.config(key)
    save_config(path, config)
    lines = [{"step": step, "rollout/reward": reward, "update/loss": None} for step in range(config.steps)]
    lines.append({"step": config.steps, "eval/greedy_pass@1": reward})
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "evaluation.json").write_text(json.dumps({"evaluations": [{"step": 0}, {"step": config.steps}]}))
