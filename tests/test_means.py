"""Metrics that merge: the mean of all, never the mean of means."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr_jax.means import Max, Mean, Min, compute, merge, neutral, reduce_stacked


def clipped(tokens, count):
    return jnp.arange(tokens) < count


def test_unequal_parts_merge_to_the_mean_of_all():
    # 2 of 10 tokens clipped here, 3 of 4 there: 5/14 = 0.357143, not (0.2 + 0.75)/2 = 0.475
    parts = Mean.of(clipped(10, 2)), Mean.of(clipped(4, 3))
    assert parts[0].merge(parts[1]).compute() == pytest.approx(5 / 14)
    assert merge({"x": parts[0]}, {"x": parts[1]})["x"].compute() == pytest.approx(0.3571429)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)
    assert reduce_stacked({"x": stacked})["x"].compute() == pytest.approx(5 / 14)


def test_micro_batches_under_scan():
    values, mask = jnp.arange(14.0).reshape(2, 7), jnp.asarray([[True] * 7, [True] * 3 + [False] * 4])

    def one(_, piece):
        return (), {"mean": Mean.of(*piece), "max": Max.of(*piece), "min": Min.of(*piece)}

    found = compute(reduce_stacked(jax.lax.scan(one, (), (values, mask))[1]), prefix="a/")
    # 0 … 9: mean 4.5
    assert found == {"a/mean": 4.5, "a/max": 9.0, "a/min": 0.0}


def test_extremes_ignore_empty_parts():
    empty, full = jnp.zeros(3, bool), jnp.ones(3, bool)
    values = jnp.asarray([-5.0, -2.0, -9.0])
    for cls, wanted in ((Max, -2.0), (Min, -9.0)):
        for first, second in ((empty, full), (full, empty)):
            assert cls.of(values, first).merge(cls.of(values, second)).compute() == wanted
    assert Max.of(values, empty).compute() == -np.inf and Min.of(values, empty).compute() == np.inf


def test_a_mean_of_nothing_is_not_a_number():
    assert np.isnan(Mean.of(jnp.ones(3), jnp.zeros(3, bool)).compute())
    assert Mean.of(jnp.asarray([2.0, jnp.nan]), jnp.asarray([True, False])).compute() == 2.0
    assert Mean.of(jnp.asarray([[1.0, 3.0], [5.0, 7.0]]), jnp.asarray([[True], [False]])).compute() == 2.0


def test_what_only_one_side_has_is_kept():
    found = compute(merge({"a": Mean.of(jnp.ones(2))}, {"b": Max.of(jnp.ones(2))}))
    assert found == {"a": 1.0, "b": 1.0}


def test_neutral_metrics_change_nothing():
    make = lambda: {"mean": Mean.of(jnp.arange(4.0)), "max": Max.of(-jnp.ones(2)), "min": Min.of(jnp.ones(2))}
    nothing = neutral(jax.eval_shape(make))
    assert jax.tree.structure(nothing) == jax.tree.structure(make())
    assert compute(merge(nothing, make())) == compute(make()) == compute(merge(make(), nothing))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(-8, 8), max_size=5), min_size=1, max_size=4))
def test_any_cut_gives_the_statistics_of_the_whole(parts):
    for cls, wanted in ((Mean, np.mean), (Max, np.max), (Min, np.min)):
        merged = None
        for part in parts:
            values = np.zeros(5, np.float32)  # one shape, so one program
            values[: len(part)] = part
            metric = cls.of(jnp.asarray(values), jnp.arange(5) < len(part))
            merged = metric if merged is None else merged.merge(metric)
        everything = np.asarray([x for part in parts for x in part], np.float64)
        if everything.size:
            assert merged.compute() == pytest.approx(wanted(everything), abs=1e-6)
