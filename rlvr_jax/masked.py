"""Masked reductions, the only place that knows what the mean of nothing is; and a choice by rows.

Values where the mask is false may be anything, NaN and infinities included: they are replaced before they are
used, so neither values nor gradients see them. A reduction over nothing gives 0 (`masked_max`, `masked_min`: the
value of `empty`).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlvr_jax.types import Array, PyTree


def masked(values: Array, mask: Array) -> Array:
    """`values` where `mask`, else 0; safe for NaN and inf in masked places, in gradients too."""
    return jnp.where(mask, values, 0)


def masked_sum(values: Array, mask: Array, axis=None, keepdims: bool = False) -> Array:
    """Σ values·mask in float32."""
    return masked(values.astype(jnp.float32), mask).sum(axis=axis, keepdims=keepdims)


def masked_count(mask: Array, axis=None, keepdims: bool = False) -> Array:
    """How many are unmasked, as float32."""
    return mask.astype(jnp.float32).sum(axis=axis, keepdims=keepdims)


def safe_divide(numerator: Array, denominator: Array) -> Array:
    """numerator / denominator, and 0 where the denominator is 0, in gradients too."""
    positive = denominator != 0
    return jnp.where(positive, numerator / jnp.where(positive, denominator, 1), 0.0)


def masked_mean(values: Array, mask: Array, axis=None, keepdims: bool = False) -> Array:
    """Σ values·mask / Σ mask; 0 over nothing."""
    mask = jnp.broadcast_to(mask, values.shape)
    return safe_divide(masked_sum(values, mask, axis, keepdims), masked_count(mask, axis, keepdims))


def masked_std(values: Array, mask: Array, axis=None, ddof: int = 0, keepdims: bool = False) -> Array:
    """√(Σ (values − mean)²·mask / (Σ mask − ddof)); 0 where that count is not positive."""
    mask = jnp.broadcast_to(mask, values.shape)
    centred = values.astype(jnp.float32) - masked_mean(values, mask, axis, keepdims=True)
    count = jnp.maximum(masked_count(mask, axis, keepdims) - ddof, 0.0)
    variance = safe_divide(masked_sum(jnp.square(masked(centred, mask)), mask, axis, keepdims), count)
    positive = variance > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1.0)), 0.0)


def masked_max(values: Array, mask: Array, axis=None, empty: float = -jnp.inf, keepdims: bool = False):
    """max over the unmasked; `empty` over nothing."""
    return jnp.where(mask, values, empty).max(axis=axis, keepdims=keepdims, initial=empty)


def masked_min(values: Array, mask: Array, axis=None, empty: float = jnp.inf, keepdims: bool = False):
    """min over the unmasked; `empty` over nothing."""
    return jnp.where(mask, values, empty).min(axis=axis, keepdims=keepdims, initial=empty)


def choose_rows(condition: Array, yes: PyTree, no: PyTree) -> PyTree:
    """`yes` in the rows where `condition` bool[rows…] holds, else `no`; leaves are [rows…, …], whatever axes follow."""
    reach = lambda x: condition.reshape(condition.shape + (1,) * (x.ndim - condition.ndim))
    return jax.tree.map(lambda a, b: jnp.where(reach(a), a, b), yes, no)
