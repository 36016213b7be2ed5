"""Intervals: numbers by hand, coverage by simulation, the cases without variance, bad input."""

import numpy as np
import pytest
from scipy import stats

from rlvr_jax.diagnose.statistics import clustered_interval, paired_difference, proportion_interval


def test_wilson_by_hand():
    # p = 8/10, z = 1.959964, z² = 3.841459:
    # centre = 0.8 + 3.841459/20 = 0.992073
    # half = 1.959964·√(0.16/10 + 3.841459/400) = 1.959964·√0.02560365 = 0.313616
    # scale = 1 + 3.841459/10 = 1.384146; low = 0.678457/1.384146, high = 1.305689/1.384146
    interval = proportion_interval(8, 10)
    assert interval.estimate == 0.8
    assert interval.low == pytest.approx(0.490162, abs=1e-5)
    assert interval.high == pytest.approx(0.943317, abs=1e-5)


@pytest.mark.parametrize("successes, n", [(0, 1), (1, 1), (0, 50), (50, 50), (21, 50), (199, 200)])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
def test_wilson_equals_scipys(successes, n, confidence):
    ours = proportion_interval(successes, n, confidence)
    theirs = stats.binomtest(successes, n).proportion_ci(confidence, method="wilson")
    assert ours.low == pytest.approx(theirs.low, abs=1e-12)
    assert ours.high == pytest.approx(theirs.high, abs=1e-12)
    assert ours.low <= ours.estimate <= ours.high


def test_clustering_widens_what_identical_samples_would_narrow():
    # Sixteen copies of one answer say no more than one answer.
    one = np.tile([[1.0], [0.0], [1.0], [1.0], [0.0]], (8, 1))
    assert clustered_interval(np.repeat(one, 16, axis=1)) == clustered_interval(one)
    naive = proportion_interval(int(one.sum() * 16), one.size * 16)
    clustered = clustered_interval(np.repeat(one, 16, axis=1))
    assert clustered.high - clustered.low > 3 * (naive.high - naive.low)


def test_bootstrap_agrees_with_the_central_limit():
    # Standard error of a mean of 400 problems, means spread uniformly: sd/√400.
    means = np.linspace(0, 1, 400)
    interval = clustered_interval(means)
    assert interval.estimate == pytest.approx(0.5)
    assert (interval.high - interval.low) / 2 == pytest.approx(1.96 * means.std() / 20, rel=0.05)


def test_coverage_of_the_clustered_interval():
    # Problems of different difficulty, four samples each: nominal 95 %, 200 repetitions, ±4 binomial errors.
    rng = np.random.default_rng(0)
    covered = 0
    for repetition in range(200):
        rate = rng.beta(2, 1, size=(60, 1))  # mean 2/3
        outcomes = rng.random((60, 4)) < rate
        interval = clustered_interval(outcomes, seed=repetition, draws=500)
        covered += interval.low <= 2 / 3 <= interval.high
    assert 0.89 <= covered / 200 <= 0.99


def test_pairs_cancel_the_difficulty_of_the_problems():
    rng = np.random.default_rng(1)
    before = np.repeat([0.0, 1.0], 50)[:, None]  # half hopeless, half solved
    after = before.copy()
    after[:10] = 1.0  # ten of a hundred gained
    gain = paired_difference(before, after)
    assert gain.difference == pytest.approx(0.1)
    assert 0 < gain.low < 0.1 < gain.high < 0.2
    assert gain.beyond
    shuffled = paired_difference(before, rng.permutation(after))
    assert shuffled.high - shuffled.low > 1.5 * (gain.high - gain.low)


def test_coverage_of_the_paired_difference():
    rng = np.random.default_rng(2)
    covered = 0
    for repetition in range(200):
        rate = rng.uniform(0, 0.8, size=(50, 1))
        before, after = rng.random((50, 4)) < rate, rng.random((50, 2)) < rate + 0.2
        gain = paired_difference(before, after, seed=repetition, draws=500)
        covered += gain.low <= 0.2 <= gain.high
    assert 0.89 <= covered / 200 <= 0.99


def test_same_seed_same_interval():
    outcomes = np.random.default_rng(0).random((30, 4))
    assert clustered_interval(outcomes, seed=3) == clustered_interval(outcomes, seed=3)
    assert clustered_interval(outcomes, seed=3) != clustered_interval(outcomes, seed=4)


def test_large_sets_are_resampled_in_chunks(monkeypatch):
    from rlvr_jax.diagnose import statistics

    outcomes = np.random.default_rng(0).random((50, 2)) < 0.5
    whole = clustered_interval(outcomes, draws=300)
    monkeypatch.setattr(statistics, "CHUNK", 50 * 7)
    assert clustered_interval(outcomes, draws=300) == whole  # one stream of random numbers, however it is cut


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_equal_problems_fall_back_to_wilson(rate):
    outcomes = np.full((40, 4), rate)
    interval = clustered_interval(outcomes)
    assert interval == proportion_interval(int(40 * rate), 40)
    assert interval.high - interval.low > 0.05


@pytest.mark.parametrize("before, after", [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.5, 0.25)])
def test_equal_differences_have_a_width(before, after):
    gain = paired_difference(np.full((20, 4), before), np.full(20, after))
    assert gain.difference == after - before
    assert -1 <= gain.low <= gain.difference <= gain.high <= 1
    assert gain.high - gain.low > 0.1
    assert gain.beyond == ((before, after) == (0.0, 1.0))


def test_newcombe_by_hand():
    # Newcombe 1998, table II, case 56/70 − 48/80 under method 10: 0.2, interval 0.0524 to 0.3339.
    from rlvr_jax.diagnose.statistics import _newcombe

    difference = _newcombe(proportion_interval(48, 80), proportion_interval(56, 70))
    assert difference.difference == pytest.approx(0.2)
    assert difference.low == pytest.approx(0.0524, abs=5e-5)
    assert difference.high == pytest.approx(0.3339, abs=5e-5)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: proportion_interval(0, 0), "at least one"),
        (lambda: proportion_interval(3, 2), "successes = 3"),
        (lambda: proportion_interval(-1, 2), "successes = -1"),
        (lambda: proportion_interval(1, 2, confidence=95), "confidence = 95"),
        (lambda: clustered_interval(np.zeros((0, 4))), "empty"),
        (lambda: clustered_interval(np.zeros((4, 0))), "empty"),
        (lambda: clustered_interval([[0.0, 2.0]]), r"\[0, 1\]"),
        (lambda: clustered_interval([[0.0, float("nan")]]), "finite"),
        (lambda: clustered_interval([0.0, 1.0], draws=0), "draws = 0"),
        (lambda: clustered_interval([0.0, 1.0], confidence=1.0), "confidence = 1.0"),
        (lambda: paired_difference([], []), "before is empty"),
        (lambda: paired_difference([0.0, 1.0], [0.0]), "same problems"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
