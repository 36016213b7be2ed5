"""Exact match, F1 and numbers within a tolerance: by hand."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr_jax.tasks import verify_exact, verify_f1, verify_numeric
from rlvr_jax.tasks.grade import Item, grade, make_check
from rlvr_jax.tasks.verify_text import f1, normalise


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The U.S. Navy!", "us navy"),
        ("  An  apple,\na   day ", "apple day"),
        ("“Don’t” – stop…", "dont stop"),
        ("ＡＢＣ １", "abc 1"),
        ("The", "the"),
        ("A", "a"),
        ("theatre", "theatre"),
        ("CAFÉ", "café"),
        ("1,000", "1000"),
        ("...", ""),
    ],
)
def test_normalisation(text, normal):
    assert normalise(text) == normal


EXACT = [
    (["Paris"], "The answer is Paris, because it is the capital.", 1),
    (["St. Louis"], "The answer is St. Louis.", 1),
    (["St. Louis"], "So the answer is St. Louis. It lies on a river.", 0),  # neither the line nor the sentence
    (["U.S.", "United States"], "<answer>the United States</answer>", 1),
    (["Beatles"], "They asked a lot.\nThe Beatles", 1),
    (["Paris"], "I think it is Paris", 0),
    (["no"], "The answer is yes", 0),
    (["As You Like It"], "The answer is As You Like It.", 1),
    (["Paris"], "Final answer:\nParis", 1),
    (["Paris"], r"\boxed{\text{Paris}}", 1),
    (["Paris"], r"\boxed{London} no, \boxed{Paris}", 1),
    (["London"], r"\boxed{London} no, \boxed{Paris}", 0),
    (["Paris"], "<think>Paris", 0),
    (["Paris"], "<think>London</think>Paris", 1),
    (["Paris"], "<tool_response>Paris</tool_response>", 0),
    (["Paris"], "", 0),
    (["Paris"], "The answer is not London but Paris.", 1),
    (["Paris"], "The answer is not Paris.", 0),
]


@pytest.mark.parametrize(("golds", "completion", "outcome"), EXACT)
def test_exact_match(golds, completion, outcome):
    assert verify_exact(golds, completion).outcome == outcome


def test_f1_by_hand():
    # {big, red, dog} and {red, dog, ran, off}: 2 shared of 3 and 4: 2·2/7
    assert f1("big red dog", "red dog ran off") == pytest.approx(4 / 7)
    assert f1("a a b", "a b b") == pytest.approx(4 / 6)  # each word as often as in both
    assert f1("yes", "yes it is") == 0.0 and f1("yes", "yes") == 1.0
    assert f1("x", "y") == 0.0
    verdict = verify_f1(["the big red dog", "a cat"], "The answer is a big dog.")
    assert verdict.outcome == pytest.approx(4 / 5) and verdict.reason == "F1 0.800"
    assert verify_f1(["Paris"], "no idea").outcome == 0.0
    assert verify_f1([], "x").reason == verify_exact(["", "?"], "?").reason == "unusable gold"
    assert verify_exact(["x", "y", "z"], "w").reason == "≠ x or 2 more"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=6), st.lists(st.sampled_from("abc"), max_size=6))
def test_f1_is_symmetric_and_one_only_for_the_same_words(first, second):
    value = f1(" ".join(first), " ".join(second))
    assert value == f1(" ".join(second), " ".join(first)) and 0 <= value <= 1
    assert (value == 1) == (sorted(first) == sorted(second))


NUMBERS = [
    # gold, completion, relative, absolute, outcome
    ("5", r"\boxed{5.0}", 0, 0, 1),
    ("1/3", r"\boxed{0.333}", 0, 0, 0),
    ("1/3", r"\boxed{0.333}", 0.01, 0, 1),
    ("200", "202", 0.01, 0, 1),  # exactly at the edge
    ("200", "202.0001", 0.01, 0, 0),
    ("200", "198", 0, 2, 1),
    ("0", "0.05", 0, 0.1, 1),
    ("0", "0.05", 0.1, 0, 0),
    ("-4", "The answer is −4.", 0, 0, 1),
    ("-4", "4", 0.5, 0, 0),
    (r"\sqrt{2}", r"\boxed{1.414}", 0.001, 0, 1),
    ("3,200", "It weighs 3200 kg.", 0, 0, 1),
    ("5 km", r"\boxed{5\text{ m}}", 0, 0, 0),
    ("0.35", r"\boxed{35\%}", 0, 0, 1),
    ("5", r"\boxed{x}", 0, 9, 0),
    ("5", r"\boxed{(5, 6)}", 0, 9, 0),
    ("5", r"\boxed{5i}", 0, 99, 0),
    ("5", r"\boxed{1/0}", 0, 9, 0),
    ("5", r"\boxed{9^{9^{9^{9}}}}", 0, 9, 0),
    ("5", "a total of 5 apples", 0, 0, 1),
]


@pytest.mark.parametrize(("gold", "completion", "relative", "absolute", "outcome"), NUMBERS)
def test_numbers_within_a_tolerance(gold, completion, relative, absolute, outcome):
    assert verify_numeric(gold, completion, relative, absolute).outcome == outcome


@settings(max_examples=100, deadline=None)
@given(st.fractions(-1000, 1000, max_denominator=50), st.fractions(-1000, 1000, max_denominator=50))
def test_tolerance_is_exact(gold, answer):
    for absolute in (0.25, 3):
        outcome = verify_numeric(str(gold), rf"\boxed{{{answer}}}", 0, absolute).outcome
        assert outcome == (abs(gold - answer) <= Fraction(absolute))


def test_bad_tolerance_is_refused():
    for text in ("numeric(relative=-1)", "numeric(absolute='x')", "numeric(relative=True)"):
        with pytest.raises(ValueError, match="choose a number of at least 0"):
            make_check(text)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=40), st.text(max_size=120))
def test_any_text_gets_a_verdict(answer, completion):
    for verifier in ("exact", "f1", "numeric", "math", "choice"):
        verdict = grade(make_check(verifier), Item(answer, completion))
        assert verdict.valid or "unusable gold" in verdict.reason


def test_several_verifiers_in_one():
    check = make_check("by_number(verifiers=['math', 'choice', 'exact'])")
    assert [grade(check, Item(answer, text)).outcome for answer, text in [
        ("0|1/2", r"\boxed{0.5}"), ("1|B\nA) x\nB) y", "The answer is B."), ("2|a\nb", "B"), ("2|a", "c"),
    ]] == [1.0, 1.0, 1.0, 0.0]  # fmt: skip
    assert not grade(check, Item("7|x", "x")).valid
