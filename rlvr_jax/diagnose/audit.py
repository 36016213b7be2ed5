"""What weight a token gets under an estimator: by response length, by how many of its group are right, by sign.

The weight of a token is the coefficient of ∇log π at ratio 1: aggregation weight times advantage. It is the same for
all tokens of a response, and computed by the parts of the estimator themselves. The *weight of a response* is the
size of that coefficient times its length; shares are of the sum over all responses of a log.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.diagnose.batches import Batches
from rlvr_jax.estimators import Estimator
from rlvr_jax.estimators.aggregate import Rows
from rlvr_jax.estimators.theory import conditional_bias
from rlvr_jax.types import Groups

CONTEXT = 7  # groups, half right, beside the one that a curve is of
STRETCH = (0.25, 0.5, 1.0, 2.0, 4.0)  # lengths of a curve, in units of the reference length
QUARTERS = ("shortest", "second", "third", "longest")
BANDS = ("none right", "up to 1/4", "frontier", "from 3/4", "all right")


def row_coefficients(estimator: Estimator, groups: Groups, memory):
    """(f32[P, G] token weight, f32[P, G] advantages, the moved memory): weight · advantage of every response's tokens.

    As `Estimator.token_weights` on a batch of these responses, without a mask of T columns: an aggregate looks at the
    number of tokens, not at their places.
    """
    selected, advantages, memory, _ = estimator.estimate(groups, memory)
    P, G = advantages.shape
    valid = selected.valid.reshape(-1).astype(bool)
    lengths = jnp.where(valid, selected.lengths.reshape(-1).astype(jnp.float32), 0.0)
    rows = Rows(
        mask_BT=(valid & (lengths > 0))[:, None],
        lengths=lengths,
        valid=valid,
        group=jnp.repeat(jnp.arange(P, dtype=jnp.int32), G),
        advantage=advantages.reshape(-1),
    )
    params = estimator.init_params().get("aggregate", {})
    weights = estimator.parts.aggregate.weights(params, rows)[:, 0].reshape(P, G)
    return weights * advantages, advantages, memory


class Curves(NamedTuple):
    """Token weights of one response of a group, as a multiple of `unit`.

    right:   i64[K], how many of the group are right
    lengths: f64[N], of the response, tokens; the others have `reference` tokens
    values:  f64[2, K, N], of a right one and of a wrong one; NaN where the group has none
    unit:    the weight of a right response of `reference` tokens in a group half of which is right
    """

    right: np.ndarray
    lengths: np.ndarray
    reference: float
    group_size: int
    values: np.ndarray
    unit: float

    def at(self, sign: int, right: int, stretch: float = 1.0) -> float:
        """The value for a right (0) or wrong (1) response in a group with `right` right ones."""
        row = int(np.flatnonzero(self.right == right)[0])
        return float(self.values[sign, row, int(np.argmin(np.abs(self.lengths - stretch * self.reference)))])


def curves(estimator: Estimator, group_size: int, reference: float) -> Curves:
    """The exact weights of `estimator`, evaluated, not derived.

    The group stands in a batch with `CONTEXT` groups of which half is right, all of `reference` tokens, so that parts
    that look at the batch have one; parts that remember start without a past. Weights are multiplied by the number of
    groups, so that they do not depend on it.
    Raises:
      ValueError: a group of fewer than two, a reference length below 4.
    """
    if group_size < 2:
        raise ValueError(f"group_size={group_size}: a curve over group accuracy needs at least 2")
    if reference < 4:
        raise ValueError(f"reference={reference}: a length of at least 4 tokens, so that a quarter of it is one")
    half = group_size // 2
    right = sorted({1, max(1, group_size // 4), half, group_size - max(1, group_size // 4), group_size - 1})
    lengths = np.round(np.asarray(STRETCH) * reference)
    cases = [(sign, k, length) for sign in (0, 1) for k in right for length in lengths]
    outcome = np.zeros((len(cases), 1 + CONTEXT, group_size), np.float32)
    outcome[:, 1:, :half] = 1.0
    tokens = np.full(outcome.shape, round(reference), np.int32)
    for case, (sign, k, length) in enumerate(cases):
        outcome[case, 0, :k] = 1.0
        tokens[case, 0, 0 if sign == 0 else group_size - 1] = length
    found = np.asarray(_all_cases(estimator, jnp.asarray(outcome), jnp.asarray(tokens)), np.float64)[:, 0]
    values = np.where([sign == 0 for sign, _, _ in cases], found[:, 0], found[:, -1]).reshape(2, len(right), -1)
    unit = values[0, right.index(half), STRETCH.index(1.0)]
    scale = unit if unit else 1.0
    return Curves(np.asarray(right), lengths, float(reference), group_size, values / scale, float(unit * (1 + CONTEXT)))


@functools.partial(jax.jit, static_argnums=0)
def _all_cases(estimator, outcome, lengths):
    def one(outcome_PG, lengths_PG):
        groups = Groups(outcome=outcome_PG, lengths=lengths_PG)
        return row_coefficients(estimator, groups, estimator.init_memory(outcome_PG.shape[0]))[0]

    return jax.vmap(one)(outcome, lengths)


def coefficients(estimator: Estimator, batches: Batches) -> tuple[np.ndarray, np.ndarray]:
    """(token weights, advantages), f32[S, P, G] each, of every response of a log; memory moves from step to step."""
    columns = (batches.outcome, batches.reward, batches.length, batches.finished, batches.valid, batches.prompt)
    found = _over_steps(estimator, batches.prompts, tuple(jnp.asarray(column) for column in columns))
    return tuple(np.asarray(column) for column in found)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _over_steps(estimator, prompts, columns):
    def step(memory, row):
        outcome, reward, length, finished, valid, prompt = row
        groups = Groups(
            outcome=outcome, rewards=reward, lengths=length, finished=finished, valid=valid, prompt_id=prompt
        )
        coefficient, advantages, memory = row_coefficients(estimator, groups, memory)
        return memory, (coefficient, advantages)

    return jax.lax.scan(step, estimator.init_memory(prompts), columns)[1]


class OnLog(NamedTuple):
    """Where the weight of one estimator goes on the rollouts of a log. Shares are in [0, 1]; NaN of nothing.

    by_length:      f64[4, 2], share of the weight by quarter of the lengths × (right, wrong)
    rows_by_length: f64[4, 2], share of the responses
    token_by_length: f64[4, 2], mean size of a token's weight over the mean of all
    by_band:        f64[5], share of the weight by how many of the group are right (BANDS)
    groups_by_band: f64[5], share of the groups
    zero_groups:    share of the groups whose every weight is 0
    effective_groups: (Σf)²/Σf² over the groups' weights f, mean over steps
    groups:         groups a step, mean
    positive:       share of the weight that raises probabilities
    coupling:       correlation of sign(A) and length within groups that have both signs
    gap:            mean length of the positive less that of the negative, mean over those groups, tokens
    lone:           share of the positive weight that goes to the only right response of its group
    lone_groups:    share of the groups with one right response
    cut:            share of the weight on responses that were cut; NaN where that is not known
    """

    by_length: np.ndarray
    rows_by_length: np.ndarray
    token_by_length: np.ndarray
    by_band: np.ndarray
    groups_by_band: np.ndarray
    zero_groups: float
    effective_groups: float
    groups: float
    positive: float
    coupling: float
    gap: float
    lone: float
    lone_groups: float
    cut: float


def on_log(estimator: Estimator, batches: Batches) -> OnLog:
    """Measures `OnLog` of one estimator."""
    coefficient, advantages = (values.astype(np.float64) for values in coefficients(estimator, batches))
    valid, present = batches.valid, batches.valid.any(-1)
    weight = np.abs(coefficient) * batches.length * valid
    total = weight.sum()
    share = lambda mask: _ratio((weight * mask).sum(), total)
    quarter = _quarters(batches)
    right, wrong = batches.correct & valid, ~batches.correct & valid
    cells = [[(quarter == q) & side for side in (right, wrong)] for q in range(4)]
    mean_token = _ratio(np.abs(coefficient[valid]).sum(), valid.sum())
    token = lambda mask: _ratio(_ratio(np.abs(coefficient[mask]).sum(), mask.sum()), mean_token)
    band = _bands(batches)
    of_group = weight.sum(-1)
    lone = (right.sum(-1) == 1) & present & (valid.sum(-1) > 1)
    positive = weight * (coefficient > 0)
    coupling, gap = _coupling(advantages, batches)
    squares = (of_group**2).sum(-1)
    effective = of_group.sum(-1)[squares > 0] ** 2 / squares[squares > 0]
    return OnLog(
        by_length=np.asarray([[share(mask) for mask in row] for row in cells]),
        rows_by_length=np.asarray([[_ratio(mask.sum(), valid.sum()) for mask in row] for row in cells]),
        token_by_length=np.asarray([[token(mask) for mask in row] for row in cells]),
        by_band=np.asarray([_ratio(of_group[band == b].sum(), total) for b in range(5)]),
        groups_by_band=np.asarray([_ratio((band == b).sum(), present.sum()) for b in range(5)]),
        zero_groups=_ratio((present & (of_group == 0)).sum(), present.sum()),
        effective_groups=float(effective.mean()) if len(effective) else 0.0,
        groups=float(present.sum(-1).mean()),
        positive=_ratio(positive.sum(), total),
        coupling=coupling,
        gap=gap,
        lone=_ratio((positive * right)[lone].sum(), positive.sum()),
        lone_groups=_ratio(lone.sum(), present.sum()),
        cut=share(~batches.finished) if batches.knows_ends else math.nan,
    )


class Bias(NamedTuple):
    """How far a group mean misses a prompt's pass rate, given that the group has right and wrong responses.

    pass_rate, group_size: mean over responses; commonest size
    at_mean:  of a prompt with the mean pass rate
    hard:     mean over the groups with contrast of prompts below ½ (NaN without one)
    easy:     of those above
    """

    pass_rate: float
    group_size: int
    at_mean: float
    hard: float
    easy: float


def bias(batches: Batches) -> Bias:
    """E[p̂ | S] − p at the observed pass rates; see `rlvr_jax.estimators.theory.conditional_bias`.

    A prompt's p is taken from all its responses in the log, (right + ½)/(n + 1).
    Reference: Yang et al. 2026, HA-DW, arXiv:2601.08521, theorem 1.
    """
    right = np.bincount(batches.prompt.ravel(), (batches.correct & batches.valid).sum(-1).ravel(), batches.prompts)
    count = np.bincount(batches.prompt.ravel(), batches.valid.sum(-1).ravel(), batches.prompts)
    rate = (right + 0.5) / (count + 1)
    size, mean = batches.group_size, float(right.sum() / count.sum())
    contrast = np.isin(_bands(batches), (1, 2, 3))
    of_group = rate[batches.prompt][contrast]
    if size < 2:
        return Bias(mean, size, math.nan, math.nan, math.nan)
    values = np.asarray([conditional_bias(p, size) for p in of_group])
    side = lambda mask: float(values[mask].mean()) if mask.any() else math.nan
    at_mean = conditional_bias(mean, size) if 0 < mean < 1 else math.nan
    return Bias(mean, size, at_mean, side(of_group < 0.5), side(of_group > 0.5))


def _quarters(batches: Batches) -> np.ndarray:
    """i64[S, P, G]: which quarter of all lengths a response falls in; equal lengths fall in one."""
    edges = np.quantile(batches.length[batches.valid], [0.25, 0.5, 0.75])
    return np.searchsorted(edges, batches.length, side="left")


def _bands(batches: Batches) -> np.ndarray:
    """i64[S, P]: index into BANDS; −1 where there is no group."""
    count = batches.valid.sum(-1)
    right = (batches.correct & batches.valid).sum(-1)
    rate = right / np.maximum(count, 1)
    band = np.where(rate <= 0.25, 1, np.where(rate >= 0.75, 3, 2))
    band = np.where(right == 0, 0, np.where(right == count, 4, band))
    return np.where(count > 0, band, -1)


def _coupling(advantages: np.ndarray, batches: Batches) -> tuple[float, float]:
    """(correlation, gap) of sign and length, each centred in its group, over groups with both signs."""
    sign = np.sign(advantages) * batches.valid
    plus, minus = sign > 0, sign < 0
    both = plus.any(-1) & minus.any(-1)
    if not both.any():
        return math.nan, math.nan
    signed = ((plus | minus) & both[..., None]).astype(np.float64)
    centre = lambda x: (x - (x * signed).sum(-1, keepdims=True) / np.maximum(signed.sum(-1, keepdims=True), 1)) * signed
    s, length = centre(sign), centre(batches.length.astype(np.float64))
    spread = math.sqrt(float((s**2).sum() * (length**2).sum()))
    mean = lambda mask: (batches.length * mask).sum(-1)[both] / mask.sum(-1)[both]
    return float((s * length).sum() / spread) if spread else 0.0, float((mean(plus) - mean(minus)).mean())


def _ratio(a, b) -> float:
    return float(a / b) if b else math.nan
