"""Bootstrap over seeds and problems: by hand, against known variances, coverage, degenerate and bad input."""

import numpy as np
import pytest
from scipy import stats

from rlvr_jax.diagnose.effects import effect
from rlvr_jax.diagnose.resampling import interquartile_mean, paired_bootstrap


def arms(rng, seeds, problems, of_seed, of_problem, noise, shift=0.0):
    """b, and a = b + shift + effects of the seed, of the problem, of both."""
    b = rng.random((seeds, problems))
    random = (
        rng.normal(0, s, shape)
        for s, shape in zip((of_seed, of_problem, noise), ((seeds, 1), (1, problems), (seeds, problems)))
    )
    return b + shift + sum(random), b


def half_width(found):
    return (found.high - found.low) / 2


def test_the_mean_by_hand_and_samples_are_averaged():
    a = [[[1, 1], [0, 1]], [[1, 0], [0, 0]]]  # means 1, ½ / ½, 0
    b = [[[0], [0]], [[1], [0]]]
    found = paired_bootstrap(a, b)
    assert found.mean == pytest.approx((1 + 0.5 - 0.5 + 0) / 4)
    assert (found.seeds, found.problems, found.missing) == (2, 2, 0)


@pytest.mark.parametrize(
    ("of_seed", "of_problem", "variance"),
    [(0.2, 0.0, 0.2**2 / 30), (0.0, 0.2, 0.2**2 / 50), (0.2, 0.2, 0.2**2 / 30 + 0.2**2 / 50)],
)
def test_chance_of_seeds_and_of_problems_is_in_the_interval(of_seed, of_problem, variance):
    widths = [
        half_width(paired_bootstrap(*arms(np.random.default_rng(i), 30, 50, of_seed, of_problem, 0.0), draws=1000))
        for i in range(8)
    ]
    assert np.mean(widths) == pytest.approx(1.96 * np.sqrt(variance), rel=0.12)


def test_coverage():
    covered = 0
    for repetition in range(120):
        rng = np.random.default_rng(repetition)
        found = paired_bootstrap(*arms(rng, 12, 30, 0.1, 0.2, 0.1, shift=0.3), draws=400, seed=repetition)
        covered += found.low <= 0.3 <= found.high
    assert 106 <= covered <= 120  # nominal 114


def test_pairs_cancel_what_arms_share():
    rng = np.random.default_rng(0)
    a, b = arms(rng, 10, 40, 0.01, 0.01, 0.01, shift=0.05)
    found = paired_bootstrap(a, b)
    assert found.low > 0.03 and found.high < 0.07 and found.p < 0.001
    assert paired_bootstrap(a, b) == found and paired_bootstrap(b, a).mean == -found.mean


def test_no_difference_has_a_large_p():
    p = [paired_bootstrap(*arms(np.random.default_rng(i), 10, 20, 0.1, 0.1, 0.1), draws=400).p for i in range(60)]
    assert np.mean(np.asarray(p) < 0.05) <= 0.15 and np.mean(p) > 0.3
    same = np.ones((3, 4))
    assert paired_bootstrap(same, same)[:4] == (0.0, 0.0, 0.0, 1.0)


def test_one_problem_resamples_seeds_alone():
    rng = np.random.default_rng(1)
    a, b = rng.normal(0.1, 1, (40, 1)), np.zeros((40, 1))
    found, student = paired_bootstrap(a, b), effect(a[:, 0], b[:, 0])
    assert found.mean == pytest.approx(student.mean)
    assert half_width(found) == pytest.approx((student.high - student.low) / 2, rel=0.08)
    assert paired_bootstrap(a.T, b.T).problems == 40


def test_what_was_not_measured_is_left_out_and_counted():
    a, b = np.ones((3, 4)), np.zeros((3, 4))
    a[0, 1] = b[2, 2] = np.nan
    found = paired_bootstrap(a, b)
    assert (found.mean, found.low, found.high, found.missing) == (1, 1, 1, 2)
    samples = np.ones((2, 2, 3))
    samples[0, 0, :2] = np.nan
    assert paired_bootstrap(samples, np.zeros((2, 2))).missing == 0


@pytest.mark.parametrize(
    ("a", "b", "options", "says"),
    [
        (np.ones((2, 3)), np.ones((3, 2)), {}, "same on both sides"),
        (np.ones((1, 1)), np.ones((1, 1)), {}, "nothing to resample"),
        (np.ones(3), np.ones(3), {}, r"a has shape \(3,\)"),
        (np.ones((2, 0)), np.ones((2, 0)), {}, "a has shape"),
        (np.full((2, 2), np.inf), np.ones((2, 2)), {}, "a must be finite"),
        (np.full((2, 2), np.nan), np.ones((2, 2)), {}, "no pair was measured"),
        (np.ones((2, 2)), np.ones((2, 2)), {"confidence": 0}, "confidence = 0"),
        (np.ones((2, 2)), np.ones((2, 2)), {"draws": 0}, "draws = 0"),
    ],
)
def test_pairs_refused(a, b, options, says):
    with pytest.raises(ValueError, match=says):
        paired_bootstrap(a, b, **options)


def test_interquartile_mean_by_hand():
    # 1 … 8: two left out at either end, (3 + 4 + 5 + 6)/4
    assert interquartile_mean([[1, 2, 3, 4], [8, 7, 6, 5]]).estimate == 4.5
    outlier = [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5], [0.5, 0.5, 99.0], [0.5, 0.5, -99.0]]
    assert interquartile_mean(outlier).estimate == 0.5


def test_interquartile_mean_and_interval():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(10, 7))
    found = interquartile_mean(scores)
    assert found.estimate == pytest.approx(stats.trim_mean(scores.ravel(), 0.25))
    assert found.low < found.estimate < found.high
    # tasks that differ much do not widen it: each is resampled by itself
    apart = interquartile_mean(scores * 0.01 + np.arange(7) * 10)
    assert apart.high - apart.low < 0.1


@pytest.mark.parametrize("scores", [np.ones(3), np.ones((1, 3)), np.ones((3, 0)), np.full((2, 2), np.nan)])
def test_scores_refused(scores):
    with pytest.raises(ValueError, match="scores"):
        interquartile_mean(scores)
