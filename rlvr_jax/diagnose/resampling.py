"""Two arms judged on the same problems with the same seeds: bootstrap over both; and a mean that outliers do not move.

`effects.py` has one value a seed and Student's t; here every problem of every seed counts, so that chance in the
choice of problems is in the interval too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats

CHUNK = 4_000_000  # resampling counts held at once


class Resampled(NamedTuple):
    """A paired difference resampled over seeds and problems.

    mean:      of a − b over all pairs
    low, high: percentile interval
    p:         two-sided, against no difference: 2·min(share of resamples ≤ 0, ≥ 0), at least 1/(draws + 1)
    seeds, problems: how many were resampled; an axis of one is not, and the interval says nothing of its chance
    missing:   pairs left out because a value was NaN
    """

    mean: float
    low: float
    high: float
    p: float
    seeds: int
    problems: int
    missing: int


class Trimmed(NamedTuple):
    """An interquartile mean with its interval."""

    estimate: float
    low: float
    high: float


def paired_bootstrap(a, b, confidence: float = 0.95, seed: int = 0, draws: int = 10_000) -> Resampled:
    """a − b with seeds and problems resampled independently of one another, pairs kept.

    A resample draws seeds and, apart from them, problems with replacement; its statistic is the mean difference over
    their crossing, each pair as often as its seed and its problem were drawn. The interval is a little wide when both
    matter (its variance is that of seeds plus that of problems plus up to three times that of what is neither).
    Reference: Owen 2007, "The pigeonhole bootstrap", Annals of Applied Statistics 1; McCullagh 2000, Bernoulli 6.

    Args:
      a, b: [seeds, problems] or [seeds, problems, samples]; same seeds and problems in the same order, the number of
        samples may differ. NaN: not measured.
      confidence: coverage aimed at, in (0, 1).
    Raises:
      ValueError: shapes that do not fit, one seed with one problem, infinite values, nothing measured, bad confidence
        or draws.
    """
    first, second = _means(a, "a"), _means(b, "b")
    if first.shape != second.shape:
        raise ValueError(f"a has {first.shape} seeds × problems, b {second.shape}: pairs need the same on both sides")
    if first.size < 2:
        raise ValueError("one seed and one problem: there is nothing to resample")
    _check(confidence, draws)
    difference = first - second
    there = ~np.isnan(difference)
    if not there.any():
        raise ValueError("no pair was measured on both sides")
    drawn = _crossed(np.where(there, difference, 0.0), there.astype(float), seed, draws)
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    least = min((drawn <= 0).sum(), (drawn >= 0).sum())
    p = min(1.0, 2 * (least + 1) / (len(drawn) + 1))
    return Resampled(
        float(difference[there].mean()), float(low), float(high), float(p), *difference.shape, int((~there).sum())
    )


def interquartile_mean(scores, confidence: float = 0.95, seed: int = 0, draws: int = 2000) -> Trimmed:
    """The mean of the middle half of all values, with an interval that resamples the seeds of each task by themselves.

    A quarter of the values (rounded down) is left out at either end, so that a task that every seed solves, or a seed
    that fell over, does not decide.
    Reference: Agarwal et al. 2021, arXiv:2108.13264 (rliable), §4.3: IQM with a stratified bootstrap.

    Args:
      scores: [seeds, tasks], finite.
      confidence: coverage aimed at, in (0, 1).
    Raises:
      ValueError: not two axes, fewer than two seeds, values that are not finite, bad confidence or draws.
    """
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 2 or scores.shape[0] < 2 or scores.shape[1] < 1:
        raise ValueError(f"scores has shape {scores.shape}: must be [seeds, tasks] with at least two seeds")
    if not np.isfinite(scores).all():
        raise ValueError("scores must be finite")
    _check(confidence, draws)
    rng = np.random.default_rng(seed)
    seeds, tasks = scores.shape
    drawn = []
    rows = max(1, CHUNK // scores.size)
    for start in range(0, draws, rows):
        pick = rng.integers(0, seeds, (min(rows, draws - start), seeds, tasks))
        drawn.append(_trimmed(scores[pick, np.arange(tasks)].reshape(len(pick), -1)))
    low, high = np.quantile(np.concatenate(drawn), [(1 - confidence) / 2, (1 + confidence) / 2])
    return Trimmed(float(_trimmed(scores.reshape(1, -1))[0]), float(low), float(high))


def _trimmed(values: np.ndarray) -> np.ndarray:
    return stats.trim_mean(values, 0.25, axis=-1)


def _crossed(values: np.ndarray, there: np.ndarray, seed: int, draws: int) -> np.ndarray:
    """f64[draws]: the mean of `values` where `there`, rows and columns drawn with replacement."""
    rng = np.random.default_rng(seed)
    seeds, problems = values.shape
    counts = lambda n, size: rng.multinomial(n, np.full(n, 1 / n), size=size) if n > 1 else np.ones((size, 1))
    drawn = []
    rows = max(1, CHUNK // (seeds + problems))
    for start in range(0, draws, rows):
        size = min(rows, draws - start)
        of_seeds, of_problems = counts(seeds, size), counts(problems, size)
        weight = ((of_seeds @ there) * of_problems).sum(-1)
        total = ((of_seeds @ values) * of_problems).sum(-1)
        drawn.append(total[weight > 0] / weight[weight > 0])
    return np.concatenate(drawn)


def _means(x, name: str) -> np.ndarray:
    """[seeds, problems]: samples averaged, NaN left out; NaN where all are."""
    x = np.asarray(x, np.float64)
    if x.ndim not in (2, 3) or x.size == 0:
        raise ValueError(f"{name} has shape {x.shape}: must be [seeds, problems] or [seeds, problems, samples]")
    if np.isinf(x).any():
        raise ValueError(f"{name} must be finite, or NaN where nothing was measured")
    if x.ndim == 2:
        return x
    there = ~np.isnan(x)
    with np.errstate(invalid="ignore"):
        return np.where(there, x, 0.0).sum(-1) / there.sum(-1)


def _check(confidence: float, draws: int) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence = {confidence}: must lie strictly between 0 and 1")
    if draws < 1:
        raise ValueError(f"draws = {draws}: must be at least 1")
