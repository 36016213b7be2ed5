"""What an experiment is run on: prompts, what answers the policy, and the grades, all as array functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlvr_jax.means import Mean
from rlvr_jax.policy import Cell, Policy, from_cell
from rlvr_jax.sampling import Environment
from rlvr_jax.tasks import toy as toys
from rlvr_jax.tasks.demonstrators import demonstrate
from rlvr_jax.tasks.toy import Toy
from rlvr_jax.types import Array, Groups, Prompts, PyTree, Rollouts


class World(NamedTuple):
    """Pure functions; `dials` is data. Static under jit.

    - `prompts(dials, step i32[]) → Prompts`, the same for all runs of a block
    - `environment(dials, budget i32[]) → Environment`, or None
    - `grade(dials, prompts, rollouts, state) → Groups`; `valid` is true for the prompts that may be trained on
    - `measure(dials, groups, state) → {name: Mean}`, beyond what every run records
    - `count` prompts a step, `end_ids`, `pad_id`
    """

    prompts: Callable[[PyTree, Array], Prompts]
    environment: Callable[[PyTree, Array], Environment] | None
    grade: Callable[[PyTree, Prompts, Rollouts, PyTree], Groups]
    measure: Callable[[PyTree, Groups, PyTree], dict]
    count: int
    end_ids: tuple[int, ...]
    pad_id: int


def make_world(toy: Toy) -> World:
    """The world of a toy task."""

    def prompts(dials, step):
        index = jnp.arange(toy.size, dtype=jnp.int32)
        return Prompts(tokens=index[:, None], mask=jnp.ones((toy.size, 1), bool), prompt_id=index)

    def environment(dials, budget):
        def start(prompt_id, keys):
            pair = jax.vmap(jax.vmap(lambda key: jax.random.uniform(key, (2,))))(keys)
            prompt = jnp.broadcast_to(prompt_id[:, None], keys.shape)
            return toys.start(toy, dials, prompt, pair[..., 0], pair[..., 1], budget)

        return Environment(start, lambda state, token: toys.step(toy, dials, state, token), lambda state: state.pending)

    def grade(dials, prompts, rollouts, state):
        shape = state.answer.shape
        finished = rollouts.finished.reshape(shape)
        return Groups(
            outcome=toys.outcome(toy, dials, state, finished),
            lengths=rollouts.lengths.reshape(shape),
            finished=finished,
            stratum=toys.stratum(toy, state),
            valid=jnp.broadcast_to(prompts.prompt_id[:, None] < toy.prompts, shape),
            prompt_id=prompts.prompt_id,
        )

    def measure(dials, groups, state):
        trained, band = groups.valid, dials["band"][groups.prompt_id][:, None]
        means = {
            f"pass@1_{name}": Mean.of(groups.outcome, trained & (band == number))
            for number, name in enumerate(toy.bands)
        }
        if toy.kind == "lookup":
            return means
        means["calls"] = Mean.of(state.calls.astype(jnp.float32), trained)
        for number in range(4):
            means[f"pass@1_calls{number}"] = Mean.of(groups.outcome, trained & (groups.stratum == number))
        if toy.kind == "reason":
            reasoned = state.calls >= toy.calls
            for number, name in enumerate(toy.bands):
                means[f"reasoning_{name}"] = Mean.of(reasoned, trained & (band == number))
                means[f"pass@1_held_out_{name}"] = Mean.of(groups.outcome, ~trained & (band == number))
                means[f"reasoning_held_out_{name}"] = Mean.of(reasoned, ~trained & (band == number))
        return means

    return World(prompts, environment, grade, measure, count=toy.size, end_ids=(toys.END,), pad_id=toys.END)


def make_demonstrator(toy: Toy) -> Policy:
    """The task's demonstrator as a policy whose parameters are the dials; it reads tokens with the task's automaton."""

    def start(dials, prompt):
        nothing = jnp.zeros(prompt.shape, jnp.float32)
        return toys.start(toy, dials, prompt, nothing, nothing, jnp.iinfo(jnp.int32).max)

    return from_cell(
        Cell(
            init=lambda key: jax.tree.map(jnp.asarray, toy.dials),
            start=start,
            step=lambda dials, state, token: toys.step(toy, dials, state, token),
            read=lambda dials, state: demonstrate(toy, dials, state),
            logits=lambda dials, hidden: hidden,
        ),
        toy,
    )
