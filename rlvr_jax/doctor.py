"""What can keep a run from working on its hosts, looked for before it starts: `rlvr doctor`.

Every process gathers its `Facts`; all have all of them, and judge alike. Nothing of a model is made.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlvr_jax import hosts
from rlvr_jax.config import check
from rlvr_jax.workdir import open_workdir, versions

CLOCKS = 2.0  # seconds by which two hosts' clocks may differ: files and logs are put in order by time
TAKEN = 0.05  # share of a device's memory that may be in use before anything was put there
SPACE = 2**30  # bytes free in the workdir, at least
MEBIBYTES = 64  # of each device's part of the timed collective
SLOW = 1.0  # GB/s a device below which a network between hosts is not used as it should be


class Facts(NamedTuple):
    """What one process knows of its host."""

    host: str
    versions: dict[str, str]
    clock: float  # seconds since 1970, taken by all at one moment
    devices: tuple[str, ...]  # their kinds
    memory: tuple[tuple[int, int] | None, ...]  # (bytes in use, bytes there are) of each; None: not reported
    write_error: str  # why nothing can be written to the workdir; "" if it can
    unseen: tuple[int, ...]  # processes whose files in the workdir this one does not see
    free_bytes: int | None  # in the workdir


class Check(NamedTuple):
    """A line of the table."""

    name: str
    well: bool
    found: str
    remedy: str = ""  # "" where all is well


def examine(workdir: str | None = None, config: ConfigDict | None = None) -> list[Check]:
    """All checks, the same on every process; they must call it together."""
    facts = gather_facts(workdir)
    checks = [
        check_versions(facts),
        check_clocks(facts),
        check_devices(facts),
        check_memory(facts),
        check_collective(*time_collective(MEBIBYTES), several=len(facts) > 1, where=facts),
    ]
    if workdir is not None:
        checks.append(check_workdir(facts, workdir))
    if config is not None:
        checks.append(check_config(config, workdir))
    return checks


def gather_facts(workdir: str | None) -> list[Facts]:
    """The facts of every process, in their order."""
    write_error, unseen, free = visit(workdir) if workdir is not None else ("", (), None)
    hosts.gather(None)  # all are here: what follows happens at one moment
    clock = time.time()
    devices = jax.local_devices()
    facts = Facts(
        host=socket.gethostname(),
        versions=versions(),
        clock=clock,
        devices=tuple(device.device_kind for device in devices),
        memory=tuple(_memory(device) for device in devices),
        write_error=write_error,
        unseen=unseen,
        free_bytes=free,
    )
    return hosts.gather(facts)


def _memory(device: Any) -> tuple[int, int] | None:
    seen = device.memory_stats() or {}
    return (seen.get("bytes_in_use", 0), seen["bytes_limit"]) if "bytes_limit" in seen else None


def visit(workdir: str) -> tuple[str, tuple[int, ...], int | None]:
    """(why this process cannot write to the workdir, whose files it does not see there, bytes free).

    Each process writes a file and looks for those of all; they are removed again, and a directory made for them too."""
    folder, count = Path(workdir), hosts.count()
    run = hosts.from_first(lambda: uuid.uuid4().hex)
    name = lambda process: folder / f".doctor-{process}-{run}"
    made, error, free = not folder.exists(), "", None
    try:
        if "://" in workdir:
            raise OSError("it is no directory")
        folder.mkdir(parents=True, exist_ok=True)
        name(hosts.index()).write_text(run)
        free = shutil.disk_usage(folder).free
    except OSError as found:
        error = found.strerror or str(found)
    wrote = hosts.gather(not error)
    wanted = [process for process in range(count) if wrote[process]]
    deadline = time.monotonic() + 10.0
    while not error and time.monotonic() < deadline and not all(name(process).exists() for process in wanted):
        time.sleep(0.2)
    unseen = () if error else tuple(process for process in wanted if not name(process).exists())
    hosts.gather(None)  # all have looked
    with contextlib.suppress(OSError):
        name(hosts.index()).unlink(missing_ok=True)
    hosts.gather(None)
    with contextlib.suppress(OSError):
        if made:
            folder.rmdir()
    return error, unseen, free


def time_collective(mebibytes: int) -> tuple[float, float, bool]:
    """(seconds, GB/s a device, right?) of the sum over all devices of an array of that size on each."""
    devices = np.asarray(jax.devices())
    mesh = jax.sharding.Mesh(devices, ("all",), (AxisType.Auto,))
    length = mebibytes * 2**20 // 4
    cut, whole = NamedSharding(mesh, PartitionSpec("all")), NamedSharding(mesh, PartitionSpec())
    place = {device: i for i, device in enumerate(devices)}
    pieces = [jax.device_put(np.full((1, length), place[d] + 1, np.float32), d) for d in cut.addressable_devices]
    parts = jax.make_array_from_single_device_arrays((len(devices), length), cut, pieces)
    add = jax.jit(lambda x: x.sum(axis=0), out_shardings=whole)
    jax.block_until_ready(add(parts))
    hosts.gather(None)
    begun = time.perf_counter()
    total = jax.block_until_ready(add(parts))
    seconds = time.perf_counter() - begun
    # a sum over n devices moves 2·(n − 1)/n of the array through each of them
    moved = 2 * (len(devices) - 1) / len(devices) * length * 4
    wanted = len(devices) * (len(devices) + 1) / 2
    right = bool((np.asarray(jax.device_get(total.addressable_data(0))) == wanted).all())
    return seconds, moved / seconds / 1e9, right


# --- judgements: facts in, one line of the table out ---


def check_versions(facts: Sequence[Facts]) -> Check:
    first, different = facts[0].versions, []
    for process, fact in enumerate(facts):
        for package in {**first, **fact.versions}:
            here, there = fact.versions.get(package, "–"), first.get(package, "–")
            if here != there:
                different.append(f"{hosts.label(process, fact.host)} has {package} {here}, process 0 has {there}")
    if different:
        return Check("versions", False, "; ".join(different), "install the same lock on every host (make setup)")
    names = ("python", "jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint")
    return Check("versions", True, ", ".join(f"{name} {first[name]}" for name in names if first.get(name, "–") != "–"))


def check_clocks(facts: Sequence[Facts]) -> Check:
    apart = [fact.clock - facts[0].clock for fact in facts]
    worst = max(range(len(facts)), key=lambda process: abs(apart[process]))
    found = f"at most {abs(apart[worst]):.2f} s apart" if len(facts) > 1 else "one host"
    if abs(apart[worst]) <= CLOCKS:
        return Check("clocks", True, found)
    found = f"{hosts.label(worst, facts[worst].host)} is {apart[worst]:+.1f} s from process 0"
    return Check("clocks", False, found, "set it by the network's time (chronyd, or systemd-timesyncd)")


def check_devices(facts: Sequence[Facts]) -> Check:
    first = facts[0].devices
    kinds = lambda devices: " + ".join(f"{devices.count(kind)} × {kind}" for kind in dict.fromkeys(devices)) or "none"
    different = [
        f"{hosts.label(process, fact.host)} has {kinds(fact.devices)}, process 0 has {kinds(first)}"
        for process, fact in enumerate(facts)
        if fact.devices != first
    ]
    if different:
        remedy = "end other programs that hold devices there (sudo lsof /dev/accel*), or replace the worker"
        return Check("devices", False, "; ".join(different), remedy)
    many = f"{len(facts)} hosts with {kinds(first)} each" if len(facts) > 1 else kinds(first)
    return Check("devices", True, many)


def check_memory(facts: Sequence[Facts]) -> Check:
    reported = [(p, fact.host, use) for p, fact in enumerate(facts) for use in fact.memory if use is not None]
    if not reported:
        return Check("device memory", True, f"not reported by {facts[0].devices[0]} devices")
    taken = [(p, host, used) for p, host, (used, there) in reported if used > TAKEN * there]
    least, most = (pick(there for _, _, (_, there) in reported) / 2**30 for pick in (min, max))
    if taken:
        process, host, used = max(taken, key=lambda item: item[2])
        found = f"{hosts.label(process, host)}: {used / 2**30:.1f} GiB of a device are in use already"
        return Check("device memory", False, found, "end the program that holds them")
    if least < 0.99 * most:
        found = f"{least:.1f} to {most:.1f} GiB a device"
        return Check("device memory", False, found, "use devices of one kind; a run needs the same on all")
    return Check("device memory", True, f"{least:.1f} GiB a device")


def check_workdir(facts: Sequence[Facts], workdir: str) -> Check:
    shut = [(process, fact) for process, fact in enumerate(facts) if fact.write_error]
    if shut:
        found = "; ".join(f"{hosts.label(process, fact.host)}: {fact.write_error}" for process, fact in shut)
        remedy = f"make {workdir} a directory that this user may write to on every host (mount, chown)"
        return Check("workdir", False, f"cannot be written: {found}", remedy)
    blind = [(process, fact) for process, fact in enumerate(facts) if fact.unseen]
    if blind:
        process, fact = blind[0]
        others = ", ".join(hosts.label(other, facts[other].host) for other in fact.unseen)
        found = f"{hosts.label(process, fact.host)} does not see what {others} wrote: not one directory"
        return Check("workdir", False, found, "mount one file system there on all hosts (NFS, or gcsfuse)")
    free = min(fact.free_bytes for fact in facts)
    if free < SPACE:
        return Check("workdir", False, f"{free / 2**30:.2f} GiB free", "make room: a checkpoint is 12 bytes a weight")
    seen = "one directory for all hosts, " if len(facts) > 1 else ""
    return Check("workdir", True, f"{seen}can be written, {free / 2**30:.0f} GiB free")


def check_collective(seconds: float, rate: float, right: bool, *, several: bool, where: Sequence[Facts]) -> Check:
    count = sum(len(fact.devices) for fact in where)
    if count == 1:
        return Check("collective", right, "one device", "" if right else "the device computes wrongly: replace it")
    found = f"{MEBIBYTES} MiB summed over {count} devices in {1e3 * seconds:.0f} ms, {rate:.2g} GB/s a device"
    if not right:
        return Check("collective", False, f"{found}, and the sum is wrong", "replace the slice; report it")
    if several and rate < SLOW and where[0].devices[0] != "cpu":
        return Check("collective", False, found, "are all workers of one slice? Look at the network between them")
    return Check("collective", True, found)


def check_config(config: ConfigDict, workdir: str | None) -> Check:
    """The config on this number of devices, and the run it would go on with; an error of any host is everyone's."""
    try:
        hosts.together(lambda: check(config, jax.device_count()))
        if workdir is not None and "://" not in workdir:
            hosts.from_first(lambda: open_workdir(workdir, config) and None)
    except (ValueError, OSError, ImportError) as error:
        return Check("config", False, " ".join(str(error).split()), "change the key that is named")
    rows = config.prompts_per_step * config.group_size
    return Check("config", True, f"{rows} rows a step on {jax.device_count()} devices")


def show(checks: Sequence[Check], console: Console | None = None) -> None:
    """The table, printed by the first process."""
    if not hosts.first():
        return
    console = console or Console()
    table = Table(box=None, padding=(0, 1, 0, 0), width=min(console.width, 100))
    for name in ("", "check", "found"):
        table.add_column(name, style="bold" if name == "check" else "", overflow="fold", no_wrap=name != "found")
    for line in checks:
        found = Text(line.found)
        if not line.well:
            found.append(f"\n→ {line.remedy}", style="bold")
        table.add_row(Text("ok", "green") if line.well else Text("FAILS", "bold red"), line.name, found)
    console.print(table)
    failed = sum(not line.well for line in checks)
    console.print(f"{failed} of {len(checks)} checks failed" if failed else f"all {len(checks)} checks are well")
