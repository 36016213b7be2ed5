"""Prompts in, rollouts out: each prompt is read once for its whole group, completions are decoded together, and the
loop is kept full: rows that have ended make room for those that wait, or the loop goes on with fewer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlvr_jax.masked import choose_rows
from rlvr_jax.policy import Policy
from rlvr_jax.rng import row_keys
from rlvr_jax.sampling.methods import SamplingMethod
from rlvr_jax.sampling.stops import StopStrings
from rlvr_jax.types import Array, Prompts, PyTree, Rollouts

WORLD = 0x77  # folded into the key that rows' environments draw with, so that they share no number with tokens


class Environment(NamedTuple):
    """What answers the policy while it writes: a tool whose observations are forced into the completion, or only a
    listener. A state is a pytree of arrays [P, G, …].

    - `start(prompt_id i32[P], keys[P, G]) → state` before the first token; one key a row for what it draws
    - `step(state, token i32[P, G]) → state` after each token, whoever wrote it; not called for rows that ended
    - `forced(state) → i32[P, G]`: the token the environment writes next, −1 where it is the policy's turn

    Rows are independent: a row's state may depend on its prompt, its key and its tokens alone.
    """

    start: Callable
    step: Callable
    forced: Callable


class Written(NamedTuple):
    """What rows have written so far; [rows…, T], or None where it can be had from another part."""

    tokens: Array  # i32
    logprobs: Array  # f32, of the distribution that was drawn from
    full: Array | None  # f32, of the whole vocabulary; None: the same
    own: Array | None  # bool, the policy wrote it; None without an environment


class Row(NamedTuple):
    """What decoding knows of each row [rows…] between two tokens."""

    token: Array  # i32, the newest
    length: Array  # i32, tokens written by whomever, the end token included
    done: Array  # bool
    finished: Array  # bool, done by a token of the policy's own
    stop: Array | None  # i32, state of the stop strings' automaton
    world: PyTree = None  # the environment's state [rows…, …]


def make_sampler(
    policy: Policy,
    *,
    group_size: int,
    completion_length: int,
    end_ids: Sequence[int],
    pad_id: int,
    method: SamplingMethod | None = None,
    environment: Environment | None = None,
    stops: StopStrings | None = None,
    rows_at_once: int = 0,
    narrowings: int = 0,
    stop_early: bool = True,
) -> Callable[..., Rollouts]:
    """A pure function sample(params, prompts: Prompts, key, row_ids=None) → Rollouts with B = P·group_size rows; with
    an `environment`, (Rollouts, its last state [P, G, …]).

    - A completion ends with the first of `end_ids` it draws, or the token that completes one of `stops` (that token
      belongs to it, and is trained on), or after `completion_length` tokens; the loop ends when all have ended.
    - `behaviour_logprobs` are of the distribution that was drawn from (after temperature, top-k, top-p, min-p), nats.
      `full_logprobs` are log softmax(logits / temperature) over the whole vocabulary, what a learner computes by
      teacher forcing (temperature 0 counts as 1). The same numbers where nothing is cut.
    - Row r of the batch draws token t with the key (key, row_ids[r], t), row_ids i32[B], default 0 … B−1: what a row
      samples depends on its prompt and its id alone, not on its neighbours, the order, the number of devices, or
      when it was its turn.
    - Masks come from positions, never from token values: `pad_id` may equal an end id.
    - What an environment writes is attended to and has no part in anything else: `completion_mask` false,
      log-probability 0, not in the length. An end token it writes ends the row, which then counts as truncated.

    How it runs, which changes no result:

    - `rows_at_once` (0: all) rows are decoded together; the others wait, and take the places of those that ended
      (continuous batching). Each place has a cache of prompt + completion; a prompt is still read once.
    - Once none waits, the loop is narrowed to half its rows when half have ended, up to `narrowings` times. Each
      narrowing is one more compiled loop.
    - `stop_early` false runs all `completion_length` steps: the cheaper loop under `vmap`, where a loop that stops
      early must select between old and new states at every step.

    Raises:
      ValueError: sizes below 1, a temperature per member that is not one for each, or rows in turns where the loop
        may not stop early or the policy cannot move rows.
    """
    if completion_length < 1 or group_size < 1:
        raise ValueError(f"completion_length={completion_length} and group_size={group_size} must both be at least 1")
    method = method or SamplingMethod()
    if len(method.temperatures) not in (1, group_size):
        raise ValueError(f"temperature={method.temperature}: give one, or one for each of {group_size} completions")
    if rows_at_once < 0 or narrowings < 0:
        raise ValueError(f"rows_at_once={rows_at_once} and narrowings={narrowings} must not be negative")
    if (rows_at_once or narrowings) and not stop_early:
        raise ValueError(
            f"stop_early=False runs every row to the end: rows_at_once={rows_at_once} and "
            f"narrowings={narrowings} must be 0"
        )
    if (rows_at_once or narrowings) and policy.gather is None:
        raise ValueError(
            f"rows_at_once={rows_at_once}, narrowings={narrowings}: the policy has no gather and refill; both must be 0"
        )
    step = _Step(policy, method, environment, stops, tuple(end_ids), pad_id, completion_length, group_size)

    def sample(params: PyTree, prompts: Prompts, key: Array, row_ids: Array | None = None) -> Rollouts:
        count = prompts.tokens.shape[0] * group_size
        row_ids = jnp.arange(count, dtype=jnp.int32) if row_ids is None else row_ids
        work = _Work(policy.for_decoding(params), prompts, key, row_ids)
        hidden, prompt_cache = policy.prefill(work.params, prompts.tokens, prompts.mask)
        places = min(rows_at_once or count, count)
        widths = list(dict.fromkeys(places >> k for k in range(1, narrowings + 1) if places >> k))
        if places == count:
            written, rows = _together(step, work, hidden, prompt_cache, widths, stop_early)
        else:
            written, rows = _in_turns(step, work, hidden, prompt_cache, places, widths)
        rollouts = _to_rollouts(prompts, written, rows, group_size)
        shape = (prompts.tokens.shape[0], group_size)
        of_group = lambda x: x.reshape(*shape, *x.shape[1:])
        return rollouts if environment is None else (rollouts, jax.tree.map(of_group, rows.world))

    return sample


class _Work(NamedTuple):
    """What one call samples."""

    params: PyTree
    prompts: Prompts
    key: Array
    row_ids: Array  # i32[B]


class _Step(NamedTuple):
    """How one token follows another: everything of a sampler that is the same whichever way it runs."""

    policy: Policy
    method: SamplingMethod
    environment: Environment | None
    stops: StopStrings | None
    end_ids: tuple[int, ...]
    pad_id: int
    length: int
    group: int

    def begin(self, work: _Work, prompt_id: Array, row_ids: Array) -> Row:
        """Rows [P', G'] with nothing written, of prompts `prompt_id` [P']."""
        none = jnp.zeros(row_ids.shape, jnp.int32)
        world = None
        if self.environment is not None:
            world = self.environment.start(prompt_id, row_keys(jax.random.fold_in(work.key, WORLD), row_ids))
        stop = None if self.stops is None else none
        return Row(none, none, none > 0, none > 0, stop, world)

    def blank(self, rows: tuple[int, ...]) -> Written:
        """Nothing written, for rows of this shape."""
        shape = (*rows, self.length)
        zeros = lambda: jnp.zeros(shape, jnp.float32)
        return Written(
            tokens=jnp.full(shape, self.pad_id, jnp.int32),
            logprobs=zeros(),
            full=None if self.method.plain else zeros(),
            own=None if self.environment is None else jnp.zeros(shape, bool),
        )

    def draw(self, work: _Work, hidden: Array, keys: Array, index: Array, rows: Row, members: Array | None = None):
        """(rows after token number `index` i32[] or i32[rows…], what each wrote [rows…]). Rows that are done stay as
        they are."""
        fold = lambda key, number: jax.random.fold_in(key, number)
        step_keys = jax.vmap(jax.vmap(fold))(keys, jnp.broadcast_to(index, keys.shape))
        token, logprob, full = self.method.draw(self.policy.logits(work.params, hidden), step_keys, members)
        own = jnp.ones(token.shape, bool)
        if self.environment is not None:
            forced = self.environment.forced(rows.world)
            own = forced < 0
            token, logprob, full = jnp.where(own, token, forced), jnp.where(own, logprob, 0), jnp.where(own, full, 0)
            moved = self.environment.step(rows.world, token)
            rows = rows._replace(world=choose_rows(rows.done, rows.world, moved))
        token = jnp.where(rows.done, self.pad_id, token)
        logprob, full = jnp.where(rows.done, 0.0, logprob), jnp.where(rows.done, 0.0, full)
        ended = jnp.isin(token, jnp.asarray(self.end_ids, jnp.int32))
        if self.stops is not None:
            table = jnp.asarray(self.stops.table)
            stop = jnp.where(own, table[rows.stop, token].astype(jnp.int32), 0)
            ended = ended | (stop == StopStrings.END)
            rows = rows._replace(stop=jnp.maximum(stop, 0))
        rows = rows._replace(
            token=token,
            length=rows.length + ~rows.done,
            done=rows.done | ended | (index + 1 >= self.length),
            finished=rows.finished | (ended & own & ~rows.done),
        )
        none = lambda part, value: None if part else value
        return rows, Written(token, logprob, none(self.method.plain, full), none(self.environment is None, own))


def _together(step: _Step, work: _Work, hidden: Array, prompt_cache: PyTree, widths: Sequence[int], stop_early: bool):
    """All rows at the same token, the completions of a group reading one cache of their prompt: (Written [B, T], Row
    [B])."""
    policy, shape = step.policy, (hidden.shape[0], step.group)
    row_ids = work.row_ids.reshape(shape)
    keys = row_keys(work.key, row_ids)
    put = lambda written, new, index: jax.tree.map(
        lambda all_, one: jax.lax.dynamic_update_slice_in_dim(all_, one[..., None], index, axis=2), written, new
    )

    def write(hidden, index, written, rows, cache):
        was_done = rows.done
        rows, new = step.draw(work, hidden, keys, index, rows)
        if new.own is not None:
            new = new._replace(own=new.own & ~was_done)
        return index + 1, put(written, new, index), rows, cache

    def advance(state):
        index, written, rows, cache = state
        hidden, cache = policy.decode(work.params, rows.token, index - 1, prompt_cache, cache)
        return write(hidden, index, written, rows, cache)

    rows = step.begin(work, work.prompts.prompt_id, row_ids)
    first = jnp.broadcast_to(hidden[:, None], (*shape, hidden.shape[-1]))
    cache = policy.init_cache(*shape, step.length)
    state = write(first, jnp.zeros((), jnp.int32), step.blank(shape), rows, cache)
    fewest = widths[0] if widths else 0
    if stop_early:
        state = jax.lax.while_loop(lambda state: (~state[2].done).sum() > fewest, advance, state)
    else:
        state = jax.lax.fori_loop(1, step.length, lambda _, state: advance(state), state)
    _, written, rows, cache = state
    written, rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (written, rows))
    if not widths:
        return written, rows
    row = jnp.argsort(rows.done, stable=True)[:fewest].astype(jnp.int32)
    slots = _Slots(row, _pick(rows, row), *policy.gather(prompt_cache, cache, row))
    return _narrowing(step, work, slots, written, rows, widths)


class _Slots(NamedTuple):
    """Places [R] of a loop, each with the row it decodes and what decoding it needs."""

    row: Array  # i32[R], its number in the batch
    state: Row  # [R, 1]
    prompt: PyTree
    cache: PyTree


def _pick(rows: Row, row: Array) -> Row:
    """Rows [R, 1] out of rows [B]."""
    return jax.tree.map(lambda x: x[row][:, None], rows)


def _put(rows: Row, slots: _Slots) -> Row:
    """Rows [B] with what the slots know of theirs."""
    return jax.tree.map(lambda all_, some: all_.at[slots.row].set(some[:, 0]), rows, slots.state)


def _advance(step: _Step, work: _Work, slots: _Slots, written: Written, hidden: Array | None = None):
    """(slots, written [B, T]) one token further; `hidden` [R, 1, D] is what the token is drawn from, by default what
    follows from the newest one. Rows that are done write nothing."""
    state, prompt, cache = slots.state, slots.prompt, slots.cache
    if hidden is None:
        hidden, cache = step.policy.decode(work.params, state.token, state.length - 1, prompt, cache)
    keys = row_keys(work.key, work.row_ids[slots.row])[:, None]
    members = (slots.row % step.group)[:, None]
    moved, new = step.draw(work, hidden, keys, state.length, state, members)
    row = jnp.where(state.done[:, 0], len(work.row_ids), slots.row)  # beyond the last: dropped
    place = state.length[:, 0]
    written = jax.tree.map(lambda all_, one: all_.at[row, place].set(one[:, 0], mode="drop"), written, new)
    return _Slots(slots.row, moved, prompt, cache), written


def _narrowed(step: _Step, slots: _Slots, width: int) -> _Slots:
    """`width` of the slots, all that are not done among them."""
    order = jnp.argsort(slots.state.done[:, 0], stable=True)[:width].astype(jnp.int32)
    kept = jax.tree.map(lambda x: x[order], (slots.row, slots.state))
    return _Slots(*kept, *step.policy.gather(slots.prompt, slots.cache, order))


def _narrowing(step: _Step, work: _Work, slots: _Slots, written: Written, rows: Row, widths: Sequence[int]):
    """Decodes what `slots` hold to the end; widths[0] is their number, each next one is gone on with as soon as it
    suffices."""
    for fewest in (*widths[1:], 0):
        slots, written = jax.lax.while_loop(
            lambda state, fewest=fewest: (~state[0].state.done).sum() > fewest,
            lambda state: _advance(step, work, *state),
            (slots, written),
        )
        rows = _put(rows, slots)
        if fewest:
            slots = _narrowed(step, slots, fewest)
    return written, rows


def _in_turns(step: _Step, work: _Work, hidden: Array, prompt_cache: PyTree, places: int, widths: Sequence[int]):
    """`places` rows at once; the next rows take the places of those that have ended: (Written [B, T], Row [B])."""
    policy, count = step.policy, len(work.row_ids)
    enough = max(1, places // 8)  # places that wait before they are filled together: filling has a price
    fewest = widths[0] if widths else 0
    first = jnp.arange(places, dtype=jnp.int32)
    prompt_ids = work.prompts.prompt_id
    rows = step.begin(work, jnp.repeat(prompt_ids, step.group), work.row_ids[:, None])
    rows = jax.tree.map(lambda x: x[:, 0], rows)
    empty = policy.init_cache(hidden.shape[0], 1, step.length)
    idle = _pick(rows, first)._replace(done=jnp.ones((places, 1), bool))
    slots = _Slots(first, idle, *policy.gather(prompt_cache, empty, first // step.group))

    def fill(slots, written, rows, waiting):
        """The next rows in the places that are free, with their first token."""
        rows = jax.lax.cond(waiting > 0, lambda: _put(rows, slots), lambda: rows)
        free = slots.state.done[:, 0]
        number = waiting + jnp.cumsum(free, dtype=jnp.int32) - 1
        fresh = free & (number < count)
        row = jnp.where(fresh, number, slots.row)
        which = row // step.group
        state = choose_rows(fresh[:, None], _pick(rows, row), slots.state)
        prompt, cache = policy.refill(prompt_cache, which, fresh, slots.prompt, slots.cache)
        others = state._replace(done=~fresh[:, None])
        begun, written = _advance(step, work, _Slots(row, others, prompt, cache), written, hidden[which][:, None])
        state = choose_rows(fresh[:, None], begun.state, state)
        return _Slots(row, state, prompt, cache), written, rows, waiting + fresh.sum(dtype=jnp.int32)

    def busy(slots):
        return (~slots.state.done).sum()

    def turn(state):
        slots, written, rows, waiting = fill(*state)
        more = waiting < count

        def goes_on(state):
            free = places - busy(state[0])
            return jnp.where(more, free < enough, busy(state[0]) > fewest)

        slots, written = jax.lax.while_loop(goes_on, lambda s: _advance(step, work, *s), (slots, written))
        return slots, written, rows, waiting

    begin = (slots, step.blank((count,)), rows, jnp.zeros((), jnp.int32))
    unfinished = lambda state: (state[3] < count) | (busy(state[0]) > fewest)
    slots, written, rows, _ = jax.lax.while_loop(unfinished, turn, begin)
    rows = _put(rows, slots)
    if not widths:
        return written, rows
    return _narrowing(step, work, _narrowed(step, slots, fewest), written, rows, widths)


def _to_rollouts(prompts: Prompts, written: Written, rows: Row, group: int) -> Rollouts:
    count, length = written.tokens.shape
    repeat = lambda x: jnp.repeat(x, group, axis=0, total_repeat_length=count)
    attend = jnp.arange(length).reshape(1, length) < rows.length[:, None]
    mask = attend if written.own is None else attend & written.own
    behaviour = jnp.where(mask, written.logprobs, 0.0)
    return Rollouts(
        tokens=jnp.concatenate([repeat(prompts.tokens), written.tokens], axis=1),
        prompt_mask=repeat(prompts.mask),
        completion_mask=mask,
        attend_mask=attend,
        behaviour_logprobs=behaviour,
        full_logprobs=behaviour if written.full is None else jnp.where(mask, written.full, 0.0),
        finished=rows.finished,
        prompt_id=repeat(prompts.prompt_id),
    )
