"""The programs of a run as the trainer makes them, with shapes in place of arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax.sharding import NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from rlvr_jax.config import check
from rlvr_jax.policy import Architecture, preset
from rlvr_jax.resharding import sampling_mesh
from rlvr_jax.rollout import to_batch
from rlvr_jax.run import Parts, abstract_state, assemble, compile_functions, for_sampling, open_model
from rlvr_jax.sharding import make_mesh, rows_sharding
from rlvr_jax.types import Groups, Prompts, PyTree, Rollouts

PROMPTS = 10_000  # of a task whose files are not here; what an estimator remembers of each is small


class Program(NamedTuple):
    """What is compiled: a jitted function, shapes for it, and what its memory is made of."""

    name: str
    function: Callable
    arguments: tuple
    keywords: dict[str, Any]
    parameters: PyTree  # shapes of these are counted as such …
    optimiser: PyTree
    cache: PyTree
    model_flops: float  # of the whole slice, without anything computed twice
    kernel_flops: float  # of the whole slice, in kernels whose time the compiler does not estimate; 0: none are used
    weights_bytes: float  # in the computing dtype, of the parameters that are trained or read


class _Nobody:
    """In the place of tasks and tokenizers whose files are not here."""

    size, end_ids, pad_id, grader = PROMPTS, (0,), 0, None

    @staticmethod
    def token_bytes():
        raise ValueError("config.sampling.stop_strings: a plan without the model's files has no tokenizer for them")


def parts_for(config: ConfigDict, devices: list[Any]) -> tuple[Parts, str]:
    """The parts of a run on `devices`, and where its sizes come from. No weights, problems or chips need be here.

    Raises:
      ValueError: what `check` refuses for so many devices, or a config that names no sizes.
    """
    estimator = check(config, len(devices), sources=False)
    mesh = make_mesh(config.mesh.data, config.mesh.model, config.mesh.replica, devices)
    architecture, source = _architecture(config)
    return assemble(config, estimator, architecture, _Nobody(), _Nobody(), mesh), source


def _architecture(config: ConfigDict) -> tuple[Architecture, str]:
    options = {name: config.model[name] for name in ("dtype", "scan_layers", "remat")}
    if config.model.path and (Path(config.model.path).exists() or config.model.path.startswith("package:")):
        return open_model(config)[0], config.model.path
    if config.model.preset:
        return preset(config.model.preset, **options), f"preset {config.model.preset}"
    if config.model.path:
        raise ValueError(
            f"config.model.path={config.model.path!r}: not here, and no sizes to plan with; set config.model.preset"
        )
    return open_model(config)[0], "the config's sizes"


def _at(tree: PyTree, sharding) -> PyTree:
    return jax.tree.map(lambda x: Shape(x.shape, x.dtype, sharding=sharding), tree)


def rollout_shapes(config: ConfigDict, mesh) -> Rollouts:
    rows, length = config.prompts_per_step * config.group_size, config.sampling.completion_length
    width = config.sampling.prompt_length
    shape = lambda dtype, *sizes: Shape((rows, *sizes), dtype)
    return _at(
        Rollouts(
            tokens=shape(jnp.int32, width + length),
            prompt_mask=shape(bool, width),
            completion_mask=shape(bool, length),
            attend_mask=shape(bool, length),
            behaviour_logprobs=shape(jnp.float32, length),
            full_logprobs=shape(jnp.float32, length),
            finished=shape(bool),
            prompt_id=shape(jnp.int32),
        ),
        rows_sharding(mesh, rows),
    )


def batch_shapes(config: ConfigDict, parts: Parts, rollouts: Rollouts) -> PyTree:
    """One minibatch, as `train` makes it."""
    prompts, group = config.prompts_per_step, config.group_size
    scores = Shape((prompts, group), jnp.float32)
    logprobs = rollouts.behaviour_logprobs
    reference = logprobs if "reference" in parts.estimator.needs else None
    groups = Groups(outcome=scores, lengths=Shape((prompts, group), jnp.int32), valid=Shape((prompts, group), bool))
    whole = jax.eval_shape(to_batch, rollouts, groups, scores, logprobs, reference)
    rows = prompts * group // config.updates.minibatches
    cut = jax.tree.map(lambda x: Shape((rows, *x.shape[1:]), x.dtype), whole)
    return _at(cut, rows_sharding(parts.mesh, rows))


def flops_per_token(architecture: Architecture, context: float, head: bool = True) -> float:
    """Of one token forward: 2 for each weight it passes, 4·K·H for each key it looks at."""
    a = architecture
    inner, outer = a.heads * a.head_size, a.kv_heads * a.head_size
    weights = a.layers * (2 * a.width * (inner + outer) + 3 * a.width * a.hidden)
    return 2.0 * weights + (2.0 * a.vocabulary * a.width if head else 0.0) + 4.0 * a.layers * inner * context


def programs_of(config: ConfigDict, parts: Parts) -> list[Program]:
    """sample_prefill, sample_decode, score and update, in the order of a step."""
    return [*_sampling(config, parts), *_learning(config, parts)]


def _learning(config: ConfigDict, parts: Parts) -> list[Program]:
    functions, state = compile_functions(config, parts), abstract_state(parts)
    architecture, updates = parts.policy.architecture, config.updates
    rollouts = rollout_shapes(config, parts.mesh)
    batch = batch_shapes(config, parts, rollouts)
    rows, length = rollouts.attend_mask.shape
    width = config.sampling.prompt_length
    # completions of a row share their prompt's tokens; the last token predicts nothing
    tokens = rows // updates.completions_per_row * width + rows * (length - 1)
    forward = tokens * flops_per_token(architecture, (width + length) / 2, head=False)
    forward += 2.0 * rows * length * architecture.vocabulary * architecture.width
    slots = updates.completions_per_row * (length - 1) if updates.row_sizes else 0
    weights = _bytes(state.params["policy"], architecture.dtype)
    one = forward / updates.minibatches
    # the kernel's backward pass makes five products for the forward pass's two, and remat runs that twice
    looks = 4.0 * architecture.layers * architecture.heads * architecture.head_size * (width + length) / 2
    kernel = tokens * looks if architecture.attention == "splash" else 0.0
    times = 2.5 + (1 if architecture.remat == "none" else 2)
    return [
        Program(
            "score", functions.score, (state.params["policy"], rollouts), {"row_slots": slots},
            state.params, (), (), forward, kernel, weights,
        ),
        Program(
            "update", functions.update, (state, batch), {"row_slots": slots},
            state.params, state.opt_state, (), (2 if config.lora.rank else 3) * one,
            times * kernel / updates.minibatches, weights,
        ),
    ]  # fmt: skip


def _sampling(config: ConfigDict, parts: Parts) -> list[Program]:
    reading, reshard = for_sampling(config, parts)
    policy, architecture, mesh = reading, parts.policy.architecture, parts.mesh
    wanted = abstract_state(parts).params["policy"]
    params = jax.eval_shape(reshard, wanted)
    if mesh.size > 1:
        attach = lambda x, info: Shape(x.shape, x.dtype, sharding=info.sharding)
        params = jax.tree.map(attach, params, reshard.trace(wanted).lower(lowering_platforms=("tpu",)).out_info)
    prompts, group = config.prompts_per_step, config.group_size
    width, length = config.sampling.prompt_length, config.sampling.completion_length
    by_row = lambda tree: jax.tree.map(
        lambda x: Shape(x.shape, x.dtype, sharding=rows_sharding(mesh, x.shape[0]) if x.ndim else None), tree
    )
    asked = by_row(
        Prompts(
            tokens=Shape((prompts, width), jnp.int32),
            mask=Shape((prompts, width), bool),
            prompt_id=Shape((prompts,), jnp.int32),
        )
    )
    prefill = jax.jit(lambda params, prompts: policy.prefill(policy.for_decoding(params), prompts.tokens, prompts.mask))
    places = min(config.sampling.rows_at_once or prompts * group, prompts * group)
    caches = lambda params, asked: _caches(policy, params, asked, group, length, places)
    placed = lambda tree: _placed_shapes(tree, sampling_mesh(mesh, config.mesh.sample_model))
    prompts_cache = placed(jax.eval_shape(prefill, params, asked)[1])
    cached = placed(jax.eval_shape(caches, params, asked))
    rows = cached[1].positions.shape[:2]
    token = by_row((Shape(rows, jnp.int32), jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows))))

    def decode(params, token, keys, index, prompt, cache):
        hidden, cache = policy.decode(params, token, index, prompt, cache)
        drawn = parts.method.draw(policy.logits(params, hidden), keys, jnp.zeros(rows, jnp.int32))
        return drawn, cache

    index = Shape((), jnp.int32) if places == prompts * group else Shape(rows, jnp.int32)
    weights = _bytes(params, architecture.dtype)
    read = prompts * width * flops_per_token(architecture, width / 2, head=False)
    written = rows[0] * rows[1] * flops_per_token(architecture, width + length / 2)
    step = jax.jit(decode, donate_argnums=5)
    return [
        Program(
            "sample_prefill", prefill, (params, asked), {}, params, (), prompts_cache,
            read, 0.0, weights,
        ),
        Program(
            "sample_decode", step, (params, *token, index, *cached), {}, params, (), cached, written, 0.0, weights
        ),
    ]  # fmt: skip


def _caches(policy, params, asked, group: int, length: int, places: int):
    """(PromptCache, Cache) as the sampler's loop has them: rows of a group beside their prompt, or, where rows wait
    for their turn, each with its own."""
    _, prompt = policy.prefill(policy.for_decoding(params), asked.tokens, asked.mask)
    cache = policy.init_cache(asked.tokens.shape[0], group, length)
    if places == asked.tokens.shape[0] * group:
        return prompt, cache
    return policy.gather(prompt, cache, jnp.zeros(places, jnp.int32))


def _placed_shapes(cached: PyTree, mesh) -> PyTree:
    """Shapes of caches with the places that `with_placed_caches` gives them."""

    def put(x, *spec):
        fits = [axis if axis and size % mesh.shape[axis] == 0 else None for axis, size in zip(spec, x.shape)]
        return Shape(x.shape, x.dtype, sharding=NamedSharding(mesh, PartitionSpec(*fits)))

    one = lambda x: (
        put(x, *(None,) * (x.ndim - 4), "data", "model") if x.ndim > 3 else put(x, *("data",) * min(x.ndim, 1))
    )
    return jax.tree.map(one, cached)


def _bytes(tree: PyTree, dtype: str) -> float:
    """Of all matrices in `dtype`."""
    return float(sum(x.size for x in jax.tree.leaves(tree) if x.ndim > 1) * jnp.dtype(dtype).itemsize)
