"""Slot `kl`: a penalty per token for leaving the reference. Part: `(logprobs_BT, reference_BT) → penalty_BT`.

Both come in masked. e = reference − logprobs, clamped to ±20; the tokens were sampled from the policy. nats.
"""

from __future__ import annotations

import jax.numpy as jnp

from rlvr_jax.estimators.base import MAX_LOG_RATIO, Part, require_between
from rlvr_jax.registry import Registry

registry = Registry("kl")


def _gap(logprobs_BT, reference_BT):
    return jnp.clip(reference_BT - logprobs_BT, -MAX_LOG_RATIO, MAX_LOG_RATIO)


def k3_estimate(logprobs_BT, reference_BT):
    """eᵉ − e − 1 ≥ 0; through expm1, because for a small e the plain form is rounding."""
    gap = _gap(logprobs_BT, reference_BT)
    return jnp.maximum(jnp.expm1(gap) - gap, 0.0)


def _penalty(beta, option, estimate) -> Part:
    require_between(f"kl={option}", "beta", beta, 0)
    apply = lambda logprobs_BT, reference_BT: beta * estimate(logprobs_BT, reference_BT)
    return Part(apply=apply, needs=frozenset({"reference"}))


@registry.register
def none() -> Part:
    """No penalty, and no reference."""
    return Part(apply=lambda logprobs_BT, reference_BT: jnp.zeros_like(logprobs_BT))


@registry.register
def k1(beta=0.001, allow=False) -> Part:
    """β·(logprobs − reference): unbiased as a value, but its expected on-policy gradient in the loss is 0.

    Refused unless `allow=True`. Reference: Schulman 2020, "Approximating KL divergence".
    """
    if not allow:
        raise ValueError(
            "kl=k1: as a loss its expected on-policy gradient is 0, so it penalises nothing; choose 'k2' or "
            "'k3', or say k1(beta=..., allow=True)"
        )
    return _penalty(beta, "k1", lambda logprobs_BT, reference_BT: -_gap(logprobs_BT, reference_BT))


@registry.register
def k2(beta=0.001) -> Part:
    """β·½·(logprobs − reference)²: its expected on-policy gradient is that of KL(π ‖ reference).

    Reference: Schulman 2020, "Approximating KL divergence".
    """
    return _penalty(beta, "k2", lambda logprobs_BT, reference_BT: 0.5 * _gap(logprobs_BT, reference_BT) ** 2)


@registry.register
def k3(beta=0.001) -> Part:
    """β·(eᵉ − e − 1) with e = reference − logprobs: never negative, 0 where the two agree.

    Reference: Shao et al. 2024, GRPO, arXiv:2402.03300, eq. 4.
    Departs: verl also clamps the result to ±10, oat clamps e to ±40, TRL does not clamp.
    """
    return _penalty(beta, "k3", k3_estimate)
