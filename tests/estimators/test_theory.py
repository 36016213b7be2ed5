"""Closed forms against reference numbers, against the estimators themselves and against simulation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import P, phase_one, to_shape

from rlvr_jax.estimators import SLOTS, make_estimator, theory
from rlvr_jax.types import Batch, Groups

BIAS = {  # E[p̂ | S], bias
    (0.05, 4): (0.2695262484, 0.2195262484),
    (0.05, 8): (0.1485532831, 0.09855328313),
    (0.05, 16): (0.08930591475, 0.03930591475),
    (0.10, 4): (0.2905759162, 0.1905759162),
    (0.10, 8): (0.1755825012, 0.07558250115),
    (0.10, 16): (0.1227448727, 0.02274487272),
    (0.25, 4): (0.3620689655, 0.1120689655),
    (0.25, 8): (0.2778003866, 0.02780038661),
    (0.25, 16): (0.2525310161, 0.002531016117),
    (0.50, 4): (0.5, 0.0),
    (0.50, 16): (0.5, 0.0),
    (0.75, 4): (0.6379310345, -0.1120689655),
    (0.75, 8): (0.7221996134, -0.02780038661),
    (0.75, 16): (0.7474689839, -0.002531016117),
    (0.05, 2): (0.5, 0.45),
    (0.75, 2): (0.5, -0.25),
}


def test_conditional_bias():
    for (p, G), expected in BIAS.items():
        found = theory.conditional_mean(p, G), theory.conditional_bias(p, G)
        np.testing.assert_allclose(found, expected, atol=2e-10)


def test_conditional_mean_given_its_own_outcome():
    """G = 4, p = ¼: 0.4285714 for a right response, 0.3243243 for a wrong one; they average to the mean."""
    right, wrong = (theory.conditional_mean_given(o, 0.25, 4) for o in (1, 0))
    np.testing.assert_allclose([right, wrong], [0.4285714286, 0.3243243243], atol=1e-10)
    share = theory.conditional_mean(0.25, 4)  # P(r₁ = 1 | S)
    np.testing.assert_allclose(share * right + (1 - share) * wrong, share, atol=1e-12)


def test_overestimation_probability():
    """Averaged over p uniform on (0, ½), G = 2, 4, 6, 8: 1, .7769694, .6897246, .6409483; on (0, ¼): 1, 1,
    …"""
    for top, expected in (
        (0.5, [1.0, 0.7769693673, 0.6897246063, 0.6409483205]),
        (0.25, [1.0, 1.0, 0.8277647892, 0.781133321]),
    ):
        p = (np.arange(20000) + 0.5) / 20000 * top
        found = [np.mean([theory.overestimation_probability(x, G) for x in p[::20]]) for G in (2, 4, 6, 8)]
        np.testing.assert_allclose(found, expected, atol=1e-3)


def test_mean_right_advantage():
    found = [theory.mean_right_advantage(p, G) for G in (4, 8) for p in (0.25, 0.5, 0.75)]
    expected = [1.233773816, 0.8080127019, 0.4112579387, 1.519586692, 0.9278279748, 0.5065288975]
    np.testing.assert_allclose(found, expected, atol=1e-9)
    # zero mean: p·μ(p) = q·μ(q)
    np.testing.assert_allclose(0.3 * theory.mean_right_advantage(0.3, 8), 0.7 * theory.mean_right_advantage(0.7, 8))


def test_history_factor():
    np.testing.assert_allclose(theory.history_factor(0.25, 0.6, [1, -1]), [1.844787813, 0.9160945166], atol=1e-9)


@pytest.mark.parametrize("name", sorted(theory._BINARY))
def test_binary_advantages_are_those_of_the_estimator(name):
    """Every 0 < k < G for G = 2 and 8, in one ragged batch."""
    slots = {"scale": "group_std(eps=0.0)"} if "std" in make_estimator(name, 8).slots["scale"] else {}
    phase = {slot: text for slot, text in make_estimator(name, 1000).slots.items() if slot in SLOTS[:5]}
    est = make_estimator("grpo", **phase | slots)
    cases = [(k, G) for G in (2, 8) for k in range(1, G)]
    outcome = np.array([[1.0] * k + [0.0] * (8 - k) for k, _ in cases], np.float32)
    valid = np.arange(8)[None] < np.array([[G] for _, G in cases])
    groups = Groups(outcome=jnp.asarray(outcome), valid=jnp.asarray(valid), lengths=jnp.full((8, 8), 5, jnp.int32))
    advantages = np.asarray(phase_one(est, to_shape(groups), est.init_memory(2 * P))[1])
    # dapo's outcomes are ±1, which its own standard deviation undoes
    for row, (k, G) in zip(advantages, cases):
        np.testing.assert_allclose((row[0], row[G - 1]), theory.binary_advantages(name, k, G), rtol=2e-5, atol=1e-6)


def test_binary_advantages_refuse_what_they_cannot_say():
    with pytest.raises(ValueError, match="reinforce_pp"):
        theory.binary_advantages("reinforce_pp", 1, 4)
    with pytest.raises(ValueError, match=r"k=4"):
        theory.binary_advantages("grpo", 4, 4)


@pytest.mark.parametrize(
    "slots, expected",
    [
        ({"aggregate": "balanced"}, [0.2165063509] + [-0.02405626122] * 3),  # A·w
        ({"aggregate": "token_mean"}, [0.08660254038] + [-0.02886751346] * 3),
    ],
)
def test_token_coefficient(slots, expected):
    """Outcomes 1 0 0 0 with 2, 4, 6, 8 tokens, ddof 0."""
    est = make_estimator("grpo", scale="group_std(ddof=0, eps=0.0)", **slots)
    np.testing.assert_allclose(theory.token_coefficient(est, [2, 4, 6, 8], [1, 0, 0, 0]), expected, rtol=1e-6)


@pytest.mark.parametrize("G", [2, 4, 8, 16])
def test_conditional_bias_by_simulation(G):
    """Groups of Bernoulli outcomes with both classes: the mean of p̂ is E[p̂ | S] within Monte Carlo
    error."""
    rng = np.random.default_rng(G)
    for p in (0.05, 0.1, 0.25, 0.5, 0.75):
        p_hat = rng.binomial(G, p, 200_000) / G
        p_hat = p_hat[(p_hat > 0) & (p_hat < 1)]
        error = p_hat.std() / np.sqrt(len(p_hat))
        assert abs(p_hat.mean() - theory.conditional_mean(p, G)) <= 4 * error + 1e-12
        over = (p_hat > p + 1e-9).mean()
        expected = theory.overestimation_probability(p, G)
        assert abs(over - expected) <= 4 * np.sqrt(expected * (1 - expected) / len(p_hat)) + 1e-12


@pytest.mark.parametrize("baseline, factor", [("leave_one_out", 1.0), ("group_mean", 3 / 4), ("none", 1.0)])
def test_two_armed_bandit(baseline, factor):
    """10⁵ groups of 4 from a policy with p = σ(θ) on the arm that pays 1: ∇E[r] = p(1 − p).

    Leave-one-out is unbiased, the group mean is (G − 1)/G of it. The gradient is that of the loss in θ.
    """
    p, G, groups_drawn = 0.3, 4, 100_000
    arm = np.random.default_rng(0).random((groups_drawn, G)) < p
    est = make_estimator("rloo", baseline=baseline)
    groups = Groups(outcome=jnp.asarray(arm, jnp.float32), lengths=jnp.ones(arm.shape, jnp.int32))
    advantages = phase_one(est, groups, {})[1]
    batch = Batch(completion_mask=jnp.ones((arm.size, 1), bool), advantages=advantages.reshape(-1))
    pulled = jnp.asarray(arm.reshape(-1, 1))

    @jax.jit
    @jax.grad
    def slope(theta):
        logprobs = jnp.where(pulled, jax.nn.log_sigmoid(theta), jax.nn.log_sigmoid(-theta))
        return est.loss({}, logprobs, batch)[0]

    # of each group's estimate Σ_i A_i·(a_i − p)/G
    per_group = (np.asarray(advantages, np.float64) * (arm - p)).mean(axis=1)
    error = per_group.std() / np.sqrt(groups_drawn)
    found = -float(slope(np.log(p / (1 - p))))
    np.testing.assert_allclose(found, per_group.mean(), rtol=1e-4)
    assert abs(found - factor * p * (1 - p)) < 4 * error
    assert error < 1e-3 < abs(1 - 3 / 4) * p * (1 - p)  # the two factors are far apart
