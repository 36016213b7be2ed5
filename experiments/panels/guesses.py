"""What one lucky guess gets, and SignBalance as REINFORCE with a baseline: arithmetic, through the catalogue.

Reference: SignBalance, arXiv:2609.04063.
"""

from __future__ import annotations

import numpy as np

from experiments.panels import PanelData, advantages
from rlvr_jax.estimators import make_estimator, theory

SIZES = (4, 8, 16, 32, 64)
_GROUPS = 20  # of the batch around the lucky one
_SHAPE = (_GROUPS, max(SIZES))
_BATCH_RATES = (0.1, 0.5)
_ENTRIES = ("grpo", "dr_grpo", "rloo", "sign_balance_group", "maxnorm_ac", "pass_at_k")


def _batch(G: int, rate: float) -> np.ndarray:
    """f32[20, G]: one right response in the first group, and as many elsewhere as make the batch's pass rate."""
    outcome = np.zeros(_GROUPS * G, np.float32)
    right = round(rate * outcome.size)
    outcome[0] = 1
    outcome[np.linspace(G, outcome.size - 1, right - 1).astype(int)] = 1
    assert outcome.sum() == right, (G, rate)
    return outcome.reshape(_GROUPS, G)


def _lucky(name: str, G: int, rate: float) -> tuple[float, float]:
    """(advantage of the lone right response, of each wrong one) in a group with one right of G."""
    first = advantages(make_estimator(name), _batch(G, rate), shape=_SHAPE)[0]
    assert np.ptp(first[1:]) == 0
    return float(first[0]), float(first[1])


def lucky(replace: dict[str, str] | None = None) -> PanelData:
    """Advantages of the lone right response and of each wrong one, k = 1 of G, beside √((G − k)/k).

    Args:
      replace: entry → the entry to evaluate in its place.
    """
    replace = replace or {}
    pairs = {(name, None): [_lucky(replace.get(name, name), G, 0.5) for G in SIZES] for name in _ENTRIES}
    chosen = replace.get("sign_balance", "sign_balance")
    pairs |= {("sign_balance", P): [_lucky(chosen, G, P) for G in SIZES] for P in _BATCH_RATES}
    rows = [["√((G − k)/k)", "right", *(float(np.sqrt(G - 1)) for G in SIZES)]]
    worst = 0.0
    for (name, P), cells in pairs.items():
        expected = [(1.0, -P / (1 - P)) if P else theory.binary_advantages(name, 1, G) for G in SIZES]
        worst = max(worst, float(np.abs(np.subtract(cells, expected)).max()))
        label = f"{name} (batch pass rate {P})" if P else name
        rows += [[label, side, *(cell[i] for cell in cells)] for i, side in enumerate(("right", "each wrong"))]
    return {
        "columns": ["estimator", "response", *(f"G = {G}" for G in SIZES)],
        "rows": rows,
        "note": "GRPO's lone success has √((G − 1)/G)·√((G − k)/k) (ddof 1; without the first factor at ddof 0), which "
        "grows like √G. SignBalance over the batch gives every success 1 and every failure of the batch the same, here "
        f"in batches of {_GROUPS} groups with the pass rate stated; the others see only their own group. pass_at_k has "
        "k = 4: at G = 4 no draw of 4 misses the success, so it teaches nothing. Largest difference from the closed "
        f"forms: {worst:.1e} (holds asks < 1e-4; the std's eps of 1e-6 makes most of it).",
        "holds": worst < 1e-4,
    }


def _random_batch(rng, P: int, G: int) -> np.ndarray:
    """f32[P, G] with a pass rate of its own for every prompt and a right response in every group, but not all."""
    outcome = (rng.random((P, G)) < rng.random((P, 1))).astype(np.float32)
    outcome[:, 0], outcome[:, -1] = 1, 0
    return outcome


def sign_balance_is_reinforce(
    batch_entry: str = "sign_balance", group_entry: str = "sign_balance_group", batches: int = 20
) -> PanelData:
    """SignBalance beside (r − b)/(1 − b), b the batch's pass rate P or the group's p̂, on random batches.

    r − P is `reinforce_pp` without its scale, r − p̂ is `grpo_no_std`.

    Args:
      batch_entry, group_entry: the entries of either scope.
      batches: random batches per shape.
    """
    reinforce = {"P": make_estimator("reinforce_pp", scale="none"), "p̂": make_estimator("grpo_no_std")}
    found = {"P": make_estimator(batch_entry), "p̂": make_estimator(group_entry)}
    rng = np.random.default_rng(6)
    rows = []
    for P, G in ((1, 8), (4, 8), (16, 16)):
        worst = dict.fromkeys(reinforce, 0.0)
        for _ in range(batches):
            outcome = _random_batch(rng, P, G)
            rates = {"P": outcome.mean(), "p̂": outcome.mean(axis=1, keepdims=True)}
            for scope, rate in rates.items():
                expected = advantages(reinforce[scope], outcome, shape=_SHAPE) / (1 - rate)
                difference = advantages(found[scope], outcome, shape=_SHAPE) - expected
                worst[scope] = max(worst[scope], float(np.abs(difference).max() / np.abs(expected).max()))
        rows.append([P, G, batches, worst["P"], worst["p̂"]])
    largest = max(max(row[3:]) for row in rows)
    return {
        "columns": ["prompts", "G", "batches", "batch: A − (r − P)/(1 − P)", "group: A − (r − p̂)/(1 − p̂)"],
        "rows": rows,
        "note": "Largest difference, relative to the largest advantage of its batch; c = 1, another c multiplies both. "
        "So SignBalance over the batch is REINFORCE with the batch's pass rate P as baseline, times 1/(1 − P): all "
        "that a prompt with pass rate p samples, right or wrong, has mean advantage (p − P)/(1 − P), and the factor "
        f"grows without bound as P → 1. Groups have both outcomes. holds asks < 1e-5; found {largest:.1e}.",
        "holds": largest < 1e-5,
    }
