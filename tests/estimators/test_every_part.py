"""One battery over every registered part: whatever is registered later is held to the same.

A part runs in `grpo` with its slot replaced, except where the invariances it declares are tested: there it
runs alone.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import phase_one, phase_two, random_batch, random_groups

from rlvr_jax.estimators import SLOTS, make_estimator, registries
from rlvr_jax.estimators.base import DECLARABLE, NEEDS
from rlvr_jax.masked import masked

# options with arguments that reach another branch, besides every option at its defaults
MORE = {
    "shape": ["overlong(max_length=6, cache=2)", "overlong(max_length=6, signed=False)"],
    "select": ["pass_rate(low=0.3, high=0.6)"],
    "baseline": ["sign(scope='group')", "stratified(ddof=1)", "pass_at_k(k=2)"],
    "scale": ["group_std(ddof=0, eps=0.0)", "batch_std(ddof=0, eps=0.0, of='rewards')"],
    "reweight": ["history(variant='window')"],
    "correct": ["truncated(level='sequence')", "masked(level='geometric')"],
    "clip": ["ppo(dual=3.0)"],
    "kl": ["k1(beta=0.1, allow=True)"],
    "aggregate": ["token_mean(scope='group')", "learnable(start=0.7)", "constant(length=6)"],
}
# at their defaults these wait for a length, or are refused
NOT_ALONE = {("shape", "overlong"), ("aggregate", "constant"), ("kl", "k1")}


def options(slot):
    names = [name for name in registries[slot].names() if (slot, name) not in NOT_ALONE]
    return [(slot, text) for text in names + MORE.get(slot, [])]


PHASE_ONE = [option for slot in SLOTS[:5] for option in options(slot)]
TRANSFORMS = [option for option in PHASE_ONE if option[0] in ("baseline", "scale", "reweight")]
PHASE_TWO = [option for slot in SLOTS[5:] for option in options(slot)]


def estimator(slot, text):
    slots = {slot: text}
    if (slot, text) == ("ratio", "none"):
        slots["clip"] = "none"
    return make_estimator("grpo", **slots)


def assert_equal(a, b, tolerance=2e-6):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


def poisoned(x, keep, value):
    return jnp.where(keep, x, jnp.asarray(value, x.dtype))


@pytest.mark.parametrize("slot, text", PHASE_ONE)
def test_phase_one(slot, text):
    est = estimator(slot, text)
    groups = random_groups(0)
    memory = est.init_memory(16)
    first = phase_one(est, groups, memory)  # a memory with a past
    selected, advantages, moved = phase_one(est, groups, first[2])

    assert advantages.dtype == jnp.float32 and advantages.shape == groups.outcome.shape
    assert np.isfinite(advantages).all()
    assert (np.asarray(advantages)[~np.asarray(selected.valid)] == 0).all()
    assert jax.tree.structure(moved) == jax.tree.structure(memory)
    assert [x.dtype for x in jax.tree.leaves(moved)] == [x.dtype for x in jax.tree.leaves(memory)]

    # what stands at invalid rows is nobody's business
    poison = groups.replace(
        outcome=poisoned(groups.outcome, groups.valid, jnp.nan),
        rewards=poisoned(groups.rewards, groups.valid, jnp.inf),
        lengths=poisoned(groups.lengths, groups.valid, -(10**6)),
        stratum=poisoned(groups.stratum, groups.valid, 17),
    )
    assert_equal(phase_one(est, poison, first[2])[1:3], (advantages, moved), 0)

    # permuting prompts permutes; permuting completions permutes
    rng = np.random.default_rng(1)
    prompts = rng.permutation(groups.outcome.shape[0])
    shuffled = jax.tree.map(lambda x: x[prompts], groups)
    assert_equal(phase_one(est, shuffled, first[2])[1:3], (advantages[prompts], moved))
    order = rng.permutation(groups.outcome.shape[1])
    shuffled = jax.tree.map(lambda x: x[:, order] if x.ndim == 2 else x, groups)
    assert_equal(phase_one(est, shuffled, first[2])[1:3], (advantages[:, order], moved))

    # nothing valid: nothing happens
    nothing = groups.replace(valid=jnp.zeros_like(groups.valid))
    _, none, still = phase_one(est, nothing, moved)
    assert (np.asarray(none) == 0).all()
    assert_equal(still, moved, 0)


NO_JIT = ["informative", "posterior"]


@pytest.mark.parametrize("slot, text", [option for option in PHASE_ONE if option[1] in NO_JIT])
def test_no_jit_is_the_same(slot, text):
    est, groups = estimator(slot, text), random_groups(2)
    memory = est.init_memory(16)
    assert_equal(est.estimate(groups, memory)[1:3], phase_one(est, groups, memory)[1:3])


@pytest.mark.parametrize("slot, text", TRANSFORMS)
def test_declared_invariances(slot, text):
    """A transform alone, on the centred values that a scale or a reweighting would meet."""
    part = registries[slot].make(text)
    assert part.needs <= NEEDS and part.declares <= DECLARABLE
    groups = random_groups(3)
    # every group but the constant one has both classes, so that no batch-level scale is 0
    valid = np.asarray(groups.valid)
    values = groups.rewards if slot == "baseline" else jnp.where(groups.valid, groups.rewards - 0.4, 0.0)
    if slot == "scale":
        groups = groups.replace(rewards=values)
    memory = part.init(16) if part.init else {}

    def run(change=lambda x: x):
        changed = groups.replace(rewards=masked(change(groups.rewards), groups.valid))
        return np.asarray(masked(part.update(masked(change(values), groups.valid), memory, changed)[0], groups.valid))

    plain = run()
    declared = part.declares
    if "shift_invariant" in declared:
        np.testing.assert_allclose(run(lambda x: x + 0.5), plain, atol=3e-5)
    if "scale_equivariant" in declared:
        np.testing.assert_allclose(run(lambda x: 4.0 * x), 4.0 * plain, rtol=1e-5, atol=1e-6)
    if "scale_invariant" in declared:
        np.testing.assert_allclose(run(lambda x: 4.0 * x), plain, rtol=2e-5, atol=1e-6)
    if "zero_sum" in declared:
        np.testing.assert_allclose(plain.sum(axis=1), 0, atol=1e-5)
    if "zero_sum_batch" in declared:
        np.testing.assert_allclose(plain.sum(), 0, atol=1e-5)
    if "zero_without_contrast" in declared:
        assert (plain[1] == 0).all()
    if "sign_preserving" in declared:
        kept = np.sign(plain) == np.sign(np.where(valid, values, 0))
        assert (kept | (plain == 0)).all()


@pytest.mark.parametrize("slot, text", PHASE_TWO)
def test_phase_two(slot, text):
    est = estimator(slot, text)
    params, (logprobs, batch) = est.init_params(), random_batch(0)
    found = phase_two(est, params, logprobs, batch)
    counts = np.asarray(batch.completion_mask & batch.valid[:, None])
    weights = np.asarray(found.weights)

    assert weights.dtype == np.float32 and found.losses.dtype == jnp.float32
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(found))
    assert (weights >= 0).all()
    assert (weights[~counts] == 0).all() and (np.asarray(found.losses)[~counts] == 0).all()
    assert (np.asarray(found.gradient)[~counts] == 0).all()
    np.testing.assert_allclose(found.loss, (weights * np.asarray(found.losses)).sum(), rtol=1e-5, atol=1e-6)

    # NaN and infinities in masked places reach neither values nor gradients
    for value in (jnp.nan, jnp.inf, -jnp.inf):
        rows = functools.partial(poisoned, keep=jnp.asarray(counts), value=value)
        hostile = batch.replace(
            advantages=poisoned(batch.advantages, batch.valid, value),
            old_logprobs=rows(batch.old_logprobs),
            behaviour_logprobs=rows(batch.behaviour_logprobs),
            reference_logprobs=rows(batch.reference_logprobs),
        )
        assert_equal(phase_two(est, params, rows(logprobs), hostile), found, 0)

    # rows may come in any order, and group ids may be any numbers
    order = np.random.default_rng(2).permutation(len(counts))
    shuffled = jax.tree.map(lambda x: x[order], batch.replace(group=1000 - 3 * batch.group))
    moved = phase_two(est, params, logprobs[order], shuffled)
    assert_equal(moved[:2], jax.tree.map(lambda x: x[order], found[:2]))
    assert_equal((moved.gradient, moved.loss, moved.slope), (found.gradient[order], found.loss, found.slope))

    # no token anywhere: loss 0, gradient 0
    empty = phase_two(est, params, logprobs, batch.replace(completion_mask=jnp.zeros_like(batch.completion_mask)))
    assert all((np.asarray(x) == 0).all() for x in jax.tree.leaves(empty))
    nobody = phase_two(est, params, logprobs, batch.replace(valid=jnp.zeros_like(batch.valid)))
    assert all((np.asarray(x) == 0).all() for x in jax.tree.leaves(nobody))


WHOLE_ROW = [("ratio", "sequence"), ("ratio", "geometric"), ("correct", "truncated(level='sequence')")]


@pytest.mark.parametrize("slot, text", options("aggregate") + WHOLE_ROW)
def test_padding_changes_nothing(slot, text):
    """Five more masked columns, full of NaN."""
    est = estimator(slot, text)
    params, (logprobs, batch) = est.init_params(), random_batch(4)
    found = phase_two(est, params, logprobs, batch)
    wider = lambda x: jnp.pad(x, ((0, 0), (0, 5)), constant_values=False if x.dtype == bool else jnp.nan)
    padded = jax.tree.map(lambda x: wider(x) if x.ndim == 2 else x, batch)
    T = logprobs.shape[1]
    other = phase_two(est, params, wider(logprobs), padded)
    assert_equal(other.loss, found.loss)
    assert_equal(other.gradient[:, :T], found.gradient)
    assert_equal(other.weights[:, :T], found.weights)
    assert (np.asarray(other.weights)[:, T:] == 0).all() and (np.asarray(other.gradient)[:, T:] == 0).all()


UNIT_SUM = [(s, text) for s, text in options("aggregate") if "unit_sum" in registries[s].make(text).declares]


@pytest.mark.parametrize("slot, text", UNIT_SUM)
def test_declared_sum_of_weights(slot, text):
    _, batch = random_batch(5)
    batch = batch.replace(completion_mask=batch.completion_mask.at[3, 0].set(True))
    weights = estimator(slot, text).token_weights({}, batch)
    np.testing.assert_allclose(weights.sum(), 1.0, rtol=1e-6)


@pytest.mark.parametrize("slot, text", options("clip") + options("ratio"))
def test_on_policy_gradient_is_the_plain_policy_gradient(slot, text):
    """At ratio 1, with or without old log-probabilities, every clip and ratio has gradient −A·weight."""
    est = estimator(slot, text)
    logprobs, batch = random_batch(6)
    counts = batch.completion_mask & batch.valid[:, None]
    for old in (None, logprobs):
        found = phase_two(est, est.init_params(), logprobs, batch.replace(old_logprobs=old))
        expected = -found.weights * jnp.where(counts, batch.advantages[:, None], 0.0)
        assert_equal(found.gradient, expected)


@pytest.mark.parametrize("slot, text", options("clip"))
def test_advantages_per_token(slot, text):
    """f32[B, T] advantages that repeat the row's give what f32[B] gives."""
    est = estimator(slot, text)
    params, (logprobs, batch) = est.init_params(), random_batch(7)
    wide = jnp.where(batch.completion_mask, batch.advantages[:, None], jnp.nan)
    assert_equal(
        phase_two(est, params, logprobs, batch.replace(advantages=wide)),
        phase_two(est, params, logprobs, batch),
    )
