"""The bias of r − p̂ in groups that have both outcomes, under each conditioning, and what HA-DW's factor does to it.

S: a group has both a right and a wrong response; p̂ its mean outcome, p the prompt's success probability.
Reference: HA-DW, arXiv:2601.08521, theorem 1.
"""

from __future__ import annotations

from math import comb

import jax.numpy as jnp
import numpy as np

from experiments.panels import LIMIT, PanelData, advantages, mean_and_error, within, z_score
from rlvr_jax.estimators import make_estimator, theory
from rlvr_jax.estimators.reweight import History

RATES = (0.05, 0.1, 0.25, 0.5, 0.75)
DRAWN = 200_000  # groups a cell
SIZES = (2, 4, 8, 16)


def _contrasting(p: float, G: int, drawn: int, seed: int) -> np.ndarray:
    """f32[n, G]: those of `drawn` groups of Bernoulli(p) outcomes that have both classes."""
    rng = np.random.default_rng([seed, G, round(1000 * p)])
    outcome = (rng.random((drawn, G), np.float32) < p).astype(np.float32)
    right = outcome.sum(axis=1)
    return outcome[(right > 0) & (right < G)]


def _first(estimator, outcome: np.ndarray, drawn: int, memory=None) -> np.ndarray:
    """f64[n]: the advantage of the first response of each group; one shape, hence one compilation, for all sizes."""
    return advantages(estimator, outcome, memory, shape=(drawn, max(SIZES)))[:, 0]


def closed_form(estimator: str = "dr_grpo", drawn: int = DRAWN) -> PanelData:
    """E[p̂ | S] − p: the closed form beside Monte Carlo, p̂ = r − A taken from the estimator's advantages.

    Args:
      estimator: an entry whose advantage should be r − p̂.
      drawn: groups drawn per cell; those in S are used.
    """
    chosen = make_estimator(estimator)
    rows, zs, fixed = [], [], True
    for p in RATES:
        for G in SIZES:
            outcome = _contrasting(p, G, drawn, seed=1)
            p_hat = outcome[:, 0] - _first(chosen, outcome, drawn)
            mean, error = mean_and_error(p_hat - p)
            expected = theory.conditional_bias(p, G)
            z = z_score(mean, error, expected)
            if G == 2:  # one right, one wrong: p̂ = 1/2 whatever p
                fixed = fixed and z is None and abs(mean - expected) < 1e-6
            else:
                zs.append(z)
            rows.append([p, G, expected, mean, error, z, len(outcome)])
    worst = max((z for z in zs if z is not None), key=abs, default=None)
    return {
        "columns": ["p", "G", "E[p̂|S] − p", "Monte Carlo", "s.e.", "z", "groups in S"],
        "rows": rows,
        "note": f"{drawn} groups drawn per cell; p̂ is r − A of {estimator}. Worst of {len(zs)} z: {_text(worst)}; "
        f"holds asks |z| < {LIMIT} of each (by chance one of {len(zs)} exceeds it with probability below 1 %). G = 2 "
        "is degenerate: given S one response is right and p̂ is 1/2, so its bias 1/2 − p has no error and no z.",
        "holds": bool(fixed and all(within(z) for z in zs)),
    }


def _text(z: float | None) -> str:
    return "none" if z is None else f"{z:+.2f}"


def _given(outcome_n: np.ndarray) -> dict[str, np.ndarray]:
    """Name of a conditioning → which groups it keeps, by the outcome of their first response."""
    return {"r drawn": np.ones(len(outcome_n), bool), "r = 1": outcome_n == 1, "r = 0": outcome_n == 0}


def conditioning(estimator: str = "dr_grpo", drawn: int = DRAWN) -> PanelData:
    """E[A | S] of one response for r drawn with its group, for r = 1 and for r = 0, beside what r − p would give.

    Closed forms: 0;  1 − E[p̂ | r = 1, S];  −E[p̂ | r = 0, S].

    Args: as `closed_form`.
    """
    chosen = make_estimator(estimator)
    rows, zs, same = [], [], True
    for p in RATES:
        for G in (4, 8):
            outcome = _contrasting(p, G, drawn, seed=2)
            own = _first(chosen, outcome, drawn)
            for given, keep in _given(outcome[:, 0]).items():
                mean, error = mean_and_error(own[keep])
                if given == "r drawn":
                    expected, wanted = 0.0, theory.conditional_mean(p, G) - p
                else:
                    r = int(given == "r = 1")
                    expected, wanted = r - theory.conditional_mean_given(r, p, G), r - p
                z = z_score(mean, error, expected)
                zs.append(z)
                rows.append([p, G, given, expected, mean, error, z, wanted, expected - wanted])
            same = same and np.array_equal(own, _first(make_estimator("grpo_no_std"), outcome, drawn))
    split = [row[8] for row in rows if row[0] == 0.5 and row[2] != "r drawn"]
    return {
        "columns": ["p", "G", "given S and", "E[A]", "Monte Carlo", "s.e.", "z", "E[r − p]", "bias: E[A] − E[r − p]"],
        "rows": rows,
        "note": f"A = r − p̂ by {estimator} (grpo_no_std gives the same: {same}); {drawn} groups drawn per cell, the "
        f"first response of each in S; holds asks |z| < {LIMIT} of all {len(zs)}. With r drawn, E[A] is 0 for every p, "
        "and the bias against r − p is p − E[p̂|S], the published one: 0 at p = 1/2. Given the response's own outcome "
        f"it is another number, and at p = 1/2 it is not 0: between {min(split):+.3f} and {max(split):+.3f}, both "
        "advantages too small, which cancels on average.",
        "holds": bool(same and all(within(z) for z in zs) and min(map(abs, split)) > 1e-3),
    }


def _anchored(anchor: float, window: int = 10) -> dict:
    """The memory of an estimator with HA-DW's factor that has seen a batch and expects the mean outcome `anchor`."""
    history = History(jnp.float32(anchor), jnp.zeros((window,), jnp.float32), jnp.ones((), jnp.int32))
    return {"reweight": history}


def _expected(name: str, r: int, p: float, G: int, anchor: float | None = None, strength: float = 1.0) -> float:
    """E[A·Φ | r₁ = r, S], summed over how many of the other responses are right; without an anchor Φ = 1."""
    total, mass = 0.0, 0.0
    for k in range(1, G):  # right responses of the group, this one included
        chance = comb(G - 1, k - r) * p ** (k - r) * (1 - p) ** (G - 1 - k + r)
        right, wrong = theory.binary_advantages(name, k, G)
        phi = 1.0 if anchor is None else float(theory.history_factor(k / G, anchor, 1 if r else -1, strength))
        total += chance * phi * (right if r else wrong)
        mass += chance
    return total / mass


# label → (entry of the advantage, slots of the entry with the factor, strength). The first leaves out the division by
# the std and the strength, which multiplies every advantage alike, so that r − p is its yardstick; the second is as
# published.
_FACTORED = {
    "r − p̂": ("grpo_no_std", {"scale": "none", "reweight": "history(strength=1.0)"}, 1.0),
    "GRPO": ("grpo", {}, 1.3),
}


def history(G: int = 8, drawn: int = DRAWN, name: str = "ha_dw_grpo") -> PanelData:
    """E[A·Φ | r, S] with HA-DW's factor Φ at the anchors C = 1/2 and C = p, beside E[A | r, S] and r − p.

    Args:
      G: group size.
      drawn: groups drawn per pass rate.
      name: the entry with the factor.
    """
    rows, zs = [], []
    for seed, (label, (plain, slots, strength)) in enumerate(_FACTORED.items(), start=3):
        chosen = make_estimator(name, **slots)
        for p in (0.05, 0.25, 0.5, 0.75):
            outcome = _contrasting(p, G, drawn, seed)
            found = {C: _first(chosen, outcome, drawn, _anchored(C)) for C in (0.5, p)}
            for r in (1, 0):
                before = _expected(plain, r, p, G)
                row = [label, p, r, r - p, before]
                for C in (0.5, p):
                    after = _expected(plain, r, p, G, C, strength)
                    z = z_score(*mean_and_error(found[C][outcome[:, 0] == r]), after)
                    zs.append(z)
                    row += [after, z, abs(after - (r - p)) < abs(before - (r - p)) if strength == 1.0 else None]
                rows.append(row)
    nearer = [[row[column] for row in rows if row[column] is not None] for column in (7, 10)]
    at = lambda C: [f"E[AΦ] at C = {C}", "z", "nearer to r − p"]
    return {
        "columns": ["A", "p", "r", "r − p", "E[A]", *at("1/2"), *at("p")],
        "rows": rows,
        "note": f"Given the response's own outcome r and S, G = {G}: sums over the binomial; z of Monte Carlo through "
        f"{name} with the anchor put into its memory, each sample at both anchors; holds asks |z| < {LIMIT} of all "
        f"{len(zs)}. On r − p̂ alone (strength 1) the factor brings E[A] nearer to r − p in "
        f"{sum(nearer[0])} of {len(nearer[0])} cells at C = 1/2 and in {sum(nearer[1])} of {len(nearer[1])} at C = p. "
        "GRPO rows: std and strength 1.3 as published, where r − p is no yardstick.",
        "holds": all(within(z) for z in zs),
    }
