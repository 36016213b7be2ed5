"""Checkpoints across meshes, hosts and kills; which are kept."""

import json
import shutil

import numpy as np
import pytest
import tiny

import rlvr_jax.train as train_module
from rlvr_jax.checkpoint import Checkpoints
from rlvr_jax.evaluate import Evaluation

pytestmark = pytest.mark.usefixtures("quick_compiles")

SAVES = """
import os, sys
sys.path.insert(0, "tests")
import numpy as np
from test_checkpoint import DATA, Checkpoints, state_of
from rlvr_jax.sharding import make_mesh, shardings_for

def abstract(state, data, model):
    attach = lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)
    return jax.tree.map(attach, state, shardings_for(state, make_mesh(data, model)))

state = state_of()
with Checkpoints(WORKDIR, keep=0) as checkpoints:
    if checkpoints.latest() is None:
        placed = jax.tree.map(lambda x, a: jax.device_put(x, a.sharding), state, abstract(state, *MESH))
    else:
        placed = checkpoints.restore(abstract(state, *MESH))[0]
    kernel = placed.params["policy"]["blocks"]["mlp"]["up"]["kernel"]
    checkpoints.save((checkpoints.latest() or 0) + 1, placed, DATA, {})
result = list(kernel.addressable_shards[0].data.shape)
"""


def test_eight_devices_then_two_then_one_bit_for_bit(tmp_path):
    """A state saved in shards of 8 devices, read and saved again by 2, is the one it was when 1 reads it."""
    from test_checkpoint import abstract, assert_same_bits, state_of

    program = SAVES.replace("WORKDIR", json.dumps(str(tmp_path)))
    # the kernel [2, 16, 24] is cut by data on its second axis and by model on its third
    assert tiny.on_devices(8, program.replace("MESH", "(4, 2)")) == [2, 4, 12]
    assert tiny.on_devices(2, program.replace("MESH", "(2, 1)")) == [2, 8, 24]
    with Checkpoints(tmp_path, create=False) as checkpoints:
        assert checkpoints.steps() == [1, 2]
        assert_same_bits(checkpoints.restore(abstract(state_of()), 2)[0], state_of())


def test_the_best_are_kept_beside_the_newest(tmp_path):
    """Scores 0.2, 0.9, 0.5, 0.9, none, 0.1 of steps 1 … 6: the newest two and the best two, of equals the newer."""
    from test_checkpoint import SMALL, abstract, save

    seen = []
    with Checkpoints(tmp_path, keep=2, best=2) as checkpoints:
        for step, score in enumerate((0.2, 0.9, 0.5, 0.9, None, 0.1), 1):
            save(checkpoints, step)
            seen.append(checkpoints.steps())
            if score is not None:
                checkpoints.score(step, score)
    # a score counts from the next save on
    assert seen == [[1], [1, 2], [1, 2, 3], [2, 3, 4], [2, 4, 5], [2, 4, 5, 6]]
    with Checkpoints(tmp_path, keep=1, best=1) as checkpoints:  # another process: the scores are told again
        for step, score in ((2, 0.9), (4, 0.9)):
            checkpoints.score(step, score)
        save(checkpoints, 7)
        assert checkpoints.steps() == [4, 7]
        assert int(checkpoints.restore(abstract(SMALL), 4)[0].step) == 4


@pytest.mark.slow
def test_a_run_keeps_its_best_checkpoint(tmp_path, monkeypatch):
    """By the evaluations of the run itself, those before a restart included."""
    from pair import config_of, parity

    rates = {0: 0.0, 1: 0.5, 2: 0.25, 3: 0.0, 4: 0.1}

    def make_evaluation(config, parts):
        mode = lambda step: {"pass@1": rates[step], "low": 0.0, "high": 1.0}
        judge = lambda params, step, key: Evaluation(
            {"step": step, "split": "train", "greedy": mode(step), "sampled": mode(step), "examples": []},
            {"greedy": np.zeros((2, 1)), "sampled": np.zeros((2, 2))},
        )
        return judge, 0

    monkeypatch.setattr(train_module, "make_evaluation", make_evaluation)
    monkeypatch.setattr(train_module, "verify", parity)
    keys = (
        "checkpoint.every=1",
        "checkpoint.keep=1",
        "checkpoint.best=1",
        "evaluate.every=1",
        "checkpoint.best_by=sampled_pass@1",
    )
    train_module.train(config_of("steps=2", *keys), tmp_path, quiet=True)
    train_module.train(config_of("steps=4", *keys), tmp_path, quiet=True)
    with Checkpoints(tmp_path, create=False) as checkpoints:
        assert checkpoints.steps() == [1, 4]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Twelve steps of two processes in one go."""
    from pair import results

    folder = tmp_path_factory.mktemp("whole")
    results("training", folder, "steps=12", "checkpoint.every=3")
    return folder


def wait_for_steps(folder, count, seconds=200):
    import time

    log, deadline = folder / "run" / "metrics.jsonl", time.monotonic() + seconds
    while time.monotonic() < deadline:
        if log.exists() and log.read_text().count("\n") >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"{folder} did not come to step {count}")


def assert_same_run(first, second, step=12):
    from pair import metrics_of, saved_arrays

    one, other = saved_arrays(first / "run", step), saved_arrays(second / "run", step)
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)
    assert metrics_of(first / "run") == metrics_of(second / "run")


@pytest.mark.slow
@pytest.mark.parametrize("victim", [1, 0])
def test_a_process_killed_in_a_step_ends_the_other_and_the_pair_goes_on(whole, tmp_path, victim):
    """SIGKILL: the other says who is gone and where it was, within its limit, with a status that asks for a restart;
    the restarted pair ends bit for bit like one that was never interrupted."""
    import time

    from pair import finish, launch, results

    slow = ("steps=12", "checkpoint.every=3", "watchdog.lost_seconds=6")
    started = launch("slow_training", tmp_path, *slow)
    wait_for_steps(tmp_path, 5)
    started[victim].kill()
    killed = time.monotonic()
    (status, output) = finish(started, 60)[1 - victim]
    assert time.monotonic() - killed < 30
    if victim == 1:
        assert status == 77, output[-3000:]
        assert "process 1 (" in output and "is gone: not heard of for" in output
        assert "last reached point: step" in output
    else:  # the store is gone with its keeper: jax itself ends the process
        assert status == -6 and "leader task" in output
    results("training", tmp_path, "steps=12", "checkpoint.every=3")
    assert_same_run(tmp_path, whole)


@pytest.mark.slow
def test_one_process_of_eight_devices_gives_the_same_run(whole, tmp_path):
    from pair import metrics_of, results, saved_arrays

    results("training", tmp_path, "steps=12", "checkpoint.every=3", processes=1, devices=8)
    for line, expected in zip(metrics_of(tmp_path / "run"), metrics_of(whole / "run"), strict=True):
        assert line == pytest.approx(expected, rel=1e-4, abs=1e-5, nan_ok=True)
    one, other = (saved_arrays(folder / "run", 12) for folder in (tmp_path, whole))
    for name, value in one.items():
        if name.startswith("params"):
            np.testing.assert_allclose(value, other[name], atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_a_step_that_stands_still_ends_both_and_names_who_is_behind(tmp_path):
    from pair import finish, launch

    ended = finish(launch("stuck_verify", tmp_path, "watchdog.step_seconds=10"), 200)
    for status, output in ended:
        assert status == 76, output[-3000:]
    first = ended[0][1]
    assert "step 2 did not end within 10 s" in first or "failed at step 2" in first
    assert any("): step 2, verify, for " in output and "← behind" in output for _, output in ended)
    assert "in verify" in ended[1][1]  # its stacks


@pytest.mark.slow
def test_an_error_where_nobody_waits_for_word_ends_both(tmp_path):
    from pair import finish, launch

    (first, said), (second, why) = finish(launch("broken_data", tmp_path), 200)
    assert second == 2 and "ends: the disk is gone" in why, why[-3000:]
    assert first == 77 and "failed at step 2, prompts: OSError: the disk is gone" in said


@pytest.mark.slow
def test_a_run_goes_on_with_one_host(whole, tmp_path, monkeypatch):
    from pair import config_of, metrics_of, parity

    shutil.copytree(whole / "run", tmp_path / "run")
    monkeypatch.setattr(train_module, "verify", parity)
    train_module.train(config_of("steps=14", "checkpoint.every=3"), tmp_path / "run", quiet=True)
    assert [line["step"] for line in metrics_of(tmp_path / "run")] == list(range(15))
