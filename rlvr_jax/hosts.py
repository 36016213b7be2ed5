"""One program on several hosts: who this process is, arrays that span hosts, and what all must learn of each.

Every process runs the same steps. What only one knows (a verdict, a file's content, a failure) goes through `gather`
or `exchange`; then all know it, and all do the same next. With one process nothing of this costs anything.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

T = TypeVar("T")
PyTree = Any
SMALLEST = 4096  # bytes of one message; longer ones are rounded up to a power of two, so that few sizes are compiled


class OnEveryHost(Exception):
    """Mixed into an error that is raised on all processes: none of them is left waiting."""


class EveryHostValueError(OnEveryHost, ValueError):
    """A process refused its input."""


class EveryHostRuntimeError(OnEveryHost, RuntimeError):
    """A process failed; its stack is in the message."""


def start(coordinator: str = "", processes: int = 0, index: int = -1, *, wait_seconds: int = 300) -> None:
    """Joins the processes of one run, before any device work. Without arguments jax finds the others (TPU pods, GKE,
    Slurm, Open MPI); elsewhere all three are needed: process 0's HOST:PORT, how many there are, and which one this is.

    Raises:
      ValueError: some of the three are missing or impossible; or nothing tells jax where the others are.
      RuntimeError: the others did not come within `wait_seconds`, or devices were used before.
    """
    given = (bool(coordinator), processes > 0, index >= 0)
    if any(given) and not all(given):
        raise ValueError(
            f"--coordinator={coordinator!r} --processes={processes or None} --process-index={index}: give all three "
            "(processes ≥ 1, process-index ≥ 0), or only --distributed where jax finds them (TPU pods, GKE, Slurm)"
        )
    if coordinator and not coordinator.rpartition(":")[2].isdigit():
        raise ValueError(f"--coordinator={coordinator!r}: must be HOST:PORT, process 0's address and a free port there")
    if any(given) and index >= processes:
        raise ValueError(f"--process-index={index}: must be below --processes={processes}")
    jax.config.update("jax_enable_preemption_service", False)  # SIGTERM is handled by the loop
    where = (coordinator, processes, index) if coordinator else ()
    try:
        jax.distributed.initialize(*where, initialization_timeout=wait_seconds)
    except ValueError as error:
        raise ValueError(
            f"--distributed: jax finds no cluster here ({error}); give --coordinator=HOST:PORT --processes=N "
            "--process-index=I on every host"
        ) from None


def index() -> int:
    """Which process this is, 0 … count() − 1."""
    return jax.process_index()


def count() -> int:
    """How many processes this run has."""
    return jax.process_count()


def first() -> bool:
    """Whether this is the process that writes the run's files."""
    return jax.process_index() == 0


def label(process: int | None = None, host: str = "") -> str:
    """ "process 1 (worker-b)": how messages name a process, this one by default."""
    process = jax.process_index() if process is None else process
    host = host or (socket.gethostname() if process == jax.process_index() else "")
    return f"process {process}" + (f" ({host})" if host else "")


def put(x: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    """An array (a key, too) that every process has whole, as one global array: each copies the parts its devices hold.

    The copies are explicit ones, for a loop under a transfer guard."""
    if sharding.is_fully_addressable:
        return jax.device_put(x, sharding)
    x = x if isinstance(x, jax.Array) else np.asarray(x)
    places = sharding.addressable_devices_indices_map(x.shape)
    pieces = [jax.device_put(x[where], device) for device, where in places.items()]
    return jax.make_array_from_single_device_arrays(x.shape, sharding, pieces)


def own_rows(sharding: jax.sharding.Sharding, rows: int, process: int | None = None) -> np.ndarray:
    """Which rows of an array with `rows` rows in `sharding` a process (this one by default) answers for, i64[…] in
    order: of those it holds its share, so that each row is some process's and no two processes have it."""
    process = jax.process_index() if process is None else process
    holders: dict[tuple[int, int], set[int]] = {}
    for device, where in sharding.devices_indices_map((rows,)).items():
        begin, end, _ = where[0].indices(rows)
        holders.setdefault((begin, end), set()).add(device.process_index)
    own = [np.empty(0, np.int64)]
    for (begin, end), processes in sorted(holders.items()):
        if process in processes:
            shares = np.array_split(np.arange(begin, end), len(processes))
            own.append(shares[sorted(processes).index(process)])
    return np.concatenate(own)


def fetch_rows(tree: PyTree, rows: np.ndarray) -> PyTree:
    """Those rows of global arrays as numpy arrays; this process must hold them (see `own_rows`). One explicit copy."""
    leaves, structure = jax.tree.flatten(tree)
    fetched = jax.device_get([_pieces(x) for x in leaves])
    return structure.unflatten(_pick(pieces, rows) for pieces in fetched)


def _pieces(x: jax.Array) -> list[tuple[int, jax.Array]]:
    """(first row, part) of what this process holds of an array that is cut along its rows only."""
    if x.is_fully_addressable:
        return [(0, x)]
    parts = {shard.index[0].indices(x.shape[0])[0]: shard.data for shard in x.addressable_shards}
    return sorted(parts.items(), key=lambda item: item[0])


def _pick(pieces: list[tuple[int, np.ndarray]], rows: np.ndarray) -> np.ndarray:
    held = np.concatenate([np.arange(begin, begin + len(part)) for begin, part in pieces])
    whole = pieces[0][1] if len(pieces) == 1 else np.concatenate([part for _, part in pieces])
    if len(held) == len(rows) and (held == rows).all():
        return whole
    return whole[np.searchsorted(held, rows)]


def gather(value: T) -> list[T]:
    """What each process has, in their order, on every one of them. All must call it at the same point.

    Values are any Python objects that can be pickled; they travel as bytes through the devices' own network."""
    if jax.process_count() == 1:
        return [value]
    message = np.frombuffer(pickle.dumps(value), np.uint8)
    lengths = _exchange(np.asarray([message.size], np.int32))[:, 0]
    width = max(SMALLEST, 1 << int(lengths.max() - 1).bit_length())
    messages = _exchange(np.pad(message, (0, width - message.size)))
    return [pickle.loads(row[:length].tobytes()) for row, length in zip(messages, lengths)]


@functools.cache
def _by_process() -> jax.sharding.Mesh:
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    shape = (jax.process_count(), len(devices) // jax.process_count())
    return jax.sharding.Mesh(np.asarray(devices).reshape(shape), ("process", "device"), (AxisType.Auto,) * 2)


@functools.cache
def _to_everyone() -> Callable:
    return jax.jit(lambda x: x, out_shardings=NamedSharding(_by_process(), PartitionSpec()))


def _exchange(row: np.ndarray) -> np.ndarray:
    """Equal-sized rows, one a process → all of them [processes, …]."""
    sharding = NamedSharding(_by_process(), PartitionSpec("process"))
    pieces = [jax.device_put(row[None], device) for device in sharding.addressable_devices]
    whole = jax.make_array_from_single_device_arrays((jax.process_count(), *row.shape), sharding, pieces)
    return np.asarray(jax.device_get(_to_everyone()(whole).addressable_data(0)))


def exchange(work: Callable[[], T]) -> list[T]:
    """`gather(work())`, where an error of one process is raised on all of them, so that none waits for it for ever.

    Raises:
      ValueError: the first process that failed refused its input (ValueError, OSError, ImportError).
      RuntimeError: it failed otherwise; with its stack.
    """
    if jax.process_count() == 1:
        return [work()]
    value = failure = None
    try:
        value = work()
    except Exception as error:
        kind = EveryHostValueError if isinstance(error, (ValueError, OSError, ImportError)) else EveryHostRuntimeError
        stack = "" if kind is EveryHostValueError else "\n" + traceback.format_exc()
        failure = kind, f"{label()}: {error if str(error) else type(error).__name__}{stack}"
    answers = gather((value, failure))
    for _, failed in answers:
        if failed:
            kind, text = failed
            raise kind(text)
    return [value for value, _ in answers]


def together(work: Callable[[], T]) -> T:
    """`work()`, done by every process for itself; an error of one is raised on all, as `exchange` does."""
    own = []
    exchange(lambda: own.append(work()))
    return own[0]


def from_first(work: Callable[[], T]) -> T:
    """What `work` gives on the first process, on all of them; only there is it done. Raises as `exchange`."""
    return exchange(work if jax.process_index() == 0 else lambda: None)[0]


def agree(what: str, value: Any) -> None:
    """Checks that all processes have the same value.

    Raises:
      ValueError: names the processes that differ from the first, on all of them.
    """
    if jax.process_count() == 1:
        return
    values = gather((socket.gethostname(), value))
    different = [label(i, host) for i, (host, other) in enumerate(values) if other != values[0][1]]
    if different:
        detail = _difference(values[0][1], next(other for _, other in values if other != values[0][1]))
        raise EveryHostValueError(
            f"{what}: {', '.join(different)} has another than {label(0, values[0][0])}{detail}; every host must run "
            "the same program on the same files"
        )


def _difference(one: Any, other: Any) -> str:
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return f" ({other!r}, not {one!r})"
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)][:4]
    return f" ({'; '.join(f'{key}: {other.get(key)!r}, not {one.get(key)!r}' for key in keys)})"


class Channel:
    """Short texts that processes leave for one another beside the devices' network, in the store that process 0 keeps:
    it works while the devices wait. A store that does not answer any more reads as empty."""

    def __init__(self):
        from jax._src.distributed import global_state  # jax offers the store to libraries only there

        self._client = global_state.client

    def set(self, key: str, text: str) -> None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self._client.key_value_set(f"rlvr/{key}", text, allow_overwrite=True)

    def read(self, folder: str) -> dict[int, str]:
        """What each process has left in `folder`, by process."""
        try:
            found = self._client.key_value_dir_get(f"rlvr/{folder}/")
        except jax.errors.JaxRuntimeError:
            return {}
        return {int(key.rpartition("/")[2]): text for key, text in found}


def leave(status: int) -> None:
    """Ends this process at once, without waiting for the others as jax does at a regular end; output is flushed."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)
