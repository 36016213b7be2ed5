"""A launch fills exactly what is missing, never mixes configs, and can be stopped anywhere."""

import json
import subprocess
import sys

import numpy as np
import pytest
from synthetic_table import STEPS, bias, curves_of, fake_workdir, real, small, write_runs

import rlvr_jax.lab
from experiments import launch as launching
from experiments import table as tables
from experiments.launch import launch, main
from experiments.launch_file import read_launches
from experiments.runs import Runs, read_stored
from experiments.table import Panel, RunKey, run_keys

TWO = {"raw": {"optimizer.kind": "sgd"}, "adam": {"optimizer.kind": "adam"}}


def write_table(folder, monkeypatch, text="TABLE = small()\n", name="small"):
    monkeypatch.setattr(tables, "TABLES", folder)
    (folder / f"{name}.py").write_text(f"from synthetic_table import small\n{text}")


class FakeLab:
    """Instead of a compiled block; remembers what it was asked, may stop like Ctrl-C at the nth block."""

    def __init__(self, table, monkeypatch, stop_at=None):
        self.table, self.stop_at, self.seeds, self.references = table, stop_at, [], []
        monkeypatch.setattr(rlvr_jax.lab, "run_block", self)

    def __call__(self, configs, reference):
        if len(self.seeds) == self.stop_at:
            raise KeyboardInterrupt
        assert len({config.seed for config in configs}) == 1
        self.seeds.append(configs[0].seed)
        self.references.append(reference)
        arms, columns = list(self.table.arms), list(self.table.columns)
        keys = [RunKey("", arm, column, configs[0].seed) for arm in arms for column in columns]
        return [curves_of(key) for key in keys]


def times(table, root):
    runs = Runs(table, root)
    return {key: (runs.path(key) / "curves.npz").stat().st_mtime_ns for key in run_keys(table)}


def test_every_run_is_written_with_its_config(tmp_path, monkeypatch):
    table = small(columns=TWO)
    lab = FakeLab(table, monkeypatch)
    launch(table, tmp_path)
    runs = Runs(table, tmp_path)
    assert lab.seeds == [3, 5, 8]
    assert all(r.estimator.name == "grpo" and r.optimizer.kind == "sgd" for r in lab.references)
    for key in run_keys(table):
        assert runs.status(key).kind == "complete"
        stored = read_stored(runs.path(key))
        assert stored.config == runs.expected(key) and stored.steps == STEPS
        assert stored.config["seed"] == key.seed and stored.environment["commit"]
        name = "rollout/pass@1"
        np.testing.assert_array_equal(runs.read(key, [name])[name], curves_of(key)[name].astype(np.float64))


def test_a_second_launch_runs_exactly_what_is_missing(tmp_path, monkeypatch, capsys):
    table = small()
    FakeLab(table, monkeypatch)
    launch(table, tmp_path)
    before = times(table, tmp_path)
    lost, torn = Runs(table, tmp_path).path(run_keys(table)[0]), Runs(table, tmp_path).path(run_keys(table)[3])
    (lost / "curves.npz").unlink()
    (torn / "curves.npz").write_bytes((torn / "curves.npz").read_bytes()[:300])
    capsys.readouterr()
    lab = FakeLab(table, monkeypatch)
    launch(table, tmp_path)
    assert lab.seeds == [3, 5]
    after = times(table, tmp_path)
    assert {key for key in after if after[key] != before[key]} == {run_keys(table)[0], run_keys(table)[3]}
    said = capsys.readouterr().out
    assert "2 to run in 2 blocks, 1 of them begun or unreadable" in said and "cannot be read" in said
    lab = FakeLab(table, monkeypatch)
    launch(table, tmp_path)
    assert lab.seeds == []
    entries = read_launches(tmp_path / "small")
    assert [(entry["runs"], entry["skipped"]) for entry in entries] == [(6, 0), (2, 4)]
    assert entries[0]["updates"] == 6 * STEPS and entries[0]["commit"] and entries[0]["hardware"]


def test_a_run_of_another_config_is_refused(tmp_path, monkeypatch):
    write_runs(small(common={"steps": STEPS, "group_size": 4}), tmp_path)
    lab = FakeLab(small(), monkeypatch)
    with pytest.raises(ValueError, match=r"seed-3 holds a run of another config .*group_size: 4 → 8. Give another"):
        launch(small(), tmp_path)
    assert lab.seeds == []


def test_ctrl_c_between_blocks_keeps_what_is_done(tmp_path, monkeypatch):
    FakeLab(small(), monkeypatch, stop_at=1)
    with pytest.raises(launching.Interrupted, match="1 of 3 blocks of small are done"):
        launch(small(), tmp_path)
    lab = FakeLab(small(), monkeypatch)
    launch(small(), tmp_path)
    assert lab.seeds == [5, 8]


def test_killed_between_blocks(tmp_path):
    """SIGKILL while the second block runs: the first is whole, nothing half-written counts as a run."""
    program = (
        "import os, signal, sys\nsys.path[:0] = ['tests/experiments', '.']\n"
        "import rlvr_jax.lab\nfrom synthetic_table import curves_of, small\nfrom experiments.table import block_keys\n"
        "from experiments.launch import launch\nseen = []\n"
        "def run_block(configs, reference):\n"
        "    seen.append(1) if not seen else os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return [curves_of(key) for key in block_keys(small(), '', configs[0].seed)]\n"
        f"rlvr_jax.lab.run_block = run_block\nlaunch(small(), {str(tmp_path)!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tables.ROOT, capture_output=True)
    assert done.returncode == -9, done.stderr
    kinds = [status.kind for status in Runs(small(), tmp_path).statuses().values()]
    assert kinds == ["complete"] * 2 + ["missing"] * 4
    assert read_launches(tmp_path / "small")[0]["runs"] == 2


def test_fewer_seeds_and_dry_run(tmp_path, monkeypatch, capsys):
    write_table(tmp_path, monkeypatch)
    asked = []
    monkeypatch.setattr(launching, "run_jobs", lambda jobs, *rest: asked.append((jobs, *rest[:3])) or [])
    assert main(["small", "--root", str(tmp_path), "--seeds", "1", "--dry-run"]) == 0
    assert asked == [] and "2 to run in 1 blocks" in capsys.readouterr().out
    assert main(["small", "--root", str(tmp_path), "--seeds", "1", "--jobs", "3"]) == 0
    [([job], number, root, seeds)] = asked
    assert (job.table, job.blocks, number, root, seeds) == ("small", 1, 3, str(tmp_path), 1)
    assert main(["small", "--root", str(tmp_path), "--seeds", "9"]) == 2
    assert "1 to 3" in capsys.readouterr().err
    assert main(["small", "--jobs", "0"]) == 2 and "--jobs=0: at least 1" in capsys.readouterr().err


def test_all_means_toy_tables(tmp_path, monkeypatch):
    write_table(tmp_path, monkeypatch)
    write_table(tmp_path, monkeypatch, "from synthetic_table import real\nTABLE = real(name='model')\n", "model")
    assert [table.name for table in launching.chosen_tables([], every=True)] == ["small"]
    assert [table.name for table in launching.chosen_tables(["model"], every=False)] == ["model"]


def test_every_table_is_checked_before_the_first_runs(tmp_path, monkeypatch, capsys):
    write_table(tmp_path, monkeypatch)
    write_table(tmp_path, monkeypatch, "TABLE = small(name='bad', seeds=(1,))\n", "bad")
    lab = FakeLab(small(), monkeypatch)
    assert main(["small", "bad", "--root", str(tmp_path)]) == 2
    assert lab.seeds == [] and "table bad: " in capsys.readouterr().err
    assert main([]) == 2 and main(["--all", "small"]) == 2
    assert main(["smal"]) == 2 and "Did you mean 'small'?" in capsys.readouterr().err


def test_panels_are_stored_and_checked(tmp_path, monkeypatch):
    FakeLab(small(), monkeypatch)
    launch(small(panels=(Panel("The bias", "Bias", "by arithmetic", bias),)), tmp_path)
    stored = json.loads((tmp_path / "small/panels/the-bias.json").read_text())
    assert stored["columns"][0] == "estimator" and stored["rows"][0] == ["GRPO", 4, -0.125, True] and stored["holds"]
    ragged = lambda: {"columns": ["a"], "rows": [[1, 2]]}
    with pytest.raises(ValueError, match="panel 'p': a row of 2 cells under 1 columns"):
        launch(small(panels=(Panel("p", "P", "s", ragged),)), tmp_path)


def test_a_real_model_table_runs_the_trainer_seed_by_seed(tmp_path, monkeypatch, capsys):
    table = real()
    runs, asked = Runs(table, tmp_path), []

    def train(words):
        from rlvr_jax.cli import parser

        options, rest = parser().parse_known_args(words[3:])
        asked.append((options.workdir, [word for word in rest if "estimator" in word or "seed" in word]))
        if len(asked) == 4:
            return 130
        fake_workdir(runs, runs_key(runs, options.workdir))
        return 0

    monkeypatch.setattr(launching, "run_command", train)
    with pytest.raises(launching.Interrupted, match="3 of 4 runs"):
        launch(table, tmp_path)
    assert [seeds for _, seeds in asked[:2]] == [
        ["--config.seed=1"],
        ["--config.estimator.name=dr_grpo", "--config.seed=1"],
    ]
    launch(table, tmp_path)
    assert len(asked) == 5 and asked[4] == asked[3]
    kinds = {status.kind for status in runs.statuses().values()}
    assert kinds == {"complete"}
    (runs.path(run_keys(table)[0]) / "evaluation.json").unlink()  # trained, not evaluated: not whole
    assert runs.status(run_keys(table)[0]).kind == "partial"
    monkeypatch.setattr(launching, "run_command", lambda words: 2)
    with pytest.raises(ValueError, match="ended with exit status 2"):
        launch(table, tmp_path)


def runs_key(runs, workdir):
    return next(key for key in run_keys(runs.table) if str(runs.path(key)) == str(workdir))
