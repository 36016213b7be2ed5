"""Prompts in, rollouts out: each prompt is prefilled once for its whole group, then all completions are decoded
together until every one has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlvr_jax.policy import Cache, Policy
from rlvr_jax.rng import row_keys
from rlvr_jax.sampling.methods import SamplingMethod
from rlvr_jax.types import Array, Prompts, PyTree, Rollouts

WORLD = 0x77  # folded into the key that rows' environments draw with, so that they share no number with tokens


class Environment(NamedTuple):
    """What answers the policy while it writes: a tool whose observations are forced into the completion, or only a
    listener. A state is a pytree of arrays [P, G, …].

    - `start(prompt_id i32[P], keys[P, G]) → state` before the first token; one key a row for what it draws
    - `step(state, token i32[P, G]) → state` after each token, whoever wrote it; not called for rows that ended
    - `forced(state) → i32[P, G]`: the token the environment writes next, −1 where it is the policy's turn
    """

    start: Callable
    step: Callable
    forced: Callable


class _Decoding(NamedTuple):
    """What the loop carries."""

    index: Array  # i32[], tokens decoded so far
    token: Array  # i32[P, G], the newest
    done: Array  # bool[P, G]
    tokens: Array  # i32[P, G, T]
    logprobs: Array  # f32[P, G, T]
    lengths: Array  # i32[P, G], tokens written by whomever, the end token included
    cache: Cache
    own: Array | None = None  # bool[P, G, T], the policy wrote it; None without an environment
    world: PyTree = None  # the environment's state


def make_sampler(
    policy: Policy,
    *,
    group_size: int,
    completion_length: int,
    end_ids: Sequence[int],
    pad_id: int,
    method: SamplingMethod | None = None,
    environment: Environment | None = None,
    stop_early: bool = True,
) -> Callable[..., Rollouts]:
    """A pure function sample(params, prompts: Prompts, key, row_ids=None) → Rollouts with B = P·group_size rows; with
    an `environment`, (Rollouts, its last state [P, G, …]).

    - A completion ends with the first of `end_ids` it draws (that token belongs to it, and is trained on) or after
      `completion_length` tokens; the loop ends when all have ended.
    - `behaviour_logprobs` are of the distribution that was drawn from (after temperature, top-k, top-p), nats.
    - Row r of the batch draws token t with the key (key, row_ids[r], t), row_ids i32[B], default 0 … B−1: what a row
      samples depends on its prompt and its id alone, not on its neighbours, the order or the number of devices.
    - Masks come from positions, never from token values: `pad_id` may equal an end id.
    - What an environment writes is attended to and has no part in anything else: `completion_mask` false,
      log-probability 0, not in the length. An end token it writes ends the row, which then counts as truncated.
    - `stop_early` false runs all `completion_length` steps: the same result, and the cheaper loop under `vmap`, where
      a loop that stops early must select between old and new states at every step.
    """
    method = method or SamplingMethod()
    length, group = completion_length, group_size
    if length < 1 or group < 1:
        raise ValueError(f"completion_length={length} and group_size={group} must both be at least 1")
    if len(method.temperatures) not in (1, group):
        raise ValueError(f"temperature={method.temperature}: give one, or one for each of {group} completions")

    def draw(params, hidden, keys, state: _Decoding) -> _Decoding:
        """The next token of every completion; rows that have ended stay as they are."""
        step_keys = jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, state.index)))(keys)
        token, logprob = method.next_token(policy.logits(params, hidden), step_keys)
        if environment is not None:
            state, token, logprob = _answer(environment, state, token, logprob)
        token = jnp.where(state.done, pad_id, token)
        logprob = jnp.where(state.done, 0.0, logprob)
        ended = jnp.isin(token, jnp.asarray(tuple(end_ids), jnp.int32))
        return state._replace(
            index=state.index + 1,
            token=token,
            done=state.done | ended,
            tokens=_put(state.tokens, token, state.index),
            logprobs=_put(state.logprobs, logprob, state.index),
            lengths=state.lengths + ~state.done,
        )

    def sample(params: PyTree, prompts: Prompts, key: Array, row_ids: Array | None = None) -> Rollouts:
        count = prompts.tokens.shape[0]
        rows = (count, group)
        row_ids = jnp.arange(count * group, dtype=jnp.int32) if row_ids is None else row_ids
        keys = row_keys(key, row_ids.reshape(rows))
        reading = policy.for_decoding(params)
        hidden, prompt_cache = policy.prefill(reading, prompts.tokens, prompts.mask)
        state = _before_the_first(policy, rows, length, pad_id)
        if environment is not None:
            world_keys = row_keys(jax.random.fold_in(key, WORLD), row_ids.reshape(rows))
            world = environment.start(prompts.prompt_id, world_keys)
            state = state._replace(own=jnp.zeros(state.tokens.shape, bool), world=world)
        state = draw(reading, jnp.broadcast_to(hidden[:, None], (*rows, hidden.shape[-1])), keys, state)

        def advance(state: _Decoding) -> _Decoding:
            hidden, cache = policy.decode(reading, state.token, state.index - 1, prompt_cache, state.cache)
            return draw(reading, hidden, keys, state._replace(cache=cache))

        more = lambda state: (state.index < length) & ~state.done.all()
        if stop_early:
            state = jax.lax.while_loop(more, advance, state)
        else:
            state = jax.lax.fori_loop(1, length, lambda _, state: advance(state), state)
        rollouts = _to_rollouts(prompts, state, group, jnp.isin(state.tokens, jnp.asarray(tuple(end_ids))))
        return rollouts if environment is None else (rollouts, state.world)

    return sample


def _before_the_first(policy: Policy, rows: tuple[int, int], length: int, pad_id: int) -> _Decoding:
    """Nothing decoded yet, for [P, G] rows."""
    return _Decoding(
        index=jnp.zeros((), jnp.int32),
        token=jnp.zeros(rows, jnp.int32),
        done=jnp.zeros(rows, bool),
        tokens=jnp.full((*rows, length), pad_id, jnp.int32),
        logprobs=jnp.zeros((*rows, length), jnp.float32),
        lengths=jnp.zeros(rows, jnp.int32),
        cache=policy.init_cache(*rows, length),
    )


def _put(written: Array, new: Array, index: Array) -> Array:
    """[P, G, T] with `new` [P, G] at token `index`."""
    return jax.lax.dynamic_update_slice_in_dim(written, new[..., None], index, axis=2)


def _answer(environment: Environment, state: _Decoding, token: Array, logprob: Array):
    """(state, token, log-probability) after the environment has written where it is its turn and seen what was
    written; the world of a row that has ended stands still."""
    forced = environment.forced(state.world)
    token, logprob = jnp.where(forced < 0, token, forced), jnp.where(forced < 0, logprob, 0.0)
    moved = environment.step(state.world, token)
    done = lambda x: state.done.reshape(state.done.shape + (1,) * (x.ndim - state.done.ndim))
    world = jax.tree.map(lambda old, new: jnp.where(done(old), old, new), state.world, moved)
    own = _put(state.own, (forced < 0) & ~state.done, state.index)
    return state._replace(own=own, world=world), token, logprob


def _to_rollouts(prompts: Prompts, state: _Decoding, group: int, is_end: Array) -> Rollouts:
    rows = state.lengths.size
    length = state.tokens.shape[-1]
    flat = lambda x: x.reshape(rows, *x.shape[2:])
    repeat = lambda x: jnp.repeat(x, group, axis=0, total_repeat_length=rows)
    attend = jnp.arange(length).reshape(1, length) < flat(state.lengths)[:, None]
    mask = attend if state.own is None else attend & flat(state.own)
    return Rollouts(
        tokens=jnp.concatenate([repeat(prompts.tokens), flat(state.tokens)], axis=1),
        prompt_mask=repeat(prompts.mask),
        completion_mask=mask,
        attend_mask=attend,
        behaviour_logprobs=jnp.where(mask, flat(state.logprobs), 0.0),
        finished=(flat(is_end) & mask).any(axis=-1),
        prompt_id=repeat(prompts.prompt_id),
    )
