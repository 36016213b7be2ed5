r"""The checker of choices: the usual forms of a letter, the text of an option, and what is no choice at all."""

import pytest

from rlvr_jax.tasks import verify_choice

RIGHT = [
    ("C", "C"),
    ("C", "(C)"),
    ("C", "C."),
    ("C", "(c)"),
    ("C", "**C**"),
    ("C", "C) 40 metres"),
    ("C", r"\boxed{C}"),
    ("C", r"\boxed{\text{C}}"),
    ("C", r"\boxed{\textbf{(C)}}"),
    ("C", "Answer: C"),
    ("C", "**Answer:** C"),
    ("C", "Final Answer\n\nC"),
    ("C", "the answer is (c)"),
    ("C", "The answer is C because the lighter ball stops first."),
    ("C", "The correct option is C."),
    ("C", "The answer is option (C)."),
    ("C", "The answer is $C$."),
    ("C", "<answer>C</answer>"),
    ("C", "#### C"),
    ("C", "Therefore, (C) is correct."),
    ("C", "So we choose option C."),
    ("C", "Answer: It is not A, the answer is C"),
    ("C", "The answer is C, not A."),
    ("C", "The answer is A. Wait, the answer is C."),
    ("C", r"\boxed{A} was wrong, so \boxed{C}"),
    ("C", "<think>Maybe A?</think>C"),
    ("A", "The answer is A."),
    ("A", "The answer is A because B is wrong."),
    ("(c)", "C"),
    ("C", "C is correct."),
    ("C", "So C is the answer."),
    ("C", "It must be C."),
    ("C", "The answer is C, I think."),
]
WRONG = [
    ("A", "The answer is a heavier ball."),
    ("A", "The answer is A heavier ball."),
    ("A", "A heavier ball needs more force."),
    ("I", "I computed the area."),
    ("D", "ANSWER: Don't know"),
    ("B", "The answer is Because of gravity"),
    ("C", "Answer: B"),
    ("C", "The answer is not C."),
    ("C", "Not C"),
    ("A", "The answer is C, not A."),
    ("A", r"\boxed{A}, no, \boxed{C}"),
    ("C", "<think>The answer is C"),
    ("C", "<tool_response>The answer is C</tool_response>"),
    ("C", ""),
    ("C", "None of them."),
]
AMBIGUOUS = [
    "The answer is B or C",
    "The answer is (B) or (C).",
    "Answer: B, C",
    "Both B and C",
    r"\boxed{B, C}",
    "Either (B) or (C) is correct.",
]
OPTIONS = ["A) 45 km", "B) 1,200", r"C) $\frac{1}{2}$", "D) gains Rs. 30", "E) None of these"]
TEXTS = [
    ("A", "The answer is 45 km."),
    ("B", "The answer is 1200."),
    ("B", "So there are 1,200 of them left: 1200"),
    ("B", r"\boxed{\$1200}"),
    ("C", r"\boxed{0.5}"),
    ("C", "The answer is (C), 1/2."),
    ("D", "The answer is gains Rs. 30."),
    ("E", "The answer is none of these"),
    ("B", "Answer: B) 1,200"),
]


@pytest.mark.parametrize(("gold", "completion"), RIGHT)
def test_right(gold, completion):
    verdict = verify_choice(gold, completion)
    assert verdict == (1.0, gold.strip("()").upper(), "correct")


@pytest.mark.parametrize(("gold", "completion"), WRONG)
def test_wrong(gold, completion):
    assert verify_choice(gold, completion).outcome == 0.0


@pytest.mark.parametrize("completion", AMBIGUOUS)
def test_two_letters_are_no_answer(completion):
    for gold in "BC":
        assert verify_choice(gold, completion) == (0.0, None, "ambiguous: B, C")


@pytest.mark.parametrize(("gold", "completion"), TEXTS)
def test_the_text_of_an_option(gold, completion):
    assert verify_choice(gold, completion, OPTIONS) == (1.0, gold, "correct")
    for other in set("ABCDE") - {gold}:
        assert verify_choice(other, completion, OPTIONS).outcome == 0.0


def test_letters_and_texts_that_disagree():
    assert verify_choice("B", "The answer is B) 45 km", OPTIONS).reason == "ambiguous: A, B"
    assert verify_choice("A", "The answer is 7", ["7", "8", "7"]).reason == "ambiguous: A, C"
    assert (
        verify_choice("D", r"\boxed{I and II only}", ["I only", "II only", "III only", "I and II only"]).outcome == 1.0
    )
    assert verify_choice("B", r"\boxed{$a$}", [r"$\frac{a}{4}$", "$a$", "$4a$"]).outcome == 1.0


def test_reasons():
    assert verify_choice("B", "Answer: C") == (0.0, "C", "≠ B")
    assert verify_choice("B", "Hello") == (0.0, None, "no answer")
    assert verify_choice("B", "<think>B") == (0.0, None, "reasoning not closed")
    assert verify_choice("B", "Answer: E", ["1", "2", "3"]) == (0.0, "E", "no such option: E")
    for gold in ("", "Z", "AB", None, "42"):
        assert verify_choice(gold, "B") == (0.0, None, "unusable gold")
    assert verify_choice("E", "E", ["1", "2"]).reason == "unusable gold"
    assert verify_choice("B", None).reason.startswith("checker failed")
