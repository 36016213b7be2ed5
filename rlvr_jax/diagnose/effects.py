"""How far a difference between two estimators can be trusted when a handful of seeds is all there is.

The unit of chance is the seed: two arms of one seed share the warm start and the keys, so they are compared as a pair.
Everything here takes one value a seed, in the measure's own unit; a value that could not be measured is NaN and drops
its pair, which is counted, never filled in.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import optimize, special

ROUNDING = 8  # a spread of so many units in the last place of the largest value is rounding, not chance
NOTHING = 1e-150  # smaller differences have squares of zero
MOST_SEEDS = 10_000_000  # `seeds_for` gives up beyond


class MeanInterval(NamedTuple):
    """A mean with its confidence interval, in the measure's unit (unlike a rate's, not confined to [0, 1])."""

    estimate: float
    low: float
    high: float


class Effect(NamedTuple):
    """A paired difference over seeds; `mean`, `low`, `high` and `detectable` in the measure's unit.

    mean:        mean of the differences (NaN without any pair)
    low, high:   Student's t interval (95 % unless said otherwise)
    p:           two-sided, of the paired t test against no difference, before any correction for several tests
    d:           Cohen's d_z = mean/sd of the differences, without unit
    detectable:  smallest true difference that a single test at .05 finds with probability .8, were sd the true one; sd
                 is itself an estimate (80 % of the time within −32 % and +28 % of the truth's at 10 seeds)
    n:           pairs used
    missing:     pairs dropped because a value was NaN
    """

    mean: float
    low: float
    high: float
    p: float
    d: float
    detectable: float
    n: int
    missing: int


def mean_interval(x, confidence: float = 0.95) -> MeanInterval:
    """Mean over seeds with Student's t interval: x̄ ± t(n − 1, (1 + confidence)/2)·s/√n.

    NaN are dropped. With fewer than two values left the ends are NaN (and the mean, with none); values that are all
    equal give an interval without width: n equal values say nothing of a spread.
    Reference: Student 1908, "The probable error of a mean", Biometrika 6.

    Args:
      x: [n], one value a seed, n ≥ 2.
      confidence: coverage aimed at, in (0, 1).
    Raises:
      ValueError: not one axis, fewer than two values, infinite values, bad confidence.
    """
    x = _values(x, "x")
    mean, half, _, _ = _summary(x[~np.isnan(x)], _rounding(x, x), confidence)
    return MeanInterval(mean, mean - half, mean + half)


def effect(a, b, confidence: float = 0.95) -> Effect:
    """a − b over pairs: mean, t interval, p of the paired t test, d_z, smallest detectable effect.

    With differences δ of n pairs, mean δ̄ and standard deviation s (n − 1 in the denominator):
    interval δ̄ ± t(n − 1, (1 + confidence)/2)·s/√n; p = 2·P(T₍ₙ₋₁₎ > |δ̄|/(s/√n)); d_z = δ̄/s.

    Where s = 0, to rounding of the values, there is no t. Differences that are all zero (the arms are one and the
    same): interval [0, 0], p = 1, d = 0. All equal but not zero: an interval without width, d = ±∞, and p = 2^(1 − n),
    that of Fisher's sign-flip test, the least that n signs can carry. The t test's limit, p = 0, would make proof of
    two counts that happen to agree. `detectable` is then 0: the spread is unknown, not small.
    With fewer than two pairs left after NaN: the mean, if any, and NaN for the rest.
    References: Student 1908, Biometrika 6; Fisher 1935, "The Design of Experiments", 21 (sign flips); Cohen 1988,
    "Statistical Power Analysis for the Behavioral Sciences", 2nd ed., 2.3.5 (d_z).

    Args:
      a, b: [n], one value a seed, the same seeds in the same order, n ≥ 2.
      confidence: coverage aimed at by the interval, in (0, 1).
    Raises:
      ValueError: different shapes, not one axis, fewer than two pairs, infinite values, bad confidence.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        raise ValueError(f"a has shape {a.shape}, b {b.shape}: pairs need the same seeds on both sides")
    rounding = _rounding(a, b)
    difference = _values(a, "a") - _values(b, "b")
    kept = difference[~np.isnan(difference)]
    n = kept.size
    mean, half, sd, p = _summary(kept, rounding, confidence)
    if n < 2:
        d = detectable = math.nan
    else:
        d = mean / sd if sd > 0 else math.copysign(math.inf, mean) if mean else 0.0
        detectable = smallest_detectable(sd, n)
    return Effect(mean, mean - half, mean + half, p, d, detectable, n, difference.size - n)


def holm(p_values) -> np.ndarray:
    """Holm's adjusted p values: p₍ᵢ₎ → max over j ≤ i of min(1, (m − j + 1)·p₍ⱼ₎), in ascending order of p.

    Rejecting where the adjusted p is below α keeps the chance of any false rejection among the m tests below α,
    however the tests depend on one another. NaN stays NaN and does not count in m.
    Reference: Holm 1979, "A simple sequentially rejective multiple test procedure", Scand. J. Statistics 6.

    Args:
      p_values: [tests], in [0, 1] or NaN.
    Returns:
      [tests] float64, in the order given.
    Raises:
      ValueError: not one axis, values outside [0, 1].
    """
    p = np.asarray(p_values, np.float64)
    if p.ndim != 1:
        raise ValueError(f"p_values has shape {p.shape}: must have one axis")
    tested = np.flatnonzero(~np.isnan(p))
    if not ((p[tested] >= 0) & (p[tested] <= 1)).all():
        raise ValueError(f"p_values = {p.tolist()}: must lie in [0, 1] or be NaN")
    ascending = tested[np.argsort(p[tested])]
    adjusted = np.full(p.shape, np.nan)
    adjusted[ascending] = np.minimum(1, np.maximum.accumulate(p[ascending] * np.arange(tested.size, 0, -1)))
    return adjusted


def power(effect: float, sd: float, n: int, alpha: float = 0.05) -> float:
    """Probability that a two-sided paired t test with n pairs finds a true difference `effect`.

    P(|T| > t(n − 1, 1 − α/2)), T noncentral t with n − 1 degrees of freedom and noncentrality effect·√n/sd.
    Reference: Cohen 1988, 2nd ed., 2.3.5; Johnson & Kotz 1970, "Continuous Univariate Distributions 2", ch. 31.
    Raises: ValueError for n < 2, sd ≤ 0 or not finite, effect not finite, alpha outside (0, 1).
    """
    _check(n, alpha)
    if not (0 < sd < math.inf and math.isfinite(effect)):
        raise ValueError(f"effect = {effect}, sd = {sd}: both must be finite, sd positive")
    return _power(abs(effect) * math.sqrt(n) / sd, n, alpha)


def smallest_detectable(sd: float, n: int, power: float = 0.8, alpha: float = 0.05) -> float:
    """Smallest true difference that a two-sided paired t test with n pairs finds with probability `power`.

    λ·sd/√n, λ the noncentrality at which the test has that power (see `power`), solved exactly; in the unit of sd.

    Args:
      sd: standard deviation of the differences, ≥ 0.
      n: pairs, ≥ 2.
      power: in (alpha, 1).
      alpha: level of the single test, in (0, 1).
    Raises:
      ValueError: any of these out of range.
    """
    _check(n, alpha, power)
    if not 0 <= sd < math.inf:
        raise ValueError(f"sd = {sd}: must be finite and not negative")
    return _noncentrality(n, power, alpha) * sd / math.sqrt(n)


def seeds_for(effect: float, sd: float, power: float = 0.8, alpha: float = 0.05) -> int:
    """Fewest pairs (at least 2) with which a true difference `effect` is found with probability `power`.

    Args:
      effect: in the measure's unit, not 0; its sign does not matter.
      sd: standard deviation of the differences, > 0.
    Raises:
      ValueError: out of range, or more than ten million pairs.
    """
    _check(2, alpha, power)
    if not (0 < sd < math.inf and 0 < abs(effect) < math.inf):
        raise ValueError(f"effect = {effect}, sd = {sd}: both must be finite, effect not 0, sd positive")
    enough = lambda n: _power(abs(effect) * math.sqrt(n) / sd, n, alpha) >= power
    high = 2
    while not enough(high):
        high *= 2
        if high > MOST_SEEDS:
            raise ValueError(f"effect = {effect}: with sd = {sd} it takes more than {MOST_SEEDS} seeds")
    low = high // 2  # too few, or 1: power rises with n
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _values(x, name: str) -> np.ndarray:
    x = np.asarray(x, np.float64)
    if x.ndim != 1 or x.size < 2:
        raise ValueError(f"{name} has shape {x.shape}: must be one value a seed, of at least two seeds")
    if np.isinf(x).any():
        raise ValueError(f"{name} = {x.tolist()}: must be finite, or NaN where nothing was measured")
    return x


def _rounding(a, b) -> float:
    """Spread that rounding alone explains, at the precision in which the values came."""
    kind = np.result_type(np.asarray(a), np.asarray(b))
    unit = np.finfo(kind if kind.kind == "f" else np.float64).eps
    sizes = np.abs(np.asarray([a, b], np.float64))
    largest = float(np.fmax.reduce(sizes, axis=None, initial=0.0))  # fmax skips NaN
    return max(ROUNDING * float(unit) * largest, NOTHING)


def _summary(x: np.ndarray, rounding: float, confidence: float) -> tuple[float, float, float, float]:
    """(mean, half width, sd, p against 0) of values without NaN; NaN where fewer than two leave them open."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence = {confidence}: must lie strictly between 0 and 1")
    n = x.size
    mean = float(x.mean()) if n else math.nan
    if n < 2:
        return mean, math.nan, math.nan, math.nan
    if x.max() - x.min() <= rounding:
        return (0.0, 0.0, 0.0, 1.0) if abs(mean) <= rounding else (mean, 0.0, 0.0, 2.0 ** (1 - n))
    sd = math.sqrt(float(((x - mean) ** 2).sum()) / (n - 1))
    error = sd / math.sqrt(n)
    half = float(special.stdtrit(n - 1, (1 + confidence) / 2)) * error
    return mean, half, sd, float(2 * special.stdtr(n - 1, -abs(mean) / error))


def _check(n: int, alpha: float, power: float | None = None) -> None:
    if n < 2:
        raise ValueError(f"n = {n}: a paired t test needs at least two pairs")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha = {alpha}: must lie strictly between 0 and 1")
    if power is not None and not alpha < power < 1:
        raise ValueError(f"power = {power}: must lie strictly between alpha = {alpha} and 1")


def _power(noncentrality: float, n: int, alpha: float) -> float:
    edge = -special.stdtrit(n - 1, alpha / 2)
    above = special.nctdtr(n - 1, -noncentrality, -edge)  # P(T > edge), by symmetry, without 1 − …
    below = special.nctdtr(n - 1, noncentrality, -edge)
    # The wrong side's tail comes out as NaN where it is too small for the library's series (below 1e-14).
    return float(above) + (0.0 if math.isnan(below) else float(below))


@lru_cache(maxsize=4096)
def _noncentrality(n: int, power: float, alpha: float) -> float:
    high = 4.0
    while _power(high, n, alpha) < power:
        high *= 2
    return float(optimize.brentq(lambda x: _power(x, n, alpha) - power, 0.0, high, xtol=1e-12, rtol=1e-12))
