"""More of slot `baseline`: advantages of binary outcomes that are not a difference from a mean.

They read outcomes, not rewards: above 0.5 is right. G is the number of valid responses of the group.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax.scipy.special import betaln, gammaln

from rlvr_jax.estimators.base import CORRECT, AdvantageTransform, per_batch, per_group, require_between
from rlvr_jax.estimators.baseline import registry
from rlvr_jax.masked import masked, masked_count, masked_mean, masked_std, safe_divide


def _log_choose(n, k):
    """log C(n, k) for 0 ≤ k ≤ n."""
    return gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)


def _share_without(n_wrong, n, k, largest: int):
    """C(n_wrong, k)/C(n, k) = Π_{j<k} (n_wrong − j)/(n − j): the chance that k distinct draws are all wrong.

    A product and not a difference of log-gammas, which in float32 keeps four digits. `largest` ≥ n is static.
    """
    j = jnp.arange(largest, dtype=jnp.float32)
    factor = jnp.maximum(n_wrong - j, 0.0) / jnp.maximum(n - j, 1.0)
    return jnp.where(j < k, factor, 1.0).prod()


@registry.register
def pass_at_k(k=4):
    """value = (1 − R̄)/σ where right, (1 − R̄ − C(n₋−1, k−1)/C(n−1, k−1))/σ where wrong.

        R̄ = 1 − C(n₋, k)/C(n, k),   σ = √(R̄·(1 − R̄)),   n₋ of n valid responses wrong

    The advantage of a response for the reward "at least one of k is right". 0 where σ = 0, which is also
    where fewer than k are wrong. k = 1 is GRPO with ddof 0.
    Reference: Chen et al. 2025, Pass@k training, arXiv:2508.10751, eq. 14–15.
    """
    require_between("baseline=pass_at_k", "k", k, 1)

    def f(values_G, group):
        right = group.outcome > CORRECT
        n, n_wrong = masked_count(group.valid), masked_count(group.valid & ~right)
        fails = _share_without(n_wrong, n, k, values_G.shape[0])
        fails_with_me = _share_without(n_wrong - 1.0, n - 1.0, k - 1.0, values_G.shape[0])
        contrast = (n_wrong >= k) & (n_wrong < n)
        sigma = jnp.sqrt(jnp.where(contrast, fails * (1.0 - fails), 1.0))
        value = jnp.where(right, fails, fails - fails_with_me) / sigma
        return jnp.where(group.valid & contrast, value, 0.0)

    declares = {"shift_invariant", "scale_invariant", "zero_sum", "zero_sum_batch", "zero_without_contrast"}
    return per_group(f, min_group=2, declares=frozenset(declares))


@registry.register
def virtual_sample(ddof=1, eps=1e-4):
    """value = (reward − mean)/(std + eps) per group; when all outcomes of the batch are equal, the group's
    mean and std are taken with one virtual reward of the opposite kind, so that the batch still teaches.

    Otherwise a group without contrast gets 0.
    Reference: AVSPO 2026, arXiv:2605.21125, the authors' code.
    Departs: the paper's adaptive number of virtual rewards is not public.
    """
    require_between("baseline=virtual_sample", "ddof", ddof, 0)
    require_between("baseline=virtual_sample", "eps", eps, 0)

    def f(values_PG, groups):
        right = groups.outcome > CORRECT
        collapsed = ~(right & groups.valid).any() | ~(~right & groups.valid).any()
        opposite = 1.0 - (right & groups.valid).any().astype(jnp.float32)
        rows = values_PG.shape[0]
        extra = jnp.broadcast_to(opposite, (rows, 1))
        values = jnp.concatenate([values_PG, extra], axis=1)
        valid = jnp.concatenate([groups.valid, jnp.broadcast_to(collapsed, (rows, 1))], axis=1)
        mean = masked_mean(values, valid, axis=1, keepdims=True)
        std = masked_std(values, valid, axis=1, ddof=ddof, keepdims=True)
        top = jnp.where(valid, values, -jnp.inf).max(axis=1, keepdims=True)
        low = jnp.where(valid, values, jnp.inf).min(axis=1, keepdims=True)
        return jnp.where(groups.valid & (top > low), safe_divide(values_PG - mean, std + eps), 0.0)

    return per_batch(f, min_group=2)


def expected_advantage(a, b, n, largest: int):
    """E[μ_n(p)] for p ~ Beta(a, b), with μ_n(p) = Σ_{S=1}^{n−1} C(n−1, S−1) p^{S−1} (1−p)^{n−S} √((n−S)/S).

    μ_n(p) is GRPO's mean advantage (ddof 0) of a right response. `a`, `b`, `n` are arrays of one shape;
    `largest` ≥ n is static.
    """
    S = jnp.arange(1, max(largest, 2), dtype=jnp.float32)
    a, b, n = (jnp.asarray(x, jnp.float32)[..., None] for x in (a, b, n))
    S = S.reshape((1,) * (n.ndim - 1) + S.shape)
    inside = n > S
    T = jnp.where(inside, S, 1.0)  # a harmless place for the terms that do not exist
    rest = jnp.where(inside, n - T, 1.0)
    log_term = _log_choose(rest + T - 1.0, T - 1.0) + betaln(a + T - 1.0, b + rest) - betaln(a, b)
    return jnp.where(inside, jnp.exp(log_term) * jnp.sqrt(rest / T), 0.0).sum(axis=-1)


@registry.register
def posterior(decay=0.5, prior_right=1.0, prior_wrong=1.0) -> AdvantageTransform:
    """value = E[μ_G(p)] where right, −E[μ_G(1 − p)] where wrong: GRPO's mean advantage under what is known
    of p.

        μ_G(p) = Σ_{S=1}^{G−1} C(G−1, S−1) p^{S−1} (1−p)^{G−S} √((G−S)/S)
        a ← decay·a + (1 − decay)·prior_right + S,   b ← decay·b + (1 − decay)·prior_wrong + G − S

    p ~ Beta(a, b), a row of memory per prompt, moved by this group before use; each response is taken out of
    it for its own advantage. Groups without contrast keep advantages.
    Reference: MaPP 2026, arXiv:2609.34990.
    """
    require_between("baseline=posterior", "decay", decay, 0, 1)
    require_between("baseline=posterior", "prior_right", prior_right, 0, above=True)
    require_between("baseline=posterior", "prior_wrong", prior_wrong, 0, above=True)

    def init(num_prompts):
        ones = jnp.ones((num_prompts, 1), jnp.float32)
        return {"beta": jnp.concatenate([prior_right * ones, prior_wrong * ones], axis=1)}

    def update(values_PG, memory, groups):
        right = (groups.outcome > CORRECT) & groups.valid
        S, n = masked_count(right, axis=1), masked_count(groups.valid, axis=1)
        table = memory["beta"]
        a = decay * table[groups.prompt_id, 0] + (1.0 - decay) * prior_right + S
        b = decay * table[groups.prompt_id, 1] + (1.0 - decay) * prior_wrong + n - S
        # a right response sees Beta(a − 1, b), a wrong one Beta(a, b − 1), as the mirror image of a right one
        seen_a, seen_b = jnp.stack([a - 1.0, b - 1.0]), jnp.stack([b, a])
        up, down = expected_advantage(seen_a, seen_b, n[None], groups.outcome.shape[1])
        values = jnp.where(right, up[:, None], -down[:, None])
        moved = jnp.stack([a, b], axis=1)
        # a prompt without a valid response learns nothing and keeps its row
        places = jnp.where(n > 0, groups.prompt_id, table.shape[0])
        table = table.at[places].set(moved, mode="drop")
        return masked(values, groups.valid), {"beta": table}

    return AdvantageTransform(
        init=init,
        update=update,
        needs=frozenset({"prompt_id"}),
        min_group=2,
        declares=frozenset({"shift_invariant", "scale_invariant"}),
    )
