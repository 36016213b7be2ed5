"""Slot `aggregate`: the weight of each token. `TokenWeights`: (params, rows) → w_BT ≥ 0, 0 where masked.

Weights are those of the whole optimiser update and depend on masks, groups, the sign of the advantages and
the part's own parameters, never on log-probabilities: they are known before the forward pass, and the loss Σ
w·ℓ is linear in the rows, whatever the micro-batch. Rows may come in any order.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlvr_jax.estimators.base import (
    TokenWeights,
    known_length,
    require_between,
    require_choice,
    require_length,
)
from rlvr_jax.masked import masked, masked_sum, safe_divide
from rlvr_jax.registry import Registry
from rlvr_jax.types import Array, Batch

registry = Registry("aggregate")


class Rows(NamedTuple):
    """What a weight may depend on."""

    mask_BT: Array  # bool, completion tokens of valid rows
    lengths: Array  # f32[B], their number
    valid: Array  # bool[B]
    group: Array  # i32[B], 0 ≤ group < B
    advantage: Array  # f32[B], of the row; the mean over its tokens where advantages are per token

    def total(self, values_B: Array) -> Array:
        """Σ over the valid rows of the row's group, at every row."""
        sums = jax.ops.segment_sum(masked(values_B, self.valid), self.group, num_segments=self.group.shape[0])
        return sums[self.group]

    def largest(self, values_B: Array) -> Array:
        """max over the valid rows of the row's group, at every row; −inf where it has none."""
        values_B = jnp.where(self.valid, values_B, -jnp.inf)
        return jax.ops.segment_max(values_B, self.group, num_segments=self.group.shape[0])[self.group]

    def count(self) -> Array:
        """Valid rows of the batch."""
        return self.valid.sum(dtype=jnp.float32)

    def groups(self) -> Array:
        """Groups with a valid row."""
        seen = jax.ops.segment_max(self.valid.astype(jnp.int32), self.group, num_segments=self.group.shape[0])
        return (seen > 0).sum(dtype=jnp.float32)

    def spread(self, weight_B: Array) -> Array:
        """A weight per row → the same weight at each of its tokens."""
        return jnp.where(self.mask_BT, masked(weight_B, self.valid)[:, None], 0.0)


def _dense(group_B: Array) -> Array:
    """Any integers → 0 … (number of different ones) − 1, equal where they were equal."""
    order = jnp.argsort(group_B)
    ordered = group_B[order]
    new = jnp.concatenate([jnp.zeros((1,), jnp.int32), (ordered[1:] != ordered[:-1]).astype(jnp.int32)])
    return jnp.zeros(group_B.shape, jnp.int32).at[order].set(jnp.cumsum(new))


def rows_of(batch: Batch) -> Rows:
    """The rows of a batch, with whatever stands in masked places removed."""
    valid = batch.valid.astype(bool)
    mask_BT = batch.completion_mask.astype(bool) & valid[:, None]
    lengths = mask_BT.sum(axis=1, dtype=jnp.float32)
    if batch.advantages.ndim == 1:
        advantage = masked(batch.advantages, valid)
    else:
        advantage = safe_divide(masked_sum(batch.advantages, mask_BT, axis=1), lengths)
    advantage = jax.lax.stop_gradient(advantage)
    return Rows(mask_BT, lengths, valid, _dense(batch.group), advantage)


def _fixed(weight_of_row, **declared) -> TokenWeights:
    return TokenWeights(weights=lambda params, rows: rows.spread(weight_of_row(rows)), **declared)


def _everywhere(scalar, rows):
    return jnp.broadcast_to(scalar, rows.lengths.shape)


@registry.register
def token_mean(scope="batch") -> TokenWeights:
    """w = 1 / Σ tokens of the batch; `scope="group"`: 1 / (Σ tokens of the group · groups).

    Every token counts alike, so long responses count more.
    Reference: Yu et al. 2025, DAPO, arXiv:2503.14476, eq. 8 (per group; its code, over the batch).
    """
    require_choice("aggregate=token_mean", "scope", scope, ("batch", "group"))
    if scope == "batch":
        weight = lambda rows: _everywhere(safe_divide(jnp.ones(()), rows.lengths.sum()), rows)
        return _fixed(weight, declares=frozenset({"unit_sum"}))
    return _fixed(
        lambda rows: safe_divide(jnp.ones(()), rows.total(rows.lengths) * rows.groups()),
        declares=frozenset({"unit_sum"}),
    )


@registry.register
def sequence_mean() -> TokenWeights:
    """w = 1 / (length · rows): the mean over valid rows of the row's mean over tokens.

    A row without a token has no loss and stays in the count.
    Reference: Shao et al. 2024, GRPO, arXiv:2402.03300, eq. 3.
    """
    weight = lambda rows: safe_divide(jnp.ones(()), rows.lengths * rows.count())
    return _fixed(weight, declares=frozenset({"unit_sum"}))


@registry.register
def sequence_sum() -> TokenWeights:
    """w = 1 / rows: the mean over valid rows of the row's sum over tokens, the gradient of REINFORCE."""
    return _fixed(lambda rows: _everywhere(safe_divide(jnp.ones(()), rows.count()), rows))


@registry.register
def constant(length="completion") -> TokenWeights:
    """w = 1 / (rows · length), with `length` the configured completion length, never the padded width.

    Reference: Liu et al. 2025, Dr. GRPO, arXiv:2503.20783, §3.2 and its Listing 1.
    Departs: verl's seq-mean-token-sum-norm divides by the length alone, not by the rows.
    """
    require_length("aggregate=constant", "length", length)

    def weight(rows):
        tokens = rows.count() * known_length("aggregate=constant", "length", length)
        return _everywhere(safe_divide(jnp.ones(()), tokens), rows)

    return _fixed(weight)


@registry.register
def length_power(alpha=0.5) -> TokenWeights:
    """w = lengthᵅ⁻¹ / rows: α = 0 is sequence_mean, α = 1 sequence_sum (Dr. GRPO up to a constant).

    Reference: 2026, arXiv:2607.23364 (no w(L) is both unbiased and invariant to length).
    """
    require_between("aggregate=length_power", "alpha", alpha, 0, 1)

    def weight(rows):
        power = jnp.maximum(rows.lengths, 1.0) ** (alpha - 1.0)
        return safe_divide(power, jnp.broadcast_to(rows.count(), power.shape))

    return _fixed(weight)


@registry.register
def balanced() -> TokenWeights:
    """w = |S₊| / (G·T₊) where A > 0, |S₋| / (G·T₋) where A < 0, 0 where A = 0; mean over groups.

    Within a group S± are the rows of each sign, T± their tokens, G its valid rows. Groups without contrast
    have no loss and stay in the mean. Equal lengths: token_mean and sequence_mean.
    Reference: Balanced Aggregation 2026, arXiv:2605.04077.
    Departs: the paper has binary rewards; |S₋| for G − |S₊| is the reading for others.
    """

    def weight(rows):
        n = rows.total(jnp.ones_like(rows.lengths))
        weight_B = jnp.zeros_like(rows.lengths)
        for side in (rows.advantage > 0, rows.advantage < 0):
            members = rows.total(side.astype(jnp.float32))
            tokens = rows.total(masked(rows.lengths, side))
            weight_B = jnp.where(side, safe_divide(members, n * tokens * rows.groups()), weight_B)
        return weight_B

    return _fixed(weight)


@registry.register
def learnable(r=1 / 9, ddof=0, eps=1e-8, start=0.0) -> TokenWeights:
    """w = f / T per token of a group with T tokens, mean over groups; λ is learnt with the policy.

        z = (length − mean) / (std + eps),   f = G·softmax((1 + r·z)^λ) over the group's G valid rows

    λ = 0 is token_mean(scope="group"); λ > 0 favours long responses. Equal lengths: f = 1. 1 + r·z is held
    above 1e-6, which only groups of 82 or more could meet.
    Reference: Wang et al. 2025, λ-GRPO, arXiv:2510.06870.
    Departs: the paper prints neither ddof, eps nor the start of λ.
    """
    require_between("aggregate=learnable", "ddof", ddof, 0)
    require_between("aggregate=learnable", "eps", eps, 0)

    def weights(params, rows):
        n = rows.total(jnp.ones_like(rows.lengths))
        tokens = rows.total(rows.lengths)
        centred = rows.lengths - safe_divide(tokens, n)
        std = jnp.sqrt(safe_divide(rows.total(jnp.square(centred)), jnp.maximum(n - ddof, 0.0)))
        contrast = rows.largest(rows.lengths) > -rows.largest(-rows.lengths)
        z = jnp.where(contrast, safe_divide(centred, std + eps), 0.0)
        g = jnp.exp(params["lambda"] * jnp.log(jnp.maximum(1.0 + r * z, 1e-6)))
        top = jax.lax.stop_gradient(rows.largest(g))
        e = jnp.exp(jnp.where(rows.valid, g - top, 0.0))
        f = n * safe_divide(e, rows.total(e))
        return rows.spread(safe_divide(f, tokens * rows.groups()))

    init = lambda: {"lambda": jnp.asarray(start, jnp.float32)}
    return TokenWeights(weights=weights, init=init)
