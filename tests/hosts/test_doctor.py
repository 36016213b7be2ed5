"""The doctor's judgements on facts made up by hand, and on this machine."""

import io
import os

import pytest
from rich.console import Console

from rlvr_jax import doctor
from rlvr_jax.cli import main
from rlvr_jax.doctor import Facts

GIB = 2**30


def facts(**changes) -> Facts:
    """A host on which all is well."""
    well = {
        "host": "a",
        "versions": {"python": "3.11.7", "jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42"},
        "clock": 1000.0,
        "devices": ("TPU v5 lite",) * 4,
        "memory": ((0, 16 * GIB),) * 4,
        "write_error": "",
        "unseen": (),
        "free_bytes": 100 * GIB,
    }
    return Facts(**{**well, **changes})


WELL = [facts(), facts(host="b", clock=1000.5)]


def test_two_hosts_that_are_well():
    checks = [
        doctor.check_versions(WELL),
        doctor.check_clocks(WELL),
        doctor.check_devices(WELL),
        doctor.check_memory(WELL),
        doctor.check_workdir(WELL, "run"),
        doctor.check_collective(0.1, 40.0, True, several=True, where=WELL),
    ]
    assert all(check.well and not check.remedy for check in checks)
    found = {check.name: check.found for check in checks}
    assert found["versions"] == "python 3.11.7, jax 0.10.2, jaxlib 0.10.2, libtpu 0.0.42"
    assert found["clocks"] == "at most 0.50 s apart"
    assert found["devices"] == "2 hosts with 4 × TPU v5 lite each"
    assert found["device memory"] == "16.0 GiB a device"


@pytest.mark.parametrize(
    ("check", "changes", "says", "remedy"),
    [
        (
            "versions",
            {"versions": {**WELL[0].versions, "jax": "0.10.1"}},
            "b) has jax 0.10.1, process 0 has 0.10.2",
            "lock",
        ),
        ("versions", {"versions": {"python": "3.11.7"}}, "process 1 (b) has libtpu –, process 0 has 0.0.42", "install"),
        ("clocks", {"clock": 995.0}, "process 1 (b) is -5.0 s from process 0", "chronyd"),
        ("devices", {"devices": ("TPU v5 lite",) * 3}, "has 3 × TPU v5 lite, process 0 has 4", "lsof"),
        ("devices", {"devices": ()}, "process 1 (b) has none", "lsof"),
        ("memory", {"memory": ((2 * GIB, 16 * GIB),) * 4}, "process 1 (b): 2.0 GiB of a device are in use", "end the"),
        ("memory", {"memory": ((0, 32 * GIB),) * 4}, "16.0 to 32.0 GiB a device", "one kind"),
        ("workdir", {"write_error": "Permission denied"}, "written: process 1 (b): Permission denied", "may write"),
        ("workdir", {"unseen": (0,)}, "process 1 (b) does not see what process 0 (a) wrote", "mount one"),
        ("workdir", {"free_bytes": GIB // 4}, "0.25 GiB free", "make room"),
    ],
)
def test_what_fails_is_named_with_its_host_and_its_remedy(check, changes, says, remedy):
    judge = getattr(doctor, f"check_{check}")
    more = ("run",) if check == "workdir" else ()
    found = judge([facts(), facts(host="b", **changes)], *more)
    assert not found.well and says in found.found and remedy in found.remedy


def test_a_network_that_is_slow_or_wrong():
    slow = doctor.check_collective(1.0, 0.2, True, several=True, where=WELL)
    assert not slow.well and "0.2 GB/s a device" in slow.found and "network" in slow.remedy
    wrong = doctor.check_collective(0.1, 40.0, False, several=True, where=WELL)
    assert not wrong.well and "the sum is wrong" in wrong.found
    cpu = [facts(devices=("cpu",) * 4)] * 2
    assert doctor.check_collective(1.0, 0.2, True, several=True, where=cpu).well  # what CPUs do tells nothing


def test_the_table_fits_a_terminal():
    failing = doctor.check_workdir([facts(write_error="Permission denied " * 9)], "/mnt/somewhere/far/away")
    out = io.StringIO()
    doctor.show([doctor.check_versions(WELL), failing], Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("ok") and any(line.startswith("FAILS workdir") for line in lines)
    assert any("→ make /mnt/somewhere/far/away a directory" in line for line in lines)
    assert lines[-1] == "1 of 2 checks failed"


def test_the_command_on_this_machine(tmp_path, capsys, monkeypatch):
    """Exit status 0 with a table where all is well; 1 where the workdir cannot be written or the config cannot run;
    and nothing is left behind."""
    monkeypatch.setattr(doctor, "MEBIBYTES", 1)
    config = tmp_path / "config.py"
    config.write_text("import tiny\n\nget_config = tiny.get_config\n")
    run = tmp_path / "run"
    assert main(["doctor", f"--workdir={run}", f"--config={config}"]) == 0
    assert "all 7 checks are well" in capsys.readouterr().out
    assert not run.exists()

    assert main(["doctor", f"--workdir={config}/run"]) == 1  # below a file
    assert "Not a directory" in capsys.readouterr().out
    assert main(["doctor", "--workdir=gs://bucket/run", f"--config={config}", "--config.group_size=1"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "cannot be written" in out and "config.group_size=1" in out and "2 of 7 checks failed" in out
    assert main(["doctor", "--config.group_size=1"]) == 2
    if os.getuid():  # root writes anywhere
        tmp_path.chmod(0o500)
        assert main(["doctor", f"--workdir={run}"]) == 1
        assert "Permission denied" in capsys.readouterr().out
