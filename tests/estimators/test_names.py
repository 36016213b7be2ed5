"""Names, strings and pages: what a person meets; compare, sweep and compat."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import phase_one, phase_two, random_batch

from rlvr_jax.estimators import (
    SLOTS,
    Comparison,
    catalogue,
    catalogue_table,
    catalogue_text,
    compare,
    compat,
    describe,
    make_estimator,
    registries,
    sweep,
)
from rlvr_jax.estimators.base import to_groups, to_rows
from rlvr_jax.estimators.clip import ppo
from rlvr_jax.types import Groups

WRONG = [
    ({"name": "grop"}, ["estimator", "'grop'", "'grpo'", "'rloo'"]),
    ({"clipp": "ppo"}, ["'clipp'", "'clip'", "'aggregate'"]),
    ({"scale": "group_sdt"}, ["scale", "'group_sdt'", "'group_std'", "'batch_std'"]),
    ({"clip": "ppo(lo=0.1)"}, ["clip", "'lo'", "'low'", "high=0.2"]),
    ({"clip": "ppo(low=-0.1)"}, ["clip=ppo", "low=-0.1"]),
    ({"clip": "ppo(low='x')"}, ["clip=ppo", "'x'"]),
    ({"clip": "ppo(0.1)"}, ["clip", "keyword"]),
    ({"clip": "ppo("}, ["clip", "ppo("]),
    ({"clip": "ppo(low=f())"}, ["low", "literal"]),
    ({"baseline": "stratified(alpha=1.5)"}, ["alpha=1.5", "at most 1"]),
    ({"baseline": "sign(scope='grp')"}, ["scope", "'group'", "'batch'"]),
    ({"aggregate": "constant(length=0)"}, ["length=0", "above 0"]),
    ({"aggregate": "constant(length='tokens')"}, ["'tokens'", "'completion'"]),
    ({"aggregate": "length_power(alpha=-1)"}, ["alpha=-1"]),
    ({"completion_length": -3}, ["completion_length=-3", "positive"]),
    ({"ratio": "none"}, ["clip", "ratio", "'none'"]),
    ({"kl": "k1"}, ["k1", "allow=True", "'k3'"]),
]


@pytest.mark.parametrize("arguments, words", WRONG)
def test_errors_name_the_slot_the_value_and_the_choices(arguments, words):
    with pytest.raises(ValueError) as error:
        make_estimator(**{"name": "grpo", **arguments})
    assert all(word in str(error.value) for word in words), str(error.value)


def test_missing_reference_and_missing_memory():
    logprobs, batch = random_batch(0)
    with pytest.raises(ValueError, match="reference_logprobs"):
        jax.eval_shape(make_estimator("grpo", kl="k3").loss, {}, logprobs, batch.replace(reference_logprobs=None))
    groups = Groups(outcome=jnp.ones((1, 2)), lengths=jnp.ones((1, 2), jnp.int32))
    with pytest.raises(ValueError, match=r"reweight.*init_memory"):
        jax.eval_shape(make_estimator("ha_dw_grpo").advantages, groups, {})


def test_description_is_the_difference_from_the_nearest_entry():
    assert make_estimator("grpo").describe() == "grpo"
    clip = "ppo(low=0.2, high=0.28)"
    assert describe(make_estimator("grpo", clip=clip)) == f"grpo + clip={clip}"
    assert make_estimator("grpo", clip="ppo( low=0.2,high=0.28 )").describe() == f"grpo + clip={clip}"
    assert make_estimator("grpo", scale="none").describe() == "grpo_no_std"
    assert make_estimator("dr_grpo", completion_length=64).describe() == "dr_grpo"
    assert make_estimator("grpo", clip="ppo(high=0.2, dual=None)").describe() == "grpo"  # the defaults, spelt out
    for name in catalogue:
        assert make_estimator(name, 64).describe() == name


def test_empty_overrides_are_the_entrys_own():
    est = make_estimator("dapo", completion_length=100, clip="", kl=None)
    assert est == make_estimator("dapo", completion_length=100)
    assert est.slots["shape"] == "overlong(max_length=100)"
    assert tuple(est.slots) == SLOTS


def test_estimators_are_static_values():
    first, second = make_estimator("grpo"), make_estimator("grpo", clip="ppo(low=0.2, high=0.2)")
    assert first == second and hash(first) == hash(second)
    assert first != make_estimator("grpo", clip="ppo(high=0.3)")
    part = ppo(high=0.3)
    assert first.with_parts(clip=part) != first.with_parts(clip=part)  # cannot be told apart, so never equal


def test_declarations():
    assert make_estimator("grpo").needs == {"old"}
    assert make_estimator("rloo").needs == frozenset()
    assert make_estimator("rloo", kl="k3").needs == {"reference"}
    assert make_estimator("mapp").needs == {"old", "prompt_id"}
    assert make_estimator("reinforce").min_group == 1 and make_estimator("grpo").min_group == 2
    assert make_estimator("grpo").init_params() == {} and make_estimator("grpo").init_memory(3) == {}
    assert make_estimator("lambda_grpo").init_params()["aggregate"]["lambda"] == 0.0
    assert set(make_estimator("ha_dw_dapo", 8).init_memory(3)) == {"reweight"}


def test_tables_and_pages():
    lines = catalogue_table().splitlines()
    assert len(lines) == len(catalogue) + 2
    assert all(line.count("|") == len(SLOTS) + 2 for line in lines)
    assert [line.split()[0] for line in catalogue_text().splitlines()] == list(catalogue)
    page = describe("balanced")
    for part in (catalogue["balanced"].equation, "2605.04077", "Departs:", "0.1875", "-0.0208333"):
        assert part in page
    for name, entry in catalogue.items():
        assert entry.reference and entry.equation and set(entry.slots) <= set(SLOTS), name


def test_every_option_says_what_it_is():
    """One sentence first, at most 15 lines, and a source where it has one."""
    for registry in registries.values():
        for name, factory in registry.factories.items():
            text = factory.__doc__
            assert text and len(text.strip().splitlines()) <= 15, name


def groups_and_batch():
    """Rows in random order; `batch.group` are ids, ascending in the order of the groups."""
    logprobs, batch = random_batch(11)
    outcome = jnp.asarray([[1, 0, 0, 1], [0, 0, 0, 1], [1, 1, 1, 1]], jnp.float32)
    lengths = to_groups(batch.completion_mask.sum(axis=1), batch.group, 4)
    valid = to_groups(batch.valid, batch.group, 4)
    stratum = jnp.asarray([[0, 0, 1, 1], [0, 1, 1, 0], [0, 0, 0, 1]], jnp.int32)
    return Groups(outcome=outcome, lengths=lengths, valid=valid, stratum=stratum), batch, logprobs


def alone(est, groups, batch, logprobs):
    """What `compare` should say of one estimator, put together by hand."""
    selected, advantages, _ = phase_one(est, groups, est.init_memory(3))
    rows = batch.replace(
        advantages=to_rows(advantages, batch.group), valid=batch.valid & to_rows(selected.valid, batch.group)
    )
    found = phase_two(est, est.init_params(), logprobs, rows)
    return Comparison(advantages, found.weights, found.loss, found.gradient, found.slope)


def test_compare():
    groups, batch, logprobs = groups_and_batch()
    names = ["dapo", "lambda_grpo", make_estimator("grpo", clip="ppo(high=0.5)")]
    found = compare(names, groups, batch, logprobs, completion_length=10)
    assert list(found) == ["dapo", "lambda_grpo", "grpo + clip=ppo(high=0.5)"]
    for name, one in found.items():
        est = names[-1] if "+" in name else make_estimator(name, 10)
        expected = alone(est, groups, batch, logprobs)
        for ours, theirs in zip(jax.tree.leaves(one), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    # without log-probabilities: those of the old policy, where the loss is −Σ w·A
    on_policy = compare(names, groups, batch, completion_length=10)["dapo"]
    advantages = to_rows(on_policy.advantages_PG, batch.group)
    expected = -(on_policy.weights_BT.sum(axis=1) * advantages).sum()
    np.testing.assert_allclose(on_policy.loss, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="logprobs"):
        compare(["grpo"], groups, batch.replace(old_logprobs=None))


SWEEPS = [
    ("grpo", "clip", "ppo(low=0.2)", "high", [0.0, 0.1, 0.5]),
    ("stratified_grpo", "baseline", "stratified", "alpha", [0.0, 0.6, 1.0]),
    ("lambda_grpo", "aggregate", "learnable", "start", [-1.0, 0.0, 1.0]),
]


@pytest.mark.parametrize("name, slot, option, keyword, values", SWEEPS)
def test_sweep_is_one_vmap_of_one_function(name, slot, option, keyword, values):
    groups, batch, logprobs = groups_and_batch()
    est = make_estimator(name)
    found = sweep(est, slot, option, {keyword: jnp.asarray(values)}, groups, batch, logprobs)
    base, _, rest = option.partition("(")
    kept = rest.rstrip(")") + ", " if rest else ""
    text = f"{base}({kept}{keyword}={values[1]})"
    expected = alone(make_estimator(name, **{slot: text}), groups, batch, logprobs)
    for many, one in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(many[1], one, rtol=1e-5, atol=1e-6)
    assert len(set(np.asarray(found.loss).round(6).tolist())) > 1  # the argument does something


LIBRARY_NUMBERS = {  # advantage of the right one of [1, 0, 0, 0]: 0.75/(0.5 + eps)
    "trl": 1.49970006,
    "verl": 1.499997,
    "tunix": 1.499997,
    "oat": 0.75 / (0.5 + 1e-8),
    "openrlhf": 1.5,
}


@pytest.mark.parametrize("library", sorted(LIBRARY_NUMBERS))
def test_compat(library):
    slots = compat(library)
    assert tuple(slots) == SLOTS
    est = make_estimator("grpo", **slots)
    groups = Groups(outcome=jnp.asarray([[1.0, 0, 0, 0]]), lengths=jnp.ones((1, 4), jnp.int32))
    np.testing.assert_allclose(est.advantages(groups, {})[0][0, 0], LIBRARY_NUMBERS[library], rtol=1e-6)


def test_compat_refuses_unknown_libraries():
    with pytest.raises(ValueError, match=r"'tlr'.*'trl'"):
        compat("tlr")
