"""Phase two, inside the gradient: log-probabilities → loss.

    loss = Σ weight · ℓ,   ℓ = correct · (clip(ratio, A) + kl),   weight from `aggregate`, known beforehand

Masked places are emptied before any `exp`, so NaN and infinities there reach neither values nor gradients.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlvr_jax.estimators.aggregate import rows_of
from rlvr_jax.estimators.base import Parts
from rlvr_jax.estimators.kl import k3_estimate
from rlvr_jax.estimators.ratio import token_log_ratio
from rlvr_jax.masked import masked
from rlvr_jax.means import Max, Mean
from rlvr_jax.types import Array, Batch, PyTree


def token_weights(parts: Parts, params: PyTree, batch: Batch) -> Array:
    """w_BT of the whole optimiser update, by the slot `aggregate` alone; differentiable in `params`."""
    return parts.aggregate.weights(params.get("aggregate", {}), rows_of(batch))


def _advantages(batch: Batch, mask_BT: Array) -> Array:
    """f32[B, 1], or f32[B, T] where they are per token; 0 where invalid."""
    advantages = jax.lax.stop_gradient(batch.advantages.astype(jnp.float32))
    if advantages.ndim == 1:
        return masked(advantages, batch.valid.astype(bool))[:, None]
    return masked(advantages, mask_BT)


def token_losses(parts: Parts, logprobs_BT: Array, batch: Batch) -> tuple[Array, dict]:
    """(ℓ_BT, metrics); 0 where masked. Row-local: no row's loss depends on another row."""
    mask = batch.completion_mask.astype(bool) & batch.valid.astype(bool)[:, None]
    empty = lambda x: masked(x.astype(jnp.float32), mask)
    logprobs = empty(logprobs_BT)
    # without old log-probabilities the policy is still the one that started the step: every ratio is 1
    old = logprobs if batch.old_logprobs is None else empty(batch.old_logprobs)
    old = jax.lax.stop_gradient(old)
    advantages = _advantages(batch, mask)

    log_ratio = parts.ratio.apply(logprobs, old, mask, advantages)
    loss, clipped = parts.clip.apply(log_ratio, logprobs, advantages)
    metrics = _ratio_metrics(token_log_ratio(logprobs, old), clipped, mask)

    if "reference" in parts.kl.needs and batch.reference_logprobs is None:
        raise ValueError("kl: this penalty needs batch.reference_logprobs, which is None; choose kl='none'")
    if batch.reference_logprobs is not None:
        reference = jax.lax.stop_gradient(empty(batch.reference_logprobs))
        loss = loss + parts.kl.apply(logprobs, reference)
        metrics["kl"] = Mean.of(k3_estimate(logprobs, reference), mask)
    if batch.behaviour_logprobs is not None:
        behaviour = jax.lax.stop_gradient(empty(batch.behaviour_logprobs))
        weight = parts.correct.apply(old, behaviour, mask)
        loss = loss * weight
        sampled = behaviour if batch.full_logprobs is None else jax.lax.stop_gradient(empty(batch.full_logprobs))
        metrics |= _mismatch_metrics(logprobs, sampled, weight, mask)
    return masked(loss, mask), jax.lax.stop_gradient(metrics)


def _ratio_metrics(log_ratio, clipped, mask) -> dict:
    return {
        "ratio": Mean.of(jnp.exp(log_ratio), mask),
        "approx_kl": Mean.of(jnp.expm1(log_ratio) - log_ratio, mask),  # KL(old ‖ policy), on tokens of old
        "clip_fraction": Mean.of(clipped != 0, mask),
        "clip_fraction_low": Mean.of(clipped < 0, mask),
        "clip_fraction_high": Mean.of(clipped > 0, mask),
    }


def _mismatch_metrics(logprobs, sampled, weight, mask) -> dict:
    gap = jnp.abs(token_log_ratio(logprobs, sampled))
    return {
        "behaviour_mismatch": Mean.of(gap, mask),
        "behaviour_ratio_max": Max.of(jnp.exp(gap), mask),  # of the two probabilities, either way
        "correct_weight": Mean.of(weight, mask),
    }


def loss(parts: Parts, params: PyTree, logprobs_BT: Array, batch: Batch) -> tuple[Array, dict]:
    """(Σ w·ℓ, metrics). Minimised; its gradient reaches `logprobs_BT`, and `params` through the weights."""
    weights = token_weights(parts, params, batch)
    losses, metrics = token_losses(parts, logprobs_BT, batch)
    return jnp.sum(weights * losses), metrics
