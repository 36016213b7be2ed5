"""Slot `correct`: the sampler's distribution is not quite the learner's; weigh tokens by the difference.

Part: `(old_BT, behaviour_BT, mask_BT) → weight_BT`, detached. Both come in masked. The ratio π_old /
π_behaviour is per token (`level="token"`), of the whole response (`"sequence"`: Σ_t log-ratio) or its
geometric mean per token (`"geometric"`).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlvr_jax.estimators.base import MAX_LOG_RATIO, Part, require_between, require_choice
from rlvr_jax.estimators.ratio import token_log_ratio
from rlvr_jax.masked import masked_mean, masked_sum
from rlvr_jax.registry import Registry

registry = Registry("correct")

LEVELS = ("token", "sequence", "geometric")


def _ratio(old_BT, behaviour_BT, mask_BT, level):
    log_ratio = token_log_ratio(old_BT, behaviour_BT)
    if level != "token":
        reduce = masked_sum if level == "sequence" else masked_mean
        whole = jnp.clip(reduce(log_ratio, mask_BT, axis=1, keepdims=True), -MAX_LOG_RATIO, MAX_LOG_RATIO)
        log_ratio = jnp.broadcast_to(whole, log_ratio.shape)
    return jax.lax.stop_gradient(jnp.exp(log_ratio))


@registry.register
def none() -> Part:
    """Weight 1."""
    return Part(apply=lambda old_BT, behaviour_BT, mask_BT: jnp.ones(mask_BT.shape, jnp.float32))


@registry.register
def truncated(cap=2.0, level="token") -> Part:
    """weight = min(π_old / π_behaviour, cap).

    Reference: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training";
    Ionides 2008, truncated importance sampling.
    """
    require_between("correct=truncated", "cap", cap, 0, above=True)
    require_choice("correct=truncated", "level", level, LEVELS)
    apply = lambda old_BT, behaviour_BT, mask_BT: jnp.minimum(_ratio(old_BT, behaviour_BT, mask_BT, level), cap)
    return Part(apply=apply, needs=frozenset({"old"}))


@registry.register
def masked(low=0.5, high=5.0, level="token") -> Part:
    """weight = π_old / π_behaviour where it lies in [low, high], else 0.

    Reference: Ling team 2025, IcePop, arXiv:2510.18855; TRL's `token_mask` and `sequence_mask` are low=0.
    """
    require_between("correct=masked", "low", low, 0)
    require_between("correct=masked", "high", high, 0, above=True)
    require_choice("correct=masked", "level", level, LEVELS)

    def apply(old_BT, behaviour_BT, mask_BT):
        ratio = _ratio(old_BT, behaviour_BT, mask_BT, level)
        return jnp.where((ratio >= low) & (ratio <= high), ratio, 0.0)

    return Part(apply=apply, needs=frozenset({"old"}))
