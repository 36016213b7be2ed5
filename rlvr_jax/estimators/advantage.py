"""Phase one, once per rollout batch and without gradient: groups → advantages.

outcome ─shape─► rewards ─select─► valid ─baseline─► centred ─scale─► ─reweight─► advantages
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlvr_jax.estimators.base import AdvantageTransform, Parts, chain, has_contrast
from rlvr_jax.masked import masked
from rlvr_jax.means import Mean
from rlvr_jax.types import Array, Groups, PyTree


def transform(parts: Parts) -> AdvantageTransform:
    """The three slots between rewards and advantages, as one."""
    return chain({"baseline": parts.baseline, "scale": parts.scale, "reweight": parts.reweight})


def estimate(parts: Parts, groups: Groups, memory: PyTree) -> tuple[Groups, Array, PyTree, dict]:
    """Groups with shaped rewards and the selected rows valid, advantages_PG, memory, metrics.

    Whatever stands at invalid rows is removed first; advantages are exactly 0 there and carry no gradient.
    """
    given = groups.valid
    groups = groups.replace(
        outcome=masked(groups.outcome.astype(jnp.float32), given),
        rewards=masked(groups.rewards.astype(jnp.float32), given),
        lengths=masked(groups.lengths, given),
    )
    rewards = masked(parts.shape.apply(groups).astype(jnp.float32), given)
    keep = parts.select.apply(rewards, groups)
    groups = groups.replace(rewards=rewards, valid=given & keep[:, None])
    advantages, memory = transform(parts).update(rewards, memory, groups)
    advantages = masked(advantages, groups.valid)
    advantages, memory = jax.lax.stop_gradient((advantages, memory))

    present = given.any(axis=1)
    metrics = {
        "zero_variance_groups": Mean.of(~has_contrast(rewards, given, axis=1), present),
        "kept_groups": Mean.of(keep, present),
        "advantage_abs": Mean.of(jnp.abs(advantages), groups.valid),
        "advantage_mean": Mean.of(advantages, groups.valid),
        "reward_mean": Mean.of(rewards, given),
    }
    return groups, advantages, memory, metrics
