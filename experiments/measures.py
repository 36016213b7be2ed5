"""One number of a run out of its curves: see `experiments.table.Measure`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from experiments.table import Measure


def metrics_of(measure: Measure) -> tuple[str, ...]:
    """The metrics a measure reads."""
    names = (measure.metric, measure.minus, measure.by if measure.kind == "at_equal" else None)
    return tuple(name for name in names if name)


def smoothed(values: np.ndarray, width: int) -> np.ndarray:
    """Centred mean over `width` steps, fewer at the ends, NaN ignored: s_t = mean of x over t − (w−1)//2 … t + w//2."""
    values = np.asarray(values, np.float64)
    present = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(present, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(present)])
    steps = np.arange(len(values))
    first = np.clip(steps - (width - 1) // 2, 0, None)
    last = np.clip(steps + width // 2 + 1, None, len(values))
    number = counts[last] - counts[first]
    return np.where(number > 0, (sums[last] - sums[first]) / np.maximum(number, 1), np.nan)


def value_of(measure: Measure, curves: Mapping[str, np.ndarray]) -> float:
    """The measure of one run; NaN where it never comes about. `curves`: metric → [steps].

    Raises:
      KeyError: a metric of `metrics_of(measure)` is not there.
    """
    values = np.asarray(curves[measure.metric], np.float64)
    if measure.minus:
        values = values - np.asarray(curves[measure.minus], np.float64)
    if measure.kind == "window":
        return _mean(values[measure.first : None if measure.last is None else measure.last + 1])
    if measure.kind == "area":
        return _mean(values)
    smooth = smoothed(values, measure.smooth)
    if measure.kind == "steps_to":
        reached = np.flatnonzero(smooth >= measure.value)
        return float(reached[0]) if reached.size else float("nan")
    return _at_equal(smooth, smoothed(curves[measure.by], measure.smooth), measure.value)


def _mean(values: np.ndarray) -> float:
    values = values[np.isfinite(values)]
    return float(values.mean()) if values.size else float("nan")


def _at_equal(values: np.ndarray, by: np.ndarray, level: float) -> float:
    """values where `by` first reaches `level`, linear between the steps on either side; NaN if never."""
    steps = np.flatnonzero(np.isfinite(by))
    reached = np.flatnonzero(by[steps] >= level)
    if not reached.size:
        return float("nan")
    after = steps[reached[0]]
    if reached[0] == 0:
        return float(values[after])
    before = steps[reached[0] - 1]
    share = (level - by[before]) / (by[after] - by[before])
    return float(values[before] + share * (values[after] - values[before]))
