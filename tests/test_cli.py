"""What the user got wrong is one line and exit status 2, before any device work, with nothing written."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr_jax import cli
from rlvr_jax.config import load_config
from rlvr_jax.workdir import save_config

ROOT = Path(__file__).parents[1]
TINY = f"--config={ROOT / 'tests' / 'tiny.py'}"


@pytest.fixture(autouse=True)
def no_device_work(monkeypatch):
    """Sampling, updates and parameters are what these commands must not come to."""

    def fail(*_, **__):
        raise AssertionError("device work began")

    for name in ("init_state", "compile_functions"):
        monkeypatch.setattr(f"rlvr_jax.run.{name}", fail)
    monkeypatch.setattr("rlvr_jax.train.restore_or_start", fail)


@pytest.fixture
def refused(capsys, tmp_path):
    """Runs a command in a new workdir and returns the line it is refused with."""

    def run(*arguments, command="train", workdir=tmp_path / "run"):
        where = [] if workdir is None else [f"--workdir={workdir}"]
        status = cli.main([command, *arguments, *where])
        printed = capsys.readouterr()
        assert status == 2 and printed.out == ""
        assert printed.err.startswith(f"rlvr {command}: ") and printed.err.endswith("\n")
        assert printed.err.count("\n") == 1 and "Traceback" not in printed.err
        assert not (tmp_path / "run").exists()
        return printed.err

    return run


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([f"{TINY}:dr_gpo"], ["'dr_gpo'", "Did you mean 'dr_grpo'", "'rloo'"]),
        ([TINY, "--config.estimator.scale=group_sdt"], ["scale='group_sdt'", "'group_std'"]),
        (
            [TINY, "--config.optimizer.learning_rat=1"],
            ["optimizer.learning_rat", "'optimizer.learning_rate'"],
        ),
        ([TINY, "--config.learning_rate=1"], ["config.learning_rate", "'optimizer.learning_rate'"]),
        ([TINY, "--config.group-size=4"], ["config.group-size", "'group_size'"]),
        ([TINY, "--config.steps=many"], ["config.steps='many'", "expected int"]),
        ([TINY, "--config.steps"], ["--config.steps=VALUE"]),
        ([TINY, "--learning_rate=1"], ["'--learning_rate=1'", "--config.KEY=VALUE"]),
        ([TINY, "--config.updates.micro_batch_rows=5"], ["micro_batch_rows=5", "256 rows", "[1, 2, 4, 8, "]),
        ([TINY, "--config.group_size=1"], ["group_size=1", "at least 2"]),
        ([TINY, "--config.group_size=0"], ["group_size=0", "at least 1"]),
        ([TINY, "--config.prompts_per_step=1000"], ["prompts_per_step=1000", "20 problems"]),
        (
            [TINY, "--config.sampling.prompt_length=3"],
            ["prompt_length=3", "longest 4 tokens", "raise it to 4"],
        ),
        ([TINY, "--config.task=arithmetik"], ["'arithmetik'", "'arithmetic'"]),
        ([TINY, "--config.model.path=no/such.gguf"], ["no/such.gguf"]),
        ([TINY, "--config.model.path=package:no_such_package/x.gguf"], ["no_such_package", "pip install"]),
        ([TINY, "--config.tokenizer=no/such.json"], ["no/such.json"]),
        (["--config=configs/none.py:grpo"], ["configs/none.py", "does not exist"]),
    ],
    ids=lambda value: value[-1].rpartition("/")[2] if str(value[0]).startswith("--") else "",
)
def test_one_line(refused, arguments, says):
    line = refused(*arguments)
    for text in says:
        assert text in line
    assert len(line) < 1500


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("estimator.reweight=history(window=1.5)", "window"),
        ("estimator.clip=ppo(low={[]: 1})", "low"),
        ("estimator.clip=ppo(low=None)", "low"),
        ("estimator.clip=ppo(**{'low': 1})", "ppo"),
        ("task=arithmetic(**{'largest': 3})", "arithmetic"),
        ("tokenizer=bytes(alphabet=3)", "alphabet"),
        ("steps={[]: 1}", "steps"),
        ("model.head_size=0", "model.head_size"),
        ("model.rope_theta=0.0", "model.rope_theta"),
        ("optimizer.learning_rate=1e999", "optimizer.learning_rate"),
        ("sampling.temperature=1e999", "sampling.temperature"),
        ("seed=-1", "seed"),
    ],
)
def test_values_that_no_part_can_use(refused, override, says):
    assert says in refused(TINY, f"--config.{override}")


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    """A whole model file, written as the tests of the reader do."""
    spec = importlib.util.spec_from_file_location("gguf_files", ROOT / "tests" / "policy" / "test_gguf.py")
    files = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(files)
    return files.write(tmp_path_factory.mktemp("model") / "tiny.gguf", files.weights(tied=True))


@pytest.mark.parametrize("size", [0, 10, 300, -100])
def test_a_model_file_that_is_cut_short(refused, model_file, tmp_path, size):
    whole = model_file.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[:size])
    line = refused(TINY, f"--config.model.path={cut}")
    assert "cut.gguf" in line and ("cut short" in line or "not a GGUF file" in line)


def test_a_config_file_that_sets_what_is_not_there(refused, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from rlvr_jax.config import defaults\n\n\ndef get_config(estimator='grpo'):\n"
        "    config = defaults(estimator)\n    config.optimizer.learning_rat = 1\n    return config\n"
    )
    line = refused(f"--config={file}")
    assert "learning_rat" in line and "learning_rate" in line


def test_a_config_file_that_takes_no_name(refused, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from rlvr_jax.config import defaults\n\n\ndef get_config():\n    return defaults()\n")
    assert "mine.py" in refused(f"--config={file}:grpo")


def contents(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def a_run(folder, **changes):
    """A directory as a run of the tiny config leaves it, but for the checkpoints."""
    config = load_config(TINY.removeprefix("--config="))
    for key, value in changes.items():
        config[key] = value
    save_config(folder, config)
    (folder / "metrics.jsonl").write_text('{"step": 0}\n')
    (folder / "checkpoints" / "150").mkdir(parents=True)
    return folder


def test_a_workdir_of_another_config_is_left_as_it_is(refused, tmp_path):
    folder = a_run(tmp_path / "old", seed=3)
    before = contents(folder)
    line = refused(TINY, "--config.optimizer.learning_rate=1e-4", workdir=folder)
    assert "another config" in line and "seed: 3 → 0" in line
    assert "optimizer.learning_rate: 0.003 → 0.0001" in line
    assert contents(folder) == before


def test_a_workdir_of_something_else_is_left_as_it_is(refused, tmp_path):
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.tex").write_text("words")
    before = contents(folder)
    assert "no config.json" in refused(TINY, workdir=folder)
    assert "is a file" in refused(TINY, workdir=folder / "chapter.tex")
    (folder / "config.json").write_text("{")
    assert "not a config" in refused(TINY, workdir=folder)
    (folder / "config.json").write_text("[]")
    assert "not a config" in refused(TINY, workdir=folder)
    (folder / "config.json").unlink()
    assert contents(folder) == before


def test_a_workdir_inside_a_file(refused, tmp_path):
    (tmp_path / "file").write_text("words")
    assert "file" in refused(TINY, workdir=tmp_path / "file" / "run")


@pytest.mark.parametrize("command", ["eval", "sample"])
def test_a_run_that_is_not_there(refused, tmp_path, command):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no run there (no config.json)" in refused(command=command, workdir=empty)
    assert not contents(empty)
    assert "no run there" in refused(command=command, workdir=tmp_path / "nowhere")
    assert "give either --workdir" in refused(command=command, workdir=None)
    assert "give either --workdir" in refused(TINY, command=command, workdir=empty)


def test_a_run_without_a_checkpoint(refused, tmp_path):
    folder = a_run(tmp_path / "old")
    (folder / "checkpoints" / "150").rmdir()
    assert "steps there: []" in refused(command="eval", workdir=folder)


def test_a_run_of_keys_that_are_no_more(refused, tmp_path):
    folder = a_run(tmp_path / "old")
    saved = json.loads((folder / "config.json").read_text())
    saved["optimizer"]["momentum"] = 0.9
    (folder / "config.json").write_text(json.dumps(saved))
    assert "optimizer.momentum: no such key" in refused(command="eval", workdir=folder)
    assert "optimizer.momentum: 0.9 → None" in refused(TINY, workdir=folder)


def test_a_process_of_its_own(tmp_path):
    command = [
        sys.executable,
        "-m",
        "rlvr_jax.cli",
        "train",
        f"{TINY}:dr_gpo",
        f"--workdir={tmp_path / 'run'}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "Did you mean 'dr_grpo'" in done.stderr
    assert not list(tmp_path.iterdir())


def test_help_teaches(capsys):
    for command in ("train", "eval", "sample"):
        with pytest.raises(SystemExit) as ended:
            cli.main([command, "--help"])
        assert ended.value.code == 0
        assert f"rlvr {command} --" in capsys.readouterr().out


def test_the_catalogue_in_the_terminal(capsys):
    assert cli.main(["estimators"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("grpo ") and "\nlambda_grpo" in out
    assert cli.main(["estimators", "dr_grpo"]) == 0
    out = capsys.readouterr().out
    assert "2503.20783" in out and "constant(length='completion')" in out
    assert cli.main(["estimators", "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("| name | shape |")
    assert cli.main(["estimators", "dr_gpo"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "Did you mean 'dr_grpo'?" in error
