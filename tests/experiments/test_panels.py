"""The panels: cells worked by hand, statements that hold, the same at every call, and false for a wrong estimator."""

import functools
import json
import math

import numpy as np
import pytest

from experiments.panels import AGGREGATIONS, advantages, bias, coupling, drift, guesses, weighted, with_aggregation
from rlvr_jax.estimators import make_estimator, theory


@pytest.fixture(autouse=True, scope="module")
def _quick(quick_compiles):
    yield


_TWO = {label: AGGREGATIONS[label] for label in ("constant", "balanced")}
_FULL = {
    "closed_form": bias.closed_form,
    "conditioning": bias.conditioning,
    "history": bias.history,
    "stop_logit": drift.stop_logit,
    "lucky": guesses.lucky,
    "sign_balance_is_reinforce": guesses.sign_balance_is_reinforce,
    "sign_length": coupling.sign_length,
}
_SIZES = {  # of a quick version: fewer Monte-Carlo repetitions, fewer aggregations
    "closed_form": {"drawn": 20_000},
    "conditioning": {"drawn": 20_000},
    "history": {"drawn": 20_000},
    "stop_logit": {"groups": 20_000, "aggregations": _TWO},
    "lucky": {},
    "sign_balance_is_reinforce": {"batches": 2},
    "sign_length": {"n": 20, "aggregations": _TWO},
}
_SMALL = {name: functools.partial(panel, **_SIZES[name]) for name, panel in _FULL.items()}
small = functools.cache(lambda name: _SMALL[name]())


def assert_plain_and_true(found):
    assert found["holds"] is True, found["note"]
    assert set(found) == {"columns", "rows", "note", "holds"}
    assert {len(row) for row in found["rows"]} == {len(found["columns"])}
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.slow
@pytest.mark.parametrize("name", _FULL)
def test_full_panels_hold(name):
    assert_plain_and_true(_FULL[name]())


@pytest.mark.parametrize("name", _SMALL)
def test_quick_panels_hold_and_two_calls_are_equal(name):
    assert_plain_and_true(small(name))
    assert _SMALL[name]() == small(name)


@pytest.mark.parametrize(
    "name, wrong",
    [
        ("closed_form", {"estimator": "rloo"}),
        ("conditioning", {"estimator": "rloo"}),
        ("history", {"name": "grpo"}),
        ("stop_logit", {"aggregations": _TWO | {"constant": "sequence_mean"}}),
        ("stop_logit", {"aggregations": _TWO | {"balanced": "sequence_mean"}}),
        ("stop_logit", {"aggregations": _TWO | {"sequence_mean": "balanced"}}),
        ("stop_logit", {"aggregations": _TWO | {"sequence_mean": "sequence_sum"}}),
        ("lucky", {"replace": {"grpo": "dr_grpo"}}),
        ("lucky", {"replace": {"sign_balance": "sign_balance_group"}}),
        ("sign_balance_is_reinforce", {"batch_entry": "sign_balance_group"}),
        ("sign_balance_is_reinforce", {"group_entry": "sign_balance"}),
        ("sign_length", {"aggregations": _TWO | {"balanced": "token_mean(scope='group')"}}),
        ("sign_length", {"aggregations": _TWO | {"constant": "sequence_mean"}}),
    ],
)
def test_another_estimator_in_its_place_is_found_out(name, wrong):
    assert _SMALL[name](**wrong)["holds"] is False


def test_a_group_of_two_by_hand():
    """One right of 2 tokens, one wrong of 4: A = ±1/√2; Σ w·L is 2·1/4 and 4·1/8 per row, or 2/6 and 4/6."""
    own = advantages(make_estimator("grpo"), np.array([[1, 0]]))
    np.testing.assert_allclose(own, [[0.5**0.5, -(0.5**0.5)]], rtol=1e-5)
    every_token, lengths = np.ones((1, 2, 4), np.float32), np.array([[2, 4]])
    for aggregation, shares in (
        ("sequence_mean", (1 / 2, 1 / 2)),
        ("token_mean", (2 / 6, 4 / 6)),
        ("constant(length=16)", (2 / 32, 4 / 32)),
        ("balanced", (1 / 2, 1 / 2)),
        ("length_power(alpha=0.5)", (2**0.5 / 2, 4**0.5 / 2)),
    ):
        votes = weighted(with_aggregation(aggregation), own, lengths, every_token, np.zeros(2, np.int32))
        np.testing.assert_allclose(votes / own, [shares], rtol=1e-5)


def test_score_of_stopping_by_hand():
    """Answer, one more, stop: 0, −h, 1 − h. Cut off: −h at all 15 tokens with a choice. Its mean is 0."""
    lengths, scores = drift.responses((50_000,), answer_tokens=1, seed=0, hazard=0.2)
    np.testing.assert_allclose(scores[np.argmax(lengths == 3)], [0, -0.2, 0.8] + [0] * 13, atol=1e-6)
    totals = scores.sum(axis=1)
    cut = np.isclose(totals, -15 * 0.2, atol=1e-5)
    assert set(lengths[cut]) == {16} and abs(cut.mean() - 0.8**15) < 4e-3
    assert abs(totals.mean()) < 4 * totals.std() / math.sqrt(len(totals))


@pytest.mark.parametrize("answer_tokens", [0, 1])
def test_push_of_sequence_mean_is_the_sum_over_lengths(answer_tokens):
    """E of the right part: k/G·A₊·Σ_L P(L)·score(L)/L, A₊ = √(7/8)·√(7) at k = 1."""
    h, T = drift.HAZARD, drift.MAX_LENGTH
    choices = np.arange(1, T - answer_tokens + 1)
    mean = (h * (1 - h) ** (choices - 1) * (1 - h * choices) / (choices + answer_tokens)).sum()
    mean -= (1 - h) ** choices[-1] * h * choices[-1] / T  # cut off
    right, wrong = drift.pushes("sequence_mean", 1, *drift.responses((20_000, 8), answer_tokens, seed=1))
    expected = theory.binary_advantages("grpo", 1, 8)[0] / 8 * mean
    for part, sign in ((right, 1), (wrong, -1)):
        assert abs(part.mean() - sign * expected) < 4 * part.std() / math.sqrt(len(part))
    assert expected > 0.02


def test_statements_on_drift_do_not_need_the_answer_token():
    assert drift.stop_logit(answer_tokens=0, groups=20_000, aggregations=_TWO)["holds"]


def test_rules_that_agree_agree():
    """A group that is its own update: token_mean has one scope, and learnable at λ = 0 is the same rule."""
    sample = drift.responses((20_000, 8), 1, seed=2)
    labels = ("token_mean (group)", "token_mean (batch)", "learnable λ = 0")
    group, batch, learnt = (drift.pushes(AGGREGATIONS[label], 3, *sample) for label in labels)
    np.testing.assert_allclose(batch, group, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(learnt, group, rtol=1e-3, atol=1e-5)


def test_lucky_guess_by_hand():
    cell = {(row[0], row[1]): row[2:] for row in small("lucky")["rows"]}
    np.testing.assert_allclose(cell["√((G − k)/k)", "right"], np.sqrt([3, 7, 15, 31, 63]))
    np.testing.assert_allclose(cell["grpo", "right"][0], 1.5, rtol=1e-5)
    np.testing.assert_allclose(cell["grpo", "each wrong"][0], -0.5, rtol=1e-5)
    np.testing.assert_allclose(cell["rloo", "each wrong"][1], -1 / 7, rtol=1e-5)
    np.testing.assert_allclose(cell["sign_balance (batch pass rate 0.1)", "each wrong"], -1 / 9, rtol=1e-5)
    np.testing.assert_allclose(cell["pass_at_k", "right"][:2], [0, 1], atol=1e-5)


def test_bias_by_hand():
    """p = ¼, G = 4: E[p̂|S] − p = 0.1120690. G = 2: ½ − p without error. p = ½: 3/7 for either outcome."""
    rows = {(p, G): rest for p, G, *rest in small("closed_form")["rows"]}
    assert rows[0.25, 4][0] == pytest.approx(0.1120689655)
    assert rows[0.05, 2][:4] == pytest.approx([0.45, 0.45, 0, None])
    given = {(row[0], row[1], row[2]): row for row in small("conditioning")["rows"]}
    assert given[0.5, 4, "r = 1"][3] == pytest.approx(3 / 7)
    assert given[0.5, 4, "r = 0"][8] == pytest.approx(0.5 - 3 / 7)


def test_factor_by_hand():
    """G = 2: p̂ = ½ in S, A = ±½; at C = ½ nothing changes, at C = 0.05 a success loses e^−0.45."""
    rows = {(row[0], row[1], row[2]): row for row in bias.history(G=2, drawn=20_000)["rows"]}
    row = rows["r − p̂", 0.05, 1]
    assert [row[4], row[5], row[8]] == pytest.approx([0.5, 0.5, 0.5 * math.exp(-0.45)])
