"""Slot `reweight`: a factor on the scaled advantage. An `AdvantageTransform`; here live the histories.

Memory moves once per rollout batch, over the responses valid after `select`; a batch without one leaves it
alone.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from rlvr_jax.estimators.base import (
    AdvantageTransform,
    has_contrast,
    per_batch,
    require_between,
    require_choice,
    require_whole,
)
from rlvr_jax.masked import masked_mean, masked_std, safe_divide
from rlvr_jax.registry import Registry
from rlvr_jax.types import Array

registry = Registry("reweight")


@registry.register
def none():
    """value = value."""
    return per_batch(lambda values_PG, groups: values_PG, declares=frozenset({"scale_equivariant", "sign_preserving"}))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class History:
    """What HA-DW remembers."""

    anchor: Array  # f32[], C: the expected mean outcome of a batch
    values: Array  # f32[W], the last W posteriors (variant "anchor") or batch means ("window"), newest last
    count: Array  # i32[], batches seen


def _push(values_W, value):
    return jnp.concatenate([values_W[1:], value[None]])


def _filled(count, window):
    """bool[W]: the places of a newest-last buffer that hold something after `count` pushes."""
    return jnp.arange(window) >= window - count


def _anchor_step(memory: History, y, eta, window):
    """(C⁻, what to remember): a scalar filter whose gain follows the spread of its last posteriors."""
    prior = jnp.where(memory.count == 0, y, memory.anchor)
    sigma = masked_std(memory.values, _filled(memory.count, window), ddof=0)
    gain = jnp.clip(eta * jnp.where(memory.count < 2, 1.0, sigma), 0.0, 1.0)
    posterior = (1.0 - gain) * prior + gain * y
    return prior, History(posterior, _push(memory.values, posterior), memory.count + 1)


def _window_step(memory: History, y, eta, window):
    """(C, what to remember): the mean of the last `window` batch means, this one included."""
    values, count = _push(memory.values, y), memory.count + 1
    anchor = masked_mean(values, _filled(count, window))
    return anchor, History(anchor, values, count)


@registry.register
def history(variant="anchor", strength=1.3, eta=0.1, window=10, slope=1.0) -> AdvantageTransform:
    """A ← A·Φ, Φ = strength·exp(−slope·sgn(A)·(p̂ − C)): hard prompts' successes and easy prompts' failures gain.

        "anchor":  C⁻ the last posterior (first batch: y);  C⁺ = (1 − η)·C⁻ + η·y,  η = clip(eta·σ, 0, 1)
        "window":  C the mean of the last `window` batch means, this one included

    y is the batch's mean outcome, p̂ the group's, σ the population std of the last `window` posteriors (1
    while there are fewer than two). Φ has no gradient; where p̂ = C it is `strength`. `slope` is 1 in the paper; 0
    leaves only `strength`, −1 turns the preference round: two controls.
    Reference: Yang et al. 2026, HA-DW, arXiv:2601.08521.
    Departs: eta, window and the first C are not in the paper. The authors' code is "window" with strength
    1.5.
    """
    require_choice("reweight=history", "variant", variant, ("anchor", "window"))
    require_between("reweight=history", "strength", strength, 0)
    require_between("reweight=history", "eta", eta, 0)
    require_whole("reweight=history", "window", window, 1)
    require_between("reweight=history", "slope", slope, -10, 10)
    step = _anchor_step if variant == "anchor" else _window_step

    def init(num_prompts):
        zero = jnp.zeros((), jnp.float32)
        return History(anchor=zero, values=jnp.zeros((window,), jnp.float32), count=jnp.zeros((), jnp.int32))

    def update(values_PG, memory, groups):
        y = masked_mean(groups.outcome, groups.valid)
        anchor, moved = step(memory, y, eta, window)
        seen = groups.valid.any()
        memory = jax.tree.map(lambda new, old: jnp.where(seen, new, old), moved, memory)
        gap = masked_mean(groups.outcome, groups.valid, axis=1, keepdims=True) - anchor
        return values_PG * strength * jnp.exp(-slope * jnp.sign(values_PG) * gap), memory

    return AdvantageTransform(init=init, update=update, declares=frozenset({"sign_preserving"}))


@registry.register
def negatives(weight=0.0):
    """A ← weight·A where A < 0: 0 learns from successes alone, 1 changes nothing.

    Reference: the masked arm of Setlur et al. 2025, e3, arXiv:2506.09026.
    """
    require_between("reweight=negatives", "weight", weight, 0)
    f = lambda values_PG, groups: jnp.where(values_PG < 0, weight * values_PG, values_PG)
    return per_batch(f, declares=frozenset({"scale_equivariant"}))


@registry.register
def informative_share():
    """A ← A·P/P₊, the groups with a valid response over those whose valid rewards differ.

    Groups without contrast are in the denominator of the loss and bring no gradient: this undoes the
    shrinking.
    Reference: Chu et al. 2025, GPG, arXiv:2504.02546.
    Departs: a reading, the paper's text was not at hand; verl counts responses whose reward is not 0 instead.
    """

    def f(values_PG, groups):
        present = groups.valid.any(axis=1).sum(dtype=jnp.float32)
        informative = has_contrast(groups.rewards, groups.valid, axis=1).sum(dtype=jnp.float32)
        return values_PG * safe_divide(present, informative)

    return per_batch(f, declares=frozenset({"scale_equivariant", "sign_preserving"}))


@registry.register
def pass_rate_curve(bins=8, window=10) -> AdvantageTransform:
    """A ← A·w(p̂), w = mass of p̂'s bin / mass up to and with it, in the histogram of past pass rates.

    `bins` + 1 bins, bin = min(⌊p̂·(bins + 1)⌋, bins): give the group size. The histogram holds the last
    `window` batches before this one (the first batch: itself), pass rates 0 and 1 left out; groups with
    those get 0.
    Reference: CurveRL 2026, arXiv:2605.24331, and the authors' code.
    """
    require_whole("reweight=pass_rate_curve", "bins", bins, 1)
    require_whole("reweight=pass_rate_curve", "window", window, 1)

    def init(num_prompts):
        return {"counts": jnp.zeros((window, bins + 1), jnp.float32)}

    def update(values_PG, memory, groups):
        rate = masked_mean(groups.outcome, groups.valid, axis=1)
        inside = (rate > 0) & (rate < 1)
        # 0.29999999 of seven bins is 2.1 in exact arithmetic: the nudge keeps k/G on its own side
        place = jnp.clip(jnp.floor(rate * (bins + 1) + 1e-5).astype(jnp.int32), 0, bins)
        here = jax.ops.segment_sum(inside.astype(jnp.float32), place, num_segments=bins + 1)
        past = memory["counts"].sum(axis=0)
        pool = jnp.where(past.sum() > 0, past, here)
        weight = jnp.where(inside, safe_divide(pool, jnp.maximum(jnp.cumsum(pool), 1e-6))[place], 0.0)
        seen = groups.valid.any()
        counts = jnp.where(seen, jnp.concatenate([memory["counts"][1:], here[None]]), memory["counts"])
        return values_PG * weight[:, None], {"counts": counts}

    return AdvantageTransform(init=init, update=update)
