"""Slot `ratio`: log π − log π_old, per token or per response.

Part: `(logprobs_BT, old_BT, mask_BT, advantages_B1) → log_ratio_BT`, or None when the loss is taken on the
log-probabilities themselves. Both log-probabilities come in masked (0 where masked), before any `exp`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlvr_jax.estimators.base import MAX_LOG_RATIO, Part, require_between
from rlvr_jax.masked import masked_mean
from rlvr_jax.registry import Registry

registry = Registry("ratio")


def token_log_ratio(logprobs_BT, old_BT):
    """logprobs − old, clamped to ±20; the clamp stops the gradient where it acts."""
    return jnp.clip(logprobs_BT - old_BT, -MAX_LOG_RATIO, MAX_LOG_RATIO)


@registry.register
def none() -> Part:
    """No ratio: the plain policy gradient, ℓ = −A·log π. Allows only clip=none."""
    return Part(apply=lambda logprobs_BT, old_BT, mask_BT, advantages_B1: None)


@registry.register
def token() -> Part:
    """log ρ_t = logprobs_t − old_t."""
    apply = lambda logprobs_BT, old_BT, mask_BT, advantages_B1: token_log_ratio(logprobs_BT, old_BT)
    return Part(apply=apply, needs=frozenset({"old"}))


@registry.register
def sequence() -> Part:
    """log s = (1/L) Σ_t (logprobs_t − old_t): one ratio for the whole response, at each of its tokens.

    Reference: Zheng et al. 2025, GSPO, arXiv:2507.18071, eq. 7.
    """

    def apply(logprobs_BT, old_BT, mask_BT, advantages_B1):
        log_ratio = token_log_ratio(logprobs_BT, old_BT)
        return jnp.broadcast_to(masked_mean(log_ratio, mask_BT, axis=1, keepdims=True), log_ratio.shape)

    return Part(apply=apply, needs=frozenset({"old"}))


@registry.register
def sequence_token() -> Part:
    """log s_t = sg[log s] + logprobs_t − sg[logprobs_t]: GSPO's value with each token's own gradient.

    Allows advantages per token. With one advantage per response, values and gradients equal `sequence`.
    Reference: Zheng et al. 2025, GSPO-token, arXiv:2507.18071, eq. 14.
    """
    whole = sequence()

    def apply(logprobs_BT, old_BT, mask_BT, advantages_B1):
        log_ratio = whole.apply(logprobs_BT, old_BT, mask_BT, advantages_B1)
        return jax.lax.stop_gradient(log_ratio - logprobs_BT) + logprobs_BT

    return Part(apply=apply, needs=frozenset({"old"}))


@registry.register
def geometric(low=0.4, high=0.4) -> Part:
    """log s = (1/L) Σ_t m_t with m_t = sgn A · min(sgn A · d_t, sgn A · clip(d_t, −low, high)), d_t = log
    ρ_t.

    Clipped per token on the side that the advantage pushes to, then averaged; `low`, `high` in nats.
    Reference: Zhao et al. 2025, GMPO, arXiv:2507.20673.
    """
    require_between("ratio=geometric", "low", low, 0)
    require_between("ratio=geometric", "high", high, 0)

    def apply(logprobs_BT, old_BT, mask_BT, advantages_B1):
        log_ratio = token_log_ratio(logprobs_BT, old_BT)
        pushed_up = (advantages_B1 > 0) & (log_ratio > high)
        pushed_down = (advantages_B1 < 0) & (log_ratio < -low)
        clipped = jnp.where(pushed_up, high, jnp.where(pushed_down, -jnp.asarray(low), log_ratio))
        return jnp.broadcast_to(masked_mean(clipped, mask_BT, axis=1, keepdims=True), log_ratio.shape)

    return Part(apply=apply, needs=frozenset({"old"}))
