"""`rlvr lengths` and `rlvr audit`: what a person sees, in 80 columns, as JSON, as a page; and what is refused."""

import json

import numpy as np
import pytest

from rlvr_jax import cli

pytestmark = pytest.mark.usefixtures("quick_compiles")


def write_log(path, steps=10, ends=True, prompts=25, name="q"):
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        for step in range(steps):
            for prompt in range(prompts):
                for _ in range(4):
                    right = bool(rng.random() < 0.2 + 0.05 * step)
                    length = int(rng.integers(20, 60) * (1 if right else 1 + 0.2 * step))
                    row = {
                        "step": step,
                        "prompt": f"{name}{prompt}",
                        "reward": float(right),
                        "length": min(length, 150),
                    }
                    file.write(json.dumps(row | ({"finished": length < 150} if ends else {})) + "\n")
    return str(path)


@pytest.fixture
def run(capsys, monkeypatch):
    def call(*arguments):
        monkeypatch.setenv("COLUMNS", "80")
        status = cli.main(list(arguments))
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


def fits(text):
    """No line is wider than 80, and no cell was cut."""
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text.replace("…,", "")


def test_lengths_in_a_terminal(run, tmp_path):
    status, out, err = run("lengths", write_log(tmp_path / "log.jsonl"))
    assert status == 0 and not err
    fits(out)
    flat = " ".join(out.split())
    assert "steps 0–1 steps 8–9 change" in flat and "1000 completions (plain), graded by reward" in flat
    assert "wrong: length of ended ones" in flat and "proves neither" in flat


def test_lengths_as_json_and_files(run, tmp_path):
    log = write_log(tmp_path / "log.jsonl", ends=False)
    page, plots = tmp_path / "out" / "why.html", tmp_path / "plots"
    arguments = ("--json", f"--html={page}", f"--plots={plots}", "--before=0:2", "--after=9")
    status, out, _ = run("lengths", log, *arguments)
    found = json.loads(out)
    assert status == 0 and found["before"]["steps"] == [0, 2] and found["after"]["steps"] == [9, 9]
    assert sum(part["value"] for part in found["parts"].values()) == pytest.approx(found["change"]["value"], abs=1e-9)
    assert found["truncation"] is None and any("--limit" in note for note in found["notes"])
    assert sorted(path.name for path in plots.iterdir()) == ["length.png", "over-time.png", "split.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in plots.iterdir())
    text = page.read_text()
    assert "cut by the limit" not in text  # nothing is known of it
    self_contained(text)
    known = json.loads(run("lengths", log, "--json", "--limit=150")[1])
    assert known["truncation"]["value"] > 0


def self_contained(text):
    assert text.count("<img") == text.count('src="data:image/png;base64,') >= 2
    assert "<script" not in text and "http://" not in text and "https://" not in text
    assert "default-src 'none'" in text and "width=device-width" in text


def test_names_of_columns_reach_the_page_as_text(run, tmp_path):
    evil = "<script>alert(1)</script>"
    rows = [{"step": s, "prompt": "a", evil: 1, "length": 5 + s} for s in (0, 0, 1, 1)]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run("lengths", str(log), f"--reward={evil}", f"--html={tmp_path / 'p.html'}")[0] == 0
    text = (tmp_path / "p.html").read_text()
    assert "<script" not in text and "&lt;script&gt;" in text


def test_a_log_of_texts_is_counted_with_a_tokenizer(run, tmp_path):
    log = tmp_path / "log.jsonl"
    rows = [{"step": s, "prompt": "a", "reward": 1, "completion": "12+3" * (s + 1)} for s in (0, 0, 1, 1)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = json.loads(run("lengths", str(log), "--json")[1])
    assert found["unit"] == "characters" and found["change"]["value"] == 4
    found = json.loads(run("lengths", str(log), "--json", "--tokenizer=bytes")[1])
    assert found["unit"] == "tokens" and found["change"]["value"] == 4


def test_audit_without_a_log(run):
    status, out, err = run("audit", "grpo", "dr_grpo", "--group-size=4", "--reference=100")
    assert status == 0 and not err
    fits(out)
    flat = " ".join(out.split())
    assert "grpo: weight of a token" in flat and "dr_grpo: weight of a token" in flat
    assert "2 of 4 right right 4 2 1 0.5 0.25" in flat and "2 of 4 right wrong −1 −1 −1 −1 −1" in flat


def test_long_names_fit(run, tmp_path):
    names = ("reinforce_pp_baseline", "sign_balance_group", "stratified_grpo", "ha_dw_dapo", "grpo_no_std")
    out = run("audit", *names, "--log", write_log(tmp_path / "log.jsonl", steps=2))[1]
    assert max(map(len, out.splitlines())) <= 80 and "baseline" in out and "baselin\n" not in out


def test_audit_on_a_log(run, tmp_path):
    log = write_log(tmp_path / "log.jsonl")
    page = tmp_path / "audit.html"
    status, out, err = run("audit", "grpo", "dr_grpo", "--log", log, f"--html={page}")
    assert status == 0 and not err
    fits(out)
    flat = " ".join(out.split())
    assert "grpo: what the numbers suggest" in flat and "Says so:" in flat and "Disagrees:" in flat
    assert "Where the weight goes" in flat and "longest wrong" in flat and "none right" in flat
    self_contained(page.read_text())
    found = json.loads(run("audit", "grpo", "--log", log, "--json")[1])
    grpo = found["estimators"]["grpo"]
    assert np.sum(grpo["on_log"]["by_length"]) == pytest.approx(1)
    assert np.sum(grpo["on_log"]["by_band"]) == pytest.approx(1)
    assert grpo["advice"] == sorted(grpo["advice"], key=lambda item: -item["score"])
    assert found["completion_length"] == 150 and found["bias"]["group_size"] == 4


def test_selected_completions_are_not_audited(run, tmp_path):
    row = {"group": 0, "prompt": "a", "outcome": 1.0, "length": 5, "finished": True}
    rows = [{"step": step, **row, "outcome": outcome} for step in (0, 1) for outcome in (0.0, 1.0)]
    (tmp_path / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status, _, err = run("audit", "grpo", "--log", str(tmp_path))
    assert status == 2 and "every completion of a group" in err
    assert run("lengths", str(tmp_path))[0] == 0  # read, and said to be a selection


def test_what_an_audit_cannot_know_is_said(run):
    notes = json.loads(run("audit", "lambda_grpo", "ha_dw_grpo", "stratified_grpo", "grpo", "--json")[1])["notes"]
    assert [note.split()[0].rstrip(":") for note in notes] == ["lambda_grpo", "ha_dw_grpo", "stratified_grpo"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("lengths", "{log}", "--before=late"), "--before='late': expected FIRST:LAST"),
        (("lengths", "{log}", "--before=90:95"), "before=90:95: no step of the log"),
        (("lengths", "{log}", "--reward=acc"), "--reward='acc' is no column"),
        (("lengths", "{log}", "--tokenizer=nowhere"), "nowhere"),
        (("lengths", "missing.jsonl"), "missing.jsonl: no such file"),
        (("lengths", "{log}", "--config.steps=3"), "takes no config keys"),
        (("audit", "gropo"), "'gropo': no such entry. Did you mean 'grpo'?"),
        (("audit", "gropo", "--log", "missing.jsonl"), "Did you mean 'grpo'?"),
        (("audit", "grpo", "--log", "missing.jsonl"), "missing.jsonl: no such file"),
        (("audit", "grpo", "--group-size=1"), "group_size=1"),
        (("audit", "dr_grpo", "--completion-length=-5"), "completion_length=-5"),
    ],
)
def test_what_is_refused(run, tmp_path, arguments, says):
    log = write_log(tmp_path / "log.jsonl", steps=2)
    status, out, err = run(*(part.format(log=log) for part in arguments))
    assert status == 2 and not out
    assert err.startswith(f"rlvr {arguments[0]}: ") and err.count("\n") == 1 and says in err
