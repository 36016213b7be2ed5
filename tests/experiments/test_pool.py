"""Tables side by side: longest first, one thread each; one that dies stops no other, nothing depends on how many."""

import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console
from synthetic_table import STEPS, small

from experiments import launch as launching
from experiments import pool
from experiments import table as tables
from experiments.display import Display, Job, clock_text
from experiments.launch import main
from experiments.launch_file import read_launches
from experiments.pool import Interrupted, environment_of_worker, job_of, run_jobs
from experiments.runs import Runs
from experiments.table import Panel, run_keys

# Workers without JAX, which say what they are, then do what their table's name says.
FAKE = """
import json, os, sys, time
events, name, folder = os.fdopen(int(sys.argv[1]), "w", buffering=1), sys.argv[2], sys.argv[3]
print(json.dumps({"say": f"  NPROC={os.environ['NPROC']}"}), file=events)
open(f"{folder}/{name}-{time.time_ns()}", "w").close()
print("a warning")
for block in range(3):
    if block == 1 and name == "dies":
        print("out of luck", file=sys.stderr, flush=True)
        os.kill(os.getpid(), 9)
    if block == 2 and name == "hangs":
        time.sleep(60)
    print(json.dumps({"block": 1}), file=events)
sys.exit(3 if name == "fails" else 0)
"""


@pytest.fixture
def fakes(monkeypatch):
    fake = lambda job, root, seeds, command, fd: [sys.executable, "-S", "-c", FAKE, str(fd), job.table, str(root)]
    monkeypatch.setattr(pool, "worker_command", fake)


def plain():
    return Console(file=io.StringIO(), width=200)


def test_the_longest_goes_first_and_the_dead_are_told(tmp_path, fakes):
    jobs = [Job("short", 3, 1.0), Job("dies", 3, 5.0), Job("long", 3, 9.0), Job("fails", 3, 4.0)]
    console = plain()
    failures = run_jobs(jobs, 1, tmp_path, console=console)
    started = sorted(os.listdir(tmp_path), key=lambda name: int(name.split("-")[1]))
    assert [name.split("-")[0] for name in started] == ["long", "dies", "fails", "short"]
    assert [(f.table, f.status, f.output) for f in failures] == [
        ("dies", -9, "a warning\nout of luck"), ("fails", 3, "a warning"),
    ]  # fmt: skip
    said = console.file.getvalue()
    assert "long: NPROC=1\n" in said and "short: done\n" in said
    assert "dies: FAILED: its worker was killed by signal 9; the last it said:\n    a warning\n    out of luck" in said


def test_a_failed_table_makes_the_command_fail(tmp_path, monkeypatch, fakes, capsys):
    monkeypatch.setattr(tables, "TABLES", tmp_path)
    for name in ("dies", "lives"):
        text = f"from synthetic_table import small\nTABLE = small(name={name!r})\n"
        (tmp_path / f"{name}.py").write_text(text)
    assert main(["--all", "--jobs", "2", "--root", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "1 of 2 tables failed: dies" in said.err
    assert "lives: done" in said.out and "out of luck" in said.out


def test_ctrl_c_ends_every_worker(tmp_path, monkeypatch, fakes):
    workers = []

    def show(display, running):
        workers.append(running)
        if display.done == 4:  # both hang at their third block
            raise KeyboardInterrupt

    started = pool.Worker.__init__
    processes = []

    def start(worker, *arguments):
        started(worker, *arguments)
        processes.append(worker.process)

    monkeypatch.setattr(Display, "show", show)
    monkeypatch.setattr(pool.Worker, "__init__", start)
    monkeypatch.setattr(pool, "PATIENCE", 2.0)
    jobs = [Job("hangs", 3, 1.0), Job("hangs", 3, 1.0), Job("waits", 3, 0.5)]
    with pytest.raises(Interrupted, match="4 of 9 blocks are done and kept"):
        run_jobs(jobs, 2, tmp_path, console=plain())
    assert len(processes) == 2 and all(process.returncode for process in processes)


def test_interrupted_is_130_and_names_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tables, "TABLES", tmp_path)
    (tmp_path / "small.py").write_text("from synthetic_table import small\nTABLE = small()\n")

    def stop(*_):
        raise Interrupted("1 of 3 blocks are done and kept")

    monkeypatch.setattr(launching, "run_jobs", stop)
    assert main(["small", "--jobs", "2", "--root", str(tmp_path)]) == 130
    error = capsys.readouterr().err
    assert "1 of 3 blocks are done" in error and f"experiments.launch small --jobs 2 --root {tmp_path}" in error


def test_cost_is_tokens(tmp_path):
    table = small(common={"steps": STEPS, "task": "lookup(prompts=16, options=4)"})
    todo = [key for key in run_keys(table) if key.seed != 3]
    job = job_of(table, Runs(table, tmp_path), todo)
    assert job == Job("small", 2, 2 * STEPS * 16 * 8 * 16 * 2)  # sampled, and one pass of one update
    panels = small(panels=(Panel("p", "P", "s", dict),))
    assert job_of(panels, Runs(panels, tmp_path), []) == Job("small", 0, 0.0)


def test_one_thread_whatever_is_set():
    given = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=true --xla_dump_to=x", "NPROC": "8", "HOME": "h"}
    found = environment_of_worker(given)
    assert found["NPROC"] == "1" and found["HOME"] == "h" and given["NPROC"] == "8"
    assert found["XLA_FLAGS"].split() == ["--xla_dump_to=x", "--xla_cpu_multi_thread_eigen=false"]


def test_time_left_is_by_work(tmp_path):
    now = [0.0]
    jobs = [small_job := Job("small", 2, 1.0), big := Job("big", 2, 4.0)]
    display = Display(jobs, plain(), clock=lambda: now[0])
    assert display.words() == "0/4 blocks, 0:00 so far"
    now[0] = 40.0
    display.add(big)
    assert display.words() == "1/4 blocks, 0:40 so far, about 1:00 left"
    now[0] = 50.0
    assert display.words() == "1/4 blocks, 0:50 so far, about 0:50 left"
    display.drop(big, 1)
    display.add(small_job)
    assert display.words() == "2/3 blocks, 0:50 so far, about 0:10 left"
    assert clock_text(3723.4) == "1:02:03"


def test_a_terminal_has_one_bar(tmp_path, fakes):
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    assert run_jobs([Job("a", 3, 1.0), Job("b", 3, 1.0)], 2, tmp_path, console=console) == []
    assert "blocks" in console.file.getvalue() and "a: done" in console.file.getvalue()


REAL = """
import sys
sys.path[:0] = ["tests/experiments", "."]
import numpy as np
from experiments import table, worker
from synthetic_table import small, curves_of
import rlvr_jax.lab
def run_block(configs, reference):
    import jax
    jax.block_until_ready(jax.numpy.arange(3))
    return [curves_of(key) for key in table.block_keys(small(), "", configs[0].seed)]
rlvr_jax.lab.run_block = run_block
worker.load = lambda name: small()
sys.exit(worker.main(sys.argv[1:]))
"""


def test_a_worker_writes_runs_and_where_they_come_from(tmp_path, monkeypatch):
    """The whole way but for the lab: worker, events, curves, launch.json with the command as it was typed."""
    fake = lambda job, root, seeds, command, fd: [
        sys.executable, "-c", REAL, str(fd), job.table, str(root), "2", command,
    ]  # fmt: skip
    monkeypatch.setattr(pool, "worker_command", fake)
    command = "python -m experiments.launch small --jobs 2 --seeds 2"
    assert run_jobs([Job("small", 2, 1.0)], 2, tmp_path, 2, command, plain()) == []
    runs = Runs(small(), tmp_path)
    assert [status.kind for status in runs.statuses().values()] == ["complete"] * 4 + ["missing"] * 2
    [entry] = read_launches(tmp_path / "small")
    assert (entry["command"], entry["runs"], entry["updates"]) == (command, 4, 4 * STEPS)


BITS = """
import sys, json
import numpy as np
from rlvr_jax.config import load_config
from rlvr_jax.lab import run_block
changes = ["steps=3", "group_size=4", "sampling.completion_length=4", "warm_start.updates=3", "policy.width=8",
           "task=lookup(prompts=4, options=4)"]
config = load_config("configs/lab.py:grpo", changes)
print(json.dumps({name: curve.tobytes().hex() for name, curve in run_block([config], config)[0].items()}))
"""


@pytest.mark.slow
def test_bits_do_not_depend_on_the_number_of_cores():
    """A worker's curves on one core are those on all: what one thread computes."""
    found = []
    for cores in (os.sched_getaffinity(0), {min(os.sched_getaffinity(0))}):
        done = subprocess.run(
            [sys.executable, "-c", BITS],
            cwd=tables.ROOT,
            env=environment_of_worker(os.environ),
            capture_output=True,
            check=True,
            preexec_fn=lambda cores=cores: os.sched_setaffinity(0, cores),
        )
        found.append(json.loads(done.stdout))
    assert found[0] == found[1] and np.isfinite(np.frombuffer(bytes.fromhex(found[0]["rollout/pass@1"]), "f4")).all()
