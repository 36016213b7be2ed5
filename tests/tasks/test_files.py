"""Problems from files: read with row numbers in every error, and without TensorFlow."""

import json
import sys

import pytest

from rlvr_jax.tasks import make_task


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
            "line 3: the answer 'see the diagram' is not a number",
        ),
        ({"question": "2+3?  ", "answer": "5"}, "line 3: the same question as"),
        ({"question": "1+1?", "answer": "2"}, "line 1: the same question as"),  # overlap of the splits
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
    tfds = pytest.importorskip("tensorflow_datasets")

    class Sums(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = tfds.features.FeaturesDict({"question": tfds.features.Text(), "answer": tfds.features.Text()})
            return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

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
