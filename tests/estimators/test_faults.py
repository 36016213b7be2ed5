"""Faults that other trainers reported, each as its whole kind."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import P, compiled, entry, phase_one, phase_two, take_rows, to_shape

from rlvr_jax.estimators import SLOTS, catalogue, make_estimator
from rlvr_jax.estimators.base import to_groups, to_rows
from rlvr_jax.types import Batch, Groups

# entries whose advantage is measured against something other than the group itself
NOT_GROUP_RELATIVE = {"reinforce", "reinforce_pp", "sign_balance", "mapp", "avspo"}
GROUP_RELATIVE = [name for name in catalogue if name not in NOT_GROUP_RELATIVE]


def groups_of(outcome, **fields):
    outcome = jnp.asarray(outcome, jnp.float32)
    return Groups(outcome=outcome, lengths=jnp.full(outcome.shape, 3, jnp.int32), **fields)


@pytest.mark.parametrize("name", GROUP_RELATIVE)
def test_identical_rewards_have_no_advantage(name):
    """Rewards that float32 cannot hold: their std is rounding, and rounding over rounding is of full size.

    One batch of groups of 16, with 6, 7, 8 and 16 valid rewards of 0.1, 0.9, 0.3 and 0.7, and others.
    """
    est = entry(name, SLOTS[:5])
    values = np.array([0.1, 0.9, 0.3, 0.7, 1 / 3, 1.0, 0.0, 1e-3, 123.4])
    sizes = np.array([6, 7, 8, 16, 5, 16, 16, 11, 13])
    outcome = np.broadcast_to(values[:, None], (9, 16))
    groups = groups_of(outcome, valid=jnp.asarray(np.arange(16)[None] < sizes[:, None]))
    _, advantages, _ = phase_one(est, to_shape(groups), est.init_memory(2 * P))
    assert (np.asarray(advantages) == 0).all()


def test_identical_rewards_without_jit():
    est = make_estimator("grpo", scale="group_std(eps=0.0)")
    advantages, _, metrics = est.advantages(groups_of(np.repeat([[0.3], [0.1], [0.7], [0.9]], 5, axis=1)), {})
    assert (np.asarray(advantages) == 0).all()
    assert metrics["zero_variance_groups"].compute() == 1.0


@pytest.mark.parametrize("name", list(catalogue))
def test_groups_of_one(name):
    """Alone, and in a ragged batch with groups of 4 and 1: finite, and 0 under a group's own baseline."""
    est = entry(name, SLOTS[:5])
    ragged = groups_of([[1, 0, 0, 0], [0.7, 0, 0, 0]], valid=jnp.asarray([[True] * 4, [True, False, False, False]]))
    together = np.asarray(phase_one(est, to_shape(ragged), est.init_memory(2 * P))[1])
    assert np.isfinite(together).all()
    assert (together[1, 1:] == 0).all()
    if name in GROUP_RELATIVE:
        assert est.min_group == 2  # which is how a configuration with group_size 1 is refused
        assert (together[1] == 0).all()


def test_one_documented_standard_deviation():
    """[1, 0, 0, 0]: ddof 1 everywhere by default, in a full group and in a ragged one."""
    est = make_estimator("grpo", scale="group_std(eps=0.0)")
    full = phase_one(est, groups_of([[1, 0, 0, 0]]), {})[1]
    np.testing.assert_allclose(full[0], [1.5, -0.5, -0.5, -0.5], rtol=1e-6)
    valid = jnp.asarray([[True, False, True, True, True]])
    ragged = phase_one(est, groups_of([[1, 9, 0, 0, 0]], valid=valid), {})[1]
    np.testing.assert_allclose(ragged[0], [1.5, 0, -0.5, -0.5, -0.5], rtol=1e-6)


def test_rows_are_grouped_by_id_and_not_by_place():
    """Rows P Q P Q P Q P Q with rewards 1 0 0 0 1 0 0 1: P is 1 0 1 0, Q is 0 0 0 1. Any permutation
    follows."""
    est = make_estimator("grpo_no_std")
    group = jnp.asarray([3, 8] * 4)
    rewards = jnp.asarray([1, 0, 0, 0, 1, 0, 0, 1], jnp.float32)
    expected = np.array([0.5, -0.25, -0.5, -0.25, 0.5, -0.25, -0.5, 0.75])
    for order in (np.arange(8), *(np.random.default_rng(s).permutation(8) for s in range(5))):
        groups = groups_of(to_groups(rewards[order], group[order], 4))
        advantages = phase_one(est, groups, {})[1]
        np.testing.assert_allclose(to_rows(advantages, group[order]), expected[order], atol=1e-7)


@compiled
def _weighted(est, weights, batch, logprobs):
    return jax.value_and_grad(lambda lp: (weights * est.token_losses(lp, batch)[0]).sum())(logprobs)


def test_token_mean_is_that_of_the_update_and_not_of_the_micro_batch():
    """Losses 1 on 2 tokens and 0 on 6: 2/8, in one piece or two, and so is the gradient."""
    est = make_estimator("grpo", aggregate="token_mean", ratio="none", clip="none")
    mask = jnp.asarray(np.arange(6)[None] < np.array([[2], [6]]))
    batch = Batch(completion_mask=mask, advantages=jnp.asarray([1.0, 0.0]))
    logprobs = jnp.full((2, 6), -1.0)  # ℓ = −A·log π = 1 on the first row
    whole = phase_two(est, {}, logprobs, batch)
    np.testing.assert_allclose(whole.loss, 0.25)
    weights = est.token_weights({}, batch)
    for row in (0, 1):
        one = slice(row, row + 1)
        loss, gradient = _weighted(est, weights[one], take_rows(batch, one), logprobs[one])
        np.testing.assert_allclose(loss, [0.25, 0.0][row])
        np.testing.assert_allclose(gradient[0], whole.gradient[row], rtol=1e-6)


@pytest.mark.parametrize("old", [-200.0, -jnp.inf, jnp.inf, jnp.nan])
@pytest.mark.parametrize("new", [0.0, jnp.nan, -jnp.inf])
@pytest.mark.parametrize("clip", ["none", "ppo", "cispo", "soft"])
def test_masked_overflow_reaches_no_gradient(old, new, clip):
    """new −1, ·, −1; old −1, ·, −1; the middle masked. Loss −1 and gradient exactly [−½, 0, −½] (A = 1)."""
    est = make_estimator("grpo", clip=clip)
    batch = Batch(
        completion_mask=jnp.asarray([[True, False, True]]),
        advantages=jnp.ones(1),
        old_logprobs=jnp.asarray([[-1.0, old, -1.0]]),
    )
    found = phase_two(est, {}, jnp.asarray([[-1.0, new, -1.0]]), batch)
    np.testing.assert_array_equal(found.gradient, [[-0.5, 0.0, -0.5]])
    expected = {"none": -1.0, "ppo": -1.0, "cispo": 1.0, "soft": -2.0}[clip]  # cispo: −A·log π; soft: −(4/τ)·½
    np.testing.assert_array_equal(found.loss, expected)


def kl_of(option, logprob, reference):
    """The penalty of one token and its gradient; the advantage is 0."""
    est = make_estimator("rloo", kl=option)
    batch = Batch(
        completion_mask=jnp.ones((1, 1), bool),
        advantages=jnp.zeros(1),
        reference_logprobs=jnp.full((1, 1), reference, jnp.float32),
    )
    logprobs = jnp.full((1, 1), logprob, jnp.float32)
    found = phase_two(est, {}, logprobs, batch)
    return float(found.loss), float(found.gradient[0, 0])


def test_direction_of_the_divergence():
    """log π = −1, log reference = −2: k1 = 1, k2 = ½, k3 = e⁻¹ and dk3 = 1 − e⁻¹ > 0: minimising lowers log
    π."""
    np.testing.assert_allclose(kl_of("k1(beta=1.0, allow=True)", -1, -2), [1.0, 1.0])
    np.testing.assert_allclose(kl_of("k2(beta=1.0)", -1, -2), [0.5, 1.0])
    np.testing.assert_allclose(kl_of("k3(beta=1.0)", -1, -2), [0.3678794, 0.6321206], rtol=1e-6)
    np.testing.assert_allclose(kl_of("k3(beta=0.5)", -1, -2), [0.1839397, 0.3160603], rtol=1e-6)


def test_divergence_of_equals_is_zero_and_k3_is_never_negative():
    for option in ("k1(beta=1.0, allow=True)", "k2(beta=1.0)", "k3(beta=1.0)"):
        assert kl_of(option, -1.5, -1.5)[0] == 0.0
    gaps = np.random.default_rng(0).normal(size=2000) * np.logspace(-8, 1, 2000)
    est = make_estimator("rloo", kl="k3(beta=1.0)")
    batch = Batch(
        completion_mask=jnp.ones((1, 2000), bool),
        advantages=jnp.zeros(1),
        reference_logprobs=jnp.asarray(-3.0 + gaps[None], jnp.float32),
    )
    losses, _ = est.token_losses(jnp.full((1, 2000), -3.0), batch)
    assert (np.asarray(losses) >= 0).all()
    # e = 0.01: e²/2 + e³/6 + …; the form eᵉ − e − 1 would keep three digits in float32
    np.testing.assert_allclose(kl_of("k3(beta=1.0)", 0.0, 0.01)[0], 5.01670842e-05, rtol=1e-4)


@pytest.mark.parametrize("option", ["k1(beta=1.0, allow=True)", "k2(beta=1.0)", "k3(beta=1.0)"])
@pytest.mark.parametrize("gap", [90.0, -90.0, 1e30])
def test_divergence_far_away_is_finite(option, gap):
    assert np.isfinite(kl_of(option, -1.0, -1.0 + gap)).all()


def test_k1_in_the_loss_has_to_be_asked_for():
    with pytest.raises(ValueError, match=r"k1.*allow=True"):
        make_estimator("grpo", kl="k1(beta=0.1)")


@pytest.mark.parametrize("width", [6, 12])
@pytest.mark.parametrize(
    "option, expected",
    [
        ("sequence_mean", 0.0),
        ("token_mean", 0.5),
        ("constant(length=10)", 0.2),
        ("sequence_sum", 2.0),
    ],
)
def test_each_aggregation_gives_its_own_number(width, option, expected):
    """Ratio 1; A = +1 on 2 tokens, −1 on 6. The constant is the configured one, whatever the padded width."""
    est = make_estimator("grpo", aggregate=option)
    mask = jnp.asarray(np.arange(width)[None] < np.array([[2], [6]]))
    batch = Batch(completion_mask=mask, advantages=jnp.asarray([1.0, -1.0]))
    losses, _ = est.token_losses(jnp.zeros((2, width)), batch)
    np.testing.assert_allclose((est.token_weights({}, batch) * losses).sum(), expected, atol=1e-7)


def test_dr_grpo_without_its_length():
    est = make_estimator("dr_grpo")
    advantages = phase_one(est, groups_of([[1, 0, 0, 0]]), {})[1]
    np.testing.assert_allclose(advantages[0], [0.75, -0.25, -0.25, -0.25])
    batch = Batch(completion_mask=jnp.ones((4, 2), bool), advantages=advantages[0])
    with pytest.raises(ValueError, match="completion_length"):
        est.loss({}, jnp.zeros((4, 2)), batch)
    with pytest.raises(ValueError, match="completion_length"):
        make_estimator("dapo").advantages(groups_of([[1, 0]]), {})
