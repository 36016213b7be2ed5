"""What negative gradients do to length and exploration, on a task where search pays; and e3's curriculum."""

from experiments.table import Claim, Measure, Table
from experiments.tables._common import SCALE, SEEDS, columns, entry

SOURCE = "Setlur et al. 2025, e3, arXiv:2506.09026"
weighted = lambda weight: entry("e3", reweight=f"negatives(weight={weight})")
task = lambda give_up: {"task": f"search(prompts=8, options=3, hard_options=8, give_up={give_up})"}

TABLE = Table(
    name="negatives",
    title="Negative gradients and search",
    question="Do negative gradients lengthen the search and keep exploring, and does a coupled curriculum help?",
    base="configs/lab.py:grpo",
    common={"steps": 150, "sampling.completion_length": 16},
    arms={
        "kept": entry("e3"),
        "masked": entry("e3_masked"),
        "half": weighted(0.5),
        "double": weighted(2.0),
        "kept, budget grows": {**entry("e3"), "curriculum.budget": (4, 16, 75)},
        "kept, coupled": {**entry("e3"), "curriculum.budget": (4, 16, 75), "curriculum.prompts": (0.5, 1.0, 75)},
    },
    reference="kept",
    cases={"gives up often": task(0.7), "gives up at once": task(0.95)},
    columns=columns(raw=0.1, matched=0.1, adam=0.001),
    seeds=SEEDS,
    measures=(
        Measure("tries, area", "rollout/calls", "area", digits=2),
        Measure("tries, end", "rollout/calls", first=130, digits=2),
        Measure("pass@1 hard, area", "rollout/pass@1_hard", "area", better="higher"),
        Measure("pass@1 hard, end", "rollout/pass@1_hard", first=130, better="higher"),
        Measure("pass@1, end", "rollout/pass@1", first=130, better="higher"),
        Measure("entropy, end", "update/entropy", first=130),
    ),
    claims=(
        Claim(
            "masking negatives stops the search from growing",
            SOURCE,
            "masking stops the growth of length (no number)",
            "masked",
            "tries, area",
            "-",
        ),
        Claim(
            "masking negatives costs entropy",
            SOURCE,
            "masking stops exploration (no number)",
            "masked",
            "entropy, end",
            "-",
        ),
        Claim(
            "masking negatives costs reward on hard prompts",
            "ours: e3's claim carried to reward",
            "no number",
            "masked",
            "pass@1 hard, area",
            "-",
        ),
        Claim("half the negatives, fewer tries", "a control: the dose", "no number", "half", "tries, area", "-"),
        Claim("double the negatives, more tries", "a control: the dose", "no number", "double", "tries, area", "+"),
        Claim(
            "a curriculum coupled with the budget ends better",
            SOURCE,
            "no ablation at hand; e3-1.7B as a whole: AIME25 35.5 → 43.8",
            "kept, coupled",
            "pass@1 hard, end",
            "+",
        ),
        Claim(
            "a coupled curriculum ends better than a growing budget alone",
            "a control",
            "no number",
            "kept, coupled",
            "pass@1 hard, end",
            "+",
            against="kept, budget grows",
        ),
    ),
    curves=("rollout/calls", "rollout/pass@1_hard", "update/entropy"),
    notes=SCALE
    + (
        " The answer is a digit among 3 (easy) or 8 (hard) that is drawn anew for every completion; each "
        "try is answered right or wrong, and the last try counts. Curricula end at step 75. All arms "
        "divide by length: masking shortens even under random reward (table controls), so fewer tries are"
        " not less exploration by themselves. Entropy is a mean over tokens the policy wrote and changes "
        "with how many there are. The curricula are linear, not e3's rule (κ = 1.2); the coupled one "
        "trains on half of the prompts at first. Matched norms are taken on an arm's own prompts."
    ),
)
