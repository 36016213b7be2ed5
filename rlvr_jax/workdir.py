"""A run's directory: whose it is, and where it was made."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import subprocess
import time
import uuid
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jax
from ml_collections import ConfigDict

from rlvr_jax import hosts
from rlvr_jax.config import differences, flatten


def open_workdir(workdir: str | Path, config: ConfigDict) -> Path:
    """The directory of a run, checked: new, empty, or of this very config. Writes nothing.

    Raises:
      ValueError: it holds a run of another config (the keys that differ are named), or something else.
    """
    if "://" in str(workdir):
        raise ValueError(
            f"workdir={workdir}: must be a directory; mount the bucket on every host (gcsfuse BUCKET /mnt/BUCKET) and "
            "name a directory there"
        )
    workdir = Path(workdir)
    for part in (workdir, *workdir.parents):
        if part.exists() and not part.is_dir():
            raise ValueError(f"workdir={workdir}: {part} is a file, not a directory")
    saved = read_config(workdir)
    if saved is None:
        if workdir.is_dir() and any(path.name != ".lock" for path in workdir.iterdir()):
            raise ValueError(
                f"workdir={workdir}: holds files but no config.json, so no run to go on with; name another"
            )
        return workdir
    different = differences(flatten(config), flatten(saved))
    if different:
        raise ValueError(
            f"workdir={workdir}: holds a run of another config; name another workdir, or set these back "
            f"(there → here): {'; '.join(different)}"
        )
    return workdir


@contextlib.contextmanager
def claim_together(workdir: Path, config: ConfigDict):
    """`claim` by the first of several processes, and the check that every other sees the same directory.

    Raises:
      ValueError: another run is at work there, or a host sees another directory of this name; on all hosts.
    """
    with contextlib.ExitStack() as stack:
        run = hosts.from_first(lambda: uuid.uuid4().hex)
        hosts.from_first(lambda: stack.enter_context(claim(workdir, config, run)))
        hosts.together(lambda: _await_sign(workdir, run))
        yield


def _await_sign(workdir: Path, run: str, seconds: float = 10.0) -> None:
    """Waits for what `claim` has written to be seen here: a network's file systems take their time."""
    deadline = time.monotonic() + seconds
    while not (workdir / ".lock").exists() or (workdir / ".lock").read_text() != run:
        if time.monotonic() > deadline:
            raise ValueError(
                f"workdir={workdir}: is not the directory that process 0 sees under this name; mount one (NFS, "
                "gcsfuse) on all hosts"
            )
        time.sleep(0.2)


@contextlib.contextmanager
def claim(workdir: Path, config: ConfigDict, run: str = ""):
    """Holds the directory for one run, since two that write the same files would ruin both; writes config.json there.
    `run`: what to write into the lock, a sign for other hosts.

    Raises:
      ValueError: another process is at work there.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    with (workdir / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"workdir={workdir}: another process is training there") from None
        file.truncate(0)
        file.write(run)
        file.flush()
        os.fsync(file.fileno())
        save_config(workdir, config)
        yield


def read_config(workdir: str | Path) -> dict | None:
    """The config of the run in `workdir` as a nested dict, without its environment; None if there is none."""
    path = Path(workdir) / "config.json"
    if not path.exists():
        return None
    try:
        saved = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not a config ({error}); name another workdir") from None
    if not isinstance(saved, dict):
        raise ValueError(f"{path}: not a config (not a JSON object); name another workdir")
    saved.pop("environment", None)
    return saved


def save_config(workdir: Path, config: ConfigDict) -> None:
    """Writes config.json, the environment beside the keys, whole or not at all."""
    workdir.mkdir(parents=True, exist_ok=True)
    partial = workdir / "config.json.partial"
    partial.write_text(json.dumps({**config.to_dict(), "environment": environment()}, indent=1))
    os.replace(partial, workdir / "config.json")


def environment() -> dict[str, str]:
    """What a number of this run was made with."""
    device = jax.devices()[0]
    return {
        "commit": _commit(),
        "hosts": str(hosts.count()),
        "device": f"{jax.device_count()} × {device.device_kind}",
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        **versions(),
    }


def versions() -> dict[str, str]:
    """What must be the same on all hosts of a run: the packages that compute, "–" where one is not installed."""
    names = ("rlvr-jax", "jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "–"
    return found


def _commit() -> str:
    """The commit of the checkout this package lies in, with "+changes" if it was changed; "unknown" outside one."""
    here = Path(__file__).resolve().parent
    try:
        git = lambda *words: subprocess.run(
            ["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
