"""What a config names, made: the parts of a run and its device functions, each compiled once."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import jit
from ml_collections import ConfigDict

from rlvr_jax import hosts
from rlvr_jax.checkpoint import Checkpoints
from rlvr_jax.compiles import Watched
from rlvr_jax.config import data_checks
from rlvr_jax.data import EncodedProblem, PromptStream, encode_problems, fingerprint, mixture_of
from rlvr_jax.estimators import Estimator
from rlvr_jax.evaluate import make_evaluate
from rlvr_jax.optimizer import make_optimizer
from rlvr_jax.policy import (
    Architecture,
    Lora,
    Policy,
    bucket,
    make_logprobs,
    make_policy,
    needed_row_slots,
    preset,
    read_pretrained,
    trim_prompts,
    trimmed_columns,
    with_lora,
)
from rlvr_jax.resharding import make_reshard, sampling_mesh, with_placed_caches
from rlvr_jax.rng import key_for
from rlvr_jax.rollout import from_groups, mismatch, to_batch
from rlvr_jax.sampling import SamplingMethod, StopStrings, make_sampler, make_stop_strings
from rlvr_jax.sharding import make_mesh, make_spread, path_name, replicated, rows_sharding, shardings_for
from rlvr_jax.tasks import Task, make_pool, make_task
from rlvr_jax.tokenizer import Tokenizer, make_tokenizer
from rlvr_jax.types import PyTree, TrainState
from rlvr_jax.update import make_update, minibatches, trained_part


class Parts(NamedTuple):
    """What a config names. Files have been opened and checked; no array has been made."""

    mesh: jax.sharding.Mesh
    task: Task
    tokenizer: Tokenizer
    policy: Policy
    estimator: Estimator
    optimizer: Any  # optax.GradientTransformation
    method: SamplingMethod
    stops: StopStrings | None
    init_policy: Callable[[], PyTree]  # the parameters of step 0, born in their shardings
    over_rows: Callable  # of `sharding.Spread`; on one device it changes nothing


def _as_it_is(function: Callable) -> Callable:
    return function


class Functions(NamedTuple):
    """The device functions of a run."""

    sample: Callable  # (params, prompts, key) → Rollouts
    trim: Callable  # (Rollouts, prompt_mask bool[P, N], attended tokens [B]; both on the host) → (Rollouts without
    # prompt columns nobody uses, row_slots)
    score: Callable  # (params, Rollouts, row_slots) → log-probabilities f32[B, T]
    mismatch: Callable  # (Rollouts, log-probabilities) → metrics
    estimate: Callable  # (Groups, memory) → (Groups, advantages f32[P, G] or [P, G, T], memory, metrics, their mean
    # over tokens f32[P, G], whole on every host)
    to_batch: Callable  # (Rollouts, Groups, advantages, old, reference) → Batch
    minibatches: Callable  # (Batch, key) → [Batch, …]
    update: Callable  # (TrainState, Batch, row_slots) → (TrainState, metrics); donates the state
    advance: Callable  # (TrainState, memory) → TrainState of the next step; donates the state


def open_model(config: ConfigDict) -> tuple[Architecture, Tokenizer, Callable[[], PyTree] | None]:
    """The model a config names: sizes, tokenizer, and what loads its weights (None: trained from scratch).

    Raises:
      FileNotFoundError, ValueError: no such file, or a damaged or unsupported one.
    """
    options = {name: config.model[name] for name in ("dtype", "scan_layers", "remat")}
    if config.model.path:
        return read_pretrained(config.model.path, config.tokenizer or None, **options)
    tokenizer = make_tokenizer(config.tokenizer)
    if config.model.preset:
        return preset(config.model.preset, **options), tokenizer, None
    names = ("width", "layers", "heads", "kv_heads", "head_size", "hidden", "rope_theta")
    sizes = {name: config.model[name] for name in names}
    return Architecture(vocabulary=tokenizer.vocabulary_size, **sizes, **options), tokenizer, None


def make_parts(config: ConfigDict, estimator: Estimator) -> Parts:
    """The parts of a run; raises what `open_model` and `make_mesh` raise."""
    architecture, tokenizer, load = open_model(config)
    mesh = make_mesh(config.mesh.data, config.mesh.model, config.mesh.replica)
    return assemble(config, estimator, architecture, tokenizer, _graded_task(config), mesh, load)


def assemble(
    config: ConfigDict,
    estimator: Estimator,
    architecture: Architecture,
    tokenizer: Tokenizer,
    task: Task,
    mesh: jax.sharding.Mesh,
    load: Callable | None = None,
) -> Parts:
    """The parts of a run out of what has been opened."""
    architecture = dataclasses.replace(architecture, attention=_attention(config, architecture, mesh))
    base = make_policy(architecture)
    shapes_of = lambda policy: jax.eval_shape(policy.init, jax.random.key(0))
    lora = {"rank": config.lora.rank, "alpha": config.lora.alpha, "targets": tuple(config.lora.targets)}
    adapted = lambda base: with_lora(base, **lora) if config.lora.rank else base
    spread = make_spread(mesh, shapes_of(adapted(base)), architecture.dtype)
    policy = adapted(make_policy(architecture, spread.layer) if spread else base)
    updates = config.steps * config.updates.epochs * config.updates.minibatches
    shapes = lambda policy: shardings_for(shapes_of(policy), mesh)
    key = lambda: keys_on(config.seed, mesh)(0, "init")

    def init_policy():
        if load is None:
            return jit(policy.init, out_shardings=shapes(policy))(key())
        where = {path_name(path): sharding for path, sharding in jax.tree.leaves_with_path(shapes(base))}
        params = load(lambda name, array: hosts.put(array, where[name]))
        if not config.lora.rank:
            return params
        adapters = jit(Lora(**lora).init, out_shardings=shapes(policy)["lora"])(key(), params)
        return {"base": params, "lora": adapters}

    return Parts(
        mesh=mesh,
        task=task,
        tokenizer=tokenizer,
        policy=policy,
        estimator=estimator,
        optimizer=make_optimizer(total_updates=updates, **config.optimizer),
        method=SamplingMethod(**{name: config.sampling[name] for name in ("temperature", "top_k", "top_p", "min_p")}),
        stops=make_stop_strings(config.sampling.stop_strings, tokenizer.token_bytes())
        if config.sampling.stop_strings
        else None,
        init_policy=init_policy,
        over_rows=spread.over_rows if spread else _as_it_is,
    )


def _attention(config: ConfigDict, architecture: Architecture, mesh: jax.sharding.Mesh) -> str:
    """Which attention whole rows get, `auto` resolved.

    Raises:
      ValueError: the kernel is asked for where it cannot run.
    """
    obstacles = {
        "the devices are no TPUs": mesh.devices.flat[0].platform != "tpu",
        f"mesh.model={mesh.shape['model']} cuts the heads": mesh.shape["model"] > 1,
        "completions share a row (updates.completions_per_row)": config.updates.completions_per_row > 1,
        "layers differ in their window": len(architecture.layer_kinds()[0]) > 1,
    }
    there = [text for text, stands in obstacles.items() if stands]
    if config.model.attention == "splash" and there:
        raise ValueError(f"config.model.attention='splash': cannot run, because {there[0]}; choose auto or plain")
    return "plain" if there or config.model.attention == "plain" else "splash"


def _graded_task(config: ConfigDict) -> Task:
    """The task with the processes that grade it; they end with this process."""
    task = make_task(config.task, data_checks(config))
    if task.grader:
        verify = config.verify
        task.graders = make_pool(task.grader, verify.workers, verify.time_limit, verify.memory_mb)
    return task


def keys_on(seed: int, mesh: jax.sharding.Mesh) -> Callable[[int, str], jax.Array]:
    """A function key(step, purpose) that gives `key_for`'s key on all devices of a mesh, other hosts' too."""
    return lambda step, purpose: hosts.put(key_for(seed, step, purpose), replicated(mesh))


def sampler_options(config: ConfigDict, parts: Parts) -> dict[str, Any]:
    """What every sampler of a run has in common, as keywords of `make_sampler`."""
    return {
        "completion_length": config.sampling.completion_length,
        "end_ids": parts.tokenizer.end_ids,
        "pad_id": parts.tokenizer.pad_id,
        "stops": parts.stops,
        "rows_at_once": config.sampling.rows_at_once,
        "narrowings": config.sampling.narrowings,
    }


def for_sampling(config: ConfigDict, parts: Parts) -> tuple[Policy, Callable[[PyTree], PyTree]]:
    """The policy with its caches where the sampler wants them, and the function that brings the parameters there."""
    mesh = sampling_mesh(parts.mesh, config.mesh.sample_model)
    return with_placed_caches(parts.policy, mesh), make_reshard(parts.policy, mesh)


def make_stream(config: ConfigDict, parts: Parts) -> tuple[PromptStream, int]:
    """The training prompts, all encoded and checked, and how many were dropped as too long.

    Every host has all of them, in one order: which rows of a batch it puts on its devices is the sharding's affair."""
    length, long_prompts = config.sampling.prompt_length, config.data.long_prompts
    encode = lambda: encode_problems(parts.task, parts.task.problems("train"), parts.tokenizer, length, long_prompts)
    encoded, dropped = hosts.together(encode)
    hosts.agree("training problems", fingerprint(encoded) if hosts.count() > 1 else None)
    stream = PromptStream(
        encoded,
        prompts_per_step=config.prompts_per_step,
        prompt_length=config.sampling.prompt_length,
        pad_id=parts.tokenizer.pad_id,
        seed=config.seed,
        order=mixture_of(parts.task, encoded, config.seed),
    )
    return stream, dropped


def encode_evaluation(config: ConfigDict, parts: Parts) -> tuple[list[EncodedProblem], int]:
    """The problems an evaluation uses as token ids, and how many were dropped as too long."""
    problems = parts.task.problems(config.evaluate.split)[: config.evaluate.problems]
    length, long_prompts = config.sampling.prompt_length, config.data.long_prompts
    return encode_problems(parts.task, problems, parts.tokenizer, length, long_prompts)


def abstract_state(parts: Parts) -> TrainState:
    """The TrainState as shapes with shardings: nothing is computed."""

    def make(key):
        params = {"policy": parts.policy.init(key), "estimator": parts.estimator.init_params()}
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            opt_state=parts.optimizer.init(trained_part(parts.policy, params)),
            memory=parts.estimator.init_memory(parts.task.size),
        )

    shapes = jax.eval_shape(make, jax.random.key(0))
    attach = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
    return jax.tree.map(attach, shapes, shardings_for(shapes, parts.mesh))


def init_state(parts: Parts) -> TrainState:
    """The TrainState before the first step, each array born in its sharding."""
    shardings = jax.tree.map(lambda x: x.sharding, abstract_state(parts))

    def make(policy_params):
        params = {"policy": policy_params, "estimator": parts.estimator.init_params()}
        memory = parts.estimator.init_memory(parts.task.size)
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            opt_state=parts.optimizer.init(trained_part(parts.policy, params)),
            memory=memory,
        )

    return jit(make, donate_argnums=0, out_shardings=shardings)(parts.init_policy())


def restore_or_start(parts: Parts, stream: PromptStream, checkpoints: Checkpoints) -> tuple[TrainState, int]:
    """The newest checkpoint's state (the stream moved to its position), or a new one; and the step to go on with."""
    if checkpoints.latest() is None:
        return init_state(parts), 0
    state, position, _ = checkpoints.restore(abstract_state(parts))
    stream.set_state(position)
    return state, int(jax.device_get(state.step))


def compile_functions(config: ConfigDict, parts: Parts) -> Functions:
    """jits the pure functions of a run with the shardings they keep."""
    policy, mesh, updates = parts.policy, parts.mesh, config.updates
    rows = rows_sharding(mesh, config.prompts_per_step * config.group_size)
    shardings = jax.tree.map(lambda x: x.sharding, abstract_state(parts))
    everywhere = replicated(mesh)
    options = {name: updates[name] for name in ("completions_per_row", "head_chunks")}
    options |= {"temperature": parts.method.temperature, "over_rows": parts.over_rows}
    more = {name: updates[name] for name in ("micro_batch_rows", "entropy_bonus", "skip_inactive")}
    reading, reshard = for_sampling(config, parts)
    sampler = make_sampler(reading, group_size=config.group_size, method=parts.method, **sampler_options(config, parts))
    sampled = Watched("sample", jit(sampler, out_shardings=rows))

    def trim(rollouts, prompt_mask, attended):
        """The room that the rows of a batch really need, rounded up to one of `updates.row_sizes` sizes."""
        if not updates.row_sizes:
            return rollouts, 0
        share = updates.completions_per_row
        most = max(share * (config.sampling.completion_length - 1), 1)
        slots = bucket(needed_row_slots(attended, share), most, updates.row_sizes)
        return trim_prompts(rollouts, trimmed_columns(prompt_mask, updates.row_sizes)), slots

    def change(state, batch, row_slots):
        update = make_update(policy, parts.estimator, parts.optimizer, row_slots=row_slots, **options, **more)
        return update(state, batch)

    def score(params, rollouts, row_slots):
        """By micro-batches too: what an update may hold at once bounds this pass as well."""
        logprobs = make_logprobs(policy, row_slots=row_slots, **options)
        inputs = (rollouts.tokens, rollouts.prompt_mask, rollouts.attend_mask)
        count, size = rollouts.tokens.shape[0], updates.micro_batch_rows or rollouts.tokens.shape[0]
        pieces = jax.tree.map(lambda x: x.reshape(count // size, size, *x.shape[1:]), inputs)
        return jax.lax.map(lambda piece: logprobs(params, *piece)[0], pieces).reshape(count, -1)

    def estimate(groups, memory):
        kept, advantages, memory, metrics = parts.estimator.estimate(groups, memory)
        # of every rollout, those that `select` dropped included: a curve must not change with what is trained on
        seen = from_groups(groups.replace(rewards=kept.rewards))
        shown = advantages.reshape(*advantages.shape[:2], -1).mean(axis=-1)
        return kept, advantages, memory, {**seen, **metrics}, shown

    def advance(state, memory):
        return state.replace(memory=memory, step=state.step + 1)

    watched = functools.partial(Watched, expected=("row_slots", "tokens", "prompt_mask"))
    return Functions(
        sample=sampled if mesh.size == 1 else lambda params, prompts, key: sampled(reshard(params), prompts, key),
        trim=trim,
        score=watched("score", jit(score, static_argnames="row_slots", out_shardings=rows)),
        mismatch=jit(mismatch, out_shardings=everywhere),
        estimate=jit(estimate, out_shardings=(None, None, shardings.memory, everywhere, everywhere)),
        to_batch=jit(to_batch, out_shardings=rows),
        minibatches=jit(lambda batch, key: minibatches(batch, updates.minibatches, config.group_size, key)),
        update=watched(
            "update",
            jit(change, static_argnames="row_slots", donate_argnums=0, out_shardings=(shardings, everywhere)),
        ),
        advance=jit(advance, donate_argnums=0, out_shardings=shardings),
    )


def make_evaluation(config: ConfigDict, parts: Parts) -> tuple[Callable, int]:
    """evaluate(params, step, key) on the problems the config names, and how many of them were dropped as too long."""
    encoded, dropped = hosts.together(lambda: encode_evaluation(config, parts))
    hosts.agree("evaluation problems", fingerprint(encoded) if hosts.count() > 1 else None)
    reading, reshard = for_sampling(config, parts)
    evaluate = make_evaluate(
        reading,
        parts.task,
        parts.tokenizer,
        encoded,
        parts.mesh,
        split=config.evaluate.split,
        prompt_length=config.sampling.prompt_length,
        samples=config.evaluate.samples,
        prompts_per_batch=config.evaluate.prompts_per_batch,
        method=parts.method,
        **sampler_options(config, parts),
    )
    return lambda params, step, key: evaluate(reshard(params), step, key), dropped
