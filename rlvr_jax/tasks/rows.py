"""Rows of files, each with its place: JSON lines (also gzipped), one JSON list, or a folder of JSON objects."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from rlvr_jax.tasks.checks import Findings, odd_signs


class Row(NamedTuple):
    """One row as it stands in its file."""

    where: str  # "train.jsonl, line 3"
    value: Mapping


class Unusable(ValueError):
    """A row that no problem can be made of: `kind` is a key of `checks.CHECKS`."""

    def __init__(self, kind: str, what: str):
        super().__init__(what)
        self.kind = kind


def read_rows(path: str | Path, findings: Findings) -> list[Row]:
    """The rows of a file (.jsonl, .jsonl.gz, .json) or of a folder (all its .json files, sorted, one object each).

    Lines end with a line feed: U+2028 inside a row does not break it. A byte order mark and carriage returns are
    taken off and noted.

    Raises:
      FileNotFoundError: no such file. ValueError: not UTF-8, or a .json file that is no list of objects.
    """
    path = Path(path)
    if path.is_dir():
        return [row for file in sorted(path.rglob("*.json")) for row in read_rows(file, findings)]
    if not path.is_file():
        raise FileNotFoundError(f"task={findings.task}: {path} does not exist")
    text = _text(path, findings)
    rows = _of_one(path, text, findings) if path.suffix == ".json" else _of_lines(path, text, findings)
    return [row for row in rows if not odd_row(row, findings)]


def odd_row(row: Row, findings: Findings) -> bool:
    """Notes the signs of a row that are not text; True when it is to be left out."""
    odd = odd_signs(_strings(row.value))
    return bool(odd) and findings.add("encoding", row.where, ", ".join(odd))


def _text(path: Path, findings: Findings) -> str:
    data = path.read_bytes()
    try:
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        text = data.decode("utf-8")
    except (OSError, EOFError) as error:
        raise ValueError(f"task={findings.task}: {path} is no gzip file ({error})") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"task={findings.task}: {path}, line {line}: not UTF-8 ({error.reason} at byte {error.start} of the file)"
        ) from None
    if text.startswith("\ufeff"):
        findings.add("encoding", f"{path}, line 1", "a byte order mark")
        text = text[1:]
    return text


def _of_lines(path: Path, text: str, findings: Findings) -> Iterator[Row]:
    lines = text.split("\n")
    crlf = [number for number, line in enumerate(lines, 1) if line.endswith("\r")]
    if crlf:
        findings.add("encoding", f"{path}, line {crlf[0]}", f"CRLF at the end of {len(crlf)} lines")
    while lines and not lines[-1].strip():
        lines.pop()
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        value, fault = _parsed(line)
        if fault:
            findings.add("fields", where, fault)
        else:
            yield Row(where, value)


def _parsed(line: str) -> tuple[Mapping, str]:
    try:
        value = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        return {}, f"not JSON ({getattr(error, 'msg', 'too deeply nested')})"
    return (value, "") if isinstance(value, dict) else ({}, "not a JSON object")


def _of_one(path: Path, text: str, findings: Findings) -> Iterator[Row]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"task={findings.task}: {path}: not JSON ({error.msg})") from None
    if isinstance(value, dict):
        yield Row(str(path), value)
        return
    if not isinstance(value, list):
        raise ValueError(f"task={findings.task}: {path}: neither an object nor a list of them")
    for number, item in enumerate(value, 1):
        if isinstance(item, dict):
            yield Row(f"{path}, row {number}", item)
        else:
            findings.add("fields", f"{path}, row {number}", "not a JSON object")


def _strings(value) -> Iterator[str]:
    """The texts of the fields of a row, one list or object deep."""
    for item in value.values():
        inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else [item]
        yield from (text for text in inner if isinstance(text, str))


# --- fields ---


def text_of(row: Mapping, field: str, optional: bool = False) -> str:
    """A field as text, "" where it is optional and not there; carriage returns before line feeds are taken off.

    Raises:
      Unusable: it is missing, empty, or no text.
    """
    if row.get(field) is None:
        if optional:
            return ""
        raise Unusable("fields", f"no field {field!r}; the row has {sorted(row)}")
    value = row[field]
    value = value.decode("utf-8") if isinstance(value, bytes) else value
    if not isinstance(value, str):
        raise Unusable("fields", f"the {field} is no text: {value!r:.80}")
    value = value.replace("\r\n", "\n").strip()
    if not value and not optional:
        raise Unusable("fields", f"the {field} is empty")
    return value


def answers_of(row: Mapping, field: str) -> list[str]:
    """A gold, or several: a text, a number (7 → "7", 145.0 → "145"), or a list of those; 0-dim arrays count as numbers.

    Raises:
      Unusable: it is missing, empty, or anything else.
    """
    if row.get(field) is None:
        raise Unusable("fields", f"no field {field!r}; the row has {sorted(row)}")
    value = row[field]
    value = value.tolist() if hasattr(value, "tolist") else value
    found = [_gold(item, field) for item in (value if isinstance(value, list) else [value])]
    if not found:
        raise Unusable("fields", f"the {field} is an empty list")
    return found


def _gold(value, field: str) -> str:
    value = value.decode("utf-8") if isinstance(value, bytes) else value
    if isinstance(value, str):
        if not value.strip():
            raise Unusable("fields", f"the {field} is empty")
        return value.replace("\r\n", "\n").strip()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Unusable("answers", f"the {field} {value!r:.80} is neither a text nor a number")
    return str(int(value)) if value == int(value) else repr(value)
