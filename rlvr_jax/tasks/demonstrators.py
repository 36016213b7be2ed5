"""Scripted demonstrators of the toy tasks: what a policy is warm-started from.

Each is (toy, dials, state) → logits f32[..., V] of the next token. They see the tokens so far and, in "lookup", the
label of the prompt; the dials say what they do with it.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rlvr_jax.tasks.toy import CALL, END, THINK, VOCABULARY, State, Toy
from rlvr_jax.types import Array, PyTree

NEVER = -30.0  # log-probability of what a demonstrator does not do


def demonstrate(toy: Toy, dials: PyTree, state: State) -> Array:
    """What the demonstrator writes next; it sees the tokens so far and, in "lookup", the label of the prompt."""
    return jax.nn.log_softmax(_DEMONSTRATORS[toy.kind](toy, dials, state), axis=-1)


def _uniform_digits(options: Array) -> Array:
    """f32[..., V]: the first `options` digits, alike."""
    tokens = jnp.arange(VOCABULARY)
    inside = tokens.reshape((1,) * options.ndim + (-1,)) < options[..., None]
    return inside / jnp.maximum(options, 1)[..., None]


def _lookup(toy: Toy, dials: PyTree, state: State) -> Array:
    """Thinks a little, answers (right at the prompt's rate, else another option), rambles, and ends: sooner after a
    right answer than after a wrong one when `stop_right` > `stop_wrong`."""
    rate, options = dials["rate"][state.prompt], dials["options"][state.prompt]
    right = jax.nn.one_hot(state.label, VOCABULARY)
    others = _uniform_digits(options) * (1 - right)
    others = others / jnp.maximum(others.sum(axis=-1, keepdims=True), 1e-9)
    answer = rate[..., None] * right + (1 - rate[..., None]) * others
    think = jax.nn.one_hot(THINK, VOCABULARY)
    hesitate = dials["hesitate"]
    before = hesitate * _like(think, answer) + (1 - hesitate) * answer
    stop = jnp.where(state.answer == state.label, dials["stop_right"], dials["stop_wrong"])[..., None]
    after = stop * _like(jax.nn.one_hot(END, VOCABULARY), answer) + (1 - stop) * _like(think, answer)
    return jnp.log(jnp.maximum(jnp.where(state.answer[..., None] < 0, before, after), jnp.exp(NEVER)))


def _like(vector: Array, shape: Array) -> Array:
    return jnp.broadcast_to(vector.reshape((1,) * (shape.ndim - 1) + (-1,)), shape.shape)


def _answering(state: State, distribution: Array) -> Array:
    """The distribution while no answer stands, END afterwards; as logits."""
    end = _like(jax.nn.one_hot(END, VOCABULARY), distribution)
    return jnp.log(jnp.maximum(jnp.where(state.answer[..., None] < 0, distribution, end), jnp.exp(NEVER)))


def _reason(toy: Toy, dials: PyTree, state: State) -> Array:
    """With probability `share` calls until the label is shown and copies it with probability `skill` (else guesses);
    otherwise guesses at once."""
    options = dials["options"][state.prompt]
    guess = _uniform_digits(options)
    call = _like(jax.nn.one_hot(CALL, VOCABULARY), guess)
    share, skill = dials["share"], dials["skill"]
    shown = jax.nn.one_hot(jnp.maximum(state.seen, 0), VOCABULARY)
    informed = skill * shown + (1 - skill) * guess
    first = share * call + (1 - share) * guess
    calls = state.calls[..., None]
    return _answering(state, jnp.where(calls >= toy.calls, informed, jnp.where(calls == 0, first, call)))


def _tools(toy: Toy, dials: PyTree, state: State) -> Array:
    """Zero, one or two calls in the proportions `mix`; then the first option, the observation, or (at the rate `skill`)
    the decoded observation."""
    options = dials["options"][state.prompt]
    guess = _uniform_digits(options)
    call = _like(jax.nn.one_hot(CALL, VOCABULARY), guess)
    first = _like(jax.nn.one_hot(0, VOCABULARY), guess)
    copied = jax.nn.one_hot(jnp.maximum(state.seen, 0), VOCABULARY)
    decoded = jax.nn.one_hot(jnp.maximum(state.seen - 5, 0), VOCABULARY)
    missed = guess * (1 - decoded)
    missed = missed / jnp.maximum(missed.sum(axis=-1, keepdims=True), 1e-9)
    decoded = dials["skill"] * decoded + (1 - dials["skill"]) * missed
    zero, one, two = dials["mix"][0], dials["mix"][1], dials["mix"][2]
    again = two / jnp.maximum(one + two, 1e-9)
    calls = state.calls[..., None]
    distribution = jnp.where(
        calls == 0,
        zero * first + (1 - zero) * call,
        jnp.where(calls == 1, again * call + (1 - again) * copied, decoded),
    )
    return _answering(state, distribution)


def _search(toy: Toy, dials: PyTree, state: State) -> Array:
    """Tries a digit (an untried one with probability `memory`, else any) and is told whether it is right; ends then, or
    gives up after a wrong one with probability `give_up`."""
    options = dials["options"][state.prompt]
    any_digit = _uniform_digits(options)
    tokens = _like(jnp.arange(VOCABULARY), any_digit)
    tried = ((state.tried[..., None] >> jnp.minimum(tokens, 10)) & 1) == 1
    fresh = jnp.where(tried, 0.0, any_digit)
    left = fresh.sum(axis=-1, keepdims=True)
    fresh = jnp.where(left > 0, fresh / jnp.maximum(left, 1e-9), any_digit)
    attempt = dials["memory"] * fresh + (1 - dials["memory"]) * any_digit
    stop = jnp.where(state.calls == 0, 0.0, jnp.where(state.seen == 1, dials["stop_right"], dials["give_up"]))
    end = _like(jax.nn.one_hot(END, VOCABULARY), attempt)
    distribution = stop[..., None] * end + (1 - stop[..., None]) * attempt
    return jnp.log(jnp.maximum(distribution, jnp.exp(NEVER)))


_DEMONSTRATORS: dict[str, Callable] = {"lookup": _lookup, "reason": _reason, "tools": _tools, "search": _search}
