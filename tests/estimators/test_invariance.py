"""What must not change the gradient: micro-batches, devices, hostile masks, the order of everything."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from runs import P, compiled, entry, phase_one, phase_two, random_batch, take_rows, to_shape
from tiny import on_devices

from rlvr_jax.estimators import SLOTS, catalogue, make_estimator
from rlvr_jax.types import Groups


@compiled
def accumulated(est, params, logprobs, batch):
    """{rows per micro-batch: (slope, gradient)} by `scan`, as a trainer would add them up."""
    rows = logprobs.shape[0]

    def value(params, piece, index, size):
        weights = est.token_weights(params, batch).reshape(-1, size, logprobs.shape[1])[index]
        return (weights * est.token_losses(*piece)[0]).sum()

    def over(size):
        pieces = jax.tree.map(lambda x: x.reshape(rows // size, size, *x.shape[1:]), (logprobs, batch))

        def step(slope, piece_and_index):
            (lp, part), index = piece_and_index
            gradient = jax.grad(lambda params, lp: value(params, (lp, part), index, size), argnums=(0, 1))
            more, gradient_BT = gradient(params, lp)
            return jax.tree.map(jnp.add, slope, more), gradient_BT

        zero = jax.tree.map(jnp.zeros_like, params)
        slope, gradient = jax.lax.scan(step, zero, (pieces, jnp.arange(rows // size)))
        return slope, gradient.reshape(logprobs.shape)

    return {size: over(size) for size in (1, 4)}


@pytest.mark.parametrize("name", list(catalogue))
def test_micro_batches_do_not_change_the_gradient(name):
    """12 rows in micro-batches of 1 and of 4: the weights are those of the whole update, λ's gradient
    included."""
    est = entry(name, SLOTS[5:])
    params = jax.tree.map(lambda x: x + 0.3, est.init_params())
    logprobs, batch = random_batch(8)
    whole = phase_two(est, params, logprobs, batch)
    largest = float(np.abs(whole.gradient).max())
    for slope, gradient in accumulated(est, params, logprobs, batch).values():
        np.testing.assert_allclose(gradient, whole.gradient, rtol=1e-6, atol=1e-6 * largest)
        for ours, theirs in zip(jax.tree.leaves(slope), jax.tree.leaves(whole.slope), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-6)


ON_EIGHT_DEVICES = """
import sys
sys.path.insert(0, "tests/estimators")
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from runs import SLOTS, entry, phase_one, phase_two, random_batch, random_groups

mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
on_rows = lambda x: jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
everywhere = lambda x: jax.device_put(x, NamedSharding(mesh, PartitionSpec()))
largest = lambda ours, theirs: max(
    float(np.abs(np.asarray(x) - np.asarray(y)).max())
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
)
result = {}
logprobs, batch = random_batch(9, P=4, G=4)
for name in PHASE_TWO:
    est = entry(name, SLOTS[5:])
    params = est.init_params()
    sharded = phase_two(est, everywhere(params), on_rows(logprobs), on_rows(batch))
    assert len(sharded.gradient.sharding.device_set) == 8
    result[name + " loss"] = largest(sharded, phase_two(est, params, logprobs, batch))
groups = random_groups(1, P=8)
for name in PHASE_ONE:
    est = entry(name, SLOTS[:5])
    memory = est.init_memory(8)
    sharded = phase_one(est, on_rows(groups), everywhere(memory))
    result[name + " advantages"] = largest(sharded[1:], phase_one(est, groups, memory)[1:])
"""


def test_eight_devices_change_nothing():
    """Rows (and prompts) over eight CPU devices: weights, losses, gradients, advantages and memory are the same."""
    names = 'PHASE_ONE, PHASE_TWO = ["ha_dw_grpo"], ["lambda_grpo", "balanced", "gspo"]'
    found = on_devices(8, names + ON_EIGHT_DEVICES)
    assert set(found) == {"lambda_grpo loss", "balanced loss", "gspo loss", "ha_dw_grpo advantages"}
    assert max(found.values()) < 2e-6, found


@pytest.mark.slow
def test_eight_devices_change_nothing_in_any_entry():
    """The same for the whole catalogue; compiling everything twice takes a minute or two."""
    names = "from rlvr_jax.estimators import catalogue\nPHASE_ONE = PHASE_TWO = list(catalogue)"
    found = on_devices(8, names + ON_EIGHT_DEVICES)
    assert len(found) == 2 * len(catalogue)
    assert max(found.values()) < 5e-6, found


# ---- Hypothesis, over fixed shapes so that nothing compiles twice

SHAPE = (4, 5)
PERCENT = st.floats(0, 1, width=32, allow_subnormal=False)
OUTCOMES = hnp.arrays(np.float32, SHAPE, elements=st.one_of(st.sampled_from([0.0, 1.0]), PERCENT))
VALID = hnp.arrays(bool, SHAPE)
LENGTHS = hnp.arrays(np.int32, SHAPE, elements=st.integers(0, 9))
ADVANTAGE_ENTRIES = [
    "grpo",
    "rloo",
    "stratified_grpo",
    "sign_balance_group",
    "opo",
    "maxrl",
    "mapp",
    "pass_at_k",
    "bnpo",
    "reinforce_pp",
    "ha_dw_grpo",
    "curverl",
    "maxnorm_ac",
    "dapo",
]
QUICK = settings(max_examples=15, deadline=None)


@pytest.mark.parametrize("name", ADVANTAGE_ENTRIES)
def test_any_groups(name):
    est = entry(name, SLOTS[:5])

    @QUICK
    @given(OUTCOMES, VALID, LENGTHS, st.permutations(range(4)), st.permutations(range(5)))
    def check(outcome, valid, lengths, prompts, completions):
        groups = Groups(outcome=jnp.asarray(outcome), valid=jnp.asarray(valid), lengths=jnp.asarray(lengths))
        memory = est.init_memory(2 * P)
        selected, advantages, moved = phase_one(est, to_shape(groups), memory)
        assert np.isfinite(advantages).all()
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(moved))
        assert (np.asarray(advantages)[~np.asarray(selected.valid)] == 0).all()
        advantages = np.asarray(advantages)[:4, :5]
        index = np.ix_(prompts, completions)
        shuffled = jax.tree.map(lambda x: x[index] if x.ndim == 2 else x[np.array(prompts)], groups)
        other = phase_one(est, to_shape(shuffled), memory)[1][:4, :5]
        scale = max(np.abs(advantages).max(), 1.0)
        np.testing.assert_allclose(other, advantages[index], atol=2e-4 * scale)

    check()


@pytest.mark.parametrize("name", ["grpo", "rloo", "opo", "maxnorm_ac"])
def test_a_shift_of_all_rewards_changes_nothing(name):
    """Multiples of 1/8 and a shift by one of them are exact in float32, so nothing hides behind a
    tolerance."""
    est = entry(name, SLOTS[:5])
    eighths = st.integers(0, 8).map(lambda k: k / 8)

    @QUICK
    @given(hnp.arrays(np.float32, SHAPE, elements=eighths), VALID, st.integers(-16, 16).map(lambda k: k / 8))
    def check(rewards, valid, shift):
        def run(r):
            fields = {"outcome": r, "valid": valid, "lengths": np.ones(SHAPE, np.int32)}
            return phase_one(est, to_shape(Groups(**jax.tree.map(jnp.asarray, fields))), {})[1]

        np.testing.assert_allclose(run(rewards + np.float32(shift)), run(rewards), atol=3e-6)

    check()


SCALED = [  # entry with a scale that divides by exactly the spread, whether advantages stay or follow
    ("grpo", {"scale": "group_std(eps=0.0)"}, 0),
    ("reinforce_pp_baseline", {"scale": "batch_std(eps=0.0)"}, 0),
    ("rloo", {}, 1),
    ("grpo_no_std", {}, 1),
    ("opo", {}, 1),
]


@pytest.mark.parametrize("name, slots, power", SCALED)
def test_a_scale_of_all_rewards(name, slots, power):
    """Powers of two are exact in float32: advantages are the same bits, or the same bits times the scale."""
    est = make_estimator("grpo", **{slot: entry(name).slots[slot] for slot in SLOTS[:5]} | slots)
    eighths = st.integers(0, 8).map(lambda k: k / 8)

    @QUICK
    @given(hnp.arrays(np.float32, SHAPE, elements=eighths), VALID, st.integers(-6, 6).map(lambda k: 2.0**k))
    def check(rewards, valid, scale):
        def run(r):
            fields = {"outcome": r, "valid": valid, "lengths": np.ones(SHAPE, np.int32)}
            return phase_one(est, to_shape(Groups(**jax.tree.map(jnp.asarray, fields))), {})[1]

        np.testing.assert_allclose(run(rewards * np.float32(scale)), run(rewards) * scale**power, rtol=1e-6)

    check()


@compiled
def _gradient_of_piece(est, weights, logprobs, batch):
    return jax.grad(lambda lp: (weights * est.token_losses(lp, batch)[0]).sum())(logprobs)


@pytest.mark.parametrize("name", ["grpo", "gspo", "lambda_grpo"])
def test_any_cut_into_micro_batches(name):
    """12 rows in any order, cut into micro-batches of any sizes: each token's gradient is that of the whole."""
    est = entry(name, SLOTS[5:])
    params = jax.tree.map(lambda x: x + 0.3, est.init_params())
    logprobs, batch = random_batch(8)
    whole = phase_two(est, params, logprobs, batch)
    largest = float(np.abs(whole.gradient).max())

    @QUICK
    @given(st.permutations(range(12)), st.sets(st.integers(1, 11)))
    def check(order, cuts):
        for rows in np.split(np.array(order), sorted(cuts)):
            piece = _gradient_of_piece(est, whole.weights[rows], logprobs[rows], take_rows(batch, rows))
            np.testing.assert_allclose(piece, whole.gradient[rows], rtol=1e-6, atol=1e-6 * largest)

    check()


HOSTILE = [
    {},
    {"ratio": "sequence"},
    {"ratio": "geometric"},
    {"clip": "cispo"},
    {"kl": "k3"},
    {"aggregate": "balanced"},
    {"aggregate": "learnable(start=0.7)"},
    {"correct": "truncated"},
]


@pytest.mark.parametrize("slots", HOSTILE)
def test_any_mask(slots):
    est = make_estimator("grpo", **slots)
    logprobs, batch = random_batch(0)
    shape = logprobs.shape
    poison = st.sampled_from([np.nan, np.inf, -np.inf, -1e30, 1e30])

    @QUICK
    @given(hnp.arrays(bool, shape), hnp.arrays(bool, shape[:1]), poison)
    def check(mask, valid, value):
        counts = mask & valid[:, None]
        dirty = lambda x: jnp.asarray(np.where(counts, x, value), jnp.float32)
        hostile = batch.replace(
            completion_mask=jnp.asarray(mask),
            valid=jnp.asarray(valid),
            advantages=jnp.asarray(np.where(valid, batch.advantages, value), jnp.float32),
            old_logprobs=dirty(batch.old_logprobs),
            behaviour_logprobs=dirty(batch.behaviour_logprobs),
            reference_logprobs=dirty(batch.reference_logprobs),
        )
        found = phase_two(est, est.init_params(), dirty(logprobs), hostile)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(found))
        assert all((np.asarray(x)[~counts] == 0).all() for x in (found.weights, found.losses, found.gradient))

    check()
