"""The report of a synthetic run: what it says, that model text stays text, what it says when files lack."""

import base64
import io
import json
import math
import re

import numpy as np
import pytest
from rich.console import Console
from synthetic_run import make_run

from rlvr_jax.metrics import MetricsWriter
from rlvr_jax.report import before_after_table, write_report
from rlvr_jax.report.drawing import smooth
from rlvr_jax.report.table import number


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    folder = make_run(tmp_path_factory.mktemp("full"), hostile=True)
    return folder, write_report(folder).read_text(encoding="utf-8")


def edit(folder, name, change):
    """Rewrites a JSON file of a run."""
    value = json.loads((folder / name).read_text())
    change(value)
    (folder / name).write_text(json.dumps(value))


def test_says_what_the_run_was_and_what_came_of_it(full):
    folder, page = full
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert "<h1>grpo + clip=ppo(low=0.2, high=0.28) on compare(digits=2)</h1>" in page
    assert "SmolLM2-135M-Instruct.Q4_1.gguf · 40 of 40 steps" in page
    assert "On 50 held-out problems" in page
    first, last = evaluation["evaluations"][0], evaluation["evaluations"][-1]
    gain = evaluation["difference"]["sampled"]
    sentence = (
        f"Sampled pass@1 rose from {first['sampled']['pass@1']:.3f} [{first['sampled']['low']:.3f}, "
        f"{first['sampled']['high']:.3f}] to {last['sampled']['pass@1']:.3f} "
        f"[{last['sampled']['low']:.3f}, {last['sampled']['high']:.3f}]: +{gain['difference']:.3f} "
        f"[+{gain['low']:.3f}, +{gain['high']:.3f}], the 95 % interval excludes zero"
    )
    assert sentence in page
    for title in (
        "Before and after",
        "Curves",
        "Samples before and after",
        "What the curves do not show",
        "Best and worst completions during training",
        "Configuration",
        "Environment",
    ):
        assert f"<h2>{title}</h2>" in page
    assert "optimizer.learning_rate" in page and "0123abc" in page
    assert "says nothing about reasoning by itself" in page
    assert 'class="notes"' not in page  # nothing is missing


def test_plots_are_files_and_in_the_page(full):
    folder, page = full
    embedded = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    files = {path.read_bytes() for path in (folder / "plots").glob("*.png")}
    names = {path.stem for path in (folder / "plots").iterdir()}
    assert names == {"pass", "length", "update", "contrast", "time"}
    assert {base64.b64decode(data) for data in embedded} == files
    assert all(data.startswith(b"\x89PNG") for data in files)


def test_text_of_the_model_stays_text(full):
    _, page = full
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;" in page
    assert "<script" not in page.lower()
    assert page.count("<img") == 5  # the plots
    for invisible in ("\x1b", "\u202e"):
        assert invisible not in page
    for shown in ("⟨U+001B⟩", "⟨U+202E⟩", "⟨U+D800⟩", '<span class="mark">↵</span>'):
        assert shown in page
    assert '<span class="mark">&lt;|im_end|&gt;</span>' in page


def test_fetches_nothing(full):
    _, page = full
    tags = re.findall(r"<[a-z][^>]*>", page)
    for tag in tags:
        assert not re.search(r"""(src|href|srcset|action)\s*=\s*["']?\s*(https?:)?//""", tag), tag
    assert all(tag.startswith("<img ") for tag in tags if "src=" in tag)
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style and "@import" not in style
    assert "default-src 'none'" in page


def test_samples_show_what_got_worse_too(full):
    folder, page = full
    evaluations = json.loads((folder / "evaluation.json").read_text())["evaluations"]
    before, after = ([example["outcome"] for example in evaluations[end]["examples"]] for end in (0, -1))
    worse = sum(first > last for first, last in zip(before, after))
    better = sum(first < last for first, last in zip(before, after))
    assert f"{better} wrong → right, {worse} right → wrong" in page
    assert "All these prompts begin with the same text" in page
    assert page.count("Which number is larger, 48 or 11?") == 2  # once for each section


def test_a_change_within_its_interval_is_not_called_one(tmp_path):
    folder = make_run(tmp_path, steps=3, planned=3, every=3)
    edit(
        folder,
        "evaluation.json",
        lambda value: value["difference"].update(greedy={"difference": 0.02, "low": -0.1, "high": 0.14}),
    )
    page = write_report(folder).read_text()
    assert "+0.020 [−0.100, +0.140], the 95 % interval includes zero, no change shown" in page


def test_interrupted_run(tmp_path):
    folder = make_run(tmp_path, steps=13)
    (folder / "evaluation.json").unlink()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "rollout/rew')
    page = write_report(folder).read_text()
    assert "The run is not finished: 13 of 40 steps." in page
    assert "1 line(s) of metrics.jsonl could not be read" in page
    assert "There is no evaluation.json." in page
    assert "Greedy pass@1 rose from" in page and "without an interval" in page  # from metrics.jsonl


@pytest.mark.parametrize("missing", ["config.json", "metrics.jsonl", "rollouts.jsonl", "evaluation.json"])
def test_any_file_may_be_missing_or_broken(tmp_path, missing):
    folder = make_run(tmp_path, steps=2, planned=2, every=2)
    (folder / missing).unlink()
    assert "<h1>" in write_report(folder).read_text()
    (folder / missing).write_text('{"step": "never"')
    page = write_report(folder).read_text()
    assert "could not be read" in page


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_very_short_runs(tmp_path, steps):
    folder = make_run(tmp_path, steps=steps, planned=40, every=50)
    page = write_report(folder).read_text()
    assert "There is one evaluation, so there is no before and after." in page
    assert re.search(r"Greedy pass@1 \d\.\d{3} \[", page)


def test_without_evaluations(tmp_path):
    with MetricsWriter(tmp_path, 3, quiet=True) as writer:
        for step in range(3):
            writer.write(step, {"rollout/reward": 0.5, "update/loss": math.nan if step == 1 else 0.1})
    page = write_report(tmp_path).read_text()
    assert "There is no held-out evaluation" in page
    assert "The loss was not finite at 1 step(s): 1." in page
    assert "Not recorded." in page


def test_no_run_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run here"):
        write_report(tmp_path)
    with pytest.raises(FileNotFoundError, match="no run here"):
        write_report(tmp_path / "nowhere")


def test_smoothing_skips_gaps_and_keeps_constants():
    steps, means = smooth(range(10), [2.0, 2.0, math.nan, *[2.0] * 7], width=2.0)
    assert list(steps) == list(range(10))
    assert np.isnan(means[2])
    np.testing.assert_allclose(np.delete(means, 2), 2.0)
    assert len(smooth(range(100_000), np.ones(100_000), width=3000.0)[0]) <= 500


def test_terminal_table_fits_80_columns(full):
    folder, _ = full
    evaluation = json.loads((folder / "evaluation.json").read_text())
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(before_after_table(evaluation))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "step 40" in text and "right if well-formed" in text and "sampled ×4, T = 1.0" in text
    assert "change of greedy pass@1: the 95 % interval excludes zero" in text
    assert "…" not in text  # nothing was cut
    console.print(before_after_table([]))
    console.print(before_after_table(evaluation["evaluations"][:1]))


def test_numbers():
    assert number(-0.5, 2) == "−0.50"
    assert number(0.25, 2, sign=True) == "+0.25"
    assert number(-0.0001, 2, sign=True) == "0.00"
    assert number(None) == number(math.nan) == "–"
