"""A safetensors file, or a folder of them, as name → float32 array; and the writing of one.

The format is eight bytes of length, a JSON header, and the tensors' bytes one after another. It is read here, by
memory map, and nothing in it is trusted: every size is checked against the file before anything is allocated.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}
NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_LONGEST_HEADER = 100_000_000  # bytes, the format's own limit
# Bytes of an element for every dtype of the format: a file may hold what we do not read.
_WIDTHS = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2}
_WIDTHS |= {"I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8}


class _Entry:
    """Where one tensor is."""

    __slots__ = ("begin", "buffer", "dtype", "end", "path", "shape")

    def __init__(self, path: Path, buffer: np.ndarray, dtype: str, shape: tuple[int, ...], begin: int, end: int):
        self.path, self.buffer, self.dtype, self.shape = path, buffer, dtype, shape
        self.begin, self.end = begin, end


class SafeTensors:
    """Name → float32 array, expanded at each access; iterates over names. A missing name is a ValueError."""

    def __init__(self, where: Path, entries: Mapping[str, _Entry]):
        self.where, self._entries = where, dict(entries)

    def _entry(self, name: str) -> _Entry:
        if name not in self._entries:
            raise ValueError(f"{self.where}: tensor {name!r} is missing")
        return self._entries[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape, without reading the tensor."""
        return self._entry(name).shape

    def file_of(self, name: str) -> Path:
        return self._entry(name).path

    def stored(self, name: str) -> np.ndarray:
        """A view of the file in the dtype it is stored in."""
        entry = self._entry(name)
        if entry.dtype not in DTYPES:
            raise ValueError(f"{entry.path}: tensor {name!r} has dtype {entry.dtype}; supported: {list(DTYPES)}")
        return entry.buffer[entry.begin : entry.end].view(DTYPES[entry.dtype]).reshape(entry.shape)

    def __getitem__(self, name: str) -> np.ndarray:
        array = np.array(self.stored(name), dtype=np.float32)
        # a sum is not finite when any element is not, and needs no copy
        if not math.isfinite(float(array.sum(dtype=np.float64))):
            raise ValueError(f"{self._entry(name).path}: tensor {name!r} holds values that are not finite")
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries


def _json(path: Path, text: bytes | str) -> dict:
    def once(pairs):
        if len(found := dict(pairs)) != len(pairs):
            raise ValueError("a key appears twice")
        return found

    try:
        found = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: the header is damaged: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: the header is damaged: no dictionary")
    return found


def _whole(numbers: Any) -> bool:
    return isinstance(numbers, list) and all(type(number) is int and 0 <= number < 2**48 for number in numbers)


def read_file(path: str | Path) -> SafeTensors:
    """Opens one file and checks its whole header; no tensor is read.

    Raises:
      FileNotFoundError: no such file.
      ValueError: not a safetensors file, cut short (bytes needed and found), or a header whose sizes do not add up.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= _LONGEST_HEADER:
            raise ValueError(f"{path}: not a safetensors file (a header of {length:,} bytes, the file has {size:,})")
        if 8 + length > size:
            raise ValueError(f"{path}: cut short: its header needs {8 + length:,} bytes, the file has {size:,}")
        header = _json(path, file.read(length))
    header.pop("__metadata__", None)
    spans = []
    for name, entry in header.items():
        known = isinstance(entry, dict) and entry.get("dtype") in _WIDTHS and _whole(entry.get("shape"))
        offsets = entry.get("data_offsets") if known else None
        if not known or not _whole(offsets) or len(offsets) != 2:
            raise ValueError(f"{path}: the header is damaged: tensor {name!r} is {str(entry)[:80]}")
        if offsets[1] - offsets[0] != math.prod(entry["shape"]) * _WIDTHS[entry["dtype"]]:
            raise ValueError(
                f"{path}: the header is damaged: tensor {name!r} of shape {tuple(entry['shape'])} and dtype "
                f"{entry['dtype']} has {offsets[1] - offsets[0]:,} bytes"
            )
        spans.append((*offsets, name))
    end = 0
    for begin, stop, name in sorted(spans):
        if begin != end:
            raise ValueError(f"{path}: the header is damaged: tensor {name!r} begins at {begin:,}, not at {end:,}")
        end = stop
    if 8 + length + end != size:
        what = "cut short: " if 8 + length + end > size else ""
        raise ValueError(f"{path}: {what}its tensors need {8 + length + end:,} bytes, the file has {size:,}")
    buffer = np.memmap(path, dtype=np.uint8, mode="r", offset=0)[8 + length :]
    entries = {}
    for name, entry in header.items():
        begin, stop = entry["data_offsets"]
        entries[name] = _Entry(path, buffer, entry["dtype"], tuple(entry["shape"]), begin, stop)
    return SafeTensors(path, entries)


def read_folder(folder: str | Path) -> SafeTensors:
    """The tensors of a checkpoint folder: of `model.safetensors`, else of the files that
    `model.safetensors.index.json` names. Files that the index does not name are left alone.

    Raises:
      FileNotFoundError: neither is there, or a file of the index is not; named.
      ValueError: what `read_file` raises, or an index that its files contradict (file and tensor are named).
    """
    folder = Path(folder)
    if (folder / SINGLE).is_file():
        return read_file(folder / SINGLE)
    index = folder / INDEX
    if not index.is_file():
        found = sorted(path.name for path in folder.iterdir() if path.is_file())
        raise FileNotFoundError(f"{folder}: neither {SINGLE} nor {INDEX} is there; it has {found[:12]}")
    weight_map = _json(index, index.read_bytes()).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{index}: no weight_map")
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise ValueError(f"{index}: tensor {name!r} is said to be in {file!r}; expected a file beside it")
    entries: dict[str, _Entry] = {}
    for file in dict.fromkeys(weight_map.values()):
        if not (folder / file).is_file():
            names = [name for name, other in weight_map.items() if other == file]
            raise FileNotFoundError(f"{index}: file {file!r} is missing; {len(names)} tensors: {names[:3]}")
        opened = read_file(folder / file)
        for name in opened:
            if weight_map.get(name, file) != file:
                raise ValueError(f"{folder / file}: tensor {name!r} belongs in {weight_map[name]!r}, says {index.name}")
        entries |= opened._entries
    for name, file in weight_map.items():
        if name not in entries:
            raise ValueError(f"{folder / file}: tensor {name!r} is missing, which {index.name} says it holds")
    return SafeTensors(folder, entries)


def write_file(
    path: str | Path, tensors: Iterable[tuple[str, tuple[int, ...]]], get: Any, dtype: str = "float32"
) -> None:
    """Writes one file, a tensor at a time.

    Args:
      tensors: (name, shape) of each, in the order they are stored.
      get: name → array of that shape; called once for each, when it is written.
      dtype: "float32", "float16" or "bfloat16", of all of them.
    """
    tensors, kind = list(tensors), DTYPES[NAMES[dtype]]
    header: dict = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, shape in tensors:
        end = begin + math.prod(shape) * kind.itemsize
        header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with Path(path).open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors:
            array = np.ascontiguousarray(get(name), dtype=kind)
            assert array.shape == tuple(shape), (name, array.shape, shape)
            file.write(array.view(np.uint8).data)
