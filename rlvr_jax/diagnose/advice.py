"""What the numbers of an audit suggest, largest first, each with the paper that says so and the one that disagrees."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from rlvr_jax.diagnose.audit import Bias, Curves, OnLog

# Below these a finding is not worth a change of the estimator.
LEAST = {
    "no signal": 0.2,
    "lopsided groups": 0.05,
    "wrong and long is cheap": 0.05,
    "long ones dominate": 0.1,
    "signs are unequal": 0.1,
    "lone successes": 0.15,
    "the mean misses": 0.03,
    "cut responses": 0.1,
}


class Advice(NamedTuple):
    """One suggestion.

    score:     what it is ranked by: the share of weight or of groups that is concerned, in [0, 1]
    finding:   the numbers
    suggests:  what would change them, as slots of an estimator or as settings
    says:      the paper that argues for it
    disagrees: the paper that argues against, and what it argues
    """

    name: str
    score: float
    finding: str
    suggests: str
    says: str
    disagrees: str


def advise(curves: Curves, found: OnLog, bias: Bias) -> list[Advice]:
    """Suggestions of which the numbers pass their threshold (`LEAST`), by score, largest first."""
    made = [rule(curves, found, bias) for rule in RULES]
    kept = [item for item in made if math.isfinite(item.score) and item.score >= LEAST[item.name]]
    return sorted(kept, key=lambda item: -item.score)


def _no_signal(curves: Curves, found: OnLog, bias: Bias) -> Advice:
    none, every = found.groups_by_band[0], found.groups_by_band[4]
    return Advice(
        "no signal",
        found.zero_groups,
        f"{_share(found.zero_groups)} of the groups bring no gradient (none right: {_share(none)}, all right: "
        f"{_share(every)} of all groups).",
        "select='informative', and prompts drawn until the batch is full; or prompts nearer to half right",
        "Yu et al. 2025, DAPO, arXiv:2503.14476: resample such groups",
        "MaPP 2026, arXiv:2609.34990: keep them, with an advantage from the prompt's past pass rate",
    )


def _lopsided(curves: Curves, found: OnLog, bias: Bias) -> Advice:
    groups, weight = (x[[1, 3]].sum() / max(x[1:4].sum(), 1e-12) for x in (found.groups_by_band, found.by_band))
    return Advice(
        "lopsided groups",
        weight - groups,
        f"Groups with at most a quarter right, or at least three quarters, are {_share(groups)} of those with contrast "
        f"and get {_share(weight)} of their weight.",
        "scale='none'",
        "Liu et al. 2025, Dr. GRPO, arXiv:2503.20783: dividing by the std favours easy and hard questions",
        "arXiv:2601.23135 (2026): dividing by the std adapts the step to the curvature; without it hard questions are "
        "learnt later",
    )


def _cheap(curves: Curves, found: OnLog, bias: Bias) -> Advice:
    short, long = found.token_by_length[[0, 3], 1]
    ratio = long / short if short > 0 else math.nan
    wrong = found.rows_by_length[:, 1].sum()
    return Advice(
        "wrong and long is cheap",
        wrong * (1 - ratio),
        f"A token of a wrong response in the longest quarter gets {_times(ratio)} the weight of one in the shortest: a "
        f"wrong response that grows is pushed down less per token ({_share(wrong)} of the responses are wrong).",
        "aggregate='constant(length=...)'",
        "Liu et al. 2025, Dr. GRPO, arXiv:2503.20783: 1/length makes wrong answers longer",
        "arXiv:2607.23364 (2026): no weight of the length is both unbiased and invariant to length; with a constant "
        "one long responses dominate",
    )


def _long(curves: Curves, found: OnLog, bias: Bias) -> Advice:
    weight, rows = found.by_length[3].sum(), found.rows_by_length[3].sum()
    return Advice(
        "long ones dominate",
        weight - rows,
        f"The longest quarter of the lengths holds {_share(rows)} of the responses and gets {_share(weight)} of the "
        "weight.",
        "aggregate='sequence_mean', or 'length_power(alpha=0.5)' between the two",
        "arXiv:2607.23364 (2026): weights that are the same for every token are not invariant to length",
        "Yu et al. 2025, DAPO, arXiv:2503.14476: tokens should count alike, so that long responses are learnt from",
    )


def _signs(curves: Curves, found: OnLog, bias: Bias) -> Advice:
    more = "positive" if found.positive > 0.5 else "negative"
    return Advice(
        "signs are unequal",
        abs(2 * found.positive - 1),
        f"Positive responses get {_share(found.positive)} of the weight, negative ones {_share(1 - found.positive)}: "
        f"within groups the positive are {tokens_apart(found.gap)} than the negative (sign-length correlation "
        f"{found.coupling:+.2f}), which tilts the batch to the {more} side.".replace("-0", "−0"),
        "aggregate='balanced'",
        "Balanced Aggregation 2026, arXiv:2605.04077: weight each sign by its own tokens",
        "Setlur et al. 2025, e3, arXiv:2506.09026: negative gradients on long responses are what drives exploration; "
        "and in one of the four settings of 2605.04077 itself sequence_mean ends ahead",
    )


def _lone(curves: Curves, found: OnLog, bias: Bias) -> Advice:
    lone = curves.at(0, 1)
    half = curves.at(0, curves.group_size // 2)
    more = lone / half if half else math.nan
    return Advice(
        "lone successes",
        found.lone if more > 1.2 else math.nan,
        f"The only right response of its group gets {_times(more)} the weight it would "
        f"have in a group half right, whether it was reasoned or guessed; such groups are {_share(found.lone_groups)} "
        f"of all and get {_share(found.lone)} of the positive weight.",
        "sign_balance (baseline=\"sign(scope='batch')\", scale='none'), where answers can be guessed",
        "SignBalance 2026, arXiv:2609.04063: the std rewards lucky guesses most",
        "Tajwar et al. 2026, MaxRL, arXiv:2602.02710: rare successes deserve even more, 1/p̂",
    )


def _bias(curves: Curves, found: OnLog, bias: Bias) -> Advice:
    known = [value for value in (bias.hard, bias.easy) if math.isfinite(value)]
    return Advice(
        "the mean misses",
        max((abs(value) for value in known), default=math.nan),
        f"At G = {bias.group_size} and these pass rates, the mean of a group with contrast misses the prompt's pass "
        f"rate by {_plus(bias.hard)} on hard prompts and {_plus(bias.easy)} on easy ones: successes on hard prompts "
        "get too little.",
        "ha_dw_grpo (reweight=\"history(variant='anchor')\"), or larger groups",
        "Yang et al. 2026, HA-DW, arXiv:2601.08521: correct by the history of pass rates",
        "SignBalance 2026, arXiv:2609.04063: more weight on rare successes rewards guesses. And the bias is with the "
        "response's own outcome held fixed: with it random, the advantages of a group sum to 0",
    )


def _cut(curves: Curves, found: OnLog, bias: Bias) -> Advice:
    return Advice(
        "cut responses",
        found.cut,
        f"{_share(found.cut)} of the weight is on responses that the limit cut: verdicts on unfinished answers.",
        "shape='overlong', or a higher completion limit",
        "Yu et al. 2025, DAPO, arXiv:2503.14476: penalise softly near the limit, or leave them out of the loss",
        "Setlur et al. 2025, e3, arXiv:2506.09026: raise the budget with the difficulty; negatives of long ones teach",
    )


RULES: tuple[Callable[[Curves, OnLog, Bias], Advice], ...] = (
    _no_signal,
    _lopsided,
    _cheap,
    _long,
    _signs,
    _lone,
    _bias,
    _cut,
)


def _share(value: float) -> str:
    return "–" if not math.isfinite(value) else f"{100 * value:.0f} %"


def _times(value: float) -> str:
    return "–" if not math.isfinite(value) else f"{value:.2g} times"


def _plus(value: float) -> str:
    return "–" if not math.isfinite(value) else f"{value:+.3f}".replace("-", "−")


def tokens_apart(gap: float) -> str:
    """ "142 tokens shorter"."""
    return "as long" if not math.isfinite(gap) else f"{abs(gap):.0f} tokens {'longer' if gap > 0 else 'shorter'}"
