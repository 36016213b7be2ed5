"""The systems that are compared, each in a process of its own that waits while another works."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from work import Geometry, Job, completion_lengths

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@dataclasses.dataclass(frozen=True)
class System:
    """A python and the script it answers with. `setting` is the variable that names another python."""

    name: str
    title: str
    script: Path
    python: Path
    setting: str = ""

    @property
    def missing(self) -> str:
        """Why it cannot be measured; empty when it can."""
        if self.python.exists():
            return ""
        return f"{self.title} left out: {self.python} does not exist; set {self.setting} to a python that has it"


def find_systems(names, environment=None) -> list[System]:
    """Those of `names`, which are among "ours", "tunix" and "trl", in that order."""
    environment = os.environ if environment is None else environment
    found = []
    for name, title in (("ours", "rlvr_jax"), ("tunix", "Tunix"), ("trl", "transformers + TRL")):
        if name not in names:
            continue
        if name == "ours":
            found.append(System(name, title, HERE / "ours.py", Path(sys.executable)))
        else:
            setting = f"RLVR_{name.upper()}_PYTHON"
            python = Path(environment.get(setting) or ROOT / f".venv-{name}" / "bin" / "python")
            found.append(System(name, title, HERE / f"peer_{name}.py", python, setting))
    return found


CEILINGS = System("ceilings", "ceilings", HERE / "ceilings.py", Path(sys.executable))


class Failed(Exception):
    """A system could not do what it was asked: the last line it said, or how its process ended."""


class Running:
    """A system's process. `first_seconds` is how long its first call took, which compiles."""

    def __init__(self, system: System):
        self.system, self.log = system, tempfile.TemporaryFile("w+")  # noqa: SIM115
        # a cache of compiled programs, or the devices of a test, are no part of what is measured
        kept = {
            key: value for key, value in os.environ.items() if key not in ("JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS")
        }
        self.process = subprocess.Popen(
            [str(system.python), str(system.script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**kept, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
        )
        self.version = self._answer()["version"]
        self.first_seconds = 0.0

    def set_up(self, job: Job, name: str, geometry: Geometry) -> None:
        self._ask(
            job=dataclasses.asdict(job),
            name=name,
            lengths=completion_lengths(job).tolist(),
            geometry=dataclasses.asdict(geometry),
        )
        self.first_seconds = self.call(0)["seconds"]

    def call(self, seed: int) -> dict:
        """What the system answers: seconds, tokens, peak_gib (of the process), call_gib (during this call)."""
        return self._ask(seed=seed)

    def _ask(self, **question) -> dict:
        try:
            print(json.dumps(question), file=self.process.stdin, flush=True)
        except BrokenPipeError:
            raise Failed(self._last_words()) from None
        return self._answer()

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise Failed(self._last_words())
        reply = json.loads(line)
        if "error" in reply:
            raise Failed(reply["error"])
        return reply

    def _last_words(self) -> str:
        code = self.process.wait()
        if code == -9:
            return "its process was killed, as happens when memory runs out"
        self.log.seek(0)
        said = self.log.read().strip().splitlines()
        return f"its process ended with {code}: {said[-1][:200] if said else 'no message'}"

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has died, and a question was still on its way
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()
        self.log.close()
