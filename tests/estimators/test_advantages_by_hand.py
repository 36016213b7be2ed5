"""Numbers worked out by hand or in an independent float64 computation, formula beside each.

Fixtures: A: r = 1, 0, 0, 0; B: r = 1, 1, 0, 1; C: r = 1, .5, 0, .25. A and C have 2, 4, 6, 8 tokens, B 3, 5,
4, 8.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import assert_close, phase_one

from rlvr_jax.estimators import make_estimator
from rlvr_jax.estimators.shape import overlong_penalty
from rlvr_jax.types import Groups

A, B, C = [1, 0, 0, 0], [1, 1, 0, 1], [1, 0.5, 0, 0.25]
LENGTHS_A, LENGTHS_B = [2, 4, 6, 8], [3, 5, 4, 8]


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
    assert_close(advantages_of(name, groups=groups, **slots)[0], expected)


def test_batch_scale_of_rewards():
    """TRL's scale_rewards="batch": (r − mean_group)/(std of the eight rewards + 1e-4), std = √(2/7) with
    ddof 1."""
    found = advantages_of("grpo", A, B, scale="batch_std(ddof=1, eps=1e-4, of='rewards')")
    a, b = 1.402859069, 0.4676196897
    assert_close(found, [[a, -b, -b, -b], [b, b, -a, b]])


def test_batch_scale_of_values():
    """std of the eight centred values: √(Σ/7) with Σ = 2·(0.5625 + 3·0.0625) = 1.5."""
    assert_close(
        advantages_of("reinforce_pp_baseline", A, B)[0],
        np.array([0.75, -0.25, -0.25, -0.25]) / np.sqrt(1.5 / 7),
    )


def test_sign_balance_over_the_batch():
    assert_close(advantages_of("sign_balance", A, B), [[1, -1, -1, -1], [1, 1, -1, 1]])  # n₊ = n₋ = 4
    found = advantages_of("sign_balance", A, [0] * 4, [1] * 4)  # n₊ = 5, n₋ = 7; uniform groups take part
    assert_close(found, [[1] + [-5 / 7] * 3, [-5 / 7] * 4, [1.0] * 4])
    assert_close(advantages_of("sign_balance", [1] * 4, [1] * 4), 0.0)  # one class only: no contrast


def test_stratified():
    """R = 1 0 0 1 1 0 0 1 over strata 0 0 0 1 1 1 1 2: 0.6·SAN + 0.4·GN; the stratum of one has SAN 0."""
    groups = groups_of([1, 0, 0, 1, 1, 0, 0, 1], lengths=[[5] * 8], stratum=jnp.array([[0, 0, 0, 1, 1, 1, 1, 2]]))
    blend = [1.248528111, -0.8242640517, -0.8242640517, 1, 1, -1, -1, 0.4]
    assert_close(advantages_of("stratified_grpo", groups=groups)[0], blend)
    san = [1.414213532, -0.7071067662, -0.7071067662, 1, 1, -1, -1, 0]
    assert_close(advantages_of("stratified_grpo", groups=groups, baseline="stratified(alpha=1.0)")[0], san)
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
    assert_close(found, [*sample, 0.3741657317])
    # α = 0 and a single stratum are both GRPO with ddof 0
    plain = advantages_of("grpo", groups=groups, scale="group_std(ddof=0, eps=1e-8)")
    assert_close(advantages_of("stratified_grpo", groups=groups, baseline="stratified(alpha=0.0)"), plain)
    assert_close(advantages_of("stratified_grpo", groups=groups.replace(stratum=jnp.zeros((1, 8), jnp.int32))), plain)


def test_overlong_penalty():
    assert_close(overlong_penalty(jnp.arange(5, 12), 10, 4), [0, 0, -0.25, -0.5, -0.75, -1, -1])
    lengths = jnp.array([16384, 16385, 18432, 20479, 20480, 20481])
    assert_close(overlong_penalty(lengths, 20480, 4096), [0, -0.000244140625, -0.5, -0.9997558594, -1, -1], 1e-7)
    assert_close(overlong_penalty(jnp.array([9, 10, 11]), 10, 0), [0, 0, -1])


def test_dapo():
    """±1 plus the penalty of 5, 7, 9, 11 tokens at 10 with cache 4: R = 1, −1.25, −1.75, −2, then
    standardised."""
    groups = groups_of(A, [1] * 4, lengths=[[5, 7, 9, 11]] * 2)
    est = make_estimator("dapo", shape="overlong(max_length=10, cache=4)")
    selected, advantages, _, metrics = jax.jit(est.estimate)(groups, {})
    assert_close(selected.rewards[0], [1, -1.25, -1.75, -2])
    assert_close(advantages[0], [1.460593487, -0.1825741858, -0.5477225575, -0.7302967433])
    # the all-correct group has different penalties, and is dropped all the same: outcomes decide
    assert selected.valid.tolist() == [[True] * 4, [False] * 4]
    assert metrics["kept_groups"].compute() == 0.5
    found = advantages_of(
        "dapo", groups=groups, shape="overlong(max_length=10, cache=4)", scale="group_std(ddof=0, eps=0.0)"
    )
    assert_close(found[0], [1.686548085, -0.2108185107, -0.632455532, -0.8432740427])


def test_bnpo():
    """p̂ = 1/4, 3/4: m = 1/2, v = 1/16, a + b = 3, a = b = 3/2, so Beta(p̂; 3/2, 3/2) = (8/π)·√(p̂(1−p̂))."""
    found = advantages_of("bnpo", A, B)
    assert_close(found[0], np.array([0.75, -0.25, -0.25, -0.25]) / (8 / np.pi * np.sqrt(3 / 16)))


def test_history_factor():
    """Φ = 1.3·exp(−sgn(A)·(p̂ − 0.6)), p̂ = 1/4 then 3/4."""
    est = make_estimator("ha_dw_grpo", scale="group_std(ddof=0, eps=0.0)")
    memory = est.init_memory(1)
    started = memory["reweight"].__class__(jnp.float32(0.6), jnp.zeros(10), jnp.int32(1))
    found = phase_one(est, groups_of(A, B), {"reweight": started})[1]
    low, high = [3.195266222] + [-0.5289074158] * 3, [0.6460089764, 0.6460089764, -2.61606272, 0.6460089764]
    assert_close(found, [low, high])
    # the authors' code: 1.5, ddof 1, eps 1e-6; a window whose mean comes to 0.6 with this batch's 0.5 in it
    est = make_estimator("ha_dw_grpo", reweight="history(variant='window', strength=1.5, window=2)")
    past = est.init_memory(1)["reweight"].__class__(jnp.float32(0), jnp.array([0.0, 0.7]), jnp.int32(1))
    found = phase_one(est, groups_of(A, B), {"reweight": past})[1]
    assert_close(found[0], [3.192895599] + [-0.5285150103] * 3)
    assert_close(found[1], [0.6455296913, 0.6455296913, -2.614121818, 0.6455296913])


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
        assert_close(memory["reweight"].anchor, anchor, 1e-6)
        unmoved = phase_one(est, empty, memory)[2]
        assert jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), memory, unmoved))


def test_curverl():
    """Pool of pass rates ¼ ¼ ½ ¾ ¾ ¾ with N = 4: w(¼) = 1, w(½) = 1/3, w(¾) = 1/2; A = w·(r − p̂)."""
    est = make_estimator("curverl", reweight="pass_rate_curve(bins=4)")
    half = [1, 1, 0, 0]
    memory = phase_one(est, groups_of(A, A, half, B, B, B), est.init_memory(6))[2]
    found = phase_one(est, groups_of(A, half, B, [1] * 4, [0] * 4, A), memory)[1]
    assert_close(found[0], [0.75, -0.25, -0.25, -0.25])
    assert_close(found[1], np.array([0.5, 0.5, -0.5, -0.5]) / 3)
    assert_close(found[2], np.array([0.25, 0.25, -0.75, 0.25]) / 2)
    assert_close(found[3:5], 0.0)


def test_posterior_table_moves_only_seen_prompts():
    est = make_estimator("mapp")
    groups = groups_of(A, B, prompt_id=jnp.array([2, 0]))
    table = phase_one(est, groups, est.init_memory(3))[2]["baseline"]["beta"]
    assert_close(table, [[4, 2], [1, 1], [2, 4]])
