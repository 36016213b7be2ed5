"""Slot `scale`: what a centred value is divided by. An `AdvantageTransform`: values_PG → values_PG.

Every scale acts on the values that reach it, so group_std after leave_one_out is the std of the leave-one-out
values. Where those are all equal there is no scale, and the result is 0.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax.scipy.special import betaln

from rlvr_jax.estimators.base import has_contrast, per_batch, per_group, require_between, require_choice
from rlvr_jax.masked import masked_mean, masked_std, safe_divide
from rlvr_jax.registry import Registry

registry = Registry("scale")


def _divided(values, by, valid):
    return jnp.where(valid & has_contrast(values, valid), safe_divide(values, by), 0.0)


@registry.register
def none():
    """value = value."""
    return per_batch(lambda values_PG, groups: values_PG, declares=frozenset({"scale_equivariant", "sign_preserving"}))


@registry.register
def group_std(ddof=1, eps=1e-6):
    """value = value / (std + eps), the standard deviation of the group's valid values.

    One valid response, or no contrast: 0. ddof 1 divides the squares by n − 1, ddof 0 by n.
    Reference: Shao et al. 2024, GRPO, arXiv:2402.03300, §4.1.2.
    Departs: the paper prints neither ddof nor eps. verl, Tunix: 1, 1e-6; TRL: 1, 1e-4; oat: 1, 1e-8.
    """
    require_between("scale=group_std", "ddof", ddof, 0)
    require_between("scale=group_std", "eps", eps, 0)

    def f(values_G, group):
        return _divided(values_G, masked_std(values_G, group.valid, ddof=ddof) + eps, group.valid)

    return per_group(f, min_group=2, declares=frozenset({"scale_invariant", "sign_preserving"}))


@registry.register
def batch_std(ddof=1, eps=1e-6, of="values"):
    """value = value / (std + eps), the standard deviation over all valid responses of the batch.

    `of="values"` takes it of what reaches this slot (the centred values), `of="rewards"` of the shaped
    rewards.
    Reference: Hu et al. 2025, REINFORCE++, arXiv:2501.03262; of="rewards" is TRL's scale_rewards="batch".
    """
    require_between("scale=batch_std", "ddof", ddof, 0)
    require_between("scale=batch_std", "eps", eps, 0)
    require_choice("scale=batch_std", "of", of, ("values", "rewards"))

    def f(values_PG, groups):
        source = values_PG if of == "values" else groups.rewards
        std = masked_std(source, groups.valid, ddof=ddof)
        contrast = has_contrast(source, groups.valid)
        return jnp.where(groups.valid & contrast, safe_divide(values_PG, std + eps), 0.0)

    return per_batch(f, declares=frozenset({"scale_invariant", "sign_preserving"}))


@registry.register
def group_mean():
    """value = value / p̂, the mean outcome of the group's valid responses; 0 where p̂ = 0.

    Reference: Tajwar et al. 2026, MaxRL, arXiv:2602.02710.
    """

    def f(values_G, group):
        return safe_divide(values_G, masked_mean(group.outcome, group.valid))

    return per_group(f, declares=frozenset({"sign_preserving"}))


@registry.register
def beta(most=100.0):
    """value = value / Beta(p̂; 1 + a/3, 1 + b/3), the density at the group's mean outcome p̂.

    a, b fit Beta(a, b) to the p̂ of the batch by their mean m and population variance v: a + b = m(1 − m)/v
    − 1, held in [0, most], and a = m·(a + b). Pass rates of 0 and 1 alone give density 1.
    Reference: Xiao et al. 2025, BNPO, arXiv:2506.02864.
    Departs: the thirds and the fit were confirmed in no text; `most` is ours, for equal pass rates, where a + b has no
    bound.
    """
    require_between("scale=beta", "most", most, 0)

    def f(values_PG, groups):
        rate = masked_mean(groups.outcome, groups.valid, axis=1)
        present = groups.valid.any(axis=1)
        mean, spread = masked_mean(rate, present), masked_std(rate, present) ** 2
        room = mean * (1.0 - mean)
        total = jnp.clip(room / jnp.maximum(spread, 1e-12) - 1.0, 0.0, most)
        a, b = total * mean / 3.0, total * (1.0 - mean) / 3.0
        inside = jnp.clip(rate, 1e-6, 1.0 - 1e-6)
        log_density = a * jnp.log(inside) + b * jnp.log1p(-inside) - betaln(1.0 + a, 1.0 + b)
        return values_PG * jnp.exp(-log_density)[:, None]

    return per_batch(f, declares=frozenset({"sign_preserving"}))
