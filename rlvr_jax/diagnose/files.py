"""The files of a rollout log: which there are, what step each is of, and their rows as they stand in them."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rlvr_jax.diagnose.columns import Columns

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
BOM = b"\xef\xbb\xbf"


def log_files(path: Path) -> list[Path]:
    """The log files that a path stands for, in natural order."""
    if path.is_file():
        if not path.name.endswith(SUFFIXES):
            raise ValueError(f"{path}: not a log that can be read; choose from {', '.join(SUFFIXES)}")
        return [path]
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or directory")
    if (path / "rollouts.jsonl").is_file():
        return [path / "rollouts.jsonl"]
    for folder in (path, path / "completions"):
        if folder.is_dir():
            found = [file for file in folder.iterdir() if file.name.endswith(SUFFIXES) and file.is_file()]
            if found:
                return sorted(found, key=_natural)
    raise ValueError(f"{path}: no {', '.join(SUFFIXES)} in it")


def _natural(path: Path) -> list:
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", path.name) if part]


def file_steps(files: Sequence[Path]) -> list[int | None]:
    """The step of each file where no column has it: the last number of its name, if all have one and no two the same;
    else its place in the order given. None for a single file."""
    if len(files) == 1:
        return [None]
    last = [re.findall(r"\d+", file.name.split(".")[0]) for file in files]
    numbers = [int(found[-1]) for found in last if found]
    return numbers if len(set(numbers)) == len(files) else list(range(len(files)))


def raw_rows(file: Path, skipped: Counter, known: Sequence[Columns]) -> Iterator[Mapping]:
    """The rows of a file as they stand in it; what is no row is counted in `skipped`.

    Args:
      known: holds what is read of the file once its first row was handed out; of parquet nothing else is decoded.
    Raises:
      ValueError: a JSON array, or damaged parquet.
      ImportError: parquet without its reader.
    """
    if file.name.endswith(".parquet"):
        yield from _parquet_rows(file, known)
        return
    decode = json.JSONDecoder().decode  # json.loads would look for the encoding of every line
    with gzip.open(file, "rb") if file.name.endswith(".gz") else file.open("rb") as lines:
        for line in lines:  # a binary file ends lines at \n only; text mode would also cut inside some completions
            try:
                row = decode(str(line.removeprefix(BOM), "utf-8"))
            except (ValueError, RecursionError):  # UnicodeDecodeError too
                if line.strip():
                    skipped["not readable as JSON (a torn line?)"] += 1
                continue
            if type(row) is dict:
                yield row
            elif isinstance(row, list):
                raise ValueError(f"{file}: holds a JSON array; write one object a line (JSON lines)")
            else:
                skipped["not a JSON object"] += 1


def _parquet_rows(file: Path, known: Sequence[Columns]) -> Iterator[Mapping]:
    try:
        import pyarrow.parquet as parquet
        from pyarrow import ArrowException
    except ImportError as error:
        raise ImportError(
            f"{file}: reading parquet needs pyarrow: pip install 'rlvr-jax[logs]', or convert the log to JSON lines"
        ) from error
    try:
        table = parquet.ParquetFile(file)
        first = next(table.iter_batches(batch_size=1), None)
        if first is None or not first.num_rows:
            return
        yield from _parquet_body(table, first.to_pylist()[0], known)
    except ArrowException as error:
        raise ValueError(f"{file}: not readable as parquet ({str(error).splitlines()[0]})") from error


def _parquet_body(table, first: Mapping, known: Sequence[Columns]) -> Iterator[Mapping]:
    """The first row with all its columns, then the others with those that are read."""
    yield first
    skip = 1
    for batch in table.iter_batches(batch_size=8192, columns=known[0].read):
        rows = batch.to_pylist()
        yield from rows[skip:]
        skip = 0
