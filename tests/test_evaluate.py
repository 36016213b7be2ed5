"""What an evaluation makes of completions without a verdict."""

import numpy as np
import pytest

from rlvr_jax.evaluate import Evaluation, EvaluationFile, _summary, by_problem
from rlvr_jax.rollout import Graded
from rlvr_jax.verdict import Verdict


def graded(outcomes):
    verdict = lambda outcome: Verdict.invalid("checker failed") if outcome is None else Verdict(outcome, "1", "")
    one = lambda outcome: Graded(verdict(outcome), "", 2 + (outcome == 1), 3, True)
    return [[one(outcome) for outcome in row] for row in outcomes]


def test_a_completion_without_a_verdict_is_neither_right_nor_wrong():
    # problems: 1 of 1 known right; 1 of 2; nothing known → (1 + 1/2) / 2
    found = _summary(graded([[1, None], [1, 0], [None, None]]), 1.0)
    assert found["pass@1"] == pytest.approx(0.75) and found["invalid"] == pytest.approx(0.5)
    assert found["length_correct"] == 3 and found["length_wrong"] == 2
    assert found["pass@k"] == 1.0
    alone = _summary(graded([[1], [None], [0], [1]]), 0.0)
    assert alone["pass@1"] == pytest.approx(2 / 3) and alone["invalid"] == 0.25
    with pytest.raises(ValueError, match="no completion has a verdict; the first says 'invalid: checker failed'"):
        _summary(graded([[None]]), 0.0)


def test_differences_are_of_problems_judged_at_both_ends(tmp_path):
    file = EvaluationFile(tmp_path)
    nan = float("nan")
    for step, outcomes in ((0, [[0.0], [nan], [1.0]]), (9, [[1.0], [1.0], [1.0]])):
        file.add(Evaluation({"step": step}, {"greedy": np.asarray(outcomes)}))
    assert file.difference()["greedy"]["difference"] == pytest.approx(0.5)
    assert EvaluationFile(tmp_path).difference() == file.difference()
    np.testing.assert_equal(by_problem(np.asarray([[nan, nan], [1.0, nan]])), [nan, 1.0])
