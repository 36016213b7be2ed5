"""Slot `clip`: log-ratio and advantage → loss per token.

Part: `(log_ratio_BT, logprobs_BT, advantages_B1) → (loss_BT, clipped_BT)`, where `clipped` is −1 at tokens
held by the lower bound, +1 at tokens held by the upper one. `log_ratio` is None under ratio=none.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlvr_jax.estimators.base import Part, require_between
from rlvr_jax.registry import Registry

registry = Registry("clip")


def _need_ratio(log_ratio_BT, option: str):
    if log_ratio_BT is None:
        raise ValueError(f"clip={option} needs a ratio, and ratio='none' has none; choose clip='none'")


def _sides(ratio_BT, advantages_B1, low, high):
    """−1 where A < 0 and ρ < 1 − low, +1 where A > 0 and ρ > 1 + high, else 0: where min() takes the
    bound."""
    below = (advantages_B1 < 0) & (ratio_BT < 1 - low)
    above = (advantages_B1 > 0) & (ratio_BT > 1 + high)
    return above.astype(jnp.int32) - below.astype(jnp.int32)


@registry.register
def none() -> Part:
    """ℓ = −ρ·A, or −A·log π under ratio=none."""

    def apply(log_ratio_BT, logprobs_BT, advantages_B1):
        factor = logprobs_BT if log_ratio_BT is None else jnp.exp(log_ratio_BT)
        return -factor * advantages_B1, jnp.zeros(logprobs_BT.shape, jnp.int32)

    return Part(apply=apply)


@registry.register
def ppo(low=0.2, high=0.2, dual=None) -> Part:
    """ℓ = −min(ρ·A, clip(ρ, 1 − low, 1 + high)·A); with `dual`, at A < 0 not more than −dual·A.

    A clipped token has gradient 0. On-policy (ρ = 1) nothing is clipped.
    Reference: Schulman et al. 2017, arXiv:1707.06347, eq. 7; `high` > `low` is DAPO's clip-higher,
    arXiv:2503.14476; `dual` is Ye et al. 2019, arXiv:1912.09729.
    Departs: verl has dual = 3 always on; the papers of the catalogue do not.
    """
    require_between("clip=ppo", "low", low, 0)
    require_between("clip=ppo", "high", high, 0)
    if dual is not None:
        require_between("clip=ppo", "dual", dual, 1)

    def apply(log_ratio_BT, logprobs_BT, advantages_B1):
        _need_ratio(log_ratio_BT, "ppo")
        ratio = jnp.exp(log_ratio_BT)
        side = _sides(ratio, advantages_B1, low, high)
        # chosen by `where`, not by `minimum`: at a tie the gradient would be split between the two branches
        bounded = jnp.where(side > 0, 1.0 + high, jnp.where(side < 0, 1.0 - low, ratio))
        if dual is not None:
            bounded = jnp.where((advantages_B1 < 0) & (bounded > dual), dual, bounded)
        return -bounded * advantages_B1, side

    return Part(apply=apply)


@registry.register
def cispo(low=1.0, high=4.0) -> Part:
    """ℓ = −sg[clip(ρ, 1 − low, 1 + high)]·A·log π: the weight is clipped, no token loses its gradient.

    `low=1` is no lower bound, as in the paper.
    Reference: MiniMax 2025, MiniMax-M1, arXiv:2506.13585.
    Departs: the paper does not print its upper bound; 1 + high = 5 is TRL's documented value.
    """
    require_between("clip=cispo", "low", low, 0)
    require_between("clip=cispo", "high", high, 0)

    def apply(log_ratio_BT, logprobs_BT, advantages_B1):
        _need_ratio(log_ratio_BT, "cispo")
        ratio = jax.lax.stop_gradient(jnp.exp(log_ratio_BT))
        side = (ratio > 1 + high).astype(jnp.int32) - (ratio < 1 - low).astype(jnp.int32)
        return -jnp.clip(ratio, 1 - low, 1 + high) * advantages_B1 * logprobs_BT, side

    return Part(apply=apply)


@registry.register
def soft(positive=1.0, negative=1.05) -> Part:
    """ℓ = −(4/τ)·σ(τ·(ρ − 1))·A with τ = `positive` where A > 0 and τ = `negative` elsewhere.

    A gate instead of a bound: the gradient's factor 4σ(1 − σ)·ρ is 1 on-policy and fades as ρ leaves 1.
    Reference: Gao et al. 2025, SAPO, arXiv:2511.20347.
    """
    require_between("clip=soft", "positive", positive, 0, above=True)
    require_between("clip=soft", "negative", negative, 0, above=True)

    def apply(log_ratio_BT, logprobs_BT, advantages_B1):
        _need_ratio(log_ratio_BT, "soft")
        temperature = jnp.where(advantages_B1 > 0, positive, negative)
        gate = jax.nn.sigmoid(temperature * (jnp.exp(log_ratio_BT) - 1.0)) * 4.0 / temperature
        return -gate * advantages_B1, jnp.zeros(logprobs_BT.shape, jnp.int32)

    return Part(apply=apply)
