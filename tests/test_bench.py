"""The comparison with the peers, `bench/peers.py`: its protocol and arithmetic, on a tiny decoder, without peers."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).parent / "bench"
sys.path.append(str(BENCH))

import growth  # noqa: E402
import peers  # noqa: E402
from roofline import phases, roofline  # noqa: E402
from systems import Failed, Running, System, find_systems  # noqa: E402
from work import JOBS, SMOLLM2, Geometry, Job, completion_lengths, update_rows, useful_tokens  # noqa: E402

TINY = Geometry(vocabulary=4096, width=8, layers=1, heads=2, kv_heads=1, head_size=4, hidden=8)
VARIED = Job(kind="sample", prompts=2, group=3, prompt_length=4, length=8, mean=3.0, shared=True)
STUB = """
import json, sys
def answer(**x):
    print(json.dumps(x), flush=True)
answer(version="stub 1")
for line in sys.stdin:
    question = json.loads(line)
    if "job" in question:
        answer(seconds=0.5)
    elif question["seed"] == {fails}:
        {how}
    else:
        answer(seconds=2.0 + question["seed"], tokens=12, peak_gib=0.5, call_gib=0.25)
"""


def stub(folder, name="tunix", fails=99, how="pass") -> System:
    script = folder / f"{name}.py"
    script.write_text(STUB.format(fails=fails, how=how))
    return System(name, name, script, Path(sys.executable))


def quiet(*_):
    pass


def test_lengths_are_drawn_once_and_counted():
    lengths = completion_lengths(JOBS["realistic"])
    np.testing.assert_array_equal(lengths, completion_lengths(JOBS["realistic"]))
    assert lengths.shape == (16, 8)
    assert lengths.min() >= 1 and lengths.max() <= 256
    assert 40 < lengths.mean() < 56 and lengths.max() > 4 * np.median(lengths)  # mean 48, and a long tail
    assert useful_tokens(JOBS["realistic"]) == lengths.sum()
    assert useful_tokens(JOBS["sample16"]) == 16 * 64
    assert useful_tokens(JOBS["update_demo"]) == 64 * (51 + 12)
    assert (completion_lengths(JOBS["update"]) == 128).all()


def test_rows_of_a_shared_prompt_share_it():
    prompt = update_rows(JOBS["update_shared"], SMOLLM2)["prompt"]
    assert prompt.shape == (8, 64) and (prompt == prompt[0]).all()
    prompt = update_rows(JOBS["update"], SMOLLM2)["prompt"]
    assert len({tuple(row) for row in prompt.tolist()}) == 8


def test_ratios_are_taken_round_by_round():
    # 6/2 = 3, 1/2 = 0.5, 8/4 = 2: the median is 2, while the ratio of the medians would be 6/2 = 3
    assert peers.ratios([6, 1, 8], [2, 2, 4]) == {"median": 2.0, "min": 0.5, "max": 3.0}
    with pytest.raises(ValueError):
        peers.ratios([1, 2], [1])


def test_summary_by_hand():
    job = Job(kind="sample", prompts=2, prompt_length=3, length=6)
    system = lambda seconds, tokens, peak: {
        "version": "1", "first_seconds": 9.0, "seconds": seconds, "tokens": tokens, "peak_gib": peak, "call_gib": 0.1,
    }  # fmt: skip
    measured = {
        "sample16": {
            "systems": {
                "ours": system([1.0, 2.0, 1.0], [12, 12, 6], 2.0),  # 12, 6, 6 tokens/s
                "tunix": system([4.0, 4.0, 2.0], [12, 12, 12], 8.0),  # 3, 3, 6 tokens/s: ours 4, 2 and 1 times
                "trl": {"error": "no memory"},
            },
            "ceilings": [{"matmul_gflops": g, "read_gbs": 2.0, "small_gbs": 1.0} for g in (1.0, 3.0, 2.0)],
        }
    }
    ours, tunix, trl = peers.summarise(measured, {"sample16": job}, TINY)
    assert ours["tokens_per_second"] == 6 and ours["compile_seconds"] == 8 and "speed_ratio" not in ours
    assert ours["ceilings"]["matmul_gflops"] == 2
    assert tunix["speed_ratio"] == {"median": 2.0, "min": 1.0, "max": 4.0}
    assert tunix["memory_ratio"] == 0.25 and tunix["speed_goal"] == 1.6
    assert "≥ 1.6 ✓" in peers.cells(tunix) and "failed: no memory" in peers.cells(trl)
    assert all(len(peers.cells(row)) == len(peers.COLUMNS) for row in (ours, tunix, trl))
    assert len(peers.roof_cells(ours)) == len(peers.ROOF_COLUMNS)


def test_roofline_by_hand():
    # one layer: 8·4·(2·2 + 2·1) = 192 of attention, 3·8·8 = 192 of the feed-forward part; head 4096·8 = 32,768
    assert (TINY.block_weights, TINY.head_weights) == (384, 32_768)
    prefill, decode = phases(Job(kind="sample", prompts=1, prompt_length=2, length=3), TINY)
    # 2 tokens through the layers, the head once; 2²/2 pairs at 4·1·2·4 = 32 operations each
    assert prefill.operations == 2 * 384 * 2 + 2 * 32_768 + 32 * 2
    # 2 tokens are read: 2 and 3 pairs with prompt and own, halves counted: 2·2 + (2·3)/2 = 7; 2·1·1·4·4 = 32 bytes each
    assert decode.operations == 2 * 33_152 * 2 + 32 * 7
    assert decode.bytes == 2 * 33_152 * 4 + 32 * 7
    # 3 rows share a prompt: it is computed once, and once more for each row without sharing
    shared, _ = phases(Job(kind="update", prompts=1, group=3, prompt_length=2, length=1, shared=True), TINY)
    apart, adamw = phases(Job(kind="update", prompts=3, prompt_length=2, length=1), TINY)
    assert apart.operations - shared.operations == 3 * 2 * (2 * 384 * 2 + 32 * 2)
    assert adamw.bytes == 7 * 4 * 33_152
    # in GFLOP/s and GB/s: 1e-9 is one a second
    found = roofline(Job(kind="update", prompts=3, prompt_length=2, length=1), TINY, 1e-9, 1e9, 1e9)
    assert found["floor_seconds"] == pytest.approx(apart.operations + adamw.operations)
    assert found["bound_by"] == {"forward, backward": "operations", "AdamW": "operations"}


def test_a_missing_peer_is_said(tmp_path):
    names = {"RLVR_TUNIX_PYTHON": str(tmp_path / "nowhere"), "RLVR_TRL_PYTHON": sys.executable}
    ours, tunix, trl = find_systems(("ours", "tunix", "trl"), names)
    assert not ours.missing and not trl.missing and trl.python == Path(sys.executable)
    assert "Tunix" in tunix.missing and "nowhere" in tunix.missing and "RLVR_TUNIX_PYTHON" in tunix.missing


def test_systems_take_turns(tmp_path):
    turns = []
    systems = [stub(tmp_path, "ours"), stub(tmp_path, "tunix")]
    say = lambda job, round_, what: turns.append((round_, what))
    measured = peers.measure({"sample16": VARIED}, systems, 2, TINY, say, ceilings=None)
    assert [what for round_, what in turns if round_ and what] == ["ours", "tunix", "ours", "tunix"]
    found = measured["sample16"]["systems"]["ours"]
    assert found["first_seconds"] == 2.0 and found["seconds"] == [3.0, 4.0] and found["peak_gib"] == 0.5


@pytest.mark.parametrize(
    ("how", "said"),
    [("sys.exit('out of luck')", "out of luck"), ("answer(error='too large')", "too large")],
)
def test_a_system_that_fails_is_left_out_of_the_job_and_the_others_go_on(tmp_path, how, said):
    systems = [stub(tmp_path, "ours"), stub(tmp_path, "tunix", fails=2, how=how)]
    measured = peers.measure({"sample16": VARIED}, systems, 3, TINY, quiet, ceilings=None)
    assert said in measured["sample16"]["systems"]["tunix"]["error"]
    assert len(measured["sample16"]["systems"]["ours"]["seconds"]) == 3


def test_a_process_that_died_between_turns_is_a_failure(tmp_path):
    process = Running(stub(tmp_path))
    process.process.kill()
    process.process.wait()
    with pytest.raises(Failed, match="memory runs out"):
        process.call(1)
    process.close()


def test_ours_does_its_jobs(monkeypatch):
    """The very process that is measured, on a tiny decoder: lengths are kept, tokens counted, errors come back."""
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # quicker to compile
    (ours,) = find_systems(("ours",))
    process = Running(ours)
    try:
        process.set_up(VARIED, "tiny", TINY)
        reply = process.call(1)
        assert reply["tokens"] == useful_tokens(VARIED)  # of 4,096 tokens none of 20 ends a row by chance, at this seed
        assert reply["seconds"] > 0 and reply["peak_gib"] >= reply["call_gib"] > 0
        update = Job(kind="update", prompts=2, group=2, prompt_length=3, length=4, shared=True)
        process.set_up(update, "tiny", TINY)
        assert process.call(1)["tokens"] == useful_tokens(update) == 4 * 7
        for _ in range(2):  # after the first it goes on
            with pytest.raises(Failed):
                process.set_up(Job(kind="sample", prompts=2, group=0, prompt_length=4, length=8), "tiny", TINY)
    finally:
        process.close()


def test_growth_by_hand():
    found = [
        {"system": "ours", "kind": "sample", "seconds": 2.0},
        {"system": "ours", "kind": "sample", "group": 32, "seconds": 8.0},
        {"system": "ours", "kind": "sample", "group": 2, "seconds": 1.0},
        {"system": "ours", "kind": "sample", "length": 128, "seconds": 5.0},
        {"system": "ours", "kind": "update", "group": 16, "seconds": 7.0},
        {"system": "ours", "kind": "sample", "group": 16},  # failed
    ]
    pairs = growth.series(found, "ours", "sample", "group")
    assert pairs == [(2, 1.0), (8, 2.0), (32, 8.0)]
    assert growth.exponent(pairs) == pytest.approx(1.0)  # 4 times the seconds for 4 times the group
    assert math.isnan(growth.exponent(pairs[:1]))
    assert len(growth.wanted("ours")) == 1 + 4 * 3 and len(growth.wanted("tunix")) == 1 + 4
    assert growth.lines(found)[0][-2:] == ["8.0 for 16 ×", "1.00"]
