"""What the toy tables share: seeds, optimiser columns, bands of prompts."""

from __future__ import annotations

# Never used while a table was being set up (that was done with seeds below 100), so nothing here was chosen by them.
SEEDS = tuple(range(501, 511))

SCALE = (
    "A toy of about 7,000 parameters: prompts are memorised and wrong answers stay plausible, so effects of the "
    "estimator are visible within minutes. The papers train models of 0.5 to 32 billion parameters; directions can be "
    'compared, sizes cannot. "Does not show here" means here.'
)

LOOKUP_HARD_EASY = "lookup(prompts=32, options=10, rates=(0.5, 0.9), hard=(0.02, 0.15))"


def columns(raw: float, matched: float, adam: float) -> dict:
    """The three optimisers: raw SGD shows the gradient's scale, Adam hides it, matched norms remove it."""
    return {
        "raw": {"optimizer.kind": "sgd", "optimizer.learning_rate": raw},
        "matched": {"optimizer.kind": "matched", "optimizer.learning_rate": matched},
        "adam": {"optimizer.kind": "adam", "optimizer.learning_rate": adam},
    }


def entry(name: str, **slots: str) -> dict:
    """Config differences of an arm: an entry of the catalogue with slots replaced."""
    return {"estimator.name": name, **{f"estimator.{slot}": text for slot, text in slots.items()}}
