r"""The checker of mathematical answers: where the answer stands, what equals what, and what hostile text does."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr_jax.tasks import usable_gold, verify_math

# (gold, completion) by kind
RIGHT = {
    "thousands": [("5300", r"\boxed{5,300}"), ("5300", r"\boxed{5{,}300}"), ("2750000", "The answer is 2,750,000.")],
    "thousands, thin space": [("6100", r"\boxed{6\,100}")],
    "currency": [("310", r"\boxed{\$310.00}"), ("17", "Lunch costs $17.00."), ("8", "The answer is 8 dollars.")],
    "fractions": [
        (r"\frac{4}{9}", r"\boxed{\frac49}"),
        (r"\frac{4}{9}", r"\boxed{\dfrac{4}{9}}"),
        ("4/9", r"\boxed{8/18}"),
    ],
    "decimals": [(r"\frac{3}{8}", r"\boxed{0.375}"), ("0.50", r"\boxed{\frac{1}{2}}"), ("12", r"\boxed{12.0}")],
    "mixed": [(r"\frac{11}{4}", r"\boxed{2\frac{3}{4}}"), ("11/4", "It is 2 3/4."), ("-11/4", r"\boxed{-2\frac34}")],
    "percent": [("0.12", r"\boxed{12\%}"), (r"12\%", "The answer is 12%."), ("0.12", "12 percent")],
    "powers of ten": [("3400", r"\boxed{3.4\times10^{3}}"), ("0.0021", r"\boxed{2.1 \cdot 10^{-3}}"), ("3e4", "30000")],
    "units": [
        ("45", r"\boxed{45\text{ kg}}"),
        ("45", "The answer is 45 miles per hour."),
        ("9", r"\boxed{9\ \text{m}^2}"),
    ],
    "the same unit": [
        (r"7\text{ cm}", r"\boxed{7\,\mathrm{cm}}"),
        ("7 hours", "7 hours"),
        (r"7\text{ cm}", r"\boxed{7}"),
    ],
    "degrees": [
        ("30", r"\boxed{30^\circ}"),
        (r"30^\circ", r"\boxed{30°}"),
        (r"30^{\circ}", r"\boxed{30 \text{ degrees}}"),
    ],
    "signs": [("-14", r"\boxed{−14}"), ("-14", "#### -14"), ("14", r"\boxed{１４}")],
    "wrappers": [("19", r"\boxed{\text{19}}"), ("Friday", r"\boxed{\text{Friday}}"), ("23", "**Final Answer: 23**")],
    "roots": [
        ("2", r"\boxed{\sqrt[4]{16}}"),
        (r"5\sqrt{3}", r"\boxed{\sqrt{75}}"),
        (r"\frac{1}{\sqrt2}", r"\boxed{\frac{√2}{2}}"),
    ],
    "huge and tiny": [(r"\frac{1}{3^{70}}", r"\boxed{3^{-70}}"), ("2^{100}", r"\boxed{4^{50}}")],
    "expressions": [
        ("(a+b)^2", r"\boxed{a^2+2ab+b^2}"),
        (r"\sin^2 x", r"\boxed{1-\cos^2 x}"),
        ("3+4i", r"\boxed{4i+3}"),
    ],
    "assignments": [
        ("6", r"\boxed{y=6}"),
        ("n=3, 5", r"\boxed{5, 3}"),
        ("70", "Answer: 30 + 40 = 70"),
        ("y=3x", r"\boxed{3x}"),
    ],
    "equations": [("x+2y=3", r"\boxed{2x+4y-6=0}"), ("y=2x-1", r"\boxed{2x-y=1}")],
    "lists": [
        ("8, 125", r"\boxed{125, 8}"),
        ("8, 125", r"\boxed{x=8 \text{ or } x=125}"),
        (r"\{3,9\}", r"\boxed{\{9,3\}}"),
    ],
    "plus-minus": [(r"\pm 4", r"\boxed{4, -4}"), (r"1\pm\sqrt5", r"\boxed{1-\sqrt5, 1+\sqrt5}")],
    "pairs": [("(3, 500)", r"\boxed{(3,500)}"), (r"\left(\frac12, 2\right)", r"\boxed{(0.5, 2)}")],
    "intervals": [
        ("[1,4)", r"\boxed{[1, 4)}"),
        ("[1,4)", r"\boxed{1 \le x < 4}"),
        (r"(-\infty,0)\cup(5,\infty)", r"\boxed{(5,∞)∪(-∞,0)}"),
    ],
    "inequalities": [("x > 2", r"\boxed{2 < x}"), ("x+y>2", r"\boxed{2 < y+x}")],
    "matrices": [(r"\begin{pmatrix}1&0\\0&1\end{pmatrix}", r"\boxed{\begin{bmatrix} 1 & 0 \\ 0 & 1 \end{bmatrix}}")],
    "the last box": [("5", r"First \boxed{2}. No: \boxed{5}."), ("5", r"\boxed{5}, in 3 steps and 20 seconds.")],
    "a box cut off": [("5", r"\boxed{5} or rather \boxed{\frac{1}{")],
    "tags": [
        ("31", "<answer>31</answer>"),
        ("31", r"<answer>\boxed{31}</answer>"),
        ("31", "<answer>\nThe answer is 31.\n</answer>"),
    ],
    "hash": [
        ("26", "20 + 6 = 26\n#### 26\n" + "Every step holds. " * 40),
        ("26", "#### Step 1: add 3\nThe answer is 26."),
    ],
    "stated": [
        ("4", "So the final answer is: 4, because 2+2=4."),
        ("4", "Final Answer\n\n4"),
        ("6", "The answer is not 4. The answer is 6."),
    ],
    "a sentence": [("15", "She has 15 apples left."), ("15", "The answer is a total of 15 apples.")],
    "reasoning": [("8", r"<think>\boxed{3}</think> The answer is \boxed{8}."), ("8", "<think>x</think>8")],
    "tools": [("9", "<tool_response>7</tool_response>\nThe answer is 9.")],
}
WRONG = {
    "no thousands": [("37", r"\boxed{3,7}"), ("1200", r"\boxed{(1,200)}"), ("5300", r"\boxed{5.300}")],
    "fractions": [
        (r"\frac{4}{9}", r"\boxed{\frac{9}{4}}"),
        (r"\frac{1}{23}", r"\boxed{\frac{12}{3}}"),
        (r"\frac{2}{7}", r"\boxed{\frac{2}{3}}"),
    ],
    "rounded": [
        ("1/3", r"\boxed{0.333}"),
        (r"\pi", r"\boxed{3.14}"),
        (r"\sqrt{2}", r"\boxed{1.41421356237309504880168872420969807857}"),
    ],
    "parts of a number": [
        ("2", "It is 2 3/4."),
        ("4", "It is 2 3/4."),
        ("5", r"\boxed{5\sqrt{3}}"),
        ("3", r"It is $5\sqrt{3}$."),
        ("6", r"\boxed{6x}"),
    ],
    "mixed": [(r"-\frac{5}{4}", r"\boxed{-2\frac{3}{4}}")],
    "percent": [("12", r"\boxed{12\%}"), (r"12\%", r"\boxed{12}")],
    "units": [
        ("81", r"\boxed{9\ \text{m}^2}"),
        (r"7\text{ cm}", r"\boxed{7\text{ m}}"),
        ("5", "The answer is 5 million."),
        ("5", "5 and a half"),
    ],
    "signs": [("14", r"\boxed{-14}"), ("14", "The answer is −14."), ("48", "The answer is ٤٨.")],
    "tiny differences": [
        (r"\frac{1}{3^{70}}", r"\boxed{\frac{1}{3^{71}}}"),
        ("10^{25}", r"\boxed{10^{25}+1}"),
        ("0", r"\boxed{10^{-40}}"),
    ],
    "expressions": [(r"1-\frac{1}{e}", r"\boxed{1+\frac1e}"), ("x", r"\boxed{|x|}"), ("(a+b)^2", r"\boxed{a^2+b^2}")],
    "equations": [("x+2y=3", r"\boxed{x-2y=3}"), ("5", r"\boxed{2x=10}"), ("0", r"\boxed{x+2y=0}")],
    "lists": [
        ("8, 125", r"\boxed{125}"),
        ("8", r"\boxed{7, 8, 9}"),
        ("8, 8, 9", r"\boxed{8, 9, 9}"),
        ("n=3, 5", r"\boxed{n=3, 7}"),
        (r"\pm 4", r"\boxed{4}"),
    ],
    "pairs": [
        ("(3,9)", r"\boxed{(9,3)}"),
        ("(3,9)", r"\boxed{[3,9]}"),
        ("(3,9)", r"\boxed{3, 9}"),
        ("[1,4)", r"\boxed{1 < x < 4}"),
    ],
    "inequalities": [("x > 2", r"\boxed{x \ge 2}"), ("x+y>2", r"\boxed{x+y<2}"), ("x > 2", r"\boxed{2x > 4}")],
    "matrices": [(r"\begin{pmatrix}1&0\\0&1\end{pmatrix}", r"\boxed{\begin{pmatrix}1&0\\0&2\end{pmatrix}}")],
    "words": [("Friday", r"\boxed{\text{Monday}}"), ("no", r"\boxed{\text{on}}"), ("cat", r"\boxed{act}")],
    "withdrawn": [("2", r"First \boxed{2}. No: \boxed{5}."), ("4", "The answer is not 4.")],
    "no answer": [("7", ""), ("7", " \n\t"), ("7", "I cannot say."), ("7", "7\nThank you!"), ("7", r"\boxed{}")],
    "in passing": [("22", "It could be 21, 22 or 23; who knows."), ("23", "It could be 21, 22 or 23; who knows.")],
    "reasoning": [
        ("8", r"<think> \boxed{8}, let me"),
        ("8", r"<think>\boxed{8}</think> Done."),
        ("8", r"<think>a</think> <think> \boxed{8}"),
    ],
    "tools": [
        ("9", r"<tool_response>\boxed{9}</tool_response>"),
        ("9", "```output\n9\n```"),
        ("9", r"<observation>\boxed{9}"),
    ],
    "unusable gold": [
        ("", r"\boxed{}"),
        ("", r"\boxed{7}"),
        (r"\frac{1}{", r"\boxed{7}"),
        ("look at the figure", r"\boxed{7}"),
        (None, r"\boxed{7}"),
    ],
}


def cases(table):
    return [pytest.param(*pair, id=f"{kind} {i}") for kind, pairs in table.items() for i, pair in enumerate(pairs)]


@pytest.mark.parametrize(("gold", "completion"), cases(RIGHT))
def test_right(gold, completion):
    verdict = verify_math(gold, completion)
    assert (verdict.outcome, verdict.reason) == (1.0, "correct") and verdict.extracted is not None


@pytest.mark.parametrize(("gold", "completion"), cases(WRONG))
def test_wrong(gold, completion):
    verdict = verify_math(gold, completion)
    assert verdict.outcome == 0.0 and "failed" not in verdict.reason


def test_reasons():
    assert verify_math("7", "\\boxed{8}") == (0.0, "8", "≠ 7")
    assert verify_math("7", "Hello.") == (0.0, None, "no answer")
    assert verify_math("7", "<think> 7") == (0.0, None, "reasoning not closed")
    assert verify_math("7", "6 or 7") == (0.0, None, "several candidates")
    assert verify_math("", "7") == (0.0, None, "unusable gold")
    assert verify_math("7", "\\boxed{" + "1" * 5000 + "}").reason == "answer too long"
    assert "too large" in verify_math("7", r"\boxed{9^{9^{9^{9}}}}").reason
    assert verify_math("7", None).reason.startswith("checker failed")


def test_usable_golds():
    assert all(usable_gold(gold) for gold in ("7", "-1,200", r"\frac{1}{2}", "Friday", r"\boxed{7}", "(1, 2]"))
    assert not any(usable_gold(gold) for gold in ("", "  ", "...", r"\frac{1}{", "}{", None, 7, "1" * 5000))


def written(value: Fraction) -> list[str]:
    """The forms of a value: whole, decimal, fraction."""
    if value.denominator == 1:
        return [str(value), f"{value.numerator:,}", f"{value}.0"]
    sign = "-" if value < 0 else ""
    forms = [str(value), rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"]
    return forms + ([f"{float(value)!r}"] if 1000 % value.denominator == 0 else [])


NUMBERS = st.one_of(
    st.integers(-(10**12), 10**12).map(Fraction),
    st.builds(lambda n, d: Fraction(n, d), st.integers(-9999, 9999), st.integers(1, 999)),
    st.integers(-(10**7), 10**7).map(lambda n: Fraction(n, 1000)),
)


@settings(max_examples=150, deadline=None)
@given(NUMBERS, NUMBERS)
def test_numbers_equal_themselves_and_no_other(value, other):
    for gold in written(value):
        for form in (r"\boxed{%s}", "The answer is %s.", "#### %s", "<answer>%s</answer>"):
            for text in written(value):
                assert verify_math(gold, form % text).outcome == 1.0, (gold, form % text)
            for text in written(other):
                assert verify_math(gold, form % text).outcome == float(value == other), (gold, form % text)
