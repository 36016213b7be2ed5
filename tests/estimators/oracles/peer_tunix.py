"""Tunix's side of the comparison: its installed code computes the numbers, in an environment of its own.

    python peer_tunix.py INPUTS OUTPUTS        (or --serve)

The functions registered in `tunix.rl.algo_core` under advantage estimators and policy losses run as they are, with
`tunix.rl.common` for aggregation and divergence. Replaced is only what a model would do:
`common.compute_per_token_logps` returns the given log-probabilities, held by an `nnx.Module` of one parameter.

The sampler's correction reaches the loss as `sampler_is_weights`, which the agentic learner computes in the middle
of a method that also talks to the sampler and cannot be called alone: the case gives min(π_old/π_behaviour, cap).
"""

from __future__ import annotations

import dataclasses
import functools
import types
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np
from exchange import compiled_memory, run_peer
from flax import nnx
from tunix.rl import algo_core, common, function_registry
from tunix.rl.grpo.grpo_learner import GRPOConfig


class Policy(nnx.Module):
    """Its log-probabilities are its parameter."""

    def __init__(self, logprobs):
        self.logprobs = nnx.Param(logprobs)


def _given_logprobs(graphdef, state, **_):
    logprobs = nnx.merge(graphdef, state).logprobs[...]
    return logprobs, jnp.zeros((*logprobs.shape, 1), jnp.float32)


common.compute_per_token_logps = _given_logprobs


class Peer:
    """One batch under one configuration. Settings: fields of GRPOConfig, `epsilon_high`, `epsilon_c`, `temperature`,
    and `old` (false: on-policy), `cap` (of the sampler's correction), `policy_loss_fn`."""

    def __init__(self, batch, settings, timing=False):
        settings = dict(settings)
        old, self.cap = settings.pop("old", True), settings.pop("cap", None)
        config = {f.name: f.default for f in dataclasses.fields(GRPOConfig)}
        self.config = types.SimpleNamespace(**{**config, "temperature": 1.0, "entropy_coef": None, **settings})
        self.batch = {name: batch[name] for name in batch}
        if not old:
            self.batch.pop("old")
        get = lambda name: jnp.asarray(self.batch[name]) if name in self.batch else None
        self.policy, self.old, self.reference, mask = get("policy"), get("old"), get("reference"), get("mask")
        self.estimate = function_registry.get_advantage_estimator(self.config.advantage_estimator)
        loss = function_registry.get_policy_loss_fn(self.config.policy_loss_fn)
        self.weights = None
        if self.cap is not None:
            self.weights = jnp.minimum(jnp.exp(self.old - get("behaviour")), self.cap)

        @jax.jit
        @functools.partial(jax.value_and_grad, has_aux=True)
        def value(policy, mask, advantages, old, reference, weights):
            example = types.SimpleNamespace(
                prompt_ids=None,
                completion_ids=None,
                completion_mask=mask,
                advantages=advantages,
                old_per_token_logps=old,
                ref_per_token_logps=reference,
                sampler_is_weights=weights,
            )
            return loss(Policy(policy), example, self.config, pad_id=0, eos_id=1)

        self.value, self.mask = value, mask.astype(jnp.int32)
        self.row_advantages = jnp.asarray(batch["advantages"]) if "advantages" in batch else None
        self.compiled = None

    def advantages(self):
        rewards = self.batch["rewards"]
        return np.asarray(self.estimate(rewards.reshape(-1), rewards.shape[1]))

    def loss(self):
        arguments = self.policy, self.mask, self.row_advantages, self.old, self.reference, self.weights
        if self.compiled is None:
            self.compiled = self.value.lower(*arguments).compile()
        return jax.block_until_ready(self.compiled(*arguments))

    def memory(self):
        """MiB of the compiled loss besides its arguments."""
        return compiled_memory(self.compiled)

    def answer(self):
        advantages = self.advantages()
        given = advantages[:, None] if self.config.policy_loss_fn == "ppo" else advantages
        self.row_advantages = jnp.asarray(given, jnp.float32)
        (loss, _), gradient = self.loss()
        return {"advantages": advantages, "loss": np.float32(loss), "gradient": np.asarray(gradient)}


assert algo_core  # its import registers the functions
if __name__ == "__main__":
    run_peer(Peer, f"google-tunix {version('google-tunix')}, jax {jax.__version__}")
