"""Tunix's side of the comparison, by its installed code: its Llama, its Sampler, its GRPO loss, and optax's AdamW.

Its sampler has no refill and does not narrow: rows are static and run until the longest wanted has ended. Prompts of
a group are given once for each completion. An update in micro-batches goes through optax.MultiSteps, as its trainer
does it.
"""

from __future__ import annotations

import types
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tunix.generate import sampler as generate
from tunix.models.llama3 import model as llama
from tunix.rl import algo_core, common
from work import Geometry, Job, prompt_tokens, serve, update_rows

MICRO_BATCH_ROWS = {"update_demo": 16}  # of jobs whose rows do not fit into memory at once
LOSS = types.SimpleNamespace(
    beta=0.0,
    epsilon=0.2,
    epsilon_high=0.28,
    loss_algo="grpo",
    loss_agg_mode="sequence-mean-token-mean",
    temperature=1.0,
    kl_loss_mode="low_var_kl",
    kl_clamp_value=None,
)


class Numbers:
    """A tokenizer whose strings are the numbers of prompts."""

    def __init__(self, prompts: np.ndarray):
        self.prompts = prompts

    def encode(self, text: str, **_) -> list[int]:
        return self.prompts[int(text), 1:].tolist()  # the sampler puts the first token there itself

    def decode(self, ids, **_) -> str:
        return ""

    def bos_id(self) -> int:
        return 1

    def eos_id(self) -> int:
        return 2

    def pad_id(self) -> int:
        return 0


def set_up(job: Job, name: str, lengths: np.ndarray, geometry: Geometry):
    config = llama.ModelConfig(
        num_layers=geometry.layers,
        vocab_size=geometry.vocabulary,
        embed_dim=geometry.width,
        hidden_dim=geometry.hidden,
        num_heads=geometry.heads,
        head_dim=geometry.head_size,
        num_kv_heads=geometry.kv_heads,
        rope_theta=100_000,
        norm_eps=1e-5,
        weight_tying=True,
    )
    model = llama.Llama3(config, rngs=nnx.Rngs(0))
    if job.kind == "sample":
        return sampling(job, lengths, geometry, model)
    return updating(job, geometry, model, MICRO_BATCH_ROWS.get(name, job.rows))


def sampling(job: Job, lengths: np.ndarray, geometry: Geometry, model):
    cache = generate.CacheConfig(
        cache_size=job.prompt_length + job.length,
        num_layers=geometry.layers,
        num_kv_heads=geometry.kv_heads,
        head_dim=geometry.head_size,
    )
    sampler = generate.Sampler(model, Numbers(prompt_tokens(job, geometry)), cache)
    texts = [str(prompt) for prompt in range(job.prompts) for _ in range(job.group)]

    def call(seed: int) -> dict:
        sampler(
            texts,
            max_generation_steps=int(lengths.max()),
            max_prompt_length=job.prompt_length,
            temperature=1.0,
            top_p=1.0,
            seed=seed,
            return_logprobs=True,
            eos_tokens=[geometry.vocabulary - 1],
        )
        return {"tokens": int(lengths.sum())}

    return call


def updating(job: Job, geometry: Geometry, model, size: int):
    rows = update_rows(job, geometry)
    pieces = [
        common.TrainExample(
            prompt_ids=jnp.asarray(rows["prompt"][part], jnp.int32),
            prompt_mask=jnp.ones(rows["prompt"][part].shape, bool),
            completion_ids=jnp.asarray(rows["completion"][part], jnp.int32),
            completion_mask=jnp.ones(rows["completion"][part].shape, jnp.float32),
            advantages=jnp.asarray(rows["advantage"][part]),
            ref_per_token_logps=None,
            old_per_token_logps=jnp.asarray(rows["old"][part]),
        )
        for part in (slice(first, first + size) for first in range(0, job.rows, size))
    ]
    adamw = optax.adamw(1e-6)
    optimizer = nnx.Optimizer(model, adamw if len(pieces) == 1 else optax.MultiSteps(adamw, len(pieces)), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, example):
        loss = lambda model: algo_core.grpo_loss_fn(model, example, LOSS, 0, 2)
        (value, _), gradient = nnx.value_and_grad(loss, has_aux=True)(model)
        optimizer.update(model, gradient)
        return value

    def call(seed: int) -> dict:
        for piece in pieces:
            loss = step(model, optimizer, piece)
        jax.block_until_ready((loss, nnx.state(model), nnx.state(optimizer)))
        return {"tokens": job.rows * (job.prompt_length + job.length)}

    return call


if __name__ == "__main__":
    serve(set_up, f"google-tunix {version('google-tunix')}, jax {jax.__version__}")
