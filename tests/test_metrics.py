"""Metric files survive interruption without duplicates, stay valid JSON; the console table stays aligned."""

import io
import json
import math
import sys

import numpy as np
import pytest
from rich.console import Console

from rlvr_jax.metrics import COLUMNS, MetricsWriter, progress, read_jsonl


def lines(path):
    """Every line parsed by a strict reader: NaN and Infinity are not JSON."""

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text("utf-8").split("\n") if line]


def steps(path):
    return [line["step"] for line in lines(path)]


def a_step(step):
    return {
        "rollout/reward": 0.4 + 0.01 * step,
        "rollout/pass@1": 0.4,
        "rollout/length": 6.5,
        "rollout/length_correct": 6.0,
        "rollout/length_wrong": 8.25,
        "rollout/truncated": 0.1,
        "rollout/zero_variance_groups": 0.25,
        "update/loss": -0.0123,
        "update/gradient_norm": 3.14159,
        "update/entropy": 1.25,
        "time/step_s": 7.5,
    }


def run(folder, steps, console, **options):
    with MetricsWriter(folder, max(steps) + 1, console=console, **options) as writer:
        for step in steps:
            writer.write(step, a_step(step))


def test_writes_of_one_step_become_one_object(tmp_path):
    with MetricsWriter(tmp_path, 2, quiet=True) as writer:
        writer.write(0, {"rollout/reward": 0.5})
        writer.write(0, {"eval/greedy_pass@1": 0.25, "rollout/reward": 0.75})
        assert lines(tmp_path / "metrics.jsonl") == []  # still open
        writer.write(1, {"rollout/reward": np.float32(1)})
        assert steps(tmp_path / "metrics.jsonl") == [0]
        writer.close_step()
        assert steps(tmp_path / "metrics.jsonl") == [0, 1]
    assert lines(tmp_path / "metrics.jsonl") == [
        {"step": 0, "rollout/reward": 0.75, "eval/greedy_pass@1": 0.25},
        {"step": 1, "rollout/reward": 1.0},
    ]


def test_a_closed_step_cannot_be_written_again(tmp_path):
    with MetricsWriter(tmp_path, 9, start_step=3, quiet=True) as writer:
        for closed in (2, 0):
            with pytest.raises(ValueError, match=f"step {closed} is closed"):
                writer.write(closed, {"a": 1.0})
        writer.write(5, {"a": 1.0})
        with pytest.raises(ValueError, match="step 4 is closed"):
            writer.write(4, {"a": 1.0})
        writer.close_step()
        with pytest.raises(ValueError, match="the next that can be written is 6"):
            writer.write_rollouts(5, [{}])


def test_nothing_is_written_outside_the_context(tmp_path):
    with pytest.raises(RuntimeError, match="context manager"):
        MetricsWriter(tmp_path, 1).write(0, {"a": 1.0})


def test_not_finite_becomes_null(tmp_path):
    with MetricsWriter(tmp_path, 1, quiet=True) as writer:
        writer.write(0, {"a": math.nan, "b": math.inf, "c": np.float32(-np.inf), "d": 2.0})
        writer.write_rollouts(
            0,
            [
                {
                    "advantage": math.nan,
                    "nested": [np.float64("inf"), {"x": np.int32(3)}],
                    "finished": np.bool_(True),
                }
            ],
        )
    assert lines(tmp_path / "metrics.jsonl") == [{"step": 0, "a": None, "b": None, "c": None, "d": 2.0}]
    assert lines(tmp_path / "rollouts.jsonl") == [
        {"step": 0, "advantage": None, "nested": [None, {"x": 3}], "finished": True}
    ]


def test_any_text_survives_the_round_trip(tmp_path):
    text = 'line\nend, \u2028 separator, \x85, \x00, "quoted", \\, ≠, half a pair \ud800, 𝕏'
    with MetricsWriter(tmp_path, 1, quiet=True) as writer:
        writer.write_rollouts(0, [{"completion": text}, {"completion": "next"}])
    found, torn = read_jsonl(tmp_path / "rollouts.jsonl")
    assert torn == 0
    assert [rollout["completion"] for rollout in found] == [text, "next"]


def test_resuming_leaves_no_step_twice(tmp_path):
    console = Console(file=io.StringIO())
    with MetricsWriter(tmp_path, 8, console=console) as writer:
        for step in range(5):
            writer.write_rollouts(step, [{"group": 0}, {"group": 1}])
            writer.write(step, a_step(step))
    for name in ("metrics.jsonl", "rollouts.jsonl"):
        with (tmp_path / name).open("a") as file:
            file.write('{"step": 5, "rollout/rew')  # the process died here
    out = io.StringIO()
    with MetricsWriter(tmp_path, 8, start_step=3, console=Console(file=out)) as writer:
        assert writer.torn_lines == 2
        assert steps(tmp_path / "metrics.jsonl") == [0, 1, 2]
        assert steps(tmp_path / "rollouts.jsonl") == [0, 0, 1, 1, 2, 2]
        for step in range(3, 8):
            writer.write_rollouts(step, [{"group": 0}])
            writer.write(step, a_step(step))
    assert "2 unreadable line(s)" in out.getvalue()
    assert steps(tmp_path / "metrics.jsonl") == list(range(8))
    assert steps(tmp_path / "rollouts.jsonl") == [0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 7]
    assert lines(tmp_path / "metrics.jsonl")[2] == {"step": 2, **a_step(2)}
    assert not list(tmp_path.glob("*.tmp"))


def test_a_whole_last_line_without_its_end_is_kept(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "a": 1.0}\n{"step": 1, "a": 2.0}')
    with MetricsWriter(tmp_path, 3, start_step=2, quiet=True) as writer:
        writer.write(2, {"a": 3.0})
    assert steps(tmp_path / "metrics.jsonl") == [0, 1, 2]


def test_a_new_run_starts_empty(tmp_path):
    run(tmp_path, range(3), None, quiet=True)
    run(tmp_path, range(2), None, quiet=True)
    assert steps(tmp_path / "metrics.jsonl") == [0, 1]


def test_an_exception_still_writes_the_open_step(tmp_path):
    with pytest.raises(KeyboardInterrupt), MetricsWriter(tmp_path, 5, quiet=True) as writer:
        writer.write(0, {"a": 1.0})
        raise KeyboardInterrupt
    assert steps(tmp_path / "metrics.jsonl") == [0]


def test_a_disabled_writer_touches_nothing(tmp_path):
    with MetricsWriter(tmp_path / "run", 2, enabled=False, tensorboard=True) as writer:
        writer.write(0, {"a": 1.0})
        writer.write_rollouts(0, [{}])
        writer.close_step()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("width", [80, 120])
def test_plain_table(tmp_path, width):
    out = io.StringIO()
    run(tmp_path, range(25), Console(file=out, width=width))
    shown = out.getvalue().splitlines()
    assert "\x1b" not in out.getvalue()
    assert len(shown) == 25 + 2 * 2  # a header of two lines every twenty
    assert max(map(len, shown)) <= width
    assert len({len(line) for line in shown[2:22]}) == 1  # aligned
    names = shown[1].split()
    assert names[:4] == ["step", "reward", "pass@1", "length"] and len(names) == len(COLUMNS)
    cells = ["0", "0.400", "0.400", "6.5", "6.0", "8.2", "10%", "25%", "-0.012", "3.14", "1.25", "7.5"]
    assert shown[2].split() == cells
    ends = [shown[1].index(name) + len(name) for name in ("reward", "loss", "|g|")]
    assert [shown[2].index(cell) + len(cell) for cell in ("0.400", "-0.012", "3.14")] == ends


def test_narrow_table_drops_whole_columns(tmp_path):
    out = io.StringIO()
    run(tmp_path, range(2), Console(file=out, width=50))
    assert max(map(len, out.getvalue().splitlines())) <= 50
    assert out.getvalue().splitlines()[1].split()[:3] == ["step", "reward", "pass@1"]


def test_what_was_not_measured_is_a_dash_and_a_broken_loss_is_not(tmp_path):
    out = io.StringIO()
    with MetricsWriter(tmp_path, 1, console=Console(file=out, width=80)) as writer:
        writer.write(
            0,
            {
                "rollout/reward": 1.0,
                "rollout/length_wrong": math.nan,
                "update/loss": math.nan,
                "update/gradient_norm": 123456.0,
            },
        )
    cells = out.getvalue().splitlines()[2].split()
    assert cells == ["0", "1.000", "–", "–", "–", "–", "–", "–", "nan", "1e5", "–", "–"]


def test_held_out_results_follow_their_step_at_once(tmp_path):
    out = io.StringIO()
    with MetricsWriter(tmp_path, 2, console=Console(file=out, width=80)) as writer:
        writer.write(0, {"eval/greedy_pass@1": 0.5, "eval/greedy_length": 6.0})
        assert out.getvalue().split() == ["0", "evaluated", "greedy", "pass@1", "0.500"]
        writer.write(0, a_step(0))
        writer.write(0, {"eval/sampled_pass@1": 0.25})
        assert out.getvalue().splitlines()[-1].split() == ["0", "evaluated", "sampled", "pass@1", "0.250"]
    assert len(out.getvalue().splitlines()) == 5  # the step's line is shown once


def test_terminal_has_a_bar_and_the_same_table(tmp_path):
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True)
    with MetricsWriter(tmp_path, 3, console=console) as writer:
        for step in range(3):
            writer.write(step, a_step(step))
            assert list(progress(2, "evaluating")) == [0, 1]  # inside the open bar
    assert "\x1b" in out.getvalue()
    assert "training" in out.getvalue() and "3/3" in out.getvalue() and "reward 0.420" in out.getvalue()
    assert "evaluating" in out.getvalue()


def test_quiet_is_quiet(tmp_path, capsys):
    with MetricsWriter(tmp_path, 1, quiet=True) as writer:
        writer.write(0, a_step(0))
        writer.say("nothing")
        assert list(progress("ab", "evaluating")) == ["a", "b"]
    assert list(progress("ab", "evaluating", quiet=True)) == ["a", "b"]
    assert capsys.readouterr().out == ""


def test_progress_without_a_terminal(monkeypatch, capsys):
    clock = iter([0.0, *range(5, 100, 5)])
    monkeypatch.setattr("rlvr_jax.metrics.console.time.monotonic", lambda: next(clock))
    assert list(progress(iter("abc"), "loading", total=3)) == ["a", "b", "c"]
    assert capsys.readouterr().out.splitlines() == ["loading: 2/3, 10 s", "loading: 3/3, 25 s"]


def test_progress_can_be_left_early():
    for item in progress([1, 2, 3], "loading"):
        if item == 2:
            break
    assert item == 2


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboardX")
    run(tmp_path, range(2), None, quiet=True, tensorboard=True)
    assert list((tmp_path / "tensorboard").glob("events*"))


def test_tensorboard_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError, match=r"pip install 'rlvr-jax\[tensorboard\]'"):
        MetricsWriter(tmp_path, 1, tensorboard=True)
