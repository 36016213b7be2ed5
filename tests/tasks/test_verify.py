"""Strict verdicts: the form, the end and the number all have to be right."""

import pytest

from rlvr_jax.tasks.verify import to_number, verify_answer_line, verify_number

CORRECT = [
    "Answer: 48",
    "Answer:48",
    " Answer:\n48 ",
    "Answer: 48.",
    "Answer: '48'",
    'Answer: "48".',
    "Answer: 48.0",
]
CORRECT += ["I think so. Answer: 48", "Answer: 11\nAnswer: 48", "Answer: 048", "Answer: 48.\n"]
NO_LINE = [
    "",
    "48",
    "answer: 48",
    "Answer 48",
    "Answer: forty-eight",
    "Answer: 48 or 11",
    "Answer: 48!",
    "Answer: 4 8",
]
NO_LINE += ["Answer: ٤٨", "Answer: 48\nWhich", "Answer: 40+8", "Answer: 1e2", "Answer: .5", "Answer: --48"]


@pytest.mark.parametrize("completion", CORRECT)
def test_correct(completion):
    verdict = verify_answer_line("48", completion, True)
    assert (verdict.outcome, verdict.reason) == (1.0, "correct")


@pytest.mark.parametrize("completion", NO_LINE)
def test_no_answer_line(completion):
    assert verify_answer_line("48", completion, True) == (0.0, None, "no answer line")


@pytest.mark.parametrize("extracted", ["11", "480", "48.5", "-48", "4,8", "48,", "0,48"])
def test_another_number(extracted):
    assert verify_answer_line("48", f"Answer: {extracted}", True) == (0.0, extracted, "≠ 48")


def test_not_ended_comes_first():
    assert verify_answer_line("48", "Answer: 48", False) == (0.0, "48", "not ended")
    assert verify_answer_line("48", "48 48 48", False) == (0.0, None, "not ended")


@pytest.mark.parametrize(
    ("answer", "written"),
    [("1234", "1,234"), ("1,234.50", "1234.5"), ("-3", "-3.0"), ("0", "-0"), ("2", "002")],
)
def test_equal_numbers_written_differently(answer, written):
    assert verify_answer_line(answer, f"Answer: {written}", True).outcome == 1.0


def test_digits_are_compared_exactly():
    long = "1" * 60
    assert verify_answer_line(long, f"Answer: {long}", True).outcome == 1.0
    assert verify_answer_line(long, f"Answer: {long[:-1]}2", True).outcome == 0.0
    assert verify_answer_line("0.3", "Answer: 0.30000000000000001", True).outcome == 0.0


def test_bare_number():
    assert verify_number("8", "8", True) == (1.0, "8", "correct")
    assert verify_number("8", " 8\n", True).outcome == 1.0
    assert verify_number("8", "9", True) == (0.0, "9", "≠ 8")
    assert verify_number("8", "8", False) == (0.0, "8", "not ended")
    for completion in ("", "8=8", "8 8", "4+4", "Answer: 8", "\ufffd8"):
        assert verify_number("8", completion, True) == (0.0, None, "not a number")


def test_text_is_never_evaluated_and_long_text_is_quick():
    assert to_number("__import__('os')") is None and to_number("9**9**9") is None
    assert verify_answer_line("48", "Answer: " + "1," * 50_000, True).outcome == 0.0
    assert verify_answer_line("48", "Answer:" * 20_000, True).reason == "no answer line"


def test_an_answer_that_is_no_number_is_the_callers_mistake():
    with pytest.raises(ValueError, match="answer='larger'"):
        verify_answer_line("larger", "Answer: 48", True)
