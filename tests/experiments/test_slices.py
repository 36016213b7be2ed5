"""Commands for TPU slices: the trainer's own parser takes them, and the costs are arithmetic done by hand."""

import re
import shlex

import pytest
from synthetic_table import real, small

from experiments.launch import launch
from experiments.runs import Runs
from experiments.slices import estimate, parse_slice, slice_lines
from experiments.table import run_keys
from rlvr_jax.cli import parser
from rlvr_jax.config import flatten, load_config


@pytest.mark.parametrize("text", ["v5e:8x8", "v6e:1x1", "v4:2x2x4", "v5p:4x4x4"])
def test_slices(text):
    found = parse_slice(text)
    assert f"{found.kind}:{found.topology}" == text and found.chips in (64, 1, 16, 64)


@pytest.mark.parametrize("text", ["v7:8x8", "v5e", "v5e:8", "v5e:2x2x2", "v4:2x2", "v5e:0x8", "v5e:ax2", "8x8"])
def test_bad_slices_name_the_kinds(text):
    with pytest.raises(ValueError, match=r"'v4', 'v5e', 'v5p', 'v6e'"):
        parse_slice(text)


@pytest.mark.parametrize("table", [small(), real()], ids=["toy", "real"])
def test_commands_are_those_of_the_trainer(table, tmp_path, capsys):
    launch(table, tmp_path, where=parse_slice("v5e:4x4"))
    assert not any(tmp_path.iterdir())
    lines = capsys.readouterr().out.splitlines()
    commands = [line for line in lines if not line.startswith("#")]
    runs, keys = Runs(table, tmp_path), run_keys(table)
    assert len(commands) == len(keys)
    for command, key in zip(commands, keys):
        words = shlex.split(command)
        assert words[:3] == ["python", "-m", "rlvr_jax.cli"]
        options, rest = parser().parse_known_args(words[3:])
        config = load_config(options.config, [word.removeprefix("--config.") for word in rest])
        assert flatten(config) == flatten(runs.config(key)) and options.workdir == str(runs.path(key))
    comments = [line for line in lines if "estimate by arithmetic, not compiled, not measured" in line]
    assert len(comments) == (0 if table.toy else len(keys))


def test_the_estimate_by_hand(tmp_path):
    """N is read off; everything else follows from it: two epochs need old log-probabilities, KL a reference."""
    table = real(arms={"GRPO": {}, "KL": {"estimator.kl": "k3(beta=0.1)"}}, common={"steps": 5, "updates.epochs": 2})
    runs = Runs(table, tmp_path)
    plain, kl = (estimate(runs.config(key), parse_slice("v5e:1x1")) for key in run_keys(table)[:2])
    numbers = re.match(r"(\S+) M parameters, (\d+) tokens a step, 5 steps: (\S+) FLOP, (\S+) s", plain)
    tokens = 16 * 16 * (4 + 3)
    assert int(numbers[2]) == tokens
    count = 1e6 * float(numbers[1])
    sampling, updates = 2 * count * tokens, (6 * 2 + 2) * count * tokens
    assert float(numbers[3]) == pytest.approx(5 * (sampling + updates), rel=0.05)
    assert float(numbers[4]) == pytest.approx(5 * (sampling / 19.7e12 + updates / 78.8e12), rel=0.06)
    assert float(re.search(r"(\S+) FLOP", kl)[1]) == pytest.approx(5 * count * tokens * 18, rel=0.05)


def test_a_batch_that_does_not_fit_the_slice_is_said(tmp_path):
    lines = slice_lines(real(), Runs(real(), tmp_path), run_keys(real())[:1], parse_slice("v5e:16x32"))
    assert "the trainer refuses it there: config.updates.micro_batch_rows" in lines[-1]
