"""A fault of a checker leaves its row, and nothing else, out of a group's statistics."""

import math

import numpy as np
import pytest

from rlvr_jax.estimators import make_estimator
from rlvr_jax.means import compute
from rlvr_jax.rollout import Graded, from_groups, to_groups
from rlvr_jax.tasks import Item, make_pool, make_task
from rlvr_jax.tasks.pool import Local, Pool
from rlvr_jax.verdict import Verdict


def graded(*outcomes):
    return [Graded(Verdict(outcome, None, ""), "", 3, 3, True) for outcome in outcomes]


def test_rows_without_a_verdict_leave_the_statistics():
    groups = to_groups(graded(1.0, 0.0, math.nan, 0.0, math.nan, math.nan, math.nan, math.nan), np.arange(2), 4)
    assert groups.valid.tolist() == [[True, True, False, True], [False] * 4]
    assert np.isfinite(groups.outcome).all()
    metrics = compute(from_groups(groups))
    assert metrics["pass@1"] == pytest.approx(1 / 3) and metrics["invalid"] == pytest.approx(5 / 8)
    estimator = make_estimator("dr_grpo", completion_length=4)
    advantages, _, _ = estimator.advantages(groups, estimator.init_memory(2))
    # the mean of the three valid ones is 1/3
    np.testing.assert_allclose(advantages, [[2 / 3, -1 / 3, 0, -1 / 3], [0, 0, 0, 0]], atol=1e-6)


def test_a_task_grades_here_or_in_its_processes():
    task = make_task("arithmetic")
    items = [Item("8", "8"), Item("8", "9"), Item("8", "8", False), Item("no number", "8")]
    here = task.grade(items)
    assert [v.outcome for v in here[:3]] == [1.0, 0.0, 0.0] and not here[3].valid
    assert here[3].reason.startswith("invalid: ValueError: answer='no number'")
    with Pool(task.grader, workers=1) as task.graders:
        there = task.grade(items)
    assert there[:3] == here[:3] and there[3].reason == here[3].reason


def test_processes_are_for_what_can_take_long():
    for verifier, workers, kind in [
        ("answer_line", 0, Local),
        ("math", -1, Local),
        ("math", 0, Pool),
        ("answer_line", 1, Pool),
    ]:
        with make_pool(verifier, workers) as made:
            assert type(made) is kind
