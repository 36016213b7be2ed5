"""Slot `select`: which prompts count. Part: `(rewards_PG, groups) → keep_P`.

The rows of a group that is not kept become invalid: advantage 0, weight 0, in no statistic and no
denominator.
"""

from __future__ import annotations

import jax.numpy as jnp

from rlvr_jax.estimators.base import Part, has_contrast, require_between
from rlvr_jax.masked import masked_mean
from rlvr_jax.registry import Registry

registry = Registry("select")


@registry.register
def all_() -> Part:
    """Keeps every group."""
    return Part(apply=lambda rewards_PG, groups: jnp.ones(rewards_PG.shape[:1], bool))


@registry.register
def informative() -> Part:
    """Drops groups whose valid outcomes are all equal: 0 < #correct < G.

    Looks at outcomes, not at rewards: an all-correct group with different length penalties is dropped too.
    Reference: Yu et al. 2025, DAPO, arXiv:2503.14476, eq. 11.
    """
    return Part(apply=lambda rewards_PG, groups: has_contrast(groups.outcome, groups.valid, axis=1))


@registry.register
def pass_rate(low=0.0, high=1.0) -> Part:
    """Keeps groups with low ≤ mean valid outcome ≤ high; a group without a valid response is dropped."""
    require_between("select=pass_rate", "low", low, 0, 1)
    require_between("select=pass_rate", "high", high, 0, 1)

    def apply(rewards_PG, groups):
        rate = masked_mean(groups.outcome, groups.valid, axis=1)
        return groups.valid.any(axis=1) & (rate >= low) & (rate <= high)

    return Part(apply=apply)
