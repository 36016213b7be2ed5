"""Token weights and losses worked out by hand or in an independent float64 computation, formula beside
each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import assert_close, phase_two

from rlvr_jax.estimators import make_estimator
from rlvr_jax.types import Batch

LENGTHS_A, LENGTHS_B = [2, 4, 6, 8], [3, 5, 4, 8]


def batch_of(lengths, advantages, **fields):
    lengths = np.array(lengths)
    mask = np.arange(lengths.max())[None] < lengths[:, None]
    fields = {"group": jnp.zeros(len(lengths), jnp.int32)} | fields
    return Batch(completion_mask=jnp.array(mask), advantages=jnp.array(advantages, jnp.float32), **fields)


STANDARD_A = [1.732050808, -0.5773502692, -0.5773502692, -0.5773502692]
WEIGHTS = [
    ("sequence_mean", LENGTHS_A, STANDARD_A, [0.125, 0.0625, 0.04166666667, 0.03125]),  # 1/(G·L)
    ("token_mean", LENGTHS_A, STANDARD_A, [0.05] * 4),  # 1/T
    ("token_mean(scope='group')", LENGTHS_A, STANDARD_A, [0.05] * 4),
    ("constant(length=8)", LENGTHS_A, STANDARD_A, [0.03125] * 4),  # 1/(G·8)
    ("sequence_sum", LENGTHS_A, STANDARD_A, [0.25] * 4),  # 1/G
    ("length_power(alpha=0.0)", LENGTHS_A, STANDARD_A, [0.125, 0.0625, 0.04166666667, 0.03125]),
    ("length_power", LENGTHS_A, STANDARD_A, [0.1767766953, 0.125, 0.1020620726, 0.08838834765]),  # 1/(G·√L)
    ("length_power(alpha=1.0)", LENGTHS_A, STANDARD_A, [0.25] * 4),
    # |S₊|/(G·T₊) = 1/(4·2), |S₋|/(G·T₋) = 3/(4·18)
    ("balanced", LENGTHS_A, STANDARD_A, [0.125] + [0.04166666667] * 3),
    (
        "balanced",
        LENGTHS_B,
        [0.5773502692, 0.5773502692, -1.732050808, 0.5773502692],
        [0.046875, 0.046875, 0.0625, 0.046875],
    ),
    ("balanced", LENGTHS_A, [1.52, 0.17, -1.18, -0.51], [0.08333333333] * 2 + [0.03571428571] * 2),
    ("balanced", LENGTHS_A, [1.0, 0.0, -1.0, 0.0], [0.125, 0, 0.04166666667, 0]),  # A = 0 rows weigh nothing
    # f/T with z = −1.3416, −0.4472, 0.4472, 1.3416, h = 1 + z/9
    (
        "learnable(start=1.0)",
        LENGTHS_A,
        STANDARD_A,
        [0.04281067911, 0.04728383025, 0.05222436667, 0.05768112397],
    ),
    (
        "learnable(start=-1.0)",
        LENGTHS_A,
        STANDARD_A,
        np.array([1.168895833, 1.033717742, 0.9356956376, 0.8616907873]) / 20,
    ),
    (
        "learnable(start=0.5)",
        LENGTHS_A,
        STANDARD_A,
        np.array([0.9253912263, 0.9751553746, 1.024851055, 1.074602344]) / 20,
    ),
    (
        "learnable(start=2.0)",
        LENGTHS_A,
        STANDARD_A,
        np.array([0.7312052532, 0.8745440941, 1.066848562, 1.327402091]) / 20,
    ),
    (
        "learnable(start=1.0, ddof=1)",
        LENGTHS_A,
        STANDARD_A,
        np.array([0.8748312881, 0.9534598826, 1.039155504, 1.132553326]) / 20,
    ),
    ("learnable", LENGTHS_A, STANDARD_A, [0.05] * 4),  # λ = 0: 1/T
]


@pytest.mark.parametrize("option, lengths, advantages, expected", WEIGHTS)
def test_token_weights(option, lengths, advantages, expected):
    est = make_estimator("grpo", aggregate=option)
    batch = batch_of(lengths, advantages)
    weights = est.token_weights(est.init_params(), batch)
    assert_close(weights, np.array(expected)[:, None] * np.array(batch.completion_mask), 1e-6)


def test_lambda_gradient():
    """On-policy J(λ = 1) = Σ w·A = −.4082249984, dJ/dλ = −.0592825126 there and −.0647247037 at 0, ddof 0
    lengths.

    One ascent step of size 0.1 from 0 gives λ = −.0064724704. The loss is −J.
    """
    est = make_estimator("lambda_grpo")
    batch = batch_of(LENGTHS_A, STANDARD_A)
    logprobs = jnp.zeros(batch.completion_mask.shape)

    def run(lam):
        found = phase_two(est, {"aggregate": {"lambda": jnp.float32(lam)}}, logprobs, batch)
        return found.loss, found.slope["aggregate"]["lambda"]

    loss, slope = run(1.0)
    assert_close([-loss, -slope], [-0.4082249984, -0.0592825126], 1e-6)
    assert_close(0.0 - 0.1 * run(0.0)[1], -0.0064724704, 1e-6)


# ---- losses of four rows off-policy: d = log-ratio, A = 1, −1, −½, 2, lengths 2, 4, 2, 3

LOG_RATIO = np.array([[0.22, -0.3, 0, 0], [1.3, 0.25, -0.6, 0], [-1.5, 0.1, 0, 0], [0.3, 0.15, -0.05, 0]])
REFERENCE_GAP = np.array([[0.1, -0.1, 0, 0], [0.2, 0, -0.3, 0.05], [0, 0.4, 0, 0], [-0.2, 0.1, 0.3, 0]])
PPO, HIGHER, DUAL = "ppo", "ppo(low=0.2, high=0.28)", "ppo(dual=3.0)"
LOSSES = [
    ({"clip": PPO, "aggregate": "sequence_mean"}, -0.2536237428),
    ({"clip": PPO, "aggregate": "token_mean"}, -0.07827618289),
    ({"clip": PPO, "aggregate": "sequence_sum"}, -0.2152595029),
    ({"clip": PPO, "aggregate": "constant(length=4)"}, -0.05381487574),
    ({"clip": PPO, "aggregate": "balanced"}, -0.2145355936),
    ({"clip": PPO, "aggregate": "learnable(start=1.0)"}, 0.02160922185),
    ({"clip": HIGHER, "aggregate": "sequence_mean"}, -0.2727166675),
    ({"clip": HIGHER, "aggregate": "token_mean"}, -0.09701043113),
    ({"clip": HIGHER, "aggregate": "sequence_sum"}, -0.2667786856),
    ({"clip": HIGHER, "aggregate": "constant(length=4)"}, -0.0666946714),
    ({"clip": HIGHER, "aggregate": "balanced"}, -0.2351432666),
    ({"clip": HIGHER, "aggregate": "learnable(start=1.0)"}, 0.002897764989),
    ({"clip": DUAL, "aggregate": "sequence_mean"}, -0.2954547845),
    ({"clip": DUAL, "aggregate": "token_mean"}, -0.1391213345),
    ({"clip": DUAL, "aggregate": "sequence_sum"}, -0.3825836699),
    ({"clip": DUAL, "aggregate": "constant(length=4)"}, -0.09564591746),
    ({"clip": DUAL, "aggregate": "balanced"}, -0.2703103159),
    ({"clip": DUAL, "aggregate": "learnable(start=1.0)"}, -0.04988109121),
    ({"kl": "k3(beta=0.04)", "aggregate": "sequence_mean"}, -0.2527099792),
    ({"kl": "k3(beta=0.04)", "aggregate": "token_mean"}, -0.07740678075),
    ({"ratio": "geometric", "clip": "none"}, -0.3706516206),  # ratios .9608, 1.3331, .8607, 1.1426
    # sequence ratios .9608, 1.2681, .4966, 1.1426 give .9608, −1.2681, −.49985, 2.0008; minus their mean
    ({"ratio": "sequence", "clip": "ppo(low=3e-4, high=4e-4)"}, -0.29841611055),
    ({"ratio": "sequence_token", "clip": "ppo(low=3e-4, high=4e-4)"}, -0.29841611055),
]


def ratio_batch():
    return batch_of(
        [2, 4, 2, 3],
        [1, -1, -0.5, 2],
        old_logprobs=jnp.full((4, 4), -1.0),
        reference_logprobs=jnp.array(-1.0 + LOG_RATIO + REFERENCE_GAP, jnp.float32),
    ), jnp.array(-1.0 + LOG_RATIO, jnp.float32)


@pytest.mark.parametrize("slots, expected", LOSSES)
def test_losses(slots, expected):
    batch, logprobs = ratio_batch()
    est = make_estimator("grpo", **slots)
    assert_close(est.loss(est.init_params(), logprobs, batch)[0], expected, 2e-6)


def test_surrogate_of_each_token():
    batch, logprobs = ratio_batch()
    losses, metrics = jax.jit(make_estimator("grpo").token_losses)(logprobs, batch)
    assert_close(
        -losses,
        [
            [1.2, 0.7408182207, 0, 0],
            [-3.669296668, -1.284025417, -0.8, -1],
            [-0.4, -0.552585459, 0, 0],
            [2.4, 2.323668485, 1.902458849, 0],
        ],
    )
    # held: .22 and .3 above (A > 0), −.6 and −1.5 below (A < 0), of eleven tokens
    assert_close(
        [metrics[k].compute() for k in ("clip_fraction", "clip_fraction_high", "clip_fraction_low")],
        [4 / 11, 2 / 11, 2 / 11],
    )
    assert_close(metrics["kl"].compute(), 0.02173505343)  # mean of exp(e) − e − 1 over the eleven tokens


def token_values(est, batch, logprobs):
    """Σ of the token losses of a single-token or single-row batch, and its gradient: weights undone."""
    found = phase_two(est, est.init_params(), logprobs, batch)
    weight = found.weights.max()
    return found.losses.sum(), found.gradient / weight


def test_soft_gate():
    """SAPO at ρ = 1: (4/τ)·½ = 2/τ, with slope 1; A > 0 uses τ = 1, A < 0 τ = 1.05."""
    est = make_estimator("sapo")
    batch = batch_of([1, 1], [1.0, -1.0], group=jnp.arange(2), old_logprobs=jnp.zeros((2, 1)))
    loss, gradient = token_values(est, batch, jnp.zeros((2, 1)))
    assert_close(loss, -2.0 + 2.0 / 1.05)
    assert_close(gradient, [[-1.0], [1.0]])


def test_cispo_keeps_the_gradient_of_clipped_tokens():
    """ρ = e³ is held at 5: ℓ = −5·A·log π, gradient −5·A; the weight itself has no gradient."""
    est = make_estimator("cispo")
    batch = batch_of([1], [2.0], old_logprobs=jnp.full((1, 1), -4.0))
    loss, gradient = token_values(est, batch, jnp.full((1, 1), -1.0))
    assert_close([loss, gradient[0, 0]], [10.0, -10.0])


@pytest.mark.parametrize(
    "option, expected",
    [
        ("none", [[1.0, 1.0, 1.0]]),
        ("truncated(cap=2.0)", [[2.0, 0.25, 1.5]]),  # ratios 4, ¼, 3/2
        ("truncated(cap=2.0, level='sequence')", [[1.5, 1.5, 1.5]]),  # their product
        ("truncated(cap=1.0, level='geometric')", [[1.0, 1.0, 1.0]]),
        ("masked(low=0.5, high=2.0)", [[0.0, 0.0, 1.5]]),
        ("masked(low=0.5, high=1.4, level='sequence')", [[0.0, 0.0, 0.0]]),
    ],
)
def test_correction(option, expected):
    """The loss of a token is −A·log π times the detached weight π_old/π_behaviour."""
    est = make_estimator("rloo", correct=option)
    old = jnp.log(jnp.array([[4.0, 0.25, 1.5]])) - 3.0
    batch = batch_of([3], [1.0], old_logprobs=old, behaviour_logprobs=jnp.full((1, 3), -3.0))
    loss, gradient = token_values(est, batch, jnp.full((1, 3), -2.0))
    assert_close(-gradient, expected)
    assert_close(loss, 2.0 * np.sum(expected))
