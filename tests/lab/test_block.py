"""One block: runs side by side that do not know of one another, from one start and with one set of keys; one program
for all blocks of a table."""

import functools

import numpy as np
import pytest

from rlvr_jax.compiles import CompileCounter
from rlvr_jax.config import set_key
from rlvr_jax.lab import lab_defaults, run_block

pytestmark = pytest.mark.usefixtures("quick_compiles")

TASK = "reason(prompts=4, held_out=4, options=2, open_options=3, calls=1, share=0.5, skill=0.5)"
SMALL = {
    "seed": 4, "steps": 3, "group_size": 4, "task": TASK, "prompts_per_step": 2, "policy.width": 8,
    "sampling.completion_length": 6, "warm_start.updates": 60, "warm_start.completions_per_prompt": 4,
}  # fmt: skip
ARMS = {
    "grpo": {},
    "dr_grpo": {"estimator.name": "dr_grpo"},
    "history": {"estimator.reweight": "history"},  # memory
    "lambda": {"estimator.name": "lambda_grpo"},  # parameters of its own
    "dynamic": {"sampling.dynamic": True},
    "budget": {"curriculum.budget": (1, 3, 2)},
}
COLUMNS = {
    "raw": {"optimizer.kind": "sgd", "optimizer.learning_rate": 0.5},
    "matched": {"optimizer.kind": "matched", "optimizer.learning_rate": 0.5},
    "adam": {"optimizer.kind": "adam", "optimizer.learning_rate": 0.02},
}


def config(arm="grpo", column="raw", **changes):
    made = lab_defaults("grpo")
    for key, value in {**SMALL, **ARMS[arm], **COLUMNS[column], **changes}.items():
        set_key(made, key, value)
    return made


def run(labels, **changes):
    """{label: curves} of one block."""
    reference = config(**changes)
    return dict(zip(labels, run_block([config(*label, **changes) for label in labels], reference)))


ALL = [(arm, column) for column in COLUMNS for arm in ARMS]


@functools.cache
def block(seed=4):  # every step of the reference has something to learn from
    return run(ALL, seed=seed)


def assert_same(found, wanted, **tolerance):
    assert found.keys() == wanted.keys()
    for name in wanted:
        compare = np.testing.assert_allclose if tolerance else np.testing.assert_array_equal
        compare(found[name], wanted[name], err_msg=name, **tolerance)


def differs(first, second):
    return any(not np.array_equal(first[name], second[name], equal_nan=True) for name in first)


def test_curves_have_one_number_a_step():
    for curves in block().values():
        assert all(curve.shape == (3,) and curve.dtype == np.float32 for curve in curves.values())
        shares = [name for name in curves if "pass@" in name or "reasoning" in name or "truncated" in name]
        assert all(((x >= 0) & (x <= 1) | np.isnan(x)).all() for x in (curves[name] for name in shares))
        assert np.isfinite(curves["update/gradient_norm"]).all()
        assert (curves["update/entropy"] > 0).all()
        # held-out prompts are graded apart
        assert np.isfinite(curves["rollout/pass@1_held_out_open"]).all()
    learned = block()["lambda", "raw"]["update/lambda"]
    assert learned[-1] != 0 and np.isnan(block()["grpo", "raw"]["update/lambda"]).all()
    alike = {(a, b) for a in ALL for b in ALL if a < b and not differs(block()[a], block()[b])}
    # an arm whose estimator is the reference's is its own measure
    assert alike <= {((arm, "matched"), (arm, "raw")) for arm in ("grpo", "dynamic", "budget")}, alike


def test_all_runs_begin_with_the_same_rollouts():
    names = [name for name in block()["grpo", "raw"] if name.startswith("rollout/")]
    own = {"rollout/advantage_abs", "rollout/kept_groups", "rollout/zero_variance_groups", "rollout/reward"}
    for label, curves in block().items():
        if label[0] != "budget":  # a world of its own
            for name in set(names) - own:
                np.testing.assert_array_equal(curves[name][0], block()["grpo", "raw"][name][0], err_msg=name)


def test_columns_do_not_change_what_an_arm_sees_first():
    for arm in ARMS:
        for column in COLUMNS:
            for name in ("rollout/reward", "rollout/kept_groups", "update/gradient_norm", "update/entropy"):
                np.testing.assert_allclose(
                    block()[arm, column][name][0], block()[arm, "raw"][name][0], rtol=1e-5, err_msg=name
                )


@pytest.mark.slow
def test_a_run_does_not_know_of_the_others():
    # another program: two arms in the other order, two columns in the other order
    labels = [("history", "adam"), ("dr_grpo", "adam"), ("history", "raw"), ("dr_grpo", "raw")]
    reference = config("dr_grpo")
    found = run_block([config(*label) for label in labels], reference)
    for label, curves in zip(labels, found):
        assert_same(curves, block()[label], rtol=2e-4, atol=1e-5)


def test_the_order_of_configs_is_the_order_of_results():
    before = block()
    labels = [(arm, column) for arm in ARMS for column in COLUMNS]  # the same order of arms and of columns
    with CompileCounter() as compiles:
        found = run(labels)
        assert compiles.take()[0] == 0
    for label in labels:
        assert_same(found[label], before[label])


def test_blocks_of_a_table_share_a_program_and_repeat_bit_for_bit():
    before = block()
    with CompileCounter() as compiles:
        again = run(ALL)
        other = run(ALL, seed=7)
        warmer = run(ALL, **{"warm_start.learning_rate": 0.02})
        dials = run(ALL, task=TASK.replace("share=0.5", "share=0.9"))
        assert compiles.take()[0] == 0
    for label in ALL:
        assert_same(again[label], before[label])
        for changed in (other, warmer, dials):
            assert differs(changed[label], before[label]), label


def test_matched_steps_have_the_norm_of_the_reference():
    # steps so small that every arm stays where it began: the batches of all steps are those of the reference
    rate = 1e-7
    small = {label: config(*label, **{"optimizer.learning_rate": rate}) for label in ALL}
    curves = dict(zip(ALL, run_block(list(small.values()), config())))
    wanted = curves["grpo", "raw"]["update/gradient_norm"]
    assert (wanted > 1e-3).all()
    for arm in ("grpo", "dr_grpo", "history", "lambda"):
        size = curves[arm, "matched"]["update/step_norm"] / rate
        zero = curves[arm, "matched"]["update/gradient_norm"] == 0  # nothing to scale
        np.testing.assert_allclose(size, np.where(zero, 0, wanted), rtol=1e-4, err_msg=arm)
    own = curves["dr_grpo", "matched"]["update/gradient_norm"]  # is written before it is scaled
    assert (np.abs(own - wanted) > 0.01 * wanted).any()


def test_the_reference_matched_is_the_reference():
    assert_same(block()["grpo", "matched"], block()["grpo", "raw"], rtol=1e-4, atol=1e-6)
    step = block()["grpo", "raw"]
    np.testing.assert_allclose(step["update/step_norm"], 0.5 * step["update/gradient_norm"], rtol=1e-5)


def test_a_budget_cuts_completions():
    for column in COLUMNS:
        curves = block()["budget", column]
        # 1, 2 and 3 tokens, the environment's among them, of which the policy wrote at most as many
        assert (curves["rollout/length"] <= [1, 2, 3]).all()
        assert curves["rollout/truncated"][0] > block()["grpo", column]["rollout/truncated"][0]


def test_groups_trained_on():
    for curves in block().values():
        kept = curves["rollout/kept_groups"]
        assert (kept == 1).all()  # all that were offered: two, so shares of them are halves
        halves = 2 * curves["rollout/zero_variance_groups"]
        np.testing.assert_allclose(halves, np.round(halves), atol=1e-5)
    dynamic, plain = (
        np.stack([block(seed)[arm, "raw"]["rollout/zero_variance_groups"][0] for seed in range(4)])
        for arm in ("dynamic", "grpo")
    )
    assert (dynamic <= plain).all() and (dynamic < plain).any()
