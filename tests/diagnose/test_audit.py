"""What the audit says a token weighs is what the estimator room computes, for every entry of the catalogue."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.diagnose.advice import LEAST, RULES, advise
from rlvr_jax.diagnose.audit import CONTEXT, STRETCH, OnLog, bias, coefficients, curves, on_log, row_coefficients
from rlvr_jax.diagnose.batches import to_batches
from rlvr_jax.diagnose.foreign import Chunk
from rlvr_jax.estimators import catalogue, compare, make_estimator
from rlvr_jax.estimators.theory import binary_advantages, conditional_bias
from rlvr_jax.types import Batch, Groups

pytestmark = pytest.mark.usefixtures("quick_compiles")
SIZE, REFERENCE = 4, 8
LENGTH = (
    4 * REFERENCE
)  # the longest of a curve; rollouts have the shapes of a curve's cases, so one program serves both


def rows(step, group, reward, length, prompt=None, finished=None):
    n = len(step)
    group = np.asarray(group, np.uint64)
    return Chunk(
        step=np.asarray(step, np.int64),
        prompt=group if prompt is None else np.asarray(prompt, np.uint64),
        group=group,
        reward=np.asarray(reward, np.float64),
        correct=np.asarray(reward) > 0.5,
        length=np.asarray(length, np.float64),
        finished=np.ones(n, np.int8) if finished is None else np.asarray(finished, np.int8),
        content=np.arange(n, dtype=np.uint64),
    )


def random_log(seed=0, steps=3):
    """Groups of 2 to SIZE, some all right, all wrong or of one; prompts come again; lengths 1 … LENGTH."""
    rng = np.random.default_rng(seed)
    columns = []
    for step in range(steps):
        for group in range(1 + CONTEXT):
            size = 1 if group == 5 else SIZE if group == 3 else int(rng.integers(2, SIZE + 1))
            rate = [0.0, 1.0, 0.3, 0.5, 0.7, 0.5, 0.4, 0.6][group]
            for _ in range(size):
                right, length = float(rng.random() < rate), int(rng.integers(1, LENGTH + 1))
                columns.append((step, group, right, length, (group + step) % 8))
    return rows(*zip(*columns))


BATCHES = to_batches([random_log()])


def rollouts(step):
    """One step of BATCHES as the room takes it, responses with all their tokens."""
    b = BATCHES
    groups = Groups(
        outcome=jnp.asarray(b.outcome[step]),
        rewards=jnp.asarray(b.reward[step]),
        lengths=jnp.asarray(b.length[step], jnp.int32),
        finished=jnp.asarray(b.finished[step]),
        valid=jnp.asarray(b.valid[step]),
        prompt_id=jnp.asarray(b.prompt[step]),
    )
    return groups, batch_of(b.length[step], b.valid[step])


def batch_of(lengths, valid):
    """Rows with all their tokens, at ratio 1."""
    P, G = lengths.shape
    lengths = np.asarray(lengths).reshape(-1)
    return Batch(
        completion_mask=jnp.asarray(np.arange(LENGTH)[None] < lengths[:, None]),
        advantages=jnp.zeros(P * G),
        old_logprobs=jnp.full((P * G, LENGTH), -1.0),
        group=jnp.repeat(jnp.arange(P), G),
        valid=jnp.asarray(valid).reshape(-1),
    )


@functools.cache
def in_the_room():
    """Every entry on the first step, in one compiled call."""
    return compare(list(catalogue), *rollouts(0), completion_length=LENGTH)


def of_tokens(values_PG, mask_BT):
    return np.broadcast_to(np.asarray(values_PG).reshape(-1, 1), mask_BT.shape)[mask_BT]


@functools.cache
def by_the_audit():
    """The same of every entry by the audit."""
    groups, _ = rollouts(0)
    every = {name: make_estimator(name, completion_length=LENGTH) for name in catalogue}
    memory = lambda e: e.init_memory(BATCHES.prompts)
    return jax.jit(lambda: {name: row_coefficients(e, groups, memory(e))[:2] for name, e in every.items()})()


@pytest.mark.parametrize("name", catalogue)
def test_weights_on_rollouts_are_the_rooms(name):
    # weight times advantage; and the gradient of the loss at ratio 1, whatever ratio and clip an entry has
    found, advantages = by_the_audit()[name]
    room, mask = in_the_room()[name], np.asarray(rollouts(0)[1].completion_mask)
    expected = np.asarray(room.weights_BT) * np.asarray(room.advantages_PG).reshape(-1, 1)
    np.testing.assert_allclose(of_tokens(found, mask), expected[mask], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(of_tokens(found, mask), -np.asarray(room.gradient_BT)[mask], rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(advantages, room.advantages_PG, rtol=1e-5, atol=1e-6)


REMEMBER = ("ha_dw_dapo", "curverl", "mapp")


def test_those_that_remember_are_tried():
    memories = {slot for name in REMEMBER for slot in make_estimator(name, LENGTH).init_memory(1)}
    assert memories == {slot for name in catalogue for slot in make_estimator(name, LENGTH).init_memory(1)}


@pytest.mark.parametrize("name", REMEMBER)
def test_memory_moves_from_step_to_step(name):
    estimator = make_estimator(name, completion_length=LENGTH)
    found, advantages = coefficients(estimator, BATCHES)
    estimate, token_weights = jax.jit(estimator.estimate), jax.jit(estimator.token_weights)
    memory = estimator.init_memory(BATCHES.prompts)
    for step in range(len(BATCHES.step)):
        groups, batch = rollouts(step)
        selected, expected, memory, _ = estimate(groups, memory)
        batch = batch.replace(advantages=expected.reshape(-1), valid=selected.valid.reshape(-1))
        weights_BT = np.asarray(token_weights(estimator.init_params(), batch))
        mask = np.asarray(batch.completion_mask)
        product = (weights_BT * np.asarray(expected).reshape(-1, 1))[mask]
        np.testing.assert_allclose(of_tokens(found[step], mask), product, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(advantages[step], expected, rtol=1e-5, atol=1e-6)


CASES = ((0, 1, 2), (0, 3, 32), (1, 1, 32), (1, 2, 16), (0, 2, 8))  # sign, how many are right, length


@functools.cache
def case_in_the_room(sign, k, length):
    """The token weight that every entry gives to the response of a curve's case, by its own loss."""
    outcome = np.zeros((1 + CONTEXT, SIZE), np.float32)
    outcome[1:, : SIZE // 2], outcome[0, :k] = 1, 1
    lengths = np.full(outcome.shape, REFERENCE)
    mine = 0 if sign == 0 else SIZE - 1
    lengths[0, mine] = length
    every = jnp.ones(outcome.shape, bool)
    groups = Groups(
        outcome=jnp.asarray(outcome),
        rewards=jnp.asarray(outcome),
        lengths=jnp.asarray(lengths, jnp.int32),
        finished=every,
        valid=every,
        prompt_id=jnp.arange(1 + CONTEXT, dtype=jnp.int32),
    )
    found = compare(list(catalogue), groups, batch_of(lengths, every), completion_length=LENGTH)
    return {name: float(-result.gradient_BT[mine, 0]) for name, result in found.items()}


@pytest.mark.parametrize("name", catalogue)
def test_curves_are_the_rooms_token_weights(name):
    curve = curves(make_estimator(name, completion_length=LENGTH), SIZE, REFERENCE)
    assert curve.right.tolist() == [1, 2, 3] and curve.lengths.tolist() == [2, 4, 8, 16, 32]
    for sign, k, length in CASES:
        expected = case_in_the_room(sign, k, length)[name] * (1 + CONTEXT)
        value = curve.at(sign, k, length / REFERENCE)
        assert value * (curve.unit if curve.unit else 1 + CONTEXT) == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_curves_in_closed_form():
    # a right one of 8 with k right: √(q/p) times length; constant length and no std: q/½
    grpo = curves(make_estimator("grpo"), 8, 64)
    dr_grpo = curves(make_estimator("dr_grpo", completion_length=256), 8, 64)
    for k in (1, 2, 4, 6, 7):
        for stretch in STRETCH:
            assert grpo.at(0, k, stretch) == pytest.approx(np.sqrt((8 - k) / k) / stretch, rel=1e-4)
            assert grpo.at(1, k, stretch) == pytest.approx(-np.sqrt(k / (8 - k)) / stretch, rel=1e-4)
            assert dr_grpo.at(0, k, stretch) == pytest.approx((8 - k) / 4, rel=1e-5)
            assert dr_grpo.at(1, k, stretch) == pytest.approx(-k / 4, rel=1e-5)
    right, wrong = binary_advantages("maxrl", 2, 8)
    maxrl = curves(make_estimator("maxrl"), 8, 64)
    assert maxrl.at(0, 2) / maxrl.at(1, 2) == pytest.approx(right / wrong, rel=1e-5)


@pytest.mark.parametrize(("size", "reference", "says"), [(1, 64, "group_size=1"), (8, 2, "reference=2")])
def test_curves_refuse(size, reference, says):
    with pytest.raises(ValueError, match=says):
        curves(make_estimator("grpo"), size, reference)


# on a log, by hand: two groups of two, dr_grpo (A = ±½, every token alike)
#   group 0: right 10 tokens, wrong 30;  group 1: both wrong, 20 and 40
HAND = rows([0] * 4, [0, 0, 1, 1], [1, 0, 0, 0], [10, 30, 20, 40], finished=[1, 0, 1, 1])


def test_on_log_by_hand():
    found = on_log(make_estimator("dr_grpo", completion_length=40), to_batches([HAND]))
    # weights of responses: ½·10 and ½·30 of 20 in all; the quarters hold one length each (10, 20, 30, 40)
    assert found.by_length.tolist() == [[0.25, 0], [0, 0], [0, 0.75], [0, 0]]
    assert found.rows_by_length.tolist() == [[0.25, 0], [0, 0.25], [0, 0.25], [0, 0.25]]
    assert found.by_band.tolist() == [0, 0, 1, 0, 0]
    assert found.groups_by_band.tolist() == [0.5, 0, 0.5, 0, 0]
    assert (found.zero_groups, found.effective_groups, found.groups) == (0.5, 1.0, 2.0)
    assert (found.positive, found.lone, found.lone_groups) == (0.25, 1.0, 0.5)
    assert found.gap == -20 and found.coupling == pytest.approx(-1)
    assert found.cut == 0.75
    # under grpo both responses of group 0 weigh alike, and a token of the short one three times as much
    found = on_log(make_estimator("grpo"), to_batches([HAND]))
    assert found.by_length[0, 0] == pytest.approx(0.5) and found.positive == pytest.approx(0.5)
    assert found.token_by_length[0, 0] == pytest.approx(3 * found.token_by_length[2, 1])


def test_effective_groups():
    # two groups with the same weight count as 2; one with nothing counts not
    even = rows([0] * 6, [0, 0, 1, 1, 2, 2], [1, 0, 1, 0, 0, 0], [10] * 6)
    assert on_log(make_estimator("grpo"), to_batches([even])).effective_groups == pytest.approx(2)


def test_a_log_without_contrast_has_no_weight():
    same = rows([0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0], [5, 9, 7, 7])
    found = on_log(make_estimator("grpo"), to_batches([same]))
    assert found.zero_groups == 1 and np.isnan(found.coupling) and np.isnan(found.positive)
    assert advise(curves(make_estimator("grpo"), 2, 8), found, bias(to_batches([same])))[0].name == "no signal"


def test_bias_is_the_theorem_at_the_observed_rates():
    # one prompt, four groups of 4 with 1, 1, 1, 0 right: p = (3 + ½)/17
    table = rows(np.repeat(np.arange(4), 4), [0] * 16, ([1, 0, 0, 0] * 3) + [0] * 4, [5] * 16)
    found = bias(to_batches([table]))
    assert found.group_size == 4 and found.pass_rate == 3 / 16
    assert found.at_mean == pytest.approx(conditional_bias(3 / 16, 4))
    assert found.hard == pytest.approx(conditional_bias(3.5 / 17, 4)) and np.isnan(found.easy)


# batches


def test_batches_pad_and_keep_order():
    table = rows([1, 0, 1, 0, 1], [7, 3, 7, 3, 8], [1, 0, 0, 1, 1], [1, 2, 3, 4, 5])
    found = to_batches([Chunk(*(c[:2] for c in table)), Chunk(*(c[2:] for c in table))])
    assert found.step.tolist() == [0, 1] and found.valid.shape == (2, 2, 2)
    assert found.length[0, 0].tolist() == [2, 4] and found.length[1].tolist() == [[1, 3], [5, 0]]
    assert found.valid[1].tolist() == [[True, True], [True, False]] and not found.valid[0, 1].any()
    assert found.group_size == 2 and found.prompts == 3


def test_rewards_outside_the_unit_interval_become_verdicts():
    found = to_batches([rows([0, 0], [0, 0], [1.0, -1.0], [1, 2])])
    assert found.outcome.ravel().tolist() == [1, 0] and found.reward.ravel().tolist() == [1, -1]
    graded = to_batches([rows([0, 0], [0, 0], [0.25, 0.75], [1, 2])])
    assert graded.outcome.ravel().tolist() == [0.25, 0.75]


def test_a_long_log_is_thinned_to_every_nth_step():
    chunks = [rows([step] * 10, [0] * 10, [1] * 10, [1] * 10) for step in range(0, 640, 10)]
    found = to_batches(chunks, most_rows=100)
    assert found.every == 8 and found.step.tolist() == list(range(0, 640, 80))


def test_groups_too_unequal_are_refused(monkeypatch):
    monkeypatch.setattr("rlvr_jax.diagnose.batches.MOST_PADDED", 1000)
    table = rows([0] * 200, [0] * 100 + list(range(1, 101)), [1] * 200, [1] * 200)
    with pytest.raises(ValueError, match=r"largest group has 100 completions.*--prompt"):
        to_batches([table])


# advice


def planted(**changes):
    """Numbers at which nothing stands out, with some replaced."""
    even = np.full((4, 2), 0.125)
    found = OnLog(
        by_length=even,
        rows_by_length=even,
        token_by_length=np.ones((4, 2)),
        by_band=np.asarray([0, 0.2, 0.6, 0.2, 0]),
        groups_by_band=np.asarray([0, 0.2, 0.6, 0.2, 0]),
        zero_groups=0.0,
        effective_groups=8.0,
        groups=8.0,
        positive=0.5,
        coupling=0.0,
        gap=0.0,
        lone=0.05,
        lone_groups=0.05,
        cut=0.0,
    )
    return found._replace(**changes)


LONG = np.asarray([[0.1, 0.1], [0.1, 0.1], [0.1, 0.1], [0.1, 0.3]])
CHEAP = np.asarray([[1, 2.0], [1, 1], [1, 1], [1, 0.5]])
STANDS_OUT = {
    "no signal": {"zero_groups": 0.6, "groups_by_band": np.asarray([0.5, 0.1, 0.2, 0.1, 0.1])},
    "lopsided groups": {"by_band": np.asarray([0, 0.4, 0.2, 0.4, 0])},
    "wrong and long is cheap": {"token_by_length": CHEAP},
    "long ones dominate": {"by_length": LONG},
    "signs are unequal": {"positive": 0.3, "gap": -100.0, "coupling": -0.4},
    "lone successes": {"lone": 0.5},
    "cut responses": {"cut": 0.4},
}
EVEN = bias(to_batches([rows([0] * 4, [0] * 4, [1, 1, 0, 0], [5] * 4)]))
CURVE = curves(make_estimator("grpo"), 8, 64)


def test_nothing_stands_out():
    assert advise(CURVE, planted(), EVEN) == []


@pytest.mark.parametrize("name", STANDS_OUT)
def test_what_stands_out_is_said(name):
    made = advise(CURVE, planted(**STANDS_OUT[name]), EVEN)
    assert [item.name for item in made] == [name]
    assert "arXiv:" in made[0].says and "arXiv:" in made[0].disagrees and made[0].says != made[0].disagrees


def test_a_lone_success_that_weighs_no_more_is_no_finding():
    # of a group of two it is half of the group; under sign_balance it weighs like any other
    for name, size in (("grpo", 2), ("sign_balance", 8)):
        assert advise(curves(make_estimator(name), size, 64), planted(lone=0.9), EVEN) == []


def test_the_bias_is_said():
    made = advise(CURVE, planted(), EVEN._replace(hard=0.2))
    assert [item.name for item in made] == ["the mean misses"] and "+0.200" in made[0].finding


def test_advice_is_ranked_and_every_rule_has_a_threshold():
    every = {}
    for changes in STANDS_OUT.values():
        every |= changes
    made = advise(CURVE, planted(**every), EVEN._replace(hard=0.2))
    assert [item.score for item in made] == sorted((item.score for item in made), reverse=True)
    assert {item.name for item in made} == set(LEAST) and len(RULES) == len(LEAST)


def test_what_is_suggested_can_be_made():
    for slots in (
        {"select": "informative"},
        {"scale": "none"},
        {"aggregate": "constant(length=64)"},
        {"aggregate": "sequence_mean"},
        {"aggregate": "length_power(alpha=0.5)"},
        {"aggregate": "balanced"},
        {"baseline": "sign(scope='batch')", "scale": "none"},
        {"reweight": "history(variant='anchor')"},
        {"shape": "overlong"},
    ):
        make_estimator("grpo", completion_length=64, **slots)


def test_curve_without_its_point_of_reference_stays_finite():
    # pass@k of a half-right group of 8 with k = 4 has weight; of a group of 4 it may have none
    found = curves(make_estimator("pass_at_k"), 4, 64)
    assert found.unit == 0 and np.isfinite(found.values).all()
