"""Numbers of an independent float64 computation that the two files by hand do not have, each with its working.

Fixtures as there: A: r = 1, 0, 0, 0; B: r = 1, 1, 0, 1; C: r = 1, .5, 0, .25; A and C have 2, 4, 6, 8 tokens, B 3, 5,
4, 8. Four rows off-policy: d = log-ratio, e = reference − policy, A = 1, −1, −½, 2.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from runs import assert_close
from test_advantages_by_hand import A, B, C, advantages_of, groups_of
from test_losses_by_hand import LENGTHS_A, LENGTHS_B, STANDARD_A, batch_of, ratio_batch

from rlvr_jax.estimators import make_estimator, registries, theory
from rlvr_jax.masked import masked_std


@pytest.mark.parametrize(
    "outcome, ddof, expected",
    [
        (A, 0, 0.4330127019),  # √(3/16)
        (B, 0, 0.4330127019),
        (C, 0, 0.3697549864),  # √(35/256)
        (A, 1, 0.5),
        (B, 1, 0.5),
        (C, 1, 0.4269562819),  # √(35/192)
    ],
)
def test_standard_deviation(outcome, ddof, expected):
    assert_close(masked_std(jnp.asarray(outcome, jnp.float32), jnp.ones(4, bool), ddof=ddof), expected, 1e-6)


STANDARDISED = [  # (r − mean)/(std + eps)
    (A, 0, 1e-6, [1.732046808, -0.5773489359, -0.5773489359, -0.5773489359]),
    (A, 0, 1e-4, [1.7316509, -0.5772169666, -0.5772169666, -0.5772169666]),
    (B, 0, 1e-6, [0.5773489359, 0.5773489359, -1.732046808, 0.5773489359]),
    (B, 0, 1e-4, [0.5772169666, 0.5772169666, -1.7316509, 0.5772169666]),
    (B, 1, 0.0, [0.5, 0.5, -1.5, 0.5]),
    (B, 1, 1e-4, [0.49990002, 0.49990002, -1.49970006, 0.49990002]),
    (C, 0, 1e-6, [1.521273544, 0.1690303938, -1.183212757, -0.5070911814]),
    (C, 0, 1e-4, [1.520866341, 0.168985149, -1.182896043, -0.5069554471]),
    (C, 1, 0.0, [1.317465098, 0.1463850109, -1.024695077, -0.4391550328]),
    (C, 1, 1e-4, [1.317156599, 0.1463507333, -1.024455133, -0.4390521998]),
    # one right of sixteen: √15 and −1/√15
    ([1] + [0] * 15, 0, 0.0, [3.872983346] + [-0.2581988897] * 15),
]


@pytest.mark.parametrize("outcome, ddof, eps, expected", STANDARDISED)
def test_group_std(outcome, ddof, eps, expected):
    groups = groups_of(outcome, lengths=[[1] * len(outcome)])
    found = advantages_of("grpo", groups=groups, scale=f"group_std(ddof={ddof}, eps={eps})")
    assert_close(found[0], expected, 2e-6)


def test_stratified_advantage_alone_with_ddof_1():
    """R = 1 0 0 1 1 0 0 1 over strata 0 0 0 1 1 1 1 2: (r − mean_k)/std_k; the stratum of one has 0."""
    groups = groups_of([1, 0, 0, 1, 1, 0, 0, 1], lengths=[[5] * 8], stratum=jnp.array([[0, 0, 0, 1, 1, 1, 1, 2]]))
    found = advantages_of("stratified_grpo", groups=groups, baseline="stratified(alpha=1.0, ddof=1)")[0]
    a, b = 1.154700518, 0.8660253888
    assert_close(found, [a, -a / 2, -a / 2, b, b, -b, -b, 0])


@pytest.mark.parametrize(
    "p_hat, strength, expected",
    [
        (0.25, 1.3, [1.844787813, 0.9160945166]),
        (0.75, 1.3, [1.118920369, 1.510384516]),
        (0.25, 1.5, [2.128601323, 1.057032135]),
        (0.75, 1.5, [1.291061965, 1.742751364]),
    ],
)
def test_history_factor(p_hat, strength, expected):
    """Φ = strength·exp(∓(p̂ − 0.6)) for A > 0 and A < 0."""
    assert_close(theory.history_factor(p_hat, 0.6, [1, -1], strength), expected, 1e-9)


def test_history_steps():
    """Batch means .2, .3, .5, .4: σ = 1, .005, .004748591 and η = .1·σ, read off C⁺ = (1 − η)·C⁻ + η·y."""
    est = make_estimator("grpo", reweight="history(eta=0.1, window=3)")
    memory, anchors = est.init_memory(1), []
    for right in (2, 3, 5, 4):
        groups = groups_of([1] * right + [0] * (10 - right), lengths=[[1] * 10])
        memory = est.advantages(groups, memory)[1]
        anchors.append(float(memory["reweight"].anchor))
    steps = [(after - prior) / (y - prior) for prior, after, y in zip(anchors, anchors[1:], (0.3, 0.5, 0.4))]
    np.testing.assert_allclose(steps, [0.1, 0.0005, 0.0004748591019], atol=3e-7)


K3 = [  # eᵉ − e − 1 at e = ±.1, .2, 0, −.3, .05, 0, .4, −.2, .1, .3
    [0.005170918076, 0.004837418036, 0, 0],
    [0.02140275816, 0, 0.04081822068, 0.001271096376],
    [0, 0.09182469764, 0, 0],
    [0.01873075308, 0.005170918076, 0.04985880758, 0],
]


def test_k3():
    k3 = registries["kl"].make("k3(beta=1.0)")
    found = k3.apply(jnp.zeros(5), jnp.asarray([-0.5, -0.1, 0, 0.1, 0.5]))
    assert_close(found, [0.1065306597, 0.004837418036, 0, 0.005170918076, 0.1487212707], 1e-7)
    batch, logprobs = ratio_batch()
    batch = batch.replace(advantages=jnp.zeros(4))
    for aggregate, mean in (("sequence_mean", 0.02284409048), ("token_mean", 0.02173505343)):
        est = make_estimator("grpo", kl="k3(beta=1.0)", aggregate=aggregate)
        assert_close(est.token_losses(logprobs, batch)[0], K3, 1e-6)
        assert_close(est.loss({}, logprobs, batch)[0], mean, 1e-6)


SURROGATES = [
    (
        {"clip": "ppo(low=0.2, high=0.28)"},
        [
            [1.246076731, 0.7408182207, 0, 0],  # e^.22 is below 1.28
            [-3.669296668, -1.284025417, -0.8, -1],
            [-0.4, -0.552585459, 0, 0],
            [2.56, 2.323668485, 1.902458849, 0],  # 2·1.28
        ],
    ),
    (
        {"clip": "ppo(dual=3.0)"},
        [
            [1.2, 0.7408182207, 0, 0],
            [-3.0, -1.284025417, -0.8, -1],  # −e^1.3 is held at −3
            [-0.4, -0.552585459, 0, 0],
            [2.4, 2.323668485, 1.902458849, 0],
        ],
    ),
]


@pytest.mark.parametrize("slots, expected", SURROGATES)
def test_surrogate_of_each_token(slots, expected):
    batch, logprobs = ratio_batch()
    assert_close(-make_estimator("grpo", **slots).token_losses(logprobs, batch)[0], expected)


@pytest.mark.parametrize("clip, expected", [("ppo", 4.48168907), ("ppo(dual=3.0)", 3.0)])
def test_dual_clip_of_one_token(clip, expected):
    """d = 1.5, A = −1: e^1.5, or 3."""
    batch = batch_of([1], [-1.0], old_logprobs=jnp.full((1, 1), -2.5))
    assert_close(make_estimator("grpo", clip=clip).token_losses(jnp.full((1, 1), -1.0), batch)[0], expected)


SEQUENCE_RATIOS = [  # exp of the mean of d; of d clipped to ±.4 on the side that A pushes to
    ("sequence", [0.9607894392, 1.268074997, 0.4965853038, 1.142630812]),
    ("sequence_token", [0.9607894392, 1.268074997, 0.4965853038, 1.142630812]),
    ("geometric", [0.9607894392, 1.333090592, 0.8607079764, 1.142630812]),
]


@pytest.mark.parametrize("option, expected", SEQUENCE_RATIOS)
def test_sequence_ratios(option, expected):
    batch, logprobs = ratio_batch()
    est = make_estimator("grpo", ratio=option, clip="none")
    losses = np.asarray(est.token_losses(logprobs, batch)[0])[:, 0]
    assert_close(-losses / np.array([1, -1, -0.5, 2]), expected)


@pytest.mark.parametrize("name", ["gspo", "gspo_token"])
def test_sequence_surrogate(name):
    batch, logprobs = ratio_batch()
    found = make_estimator(name).token_losses(logprobs, batch)[0]
    assert_close(-found[:, 0], [0.9607894392, -1.268074997, -0.49985, 2.0008])


def test_lambda_weights():
    """z = (L − 5)/√5, h = 1 + z/9, f = 4·softmax(h^λ) at λ = 1; f/T is the weight of a token, T = 20."""
    z = np.array([-1.34164078, -0.4472135935, 0.4472135935, 1.34164078])
    h = np.array([0.8509288022, 0.9503096007, 1.049690399, 1.149071198])
    f = np.array([0.8562135822, 0.945676605, 1.044487333, 1.153622479])
    assert_close(1 + z / 9, h, 1e-9)
    assert_close(4 * np.exp(h) / np.exp(h).sum(), f, 1e-9)
    est = make_estimator("grpo", aggregate="learnable(start=1.0)")
    batch = batch_of(LENGTHS_A, STANDARD_A)
    assert_close(est.token_weights(est.init_params(), batch)[:, 0] * 20, f)


def test_grpo_as_a_weight_over_token_mean():
    """f = (mean length)/L: what GRPO's 1/(G·L) is to 1/T."""
    batch = batch_of(LENGTHS_A, STANDARD_A)
    sequence, token = (
        make_estimator("grpo", aggregate=text).token_weights({}, batch)[:, 0]
        for text in ("sequence_mean", "token_mean")
    )
    assert_close(sequence / token, [2.5, 1.25, 0.8333333333, 0.625])


COEFFICIENTS = [  # weight · advantage, ddof 0
    (A, LENGTHS_A, "sequence_mean", [0.2165063509, -0.03608439182, -0.02405626122, -0.01804219591]),
    (A, LENGTHS_A, "token_mean", [0.08660254038, -0.02886751346, -0.02886751346, -0.02886751346]),
    (A, LENGTHS_A, "balanced", [0.2165063509, -0.02405626122, -0.02405626122, -0.02405626122]),
    (B, LENGTHS_B, "sequence_mean", [0.04811252243, 0.02886751346, -0.1082531755, 0.01804219591]),
    (B, LENGTHS_B, "token_mean", [0.02886751346, 0.02886751346, -0.08660254038, 0.02886751346]),
    (B, LENGTHS_B, "balanced", [0.02706329387, 0.02706329387, -0.1082531755, 0.02706329387]),
]


@pytest.mark.parametrize("outcome, lengths, aggregate, expected", COEFFICIENTS)
def test_coefficients(outcome, lengths, aggregate, expected):
    est = make_estimator("grpo", scale="group_std(ddof=0, eps=0.0)", aggregate=aggregate)
    assert_close(theory.token_coefficient(est, lengths, outcome), expected, 1e-6)


def test_lambda_base_stays_positive_up_to_81_responses():
    """One response shorter than all others has z = −√(G − 1), so 1 + z/9 reaches 0 at G = 82."""
    for G, smallest in ((16, 1 - 3.872983346 / 9), (81, 1 - np.sqrt(80) / 9), (82, 0.0)):
        lengths = np.array([1.0] + [2.0] * (G - 1))
        z = (lengths - lengths.mean()) / lengths.std()
        assert_close((1 + z / 9).min(), smallest, 1e-9)
