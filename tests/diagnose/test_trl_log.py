"""What TRL's own GRPOTrainer wrote is read and reported on; `make test-oracles`.

RLVR_TRL_PYTHON names the Python of an environment with TRL, else it is that of `.venv-trl`.
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from rlvr_jax import cli
from rlvr_jax.diagnose.foreign import Log

pytestmark = pytest.mark.oracle
HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
STEPS, ROWS, LIMIT = 4, 16, 12


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The output directory of a run, and what the run knows of its completions."""
    python = Path(os.environ.get("RLVR_TRL_PYTHON", ROOT / ".venv-trl" / "bin" / "python"))
    if not python.exists():
        pytest.skip("no TRL here: RLVR_TRL_PYTHON is not set and there is no .venv-trl")
    folder = tmp_path_factory.mktemp("trl")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [python, HERE / "trl_run.py", folder], capture_output=True, text=True, env=environment, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, json.loads((folder / "known.json").read_text())


def test_trls_table_is_read(trained):
    folder, known = trained
    log = Log([folder])
    chunks = list(log.chunks())
    step, reward, length = (np.concatenate([getattr(c, name) for c in chunks]) for name in ("step", "reward", "length"))
    assert log.formats == ["trl"] and log.rewards == ["has_a_vowel_early"]
    assert step.tolist() == np.repeat(np.arange(1, STEPS + 1), ROWS).tolist()
    assert reward.tolist() == [row["reward"] for row in known["seen"]]
    assert length.tolist() == [len(row["text"]) for row in known["seen"]]  # characters
    for place, entry in enumerate(known["logged"]):
        assert reward[place * ROWS : (place + 1) * ROWS].mean() == pytest.approx(entry["reward"], abs=1e-6)
    prompts = np.concatenate([c.prompt for c in chunks])
    assert len(set(prompts.tolist())) == len({row["prompt"] for row in known["seen"]})


def test_counted_tokens_are_trls_but_for_the_end_token(trained):
    # a token of this tokenizer is a letter: TRL counts the end token, which its texts do not show
    folder, known = trained
    log = Log([folder], count=len)
    length = np.concatenate([chunk.length for chunk in log.chunks()])
    tokens = np.asarray([row["tokens"] for row in known["seen"]])
    assert set((tokens - length).tolist()) <= {0, 1, 2}
    means = [entry["completions/mean_length"] for entry in known["logged"]]
    assert tokens.reshape(STEPS, ROWS).mean(1) == pytest.approx(np.asarray(means))


def test_reports_on_trls_log(trained, tmp_path, capsys, monkeypatch):
    folder, _ = trained
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["lengths", str(folder), f"--html={tmp_path / 'l.html'}", f"--limit={LIMIT}"]) == 0
    out = capsys.readouterr().out
    assert "(trl), graded by has_a_vowel_early" in " ".join(out.split()) and "proves neither" in " ".join(out.split())
    assert cli.main(["audit", "grpo", "dapo", "--log", str(folder), f"--html={tmp_path / 'a.html'}"]) == 0
    assert "Where the weight goes" in capsys.readouterr().out
    assert (tmp_path / "l.html").stat().st_size > 50_000 and (tmp_path / "a.html").stat().st_size > 50_000
