"""This project's side of the comparison: `python ours.py` answers the questions of `work.serve`.

What may be tuned for a job is in KNOBS and nowhere else.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from work import Geometry, Job, serve, update_rows

from rlvr_jax.estimators import make_estimator
from rlvr_jax.optimizer import make_optimizer
from rlvr_jax.policy import Architecture, make_policy
from rlvr_jax.rng import key_for
from rlvr_jax.sampling import Environment, make_sampler
from rlvr_jax.types import Batch, Prompts, TrainState
from rlvr_jax.update import make_update

# job → arguments of Architecture, of make_sampler (sample) and of make_update (update)
KNOBS = {
    "sample16": {"architecture": {"scan_layers": False}, "sampler": {}},
    "sample64": {"architecture": {"scan_layers": False}, "sampler": {}},
    "realistic": {"architecture": {"scan_layers": False}, "sampler": {"narrowings": 4}},
    "update": {"architecture": {"remat": "dots"}, "update": {"micro_batch_rows": 2}},
    "update_shared": {"architecture": {"remat": "dots"}, "update": {"completions_per_row": 8, "head_chunks": 4}},
    "update_demo": {
        "architecture": {},
        "update": {"completions_per_row": 8, "micro_batch_rows": 32, "head_chunks": 2},
    },
}
# of jobs that are not named above: those of growth.py
OTHERS = {
    "sample": {"architecture": {"scan_layers": False}, "sampler": {}},
    "update": {"architecture": {}, "update": {}},
}


def set_up(job: Job, name: str, lengths: np.ndarray, geometry: Geometry):
    """A call(seed) → {"tokens"}; see `work.serve`."""
    knobs = KNOBS.get(name, OTHERS[job.kind])
    policy = make_policy(architecture(geometry, **knobs["architecture"]))
    if job.kind == "sample":
        return sampling(job, lengths, geometry, policy, knobs["sampler"])
    share = {"completions_per_row": job.group} if name not in KNOBS and job.shared else {}
    return updating(job, geometry, policy, {**share, **knobs["update"]})


def architecture(geometry: Geometry, **knobs) -> Architecture:
    sizes = {name: getattr(geometry, name) for name in geometry.__dataclass_fields__}
    return Architecture(**sizes, rope_theta=1e5, **knobs)


def sampling(job: Job, lengths: np.ndarray, geometry: Geometry, policy, knobs):
    end, varied = geometry.vocabulary - 1, job.mean > 0
    sampler = make_sampler(
        policy,
        group_size=job.group,
        completion_length=job.length,
        end_ids=(end,),
        pad_id=0,
        environment=ends_at(lengths, end) if varied else None,
        **knobs,
    )
    sample = jax.jit(sampler)
    params = jax.jit(policy.init)(jax.random.key(0))
    prompts = Prompts(
        tokens=jnp.asarray(update_rows(job, geometry)["prompt"][:: job.group], jnp.int32),
        mask=jnp.ones((job.prompts, job.prompt_length), bool),
        prompt_id=jnp.arange(job.prompts, dtype=jnp.int32),
    )

    def call(seed: int) -> dict:
        found = sample(params, prompts, key_for(seed, 0, "sample"))
        rollouts = jax.device_get(found[0] if varied else found)
        return {"tokens": int(rollouts.attend_mask.sum())}

    return call


def ends_at(lengths: np.ndarray, end: int) -> Environment:
    """Writes the end token as the last of `lengths[p, g]` tokens of each completion, and nothing else."""
    table = jnp.asarray(lengths, jnp.int32)
    return Environment(
        start=lambda prompt_id, keys: table[prompt_id],
        step=lambda left, token: left - 1,
        forced=lambda left: jnp.where(left == 1, end, -1),
    )


def updating(job: Job, geometry: Geometry, policy, knobs):
    estimator = make_estimator("grpo")
    optimizer = make_optimizer(learning_rate=1e-6, total_updates=1000, clip_norm=0.0)  # the peers do not clip either
    rows = update_rows(job, geometry)
    batch = Batch(
        tokens=jnp.asarray(np.concatenate([rows["prompt"], rows["completion"]], axis=1), jnp.int32),
        prompt_mask=jnp.ones(rows["prompt"].shape, bool),
        completion_mask=jnp.ones(rows["completion"].shape, bool),
        advantages=jnp.asarray(rows["advantage"]),
        old_logprobs=jnp.asarray(rows["old"]),
        group=jnp.repeat(jnp.arange(job.prompts), job.group),
    )

    @jax.jit
    def start() -> TrainState:
        params = {"policy": policy.init(jax.random.key(0)), "estimator": {}}
        return TrainState(step=jnp.zeros((), jnp.int32), params=params, opt_state=optimizer.init(params), memory={})

    update = jax.jit(make_update(policy, estimator, optimizer, **knobs), donate_argnums=0)
    held = {"state": start()}

    def call(seed: int) -> dict:
        held["state"], metrics = update(held.pop("state"), batch)
        jax.block_until_ready((held["state"], metrics))
        skipped = float(metrics["rows_skipped"].compute())
        if skipped:
            raise AssertionError(f"{skipped} rows were not computed: the job is not the one to be timed")
        return {"tokens": job.rows * (job.prompt_length + job.length)}

    return call


if __name__ == "__main__":
    serve(set_up, f"rlvr_jax, jax {jax.__version__}")
