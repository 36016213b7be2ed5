"""Gradients of many estimators are those of the training step, however rows are cut; norms, cosines and factors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from rlvr_jax.diagnose.gradients import make_gradients
from rlvr_jax.estimators import make_estimator
from rlvr_jax.estimators.base import to_groups, to_rows
from rlvr_jax.types import Groups, TrainState
from rlvr_jax.update import make_update

pytestmark = pytest.mark.usefixtures("quick_compiles")
NAMES = ("grpo", "dr_grpo", "dapo", "e3")
ESTIMATORS = [make_estimator(name, completion_length=4) for name in NAMES]
POLICY, PARAMS = tiny.make(layers=2)
PROMPTS, GROUP = 4, 4


@functools.cache
def batch_and_groups(seed=0):
    """Ragged rows; two groups with contrast, one all right, one all wrong."""
    batch = tiny.random_batch(seed, prompts=PROMPTS, group=GROUP)
    outcome = jnp.asarray([[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 1]], jnp.float32)
    lengths = to_groups(batch.completion_mask.sum(-1), batch.group, GROUP)
    return batch, Groups(outcome=outcome, lengths=lengths, valid=to_groups(batch.valid, batch.group, GROUP))


@functools.cache
def found(**options):
    batch, groups = batch_and_groups()
    return jax.jit(make_gradients(POLICY, ESTIMATORS, keep=True, **options))(PARAMS, groups, batch)


def test_gradients_are_those_of_the_training_step():
    batch, groups = batch_and_groups()
    descent = optax.sgd(1.0)  # parameters after a step are the old ones minus the gradient
    place = NAMES.index("dapo")  # which drops groups
    estimator = ESTIMATORS[place]
    selected, advantages, _, _ = estimator.estimate(groups, estimator.init_memory(PROMPTS))
    given = batch.replace(
        advantages=to_rows(advantages, batch.group), valid=batch.valid & to_rows(selected.valid, batch.group)
    )
    params = {"policy": PARAMS, "estimator": estimator.init_params()}
    state = TrainState(step=jnp.zeros((), jnp.int32), params=params, opt_state=descent.init(params), memory={})
    new, metrics = jax.jit(make_update(POLICY, estimator, descent))(state, given)
    gradient = jax.tree.map(jnp.subtract, PARAMS, new.params["policy"])
    mine = jax.tree.map(lambda x, n=place: x[n], found().gradients)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), mine, gradient)
    assert float(found().norms[place]) == pytest.approx(float(metrics["gradient_norm"].compute()), rel=1e-4)
    assert float(found().losses[place]) == pytest.approx(float(metrics["loss"].compute()), abs=1e-6)


CUT = {"micro_batch_rows": 8, "completions_per_row": 4, "reference": 2}


def test_how_rows_are_cut_changes_nothing():
    whole, cut = found(), found(**CUT)
    np.testing.assert_allclose(cut.norms, whole.norms, rtol=1e-4)
    np.testing.assert_allclose(cut.cosines, whole.cosines, atol=1e-4)
    np.testing.assert_allclose(cut.losses, whole.losses, atol=1e-6)


def test_norms_cosines_and_layers_by_hand():
    flat = np.concatenate(
        [np.asarray(x, np.float64).reshape(len(NAMES), -1) for x in jax.tree.leaves(found().gradients)], 1
    )
    norms = np.linalg.norm(flat, axis=1)
    np.testing.assert_allclose(found().norms, norms, rtol=1e-5)
    np.testing.assert_allclose(found().cosines, flat @ flat.T / norms[:, None] / norms[None], atol=1e-5)
    squares = sum(np.square(np.asarray(value, np.float64)) for value in found().layer_norms.values())
    np.testing.assert_allclose(np.sqrt(squares), norms, rtol=1e-5)
    assert {"blocks/0", "blocks/1", "embed"} <= set(found().layer_norms)


def test_factors_match_the_norms():
    np.testing.assert_allclose(found().norms * found().factors, np.full(len(NAMES), found().norms[0]), rtol=1e-5)
    other = found(**CUT)
    np.testing.assert_allclose(other.norms * other.factors, np.full(len(NAMES), other.norms[2]), rtol=1e-5)


def test_the_same_estimator_by_two_names_points_the_same_way():
    assert float(found().cosines[NAMES.index("grpo"), NAMES.index("e3")]) == pytest.approx(1, abs=1e-5)
    assert float(found().cosines[NAMES.index("grpo"), NAMES.index("dr_grpo")]) < 0.9999


def test_without_contrast_there_is_no_gradient_and_nothing_is_divided_by_it():
    batch, groups = batch_and_groups()
    same = groups.replace(outcome=jnp.ones_like(groups.outcome), rewards=jnp.ones_like(groups.outcome))
    none = jax.jit(make_gradients(POLICY, ESTIMATORS[:1]))(PARAMS, same, batch)
    for value in (none.norms, none.cosines, none.factors):
        assert (np.asarray(value) == 0).all()
    assert none.gradients is None


def test_refusals():
    with pytest.raises(ValueError, match="at least one"):
        make_gradients(POLICY, [])
    with pytest.raises(ValueError, match="reference=3"):
        make_gradients(POLICY, ESTIMATORS[:2], reference=3)
    batch, groups = batch_and_groups()
    with pytest.raises(ValueError, match="micro_batch_rows=5: must divide the 16 rows"):
        make_gradients(POLICY, ESTIMATORS[:2], micro_batch_rows=5)(PARAMS, groups, batch)
