"""Masked reductions: what stands under a mask reaches neither values nor gradients; the mean of nothing is 0."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr_jax.masked import (
    masked,
    masked_count,
    masked_max,
    masked_mean,
    masked_min,
    masked_std,
    masked_sum,
    safe_divide,
)

VALUES = jnp.asarray([1.0, 4.0, 7.0, 100.0])
MASK = jnp.asarray([True, True, True, False])


def test_by_hand():
    assert float(masked_sum(VALUES, MASK)) == 12
    assert float(masked_count(MASK)) == 3
    assert float(masked_mean(VALUES, MASK)) == 4
    # (1 − 4)² + 0 + (7 − 4)² = 18:  √(18/3) = 2.449490,  √(18/2) = 3
    assert float(masked_std(VALUES, MASK)) == pytest.approx(2.449490)
    assert float(masked_std(VALUES, MASK, ddof=1)) == pytest.approx(3.0)
    assert float(masked_max(VALUES, MASK)) == 7 and float(masked_min(-VALUES, MASK)) == -7
    assert masked(VALUES, MASK).tolist() == [1, 4, 7, 0]


def test_nothing():
    none = jnp.zeros(4, bool)
    for reduce in (masked_sum, masked_mean, masked_std):
        assert float(reduce(VALUES, none)) == 0
    assert float(masked_max(VALUES, none)) == -np.inf and float(masked_min(VALUES, none)) == np.inf
    assert float(masked_max(VALUES, none, empty=0.0)) == 0
    one = jnp.asarray([True, False, False, False])
    assert float(masked_std(VALUES, one, ddof=1)) == 0
    assert float(masked_mean(jnp.zeros((0,)), jnp.zeros((0,), bool))) == 0
    slope = jax.grad(lambda x: masked_mean(x, none) + masked_std(x, none) + masked_std(x, one))(VALUES)
    assert slope.tolist() == [0] * 4


def test_equal_values_have_spread_zero_and_a_finite_slope():
    equal = jnp.full(4, 3.0)
    assert float(masked_std(equal, MASK)) == 0
    assert np.isfinite(jax.grad(masked_std)(equal, MASK)).all()


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf, 3e38])
@pytest.mark.parametrize("reduce", [masked_sum, masked_mean, masked_std, masked_max, masked_min])
def test_what_is_masked_does_not_matter(reduce, bad):
    spoiled = VALUES.at[3].set(bad)
    value, slope = jax.value_and_grad(reduce)(spoiled, MASK)
    wanted, wanted_slope = jax.value_and_grad(reduce)(VALUES, MASK)
    assert float(value) == float(wanted)
    np.testing.assert_array_equal(slope, wanted_slope)
    assert slope[3] == 0


def test_mask_before_a_function_that_overflows():
    # e¹⁰⁰⁰ under the mask: masked first, neither the value nor the slope sees it
    value, slope = jax.value_and_grad(lambda x: jnp.exp(masked(x, x < 10)).sum())(jnp.asarray([0.0, 1000.0]))
    assert float(value) == 2.0  # e⁰ + e⁰
    assert slope.tolist() == [1.0, 0.0]


def test_safe_divide():
    top, bottom = jnp.asarray([6.0, 5.0, 0.0]), jnp.asarray([-3.0, 0.0, 0.0])
    assert safe_divide(top, bottom).tolist() == [-2.0, 0.0, 0.0]
    slopes = jax.grad(lambda t, b: safe_divide(t, b).sum(), argnums=(0, 1))(top, bottom)
    # 1/b and −t/b²: −1/3 and −6/9; 0 where the divisor is
    np.testing.assert_allclose(slopes[0], [-1 / 3, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(slopes[1], [-2 / 3, 0, 0], rtol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([None, 0, 1]), st.booleans())
def test_equal_to_numpys_over_the_unmasked(seed, axis, keepdims):
    rng = np.random.default_rng(seed)
    values = rng.normal(3, 2, (3, 4)).astype(np.float32)
    mask = rng.random((3, 4)) < 0.7
    mask[0, :], mask[:, 0] = True, True  # no empty slice: numpy has no answer to those
    theirs = np.ma.masked_array(np.float64(values), ~mask)
    for mine, name, more in (
        (masked_sum, "sum", {}),
        (masked_mean, "mean", {}),
        (masked_std, "std", {}),
        (masked_max, "max", {}),
        (masked_min, "min", {}),
    ):
        found = mine(jnp.asarray(values), jnp.asarray(mask), axis=axis, keepdims=keepdims, **more)
        wanted = getattr(theirs, name)(axis=axis, keepdims=keepdims)
        assert found.shape == np.shape(wanted), name
        np.testing.assert_allclose(found, np.asarray(wanted), rtol=1e-4, atol=1e-5, err_msg=name)


def test_bfloat16_is_summed_in_float32():
    # 1 + 256·2⁻⁹: each step alone would round away in bfloat16
    values = jnp.asarray([1.0] + [2.0**-9] * 256, jnp.bfloat16)
    assert float(masked_sum(values, jnp.ones(257, bool))) == 1.5
