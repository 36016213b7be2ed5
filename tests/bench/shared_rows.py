"""How much faster a prompt and its completions are in one row than in padded rows: an update of each, A B A B.

    make bench

The work is that of `make demo`: SmolLM2-135M's sizes (random weights, on which the time does not depend), 8 prompts of
51 tokens × 8 completions of 12, AdamW, float32. The gradients of both are compared too.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.estimators import make_estimator
from rlvr_jax.optimizer import make_optimizer
from rlvr_jax.policy import Architecture, make_policy
from rlvr_jax.types import Batch, TrainState
from rlvr_jax.update import make_update
from rlvr_jax.workdir import environment

PROMPTS, GROUP, PROMPT_LENGTH, LENGTH, ROUNDS = 8, 8, 51, 12, 4
SMOLLM2 = Architecture(
    vocabulary=49_152, width=576, layers=30, heads=9, kv_heads=3, head_size=64, hidden=1536, rope_theta=1e5
)


def batch() -> Batch:
    rng, rows = np.random.default_rng(0), PROMPTS * GROUP
    prompts = np.repeat(rng.integers(0, SMOLLM2.vocabulary, (PROMPTS, PROMPT_LENGTH)), GROUP, axis=0)
    completions = rng.integers(0, SMOLLM2.vocabulary, (rows, LENGTH))
    return Batch(
        tokens=jnp.asarray(np.concatenate([prompts, completions], axis=1), jnp.int32),
        prompt_mask=jnp.ones((rows, PROMPT_LENGTH), bool),
        completion_mask=jnp.ones((rows, LENGTH), bool),
        advantages=jnp.asarray(rng.standard_normal(rows), jnp.float32),
        group=jnp.repeat(jnp.arange(PROMPTS), GROUP),
    )


def main() -> int:
    policy, estimator = make_policy(SMOLLM2), make_estimator("grpo")
    optimizer = make_optimizer(learning_rate=1e-5, total_updates=10)

    @jax.jit
    def start():
        params = {"policy": policy.init(jax.random.key(0)), "estimator": {}}
        return TrainState(step=jnp.zeros((), jnp.int32), params=params, opt_state=optimizer.init(params), memory={})

    arms = {
        name: jax.jit(
            make_update(policy, estimator, optimizer, completions_per_row=share, micro_batch_rows=16), donate_argnums=0
        )
        for name, share in (("shared", GROUP), ("padded", 1))
    }
    rows, seconds, norms = batch(), {name: [] for name in arms}, {}
    states = {name: start() for name in arms}
    for round_ in range(ROUNDS + 1):  # the first compiles
        for name, update in arms.items():
            began = time.perf_counter()
            states[name], metrics = jax.block_until_ready(update(states[name], rows))
            if round_ == 0:
                norms[name] = metrics["gradient_norm"].compute()
            else:
                seconds[name].append(time.perf_counter() - began)
    ratio = [padded / shared for padded, shared in zip(seconds["padded"], seconds["shared"])]
    print(f"{environment()['processor']}, {environment()['cores']} cores, commit {environment()['commit']}")
    print(f"{platform.system()}, jax {jax.__version__}, {time.strftime('%Y-%m-%d')}")
    for name, times in seconds.items():
        print(
            f"{name}: {min(times):.2f} / {statistics.median(times):.2f} / {max(times):.2f} s an update (min/median/max)"
        )
    print(f"padded / shared: {min(ratio):.2f} / {statistics.median(ratio):.2f} / {max(ratio):.2f} (min/median/max)")
    print(f"gradient norms: shared {norms['shared']:.6f}, padded {norms['padded']:.6f}")
    return 0 if abs(norms["shared"] / norms["padded"] - 1) < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
