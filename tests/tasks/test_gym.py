"""Data sets of reasoning-gym: made the same everywhere, scored by their own scorers, and no code of an answer runs."""

import pytest

from rlvr_jax.tasks import make_task
from rlvr_jax.tasks.grade import Item, grade, make_check
from rlvr_jax.tasks.gym import final_text
from rlvr_jax.tasks.pool import Pool

pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed: pip install '.[gym]'")


@pytest.fixture(scope="module")
def countdown():
    return make_task("gym(name='countdown', train=6, held_out=3, seed=5)")


def test_splits_are_fixed_and_disjoint(countdown):
    again = make_task("gym(name='countdown', train=6, held_out=3, seed=5)")
    assert countdown.problems("train") == again.problems("train") and len(countdown.problems("held_out")) == 3
    prompts = [p.prompt for split in ("train", "held_out") for p in countdown.problems(split)]
    assert len(set(prompts)) == 9 and countdown.size == 9
    other = make_task("gym(name='countdown', train=6, held_out=3, seed=6)")
    assert other.problems("train")[0].prompt != prompts[0]


def test_settings_are_the_data_sets_own():
    easy, hard = (
        make_task(f"gym(name='chain_sum', train=3, held_out=1, settings={settings})")
        for settings in ({"max_terms": 2}, {"min_terms": 5, "max_terms": 6})
    )
    assert all(p.prompt.count("+") + p.prompt.count(" - ") <= 1 for p in easy.problems("train"))
    assert hard.problems("train")[0].difficulty > easy.problems("train")[0].difficulty


def test_its_own_scorer_in_processes(countdown):
    """Another expression for the same number is as right as the data set's own; code is refused, and has no effect."""
    problem = countdown.problems("train")[0]
    gold = problem.answer.partition(": ")[2]
    completions = [
        countdown.solution(problem),
        f"<think>1 + 1</think>So <answer>{gold}</answer>",
        rf"\boxed{{{gold} + 0}}",
        "<answer>1 + 1</answer>",
        "I do not know",
        "<think>",
    ]
    with Pool(countdown.grader, workers=1) as pool:
        right, also, other, wrong, none, open_ = pool.grade([Item(problem.answer, text) for text in completions])
    assert right.outcome == also.outcome == 1.0 and right.extracted == gold
    assert other.outcome < 1.0 and wrong.outcome < 0.5 and none.outcome < 0.5
    assert open_ == (0.0, None, "reasoning not closed")


def test_a_data_set_that_depends_on_the_order_of_sets_is_graded_in_processes():
    task = make_task("gym(name='polynomial_multiplication', train=4, held_out=1)")
    with Pool(task.grader, workers=2) as pool:
        problems = task.problems("train")
        assert [v.outcome for v in pool.grade([Item(p.answer, task.solution(p)) for p in problems])] == [1.0] * 4


slow = lambda name: pytest.param(name, marks=pytest.mark.slow)
EVALUATING = ["countdown", *map(slow, ("puzzle24", "simple_equations", "propositional_logic", "codeio", "n_queens"))]


@pytest.mark.parametrize("name", EVALUATING)
def test_nothing_of_an_answer_runs(tmp_path, monkeypatch, name):
    """Those are the data sets whose scorers evaluate or parse what they are given."""
    monkeypatch.chdir(tmp_path)
    task = make_task(f"gym(name={name!r}, train=1, held_out=1)")
    (problem,) = task.problems("train")
    code = [
        "__import__('os').system('touch marker')",
        "open('marker', 'w')",
        "exec('import os')",
        "eval(chr(95))",
        "().__class__.__base__.__subclasses__()",
        "(lambda: open('marker', 'w'))()",
        "sympify('1')",
        "9**9**9**9",
        "print(1) or 24",
        "globals()['x']",
    ]
    with Pool(task.grader, workers=1, time_limit=10) as pool:
        verdicts = pool.grade([Item(problem.answer, f"<answer>{text}</answer>") for text in code])
    assert all(v.outcome < 0.5 or not v.valid for v in verdicts)
    assert not (tmp_path / "marker").exists()


def test_what_is_scored():
    assert final_text("<answer>\n1 2\n\n  3 4\n</answer>") == ("1 2\n\n  3 4", "")  # a drawing keeps its lines
    assert final_text(r"<answer>\boxed{7}</answer>") == ("7", "")
    assert final_text("<think>3</think>\nyes") == ("yes", "")
    assert final_text("The answer is 5.")[0] == "5"


def test_a_wrong_entry_is_no_verdict(countdown):
    check = make_check(countdown.grader)
    assert "another one in this process" in grade(check, Item("entry 0: 1 + 1", "x")).reason


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gym(name='countdwn')", "name='countdwn': unknown. Did you mean 'countdown'"),
        ("gym(name='countdown', train=0)", "train=0; choose a whole number of at least 1"),
        ("gym(name='countdown', settings={'numbers': 3})", "task=gym: name='countdown', settings=.*numbers"),
        ("gym(name='countdown', settings={'min_numbers': -3})", "task=gym: name='countdown'"),
    ],
)
def test_refusals(text, says):
    with pytest.raises(ValueError, match=says):
        make_task(text)
