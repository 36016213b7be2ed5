"""Two processes of four CPU devices each, and what the tests let them do.

Run as a program: `pair.py COORDINATOR COUNT INDEX TASK FOLDER [OVERRIDE…]`; the result of the task, a function of this
module, is FOLDER/TASK-INDEX.json.
"""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# a memory, a parameter of the estimator's own, and groups of 8 rows that lie across hosts of 12
STATEFUL = ("estimator.reweight=history", "estimator.aggregate=learnable")
QUICK = ("log.report=False", "checkpoint.keep=3", "optimizer.learning_rate=0.0003", *STATEFUL)
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "PYTHONPATH": str(HERE.parent)}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def launch(task: str, folder: Path, *overrides: str, processes: int = 2, devices: int = 4) -> list[subprocess.Popen]:
    """The processes, started."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, **ENVIRONMENT, "XLA_FLAGS": flags}
    command = [sys.executable, str(HERE / "pair.py"), f"127.0.0.1:{free_port()}", str(processes)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    start = lambda i: subprocess.Popen([*command, str(i), task, str(folder), *overrides], env=environment, **pipes)
    return [start(i) for i in range(processes)]


def finish(started: list[subprocess.Popen], seconds: float = 400) -> list[tuple[int, str]]:
    """(exit status, output) of each; those that do not end in time are killed and fail the test."""
    deadline, ended = time.monotonic() + seconds, []
    try:
        for process in started:
            output, _ = process.communicate(timeout=max(deadline - time.monotonic(), 1))
            ended.append((process.returncode, output))
    finally:
        for process in started:
            process.kill()
    return ended


def results(task: str, folder: Path, *overrides: str, processes: int = 2, devices: int = 4) -> list:
    """What the task gave in each process; all must end with status 0."""
    for status, output in finish(launch(task, folder, *overrides, processes=processes, devices=devices)):
        assert status == 0, output[-4000:]
    return [json.loads((folder / f"{task}-{i}.json").read_text()) for i in range(processes)]


def config_of(*overrides: str):
    import tiny

    from rlvr_jax.config import set_key

    config = tiny.get_config()
    config.steps, config.prompts_per_step, config.group_size, config.evaluate.problems = 5, 3, 8, 3
    for override in (*QUICK, *overrides):
        key, _, value = override.partition("=")
        set_key(config, key, value)
    return config


def metrics_of(workdir: Path) -> list[dict]:
    """What each step computed, without times."""
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]


def saved_arrays(workdir: Path, step: int | None = None) -> dict:
    """Name → array of the newest checkpoint (or another), read by plain Orbax without a mesh."""
    import jax
    import orbax.checkpoint as ocp

    steps = [int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit()]
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        path = workdir / "checkpoints" / str(max(steps) if step is None else step) / "state"
        tree = reader.metadata(path).item_metadata.tree
        args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=__import__("numpy").ndarray), tree)
        found = reader.restore(path, args=ocp.args.PyTreeRestore(restore_args=args))
    return {jax.tree_util.keystr(p, simple=True, separator="/"): x for p, x in jax.tree.leaves_with_path(found)}


# --- tasks: run in every process of a pair ---


def parity(task, tokenizer, rollouts, answers) -> list:
    """A verdict that a policy from scratch gets right half of the time: the tokens have an even sum."""
    from rlvr_jax.types import Verdict

    completions = rollouts.tokens[:, rollouts.prompt_mask.shape[1] :] * rollouts.completion_mask
    assert len(answers) == len(completions)
    return [Verdict(float(total % 2 == 0), str(total), "sum") for total in completions.sum(axis=1)]


def once(make):
    """`make`, which gives what it gave first."""
    made = []

    def again(*arguments):
        if not made:
            made.append(make(*arguments))
        return made[0]

    return again


def everything(folder: Path, *overrides: str) -> dict:
    """Messages, errors and rows; the doctor; five steps of training; a verifier that fails; SIGTERM."""
    import rlvr_jax.train as module

    for name in ("compile_functions", "make_evaluation"):  # once for the three runs, which differ in their length
        setattr(module, name, once(getattr(module, name)))
    seen = {**messages(), **rows(), **examined(folder)}
    training(folder, *overrides)
    seen["verify"] = failing_verify(folder, "steps=7", call=1)
    module.verify = parity
    seen["sigterm"] = sigterm(folder, "steps=7")
    return seen


def messages() -> dict:
    from rlvr_jax import hosts

    me, seen = hosts.index(), {}
    seen["gather"] = hosts.gather({"me": me, "long": "x" * 5000 * me})

    def fails():
        if me == 1:
            raise OSError("no such file")

    for name, work in {"refusal": fails, "failure": lambda: 1 / (1 - me)}.items():
        try:
            hosts.together(work)
        except hosts.OnEveryHost as error:
            seen[name] = [type(error).__name__, str(error)]
    try:
        hosts.agree("config", {"steps": 3 + me, "seed": 0})
    except ValueError as error:
        seen["disagreement"] = str(error)
    seen["first"] = hosts.from_first(lambda: me + 40)
    seen["uneven"] = uneven_files()
    return seen


def uneven_files() -> str:
    """The refusal of a data file that has 11 lines on one host and 10 on the other."""
    import tempfile

    from rlvr_jax import hosts
    from rlvr_jax.config import check
    from rlvr_jax.run import make_parts, make_stream

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # the same config on both
        lines = [json.dumps({"question": f"{i}+1=", "answer": i + 1}) for i in range(11 - hosts.index())]
        Path("train.jsonl").write_text("\n".join(lines))
        Path("held_out.jsonl").write_text("\n".join(json.dumps({"question": f"{i}-0=", "answer": i}) for i in range(3)))
        config = config_of("task=jsonl(train='train.jsonl', held_out='held_out.jsonl')", "sampling.prompt_length=8")
        try:
            make_stream(config, make_parts(config, check(config, 8)))
        except ValueError as error:
            return str(error)
        finally:
            os.chdir(ROOT)
    return ""


def rows() -> dict:
    import jax
    import numpy as np

    from rlvr_jax import hosts
    from rlvr_jax.sharding import make_mesh, put_rows, rows_sharding

    x, mesh, seen = np.arange(48, dtype=np.float32).reshape(24, 2), make_mesh(), {}
    with jax.transfer_guard("disallow"):
        placed = put_rows({"x": x, "odd": x[:5]}, mesh)  # 5 rows cannot be cut: every host has all
    own, odd = (hosts.own_rows(rows_sharding(mesh, count), count) for count in (24, 5))
    seen["own"], seen["odd"] = own.tolist(), odd.tolist()
    seen["fetched"] = hosts.fetch_rows(placed, odd)["odd"].tolist()
    seen["rows"] = bool((hosts.fetch_rows(placed["x"], own) == x[own]).all())
    return seen


def examined(folder: Path) -> dict:
    """The doctor on one directory, and on two that the processes take for one: no shared file system."""
    from rlvr_jax import doctor, hosts, workdir

    seen = {"doctor": [list(check) for check in doctor.examine(str(folder / "run"), config_of())]}
    apart = folder / f"host-{hosts.index()}"
    seen["apart"] = list(doctor.check_workdir(doctor.gather_facts(str(apart)), "run"))
    real, workdir._await_sign = workdir._await_sign, lambda path, run: real(path, run, 0.5)
    try:
        with workdir.claim_together(apart, config_of()):
            pass
    except ValueError as error:
        seen["claimed apart"] = str(error)
    workdir._await_sign = real
    return seen


def training(folder: Path, *overrides: str, verify=None) -> dict:
    import rlvr_jax.train as module

    module.verify = verify or parity
    module.train(config_of(*overrides), folder / "run", quiet=True)
    return {}


def slow_training(folder: Path, *overrides: str) -> dict:
    """Steps of half a second, to be killed in."""

    def verify(*arguments):
        time.sleep(0.5)
        return parity(*arguments)

    return training(folder, *overrides, verify=verify)


def failing_verify(folder: Path, *overrides: str, call: int = 3) -> dict:
    """The second process cannot verify in its third step."""
    import rlvr_jax.train as module
    from rlvr_jax import hosts

    calls = []

    def verify(*arguments):
        calls.append(1)
        if hosts.index() == 1 and len(calls) == call:
            raise RuntimeError("the verifier lost its wits")
        return parity(*arguments)

    module.verify = verify
    try:
        module.train(config_of(*overrides), folder / "run", quiet=True)
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error)}
    return {}


def sigterm(folder: Path, *overrides: str) -> dict:
    """The second process gets SIGTERM in its first step, when the sample is there."""
    import signal

    import rlvr_jax.train as module
    from rlvr_jax import hosts

    real_fetch = module.fetch

    def fetch(*arguments):
        seen = real_fetch(*arguments)
        if hosts.index() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.3)
        return seen

    module.fetch, module.verify = fetch, parity
    try:
        module.train(config_of(*overrides), folder / "run", quiet=True)
    except SystemExit as stopped:
        whole = sorted(int(path.name) for path in (folder / "run" / "checkpoints").iterdir() if path.name.isdigit())
        return {"status": stopped.code, "steps": whole}
    finally:
        module.fetch = real_fetch
    return {}


def stuck_verify(folder: Path, *overrides: str) -> dict:
    """The second process never ends verifying in its third step."""
    from rlvr_jax import hosts

    calls = []

    def verify(*arguments):
        calls.append(1)
        if hosts.index() == 1 and len(calls) == 3:
            time.sleep(600)
        return parity(*arguments)

    return training(folder, *overrides, verify=verify)


def broken_data(folder: Path, *overrides: str) -> dict:
    """The second process fails where no other waits for its word: between two steps."""
    from rlvr_jax import hosts
    from rlvr_jax.data import PromptStream

    real, calls = PromptStream.__next__, []

    def following(self):
        calls.append(1)
        if hosts.index() == 1 and len(calls) == 3:
            raise OSError("the disk is gone")
        return real(self)

    PromptStream.__next__ = following
    try:
        training(folder, *overrides)
    except OSError as error:
        print(f"ends: {error}", flush=True)
        hosts.leave(2)
    return {}


if __name__ == "__main__":
    coordinator, count, index, task, folder, *overrides = sys.argv[1:]
    from rlvr_jax import hosts

    if int(count) > 1:
        hosts.start(coordinator, int(count), int(index))
    found = globals()[task](Path(folder), *overrides)
    (Path(folder) / f"{task}-{index}.json").write_text(json.dumps(found))
