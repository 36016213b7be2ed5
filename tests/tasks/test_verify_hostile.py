"""The checkers of answers on text that is long, deep, huge in value, or code: quick verdicts, and nothing runs."""

import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr_jax.tasks import verify_choice, verify_math

SIZE = 1_000_000
HOSTILE = {
    "braces": r"\boxed{" + "{" * 10_000 + "1" + "}" * 10_000 + "}",
    "parentheses": r"\boxed{" + "(" * 150 + "1" + ")" * 150 + "}",
    "tower": "9^9^9^9",
    "tower in a box": r"\boxed{9^{9^{9^{9}}}}",
    "tower as code": "The answer is 9**9**9**9",
    "tower with a name": r"\boxed{x^{9^{9^{9}}} < 3}",
    "exponentials": r"\boxed{e^{e^{e^{e^{e}}}}}",
    "factorials": r"\boxed{9" + "!" * 80 + "}",
    "functions": r"\boxed{" + r"\sin" * 90 + "2}",
    "many powers": r"\boxed{" + "+".join(["2^{4000}"] * 30) + "}",
    "many values": r"\boxed{" + ",".join([r"\sqrt2"] * 60) + "}",
    "inequality": r"\boxed{(x+y)^{19}(x-z)^{19} < (x+1)^{19}}",
    "units": r"\boxed{5 " + "aaa " * 95 + "}",
    "letters": "a" * SIZE,
    "digits": "1" * SIZE,
    "boxes": r"\boxed{" * (SIZE // 7),
    "statements": "answer is " * (SIZE // 10),
    "headings": "#### a\n" * (SIZE // 7),
    "delimiters": r"\(" * (SIZE // 2),
    "lines": "\n" * SIZE,
    "spaces": "answer" + " " * SIZE,
    "tags": "<answer>" * (SIZE // 8),
    "tools": "<output>" * (SIZE // 8),
    "NUL": "\0" * 1000 + r"\boxed{" + "\0" + "}",
    "look-alikes": "\\boxed{\u0417\u041e}",  # Cyrillic ЗО, not 30
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_quick_and_wrong(name):
    for gold in ("4", "x > 3", "30"):
        start = time.process_time()
        verdict = verify_math(gold, HOSTILE[name])
        assert time.process_time() - start < 1.0
        assert verdict.outcome == 0.0 and "failed" not in verdict.reason
    for options in (None, ["1", "x > 3", r"\sqrt2"]):
        start = time.process_time()
        verdict = verify_choice("B", HOSTILE[name], options)
        assert time.process_time() - start < 1.0
        assert verdict.outcome == 0.0 and "failed" not in verdict.reason


def test_nothing_is_executed(tmp_path):
    marker = tmp_path / "marker"
    for code in (f"__import__('os').system('touch {marker}')", f"open('{marker}','w')", "exec('1/0')", "exit()"):
        for gold, completion in (("4", rf"\boxed{{{code}}}"), (code, r"\boxed{4}"), ("x>3", rf"\boxed{{x>{code}}}")):
            assert verify_math(gold, completion).outcome == 0.0
    assert not marker.exists()


def test_every_thread_gets_the_same_verdicts():
    items = [(r"\sqrt{8}", r"\boxed{2\sqrt2}"), ("x+y>2", r"\boxed{2<x+y}"), ("3", r"\boxed{4}")]
    outcomes = []

    def check():
        outcomes.append([verify_math(*item).outcome for item in items * 5])

    threads = [threading.Thread(target=check) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [[1.0, 1.0, 0.0] * 5] * 4


def test_importing_the_tasks_imports_no_algebra():
    code = "import sys, rlvr_jax.tasks; assert not {'sympy', 'mpmath', 'math_verify'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60), st.text(max_size=200))
def test_any_text_gets_a_verdict(gold, completion):
    verdict = verify_math(gold, completion)
    assert verdict.outcome in (0.0, 1.0) and not verdict.reason.startswith("checker failed")


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60) | st.text(alphabet="ABCab ().,:orntheaswi\n", max_size=60), st.lists(st.text(max_size=9)))
def test_any_text_gets_a_verdict_on_a_choice(completion, options):
    for given_options in (None, ["1", "2", *options]):
        verdict = verify_choice("B", completion, given_options)
        assert verdict.outcome in (0.0, 1.0) and not verdict.reason.startswith("checker failed")


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=r"\{}()[]^_|0123456789.,-+*/=<>xyei %!$", max_size=60))
def test_any_formula_gets_a_verdict(text):
    for completion in (rf"\boxed{{{text}}}", f"The answer is {text}"):
        assert not verify_math("7", completion).reason.startswith("checker failed")
        assert not verify_math(text, completion).reason.startswith("checker failed")
