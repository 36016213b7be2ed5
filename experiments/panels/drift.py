"""Which way an aggregation moves length when reward says nothing about it: the push on the logit of stopping.

A response is `answer_tokens` tokens without a choice, then at every token the policy stops with probability h = σ(s).
For that policy ∂log π/∂s is 1 − h at the stop token, −h at every token that goes on and 0 before, so the gradient
ascent step on s has the sign of Σ w·A·∂log π/∂s: positive makes responses shorter.
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
    mean_and_error,
    weighted,
    with_aggregation,
    within,
    z_score,
)

GROUP = 8
HAZARD = 0.4


def responses(shape, answer_tokens: int, seed, hazard: float = HAZARD) -> tuple[np.ndarray, np.ndarray]:
    """(lengths i32[…], ∂log π/∂s f32[…, T]) of independent responses, cut off at T = MAX_LENGTH tokens.

    A response that is cut off has no stop token; its score then is −h at every token with a choice.
    """
    rng = np.random.default_rng(seed)
    ended = answer_tokens + rng.geometric(hazard, shape)
    lengths = np.minimum(ended, MAX_LENGTH).astype(np.int32)
    token = np.arange(MAX_LENGTH)
    choice = (token >= answer_tokens) & (token < lengths[..., None])
    scores = (token == ended[..., None] - 1).astype(np.float32) - np.float32(hazard) * choice
    return lengths, scores


def pushes(aggregation: str, k: int, lengths: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(f64[n], f64[n]): Σ w·A·∂log π/∂s over the right and over the wrong responses of n separate groups of 8.

    Args:
      aggregation: string of the slot `aggregate`.
      k: right responses of each group, its first ones.
      lengths, scores: of the responses, [n, 8] and [n, 8, T].
    """
    outcome = (np.arange(GROUP) < k).astype(np.float32)
    own = np.broadcast_to(advantages(with_aggregation("sequence_mean"), outcome[None]), lengths.shape)
    rows = weighted(with_aggregation(aggregation), own, lengths, scores, np.zeros(GROUP, np.int32))
    return rows[:, :k].sum(axis=1), rows[:, k:].sum(axis=1)


def _zeros_and_signs(found: Mapping) -> tuple[dict, dict]:
    """(z that should be about 0, z that should be large and positive), by statement. `found[label, k]` holds (mean,
    standard error) of the positive part, the negative part and the sum."""
    zero, large = {}, {}
    for (label, k), parts in found.items():
        plus, minus, total = (z_score(*part) for part in parts)
        if label == "constant":
            zero |= {f"{label}, k = {k}: right": plus, f"{label}, k = {k}: wrong": minus}
            continue
        large |= {f"{label}, k = {k}: right shorter": plus, f"{label}, k = {k}: wrong longer": minus and -minus}
        if label == "balanced" and 2 * k != GROUP:
            toward = 1 if 2 * k < GROUP else -1
            large[f"{label}, k = {k}: " + ("shorter" if toward > 0 else "longer")] = total and toward * total
        else:
            zero[f"{label}, k = {k}: sum"] = total
    (first, first_error), (last, last_error) = found["balanced", 1][2], found["balanced", GROUP - 1][2]
    zero["balanced: antisymmetric"] = z_score(first + last, float(np.hypot(first_error, last_error)))
    return zero, large


def stop_logit(
    answer_tokens: int = 1, groups: int = 50_000, aggregations: Mapping[str, str] = AGGREGATIONS
) -> PanelData:
    """The push (× 100; + is shorter) of one group with k = 1, 4, 7 of 8 right, lengths independent of reward.

    Args:
      answer_tokens: tokens of a response before it can stop.
      groups: Monte-Carlo groups per k, the same ones for every aggregation.
      aggregations: label → string of the slot `aggregate`, "constant" and "balanced" among them; the statements are
        about the labels.
    """
    found, rows = {}, []
    for k in (1, GROUP // 2, GROUP - 1):
        lengths, scores = responses((groups, GROUP), answer_tokens, seed=[4, k, answer_tokens])
        for label, aggregation in aggregations.items():
            right, wrong = pushes(aggregation, k, lengths, scores)
            parts = [mean_and_error(100 * part) for part in (right, wrong, right + wrong)]
            found[label, k] = parts
            rows.append([k, label, *(number for part in parts for number in part), z_score(*parts[2])])
    zero, large = _zeros_and_signs(found)
    failed = [text for text, z in zero.items() if not within(z)]
    failed += [text for text, z in large.items() if z is None or z < LIMIT]
    return {
        "columns": ["k of 8", "aggregation", "right", "s.e.", "wrong", "s.e.", "sum", "s.e.", "z of the sum"],
        "rows": rows,
        "note": "GRPO's advantage (ddof 1); each group is its own update of 8 rows, so the two scopes of token_mean, "
        f"and learnable at λ = 0, are one rule here. Length: {answer_tokens} + geometric({HAZARD}), at most "
        f"{MAX_LENGTH}, for right and wrong alike; {groups} groups per k. The std is one number per k: it scales the "
        "three pushes of a row alike, so no sign or zero depends on it (ddof 0: times √(8/7) = 1.069; "
        "without it: times √(k(8 − k)/56)). "
        f"Statements: the constant normaliser is 0 for each sign; all others push right shorter and wrong longer, and "
        "all but balanced with equal force; balanced shortens where fewer than half are right, lengthens where more "
        f"are, and the two are equal. holds asks |z| < {LIMIT} of {len(zero)} zeros and z > {LIMIT} of {len(large)} "
        f"signs. Failed: {'; '.join(failed) or 'none'}.",
        "holds": not failed,
    }
