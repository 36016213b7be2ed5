"""Problems from files: read with row numbers in every error, and without TensorFlow."""

import gzip
import json
import sys
from pathlib import Path

import pytest

from rlvr_jax.tasks import make_task
from rlvr_jax.tasks.prepare import write as write_records


@pytest.fixture
def files(tmp_path):
    """A function that writes rows as JSON lines and returns the task's string."""

    def write(train, held_out=({"question": "1+1?", "answer": 2},), **more):
        for name, rows in (("train", train), ("held_out", held_out)):
            (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        extra = "".join(f", {key}={value!r}" for key, value in more.items())
        return f"jsonl(train={str(tmp_path / 'train')!r}, held_out={str(tmp_path / 'held_out')!r}{extra})"

    return write


ROWS = [{"question": "2+3?", "answer": "5"}, {"question": "20·50?", "answer": "1,000"}]


def test_json_lines(files):
    task = make_task(files(ROWS, example="4+4? → 8"))
    assert [(p.problem_id, p.prompt, p.answer) for p in task.problems("train")] == [
        (0, "2+3?", "5"),
        (1, "20·50?", "1,000"),
    ]
    (held_out,) = task.problems("held_out")
    assert (held_out.problem_id, held_out.answer, task.size, task.held_out) == (2, "2", 3, 1)
    assert [turn["content"] for turn in task.messages(held_out)] == ["4+4?", "Answer: 8", "1+1?"]
    assert task.verify("1,000", "So it is\nAnswer: 1000", True).outcome == 1
    assert task.verify("5", "Answer: 6", True).outcome == 0


def test_a_byte_order_mark_is_no_part_of_the_first_row(files, tmp_path):
    task = files(ROWS)
    (tmp_path / "train").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "train").read_bytes())
    assert len(make_task(task).problems("train")) == 2


@pytest.mark.parametrize(
    "row, complaint",
    [
        ({"question": "x?"}, "line 3: no field 'answer'"),
        ({"question": "x?", "answer": None}, "line 3: no field 'answer'"),
        ({"question": "  ", "answer": "1"}, "line 3: the question is empty"),
        (
            {"question": "x?", "answer": "see the diagram"},
            "line 3: the answer 'see the diagram' cannot be used: not a number",
        ),
        ({"question": "2+3?  ", "answer": "5"}, "line 3: the same prompt as .*line 1 "),
        ({"question": "1+1?", "answer": "2"}, "line 3: the same prompt as .*line 1, which is held out"),
        ({"question": "x?", "answer": True}, "line 3: the answer True is neither a text nor a number"),
        ({"question": 3, "answer": 1}, "line 3: the question is no text: 3"),
        ({"question": "x?", "answer": ["7", "7.0"]}, "line 3: .*only the verifiers 'exact' and 'f1' take several"),
        ([1], "line 3: not a JSON object"),
    ],
)
def test_an_unusable_row_is_refused_with_its_place(files, row, complaint):
    with pytest.raises(ValueError, match=complaint):
        make_task(files([*ROWS, row]))


def test_other_errors(files, tmp_path):
    with pytest.raises(FileNotFoundError, match="absent does not exist"):
        make_task("jsonl(train='absent', held_out='absent')")
    with pytest.raises(ValueError, match="has no problems"):
        make_task(files([]))
    with pytest.raises(ValueError, match="expected 'question → answer'"):
        make_task(files(ROWS, example="4+4?"))
    with pytest.raises(ValueError, match="task=tfds"):
        make_task(f"tfds(directory={str(tmp_path / 'nothing')!r})")


def test_a_prepared_data_set_without_tensorflow(tmp_path):
    library = pytest.importorskip("tensorflow_datasets")

    class Sums(library.core.GeneratorBasedBuilder):
        VERSION = library.core.Version("1.0.0")

        def _info(self):
            texts = library.features.Text
            features = library.features.FeaturesDict({"question": texts(), "answer": texts()})
            return library.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

        def _split_generators(self, manager):
            return {"train": self._generate_examples(0, 6), "test": self._generate_examples(6, 9)}

        def _generate_examples(self, start, end):
            for i in range(start, end):
                yield i, {"question": f"{i}+1?", "answer": str(i + 1)}

    builder = Sums(data_dir=tmp_path, file_format="array_record")
    builder.download_and_prepare()
    task = make_task(f"tfds(directory={str(builder.data_dir)!r}, held_out='test[:2]')")
    assert [p.prompt for p in task.problems("train")] == [f"{i}+1?" for i in range(6)]
    assert [p.answer for p in task.problems("held_out")] == ["7", "8"]
    assert "tensorflow" not in sys.modules
    with pytest.raises(ValueError, match="task=tfds: .*dev"):
        make_task(f"tfds(directory={str(builder.data_dir)!r}, held_out='dev')")


def test_a_problem_set_written_and_read_back(tmp_path, files):
    """Order, answers, difficulty, instruction and verifier come back; nothing needs TensorFlow."""
    pytest.importorskip("tensorflow_datasets")
    held_out = [{"question": "Which?", "answer": ["7", "x"], "level": 5}]
    task = make_task(
        files(
            [{"question": "Who?\u2028Me?", "answer": ["Ann", "Anna"], "level": "Level 3"}],
            held_out,
            difficulty="level",
            verifier="exact",
            instruction="In a word.",
        )
    )
    directory = write_records(task, str(tmp_path / "data"))
    assert Path(directory).parent.name == "jsonl" and list(Path(directory).glob("*.array_record*"))
    again = make_task(f"tfds(directory={directory!r})")
    for split in ("train", "held_out"):
        assert again.problems(split) == task.problems(split)
    (problem,) = again.problems("train")
    assert problem.answer == "Ann\nAnna" and problem.difficulty == 3.0
    assert again.messages(problem)[-1]["content"] == "Who?\u2028Me?\nIn a word."
    assert again.verify(problem.answer, "The answer is Anna.", True).outcome == 1.0
    assert again.grader == "exact" and "tensorflow" not in sys.modules


def test_a_data_set_of_tfds_own_says_what_it_lacks(tmp_path):
    pytest.importorskip("tensorflow_datasets")
    with pytest.raises(ValueError, match="task=tfds: name='nowhere_to_be_found': .*not found"):
        make_task(f"tfds(name='nowhere_to_be_found', data_dir={str(tmp_path)!r})")
    with pytest.raises(ValueError, match="name='mnist': TFDS needs TensorFlow to prepare its own data sets"):
        make_task(f"tfds(name='mnist', data_dir={str(tmp_path)!r})")
    with pytest.raises(ValueError, match="give one of the two"):
        make_task("tfds()")


# --- faults of the data, refused or counted ---


def test_repeats_and_overlaps_are_counted(files):
    """Fault F1: 10 distinct prompts, each three times (once with extra spaces), 2 of them also held out."""
    rows = [
        {"question": f"{i} +  1?" if copy == 2 else f"{i} + 1?", "answer": i + 1}
        for copy in range(3)
        for i in range(10)
    ]
    held_out = [{"question": f"{i} + 1?", "answer": i + 1} for i in (3, 7, 20)]
    text = files(rows, held_out)
    with pytest.raises(
        ValueError, match="20 repeated prompts and 19 more: .*line 12; .*; and 14 more.*data.repeats to 'drop'"
    ):
        make_task(text)
    with pytest.raises(ValueError, match="2 prompts in training and evaluation"):
        make_task(text, {"repeats": "drop"})
    task = make_task(text, {"repeats": "drop", "overlap": "drop"})
    assert len(task.problems("train")) == 8 and len(task.problems("held_out")) == 3
    assert not {p.prompt for p in task.problems("train")} & {p.prompt for p in task.problems("held_out")}
    counts, repeats, overlaps = task.report()
    assert counts == "jsonl: 8 problems to train on, 3 held out"
    assert repeats.startswith("jsonl: 20 repeated prompts left out: ") and "line 11" in repeats
    assert overlaps.startswith("jsonl: 2 prompts in training and evaluation left out: ") and "line 4" in overlaps
    kept = make_task(text, {"repeats": "keep", "overlap": "keep"})
    assert len(kept.problems("train")) == 30 and len({p.problem_id for p in kept.problems("train")}) == 30
    assert "kept" in kept.report()[1]


def test_unusable_rows_are_left_out_as_configured(files):
    """Fault F4: every row that cannot be used is counted with its place; golds that are numbers become texts."""
    rows = [
        {"question": "a?"},
        {"question": "b?", "answer": None},
        {"question": "c?", "answer": 7},
        {"question": "d?", "answer": ["7", "7.0"]},
        {"question": "  ", "answer": "1"},
        {"question": "e?", "answer": "see the diagram"},
        {"question": "f?", "answer": 2.5},
        {"question": "g?", "answer": 145.0},
        {"question": "h?", "answer": float("nan")},
    ]
    task = make_task(files(rows), {"fields": "drop", "answers": "drop"})
    assert [(p.prompt, p.answer) for p in task.problems("train")] == [("c?", "7"), ("f?", "2.5"), ("g?", "145")]
    assert [task.where(p).rpartition(", ")[2] for p in task.problems("train")] == ["line 3", "line 7", "line 8"]
    _, fields, answers = task.report()
    assert "3 rows with missing or empty fields left out" in fields
    assert "3 rows with an unusable answer left out" in answers and "line 4" in answers
    with pytest.raises(ValueError, match="set data.fields to 'drop'"):
        make_task(files(rows), {"answers": "drop"})


def test_checks_of_the_task_go_before_those_of_the_config(files):
    rows = [*ROWS, ROWS[0]]
    assert len(make_task(files(rows, checks={"repeats": "keep"}), {"repeats": "drop"}).problems("train")) == 3
    for checks, says in [
        ({"repeat": "drop"}, "data.repeat='drop': unknown check. Did you mean 'repeats'"),
        ({"fields": "keep"}, r"data.fields='keep': choose from \['refuse', 'drop'\]"),
    ]:
        with pytest.raises(ValueError, match=says):
            make_task(files(rows), checks)
    assert make_task("compare", {"repeats": "keep"}).report() == []  # a generated task reads nothing


ENCODED = {
    "a byte order mark": (b"\xef\xbb\xbf%s", "line 1 (a byte order mark)"),
    "CRLF": (b"%s", "CRLF at the end of 2 lines"),
    "U+2028": (b"%s", "line 2 (U+2028)"),
    "U+0000": (b"%s", "line 1 (U+0000)"),
    "U+FFFD": (b"%s", "line 2 (U+FFFD)"),
}


@pytest.mark.parametrize("name", ENCODED)
def test_wrong_encodings(files, tmp_path, name):
    """A line separator inside a row does not break it, whatever way the file writes it."""
    form, says = ENCODED[name]
    text = files(ROWS)
    first, second = '{"question": "2+3?", "answer": "5"}', '{"question": "20·50?", "answer": "1,000"}'
    if name == "U+0000":
        first = first.replace("2+3", "2\\u0000+3")
    elif name.startswith("U+"):
        second = second.replace("20·", f"20{chr(int(name[2:], 16))}·")
    end = "\r\n" if name == "CRLF" else "\n"
    (tmp_path / "train").write_bytes(form % (first + end + second + end).encode())
    task = make_task(text)
    assert [p.answer for p in task.problems("train")] == ["5", "1,000"]
    assert all("\r" not in p.prompt and "\ufeff" not in p.prompt for p in task.problems("train"))
    assert "signs that are not text kept" in task.report()[1] and says in task.report()[1]
    with pytest.raises(ValueError, match="set data.encoding to 'keep'"):
        make_task(text, {"encoding": "refuse"})


def test_a_file_that_is_no_text(files, tmp_path):
    text = files(ROWS)
    (tmp_path / "train").write_bytes(b'{"question": "1?", "answer": 1}\n{"question": "2\xe9?", "answer": 2}\n')
    with pytest.raises(ValueError, match="train, line 2: not UTF-8"):
        make_task(text)
    (tmp_path / "bad.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(ValueError, match=r"bad.jsonl.gz is no gzip file"):
        make_task(f"jsonl(train={str(tmp_path / 'bad.jsonl.gz')!r}, held_out=1)")


def test_one_file_and_a_number_set_apart(tmp_path):
    rows = [{"question": f"{i}?", "answer": i} for i in range(20)]
    (tmp_path / "all.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    (tmp_path / "all.json").write_text(json.dumps(rows))
    made = [make_task(f"jsonl(train={str(tmp_path / name)!r}, held_out=5)") for name in ("all.jsonl.gz", "all.json")]
    assert [p.prompt for p in made[0].problems("held_out")] == [p.prompt for p in made[1].problems("held_out")]
    assert len(made[0].problems("train")) == 15 and made[0].held_out == 5
    with pytest.raises(ValueError, match="held_out=20; choose a file or a number in 1 … 19"):
        make_task(f"jsonl(train={str(tmp_path / 'all.json')!r}, held_out=20)")


def test_a_declared_schema(files):
    rows = [{"q": "Pick.", "o": ["A) 1", "B) 2"], "key": "b", "d": "Level 4"}]
    held_out = [{"q": "Pick again.", "o": {"A": "x", "B": "y", "C": "z"}, "key": "C", "d": 1}]
    task = make_task(files(rows, held_out, question="q", answer="key", options="o", difficulty="d"))
    (first,), (second,) = task.problems("train"), task.problems("held_out")
    assert (first.prompt, first.answer, first.difficulty) == ("Pick.\nA) 1\nB) 2", "B\nA) 1\nB) 2", 4.0)
    assert second.prompt.endswith("C) z") and task.grader == "choice"
    assert task.verify(first.answer, "The answer is 2.", True).outcome == 1.0
    for broken, says in [
        ({"q": "?", "o": ["A) 1", "C) 2"], "key": "A", "d": 1}, "labels of the o are not A, B"),
        ({"q": "?", "o": ["1"], "key": "A", "d": 1}, "not two to ten texts"),
        ({"q": "?", "o": ["1", " "], "key": "A", "d": 1}, "one of the o is empty"),
        ({"q": "?", "o": ["1", "2"], "key": "C", "d": 1}, "the right option 'C' is none of AB"),
        ({"q": "?", "o": ["1", "2"], "key": "A", "d": "?"}, "the d '\\?' is no number"),
    ]:
        with pytest.raises(ValueError, match=says):
            make_task(files([broken], held_out, question="q", answer="key", options="o", difficulty="d"))
    with pytest.raises(ValueError, match="verifier='choice' needs the name of the field options="):
        make_task(files(ROWS, verifier="choice"))
    with pytest.raises(ValueError, match="verifier='maths': unknown option"):
        make_task(files(ROWS, verifier="maths"))
