"""The change of mean length between two windows of steps, split by cause.

The mean of a window is L = a·C + (1 − a)·W: a the share of right completions, C and W the mean lengths of right and
wrong ones; within each, C = (1 − t)·E + t·K: t the share cut by the limit, E and K the mean lengths of those that
ended and of those that were cut. With Δ the change and a bar the mean of the two windows (Kitagawa 1955, "Components
of a difference between two rates", JASA 50; Oaxaca 1973; the symmetric weights leave no interaction term):

    ΔL = Δa·(C̄ − W̄)                                accuracy
       + ā·(1 − t̄)·ΔE          of the right           right: those that ended grew
       + (1 − ā)·(1 − t̄)·ΔE    of the wrong           wrong: those that ended grew
       + ā·(Δt·(K̄ − Ē) + t̄·ΔK) of the right           right: more were cut, or the limit moved
       + (1 − ā)·(…)           of the wrong           wrong: the same

The sum is exact. A kind that is absent from one window has no mean there; it takes the other window's, so that its
coming or going counts as a change of shares.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rlvr_jax.diagnose.cells import Cells

PARTS = ("accuracy", "within_right", "within_wrong", "cut_right", "cut_wrong")
MOST_CLUSTERS = 4096  # more prompts than this share buckets in the bootstrap
FEW = 20  # with fewer prompts a bootstrap interval is too narrow


class Window(NamedTuple):
    """Steps first … last, both included."""

    first: int
    last: int

    def __str__(self):
        return f"{self.first}–{self.last}" if self.last > self.first else f"{self.first}"


class Estimate(NamedTuple):
    """A number with its interval, in tokens (or characters); NaN ends where there is none."""

    value: float
    low: float
    high: float

    @property
    def beyond(self) -> bool:
        """Whether zero lies outside the interval."""
        return self.low > 0 or self.high < 0


class Means(NamedTuple):
    """One window: completions, mean length, shares and mean lengths by kind; NaN where a kind is absent."""

    rows: int
    prompts: int
    length: float
    right: float
    length_right: float
    length_wrong: float
    cut: float
    cut_right: float
    cut_wrong: float


class Split(NamedTuple):
    """What moved the mean length from `before` to `after`.

    change:     the observed change
    parts:      name → Estimate; their values sum to `change.value`
    in_wrong:   within_wrong + cut_wrong
    in_right:   within_right + cut_right
    truncation: cut_right + cut_wrong
    shared:     share of the after window's prompts that the before window has too
    clusters:   what was resampled together for the intervals, and how many there are
    """

    before: Window
    after: Window
    means: tuple[Means, Means]
    change: Estimate
    parts: dict[str, Estimate]
    in_wrong: Estimate
    in_right: Estimate
    truncation: Estimate
    shared: float
    clusters: int


def windows(cells: Cells, before: Window | None = None, after: Window | None = None) -> tuple[Window, Window]:
    """The two windows: as given, else the first and the last fifth of the steps of the log.

    Raises:
      ValueError: one step alone, a window without a step of the log, windows that overlap or are in the wrong order.
    """
    steps = np.unique(cells.steps)
    if len(steps) < 2 and not (before and after):
        raise ValueError(f"the log has one step ({int(steps[0])}): a change needs two; give several files, one a step")
    fifth = max(1, len(steps) // 5)
    before = before or Window(int(steps[0]), int(steps[fifth - 1]))
    after = after or Window(int(steps[-fifth]), int(steps[-1]))
    for name, window in (("before", before), ("after", after)):
        if window.first > window.last:
            raise ValueError(f"{name}={window.first}:{window.last}: the first step must not lie after the last")
        if not ((steps >= window.first) & (steps <= window.last)).any():
            raise ValueError(
                f"{name}={window.first}:{window.last}: no step of the log, which has {steps[0]}…{steps[-1]}"
            )
    if after.first <= before.last:
        raise ValueError(
            f"before={before.first}:{before.last}, after={after.first}:{after.last}: the second must begin after the "
            "first has ended"
        )
    return before, after


def parts_of(before: tuple[np.ndarray, np.ndarray], after: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """f64[…, 5]: the parts in the order of PARTS; NaN where a window is empty.

    Args:
      before, after: (counts, totals), f64[…, 4] each: completions by kind and their lengths summed.
    """
    share, right, wrong = zip(_levels(*before), _levels(*after))
    ended_right, cut_right, mean_right = _within(right)
    ended_wrong, cut_wrong, mean_wrong = _within(wrong)
    mean = (share[0] + share[1]) / 2
    accuracy = (share[1] - share[0]) * (mean_right - mean_wrong)
    return np.stack(
        [accuracy, mean * ended_right, (1 - mean) * ended_wrong, mean * cut_right, (1 - mean) * cut_wrong], axis=-1
    )


def _levels(counts, totals):
    """(share of right ones, kinds of the right, kinds of the wrong) of a window."""
    with np.errstate(invalid="ignore", divide="ignore"):
        right = counts[..., :2].sum(-1) / counts.sum(-1)
    return right, (counts[..., :2], totals[..., :2]), (counts[..., 2:], totals[..., 2:])


def _within(windows):
    """(growth of those that ended, what being cut added, mean of the two windows' means) of the right or the wrong.

    `windows`: (counts, totals) [..., 2] of both windows, ended and cut.
    """
    ended = _both(*((totals[..., 0], counts[..., 0]) for counts, totals in windows))
    cut = _both(*((totals[..., 1], counts[..., 1]) for counts, totals in windows))
    rate = _both(*((counts[..., 1], counts.sum(-1)) for counts, _ in windows))
    whole = _both(*((totals.sum(-1), counts.sum(-1)) for counts, totals in windows))
    rates = (rate[0] + rate[1]) / 2
    grown = (1 - rates) * (ended[1] - ended[0])
    gap = (cut[0] + cut[1]) / 2 - (ended[0] + ended[1]) / 2
    longer = (rate[1] - rate[0]) * gap + rates * (cut[1] - cut[0])
    return grown, longer, (whole[0] + whole[1]) / 2


def _both(before, after):
    """Two quotients; one that is of nothing takes the other's value, and both are 0 where both are."""
    with np.errstate(invalid="ignore", divide="ignore"):
        first, second = before[0] / before[1], after[0] / after[1]
    first, second = np.where(before[1] > 0, first, second), np.where(after[1] > 0, second, first)
    return np.where(np.isnan(first), 0.0, first), np.where(np.isnan(second), 0.0, second)


def split(
    cells: Cells,
    before: Window | None = None,
    after: Window | None = None,
    *,
    confidence: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> Split:
    """The split between two windows, with percentile bootstrap intervals that resample prompts, each with all its
    completions in both windows.

    With more than `MOST_CLUSTERS` prompts, prompts share buckets at random, which widens nothing in expectation.
    Reference: Davison & Hinkley 1997, "Bootstrap Methods and their Application", 3.8 (clusters).

    Args:
      cells: of a whole log.
      before, after: windows; see `windows` for what they are if not given.
      confidence: coverage aimed at, in (0, 1).
      draws: resamples; 0 leaves the intervals out.
    Raises:
      ValueError: as `windows`, or confidence or draws out of range.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence = {confidence}: must lie strictly between 0 and 1")
    if draws < 0:
        raise ValueError(f"draws = {draws}: must not be negative")
    before, after = windows(cells, before, after)
    chosen = [(cells.steps >= window.first) & (cells.steps <= window.last) for window in (before, after)]
    sums = np.stack([np.stack([x[rows].sum(0) for x in (cells.counts, cells.totals)]) for rows in chosen])
    names = np.unique(cells.prompts[chosen[0] | chosen[1]])
    there = [np.isin(names, cells.prompts[rows]) for rows in chosen]
    means = tuple(_means(*sums[i], int(there[i].sum())) for i in (0, 1))
    values = _numbers(sums)
    low, high = _interval(cells, chosen, names, confidence, draws, seed)
    found = [Estimate(float(v), float(lo), float(hi)) for v, lo, hi in zip(values, low, high)]
    return Split(
        before=before,
        after=after,
        means=means,
        change=found[0],
        parts=dict(zip(PARTS, found[1:6])),
        in_wrong=found[6],
        in_right=found[7],
        truncation=found[8],
        shared=float((there[0] & there[1]).sum() / max(there[1].sum(), 1)),
        clusters=len(names),
    )


def _numbers(sums: np.ndarray) -> np.ndarray:
    """f64[…, 9] of sums [window, counts or totals, …, 4]: change, the five parts, in wrong, in right, truncation."""
    parts = parts_of((sums[0][0], sums[0][1]), (sums[1][0], sums[1][1]))
    with np.errstate(invalid="ignore", divide="ignore"):
        first, second = (totals.sum(-1) / counts.sum(-1) for counts, totals in sums)
    _, right, wrong, cut_right, cut_wrong = np.moveaxis(parts, -1, 0)
    more = [wrong + cut_wrong, right + cut_right, cut_right + cut_wrong]
    return np.concatenate([(second - first)[..., None], parts, np.stack(more, axis=-1)], axis=-1)


def _interval(cells: Cells, chosen, names, confidence: float, draws: int, seed: int):
    """Percentiles of `_numbers` over resampled prompts; NaN with fewer than two of them."""
    if len(names) < 2 or draws == 0:
        return np.full(9, math.nan), np.full(9, math.nan)
    rng = np.random.default_rng(seed)
    clusters = min(len(names), MOST_CLUSTERS)
    bucket = np.arange(clusters) if clusters == len(names) else rng.permutation(len(names)) % clusters
    table = np.zeros((2, 2, clusters, 4))
    for window, rows in enumerate(chosen):
        place = bucket[np.searchsorted(names, cells.prompts[rows])]
        for which, values in enumerate((cells.counts, cells.totals)):
            np.add.at(table[window, which], place, values[rows])
    flat = np.moveaxis(table, 2, 0).reshape(clusters, -1)
    found = []
    for start in range(0, draws, 500):
        size = min(500, draws - start)
        weights = rng.multinomial(clusters, np.full(clusters, 1 / clusters), size=size)
        sums = (weights @ flat).reshape(size, 2, 2, 4)
        found.append(_numbers(np.moveaxis(sums, 0, 2)))
    drawn = np.concatenate(found)
    drawn = drawn[np.isfinite(drawn).all(-1)]  # a resample may miss a window altogether
    if len(drawn) < draws / 2:
        return np.full(9, math.nan), np.full(9, math.nan)
    return np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)


def _means(counts: np.ndarray, totals: np.ndarray, prompts: int) -> Means:
    ratio = lambda a, b: float(a / b) if b > 0 else math.nan
    rows = counts.sum()
    return Means(
        rows=round(float(rows)),
        prompts=prompts,
        length=ratio(totals.sum(), rows),
        right=ratio(counts[:2].sum(), rows),
        length_right=ratio(totals[:2].sum(), counts[:2].sum()),
        length_wrong=ratio(totals[2:].sum(), counts[2:].sum()),
        cut=ratio(counts[1] + counts[3], rows),
        cut_right=ratio(counts[1], counts[:2].sum()),
        cut_wrong=ratio(counts[3], counts[2:].sum()),
    )


class Curve(NamedTuple):
    """The log by neighbouring steps. `split_of[b]` splits the change from the before window to bin b.

    steps:   f64[bins], mean step of a bin
    means:   one Means a bin
    split_of: f64[bins, 5], in the order of PARTS
    """

    steps: np.ndarray
    means: list[Means]
    split_of: np.ndarray


def curve(cells: Cells, before: Window, bins: int = 40) -> Curve:
    """Means by step, neighbouring steps pooled to at most `bins` bins, and the split of each from `before`."""
    steps, first = np.unique(cells.steps, return_index=True)
    groups = np.array_split(np.arange(len(steps)), min(bins, len(steps)))
    counts, totals = (np.add.reduceat(x, first, axis=0) for x in (cells.counts, cells.totals))
    prompts = np.diff(np.append(first, len(cells.steps)))
    start = (steps >= before.first) & (steps <= before.last)
    base = counts[start].sum(0), totals[start].sum(0)
    sums = [(counts[group].sum(0), totals[group].sum(0)) for group in groups]
    return Curve(
        steps=np.asarray([steps[group].mean() for group in groups]),
        means=[_means(*pair, int(prompts[group].sum())) for pair, group in zip(sums, groups)],
        split_of=np.stack([parts_of(base, pair) for pair in sums]),
    )
