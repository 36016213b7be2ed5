"""A step that stands still is named and ended; SIGTERM; what a process says of others."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import pytest
from pair import config_of, parity

import rlvr_jax.train as train_module
from rlvr_jax import hosts, watchdog
from rlvr_jax.checkpoint import Checkpoints
from rlvr_jax.config import check
from rlvr_jax.run import abstract_state, make_parts
from rlvr_jax.watchdog import LOST, STOPPED, STUCK, Beat, Stop, Stopped, Watch

pytestmark = pytest.mark.usefixtures("quick_compiles")


class Ended(list):
    """What was said, and the status it ended with."""

    def __init__(self):
        super().__init__()
        self.status, self.done = None, threading.Event()

    def leave(self, status):
        self.status = status
        self.done.set()


@pytest.fixture
def ended():
    return Ended()


def watch_of(ended, *limits):
    return Watch(*limits, interval=0.05, say=ended.append, leave=ended.leave)


def test_a_step_that_does_not_end_is_named_with_its_point(ended, capfd):
    with watch_of(ended, 0.2, 30.0) as watch:
        watch.step(0)  # compiles: the longer limit
        time.sleep(0.4)
        assert ended.status is None
        for step in (1, 2):
            watch.step(step)
            watch.reach("sample")
            time.sleep(0.1)
        watch.reach("verify")
        assert watch.where == "step 2, verify"
        assert ended.done.wait(5)
    assert ended.status == STUCK == 76
    assert "process 0 (" in ended[0] and "step 2 did not end within 0.2 s (config.watchdog.step_seconds)" in ended[0]
    assert ": step 2, verify, for 0 s" in ended[0]
    assert "Start again with the same command" in ended[1]
    assert "test_watchdog.py" in capfd.readouterr().err  # the stacks


def test_reaching_a_point_does_not_begin_the_step_anew(ended):
    with watch_of(ended, 0.3, 30.0) as watch:
        watch.step(0)
        watch.step(1)
        for _ in range(40):
            watch.reach("verify")
            if ended.done.wait(0.02):
                break
    assert ended.status == STUCK


def test_what_is_no_step_has_its_own_limit(ended):
    with watch_of(ended, 0.1, 0.4) as watch:
        watch.step(0)
        watch.other("the evaluation of step 1")
        time.sleep(0.25)
        assert ended.status is None
        assert ended.done.wait(5)
    assert "the evaluation of step 1 did not end within 0.4 s (config.watchdog.other_seconds)" in ended[0]


def test_without_a_limit_nothing_watches(ended):
    with watch_of(ended, 0.0, 0.1) as watch:
        watch.step(0)
        assert not watch._thread.is_alive()
        time.sleep(0.3)
    assert ended.status is None


class Store(dict):
    """Stands for jax's key-value store."""

    def set(self, key, text):
        self[key] = text

    def read(self, folder):
        inside = {key: text for key, text in self.items() if key.startswith(f"{folder}/")}
        return {int(key.rpartition("/")[2]): text for key, text in inside.items()}


@pytest.fixture
def three(monkeypatch):
    """This process as the first of three; the store they share."""
    store = Store()
    monkeypatch.setattr(hosts, "count", lambda: 3)
    monkeypatch.setattr(hosts, "Channel", lambda: store)
    beat = lambda process, *rest: store.set(f"beats/{process}", watchdog.json.dumps(Beat(f"host-{process}", *rest)))
    store.beat = beat
    return store


def test_who_is_behind(ended, three):
    three.beat(1, 5, 4, "step 0, update", 1.0)
    three.beat(2, 5, 3, "step 0, verify", 2.0)
    with watch_of(ended, 0.3, 30.0, 60.0) as watch:
        watch.step(0)
        for point in ("sample", "verify", "update"):
            watch.reach(point)
        time.sleep(0.2)
        lines = watch.table().splitlines()
    assert len(lines) == 3 and [i for i, line in enumerate(lines) if "← behind" in line] == [2]
    assert lines[2].startswith("  process 2 (host-2): step 0, verify, for 2 s")


def test_a_silent_host_is_gone(ended, three):
    three.beat(2, 1, 3, "step 0, verify", 0.0)
    with watch_of(ended, 0.0, 0.0, 0.4) as watch:
        watch.step(0)
        for beat in range(12):  # process 1 lives, process 2 says nothing more
            three.beat(1, beat, 3, "step 0, update", 0.0)
            if ended.done.wait(0.1):
                break
    assert ended.status == LOST == 77
    assert ended[0].startswith("process 2 (host-2) is gone: not heard of for ")
    assert "last reached point: step 0, verify" in ended[0]


def test_a_host_that_says_why_it_ends_is_followed(ended, three):
    failure = {"status": 1, "host": "host-1", "where": "step 3, prompts", "text": "OSError: the disk is gone"}
    three["failed/1"] = watchdog.json.dumps(failure)
    with watch_of(ended, 0.0, 0.0, 60.0):
        assert ended.done.wait(5)
    assert ended.status == LOST
    assert "process 1 (host-1) failed at step 3, prompts: OSError: the disk is gone" in ended[0]


def test_an_error_of_this_host_is_told_to_the_others(ended, three):
    told = []

    def others():
        while "failed/0" not in three:
            time.sleep(0.01)
        told.append(watchdog.json.loads(three["failed/0"]))
        three["failed/1"] = three["failed/2"] = "{}"

    reader = threading.Thread(target=others)
    reader.start()
    watch = watch_of(ended)
    with pytest.raises(KeyError), watch:
        watch.step(4)
        watch._ended.set()  # of this test's thread: only what the context does is looked at
        raise KeyError("lost")
    reader.join()
    assert told == [
        {"status": 1, "host": hosts.socket.gethostname(), "where": "step 4, prompts", "text": "KeyError: 'lost'"}
    ]


def test_an_error_that_all_have_is_told_to_nobody(three):
    with pytest.raises(hosts.EveryHostValueError), Watch(interval=0.05):
        raise hosts.EveryHostValueError("no")
    assert not three.read("failed")


# --- SIGTERM ---


def test_sigterm_is_noted_at_once_and_ends_what_does_not_end(ended, capsys):
    """Also while the main thread waits in native code, where no Python handler runs."""
    with Stop(
        0.3, late=lambda: "step 2, update has not ended; the newest checkpoint is of step 2", leave=ended.leave
    ) as stop:
        assert not stop.asked
        os.kill(os.getpid(), signal.SIGTERM)
        assert ended.done.wait(5) and stop.asked
    assert ended.status == STOPPED == 75
    assert "SIGTERM, and after 0.3 s step 2, update has not ended" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_run_that_ends_in_time_is_left_alone(ended):
    with Stop(0.3, leave=ended.leave) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)
    time.sleep(0.4)
    assert stop.asked and ended.status is None


@pytest.mark.slow
def test_sigterm_saves_the_step_and_the_run_goes_on_from_it(tmp_path, monkeypatch):
    """Bit for bit as if it had not been stopped."""
    monkeypatch.setattr(train_module, "verify", parity)
    config = config_of("steps=4")
    train_module.train(config, tmp_path / "whole", quiet=True)
    calls = []

    def verify(*arguments):
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return parity(*arguments)

    monkeypatch.setattr(train_module, "verify", verify)
    with pytest.raises(Stopped) as stopped:
        train_module.train(config, tmp_path / "stopped", quiet=True)
    assert stopped.value.code == 75
    states = []
    train_module.train(config, tmp_path / "stopped", quiet=True)
    for name in ("whole", "stopped"):
        with Checkpoints(tmp_path / name, create=False) as checkpoints:
            assert checkpoints.steps() == ([4] if name == "whole" else [2, 4])
            states.append(checkpoints.restore(abstract_state(make_parts(config, check(config))))[0])
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), *states)))


def test_the_interpreter_held_by_native_code_is_ended_too():
    """A regular expression that backtracks for ever holds the interpreter: no Python thread runs, a native one does."""
    program = """
import faulthandler, re
from rlvr_jax import watchdog
later = faulthandler.dump_traceback_later
faulthandler.dump_traceback_later = lambda seconds, **more: later(1.0, **more)
with watchdog.Watch(0.5, 0.5) as watch:
    watch.step(0)
    watch.step(1)
    re.match(r"(a+)+b", "a" * 64)
"""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    root = Path(__file__).resolve().parent.parent.parent
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=root, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1 and "Timeout" in done.stderr and "line 9 in <module>" in done.stderr
