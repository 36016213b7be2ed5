"""The split of the length curve: sums exactly, finds planted causes, says what it cannot know."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr_jax.diagnose.cells import Cells, from_metrics, gather
from rlvr_jax.diagnose.foreign import Chunk
from rlvr_jax.diagnose.lengths import PARTS, Window, curve, parts_of, split, windows
from rlvr_jax.diagnose.verdict import cautions, verdict

LIMIT = 1000.0


def chunk(step, prompt, right, length, finished=None):
    """Rows as a log hands them on."""
    step = np.asarray(step, np.int64)
    finished = np.ones(len(step)) if finished is None else finished
    rows = np.arange(len(step), dtype=np.uint64)
    return Chunk(
        step=step,
        prompt=np.asarray(prompt, np.uint64),
        group=np.asarray(prompt, np.uint64),
        reward=np.asarray(right, np.float64),
        correct=np.asarray(right, bool),
        length=np.asarray(length, np.float64),
        finished=np.asarray(finished, np.int8),
        content=rows * np.uint64(2654435761),
    )


def cells_of(*args):
    return gather([chunk(*args)])


rows = st.tuples(
    st.integers(0, 3), st.integers(0, 4), st.booleans(), st.integers(0, 100_000), st.sampled_from([0, 1])
)  # step, prompt, right, length, finished


@given(st.lists(rows, min_size=1, max_size=60), st.lists(rows, min_size=1, max_size=60))
@settings(max_examples=300, deadline=None)
def test_the_parts_sum_to_the_change(first, second):
    second = [(step + 4, *rest) for step, *rest in second]
    cells = cells_of(*zip(*first, *second))
    found = split(cells, Window(0, 3), Window(4, 7), draws=0)
    mean = lambda chosen: np.mean([row[3] for row in chosen])
    scale = max(1.0, mean(first), mean(second))
    assert found.change.value == pytest.approx(mean(second) - mean(first), abs=1e-9 * scale)
    assert sum(part.value for part in found.parts.values()) == pytest.approx(found.change.value, abs=1e-9 * scale)
    # and of every bin of the curve
    drawn = curve(cells, Window(0, 3))
    for means, parts in zip(drawn.means, drawn.split_of):
        assert parts.sum() == pytest.approx(means.length - found.means[0].length, abs=1e-9 * scale)


def test_the_split_by_hand():
    # before: right 10, 20; wrong 30, 100 (cut).  after: right 20, 40, 60; wrong 100 (cut)
    # share right ½ → ¾; right 15 → 40, nothing cut; wrong 65 → 100: ended 30 → (none: takes 30), cut share ½ → 1
    # accuracy: ¼·((15 + 40)/2 − (65 + 100)/2) = ¼·(27.5 − 82.5) = −13.75
    # right: mean share 5/8 · (40 − 15) = 15.625
    # wrong: 3/8 · ( (1 − ¾)·0  +  ½·(100 − 30) ) = 3/8 · 35 = 13.125
    # change: (20 + 40 + 60 + 100)/4 − (10 + 20 + 30 + 100)/4 = 55 − 40 = 15
    cells = cells_of(
        [0] * 4 + [1] * 4,
        [0, 1, 0, 1] * 2,
        [1, 1, 0, 0, 1, 1, 1, 0],
        [10, 20, 30, 100, 20, 40, 60, 100],
        [1, 1, 1, 0, 1, 1, 1, 0],
    )
    found = split(cells, draws=0)
    assert found.change.value == 15
    assert [found.parts[name].value for name in PARTS] == pytest.approx([-13.75, 15.625, 0, 0, 13.125])
    assert found.in_wrong.value == pytest.approx(13.125)
    assert found.truncation.value == pytest.approx(13.125)


def simulated(share, right, wrong, cut=(0.0, 0.0), seed=0, prompts=60, steps=10, group=8):
    """Two windows of `steps` steps; pairs are (before, after): share right, mean lengths, share cut of the wrong."""
    rng = np.random.default_rng(seed)
    columns = []
    for window in (0, 1):
        shape = (steps, prompts, group)
        step, prompt, _ = np.indices(shape)
        good = rng.random(shape) < share[window]
        length = np.where(good, rng.poisson(right[window], shape), rng.poisson(wrong[window], shape))
        ended = good | (rng.random(shape) >= cut[window])
        length = np.where(ended, length, LIMIT)
        columns.append((step + window * steps, prompt, good, length, ended))
    return cells_of(*(np.concatenate([c.ravel() for c in pair]) for pair in zip(*columns)))


def dominated_by(found, name, tolerance):
    for part, estimate in found.parts.items():
        if part == name:
            assert estimate.value == pytest.approx(found.change.value, abs=tolerance)
            assert estimate.beyond
        else:
            assert abs(estimate.value) < tolerance, part


def test_only_accuracy_changed():
    # 100 and 300 tokens throughout; 0.3 → 0.7 right: 0.4·(100 − 300) = −80
    found = split(simulated((0.3, 0.7), (100, 100), (300, 300)))
    dominated_by(found, "accuracy", 1.0)
    assert found.change.value == pytest.approx(-80, abs=4)


def test_only_wrong_responses_lengthened():
    # 60 % wrong, 200 → 400: +120, all of it in wrong ones
    found = split(simulated((0.4, 0.4), (100, 100), (200, 400)))
    dominated_by(found, "within_wrong", 8.0)
    assert found.in_wrong.value / found.change.value == pytest.approx(1, abs=0.05)
    text = verdict(found, "tokens", True)
    assert "grew" in text and "Wrong responses account for" in text and "proves neither" in text


def test_only_truncation():
    # of 60 % wrong, cut 5 % → 25 %: 0.6·0.2·(1000 − 200) = 96
    found = split(simulated((0.4, 0.4), (100, 100), (200, 200), (0.05, 0.25)))
    dominated_by(found, "cut_wrong", 8.0)
    assert found.truncation.value == pytest.approx(96, abs=10)
    assert "Being cut by the limit" in verdict(found, "tokens", True)


def test_nothing_changed_is_said():
    found = split(simulated((0.5, 0.5), (100, 100), (120, 120)))
    assert not found.change.beyond
    assert verdict(found, "tokens", True).startswith("No change of the mean length is shown")


def test_intervals_cover_and_cluster():
    # Prompts differ much and completions of a prompt little: what is resampled must be the prompt.
    covered, widths = 0, []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        level = rng.normal(500, 100, (2, 40, 1))  # another set of prompts in each window
        length = np.round(level + rng.normal(0, 5, (2, 40, 16)))
        step, prompt, _ = np.indices(length.shape)
        cells = cells_of(step.ravel(), (step * 100 + prompt).ravel(), np.zeros(length.size, bool), length.ravel())
        found = split(cells, draws=400, seed=seed)
        covered += found.change.low <= 0 <= found.change.high
        widths.append(found.change.high - found.change.low)
    assert 51 <= covered <= 60  # 95 % of 60 is 57
    assert np.mean(widths) == pytest.approx(2 * 1.96 * 100 * np.sqrt(2 / 40), rel=0.15)  # not √(16) narrower


def test_the_same_prompts_in_both_windows_cancel():
    rng = np.random.default_rng(0)
    level = rng.normal(500, 100, (1, 50, 1)) + np.asarray([0, 10.0])[:, None, None]
    length = np.round(level + rng.normal(0, 5, (2, 50, 8)))
    step, prompt, _ = np.indices(length.shape)
    cells = cells_of(step.ravel(), prompt.ravel(), np.zeros(length.size, bool), length.ravel())
    found = split(cells)
    assert found.change.beyond and found.change.high - found.change.low < 4
    assert found.shared == 1.0


def test_a_kind_that_is_absent_is_a_change_of_shares():
    # before: all wrong at 50; after: all right at 80. Neither kind grew.
    cells = cells_of([0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 1, 1], [50, 50, 80, 80])
    found = split(cells)
    assert found.change.value == 30 and found.parts["accuracy"].value == 30
    said = cautions(found, cells)
    assert any("no right response" in note for note in said) and any("no wrong response" in note for note in said)
    assert any("2 prompts in all" in note for note in said)


def test_groups_of_one_are_said():
    cells = cells_of(np.repeat([0, 1], 30), np.arange(60), np.arange(60) % 2, np.arange(60))
    assert any("one completion" in note for note in cautions(split(cells), cells))
    pairs = cells_of(np.repeat([0, 1], 30), np.arange(60) // 2, np.arange(60) % 2, np.arange(60))
    assert not any("one completion" in note for note in cautions(split(pairs), pairs))


def test_windows():
    cells = cells_of(np.arange(20), np.arange(20), np.zeros(20), np.arange(20))
    assert windows(cells) == (Window(0, 3), Window(16, 19))
    assert windows(cells, Window(0, 0))[1] == Window(16, 19)
    two = cells_of([3, 9], [0, 0], [1, 0], [5, 6])
    assert windows(two) == (Window(3, 3), Window(9, 9))


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (Window(5, 2), None, "before=5:2"),
        (Window(50, 60), None, "no step of the log, which has 0…19"),
        (Window(0, 17), Window(15, 19), "must begin after"),
        (Window(15, 19), Window(0, 3), "must begin after"),
    ],
)
def test_windows_refused(before, after, says):
    cells = cells_of(np.arange(20), np.arange(20), np.zeros(20), np.arange(20))
    with pytest.raises(ValueError, match=says):
        split(cells, before, after)


def test_one_step_and_bad_options_are_refused():
    one = cells_of([4, 4], [0, 1], [0, 1], [3, 4])
    with pytest.raises(ValueError, match=r"one step \(4\)"):
        split(one)
    two = cells_of([3, 9], [0, 0], [1, 0], [5, 6])
    with pytest.raises(ValueError, match="confidence = 1"):
        split(two, confidence=1.0)
    with pytest.raises(ValueError, match="draws = -1"):
        split(two, draws=-1)


def test_one_prompt_has_no_interval():
    found = split(cells_of([0, 0, 1, 1], [7] * 4, [0, 1, 0, 1], [5, 6, 7, 8]))
    assert np.isnan(found.change.low) and found.change.value == 2
    assert "there is no interval" in verdict(found, "tokens", True)


def test_merging_prompts_bounds_memory_and_keeps_the_split():
    rng = np.random.default_rng(1)
    n = 20_000
    full = chunk(rng.integers(0, 5, n), rng.integers(0, 2**63, n), rng.random(n) < 0.5, rng.integers(1, 100, n))
    bounded = Cells(most_cells=2000)
    for start in range(0, n, 1000):
        bounded.add(Chunk(*(column[start : start + 1000] for column in full)))
    bounded.finish()
    assert bounded.merged and len(bounded.steps) <= 2000
    exact, merged = split(gather([full])), split(bounded)
    assert merged.change.value == pytest.approx(exact.change.value, abs=1e-9)
    assert merged.change.high - merged.change.low == pytest.approx(exact.change.high - exact.change.low, rel=0.25)


def test_more_steps_than_fit_are_refused():
    n = 3000
    cells = Cells(most_cells=500)
    with pytest.raises(ValueError, match="more than 1 steps"):
        cells.add(chunk(np.arange(n), np.arange(n, dtype=np.uint64) << np.uint64(50), np.zeros(n), np.ones(n)))
        cells.finish()


def test_a_log_that_holds_everything_twice_is_said():
    once = chunk([0, 0, 0, 1, 1, 1], [0, 1, 2] * 2, [1, 0, 0] * 2, [1, 2, 3, 4, 5, 6])
    again = gather([once, once])
    found = split(again)
    assert found.change.value == split(gather([once])).change.value
    assert any("twice" in note for note in cautions(found, again))
    assert not gather([once]).doubled


def write_run(folder, outcomes, lengths, ended, limit):
    """A run's metrics.jsonl as the trainer writes it: means in float32."""
    mean = lambda values, mask: float(np.float32(values[mask].mean())) if mask.any() else None
    config = {"prompts_per_step": outcomes.shape[1], "group_size": 1, "sampling": {"completion_length": limit}}
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / "metrics.jsonl").open("w") as file:
        for step, (o, n, e) in enumerate(zip(outcomes, lengths, ended)):
            every, right = np.ones(len(o), bool), o > 0.5
            line = {
                "step": step,
                "rollout/length": mean(n, every),
                "rollout/length_correct": mean(n, right),
                "rollout/length_wrong": mean(n, ~right),
                "rollout/pass@1": mean(o, every),
                "rollout/truncated": mean(~e * 1.0, every),
                "rollout/truncated_wrong": mean(~e * 1.0, ~right),
            }
            file.write(json.dumps(line) + "\n")


def test_a_run_of_this_project_is_split_from_its_means(tmp_path):
    rng = np.random.default_rng(3)
    outcomes = (rng.random((12, 64)) < np.linspace(0.1, 0.9, 12)[:, None]).astype(float)
    lengths = rng.integers(1, 90, (12, 64)).astype(float)
    ended = rng.random((12, 64)) < 0.8
    lengths[~ended] = 100
    write_run(tmp_path, outcomes, lengths, ended, 100)
    step, place = np.indices(outcomes.shape)
    args = (step.ravel(), place.ravel(), outcomes.ravel() > 0.5, lengths.ravel(), ended.ravel())
    rows, means = split(cells_of(*args)), split(from_metrics(tmp_path))
    for name in PARTS:
        assert means.parts[name].value == pytest.approx(rows.parts[name].value, abs=1e-3)
    assert means.means[0].rows == rows.means[0].rows
    assert any("metrics.jsonl" in note for note in cautions(means, from_metrics(tmp_path)))


def test_graded_outcomes_cannot_be_split_from_means(tmp_path):
    outcomes = np.tile([0.2, 0.9, 0.6, 0.0], (4, 1))
    write_run(tmp_path, outcomes, np.tile([10.0, 50, 20, 5], (4, 1)), np.ones((4, 4), bool), 100)
    with pytest.raises(ValueError, match="not 0 or 1"):
        from_metrics(tmp_path)


def test_parts_of_an_empty_window_are_not_a_number():
    empty, full = np.zeros(4), np.ones(4)
    assert np.isnan(parts_of((empty, empty), (full, full))).any()
