"""Tables out of runs: planted effects are found, nothing missing is averaged away, equal runs give equal bytes."""

import csv
import dataclasses
import io
import re
import shutil

import matplotlib.image
import numpy as np
import pytest
from rich.console import Console
from synthetic_table import STEPS, fake_workdir, make_table, real, small, write_runs

from experiments import table as tables
from experiments.heatmap import SEQUENTIAL, heatmap, ink_on
from experiments.launch_file import write_panels
from experiments.runs import Runs
from experiments.summary import Comparison, summarise
from experiments.table import Claim, Measure, run_keys
from experiments.tabulate import main, tabulate, terminal
from rlvr_jax.diagnose.effects import effect, holm

FILES = ("curves.png", "effects.png", "heatmap.png", "page.html", "table.csv", "table.md", "verdicts.json")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_runs(make_table(), folder)
    write_panels(make_table(), folder, lambda text: None)
    write_runs(small(), folder)
    return folder


@pytest.fixture(scope="module")
def results(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    return tabulate(make_table(), root, folder), folder / "synthetic"


def test_planted_effects_are_judged(results):
    summary, _ = results
    words = {judged.claim.arm: judged.verdict.word for judged in summary.judged}
    assert words == {"Dr. GRPO": "holds", "DAPO": "is step size", "RLOO": "holds"}
    mean = summary.tests[Comparison("length of wrong", "long answers", "raw", "Dr. GRPO", "GRPO")].effect.mean
    assert mean == pytest.approx(-2 * 49.5 / STEPS, abs=0.1)


def test_numbers_are_those_of_the_statistics(results):
    summary, _ = results
    ps, family = [], 4 * 2 * 3 * 4
    for (measure, case, column, arm, against), tested in summary.tests.items():
        found = effect(summary.values[measure, case, column, arm], summary.values[measure, case, column, against])
        assert tested.effect == found
        ps.append(found.p)
    assert summary.family == len(ps) == family
    np.testing.assert_array_equal([tested.p for tested in summary.tests.values()], holm(ps))


def test_a_claim_against_another_arm_joins_the_family(root):
    claim = Claim("a", "b", "c", "RLOO", "pass@1", "+", against="DAPO", cases=("long answers",), columns=("adam",))
    summary = summarise(make_table(claims=(claim,)), root, range(10))
    assert summary.family == 4 * 2 * 3 * 4 + 1
    assert [row[:2] for row in summary.judged[0].rows] == [("long answers", "adam")]


def test_files(results):
    summary, folder = results
    assert sorted(path.name for path in folder.iterdir()) == sorted({*FILES} - {"heatmap.png"})
    page = (folder / "table.md").read_text()
    for words in (
        "- command: `python -m experiments.launch synthetic`", "- commit: 0123abc", "- date: 20", "- runs: 300",
        "- hardware: 1 × cpu, a processor, 2 cores", "- seeds: 10: 0, 1", "- programs compiled:", "- minutes:",
        "whole family of 96 tests", "about −40 % tokens", "**is step size**", "matched (short answers)",
        "## Bias of the baseline: holds", summary.table.question, summary.table.notes,
    ):  # fmt: skip
        assert words in page, words
    rows = list(csv.DictReader(io.StringIO((folder / "table.csv").read_text())))
    assert len(rows) == 2 * 3 * 5 * 4 and {row["seeds"] for row in rows} == {"10"}
    assert rows[0]["difference"] == "" and float(rows[4]["p_holm"]) <= 1
    html = (folder / "page.html").read_text()
    assert set(re.findall(r'(?:src|href)="([^"]*)"', html)) == {"effects.png", "curves.png"}
    assert "<script" not in html and "http" not in html and 'name="viewport"' in html
    for name in ("curves.png", "effects.png"):
        height, width = matplotlib.image.imread(folder / name).shape[:2]
        assert width > 800 and height > 300


def test_heat_maps(root, tmp_path):
    table = small(heatmaps=("pass@1", "length of wrong"))
    tabulate(table, root, tmp_path)
    folder = tmp_path / "small"
    picture = matplotlib.image.imread(folder / "heatmap.png")
    assert picture.shape[1] > 300 and "(heatmap.png)" in (folder / "table.md").read_text()
    assert 'src="heatmap.png"' in (folder / "page.html").read_text()
    tabulate(small(), root, tmp_path)  # a table that no longer asks for one
    assert not (folder / "heatmap.png").exists() and "heatmap" not in (folder / "page.html").read_text()


def test_a_heat_map_says_every_mean(results):
    table = dataclasses.replace(results[0].table, heatmaps=("pass@1",))
    never = {("pass@1", "long answers", "adam", "RLOO"): np.full(10, np.nan)}
    summary = dataclasses.replace(results[0], table=table, values={**results[0].values, **never})
    figure = heatmap(summary, {"raw": "raw steps"})
    panels = [axis for axis in figure.axes if axis.images]
    assert [axis.get_title("left") for axis in panels] == ["raw steps", "matched", "adam"]
    for axis, column in zip(panels, summary.table.columns):
        shown = [written.get_text() for written in axis.texts]
        cells = [("pass@1", case, column, arm) for arm in summary.table.arms for case in summary.table.cases]
        means = [summary.values[cell].mean() for cell in cells]
        assert shown == ["–" if np.isnan(mean) else f"{mean:.2f}" for mean in means]
    assert sum(bool(axis.patches) for axis in panels) == 1 and "hatched: none" in figure.texts[0].get_text()


def test_shades_are_ordered_without_colour():
    """Lightness falls all the way, and every number contrasts with its cell by 4.5 at least (WCAG 2, AA)."""
    linear = lambda c: np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    luminance = lambda colours: linear(np.asarray(colours)[..., :3]) @ np.asarray([0.2126, 0.7152, 0.0722])
    cells = SEQUENTIAL(np.linspace(0, 1, 101))
    light = luminance(cells)
    assert (np.diff(light) < 0).all()
    ink = luminance([matplotlib.colors.to_rgb(ink_on(cell)) for cell in cells])
    assert ((np.maximum(light, ink) + 0.05) / (np.minimum(light, ink) + 0.05)).min() >= 4.5


def test_claims_of_all_tables_in_one_page(root, tmp_path, results):
    summary, folder = results
    (tmp_path / "synthetic").mkdir()
    shutil.copy(folder / "verdicts.json", tmp_path / "synthetic")
    quiet = small(name="quiet", claims=())
    shutil.copytree(root / "small", tmp_path / "runs/quiet")
    tabulate(quiet, tmp_path / "runs", tmp_path)
    tabulate(small(), root, tmp_path)
    page = (tmp_path / "README.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| [")]
    assert [row[0].split("]")[0] for row in rows] == ["[quiet", "[small", *["[synthetic"] * 4]
    claim = summary.judged[1]
    assert ["[synthetic](synthetic/table.md)", claim.claim.text, claim.claim.published, "**is step size**"] in rows
    assert rows[-1] == ["[synthetic](synthetic/table.md)", "Bias of the baseline", "–", "**holds**"]
    tabulate(quiet, tmp_path / "runs", tmp_path)
    assert (tmp_path / "README.md").read_text() == page
    (tmp_path / "small/verdicts.json").write_text("{}")
    with pytest.raises(ValueError, match="small/verdicts.json: not what tabulate writes"):
        tabulate(quiet, tmp_path / "runs", tmp_path)


def test_a_second_tabulate_writes_the_same_bytes(root, tmp_path):
    table = small(heatmaps=("pass@1",))
    names = [*(f"small/{name}" for name in FILES), "README.md"]
    before = tabulate(table, root, tmp_path) and {name: (tmp_path / name).read_bytes() for name in names}
    tabulate(table, root, tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in names} == before
    assert not list((tmp_path / "small").glob("*.partial"))


def test_the_terminal_fits_80_columns(results):
    console = Console(width=80, file=io.StringIO())
    console.print(terminal(results[0]))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    for words in ("is step size", "published: 30 → 50 AIME", "−1.62", "panel bias: holds", "over 96 tests"):
        assert any(words in line for line in lines), words


def copy_without(root, folder, table, lost):
    shutil.copytree(root / table.name, folder / table.name)
    for key in lost:
        shutil.rmtree(Runs(table, folder).path(key))


def test_missing_runs_are_refused_or_shown(root, tmp_path, monkeypatch, capsys):
    table = small()
    lost = [key for key in run_keys(table) if key.arm == "Dr. GRPO" and key.seed == 5]
    copy_without(root, tmp_path, table, lost)
    with pytest.raises(ValueError, match="1 of 6 runs are missing, the first Dr. GRPO / seed 5; run `python -m exp"):
        tabulate(table, tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(tables, "TABLES", tmp_path)
    (tmp_path / "small.py").write_text("from synthetic_table import small\nTABLE = small()\n")
    arguments = ["small", "--root", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(arguments) == 2 and "--partial" in capsys.readouterr().err
    assert main([*arguments, "--partial"]) == 0
    assert "PARTIAL: 1 of 6 runs are missing" in " ".join(capsys.readouterr().out.split())
    page = (tmp_path / "out/small/table.md").read_text()
    assert "PARTIAL: 1 of 6 runs are missing (Dr. GRPO / seed 5)" in page and "| 2, 1 missing |" in page
    row = next(
        line for line in (tmp_path / "out/small/table.csv").read_text().splitlines() if "Dr. GRPO,pass@1" in line
    )
    assert row.split(",")[10:13] == ["2", "0", "1"] and row.endswith(",2,1")


def test_what_has_fewer_than_two_seeds_is_blank(root, tmp_path):
    table = small(arms={**small().arms, "RLOO": {"estimator.name": "rloo"}}, cases={"a": {}, "b": {"group_size": 4}})
    keep = [key for key in run_keys(table) if key.case == "a" or key.seed == 3]
    write_runs(table, tmp_path, keep)
    summary = tabulate(table, tmp_path, tmp_path / "out", partial=True)
    assert len(summary.missing) == 6
    page = (tmp_path / "out/small/table.md").read_text()
    assert summary.judged[0].verdict.word == "cannot be judged"
    blank = re.search(r"\*\*b\*\*.*?\| RLOO \| (.*?)\n", page, re.S)[1].split("|")
    assert "[" not in blank[0] and "2 missing" in blank[1]


def test_fewer_than_two_whole_seeds_are_refused(root, tmp_path):
    table = small()
    copy_without(root, tmp_path, table, [key for key in run_keys(table) if key.seed != 3])
    with pytest.raises(ValueError, match="fewer than 2 whole seeds"):
        tabulate(table, tmp_path, tmp_path / "out", partial=True)
    with pytest.raises(ValueError, match="6 of 6 runs are missing"):
        tabulate(table, tmp_path / "nowhere", tmp_path / "out")


def test_a_metric_that_no_run_wrote_is_refused(root):
    table = small(measures=(Measure("x", "rollout/pass_1"),), claims=())
    with pytest.raises(ValueError, match=r"measure 'x': no run wrote .*'rollout/pass_1'. Nearest: \['rollout/pass@1'"):
        summarise(table, root, table.seeds)
    with pytest.raises(ValueError, match="curves: no run wrote the metric 'rollout/lengths'"):
        summarise(small(curves=("rollout/lengths",)), root, table.seeds)


def test_a_run_of_another_config_is_refused(root):
    with pytest.raises(ValueError, match="run of another config .*group_size: 8 → 4"):
        summarise(small(common={"steps": STEPS, "group_size": 4}), root, (3, 5, 8))


def test_what_never_comes_about_is_counted(root):
    table = small(measures=(Measure("never", "rollout/pass@1", "steps_to", value=2.0),), claims=())
    summary = summarise(table, root, table.seeds)
    assert summary.counts("", "", "GRPO", "never") == (0, 3, 0) and summary.family == 0
    tested = summary.tests[Comparison("never", "", "", "Dr. GRPO", "GRPO")]
    assert tested.effect.missing == 3 and np.isnan(tested.p)


def test_runs_of_the_trainer(tmp_path):
    table = real()
    runs = Runs(table, tmp_path)
    for key in run_keys(table):
        fake_workdir(runs, key, reward=0.25 * key.seed + 0.125 * (key.arm != "GRPO"))
    summary = tabulate(table, tmp_path, tmp_path / "out")
    for measure in ("reward", "held-out"):
        tested = summary.tests[Comparison(measure, "", "", "Dr. GRPO", "GRPO")]
        assert tested.effect.mean == pytest.approx(0.125)
    assert "| 0.375 [" in (tmp_path / "out/small/table.md").read_text()
    longer = dataclasses.replace(table, common={"steps": 3})
    with pytest.raises(ValueError, match="4 of 4 runs are missing.*2 of 3 steps"):
        summarise(longer, tmp_path, table.seeds)
    with pytest.raises(ValueError, match="another config .*steps: 2 → 1"):
        summarise(dataclasses.replace(table, common={"steps": 1}), tmp_path, table.seeds)


def test_nothing_in_a_label_is_markup(root, tmp_path):
    table = small(title="<b>a</b> | b", claims=(dataclasses.replace(small().claims[0], text="<script>x | y"),))
    tabulate(table, root, tmp_path)
    assert "<script" not in (tmp_path / "small/page.html").read_text()
    assert "x \\| y" in (tmp_path / "small/table.md").read_text()
