"""A run's directory: whose it is, and where it was made."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import jax
from ml_collections import ConfigDict

from rlvr_jax.config import differences, flatten


def open_workdir(workdir: str | Path, config: ConfigDict) -> Path:
    """The directory of a run, checked: new, empty, or of this very config. Writes nothing.

    Raises:
      ValueError: it holds a run of another config (the keys that differ are named), or something else.
    """
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
def claim(workdir: Path, config: ConfigDict):
    """Holds the directory for one process, since two that write the same files would ruin both runs; writes
    config.json there.

    Raises:
      ValueError: another process is at work there.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    with (workdir / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"workdir={workdir}: another process is training there") from None
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
    names = ("rlvr-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
    return {
        "commit": _commit(),
        "python": platform.python_version(),
        "device": f"{jax.device_count()} × {device.device_kind}",
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        **{name: version(name) for name in names},
    }


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
