"""Two processes of four devices against one: the same run, the same files, one end for all. One launched pair."""

import json

import jax
import numpy as np
import pytest
from pair import config_of, metrics_of, parity, results, saved_arrays

import rlvr_jax.train as train_module
from rlvr_jax.checkpoint import Checkpoints
from rlvr_jax.config import check
from rlvr_jax.run import abstract_state, make_parts
from rlvr_jax.sharding import path_name

pytestmark = pytest.mark.usefixtures("quick_compiles")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """(folder, what each of the two processes saw)"""
    folder = tmp_path_factory.mktemp("pair")
    return folder, results("everything", folder)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same five steps by this process, on one device."""
    folder = tmp_path_factory.mktemp("alone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_module, "verify", parity)
        train_module.train(config_of(), folder / "run", quiet=True)
    return folder


def test_messages_reach_every_process(pair):
    for seen in pair[1]:
        assert [message["me"] for message in seen["gather"]] == [0, 1]
        assert [len(message["long"]) for message in seen["gather"]] == [0, 5000]  # more than fits the smallest
        assert seen["first"] == 40  # of process 0, on both


def test_an_error_of_one_is_raised_on_both(pair):
    for seen in pair[1]:
        kind, text = seen["refusal"]
        assert kind == "EveryHostValueError" and text.startswith("process 1 (") and "no such file" in text
        kind, text = seen["failure"]
        assert kind == "EveryHostRuntimeError" and "ZeroDivisionError" in text and "pair.py" in text
        assert "process 1" in seen["disagreement"] and "(steps: 4, not 3)" in seen["disagreement"]


def test_files_that_differ_between_hosts_are_refused_on_both(pair):
    """11 rows here and 10 there: one host would wait for the other's last batch for ever."""
    for seen in pair[1]:
        assert "training problems: process 1 (" in seen["uneven"] and "problems: 10, not 11" in seen["uneven"]


def test_rows_have_one_owner_each(pair):
    first, second = pair[1]
    assert first["own"] == list(range(12)) and second["own"] == list(range(12, 24))
    # 5 rows are on all devices of both: 3 are the first's to verify, 2 the second's
    assert first["odd"] == [0, 1, 2] and second["odd"] == [3, 4]
    assert second["fetched"] == [[6.0, 7.0], [8.0, 9.0]]
    assert first["rows"] and second["rows"]


def test_two_processes_train_as_one_does(pair, alone):
    """Losses, rewards and lengths of five steps, and the parameters after them, to 1e-5: groups of 8 rows lie across
    the border of the hosts (12 rows each), the estimator has a memory and a parameter of its own."""
    found, wanted = metrics_of(pair[0] / "run")[:5], metrics_of(alone / "run")[:5]
    assert [line["step"] for line in found] == list(range(5))
    for line, expected in zip(found, wanted):
        assert line.keys() == expected.keys()
        for name, value in expected.items():
            assert line[name] == pytest.approx(value, rel=1e-4, abs=1e-5), (line["step"], name)
    assert 0.2 < wanted[0]["rollout/reward"] < 0.8 and any(abs(line["update/loss"]) > 1e-4 for line in wanted)
    first, second = saved_arrays(pair[0] / "run", 5), saved_arrays(alone / "run", 5)
    assert first.keys() == second.keys() and any("memory" in name for name in first)
    for name, value in second.items():
        if "/nu/" not in name:  # squares of gradients are tiny: compared where they matter, in what they moved
            np.testing.assert_allclose(first[name], value, atol=1e-5, err_msg=name)


def test_files_are_those_of_one_process(pair, alone):
    """Rollouts and evaluations are written once, whole, and are the same."""
    read = lambda folder: [json.loads(line) for line in (folder / "run" / "rollouts.jsonl").read_text().splitlines()]
    found, wanted = [line for line in read(pair[0]) if line["step"] < 5], read(alone)
    words = ("step", "group", "prompt", "completion", "outcome", "length", "finished", "extracted")
    assert [[line[word] for word in words] for line in found] == [[line[word] for word in words] for line in wanted]
    evaluations = lambda folder: json.loads((folder / "run" / "evaluation.json").read_text())["evaluations"]
    for one, other in zip(evaluations(pair[0]), evaluations(alone)):
        assert len(one["outcomes"]["greedy"]) == 3  # of 3 problems, though a batch is spread over two hosts
        assert one["outcomes"] == other["outcomes"] and one["step"] == other["step"]
        assert [e["completion"] for e in one["examples"]] == [e["completion"] for e in other["examples"]]
    hosts = lambda folder: json.loads((folder / "run" / "config.json").read_text())["environment"]["hosts"]
    assert hosts(pair[0]) == "2" and hosts(alone) == "1"


def test_a_verifier_that_fails_on_one_host_ends_both(pair):
    for seen in pair[1]:
        assert seen["verify"]["error"] == "EveryHostRuntimeError"
        assert "process 1 (" in seen["verify"]["text"] and "lost its wits" in seen["verify"]["text"]


def test_sigterm_on_one_host_stops_both_after_the_same_step(pair):
    """The step is finished, its checkpoint saved, the exit status asks for a restart."""
    for seen in pair[1]:
        assert seen["sigterm"] == {"status": 75, "steps": [5, 6]}  # it came in the sixth step
    assert metrics_of(pair[0] / "run")[-1]["step"] == 5  # and what the step measured is in the file


def test_one_process_restores_what_two_have_saved(pair):
    """Bit for bit, into other shardings."""
    config = config_of()
    parts = make_parts(config, check(config))
    with Checkpoints(pair[0] / "run", create=False) as checkpoints:
        state, position, _ = checkpoints.restore(abstract_state(parts), 6)
    saved = saved_arrays(pair[0] / "run", 6)
    for path, leaf in jax.tree.leaves_with_path(state):
        name = path_name(path)
        np.testing.assert_array_equal(np.asarray(leaf), saved[name], err_msg=name)
    assert position["next_index"] == 6


def test_the_doctor_finds_two_hosts_well(pair):
    for seen in pair[1]:
        checks = {name: (well, text) for name, well, text, _ in seen["doctor"]}
        assert list(checks) == ["versions", "clocks", "devices", "device memory", "collective", "workdir", "config"]
        assert all(well for well, _ in checks.values()), checks
        assert checks["devices"][1] == "2 hosts with 4 × cpu each"
        assert "one directory for all hosts" in checks["workdir"][1]
    assert not list((pair[0] / "run").glob(".doctor*"))


def test_the_doctor_and_a_run_refuse_two_directories_of_one_name(pair):
    for seen in pair[1]:
        _, well, text, remedy = seen["apart"]
        assert not well and "process 0" in text and "does not see what process 1" in text and "mount" in remedy
        assert "is not the directory that process 0 sees" in seen["claimed apart"]
