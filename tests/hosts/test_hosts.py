"""Who answers for which rows, one process's short cuts, and what is refused before anything starts."""

from typing import NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

from rlvr_jax import hosts
from rlvr_jax.cli import main
from rlvr_jax.config import load_config
from rlvr_jax.rollout import Graded, in_order
from rlvr_jax.sharding import make_mesh, rows_sharding
from rlvr_jax.types import Verdict
from rlvr_jax.workdir import open_workdir


class Cut:
    """A sharding of rows over a grid of devices: axis 0 cuts them, the others repeat; `process` of each device."""

    def __init__(self, process):
        self.process = np.asarray(process)

    def devices_indices_map(self, shape):
        rows, parts = shape[0], len(self.process)
        size = rows // parts if rows % parts == 0 else rows
        places = {}
        for place, process in np.ndenumerate(self.process):
            begin = place[0] * size if size < rows else 0
            places[Device(int(process), place)] = (slice(begin, begin + size),)
        return places


class Device(NamedTuple):
    process_index: int
    place: tuple[int, ...]


def owned(process, rows):
    return [hosts.own_rows(Cut(process), rows, index).tolist() for index in range(int(np.max(process)) + 1)]


def test_rows_by_hand():
    # 8 rows over 4 devices of 2 hosts
    assert owned([0, 0, 1, 1], 8) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    # devices in an order that does not keep hosts together
    assert owned([0, 1, 0, 1], 8) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    # the model axis lies across hosts: both hold all rows, each answers for half of every part
    assert owned([[0, 1], [0, 1]], 8) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    # rows that cannot be cut are on all devices
    assert owned([0, 0, 1, 1], 5) == [[0, 1, 2], [3, 4]]
    # fewer rows than hosts: some have none
    assert owned([0, 1, 2], 2) == [[0], [1], []]


@given(st.data())
def test_every_row_is_some_processs_and_no_twos(data):
    processes = data.draw(st.integers(1, 4))
    shape = data.draw(st.tuples(st.integers(1, 6), st.integers(1, 3)))
    grid = data.draw(
        st.lists(st.integers(0, processes - 1), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])
    )
    rows = data.draw(st.integers(1, 30))
    parts = [hosts.own_rows(Cut(np.reshape(grid, shape)), rows, process).tolist() for process in range(processes)]
    assert sorted(row for part in parts for row in part) == list(range(rows))
    assert all(part == sorted(part) for part in parts)


def test_one_process_has_all_rows_and_waits_for_nobody():
    mesh = make_mesh(devices=jax.devices()[:1])
    assert hosts.own_rows(rows_sharding(mesh, 6), 6).tolist() == list(range(6))
    assert hosts.gather({"a": 1}) == [{"a": 1}] and hosts.from_first(lambda: 3) == 3 and hosts.first()
    with pytest.raises(KeyError):  # its own error, as it is
        hosts.together(lambda: {}["x"])
    x = {"x": hosts.put(np.arange(6.0).reshape(3, 2), jax.sharding.NamedSharding(mesh, PartitionSpec("data")))}
    assert hosts.fetch_rows(x, np.asarray([0, 2]))["x"].tolist() == [[0, 1], [4, 5]]
    assert hosts.fetch_rows(x, np.empty(0, int))["x"].shape == (0, 2)


def test_graded_rows_in_order():
    graded = lambda outcome: Graded(Verdict(outcome, None, ""), "", 1, 1, True)
    parts = [{0: graded(0.0), 3: graded(3.0)}, {2: graded(2.0), 1: graded(1.0)}]
    assert [row.verdict.outcome for row in in_order(parts)] == [0, 1, 2, 3]
    with pytest.raises(AssertionError, match="once"):
        in_order([{0: graded(0.0)}, {0: graded(0.0)}])


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--coordinator=a:1", "--processes=2"], "--process-index=-1: give all three"),
        (["--processes=2", "--process-index=0"], "--coordinator='' --processes=2 --process-index=0: give all three"),
        (["--coordinator=a", "--processes=2", "--process-index=0"], "--coordinator='a': must be HOST:PORT"),
        (["--coordinator=a:1", "--processes=2", "--process-index=2"], "--process-index=2: must be below --processes=2"),
    ],
)
def test_flags_that_do_not_say_where_the_others_are(flags, says, capsys, monkeypatch, tmp_path):
    left = []
    monkeypatch.setattr(hosts, "leave", left.append)
    config = tmp_path / "config.py"
    config.write_text("import tiny\n\nget_config = tiny.get_config\n")
    assert main(["train", f"--config={config}", f"--workdir={tmp_path / 'run'}", *flags]) == 2
    assert says in capsys.readouterr().err and left == [2]
    assert not (tmp_path / "run").exists()


def test_a_bucket_is_no_directory(tmp_path):
    config = tmp_path / "config.py"
    config.write_text("import tiny\n\nget_config = tiny.get_config\n")
    with pytest.raises(ValueError, match=r"workdir=gs://bucket/run: must be a directory; mount the bucket"):
        open_workdir("gs://bucket/run", load_config(str(config)))
