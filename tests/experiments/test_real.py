"""A toy table's arms on a real model's config."""

from __future__ import annotations

import pytest

from experiments.launch import main
from experiments.real import on_base
from experiments.table import all_tables, check, load, resolve
from rlvr_jax.config import flatten, load_config

BASE = "configs/pod.py:grpo"
ROOT = __file__.rsplit("/tests/", 1)[0]


def test_arms_are_the_same_differences():
    toy = load("length")
    real, gone = on_base(toy, BASE)
    check(real)
    assert list(real.arms) == list(toy.arms) and not gone
    config = flatten(resolve(real, "", "Dr. GRPO", "", 1))
    expected = flatten(load_config(f"{ROOT}/configs/pod.py:dr_grpo")) | {"seed": 1}
    assert config == expected


def test_windows_are_stretched_to_the_steps():
    real, _ = on_base(load("length"), BASE)
    late = next(measure for measure in real.measures if measure.label == "late pass@1")
    assert (late.first, late.last) == (round(100 * 500 / 120), round(120 * 500 / 120) - 1)


def test_what_the_trainer_lacks_is_left_out_and_named():
    real, gone = on_base(load("recipe"), BASE)
    assert "+ dynamic sampling" not in real.arms and len(real.arms) == len(load("recipe").arms) - 1
    said = "\n".join(gone)
    assert "sampling.dynamic" in said and "pass@1 hard, end" in said and "the whole recipe helps" in said
    assert all(claim.arm in real.arms for claim in real.claims)


@pytest.mark.parametrize("table", [t for t in all_tables() if t.toy], ids=lambda t: t.name)
def test_every_toy_table_has_a_real_one_or_says_why_not(table):
    try:
        real, _ = on_base(table, BASE)
    except ValueError as error:
        assert "nothing is left" in str(error)
    else:
        check(real)
        assert len(real.arms) >= 2 and real.measures


def test_refusals():
    with pytest.raises(ValueError, match="for toy tables"):
        on_base(load("smollm2"), BASE)
    with pytest.raises(ValueError, match="the toy's own config"):
        on_base(load("length"), "configs/lab.py:grpo")
    with pytest.raises(ValueError, match="does not exist"):
        on_base(load("length"), "configs/nowhere.py:grpo")


def test_commands_for_a_slice(capsys, tmp_path):
    assert main(["length", "--base", BASE, "--slice", "v5e:2x4", "--root", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    commands = [line for line in lines if line.startswith("python -m rlvr_jax.cli train")]
    assert len(commands) == 6 * 3 and all("--config=configs/pod.py:grpo" in line for line in commands)
    estimates = [line for line in lines if "estimate by arithmetic, not compiled, not measured" in line]
    assert len(estimates) == len(commands) and "6525 M parameters" in estimates[0]
