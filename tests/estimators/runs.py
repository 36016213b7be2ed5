"""Both phases of an estimator as compiled functions, and random inputs for them."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.estimators import SLOTS, make_estimator
from rlvr_jax.types import Array, Batch, Groups

compiled = functools.partial(jax.jit, static_argnums=0)
P, G = 68, 64  # the shape of phase one that most tests share, so that each entry compiles once


class PhaseTwo(NamedTuple):
    weights: Array
    losses: Array
    loss: Array
    gradient: Array  # of the loss in the log-probabilities
    slope: dict  # of the loss in the estimator's parameters


def entry(name, phase=SLOTS, completion_length=10):
    """A catalogue entry; with `phase`, grpo with the entry's slots of that phase, so that equal ones compile
    once."""
    est = make_estimator(name, completion_length=completion_length)
    return est if phase == SLOTS else make_estimator("grpo", **{slot: est.slots[slot] for slot in phase})


def to_shape(groups: Groups) -> Groups:
    """The same groups among invalid ones, in the shape [P, G]."""
    p, g = groups.outcome.shape
    wide = lambda x: jnp.pad(x, ((0, P - p), (0, G - g))[: x.ndim])
    return jax.tree.map(wide, groups)


@compiled
def phase_one(est, groups, memory):
    """(selected groups, advantages, memory). Metrics are left out: they would double the time to compile."""
    return est.estimate(groups, memory)[:3]


def both_values_and_gradients(est, params, logprobs, batch) -> PhaseTwo:
    value = jax.value_and_grad(est.loss, argnums=(0, 1), has_aux=True)
    (loss, _), (slope, gradient) = value(params, logprobs, batch)
    losses, _ = est.token_losses(logprobs, batch)
    return PhaseTwo(est.token_weights(params, batch), losses, loss, gradient, slope)


phase_two = compiled(both_values_and_gradients)


def random_groups(seed, P=4, G=5, ragged=True, memory_rows=16) -> Groups:
    """Graded and binary outcomes, one constant group, and (ragged) invalid rows."""
    rng = np.random.default_rng(seed)
    outcome = rng.choice(np.float32([0.0, 0.3, 0.7, 1.0]), (P, G))
    outcome[0] = (np.arange(G) < 2).astype(np.float32)  # one group that has both classes
    outcome[1] = 0.3
    valid = rng.random((P, G)) < 0.8 if ragged else np.ones((P, G), bool)
    valid[0] = True
    return Groups(
        outcome=jnp.asarray(outcome),
        lengths=jnp.asarray(rng.integers(1, 9, (P, G)), jnp.int32),
        finished=jnp.asarray(rng.random((P, G)) < 0.7),
        stratum=jnp.asarray(rng.integers(0, 3, (P, G)), jnp.int32),
        valid=jnp.asarray(valid),
        prompt_id=jnp.asarray(rng.permutation(memory_rows)[:P], jnp.int32),
    )


def random_batch(seed, P=3, G=4, T=6) -> tuple[Array, Batch]:
    """(logprobs, batch): rows in any order, gaps in the masks, an invalid row, all four log-probabilities."""
    rng = np.random.default_rng(seed)
    B = P * G
    f32 = lambda x: jnp.asarray(x, jnp.float32)
    mask = rng.random((B, T)) < 0.7
    mask[:, 0] = True
    mask[3] = False  # a valid row without a token
    valid = np.ones(B, bool)
    valid[5] = False
    logprobs = -rng.exponential(1.0, (B, T))
    near = lambda scale: f32(logprobs + scale * rng.normal(size=(B, T)))
    batch = Batch(
        completion_mask=jnp.asarray(mask),
        advantages=f32(rng.choice([-1.0, -0.5, 0.0, 0.7, 1.5], B)),
        old_logprobs=near(0.3),
        behaviour_logprobs=near(0.4),
        reference_logprobs=near(0.5),
        group=jnp.asarray(rng.permutation(np.repeat(rng.permutation(1000)[:P], G)), jnp.int32),
        valid=jnp.asarray(valid),
    )
    return f32(logprobs), batch


def take_rows(batch: Batch, rows) -> Batch:
    return jax.tree.map(lambda x: x[rows], batch)


def assert_close(actual, expected, tolerance=1e-5):
    """Equal to within float32, relative and absolute."""
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
