"""Numbers worked out by hand or in an independent float64 computation, formula beside each.

Fixtures: A: r = 1, 0, 0, 0; B: r = 1, 1, 0, 1; C: r = 1, .5, 0, .25. A and C have 2, 4, 6, 8 tokens, B 3, 5,
4, 8.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import phase_one, phase_two

from rlvr_jax.estimators import make_estimator
from rlvr_jax.estimators.shape import overlong_penalty
from rlvr_jax.types import Batch, Groups

A, B, C = [1, 0, 0, 0], [1, 1, 0, 1], [1, 0.5, 0, 0.25]
LENGTHS_A, LENGTHS_B = [2, 4, 6, 8], [3, 5, 4, 8]


def close(actual, expected, tolerance=1e-5):
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def groups_of(*outcomes, lengths=None, **fields):
    lengths = [LENGTHS_A] * len(outcomes) if lengths is None else lengths
    return Groups(outcome=jnp.array(outcomes, jnp.float32), lengths=jnp.array(lengths, jnp.int32), **fields)


def advantages_of(name, *outcomes, memory=None, groups=None, **slots):
    est = make_estimator(name, **slots)
    groups = groups_of(*outcomes) if groups is None else groups
    return phase_one(est, groups, est.init_memory(8) if memory is None else memory)[1]


ROWS = [
    # (r − 1/4)/(σ + eps), σ = √3/4 with ddof 0, 1/2 with ddof 1
    (
        "grpo",
        A,
        {"scale": "group_std(ddof=0, eps=0.0)"},
        [1.732050808, -0.5773502692, -0.5773502692, -0.5773502692],
    ),
    ("grpo", A, {}, [1.499997, -0.499999, -0.499999, -0.499999]),
    ("grpo", A, {"scale": "group_std(eps=1e-4)"}, [1.49970006, -0.49990002, -0.49990002, -0.49990002]),
    (
        "grpo",
        B,
        {"scale": "group_std(ddof=0, eps=0.0)"},
        [0.5773502692, 0.5773502692, -1.732050808, 0.5773502692],
    ),
    ("grpo", B, {}, [0.499999, 0.499999, -1.499997, 0.499999]),
    # mean 7/16, σ = 0.3697549864 with ddof 0, 0.4269562819 with ddof 1
    (
        "grpo",
        C,
        {"scale": "group_std(ddof=0, eps=0.0)"},
        [1.521277659, 0.1690308509, -1.183215957, -0.5070925528],
    ),
    ("grpo", C, {}, [1.317462013, 0.1463846681, -1.024692677, -0.4391540043]),
    # r − mean of the others; r − mean
    ("rloo", A, {}, [1.0, -1 / 3, -1 / 3, -1 / 3]),
    ("rloo", B, {}, [1 / 3, 1 / 3, -1.0, 1 / 3]),
    ("dr_grpo", A, {}, [0.75, -0.25, -0.25, -0.25]),
    ("grpo_no_std", B, {}, [0.25, 0.25, -0.75, 0.25]),
    # c and −c·n₊/n₋ within the group
    ("sign_balance_group", A, {}, [1.0, -1 / 3, -1 / 3, -1 / 3]),
    ("sign_balance_group", B, {}, [1.0, 1.0, -3.0, 1.0]),
    # u = 9/16, 1/16, −7/16, −3/16 over its largest; the factor n/(n−1) of leave-one-out would cancel
    ("maxnorm_ac", C, {}, [1.0, 0.1111111111, -0.7777777778, -0.3333333333]),
    # (r − p̂)/p̂
    ("maxrl", A, {}, [3.0, -1.0, -1.0, -1.0]),
    # OPO: baseline Σ L·r/Σ L = 2/20
    ("opo", A, {}, [0.9, -0.1, -0.1, -0.1]),
    ("e3_masked", A, {"scale": "group_std(ddof=0, eps=0.0)"}, [1.732050808, 0.0, 0.0, 0.0]),
    # one opposite virtual reward among five: mean 1/5, σ² = (4·0.04 + 0.64)/4
    ("avspo", [0, 0, 0, 0], {}, [-0.4471136179] * 4),
    ("avspo", [0] * 8, {}, [-0.3332333633] * 8),
    ("avspo", [1] * 8, {}, [0.3332333633] * 8),
    # pass@2 of n = 4 with 3 wrong: R̄ = 1 − 3/6 = 1/2, σ = 1/2; A₋ = (1/2 − 2/3)/(1/2)
    ("pass_at_k", A, {"baseline": "pass_at_k(k=2)"}, [1.0, -1 / 3, -1 / 3, -1 / 3]),
    # pass@1 is GRPO with ddof 0
    (
        "pass_at_k",
        A,
        {"baseline": "pass_at_k(k=1)"},
        [1.732050808, -0.5773502692, -0.5773502692, -0.5773502692],
    ),
    # prior (1, 1): a = ½ + ½ + 1 = 2, b = 4; without itself the right one sees (1, 4), a wrong one (2, 3)
    ("mapp", A, {}, [1.341440492, -0.6530401846, -0.6530401846, -0.6530401846]),
    ("mapp", [0, 0, 0, 0], {}, [-0.3287301] * 4),
]


@pytest.mark.parametrize("name, outcome, slots, expected", ROWS)
def test_advantages_of_one_group(name, outcome, slots, expected):
    groups = groups_of(outcome, lengths=[LENGTHS_A if len(outcome) == 4 else [5] * 8])
    close(advantages_of(name, groups=groups, **slots)[0], expected)


def test_batch_scale_of_rewards():
    """TRL's scale_rewards="batch": (r − mean_group)/(std of the eight rewards + 1e-4), std = √(2/7) with
    ddof 1."""
    found = advantages_of("grpo", A, B, scale="batch_std(ddof=1, eps=1e-4, of='rewards')")
    a, b = 1.402859069, 0.4676196897
    close(found, [[a, -b, -b, -b], [b, b, -a, b]])


def test_batch_scale_of_values():
    """std of the eight centred values: √(Σ/7) with Σ = 2·(0.5625 + 3·0.0625) = 1.5."""
    close(
        advantages_of("reinforce_pp_baseline", A, B)[0],
        np.array([0.75, -0.25, -0.25, -0.25]) / np.sqrt(1.5 / 7),
    )


def test_sign_balance_over_the_batch():
    close(advantages_of("sign_balance", A, B), [[1, -1, -1, -1], [1, 1, -1, 1]])  # n₊ = n₋ = 4
    found = advantages_of("sign_balance", A, [0] * 4, [1] * 4)  # n₊ = 5, n₋ = 7; uniform groups take part
    close(found, [[1] + [-5 / 7] * 3, [-5 / 7] * 4, [1.0] * 4])
    close(advantages_of("sign_balance", [1] * 4, [1] * 4), 0.0)  # one class only: no contrast


def test_stratified():
    """R = 1 0 0 1 1 0 0 1 over strata 0 0 0 1 1 1 1 2: 0.6·SAN + 0.4·GN; the stratum of one has SAN 0."""
    groups = groups_of([1, 0, 0, 1, 1, 0, 0, 1], lengths=[[5] * 8], stratum=jnp.array([[0, 0, 0, 1, 1, 1, 1, 2]]))
    blend = [1.248528111, -0.8242640517, -0.8242640517, 1, 1, -1, -1, 0.4]
    close(advantages_of("stratified_grpo", groups=groups)[0], blend)
    san = [1.414213532, -0.7071067662, -0.7071067662, 1, 1, -1, -1, 0]
    close(advantages_of("stratified_grpo", groups=groups, baseline="stratified(alpha=1.0)")[0], san)
    sample = [
        1.066986043,
        -0.7205758872,
        -0.7205758872,
        0.8937809649,
        0.8937809649,
        -0.8937809649,
        -0.8937809649,
    ]
    found = advantages_of("stratified_grpo", groups=groups, baseline="stratified(ddof=1)")[0]
    close(found, [*sample, 0.3741657317])
    # α = 0 and a single stratum are both GRPO with ddof 0
    plain = advantages_of("grpo", groups=groups, scale="group_std(ddof=0, eps=1e-8)")
    close(advantages_of("stratified_grpo", groups=groups, baseline="stratified(alpha=0.0)"), plain)
    close(advantages_of("stratified_grpo", groups=groups.replace(stratum=jnp.zeros((1, 8), jnp.int32))), plain)


def test_overlong_penalty():
    close(overlong_penalty(jnp.arange(5, 12), 10, 4), [0, 0, -0.25, -0.5, -0.75, -1, -1])
    lengths = jnp.array([16384, 16385, 18432, 20479, 20480, 20481])
    close(overlong_penalty(lengths, 20480, 4096), [0, -0.000244140625, -0.5, -0.9997558594, -1, -1], 1e-7)
    close(overlong_penalty(jnp.array([9, 10, 11]), 10, 0), [0, 0, -1])


def test_dapo():
    """±1 plus the penalty of 5, 7, 9, 11 tokens at 10 with cache 4: R = 1, −1.25, −1.75, −2, then
    standardised."""
    groups = groups_of(A, [1] * 4, lengths=[[5, 7, 9, 11]] * 2)
    est = make_estimator("dapo", shape="overlong(max_length=10, cache=4)")
    selected, advantages, _, metrics = est.estimate(groups, {})
    close(selected.rewards[0], [1, -1.25, -1.75, -2])
    close(advantages[0], [1.460593487, -0.1825741858, -0.5477225575, -0.7302967433])
    # the all-correct group has different penalties, and is dropped all the same: outcomes decide
    assert selected.valid.tolist() == [[True] * 4, [False] * 4]
    assert metrics["kept_groups"].compute() == 0.5
    found = advantages_of(
        "dapo", groups=groups, shape="overlong(max_length=10, cache=4)", scale="group_std(ddof=0, eps=0.0)"
    )
    close(found[0], [1.686548085, -0.2108185107, -0.632455532, -0.8432740427])


def test_bnpo():
    """p̂ = 1/4, 3/4: m = 1/2, v = 1/16, a + b = 3, a = b = 3/2, so Beta(p̂; 3/2, 3/2) = (8/π)·√(p̂(1−p̂))."""
    found = advantages_of("bnpo", A, B)
    close(found[0], np.array([0.75, -0.25, -0.25, -0.25]) / (8 / np.pi * np.sqrt(3 / 16)))


def test_history_factor():
    """Φ = 1.3·exp(−sgn(A)·(p̂ − 0.6)), p̂ = 1/4 then 3/4."""
    est = make_estimator("ha_dw_grpo", scale="group_std(ddof=0, eps=0.0)")
    memory = est.init_memory(1)
    started = memory["reweight"].__class__(jnp.float32(0.6), jnp.zeros(10), jnp.int32(1))
    found = phase_one(est, groups_of(A, B), {"reweight": started})[1]
    low, high = [3.195266222] + [-0.5289074158] * 3, [0.6460089764, 0.6460089764, -2.61606272, 0.6460089764]
    close(found, [low, high])
    # the authors' code: 1.5, ddof 1, eps 1e-6; a window whose mean comes to 0.6 with this batch's 0.5 in it
    est = make_estimator("ha_dw_grpo", reweight="history(variant='window', strength=1.5, window=2)")
    past = est.init_memory(1)["reweight"].__class__(jnp.float32(0), jnp.array([0.0, 0.7]), jnp.int32(1))
    found = phase_one(est, groups_of(A, B), {"reweight": past})[1]
    close(found[0], [3.192895599] + [-0.5285150103] * 3)
    close(found[1], [0.6455296913, 0.6455296913, -2.614121818, 0.6455296913])


@pytest.mark.parametrize(
    "option, expected",
    [
        (
            "history(eta=0.1, window=3)",
            [0.2, 0.21, 0.210145, 0.2102351544],
        ),  # posteriors: σ = 1, 1, .005, .00475
        ("history(variant='window', window=3)", [0.2, 0.25, 1 / 3, 0.4]),  # mean of the last three
    ],
)
def test_history_over_four_batches(option, expected):
    """Batch means .2, .3, .5, .4; memory moves once per batch, and not at all on a batch without a
    response."""
    est = make_estimator("grpo", reweight=option)
    memory = est.init_memory(1)
    empty = groups_of([0.0] * 10, lengths=[[1] * 10], valid=jnp.zeros((1, 10), bool))
    for right, anchor in zip([2, 3, 5, 4], expected):
        groups = groups_of([1] * right + [0] * (10 - right), lengths=[[1] * 10])
        memory = phase_one(est, groups, memory)[2]
        close(memory["reweight"].anchor, anchor, 1e-6)
        unmoved = phase_one(est, empty, memory)[2]
        assert jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), memory, unmoved))


def test_curverl():
    """Pool of pass rates ¼ ¼ ½ ¾ ¾ ¾ with N = 4: w(¼) = 1, w(½) = 1/3, w(¾) = 1/2; A = w·(r − p̂)."""
    est = make_estimator("curverl", reweight="pass_rate_curve(bins=4)")
    half = [1, 1, 0, 0]
    memory = phase_one(est, groups_of(A, A, half, B, B, B), est.init_memory(6))[2]
    found = phase_one(est, groups_of(A, half, B, [1] * 4, [0] * 4, A), memory)[1]
    close(found[0], [0.75, -0.25, -0.25, -0.25])
    close(found[1], np.array([0.5, 0.5, -0.5, -0.5]) / 3)
    close(found[2], np.array([0.25, 0.25, -0.75, 0.25]) / 2)
    close(found[3:5], 0.0)


def test_posterior_table_moves_only_seen_prompts():
    est = make_estimator("mapp")
    groups = groups_of(A, B, prompt_id=jnp.array([2, 0]))
    table = phase_one(est, groups, est.init_memory(3))[2]["baseline"]["beta"]
    close(table, [[4, 2], [1, 1], [2, 4]])


# ---- token weights of one group; tokens of a row share one weight


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
    close(weights, np.array(expected)[:, None] * np.array(batch.completion_mask), 1e-6)


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
    close([-loss, -slope], [-0.4082249984, -0.0592825126], 1e-6)
    close(0.0 - 0.1 * run(0.0)[1], -0.0064724704, 1e-6)


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
    close(est.loss(est.init_params(), logprobs, batch)[0], expected, 2e-6)


def test_surrogate_of_each_token():
    batch, logprobs = ratio_batch()
    losses, metrics = make_estimator("grpo").token_losses(logprobs, batch)
    close(
        -losses,
        [
            [1.2, 0.7408182207, 0, 0],
            [-3.669296668, -1.284025417, -0.8, -1],
            [-0.4, -0.552585459, 0, 0],
            [2.4, 2.323668485, 1.902458849, 0],
        ],
    )
    # held: .22 and .3 above (A > 0), −.6 and −1.5 below (A < 0), of eleven tokens
    close(
        [metrics[k].compute() for k in ("clip_fraction", "clip_fraction_high", "clip_fraction_low")],
        [4 / 11, 2 / 11, 2 / 11],
    )
    close(metrics["kl"].compute(), 0.02173505343)  # mean of exp(e) − e − 1 over the eleven tokens


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
    close(loss, -2.0 + 2.0 / 1.05)
    close(gradient, [[-1.0], [1.0]])


def test_cispo_keeps_the_gradient_of_clipped_tokens():
    """ρ = e³ is held at 5: ℓ = −5·A·log π, gradient −5·A; the weight itself has no gradient."""
    est = make_estimator("cispo")
    batch = batch_of([1], [2.0], old_logprobs=jnp.full((1, 1), -4.0))
    loss, gradient = token_values(est, batch, jnp.full((1, 1), -1.0))
    close([loss, gradient[0, 0]], [10.0, -10.0])


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
    close(-gradient, expected)
    close(loss, 2.0 * np.sum(expected))
