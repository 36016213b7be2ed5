"""One number out of a curve: windows, levels, and what never comes about."""

import numpy as np
import pytest

from experiments.measures import metrics_of, smoothed, value_of
from experiments.table import Measure

NAN = np.nan
CURVES = {"a": np.asarray([1.0, NAN, 3.0, 5.0]), "b": np.asarray([0.0, 1.0, 1.0, NAN]), "up": np.arange(4) / 4}


@pytest.mark.parametrize(
    ("measure", "value"),
    [
        (Measure("m", "a"), 3.0),
        (Measure("m", "a", first=2), 4.0),
        (Measure("m", "a", first=0, last=1), 1.0),
        (Measure("m", "a", first=1, last=1), NAN),
        (Measure("m", "a", "area", first=3), 3.0),
        (Measure("m", "a", minus="b"), 1.5),  # steps 0 and 2 alone have both
        (Measure("m", "up", "steps_to", value=0.5, smooth=1), 2.0),
        (Measure("m", "up", "steps_to", value=0.9, smooth=1), NAN),
        (Measure("m", "up", "at_equal", by="up", value=0.3, smooth=1), 0.3),
        (Measure("m", "a", "at_equal", by="up", value=0.625, smooth=1), 4.0),
        (Measure("m", "a", "at_equal", by="up", value=-1.0, smooth=1), 1.0),
        (Measure("m", "a", "at_equal", by="up", value=2.0, smooth=1), NAN),
        (Measure("m", "up", "at_equal", by="b", value=1.0, smooth=1), 0.25),
    ],
)
def test_values(measure, value):
    np.testing.assert_allclose(value_of(measure, CURVES), value)


def test_smoothing_against_a_loop():
    rng = np.random.default_rng(0)
    values = np.where(rng.random(30) < 0.3, NAN, rng.normal(size=30))
    for width in (1, 2, 5, 10):
        for t, found in enumerate(smoothed(values, width)):
            window = values[max(0, t - (width - 1) // 2) : t + width // 2 + 1]
            window = window[np.isfinite(window)]
            np.testing.assert_allclose(found, window.mean() if window.size else NAN)


def test_metrics_a_measure_reads():
    assert metrics_of(Measure("m", "a", minus="b")) == ("a", "b")
    assert metrics_of(Measure("m", "a", "at_equal", by="c", value=1.0)) == ("a", "c")
