"""The whole loop: resume bit for bit, no hidden recompilation or copy, device count and micro-batches, learning."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlvr_jax.train as train_module
from rlvr_jax.checkpoint import Checkpoints
from rlvr_jax.config import check, load_config
from rlvr_jax.run import abstract_state, make_parts
from rlvr_jax.train import train
from rlvr_jax.workdir import claim

ROOT = Path(__file__).resolve().parent.parent
# memory (history), parameters of its own (learnable) and a reference: all that a checkpoint must carry
STATEFUL = ("estimator.reweight=history", "estimator.aggregate=learnable", "estimator.kl=k3(beta=0.01)")
SMALL = ("prompts_per_step=8", "group_size=4", "model.width=32", "model.head_size=8", "model.hidden=64")
QUICK = ("evaluate.every=0", "log.report=False", "optimizer.learning_rate=0.003")


def small(*overrides: str, name: str = "grpo"):
    return load_config(f"{ROOT}/configs/tiny.py:{name}", [*SMALL, *QUICK, *overrides])


def metrics_of(workdir: Path) -> list[dict]:
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def learned(lines: list[dict]) -> list[dict]:
    """What a step computed, without times."""
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]


def saved_state(workdir: Path, config):
    parts = make_parts(config, check(config))
    with Checkpoints(workdir, keep=0) as checkpoints:
        return checkpoints.restore(abstract_state(parts))


def assert_same_bits(first, second):
    pairs = zip(jax.tree_util.tree_leaves_with_path(first), jax.tree.leaves(second), strict=True)
    for (path, a), b in pairs:
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b), err_msg=jax.tree_util.keystr(path))


def run_elsewhere(workdir: Path, *overrides: str, devices: int = 1, wait: bool = True):
    """`rlvr train` in a process of its own, on so many CPU devices."""
    command = [
        sys.executable,
        "-m",
        "rlvr_jax.train",
        f"--config={ROOT}/configs/tiny.py:grpo",
        f"--workdir={workdir}",
    ]
    command += [f"--config.{item}" for item in (*SMALL, *QUICK, *overrides)]
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if wait:
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output
    return process


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Three steps in one go, with every kind of state."""
    workdir = tmp_path_factory.mktemp("whole")
    config = small("steps=3", *STATEFUL)
    train(config, workdir, quiet=True)
    return workdir, config


def test_three_steps_are_one_and_stop_and_resume_and_two(uninterrupted, tmp_path):
    whole, config = uninterrupted
    train(small("steps=1", *STATEFUL), tmp_path, quiet=True)
    train(small("steps=3", *STATEFUL), tmp_path, quiet=True)
    state, position, _ = saved_state(whole, config)
    resumed, resumed_position, _ = saved_state(tmp_path, config)
    assert state.memory and state.params["estimator"], "the estimator of this test must have state"
    assert_same_bits(state, resumed)
    assert position == resumed_position
    steps = lambda workdir: [line for line in learned(metrics_of(workdir)) if line["step"] in (1, 2)]
    strip = lambda lines: [{k: v for k, v in line.items() if not k.startswith("eval/")} for line in lines]
    assert strip(steps(whole)) == strip(steps(tmp_path))
    assert [line["step"] for line in metrics_of(tmp_path)] == [
        0,
        1,
        2,
        3,
    ]  # none twice; 3 holds the evaluation


def test_a_killed_run_goes_on_where_its_checkpoint_was(tmp_path):
    """SIGKILL in the middle of a run; the next process goes on and ends like one that was never interrupted."""
    overrides = ("steps=40", "checkpoint.every=2", "checkpoint.keep=3")
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = run_elsewhere(killed, *overrides, wait=False)
    log = killed / "metrics.jsonl"
    deadline = time.time() + 120
    while time.time() < deadline and not (log.exists() and log.read_text().count("\n") >= 8):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = len(metrics_of(killed))
    assert 8 <= done < 40, "the run was to be killed half-way"
    with (log).open("a") as file:
        file.write('{"step": 39, "torn')  # as a kill in the middle of a write leaves it
    config = small(*overrides)
    train(config, killed, quiet=True)
    train(config, whole, quiet=True)
    assert_same_bits(saved_state(killed, config)[0], saved_state(whole, config)[0])
    assert [line["step"] for line in metrics_of(killed)] == list(range(41))
    assert learned(metrics_of(killed)) == learned(metrics_of(whole))


def test_nothing_is_compiled_after_the_first_step(tmp_path):
    """With evaluations and checkpoints in between; two updates a batch, so that every function is in use."""
    config = small(
        "steps=5",
        "evaluate.every=2",
        "checkpoint.every=2",
        "updates.minibatches=2",
        "updates.epochs=2",
        *STATEFUL,
    )
    train(config, tmp_path, quiet=True)
    compiled = [line["time/compilations"] for line in metrics_of(tmp_path) if "time/compilations" in line]
    assert len(compiled) == 5
    assert compiled[0] > 0, "the counter counts nothing"
    assert compiled[1:] == [0, 0, 0, 0]


def test_a_hidden_copy_inside_the_step_is_an_error(tmp_path, monkeypatch):
    """The loop runs under a transfer guard: handing numpy to a device function unasked stops the run."""
    real = train_module.verify

    def verify_with_a_copy(task, tokenizer, seen, answers):
        jnp.add(np.ones(3, np.float32), np.ones(3, np.float32))
        return real(task, tokenizer, seen, answers)

    monkeypatch.setattr(train_module, "verify", verify_with_a_copy)
    with pytest.raises(Exception, match="Disallowed host-to-device transfer"):
        train(small("steps=2"), tmp_path, quiet=True)


@pytest.mark.slow
def test_one_and_eight_devices_and_any_micro_batch_give_the_same_run(tmp_path):
    """Losses, gradient norms and lengths of 4 steps × 2 epochs agree to 1e-5 whatever the layout of the rows."""
    overrides = ("steps=4", "updates.epochs=2", "estimator.kl=k3(beta=0.05)", "optimizer.learning_rate=0.001")
    layouts = {
        "plain": ((), 1),
        "four micro-batches": (("updates.micro_batch_rows=8",), 1),
        "two micro-batches, shared rows": (
            ("updates.micro_batch_rows=16", "updates.completions_per_row=4"),
            1,
        ),
        "eight devices": ((), 8),
        "eight devices, tensor parallel, two micro-batches": (
            ("mesh.model=2", "updates.micro_batch_rows=16"),
            8,
        ),
    }
    seen = {}
    for name, (more, devices) in layouts.items():
        workdir = tmp_path / name.replace(" ", "-")
        if devices == 1:
            train(small(*overrides, *more), workdir, quiet=True)
        else:
            run_elsewhere(workdir, *overrides, *more, devices=devices)
        seen[name] = learned(metrics_of(workdir))
    keys = (
        "update/loss",
        "update/gradient_norm",
        "update/entropy",
        "update/kl",
        "rollout/length",
        "rollout/reward",
    )
    for name, lines in seen.items():
        for line, expected in zip(lines[:4], seen["plain"]):
            for key in keys:
                assert line[key] == pytest.approx(expected[key], rel=1e-4, abs=1e-5), (
                    name,
                    line["step"],
                    key,
                )
    assert any(abs(line["update/loss"]) > 1e-4 for line in seen["plain"][:4]), "a loss of 0 proves nothing"


@pytest.mark.parametrize("name, entropy_bonus", [("grpo", 0.05), ("dr_grpo", 0.05), ("dapo", 0.2)])
def test_a_policy_from_scratch_learns(name, entropy_bonus, tmp_path):
    """From a uniform start (1 completion in 225 is right) to most of the training problems.

    dapo drops the groups without contrast from the loss, the entropy bonus with them, so its bonus must be larger to
    keep the policy looking for answers that it has never found (at 0.05 it stops at half of the problems).
    """
    config = load_config(
        f"{ROOT}/configs/tiny.py:{name}",
        [
            *QUICK,
            "task=arithmetic(largest=2, held_out=1)",
            "evaluate.problems=1",
            "steps=80",
            f"updates.entropy_bonus={entropy_bonus}",
            "prompts_per_step=8",
        ],
    )
    train(config, tmp_path, quiet=True)
    rewards = [line["rollout/pass@1"] for line in metrics_of(tmp_path) if "rollout/pass@1" in line]
    assert np.mean(rewards[:3]) < 0.1
    assert np.mean(rewards[-10:]) > 0.9, rewards[::10]


def test_one_problem_in_bfloat16(tmp_path):
    """The smallest data set there can be, and the activations that accelerators use."""
    for name, number in (("train", 3), ("held_out", 4)):
        (tmp_path / name).write_text(json.dumps({"question": f"{number}+1=", "answer": number + 1}) + "\n\n")
    config = small(
        "steps=3",
        f"task=jsonl(train={str(tmp_path / 'train')!r}, held_out={str(tmp_path / 'held_out')!r})",
        "prompts_per_step=1",
        "evaluate.problems=1",
        "model.dtype=bfloat16",
    )
    train(config, tmp_path / "run", quiet=True)
    lines = metrics_of(tmp_path / "run")
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert all(np.isfinite(line["update/loss"]) for line in lines[:3])


def test_a_run_whose_directory_is_taken_or_damaged(uninterrupted, tmp_path):
    """A second process is refused; an array cut short is named, and the rest of the run stays as it was."""
    whole, config = uninterrupted
    with claim(tmp_path / "taken", config), pytest.raises(ValueError, match="another process is training there"):
        train(config, tmp_path / "taken", quiet=True)
    shutil.copytree(whole, tmp_path / "cut")
    arrays = [p for p in (tmp_path / "cut" / "checkpoints").rglob("*") if p.is_file() and p.stat().st_size > 2000]
    for array in arrays:
        if "metadata" not in array.name.lower() and "manifest" not in array.name:
            array.write_bytes(array.read_bytes()[:1000])
    before = (tmp_path / "cut" / "metrics.jsonl").read_bytes()
    with pytest.raises(ValueError, match=r"checkpoint .*cut.* cannot be read"):
        train(small("steps=5", *STATEFUL), tmp_path / "cut", quiet=True)
    assert (tmp_path / "cut" / "metrics.jsonl").read_bytes() == before
