"""Rollout logs of this and other trainers, streamed as chunks of plain columns.

`columns.py` lists the formats. Rows that cannot be used are skipped and counted by reason; a file that cannot be
understood at all is a ValueError that names what is missing. Memory does not grow with the number of rows.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlvr_jax.diagnose.columns import Columns, resolve
from rlvr_jax.diagnose.files import file_steps, log_files, raw_rows

CHUNK = 65_536  # rows handed on at once
REMEMBERED = 1_000_000  # identities kept to find duplicates; of the newest one to two million rows
FINISHED, TRUNCATED, UNKNOWN = 1, 0, -1
TRL_TABLE = re.compile(r"completions_\d+\.")
NUMBERS, SEQUENCES = (int, float), (list, tuple)  # a union of types would be made anew for every row
LARGEST = 1e300  # NaN and the infinities are not between −LARGEST and LARGEST
LARGEST_STEP = 2**62
KEPT = 3  # completions that the trainer of this project keeps of a group, at most
LENGTH_LIMIT = 2**31  # longer "lengths" are damage


class Chunk(NamedTuple):
    """Rows of a log, one array a column, each [n].

    step:      i64
    prompt:    u64, hash of the problem (of step and group where the log names no problem)
    group:     u64, hash of the group within its step
    reward:    f64, as logged
    correct:   bool, reward above the threshold
    length:    f64, in `Log.unit`
    finished:  i8, 1 ended by itself, 0 cut by the limit, −1 not known
    content:   u64, hash of the row without its step; equal rows have equal hashes
    """

    step: np.ndarray
    prompt: np.ndarray
    group: np.ndarray
    reward: np.ndarray
    correct: np.ndarray
    length: np.ndarray
    finished: np.ndarray
    content: np.ndarray


class Log:
    """One log of one or more files. Iterate `chunks()` once; then `rows`, `skipped` and `formats` are complete.

    Args:
      paths: files (.jsonl, .jsonl.gz, .parquet) or directories that hold them; the workdir of a run and an output
        directory of TRL's too.
      reward, length, step, prompt: columns by name, where the usual names do not fit.
      correct_above: a completion is correct when its reward lies above it.
      limit: the completion limit, in the unit of the lengths; says which completions were cut where the log does not.
      count: text → tokens, for logs with texts alone; without it their lengths are in characters.
    Raises:
      ValueError: nothing to read, or `limit` not positive.
      FileNotFoundError: a path that does not exist.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        reward: str | None = None,
        length: str | None = None,
        step: str | None = None,
        prompt: str | None = None,
        correct_above: float = 0.5,
        limit: float | None = None,
        count: Callable[[str], int] | None = None,
    ):
        if limit is not None and not limit > 0:
            raise ValueError(f"limit={limit}: must be a positive length")
        self.files = [file for path in paths for file in log_files(Path(path))]
        if not self.files:
            raise ValueError("no log given")
        self.chosen = {"reward": reward, "length": length, "step": step, "prompt": prompt}
        self.correct_above, self.limit, self.count = correct_above, limit, count
        self.rows = 0
        self.skipped: Counter[str] = Counter()
        self.formats: list[str] = []
        self.unit = ""  # "tokens" or "characters", known with the first row
        self.rewards: list[str] = []  # the columns that said whether an answer is right
        self.names_prompts = True  # every file has a column with the problem, not the group alone
        self._largest: int | None = None  # group of this project's rollouts.jsonl

    def chunks(self) -> Iterator[Chunk]:
        """All usable rows in the order of the files.

        Raises:
          ValueError: a file without the columns that are needed, with mixed units, or no usable row at all.
        """
        numbers = file_steps(self.files)
        identities = _Identities()
        before = None
        for file, number in zip(self.files, numbers):
            chunks = self._file_chunks(file, number, identities)
            if len(self.files) > 1 and TRL_TABLE.match(file.name):
                chunks, before = self._unless_repeated(list(chunks), before)
            for chunk in chunks:
                self.rows += len(chunk.step)
                yield chunk
        if not self.rows:
            reasons = "; ".join(f"{count} {reason}" for reason, count in self.skipped.items()) or "the log is empty"
            raise ValueError(f"{', '.join(map(str, self.files[:3]))}: 0 usable rows ({reasons})")

    def notes(self) -> list[str]:
        """What a reader must know of the log, in sentences; after iteration."""
        rows = lambda count: "1 row was" if count == 1 else f"{count} rows were"
        said = [f"{rows(count)} skipped: {reason}." for reason, count in self.skipped.most_common()]
        if self.unit == "characters":
            said.append(
                "The log has texts and no token counts: lengths are in characters. Give --tokenizer to count tokens."
            )
        elif self.count is not None:
            said.append("Tokens were counted from the texts; the end token, where there was one, is not in them.")
        if self.selected:
            said.append(
                "rollouts.jsonl of this project holds a selection, the best, the worst and the longest wrong "
                "completion of some groups: its means are not those of the batches."
            )
        return said

    def _reader(self, row, file: Path, number: int | None, identities) -> _Reader:
        columns = resolve(row, self.chosen, str(file))
        if columns.step is None and number is None:
            raise ValueError(
                f"{file}: no column says the step, and there is one file; give several files (one a step), or name the "
                f"column with --step. Choose from {sorted(row)}"
            )
        unit = "characters" if columns.measure == "text" and self.count is None else "tokens"
        if self.unit not in ("", unit):
            raise ValueError(f"{file}: its lengths are in {unit}, those of the files before in {self.unit}")
        self.unit = unit
        if columns.format not in self.formats:
            self.formats.append(columns.format)
        self.names_prompts &= columns.prompt is not None
        if columns.reward not in self.rewards:
            self.rewards.append(columns.reward)
        return _Reader(columns, number, self, identities)

    def _unless_repeated(self, chunks: list[Chunk], before: np.ndarray | None):
        """(the chunks of a file, or none where it repeats the file before; its content). TRL writes its newest
        generation batch whenever it logs, which may be more often than it generates."""
        content = np.concatenate([np.zeros(0, np.uint64), *(chunk.content for chunk in chunks)])
        if len(content) and before is not None and np.array_equal(before, content):
            self.skipped["in a file that repeats the file before (logged more often than generated)"] += len(content)
            return [], content
        return chunks, content

    def _file_chunks(self, file: Path, number: int | None, identities: _Identities) -> Iterator[Chunk]:
        reader = None
        known: list[Columns] = []  # what is read of the file, as soon as its first row has said it
        for raw in raw_rows(file, self.skipped, known):
            if reader is None:
                reader = self._reader(raw, file, number, identities)
                known.append(reader.columns)
            reader.add(raw)
            if len(reader.rows) >= CHUNK:
                yield self._take(reader)
        if reader is not None and reader.rows:
            yield self._take(reader)

    def _take(self, reader: _Reader) -> Chunk:
        chunk = reader.take(self.correct_above)
        if reader.columns.format == "rlvr":
            self._largest = max(self._largest or 0, int(np.unique(chunk.group, return_counts=True)[1].max()))
        return chunk

    @property
    def selected(self) -> bool:
        """Whether the rows are those that this project's trainer keeps for reading: best, worst and longest wrong."""
        return self._largest is not None and self._largest <= KEPT


class _Identities:
    """Which rows were seen, two generations of them."""

    def __init__(self):
        self._new: set[int] = set()
        self._old: set[int] = set()

    def seen(self, key: int) -> bool:
        if key in self._new or key in self._old:
            return True
        self._new.add(key)
        if len(self._new) >= REMEMBERED:
            self._old, self._new = self._new, set()
        return False


class _Reader:
    """Rows of one file → lists of plain values."""

    def __init__(self, columns: Columns, number: int | None, log: Log, identities: _Identities):
        self.columns, self.number, self.skipped = columns, number, log.skipped
        self.limit, self.count, self.identities = log.limit, log.count, identities
        self._last = {"prompt": (None, 0), "group": (None, 0)}
        self.rows: list[tuple] = []

    def add(self, row: Mapping[str, Any]) -> None:
        columns = self.columns
        try:
            step = self.number if columns.step is None else row[columns.step]
            reward, measured = row[columns.reward], row[columns.length]
            prompt = row[columns.prompt] if columns.prompt else None
            group = row[columns.group] if columns.group else None
        except KeyError as error:
            self.skipped[f"without the column {error.args[0]!r} (a mixed schema?)"] += 1
            return
        if type(step) is not int or not -LARGEST_STEP < step < LARGEST_STEP:
            step = _whole(step)
            if step is None:
                self.skipped["with a step that is no whole number"] += 1
                return
        if not _number(reward):
            self.skipped["without a reward (not a finite number)"] += 1
            return
        length, text = self._length(measured)
        if length is None:
            self.skipped[f"whose {columns.measure} is no length"] += 1
            return
        if not 0 <= length < LENGTH_LIMIT:
            self.skipped["with a negative or impossible length"] += 1
            return
        end = self._end(row, length)
        content = hash((prompt if prompt.__hash__ else str(prompt), str(group), reward, length, text, end))
        if columns.identity and self.identities.seen(hash((step, content, str(row.get(columns.identity))))):
            self.skipped[f"twice in the log (same {columns.identity}, same content)"] += 1
            return
        if prompt is None and group is None:
            self.skipped["without a prompt or group"] += 1
            return
        within = self._hash("group", (step, group)) if group is not None else None
        problem = self._hash("prompt", prompt) if prompt is not None else within
        self.rows.append((step, problem, problem if within is None else within, reward, length, end, content))

    def _hash(self, kind: str, value) -> int:
        """Stable over processes, so that a bootstrap can be repeated; rows of one group follow one another."""
        if value == self._last[kind][0]:
            return self._last[kind][1]
        text = value if type(value) is str else json.dumps(value, sort_keys=True, default=str)
        digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
        self._last[kind] = value, int.from_bytes(digest, "little")
        return self._last[kind][1]

    def _length(self, value) -> tuple[float | None, str | None]:
        if self.columns.measure == "length":
            return (value, None) if _number(value) else (None, None)
        if self.columns.measure == "tokens":
            if isinstance(value, SEQUENCES):
                return len(value), None
            return (value, None) if _number(value) else (None, None)
        text = _text(value)
        if text is None:
            return None, None
        return (len(text) if self.count is None else self.count(text)), text

    def _end(self, row, length) -> int:
        name = self.columns.finished
        value = row.get(name) if name else None
        if value is None:
            return UNKNOWN if self.limit is None else FINISHED if length < self.limit else TRUNCATED
        if name == "finish_reason":
            return TRUNCATED if str(value) in ("length", "max_tokens") else FINISHED
        said = value.lower() not in ("false", "no", "0", "") if isinstance(value, str) else bool(value)
        return FINISHED if said != (name == "truncated") else TRUNCATED

    def take(self, correct_above: float) -> Chunk:
        steps, prompts, groups, rewards, lengths, ends, contents = zip(*self.rows)
        self.rows = []
        reward = np.asarray(rewards, np.float64)
        return Chunk(
            step=np.asarray(steps, np.int64),
            prompt=np.asarray(prompts, np.uint64),
            group=np.asarray(groups, np.uint64),
            reward=reward,
            correct=reward > correct_above,
            length=np.asarray(lengths, np.float64),
            finished=np.asarray(ends, np.int8),
            content=np.asarray(contents, np.int64).view(np.uint64),
        )


def _number(value) -> bool:
    """A finite number that a float can hold."""
    return isinstance(value, NUMBERS) and -LARGEST < value < LARGEST


def _whole(value) -> int | None:
    """A step: a whole number that 64 bits hold."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    return int(value) if -LARGEST_STEP < value < LARGEST_STEP else None


def _text(value) -> str | None:
    """A completion as text: itself, or what the assistant says in a list of chat messages."""
    if isinstance(value, str):
        return value
    if not isinstance(value, SEQUENCES):
        return None
    said = []
    for message in value:
        if not isinstance(message, Mapping):
            return None
        if message.get("role", "assistant") == "assistant" and isinstance(message.get("content"), str):
            said.append(message["content"])
    return "".join(said)
