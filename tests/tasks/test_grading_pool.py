"""The pool: limits that kill, faults that are no zeros, order, any thread, and nothing of jax in a grading process."""

import asyncio
import concurrent.futures
import math
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rlvr_jax.tasks.grade import Item
from rlvr_jax.tasks.pool import Local, Pool, make_pool

HERE = str(Path(__file__).parent)
MISBEHAVE = "pool_graders:misbehave"
TRIPLES = [Item("3/7", r"\boxed{\frac37}"), Item("9", r"\boxed{9}"), Item("9", r"\boxed{8}")]


@pytest.fixture(scope="module")
def pool():
    with Pool(MISBEHAVE, workers=2, time_limit=1.0, memory_mb=512) as made:
        yield made


def items(*completions, answer="1"):
    return [Item(answer, completion) for completion in completions]


def running(pool):
    """Process ids of the pool that still run, and how many of them are busy."""
    return [p.popen.pid for p in pool._processes], sum(bool(p.items) for p in pool._processes)


def in_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


async def in_loop(function):
    return await asyncio.get_running_loop().run_in_executor(None, function)


def _in_a_process(queue):
    with Pool("math", workers=1) as pool:
        queue.put([verdict.outcome for verdict in pool.grade(TRIPLES)])


def test_the_same_verdicts_in_every_setting():
    with Pool("math", workers=2) as pool:
        grade = lambda: [verdict.outcome for verdict in pool.grade(TRIPLES)]
        with concurrent.futures.ThreadPoolExecutor(4) as executor:
            several = list(executor.map(lambda _: grade(), range(4)))
        assert [grade(), in_thread(grade), *several, asyncio.run(in_loop(grade))] == [[1.0, 1.0, 0.0]] * 7
        assert not pool.counts
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_in_a_process, args=(queue,))
    process.start()
    assert queue.get(timeout=60) == [1.0, 1.0, 0.0]
    process.join()


def test_order_is_kept():
    with Pool(MISBEHAVE, workers=3) as pool:
        made = [Item(str(i), f"outcome {i / 500}") for i in range(500)]
        assert [verdict.outcome for verdict in pool.grade(made)] == [i / 500 for i in range(500)]
        assert pool.grade([]) == []


def test_a_grading_process_holds_no_jax_and_prints_nowhere(pool):
    modules, noise, after = pool.grade(items("modules", "print", "1"))
    assert modules.extracted == "" and "jax" in sys.modules
    assert (noise.outcome, after.outcome) == (0.0, 1.0)


@pytest.mark.parametrize("hostile", ["spin 60", "sleep 60", "tower", "unblock 60"])
def test_a_time_limit_kills(pool, hostile):
    """Eight hostile items, more than there are workers, then fifty ordinary ones (fault A2)."""
    before = dict(pool.counts)
    start = time.monotonic()
    verdicts = pool.grade(items(*[hostile] * 3, *["1"] * 50))
    took = time.monotonic() - start
    assert [(v.outcome, v.reason) for v in verdicts[:3]] == [(0.0, "time limit: 1 s")] * 3
    assert [v.outcome for v in verdicts[3:]] == [1.0] * 50
    assert took < 6.0  # the limit twice (a second try where the first was starved) and the start of processes
    assert pool.counts["time_limit"] == before.get("time_limit", 0) + 3
    assert running(pool)[1] == 0
    assert pool.grade(items("1"))[0].outcome == 1.0


def test_no_process_outlives_its_limit():
    """Also where nobody watches: the parent is killed in the middle of an item."""
    code = (
        "import sys, threading, os; sys.path.insert(0, sys.argv[1])\n"
        "from rlvr_jax.tasks.pool import Pool\n"
        "pool = Pool('pool_graders:misbehave', workers=1, time_limit=1.0)\n"
        "pool.grade([('1', '1')]); print(pool._processes[0].popen.pid, flush=True)\n"
        "pool.grade([('1', 'spin 60')])"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, HERE], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    time.sleep(0.3)
    parent.kill()
    parent.wait()
    start = time.monotonic()
    while _alive(pid) and time.monotonic() - start < 10:
        time.sleep(0.05)
    assert time.monotonic() - start < 2.5
    parent.stdout.close()


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def test_children_end_with_their_process(pool):
    (verdict,) = pool.grade(items("child 30"))
    assert verdict.reason == "time limit: 1 s"
    time.sleep(0.2)
    for stat in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"rlvr_jax.tasks.worker" in stat.read_bytes() and _alive(int(stat.parent.name)):
                ours = int((stat.parent / "stat").read_text().rpartition(")")[2].split()[1])
                assert ours != 1, "an orphan"
        except OSError:
            continue


def test_a_memory_limit_costs_one_item(pool):
    before = pool.counts["memory_limit"]
    verdicts = pool.grade(items("1", "memory 4000", *["1"] * 20))
    assert verdicts[1] == (0.0, None, "memory limit: 512 MB")
    assert [v.outcome for v in verdicts[:1] + verdicts[2:]] == [1.0] * 21
    assert pool.counts["memory_limit"] == before + 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raise gold", "invalid: KeyError: 'gold'"),
        ("exit 3", "invalid: the grading process died twice: exit status 3"),
        ("outcome 7", "invalid: ValueError: outcome 7.0 is not in [0, 1]"),
        ("outcome nan", ""),
    ],
)
def test_a_fault_is_no_zero(pool, fault, reason):
    before = pool.counts["invalid"]
    first, faulty, last = pool.grade(items("1", fault, "1"))
    assert (first.outcome, last.outcome) == (1.0, 1.0)
    assert math.isnan(faulty.outcome) and not faulty.valid and faulty.reason == reason
    assert pool.counts["invalid"] == before + 1


def test_a_process_that_somebody_kills_costs_nothing(pool):
    (verdict,) = pool.grade(items("pid"))
    before = pool.counts["invalid"]
    for pid in running(pool)[0]:
        os.kill(pid, signal.SIGKILL)
    assert [v.outcome for v in pool.grade(items("1", "2", "1"))] == [1.0, 0.0, 1.0]
    assert pool.counts["invalid"] == before and int(verdict.extracted.split()[0]) not in running(pool)[0]


def test_any_text_passes_through():
    texts = ["", "\0", "\ud800", "\n", "\u2028", '"', "\\", "é" * 10, "x" * 1_000_000, "\x1b[31m"]
    with Pool(MISBEHAVE, workers=2) as pool:
        assert all(v.outcome == 1.0 for v in pool.grade([Item(text, text) for text in texts * 3]))


def test_ordinary_items_do_not_wait_for_slow_ones():
    """Sleeping and spinning ones: all ordinary items are done long before the limit of the others."""
    done = {}
    with Pool(MISBEHAVE, workers=1, time_limit=2.0) as pool:
        settle = pool._settle
        pool._settle = lambda number, verdict: (done.setdefault(number, time.monotonic()), settle(number, verdict))
        start = time.monotonic()
        verdicts = pool.grade(items("sleep 60", "spin 60", *["1"] * 400))
    assert [v.outcome for v in verdicts] == [0.0, 0.0, *[1.0] * 400]
    assert max(done[number] for number in range(2, 402)) < min(done[0], done[1])
    assert done[0] - start >= 2.0


def test_the_memory_of_the_parent_stays_flat(pool):
    long = "x" * 1_000_000
    pool.grade([Item("1", long)] * 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(5):
        pool.grade([Item("1", long)] * 40)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


HOSTILE = [
    r"\boxed{9^{9^{9^{9}}}}",
    "The answer is 9**9**9**9",
    r"\boxed{" + "{" * 20_000 + "1" + "}" * 20_000 + "}",
    r"\boxed{" + r"\frac{1}{" * 3000 + "1" + "}" * 3001,
    r"\boxed{" + r"\sqrt{" * 3000 + "1" + "}" * 3001,
    r"\boxed{" + "1" * 1_000_000 + "}",
    "x" * 1_000_000,
    r"\boxed{__import__('os').system('touch marker')}",
    r"\boxed{open('marker', 'w')}",
    "\0" * 10_000 + r"\boxed{\0}",
    "the answer is " * 70_000,
    r"\boxed{" * 140_000,
    "\\boxed{\u0417\u041e}",
    "<think>" * 100_000,
    "<tool_response>" * 60_000,
    "\ud800\udfff",
]


@pytest.mark.parametrize("verifier", ["math", "numeric", "choice", "exact", "f1"])
def test_hostile_completions_cost_nothing(tmp_path, monkeypatch, verifier):
    """No limit is hit, nothing runs, every ordinary item around them is right."""
    monkeypatch.chdir(tmp_path)
    gold, right = ("B", "The answer is B") if verifier == "choice" else ("30", "The answer is 30")
    mixed = [item for text in HOSTILE for item in (Item(gold, text), Item(gold, right))]
    with Pool(verifier, workers=2, time_limit=10.0) as pool:
        verdicts = pool.grade(mixed)
        assert not pool.counts
    assert [v.outcome for v in verdicts] == [0.0, 1.0] * len(HOSTILE)
    assert not (tmp_path / "marker").exists()


def test_a_process_may_not_touch_the_machine(tmp_path):
    """The second wall: what a built-in verifier could be led to do is refused in its process."""
    code = (
        "import sys, os; from rlvr_jax.tasks.guard import refuse_side_effects; refuse_side_effects()\n"
        "import subprocess, socket, json\n"
        "tries = [lambda: open(sys.argv[1], 'w'), lambda: os.system('true'), lambda: subprocess.run(['true']),\n"
        "         lambda: socket.socket(), lambda: os.remove(sys.argv[0]), lambda: os.fork(), lambda: os.mkdir('x'),\n"
        "         lambda: os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY), lambda: os.kill(os.getppid(), 0)]\n"
        "refused = 0\n"
        "for attempt in tries:\n"
        "    try: attempt()\n"
        "    except PermissionError: refused += 1\n"
        "open('/dev/null').read(); print(refused, len(tries))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "marker")], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["9", "9"] and not list(tmp_path.iterdir())


def test_an_interrupted_call_leaves_a_working_pool(pool, monkeypatch):
    def interrupt(number, verdict):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pool, "_settle", interrupt)
        pool.grade(items("1", "1", "1"))
    assert running(pool)[1] == 0
    assert [v.outcome for v in pool.grade(items("1", "2"))] == [1.0, 0.0]


def test_what_cannot_work_is_said_at_once():
    for arguments, says in [
        ({"verifier": "maths"}, "verifier='maths': unknown option 'maths'. Did you mean 'math'"),
        ({"verifier": "nowhere:f"}, "No module named 'nowhere'; expected package.module:function"),
        ({"verifier": "pool_graders:f"}, "has no attribute 'f'"),
        ({"verifier": "pool_graders:HERE_IS_NOTHING"}, "has no attribute"),
        ({"workers": -2}, "workers=-2: must be a whole number"),
        ({"time_limit": 0}, "time_limit=0: must be above 0 seconds"),
        ({"memory_mb": 10}, "memory_mb=10: must be at least 256"),
    ]:
        with pytest.raises(ValueError, match=says):
            Pool(**{"verifier": "math", **arguments})
    pool = Pool("math", workers=1)
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        pool.grade(TRIPLES)


def test_a_process_that_does_not_start_is_an_error_with_its_reason(monkeypatch):
    with Pool("math", workers=1) as pool:
        pool._command = [sys.executable, "-c", "raise SystemExit(5)"]
        for process in pool._processes[:]:
            pool._end(process)
        with pytest.raises(RuntimeError, match="ended before it was ready, with status 5"):
            pool.grade(TRIPLES)
        pool._command = [sys.executable, "-m", "rlvr_jax.tasks.worker", "math()(", "0", "1"]
        with pytest.raises(RuntimeError, match="does not start: ValueError: verifier="):
            pool.grade(TRIPLES)


def test_without_processes():
    with make_pool(MISBEHAVE, workers=-1) as local:
        assert isinstance(local, Local)
        right, wrong, fault = local.grade(items("1", "2", "raise x"))
        assert (right.outcome, wrong.outcome, fault.valid) == (1.0, 0.0, False)
        assert local.counts == {"invalid": 1}
