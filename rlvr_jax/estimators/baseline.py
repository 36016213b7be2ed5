"""Slot `baseline`: what a reward is compared with. An `AdvantageTransform`: rewards_PG → centred values_PG.

Baselines of the group's own (`group_relative`) give exactly 0 to a group whose valid rewards are all equal,
a group of one included. Those that remember, or look at binomial posteriors, are in `posterior.py`.
"""

from __future__ import annotations

import jax.numpy as jnp

from rlvr_jax.estimators.base import (
    CORRECT,
    has_contrast,
    per_batch,
    per_group,
    require_between,
    require_choice,
)
from rlvr_jax.masked import masked, masked_count, masked_max, masked_mean, masked_min, masked_sum, safe_divide
from rlvr_jax.registry import Registry

registry = Registry("baseline")

CENTRED = frozenset({"shift_invariant", "scale_equivariant", "zero_sum", "zero_sum_batch", "zero_without_contrast"})


def group_relative(f, declares=CENTRED):
    """Lifts f(values_G, group) → values_G; exactly 0 where the group has no contrast."""

    def centred(values_G, group):
        contrast = has_contrast(values_G, group.valid)
        return jnp.where(group.valid & contrast, f(values_G, group), 0.0)

    return per_group(centred, min_group=2, declares=frozenset(declares))


@registry.register
def none():
    """value = reward."""
    return per_batch(lambda values_PG, groups: values_PG, declares=frozenset({"scale_equivariant"}))


@registry.register
def group_mean():
    """value = reward − mean of the group's valid rewards.

    Reference: Shao et al. 2024, GRPO, arXiv:2402.03300, §4.1.2.
    """
    return group_relative(lambda values_G, group: values_G - masked_mean(values_G, group.valid))


@registry.register
def leave_one_out():
    """value = reward − mean of the other valid rewards of the group = n/(n − 1)·(reward − mean).

    Unbiased: no reward is part of its own baseline. A group of one gets 0.
    Reference: Kool et al. 2019; Ahmadian et al. 2024, RLOO, arXiv:2402.14740. The U-statistic of
    arXiv:2603.01162 is this one.
    """

    def f(values_G, group):
        n = masked_count(group.valid)
        return safe_divide(n, n - 1) * (values_G - masked_mean(values_G, group.valid))

    return group_relative(f)


@registry.register
def batch_mean():
    """value = reward − mean over all valid rewards of the batch; exactly 0 when all of them are equal.

    Reference: Hu et al. 2025, REINFORCE++, arXiv:2501.03262.
    """

    def f(values_PG, groups):
        centred = values_PG - masked_mean(values_PG, groups.valid)
        return jnp.where(has_contrast(values_PG, groups.valid), centred, 0.0)

    return per_batch(f, declares=frozenset({"shift_invariant", "scale_equivariant", "zero_sum_batch"}))


@registry.register
def length_weighted():
    """value = reward − Σ length·reward / Σ length over the group's valid responses.

    The baseline of least variance if the squared gradient of a response grows with its length. Without any
    token it is the plain mean. Reference: Hao et al. 2025, OPO, arXiv:2505.23585.
    """

    def f(values_G, group):
        lengths = masked(group.lengths.astype(jnp.float32), group.valid)
        total = lengths.sum()
        weighted = safe_divide(masked_sum(values_G * lengths, group.valid), total)
        return values_G - jnp.where(total > 0, weighted, masked_mean(values_G, group.valid))

    return group_relative(f, {"shift_invariant", "scale_equivariant", "zero_without_contrast"})


def _standardised(values_G, same_GG, ddof, eps):
    """(value − mean)/(std + eps) of each i over {j: same[i, j]}; 0 where those are all equal, or one."""
    rows = jnp.broadcast_to(values_G[None, :], same_GG.shape)
    n = masked_count(same_GG, axis=1)
    mean = masked_mean(rows, same_GG, axis=1)
    squares = masked_sum(jnp.square(rows - mean[:, None]), same_GG, axis=1)
    std = jnp.sqrt(safe_divide(squares, jnp.maximum(n - ddof, 0)))
    return jnp.where(has_contrast(rows, same_GG, axis=1), safe_divide(values_G - mean, std + eps), 0.0)


@registry.register
def stratified(alpha=0.6, ddof=0, eps=1e-8):
    """value = α·SAN + (1 − α)·GN, rewards standardised within their stratum of the group and within the
    group.

        SAN = (reward − mean_stratum) / (std_stratum + eps),   GN = (reward − mean) / (std + eps)

    A stratum of one has SAN = 0. One stratum, or α = 0, is GRPO with the same ddof.
    Reference: Zhu et al. 2025, Stratified GRPO, arXiv:2510.06214.
    Departs: ddof, eps and the rule for a stratum of one are not printed in the paper.
    """
    require_between("baseline=stratified", "alpha", alpha, 0, 1)
    require_between("baseline=stratified", "ddof", ddof, 0)
    require_between("baseline=stratified", "eps", eps, 0)

    def f(values_G, group):
        values_G = masked(values_G, group.valid)
        pairs = group.valid[:, None] & group.valid[None, :]
        same = pairs & (group.stratum[:, None] == group.stratum[None, :])
        within = _standardised(values_G, same, ddof, eps)
        return alpha * within + (1.0 - alpha) * _standardised(values_G, pairs, ddof, eps)

    return group_relative(f, CENTRED - {"scale_equivariant"} | {"scale_invariant"})


def _sign_balance(values, correct, valid, c):
    wins, losses = masked_count(valid & correct), masked_count(valid & ~correct)
    value = jnp.where(correct, c, -c * safe_divide(wins, losses))
    return jnp.where(valid & (wins > 0) & (losses > 0), value, 0.0)


@registry.register
def sign(scope="batch", c=1.0):
    """value = c where outcome > 0.5, else −c·n₊/n₋, counted over the valid responses of the scope.

    `scope` "batch" or "group"; a scope without both classes gets 0. Under "batch", a group without contrast
    has advantages. Per group this is GRPO (ddof 0) times √(n₊/n₋). Reads outcomes, not rewards.
    Reference: SignBalance 2026, arXiv:2609.04063, eq. 11.
    Departs: the paper leaves the scope of the counts and the empty class open.
    """
    require_choice("baseline=sign", "scope", scope, ("batch", "group"))
    require_between("baseline=sign", "c", c, 0)

    def f(values, groups):
        return _sign_balance(values, groups.outcome > CORRECT, groups.valid, c)

    if scope == "batch":
        return per_batch(f, declares=frozenset({"shift_invariant", "zero_sum_batch"}))
    declares = {"shift_invariant", "zero_sum", "zero_sum_batch", "zero_without_contrast"}
    return per_group(f, min_group=2, declares=frozenset(declares))


@registry.register
def maxnorm(floor=0.01):
    """value = u / max(max_j |u_j|, floor) with u = reward − group mean: the largest advantage has size 1.

    Rewards within `floor` of one another count as equal: such a group gets 0.
    Reference: MaxNorm-AC 2026, arXiv:2609.19164.
    Departs: the paper's binning rule and floor are not public; a group whose rewards all lie within `floor`
    is the case of one bin, other groups are not binned. The paper also skips the KL term there.
    """
    require_between("baseline=maxnorm", "floor", floor, 0)

    def f(values_G, group):
        u = masked(values_G - masked_mean(values_G, group.valid), group.valid)
        top = masked_max(jnp.abs(u), group.valid, empty=0.0)
        one_bin = masked_max(values_G, group.valid) - masked_min(values_G, group.valid) <= floor
        return jnp.where(one_bin, 0.0, safe_divide(u, jnp.maximum(top, floor)))

    return group_relative(f, {"shift_invariant", "zero_sum", "zero_sum_batch", "zero_without_contrast"})
