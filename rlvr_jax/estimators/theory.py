"""Closed forms for binary outcomes, in float64 numpy: what the estimators do in expectation and per token.

p is a prompt's success probability, G the group size, S the event that a group has both a right and a wrong
response, p̂ the group's mean outcome.
"""

from __future__ import annotations

from math import comb

import jax.numpy as jnp
import numpy as np

from rlvr_jax.registry import nearest
from rlvr_jax.types import Batch, Groups


def conditional_mean(p: float, G: int) -> float:
    """E[p̂ | S] = (p − p^G)/(1 − (1−p)^G − p^G). Reference: arXiv:2601.08521, theorem 1."""
    q = 1.0 - p
    return (p - p**G) / (1.0 - q**G - p**G)


def conditional_bias(p: float, G: int) -> float:
    """E[p̂ | S] − p = p·q·(q^(G−1) − p^(G−1))/(1 − q^G − p^G): > 0 for p < ½, 0 at ½, < 0 above.

    With the response's own outcome held fixed, its advantage r − p̂ is too small by this on hard prompts and
    too large on easy ones. Reference: arXiv:2601.08521, theorem 1.
    """
    q = 1.0 - p
    return p * q * (q ** (G - 1) - p ** (G - 1)) / (1.0 - q**G - p**G)


def conditional_mean_given(outcome: int, p: float, G: int) -> float:
    """E[p̂ | r₁ = outcome, S]: the same expectation with the response's own outcome known.

    right: (1 + (G−1)·p·(1 − p^(G−2))/(1 − p^(G−1)))/G,   wrong: (G−1)·p/(G·(1 − q^(G−1)))
    """
    if outcome:
        others = p * (1.0 - p ** (G - 2)) / (1.0 - p ** (G - 1))
        return (1.0 + (G - 1) * others) / G
    return (G - 1) * p / (G * (1.0 - (1.0 - p) ** (G - 1)))


def overestimation_probability(p: float, G: int, margin: float = 0.0) -> float:
    """P(p̂ − p > margin | S) = Σ_{k = ⌊G(p + margin)⌋ + 1}^{G−1} C(G,k) p^k q^(G−k) / (1 − q^G − p^G).

    Reference: arXiv:2601.08521, theorem 2.
    """
    q = 1.0 - p
    first = max(int(np.floor(G * (p + margin) + 1e-12)) + 1, 1)
    mass = sum(comb(G, k) * p**k * q ** (G - k) for k in range(first, G))
    return min(mass / (1.0 - q**G - p**G), 1.0)


def mean_right_advantage(p: float, G: int) -> float:
    """μ_G(p) = E[A | r₁ = 1] of GRPO (ddof 0) = Σ_{S=1}^{G−1} C(G−1, S−1) p^(S−1) q^(G−S) √((G−S)/S).

    That of a wrong response is −μ_G(1 − p). Reference: arXiv:2609.34990.
    """
    q = 1.0 - p
    return sum(comb(G - 1, S - 1) * p ** (S - 1) * q ** (G - S) * np.sqrt((G - S) / S) for S in range(1, G))


def history_factor(p_hat, anchor, sign, strength: float = 1.3):
    """Φ = strength·exp(−sign·(p̂ − anchor)), HA-DW's factor on an advantage of that sign."""
    return strength * np.exp(-np.sign(sign) * (np.asarray(p_hat) - anchor))


def _standard(p, G, ddof):
    shrink = np.sqrt((G - ddof) / G)
    return shrink * np.sqrt((1 - p) / p), -shrink * np.sqrt(p / (1 - p))


def _pass_at_k(p, G, k=4):
    wrong = round((1 - p) * G)
    fails = comb(wrong, k) / comb(G, k) if k <= G else 0.0
    if not 0.0 < fails < 1.0:
        return 0.0, 0.0
    sigma = np.sqrt(fails * (1 - fails))
    return fails / sigma, (fails - comb(wrong - 1, k - 1) / comb(G - 1, k - 1)) / sigma


def _centred(p, G):
    return 1 - p, -p


_BINARY = {
    "reinforce": lambda p, G: (1.0, 0.0),
    "rloo": lambda p, G: (G / (G - 1) * (1 - p), -G / (G - 1) * p),
    "grpo_no_std": _centred,
    "dr_grpo": _centred,
    "length_power": _centred,
    "opo": _centred,  # at equal lengths
    "maxrl": lambda p, G: ((1 - p) / p, -1.0),
    "sign_balance_group": lambda p, G: (1.0, -p / (1 - p)),
    "maxnorm_ac": lambda p, G: ((1 - p) / max(p, 1 - p), -p / max(p, 1 - p)),
    "stratified_grpo": lambda p, G: _standard(p, G, 0),  # of one stratum
    "e3_masked": lambda p, G: (_standard(p, G, 1)[0], 0.0),
    "pass_at_k": _pass_at_k,
} | dict.fromkeys(
    ("grpo", "dapo", "lambda_grpo", "balanced", "e3", "gspo", "gspo_token", "gmpo", "cispo", "sapo"),
    lambda p, G: _standard(p, G, 1),
)


def binary_advantages(name: str, k: int, G: int) -> tuple[float, float]:
    """(A of a right, A of a wrong response) when 0 < k < G of a group are right, with eps = 0.

        grpo: √((G−1)/G)·√(q/p), −√((G−1)/G)·√(p/q);   no std: q, −p;   rloo: G/(G−1) times that;
        maxrl: q/p, −1;   sign_balance_group: 1, −p/q;   maxnorm_ac: q, −p over max(p, q);   p = k/G

    dapo's is that of responses without a length penalty.

    Raises:
      ValueError: an entry whose advantage depends on more than its own group, or k not inside (0, G).
    """
    if name not in _BINARY:
        raise ValueError(
            f"binary_advantages: {name!r} depends on more than its group's (k, G)"
            f"{nearest(name, _BINARY)} Choose from {sorted(_BINARY)}"
        )
    if not 0 < k < G:
        raise ValueError(f"binary_advantages: k={k} must lie inside (0, G={G})")
    right, wrong = _BINARY[name](k / G, G)
    return float(right), float(wrong)


def token_coefficient(estimator, lengths, outcome) -> np.ndarray:
    """f64[G]: the coefficient of ∇log π that each token of each response gets from one group, at ratio 1.

    Weight times advantage, so as a function of length, group accuracy and sign: of any entry, evaluated
    rather than derived. `lengths` and `outcome` are those of the G responses.
    """
    lengths = jnp.asarray(lengths, jnp.int32)
    groups = Groups(outcome=jnp.asarray(outcome, jnp.float32)[None], lengths=lengths[None])
    selected, advantages, _, _ = estimator.estimate(groups, estimator.init_memory(1))
    batch = Batch(
        completion_mask=jnp.arange(int(lengths.max()))[None, :] < lengths[:, None],
        advantages=advantages[0],
        group=jnp.zeros(lengths.shape, jnp.int32),
        valid=selected.valid[0],
    )
    weights = estimator.token_weights(estimator.init_params(), batch)
    return np.asarray(weights.max(axis=1) * advantages[0], np.float64)
