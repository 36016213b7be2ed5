"""Every format that is read, from files written here after its documentation; hostile logs; bounded memory."""

import gzip
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr_jax.diagnose.cells import gather, of_log
from rlvr_jax.diagnose.columns import PLAIN, resolve
from rlvr_jax.diagnose.foreign import FINISHED, TRUNCATED, UNKNOWN, Log
from rlvr_jax.diagnose.lengths import split
from rlvr_jax.diagnose.verdict import cautions


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(*paths, **options):
    """All rows as one chunk, and the log."""
    log = Log(list(paths), **options)
    chunks = list(log.chunks())
    return type(chunks[0])(*(np.concatenate(columns) for columns in zip(*chunks))), log


def plain(step, prompt, reward, length, **more):
    return {"step": step, "prompt": prompt, "reward": reward, "length": length, **more}


def test_plain_lines(tmp_path):
    rows = [plain(0, "a", 1.0, 12, finished=True), plain(0, "a", 0, 40, finished=False), plain(3, "b", True, 7)]
    found, log = read(write(tmp_path / "log.jsonl", rows))
    assert found.step.tolist() == [0, 0, 3] and found.length.tolist() == [12, 40, 7]
    assert found.correct.tolist() == [True, False, True]
    assert found.finished.tolist() == [FINISHED, TRUNCATED, UNKNOWN]
    assert found.prompt[0] == found.prompt[1] != found.prompt[2]
    assert (log.formats, log.unit, log.rows, log.rewards) == (["plain"], "tokens", 3, ["reward"])
    assert log.notes() == []


def test_groups_without_prompts_are_of_their_step(tmp_path):
    rows = [{"step": step, "group": group, "reward": 1, "tokens": [5] * 4} for step in (0, 1) for group in (0, 0, 1)]
    found, _ = read(write(tmp_path / "log.jsonl", rows))
    assert len(set(found.prompt.tolist())) == 4 and found.length.tolist() == [4] * 6
    assert found.group[0] == found.group[1] != found.group[2]
    rows = [{"step": step, "group": group, "reward": 1, "length": 4} for step in (0, 1) for group in range(30)]
    cells = of_log(Log([write(tmp_path / "more.jsonl", rows)]))
    assert any("names groups and no prompts" in note for note in cautions(split(cells), cells))


def test_the_same_prompt_in_two_groups(tmp_path):
    rows = [plain(0, "same", 1, 5, group=group) for group in (0, 0, 1, 1)]
    found, _ = read(write(tmp_path / "log.jsonl", rows))
    assert len(set(found.prompt.tolist())) == 1 and len(set(found.group.tolist())) == 2


@pytest.mark.parametrize(
    ("column", "value", "end"),
    [
        ("finished", True, FINISHED),
        ("truncated", True, TRUNCATED),
        ("truncated", False, FINISHED),
        ("finished", "False", TRUNCATED),
        ("finished", None, UNKNOWN),
        ("finish_reason", "length", TRUNCATED),
        ("finish_reason", "stop", FINISHED),
    ],
)
def test_how_a_completion_ended(tmp_path, column, value, end):
    found, _ = read(write(tmp_path / "log.jsonl", [plain(0, "a", 1, 9, **{column: value})]))
    assert found.finished.tolist() == [end]


def test_a_limit_says_who_was_cut(tmp_path):
    rows = [plain(0, "a", 1, length) for length in (99, 100, 101)]
    found, _ = read(write(tmp_path / "log.jsonl", rows), limit=100)
    assert found.finished.tolist() == [FINISHED, TRUNCATED, TRUNCATED]


# this project: records of rlvr_jax.rollout.to_records, with the step that MetricsWriter adds


def test_this_project(tmp_path):
    row = {
        "step": 2,
        "group": 1,
        "prompt": "Which is larger?",
        "answer": "48",
        "completion": "48<|im_end|>",
        "outcome": 1.0,
        "extracted": "48",
        "reason": "correct",
        "length": 2,
        "finished": True,
        "advantage": 0.7,
    }
    write(tmp_path / "rollouts.jsonl", [row, {**row, "outcome": 0.0, "length": 9, "finished": False}])
    found, log = read(tmp_path)  # the workdir
    assert found.length.tolist() == [2, 9] and found.correct.tolist() == [True, False]
    assert found.finished.tolist() == [FINISHED, TRUNCATED]
    assert log.formats == ["rlvr"] and log.selected and "selection" in log.notes()[-1]
    write(tmp_path / "rollouts.jsonl", [row] * 4)  # a whole group
    assert not read(tmp_path)[1].selected


# TRL 1.16, GRPOTrainer.log: step, prompt, completion, a column a reward function, extras, advantage


def trl_rows(step, rewards=("accuracy",), extra=False, chat=False):
    said = lambda text: [{"role": "assistant", "content": text}] if chat else text
    for index, text in enumerate(("four", "twenty one", "x", "seven")):
        row = {"step": step, "prompt": f"q{step}-{index // 2}", "completion": said(text)}
        row |= {name: float(index % 2) for name in rewards}
        yield row | ({"parsed": text} if extra else {}) | {"advantage": 0.7}


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_trl(tmp_path, kind, chat):
    folder = tmp_path / "completions"
    folder.mkdir()
    for step in (10, 20, 100):
        rows = list(trl_rows(step, extra=True, chat=chat))
        path = folder / f"completions_{step:05d}.{kind}"
        if kind == "jsonl":
            write(path, rows)
        else:
            pyarrow = pytest.importorskip("pyarrow")
            pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)
    found, log = read(tmp_path)  # the output directory
    assert found.step.tolist() == [10] * 4 + [20] * 4 + [100] * 4
    assert found.length.tolist() == [4, 10, 1, 5] * 3 and log.unit == "characters"
    assert found.correct.tolist() == [False, True, False, True] * 3
    assert log.rewards == ["accuracy"] and any("characters" in note for note in log.notes())
    counted, log = read(tmp_path, count=lambda text: len(text.split()))
    assert counted.length.tolist() == [1, 2, 1, 1] * 3 and log.unit == "tokens"


def test_trl_with_several_reward_functions_must_be_told(tmp_path):
    path = write(tmp_path / "log.jsonl", trl_rows(1, rewards=("accuracy", "format_reward")))
    with pytest.raises(ValueError, match=r"--reward. Choose from \['accuracy', 'format_reward'\]"):
        read(path)
    assert read(path, reward="format_reward")[1].rewards == ["format_reward"]


def test_trl_tables_that_repeat_the_one_before_count_once(tmp_path):
    # logging_steps=1 with steps_per_generation=2: every generation batch is in two files, under two steps
    for step in (1, 2, 3, 4):
        rows = [{**row, "prompt": f"batch {(step - 1) // 2}"} for row in trl_rows(step)]
        write(tmp_path / f"completions_{step:05d}.jsonl", rows)
    found, log = read(tmp_path)
    assert sorted(set(found.step.tolist())) == [1, 3] and log.rows == 8
    assert list(log.skipped.values()) == [8] and "repeats the file before" in log.notes()[0]


def test_trl_says_none_where_nothing_was_scored(tmp_path):
    rows = list(trl_rows(1))
    rows[2]["accuracy"] = None
    found, log = read(write(tmp_path / "log.jsonl", rows))
    assert len(found.step) == 3 and log.skipped == {"without a reward (not a finite number)": 1}


# verl, trainer.rollout_data_dir: a file <step>.jsonl of input, output, gts, score, step and the reward's extras


def test_verl(tmp_path):
    for step in (9, 10, 2):
        rows = [
            {"input": f"user\nq{i // 2}", "output": "ab" * (i + 1), "gts": "7", "score": s, "step": step, "acc": a}
            for i, (s, a) in enumerate([(1.0, True), (0.1, False), (0.9, False), (0.0, False)])
        ]
        write(tmp_path / f"{step}.jsonl", rows)
    found, log = read(tmp_path)
    assert found.step.tolist() == [2] * 4 + [9] * 4 + [10] * 4  # natural order of the names
    assert found.correct.tolist() == [True, False, False, False] * 3  # acc, not the score with its 0.9
    assert log.formats == ["verl"] and log.rewards == ["acc"]
    assert read(tmp_path, reward="score")[0].correct.tolist() == [True, False, True, False] * 3


# OpenRLHF, cli.batch_inference --eval_task rm: input, output, reward; a file an iteration


def test_openrlhf(tmp_path):
    for iteration in (0, 1, 2):
        rows = [{"input": "q", "output": "w" * (iteration + 1), "reward": 0.7}] * 2
        write(tmp_path / f"iter_{iteration}.jsonl", rows)
    found, log = read(tmp_path)
    assert found.step.tolist() == [0, 0, 1, 1, 2, 2] and found.length.tolist() == [1, 1, 2, 2, 3, 3]
    assert log.formats == ["openrlhf"]
    with pytest.raises(ValueError, match="no column says the step, and there is one file"):
        read(tmp_path / "iter_0.jsonl")


def test_files_without_numbers_are_steps_in_the_order_given(tmp_path):
    rows = [{"input": "q", "output": "w", "reward": 0.7}]
    last, first = write(tmp_path / "after.jsonl", rows), write(tmp_path / "before.jsonl", rows)
    assert read(first, last)[0].step.tolist() == [0, 1]


def test_a_byte_order_mark_and_nesting_without_end(tmp_path):
    deep = b'{"step": 0, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    row = json.dumps(plain(0, "a\ud800", 1, 3)).encode() + b"\n"
    (tmp_path / "log.jsonl").write_bytes(b"\xef\xbb\xbf" + row + deep + row)
    found, log = read(tmp_path / "log.jsonl")
    assert found.length.tolist() == [3, 3] and sum(log.skipped.values()) == 1


def test_gzip(tmp_path):
    with gzip.open(tmp_path / "log.jsonl.gz", "wt") as file:
        file.write(json.dumps(plain(0, "a", 1, 3)) + "\n")
    assert read(tmp_path / "log.jsonl.gz")[0].length.tolist() == [3]


# what is wrong with logs


def test_bad_rows_are_skipped_and_counted(tmp_path):
    good = plain(1, "a", 1, 5)
    rows = [
        good,
        {**good, "length": -3},
        {**good, "length": float("nan")},
        {**good, "length": 1e12},
        {**good, "length": "five"},
        {**good, "reward": None},
        {**good, "reward": "right"},
        {**good, "step": 1.5},
        {**good, "step": None},
        {key: value for key, value in good.items() if key != "length"},
        {"epoch": 1, "loss": 0.3},
        {**good, "step": 10**30},
        {**good, "reward": 10**400},
        {**good, "prompt": None},
        good,
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows) + 'null\n7\n{"step": 1, "pro\n\n'
    (tmp_path / "log.jsonl").write_bytes(text.encode() + b'{"step": "\xff\xfe"}\n')
    found, log = read(tmp_path / "log.jsonl")
    assert len(found.step) == 2
    assert sum(log.skipped.values()) == 17
    assert log.skipped["with a negative or impossible length"] == 2
    assert log.skipped["not readable as JSON (a torn line?)"] == 2
    assert log.skipped["without the column 'length' (a mixed schema?)"] == 1
    assert len(log.notes()) == len(log.skipped)


def test_duplicates_are_dropped_where_rows_have_an_identity(tmp_path):
    rows = [plain(0, "a", 1, 5, rollout_id=i) for i in (0, 1, 2, 1)] + [plain(0, "a", 0, 9, rollout_id=1)]
    found, log = read(write(tmp_path / "log.jsonl", rows))
    assert found.length.tolist() == [5, 5, 5, 9]  # another content under a known identity is no duplicate
    assert log.skipped == {"twice in the log (same rollout_id, same content)": 1}


def test_equal_completions_of_a_group_are_no_duplicates(tmp_path):
    found, log = read(write(tmp_path / "log.jsonl", [plain(0, "a", 1, 5, text="4")] * 8))
    assert len(found.step) == 8 and not log.skipped


@pytest.mark.parametrize(
    ("rows", "options", "says"),
    [
        ([], {}, r"0 usable rows \(the log is empty\)"),
        ([{"step": 1, "prompt": "a", "length": 5}], {}, "no column holds the reward.*name it with --reward"),
        ([{"step": 1, "prompt": "a", "reward": 5}], {}, "no column holds the length, tokens or text"),
        ([{"step": 1, "length": 4, "reward": 5}], {}, "no column holds the prompt or group"),
        ([plain(1, "a", 1, 1)], {"reward": "accuracy"}, "--reward='accuracy' is no column.*Choose from"),
        ([plain(1, "a", 1, 1)], {"length": "len"}, "--length-column='len' is no column"),
        ([plain(1, "a", 1, -1)] * 3, {}, r"0 usable rows \(3 with a negative"),
        ([plain(1, "a", 1, 1)], {"limit": 0}, "limit=0"),
        ([[plain(1, "a", 1, 1)]], {}, "a JSON array"),
    ],
)
def test_logs_that_are_refused(tmp_path, rows, options, says):
    with pytest.raises(ValueError, match=says):
        read(write(tmp_path / "log.jsonl", rows), **options)


def test_paths_that_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        Log([tmp_path / "none.jsonl"])
    with pytest.raises(ValueError, match=r"no .jsonl, .jsonl.gz, .parquet in it"):
        Log([tmp_path])
    (tmp_path / "log.csv").write_text("step,length\n")
    with pytest.raises(ValueError, match="choose from .jsonl"):
        Log([tmp_path / "log.csv"])
    with pytest.raises(ValueError, match="no log given"):
        Log([])


def test_files_in_different_units_are_refused(tmp_path):
    a = write(tmp_path / "a1.jsonl", [plain(0, "q", 1, 5)])
    b = write(tmp_path / "a2.jsonl", [{"step": 1, "prompt": "q", "reward": 1, "completion": "text"}])
    with pytest.raises(ValueError, match="lengths are in characters, those of the files before in tokens"):
        read(a, b)


def test_damaged_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "log.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(ValueError, match="not readable as parquet"):
        read(tmp_path / "log.parquet")


def test_parquet_without_its_reader_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "log.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r"pip install 'rlvr-jax\[logs\]'"):
        read(tmp_path / "log.parquet")


def test_parquet_of_many_batches(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [plain(i // 1000, f"q{i % 7}", float(i % 3 == 0), i, unread="x" * 50) for i in range(20_000)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "log.parquet")
    found, _ = read(tmp_path / "log.parquet")
    assert found.length.tolist() == list(range(20_000))


def test_a_column_called_tokens_may_hold_their_number():
    columns = resolve({"step": 0, "prompt": "a", "reward": 1, "tokens": 7}, {}, "log")
    assert (columns.length, columns.measure) == ("tokens", "tokens")


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from([*sorted(name for names in PLAIN.values() for name in names), "advantage", "acc"])
NEARLY = st.fixed_dictionaries(  # rows with the columns that are needed, some of them sound
    {
        "step": JUNK | st.integers(0, 3),
        "prompt": JUNK | st.just("a"),
        "reward": JUNK | st.sampled_from([0, 1.0]),
        "length": JUNK | st.integers(0, 50),
    },
    optional={"group": JUNK, "finished": JUNK, "finish_reason": JUNK, "rollout_id": JUNK, "text": JUNK},
)


@given(
    st.lists(st.dictionaries(NAMES, JUNK, min_size=1) | NEARLY | JUNK, min_size=1, max_size=8),
    st.binary(max_size=30),
)
@settings(max_examples=200, deadline=None)
def test_whatever_a_log_holds_is_read_skipped_or_refused(rows, noise):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        lines = [json.dumps(row).encode() for row in rows]
        path.write_bytes(b"\n".join([*lines, noise, *lines]))
        log = Log([path])
        try:
            chunks = list(log.chunks())
        except ValueError as error:
            assert str(path) in str(error)
            return
        assert log.rows == sum(len(chunk.step) for chunk in chunks) >= 1
        assert all((chunk.length >= 0).all() and np.isfinite(chunk.reward).all() for chunk in chunks)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1_000_000])
def test_a_million_rows_in_20_seconds_and_a_gigabyte(tmp_path, rows):
    import resource

    rng = np.random.default_rng(0)
    path = tmp_path / "log.jsonl"
    lengths, rewards = rng.integers(1, 4096, rows), rng.integers(0, 2, rows)
    with path.open("w") as file:
        for i in range(rows):
            step, prompt = i // 1024, i // 8 % 7473
            file.write(
                f'{{"step": {step}, "prompt": "problem {prompt}", "reward": {rewards[i]}.0, '
                f'"length": {lengths[i]}, "finished": true}}\n'
            )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    log = Log([path])
    found = split(gather(log.chunks()))
    seconds = time.perf_counter() - start
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert log.rows == rows and np.isfinite(found.change.low)
    assert seconds < 20 and grown < 1e6, (seconds, grown)
