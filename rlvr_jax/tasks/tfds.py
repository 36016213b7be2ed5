"""TensorFlow Datasets without TensorFlow: problem sets written as ArrayRecord and read back, and its own data sets.

python -m rlvr_jax.tasks.prepare "gsm8k(path='gsm8k')" DATA_DIR      writes a problem set, prints its folder
task = "tfds(directory='DATA_DIR/gsm8k/1.0.0')"                   trains on it
task = "tfds(name='gsm8k', ...)"                                  a data set of TFDS's own, which TFDS prepares
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from rlvr_jax.tasks.checks import Findings, settle_checks
from rlvr_jax.tasks.files import FileTask, check_verifier, declared
from rlvr_jax.tasks.rows import Row, odd_row
from rlvr_jax.tasks.task import TASKS, Task


def _builder(directory: str, name: str, data_dir: str):
    """
    Raises:
      ValueError: no such data set, or one that only TensorFlow can prepare.
    """
    import tensorflow_datasets

    core = tensorflow_datasets.core
    where = f"task=tfds: directory={directory!r}" if directory else f"task=tfds: name={name!r}"
    try:
        if directory:
            return tensorflow_datasets.builder_from_directory(directory)
        builder = tensorflow_datasets.builder(name, data_dir=data_dir or None, file_format="array_record")
        if not builder.is_prepared():
            if importlib.util.find_spec("tensorflow") is None:
                raise ValueError(
                    "TFDS needs TensorFlow to prepare its own data sets, and it is not installed; install it, or "
                    f"prepare this one elsewhere with file_format='array_record' (none in {builder.data_dir})"
                )
            builder.download_and_prepare()
        return builder
    except (core.DatasetNotFoundError, ImportError, OSError, ValueError, NotImplementedError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{where}: {first}") from None


def _rows(source, label: str, findings: Findings) -> Iterator[Row]:
    for index in range(len(source)):
        row = Row(f"{label} row {index}", {key: _plain(value) for key, value in source[index].items()})
        if not odd_row(row, findings):
            yield row


def _plain(value):
    """What TFDS returns as what JSON would: bytes → text, arrays → lists, numpy scalars → numbers."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value


def _as_written(row) -> tuple[str, str, float]:
    return row["question"], row["answer"], float(row["difficulty"])


@TASKS.register
def tfds(
    directory: str = "",
    name: str = "",
    data_dir: str = "",
    train: str = "train",
    held_out: str = "test",
    question: str = "question",
    answer: str = "answer",
    options: str = "",
    difficulty: str = "",
    verifier: str = "",
    example: str = "",
    instruction: str = "",
    checks: dict | None = None,
) -> Task:
    """A data set that TensorFlow Datasets wrote as ArrayRecord: `directory` is its version folder (…/name/1.0.0); or
    `name`, one of TFDS's own, prepared in `data_dir` (most of them need TensorFlow for that, none to be read).

    `train` and `held_out` are names or slices of its splits ("test[:200]"). `verifier` "": the one that `write` noted
    down, else answer_line.
    """
    if bool(directory) == bool(name):
        raise ValueError(f"task=tfds: directory={directory!r}, name={name!r}; give one of the two")
    findings = Findings("tfds", settle_checks(checks))
    builder = _builder(directory, name, data_dir)
    noted = dict(builder.info.metadata or {})
    try:
        sources = {s: builder.as_data_source(split=text) for s, text in (("train", train), ("held_out", held_out))}
    except (OSError, ValueError, NotImplementedError) as error:
        raise ValueError(f"task=tfds: {directory or name}: {error}") from None
    rows = {split: _rows(source, f"{directory or name} {split}", findings) for split, source in sources.items()}
    if not verifier and noted.get("verifier"):
        instruction = instruction or noted.get("instruction", "")
        return FileTask(rows, _as_written, noted["verifier"], findings, example=example, instruction=instruction)
    verifier = check_verifier("tfds", verifier or "answer_line", options)
    reader = declared(question, answer, options, difficulty, verifier)
    return FileTask(rows, reader, verifier, findings, example=example, instruction=instruction)
