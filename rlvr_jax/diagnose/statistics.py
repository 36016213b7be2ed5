"""How far a pass rate can be trusted: intervals for one rate, for clustered samples, for a paired difference.

The unit of chance is the problem: samples of one problem are alike, so they are resampled together.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import special

CHUNK = 4_000_000  # resampling counts held at once; bounds memory for large problem sets


class Interval(NamedTuple):
    """A rate with its confidence interval, all in [0, 1]."""

    estimate: float
    low: float
    high: float


class Difference(NamedTuple):
    """A difference of two rates with its confidence interval, all in [−1, 1]."""

    difference: float
    low: float
    high: float

    @property
    def beyond(self) -> bool:
        """Whether zero lies outside the interval."""
        return self.low > 0 or self.high < 0


def proportion_interval(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval for a rate of independent trials.

    (p + z²/2n ± z·√(p(1 − p)/n + z²/4n²)) / (1 + z²/n), p = successes/n, z = Φ⁻¹((1 + confidence)/2).

    Never empty, also at 0 or n successes. For several samples a problem use `clustered_interval`.
    Reference: Wilson 1927, "Probable inference, the law of succession, and statistical inference", JASA 22.
    Raises: ValueError for n < 1, successes outside [0, n], confidence outside (0, 1).
    """
    if n < 1:
        raise ValueError(f"n = {n}: an interval needs at least one trial")
    if not 0 <= successes <= n:
        raise ValueError(f"successes = {successes}: must lie in [0, n = {n}]")
    return _wilson(successes / n, n, confidence)


def clustered_interval(outcomes, confidence: float = 0.95, seed: int = 0, draws: int = 10_000) -> Interval:
    """pass@1 with a bootstrap interval that resamples problems, each with all its samples.

    Estimate: mean over problems of the mean over samples. Interval: the (1 ∓ confidence)/2 quantiles of the
    estimate over `draws` resamples of the problems with replacement (percentile method).

    Where all problems have the same mean the bootstrap has no width; then Wilson's interval with n = problems
    is returned. With one sample a problem and few problems `proportion_interval` covers better near 0 and 1.
    Reference: Efron & Tibshirani 1993, "An Introduction to the Bootstrap", ch. 13 (percentiles); Davison &
    Hinkley 1997, "Bootstrap Methods and their Application", 3.8 (clusters).

    Args:
      outcomes: [problems, samples] in [0, 1], or [problems].
      confidence: coverage aimed at, in (0, 1).
      seed: of the resampling; the same seed gives the same interval.
      draws: resamples.
    Raises:
      ValueError: no problems or samples, outcomes that are not finite or outside [0, 1], bad confidence.
    """
    means = _problem_means(outcomes, "outcomes")
    if np.ptp(means) < 1e-12:
        return _wilson(float(means[0]), means.size, confidence)
    low, high = _bootstrap(means, confidence, seed, draws)
    return Interval(float(means.mean()), low, high)


def paired_difference(before, after, confidence: float = 0.95, seed: int = 0, draws: int = 10_000) -> Difference:
    """after − before in pass@1 on the same problems, with an interval that keeps the pairs.

    Difference: mean over problems of d = (mean outcome after) − (mean outcome before). Interval: percentile
    bootstrap of d over problems, so that a problem's own difficulty cancels.

    Where d is the same for every problem the bootstrap has no width; then Newcombe's score interval for two
    rates with n = problems is returned (independence assumed, which is wider than the pairs deserve).
    Reference: Efron & Tibshirani 1993, ch. 13; Newcombe 1998, "Interval estimation for the difference between
    independent proportions", Statistics in Medicine 17, method 10.

    Args:
      before, after: [problems, …] in [0, 1], the same problems in the same order; the numbers of samples may
        differ.
    Raises:
      ValueError: as `clustered_interval`, or different numbers of problems.
    """
    before, after = _problem_means(before, "before"), _problem_means(after, "after")
    if before.size != after.size:
        raise ValueError(f"{before.size} problems before, {after.size} after: they must be the same problems")
    gains = after - before
    if np.ptp(gains) < 1e-12:
        return _newcombe(
            _wilson(float(before.mean()), before.size, confidence),
            _wilson(float(after.mean()), after.size, confidence),
        )
    low, high = _bootstrap(gains, confidence, seed, draws)
    return Difference(float(gains.mean()), low, high)


def _problem_means(outcomes, name: str) -> np.ndarray:
    outcomes = np.asarray(outcomes, np.float64)
    if outcomes.size == 0 or outcomes.ndim == 0:
        raise ValueError(f"{name} is empty (shape {outcomes.shape}): an interval needs at least one problem")
    if not np.isfinite(outcomes).all() or outcomes.min() < 0 or outcomes.max() > 1:
        raise ValueError(f"{name} must be finite and lie in [0, 1]")
    return outcomes.reshape(outcomes.shape[0], -1).mean(axis=1)


def _wilson(rate: float, n: int, confidence: float) -> Interval:
    z = special.ndtri(_upper(confidence))
    centre = rate + z**2 / (2 * n)
    half = z * math.sqrt(rate * (1 - rate) / n + z**2 / (4 * n**2))
    scale = 1 + z**2 / n
    # The ends are exact at 0 and 1; rounding must not push them past the estimate.
    low, high = (centre - half) / scale, (centre + half) / scale
    return Interval(rate, float(max(0.0, min(low, rate))), float(min(1.0, max(high, rate))))


def _newcombe(before: Interval, after: Interval) -> Difference:
    difference = after.estimate - before.estimate
    down = math.hypot(after.estimate - after.low, before.high - before.estimate)
    up = math.hypot(after.high - after.estimate, before.estimate - before.low)
    return Difference(difference, difference - down, difference + up)


def _bootstrap(values: np.ndarray, confidence: float, seed: int, draws: int) -> tuple[float, float]:
    """Percentile interval of the mean: how often each problem is drawn is multinomial."""
    upper = _upper(confidence)
    if draws < 1:
        raise ValueError(f"draws = {draws}: must be at least 1")
    rng = np.random.default_rng(seed)
    n = values.size
    rows = max(1, CHUNK // n)
    means = np.concatenate(
        [
            rng.multinomial(n, np.full(n, 1 / n), size=min(rows, draws - start)) @ values / n
            for start in range(0, draws, rows)
        ]
    )
    low, high = np.quantile(means, [1 - upper, upper])
    return float(low), float(high)


def _upper(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence = {confidence}: must lie strictly between 0 and 1")
    return (1 + confidence) / 2
