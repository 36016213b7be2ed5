"""A policy that starts where the dials say: fitted to the demonstrator's whole distribution over next tokens."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rlvr_jax.lab.world import World
from rlvr_jax.optimizer import make_policy_optimizer
from rlvr_jax.policy import Policy, make_predictors
from rlvr_jax.rng import key_for
from rlvr_jax.sampling import make_sampler
from rlvr_jax.types import Array, PyTree


def make_warm_start(
    policy: Policy, demonstrator: Policy, world: World, *, updates: int, completions_per_prompt: int, length: int
) -> Callable[[PyTree, Array, Array], PyTree]:
    """A function (dials, learning rate f32[], seed i32[]) → params of `policy`: `updates` steps of Adam on

        −Σ_t Σ_v π_demonstrator(v | prefix) log π(v | prefix) / tokens

    over completions that the demonstrator samples, the tokens it wrote itself. Targets are distributions, not samples,
    so a few hundred small batches are enough.
    """
    optimizer = make_policy_optimizer("adam", 1.0)
    states, wanted = make_predictors(policy), make_predictors(demonstrator)

    def objective(params, dials, rollouts):
        rows = (rollouts.tokens, rollouts.prompt_mask, rollouts.attend_mask)
        logits = policy.logits(params, states(params, *rows))
        target = jnp.exp(demonstrator.logits(dials, wanted(dials, *rows)))
        loss = -(target * jax.nn.log_softmax(logits, axis=-1)).sum(axis=-1)
        mask = rollouts.completion_mask
        return (loss * mask).sum() / jnp.maximum(mask.sum(), 1)

    def warm_start(dials: PyTree, learning_rate: Array, seed: Array) -> PyTree:
        sample = make_sampler(
            demonstrator,
            group_size=completions_per_prompt,
            completion_length=length,
            end_ids=world.end_ids,
            pad_id=world.pad_id,
            environment=world.environment(dials, jnp.iinfo(jnp.int32).max),
            stop_early=False,
        )

        def update(carry, step):
            params, opt_state = carry
            rollouts, _ = sample(dials, world.prompts(dials, step), key_for(seed, step, "demonstrate"))
            gradient = jax.grad(objective)(params, dials, rollouts)
            change, opt_state = optimizer.update(gradient, opt_state, params)
            # down to a tenth at the end, linearly: the last batches should not be the ones that are remembered
            rate = learning_rate * (1.0 - 0.9 * step / updates)
            return (jax.tree.map(lambda p, c: p + rate * c, params, change), opt_state), None

        params = policy.init(key_for(seed, 0, "init"))
        start = (params, optimizer.init(params))
        return jax.lax.scan(update, start, jnp.arange(updates))[0][0]

    return warm_start
