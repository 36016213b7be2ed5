"""Recurrent policies behind the same door as the decoder: a gated recurrent unit small enough for whole experiments
inside one jit, and any other state machine that turns tokens into logits (a scripted demonstrator, for one)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlvr_jax.masked import choose_rows
from rlvr_jax.policy.policy import Policy, to_policy
from rlvr_jax.types import Array, PyTree


class Cell(NamedTuple):
    """A state machine over tokens; a state is a pytree of arrays [rows…] or [rows…, size].

    - `init(key) → params`
    - `start(params, token i32[...]) → state` after the first token of a prompt
    - `step(params, state, tokens i32[...]) → state` after one more token
    - `read(params, state) → hidden [..., D]`
    - `logits(params, hidden [..., D]) → f32[..., V]`
    """

    init: Callable
    start: Callable
    step: Callable
    read: Callable
    logits: Callable


def _first(tokens: Array, real: Array) -> tuple[Array, Array]:
    """(the first real token of each row [B], where it stands bool[B, S])."""
    place = jnp.argmax(real, axis=-1)
    here = jnp.arange(tokens.shape[-1])[None] == place[:, None]
    return (tokens * here).sum(axis=-1), here & real


class _Recurrent:
    """The functions of one cell; its methods are what a Policy holds."""

    def __init__(self, cell: Cell):
        self.cell = cell

    def _scan(self, params: PyTree, tokens: Array, segments: Array, collect: bool):
        """(state after the last token, hidden [B, S, D] or None). Segments as in `policy.visible`: the prompt is 1,
        and every later segment goes on from the prompt's last state."""
        cell = self.cell
        token, first = _first(tokens, segments > 0)
        start = cell.start(params, token)
        before = jnp.concatenate([segments[:, :1], segments[:, :-1]], axis=1)

        @jax.checkpoint  # the gates of all tokens do not fit a processor's cache: computing them again is faster
        def advance(carry, inputs):
            state, prompt = carry
            token, segment, previous, begins = inputs
            state = choose_rows((segment > 1) & (segment != previous), prompt, state)
            moved = choose_rows(begins, start, cell.step(params, state, token))
            state = choose_rows(segment > 0, moved, state)
            prompt = choose_rows(segment == 1, state, prompt)
            return (state, prompt), cell.read(params, state) if collect else None

        in_time = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), (tokens, segments, before, first))
        (state, _), hidden = jax.lax.scan(advance, (start, start), in_time)
        return state, jnp.moveaxis(hidden, 0, 1) if collect else None

    def init(self, key: Array) -> PyTree:
        return self.cell.init(key)

    def apply(self, params: PyTree, tokens: Array, positions: Array, segments: Array, completions=None) -> Array:
        return self._scan(params, tokens, segments, collect=True)[1]

    def logits(self, params: PyTree, hidden: Array) -> Array:
        return self.cell.logits(params, hidden).astype(jnp.float32)

    def prefill(self, params: PyTree, tokens: Array, mask: Array) -> tuple[Array, PyTree]:
        state, _ = self._scan(params, tokens, mask.astype(jnp.int32), collect=False)
        return self.cell.read(params, state), state

    def init_cache(self, prompts: int, group: int, length: int) -> PyTree:
        """States of the right shapes; what is in them is not used: token 0 goes on from the prompt's state."""
        start = lambda key: self.cell.start(self.cell.init(key), jnp.zeros((prompts, group), jnp.int32))
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(start, jax.random.key(0)))

    def decode(self, params: PyTree, tokens: Array, index: Array, prompt: PyTree, cache: PyTree):
        begins = jnp.broadcast_to(index == 0, tokens.shape)
        state = choose_rows(begins, jax.tree.map(lambda shared: shared[:, None], prompt), cache)
        state = self.cell.step(params, state, tokens)
        return self.cell.read(params, state), state

    def for_decoding(self, params: PyTree) -> PyTree:
        return params

    def gather(self, prompt: PyTree, cache: PyTree, rows: Array) -> tuple[PyTree, PyTree]:
        group = jax.tree.leaves(cache)[0].shape[1]
        flat = lambda x: x.reshape(-1, *x.shape[2:])[rows][:, None]
        return jax.tree.map(lambda x: x[rows // group], prompt), jax.tree.map(flat, cache)

    def refill(self, source: PyTree, which: Array, fresh: Array, prompt: PyTree, cache: PyTree):
        """Token 0 goes on from the prompt's state, so only that is replaced."""
        return choose_rows(fresh, jax.tree.map(lambda x: x[which], source), prompt), cache


def from_cell(cell: Cell, architecture=None) -> Policy:
    """The policy of a state machine; `architecture` is whatever describes it."""
    return to_policy(architecture, _Recurrent(cell))


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentArchitecture:
    """Sizes of a gated recurrent unit (Cho et al. 2014, 1406.1078). With `prompts` > 0 the first token of a prompt
    is a number below it that selects a learned initial state; with 0 it is a token like any other."""

    vocabulary: int
    width: int = 32
    prompts: int = 0

    def parameter_count(self) -> int:
        gates = 3 * self.width * (self.vocabulary + self.width + 1)
        return gates + self.width * self.prompts + (self.width + 1) * self.vocabulary


def make_recurrent_policy(architecture: RecurrentArchitecture) -> Policy:
    """A gated recurrent unit:

        r, z = σ(x + U h),  n = tanh(x + r ⊙ (U h)),  h ← (1 − z) ⊙ n + z ⊙ h,  logits = W h + b

    with x the token's row of a table, one part for each of r, z and n. Tokens enter by one-hot products: their
    backward pass is a product too, where a lookup's is a scatter, slow on every backend at these sizes.
    """
    vocabulary, width, prompts = architecture.vocabulary, architecture.width, architecture.prompts

    def init(key: Array) -> PyTree:
        names = {"tokens": (vocabulary, 3 * width), "state": (width, 3 * width), "head": (width, vocabulary)}
        if prompts:
            names["prompts"] = (prompts, width)
        scales = {"tokens": 1.0, "state": width**-0.5, "head": width**-0.5, "prompts": 1.0}
        keys = dict(zip(names, jax.random.split(key, len(names))))
        params = {name: scales[name] * jax.random.normal(keys[name], shape) for name, shape in names.items()}
        return {**params, "gates": jnp.zeros((3 * width,)), "head_bias": jnp.zeros((vocabulary,))}

    def start(params, tokens):
        if prompts:
            return jnp.tanh(jax.nn.one_hot(tokens, prompts) @ params["prompts"])
        return step(params, jnp.zeros((*tokens.shape, width)), tokens)

    def step(params, state, tokens):
        bias = params["gates"].reshape((1,) * tokens.ndim + (-1,))
        x = jax.nn.one_hot(tokens, vocabulary) @ params["tokens"] + bias
        recurrent = state @ params["state"]
        r, z = jnp.split(0.5 + 0.5 * jnp.tanh(0.5 * (x + recurrent)[..., : 2 * width]), 2, axis=-1)  # σ, as a tanh
        new = jnp.tanh(x[..., 2 * width :] + r * recurrent[..., 2 * width :])
        return new + z * (state - new)

    def logits(params, hidden):
        return hidden @ params["head"] + params["head_bias"].reshape((1,) * (hidden.ndim - 1) + (-1,))

    return from_cell(Cell(init, start, step, lambda params, state: state, logits), architecture)
