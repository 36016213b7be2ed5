"""How much of an update is a vote on length: Σ w·A·L over Σ w·|A|·L, token by token.

Every token of a response is pushed by w·A. Where right and wrong responses differ in length, an aggregation that
counts tokens gives the longer side more weight, and the pushes of an update no longer cancel.
Reference: Balanced Aggregation, arXiv:2605.04077.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from experiments.panels import (
    AGGREGATIONS,
    LIMIT,
    MAX_LENGTH,
    PanelData,
    advantages,
    weighted,
    with_aggregation,
    within,
    z_score,
)

PROMPTS, GROUP = 32, 8  # of one update
GAPS = {"wrong longer": (0.6, 0.25), "equal": (0.4, 0.4), "right longer": (0.25, 0.6)}  # stop hazards, right and wrong
_EXACT = ("sequence_mean", "balanced")  # 0 in every update, not only on average


def updates(hazards: tuple[float, float], n: int, seed: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """(outcomes f32[n, P, G], lengths i32[n, P·G]): a pass rate per prompt, uniform on (0.1, 0.6), and a length of an
    answer token and a geometric rest, cut off at MAX_LENGTH."""
    rng = np.random.default_rng(seed)
    rate = rng.uniform(0.1, 0.6, (n, PROMPTS, 1))
    outcome = (rng.random((n, PROMPTS, GROUP)) < rate).astype(np.float32)
    hazard = np.where(outcome > 0, *hazards)
    lengths = np.minimum(1 + rng.geometric(hazard), MAX_LENGTH).astype(np.int32)
    return outcome, lengths.reshape(n, -1)


def _ratio(net: np.ndarray, gross: np.ndarray) -> tuple[float, float]:
    """(Σ net / Σ gross, its standard error) over independent updates, by linearisation."""
    ratio = net.sum() / gross.sum()
    residual = net - ratio * gross
    return float(ratio), float(residual.std(ddof=1) / np.sqrt(len(net)) / gross.mean())


def sign_length(n: int = 300, aggregations: Mapping[str, str] = AGGREGATIONS) -> PanelData:
    """Σ w·A·L / Σ w·|A|·L of updates of 32 prompts × 8 responses, for three gaps of length between right and wrong.

    Args:
      n: Monte-Carlo updates per gap, the same ones for every aggregation.
      aggregations: label → string of the slot `aggregate`; the statements are about the labels.
    """
    rows, failed = [], []
    group = np.repeat(np.arange(PROMPTS, dtype=np.int32), GROUP)
    for gap, hazards in GAPS.items():
        outcome, lengths = updates(hazards, n)
        right = outcome.reshape(n, -1) > 0
        gap_tokens = float(lengths[right].mean() - lengths[~right].mean())
        own = advantages(with_aggregation("sequence_mean"), outcome.reshape(-1, GROUP)).reshape(n, -1)
        every_token = np.ones((n, PROMPTS * GROUP, MAX_LENGTH), np.float32)
        for label, aggregation in aggregations.items():
            votes = weighted(with_aggregation(aggregation), own, lengths, every_token, group, updates=n)
            ratio, error = _ratio(votes.sum(axis=1), np.abs(votes).sum(axis=1))
            exact = label in _EXACT
            z = None if exact else z_score(ratio, error)
            rows.append([gap, gap_tokens, label, ratio, error, z])
            toward = {"wrong longer": -1, "equal": 0, "right longer": 1}[gap]
            holds = abs(ratio) < 1e-5 if exact else z is not None and (within(z) if toward == 0 else toward * z > LIMIT)
            failed += [] if holds else [f"{label}, {gap}"]
    return {
        "columns": ["lengths", "right − wrong (tokens)", "aggregation", "Σ wAL / Σ w|A|L", "s.e.", "z"],
        "rows": rows,
        "note": f"GRPO's advantage; {n} updates of {PROMPTS} prompts × {GROUP} responses, pass rates uniform on (0.1, "
        f"0.6); length 1 + geometric, at most {MAX_LENGTH}, stop hazards right/wrong "
        + ", ".join(f"{right}/{wrong}" for right, wrong in GAPS.values())
        + ". Ratio of sums over updates (a mean over groups of their own ratios is below 0 even at equal lengths, by "
        "about 0.01), standard error by linearisation. Statements: sequence_mean and balanced are 0 in every update "
        "(|ratio| < 1e-5, float32); every other aggregation is negative where wrong responses are longer "
        f"(z < −{LIMIT}), positive where right ones are (z > {LIMIT}), and |z| < {LIMIT} at equal lengths. "
        "A coupling of 0 does not mean that length stays: see the push on the stop logit. "
        f"Failed: {'; '.join(failed) or 'none'}.",
        "holds": not failed,
    }
