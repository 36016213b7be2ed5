"""The scripts of tpu_setup, with a `gcloud` that writes down what it is asked and plays a slice.

What it is told to run on workers it does run, each in a home of its own, where `rlvr` is another such stub.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlvr_jax.cli import parser

SETUP = Path(__file__).parents[2] / "tpu_setup"
SCRIPTS = ("create", "install", "run", "status", "logs", "resume", "delete")
FULL = {
    "NAME": "rlvr-1",
    "PROJECT": "my-project",
    "ZONE": "us-west4-a",
    "TYPE": "v5litepod-16",
    "REPO": "https://example.org/rlvr.git",
    "CONFIG": "configs/pod.py:dr_grpo",
    "WORKDIR": "gs://bucket/runs/a",
    "CLUSTER": "my-cluster",
    "POLL": "0",
    "SETTLE": "0.5",
    "PAUSE": "0",
}
# What the scripts add to the words of a user.
DOCTOR = ["doctor", "--config=configs/pod.py:dr_grpo", "--workdir=/mnt/bucket/runs/a", "--distributed"]
TRAIN = ["train", "--quiet", *DOCTOR[1:]]
PLACE = ["--zone=us-west4-a", "--project=my-project"]

# Calls are appended to calls.jsonl. node.txt and request.txt hold the states: one line each; of several lines the first
# is used up by a look at it. No file: there is none.
GCLOUD = (
    f"#!{sys.executable} -SE\n"
    """import json, os, pathlib, shutil, subprocess, sys
here = pathlib.Path(os.environ["STUB"])
words = sys.argv[1:]
with (here / "calls.jsonl").open("a") as file:
    file.write(json.dumps([pathlib.Path(sys.argv[0]).name, *words]) + "\\n")
if (here / "fails.txt").exists() and (here / "fails.txt").read_text() in " ".join(words):
    sys.exit("ERROR: (gcloud) PERMISSION_DENIED: not yours") if "describe" in words else sys.exit(7)
file = here / ("request.txt" if "queued-resources" in words else "node.txt")
if "describe" in words:
    if not file.exists():
        sys.exit("ERROR: (gcloud) NOT_FOUND: Resource 'projects/my-project/...' was not found")
    states = file.read_text().split()
    print(states[0])
    file.write_text("\\n".join(states[1:] or states))
if "delete" in words:
    (here / "node.txt").unlink(missing_ok=True), (here / "request.txt").unlink(missing_ok=True)
if "create" in words and "--" not in words:
    (here / "node.txt").write_text("READY"), (here / "request.txt").write_text("WAITING_FOR_RESOURCES ACTIVE")
if "scp" in words:
    for home in here.glob("worker-*"):
        shutil.copy(words[words.index("scp") + 1], home / words[words.index("scp") + 2].partition(":")[2])
if "ssh" in words:
    command = next(word for word in words if word.startswith("--command=")).removeprefix("--command=")
    worker = next(word for word in words if word.startswith("--worker=")).removeprefix("--worker=")
    workers = ["0", "1"] if worker == "all" else [worker]
    codes = []
    for worker in workers:
        home = here / f"worker-{worker}"
        if home.exists():
            environment = {**os.environ, "HOME": str(home), "PATH": f"{home}/bin:{os.environ['PATH']}"}
            codes.append(subprocess.run(["bash", "-c", command], cwd=home, env=environment).returncode)
    sys.exit(max(codes, default=0))
"""
)
RLVR = (
    f"#!{sys.executable} -SE\n"
    """import json, pathlib, sys, time
home = pathlib.Path(sys.argv[0]).resolve().parents[2]
with (home / "rlvr.jsonl").open("a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
behaves = (home / f"{sys.argv[1]}.txt").read_text().split() if (home / f"{sys.argv[1]}.txt").exists() else ["0"]
(home / f"{sys.argv[1]}.txt").write_text(" ".join(behaves[1:] or behaves))
print("step 1: reward 0.5" if sys.argv[1] == "train" else "all is well", flush=True)
time.sleep(60) if behaves[0] == "stays" else sys.exit(int(behaves[0]))
"""
)


class Stub:
    """Calls scripts with the variables of FULL and the stub `gcloud` before everything else on PATH."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "bin").mkdir()
        for name in ("gcloud", "xpk"):
            self.executable(folder / "bin" / name, GCLOUD)

    def executable(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def state(self, node: str | None, request: str | None) -> None:
        for name, value in (("node", node), ("request", request)):
            path = self.folder / f"{name}.txt"
            path.write_text(value) if value else path.unlink(missing_ok=True)

    def fails(self, words: str) -> None:
        (self.folder / "fails.txt").write_text(words)

    def workers(self, **behaviour) -> list[Path]:
        """Homes of two workers, where the project is "installed". `train="stays"` runs; "1 0" fails once."""
        homes = [self.folder / f"worker-{number}" for number in (0, 1)]
        for number, home in enumerate(homes):
            self.executable(home / "rlvr-venv" / "bin" / "rlvr", RLVR)
            for name in ("sudo", "gcsfuse"):
                self.executable(home / "bin" / name, f'#!/bin/sh\necho {name} "$@" >> ~/mounts.txt\n')
            self.executable(home / "bin" / "mountpoint", "#!/bin/sh\nexit 1\n")
            self.executable(home / "bin" / "hostname", f"#!/bin/sh\necho host-{number}\n")
            (home / "rlvr").mkdir()
            (home / "rlvr" / "tpu_setup").symlink_to(SETUP)
            for command, value in behaviour.items():
                (home / f"{command}.txt").write_text(value)
        return homes

    def __call__(self, script: str, *arguments: str, status: int | None = 0, **variables: str):
        environment = {
            **{key: value for key, value in os.environ.items() if key not in (*FULL, "RESTARTS", "SPOT", "QUEUED")},
            **FULL,
            "STUB": str(self.folder),
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            **variables,
        }
        done = subprocess.run(
            [SETUP / f"{script}.sh", *arguments], env=environment, capture_output=True, text=True, timeout=60, input=""
        )
        assert status is None or done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def calls(self, forget: bool = True) -> list[list[str]]:
        path = self.folder / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        if forget:
            path.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]

    def changes(self) -> list[str]:
        """The calls that are not looks, in two words and their verb."""
        return [" ".join(call[3:5]) for call in self.calls() if "describe" not in call]


@pytest.fixture
def stub(tmp_path):
    made = Stub(tmp_path)
    yield made
    for pid in tmp_path.glob("worker-*/rlvr-logs/*.pid"):  # a training that a test has started
        with contextlib.suppress(ProcessLookupError, ValueError):
            os.killpg(int(pid.read_text()), signal.SIGKILL)


def started(home: Path) -> list[list[str]]:
    """What the stub `rlvr` of a worker was called with."""
    path = home / "rlvr.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def eventually(condition, seconds: float = 20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.05)


# --- what holds for every script ---


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_dry_run_calls_nothing_and_prints_what_a_run_calls(stub, script):
    printed = stub(script, "--dry-run").stdout
    assert stub.calls() == []
    commands = [line for line in printed.splitlines() if line.startswith("+ ")]
    assert commands and all(line.startswith("+ gcloud compute tpus ") for line in commands)
    assert FULL["NAME"] in printed


@pytest.mark.parametrize("script", [name for name in SCRIPTS if name not in ("resume", "status")])
def test_what_is_printed_is_what_is_called(stub, script):
    stub.state("READY", "ACTIVE")
    stub.workers()
    printed = stub(script, *(["--yes"] if script == "delete" else []), status=None).stdout
    for call in stub.calls():
        shown = " ".join(word if re.fullmatch(r"[\w./:=,@%+-]+", word) else shlex.quote(word) for word in call)
        simple = shown.replace("'\"'\"'", "'\\''")
        assert f"+ {simple}\n" in printed, f"{simple}\nnot in\n{printed}"


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_missing_variable_is_named_with_an_example_before_any_call(stub, script):
    for name in ("NAME", "PROJECT", "ZONE"):
        done = stub(script, status=2, **{name: ""})
        assert re.fullmatch(
            rf"{script}\.sh: {name} is not set: .*such as .*; set it in env\.sh or as {name}=… .*\n", done.stderr
        )
        assert stub.calls() == []


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("create", "TYPE"),
        ("install", "REPO"),
        ("run", "CONFIG"),
        ("run", "WORKDIR"),
        ("resume", "REPO"),
        ("resume", "TYPE"),
    ],
)
def test_what_one_script_needs_is_asked_by_it(stub, script, name):
    assert f"{script}.sh: {name} is not set" in stub(script, status=2, **{name: ""}).stderr
    assert stub.calls() == []


@pytest.mark.parametrize("script", [*SCRIPTS, "gke"])
def test_help_is_the_head_of_the_script(stub, script):
    done = stub(script, "--help", NAME="", PROJECT="", CLUSTER="")
    assert f"  {script}.sh " in done.stdout and "env.sh" in done.stdout and "#" not in done.stdout
    assert stub.calls() == []


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_unknown_argument_is_refused(stub, script):
    assert "unknown argument '--fast'" in stub(script, "--fast", status=2).stderr
    assert not stub.changes()


@pytest.mark.parametrize("script", [name for name in SCRIPTS if name not in ("create", "delete")])
def test_the_exit_status_of_a_worker_is_passed_on(stub, script):
    stub.state("READY", "ACTIVE")
    stub.fails("tpu-vm ssh")
    stub(script, status=7)


def test_the_exit_status_of_gcloud_is_passed_on(stub):
    stub.fails(" create ")
    stub("create", status=7)
    stub.fails(" delete ")
    stub("delete", "--yes", status=7)


def test_scripts_are_short_strict_and_pass_shellcheck():
    for path in SETUP.glob("*.sh"):
        text = path.read_text()
        assert len(text.splitlines()) <= 60, path
        if path.name not in ("env.sh", "common.sh", "cloud.sh"):
            assert "set -euo pipefail" in text and os.access(path, os.X_OK), path
        subprocess.run(["bash", "-n", path], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "-x", "-P", SETUP.parent, *SETUP.glob("*.sh")], check=True)


# --- create, delete ---


QUEUE = ["queued-resources", "create", "rlvr-1", *PLACE, "--node-id=rlvr-1", "--runtime-version=v2-alpha-tpuv5-lite"]
PLAIN = ["tpu-vm", "create", "rlvr-1", *PLACE, "--version=v2-alpha-tpuv5-lite"]


@pytest.mark.parametrize(
    ("spot", "queued", "expected"),
    [
        ("1", "1", [*QUEUE, "--accelerator-type=v5litepod-16", "--spot"]),
        ("0", "1", [*QUEUE, "--accelerator-type=v5litepod-16"]),
        ("1", "0", [*PLAIN, "--accelerator-type=v5litepod-16", "--spot"]),
        ("0", "0", [*PLAIN, "--accelerator-type=v5litepod-16"]),
    ],
)
def test_create(stub, spot, queued, expected):
    stub("create", SPOT=spot, QUEUED=queued)
    assert stub.calls() == [["gcloud", "compute", "tpus", *expected]]


@pytest.mark.parametrize(
    ("kind", "runtime"),
    [
        ("v3-8", "tpu-ubuntu2204-base"),
        ("v4-32", "tpu-ubuntu2204-base"),
        ("v5litepod-8", "v2-alpha-tpuv5-lite"),
        ("v5p-128", "v2-alpha-tpuv5"),
        ("v6e-64", "v2-alpha-tpuv6e"),
    ],
)
def test_the_runtime_is_that_of_the_generation_unless_it_is_named(stub, kind, runtime):
    stub("create", TYPE=kind)
    stub("create", TYPE=kind, RUNTIME="mine")
    usual, named = stub.calls()
    assert f"--runtime-version={runtime}" in usual and f"--accelerator-type={kind}" in usual
    assert "--runtime-version=mine" in named


def test_create_refuses_what_does_not_exist(stub):
    assert "TYPE=v5e-8" in stub("create", TYPE="v5e-8", status=2).stderr
    assert "gke.sh" in stub("create", TYPE="tpu7x-8", status=2).stderr
    assert "SPOT=yes: must be 0 or 1" in stub("create", SPOT="yes", status=2).stderr
    assert stub.calls() == []


def test_further_flags_reach_gcloud_as_they_are(stub):
    stub("create", "--", "--network=my net", "--reserved", QUEUED="0", SPOT="0")
    (call,) = stub.calls()
    assert call[-2:] == ["--network=my net", "--reserved"]


def test_create_waits_until_the_slice_is_ready(stub):
    done = stub("create", "--wait")
    assert "request WAITING_FOR_RESOURCES" in done.stdout or "READY" in done.stdout
    assert stub.changes() == ["queued-resources create"]


@pytest.mark.parametrize(
    ("queued", "expected"),
    [
        ("1", ["queued-resources", "delete", "rlvr-1", *PLACE, "--force", "--quiet"]),
        ("0", ["tpu-vm", "delete", "rlvr-1", *PLACE, "--quiet"]),
    ],
)
def test_delete_does_so_only_when_told(stub, queued, expected):
    assert "say --yes" in stub("delete", status=2, QUEUED=queued).stderr
    assert stub.calls() == []
    stub("delete", "--yes", QUEUED=queued)
    assert stub.calls() == [["gcloud", "compute", "tpus", *expected]]


# --- install ---


def test_install_goes_to_all_workers(stub):
    stub("install", REF="v1.0")
    (call,) = stub.calls()
    assert call[:8] == ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "rlvr-1", *PLACE]
    assert call[8] == "--worker=all"
    assert "fetch --quiet --force https://example.org/rlvr.git v1.0\n" in call[9]
    assert subprocess.run(["bash", "-n", "-c", call[9].removeprefix("--command=")]).returncode == 0


def test_a_checkout_here_arrives_on_the_workers(stub, tmp_path):
    """The bundle is made, sent and fetched; only the packages are not installed."""
    source = tmp_path / "my checkout"
    source.mkdir()
    git = lambda *words: subprocess.run(
        ["git", "-C", source, "-c", "user.name=t", "-c", "user.email=t@t", *words], check=True, capture_output=True
    )
    git("init", "-b", "main"), (source / "hello.txt").write_text("hello"), git("add", "."), git("commit", "-m", "1")
    homes = [tmp_path / f"worker-{number}" for number in (0, 1)]
    for home in homes:
        stub.executable(home / ".local" / "bin" / "uv", '#!/bin/sh\necho uv "$@" >> ../uv-$(basename $PWD).txt\n')
    stub("install", REPO=str(source))
    send, _ = stub.calls()
    assert send[3:5] == ["tpu-vm", "scp"] and send[6] == "rlvr-1:rlvr.bundle" and send[-1] == "--worker=all"
    for home in homes:
        assert (home / "rlvr" / "hello.txt").read_text() == "hello"
        asked = (tmp_path / f"uv-{home.name}.txt").read_text()
        assert "--require-hashes -r rlvr/requirements.lock" in asked and asked.rstrip().endswith("jax[tpu]")


# --- run ---


def test_run_checks_all_workers_then_starts_on_all_of_them(stub):
    homes = stub.workers(train="stays")
    done = stub("run")
    mount, doctor, train = stub.calls()
    assert mount[8] == doctor[8] == train[8] == "--worker=all"
    for number, home in enumerate(homes):
        eventually(lambda home=home: len(started(home)) == 2)
        assert started(home) == [DOCTOR, TRAIN]
        assert f"host-{number}: started" in done.stdout
        log = (home / "rlvr-logs" / f"host-{number}.log").read_text()
        assert "step 1: reward 0.5" in log and f"host-{number}: ../rlvr-venv/bin/rlvr train" in log


def test_the_bucket_of_the_workdir_is_mounted_once_on_every_worker(stub):
    homes = stub.workers(train="stays")
    stub.executable(homes[1] / "bin" / "mountpoint", '#!/bin/sh\ntest "$*" = "-q /mnt/bucket"\n')  # it is there
    stub("run")
    first, flags = (homes[0] / "mounts.txt").read_text().splitlines()
    assert first.startswith("sudo install -d -o ") and first.endswith(" /mnt/bucket")
    assert flags.startswith("gcsfuse --implicit-dirs ") and flags.endswith(" bucket /mnt/bucket")
    assert not (homes[1] / "mounts.txt").exists()


def test_a_directory_that_all_workers_share_is_taken_as_it_is(stub):
    homes = stub.workers(train="stays")
    stub("run", WORKDIR="/nfs/runs/a b")
    assert [words[-2] for words in started(homes[0])] == ["--workdir=/nfs/runs/a b"] * 2
    assert not (homes[0] / "mounts.txt").exists()
    stub.calls()
    assert "must be gs://BUCKET/PATH, or an absolute path" in stub("run", status=2, WORKDIR="runs/a").stderr
    assert "names no directory; such as gs://" in stub("run", status=2, WORKDIR="gs://bucket").stderr
    assert stub.calls() == []


@pytest.mark.parametrize(
    "override",
    [
        "--config.task=jsonl(train='my problems.jsonl', example='What is 9 - 7? → 2')",
        '--config.task=jsonl(example="a \\"quoted\\" $HOME `id` word; rm -rf *")',
        "--config.sampling.stop_strings=('\\n\\n', \"it's\")",
        "--config.model.path=",
    ],
)
def test_an_override_arrives_as_it_was_given(stub, override):
    homes = stub.workers(train="stays")
    stub("run", override, "--config.steps=3")
    for home in homes:
        eventually(lambda home=home: len(started(home)) == 2)
        assert started(home) == [[*DOCTOR, override, "--config.steps=3"], [*TRAIN, override, "--config.steps=3"]]


def test_nothing_is_started_where_the_doctor_objects(stub):
    homes = stub.workers()
    (homes[1] / "doctor.txt").write_text("1")
    stub("run", status=1)
    assert [words[0] for home in homes for words in started(home)] == ["doctor", "doctor"]


def test_a_training_is_not_started_beside_another(stub):
    homes = stub.workers(train="stays")
    stub("run")
    done = stub("run", status=3)
    assert "already training" in done.stderr
    assert [words[0] for words in started(homes[0])].count("train") == 1


def test_a_config_that_is_refused_is_said_at_once_and_not_tried_again(stub):
    homes = stub.workers(train="2")
    stub("run", status=2)
    assert [words[0] for words in started(homes[0])] == ["doctor", "train"]


def test_a_training_that_fails_is_started_again_on_its_worker(stub):
    homes = stub.workers(train="1 1 stays")
    stub("run", RESTARTS="2")
    for home in homes:
        eventually(lambda home=home: [words[0] for words in started(home)] == ["doctor", "train", "train", "train"])


def test_restarts_have_an_end(stub):
    homes = stub.workers(train="9")
    stub("run", status=None, RESTARTS="2", SETTLE="0")
    for home in homes:
        eventually(lambda home=home: [words[0] for words in started(home)].count("train") == 3)
    time.sleep(0.5)
    assert [words[0] for words in started(homes[0])].count("train") == 3


def test_stop_ends_it_everywhere_and_it_is_not_started_again(stub):
    homes = stub.workers(train="stays")
    stub("run", RESTARTS="5")
    stub.state("READY", "ACTIVE")
    assert "host-1: training, step 1: reward 0.5" in stub("status").stdout
    assert "host-0: told to stop" in stub("run", "--stop").stdout
    eventually(lambda: "host-0: not training" in stub("status").stdout)
    assert [words[0] for words in started(homes[0])].count("train") == 1


@pytest.mark.parametrize("words", [DOCTOR, TRAIN])
def test_what_workers_are_told_is_what_the_command_line_takes(words):
    options, rest = parser().parse_known_args([*words, "--config.steps=3"])
    assert options.distributed and options.workdir == "/mnt/bucket/runs/a" and rest == ["--config.steps=3"]


# --- status, logs ---


def test_status_asks_for_request_slice_and_workers(stub):
    stub.state("READY", "ACTIVE")
    done = stub("status")
    assert "rlvr-1: request ACTIVE, slice READY" in done.stdout
    assert [" ".join(call[3:5]) for call in stub.calls()] == [
        "tpu-vm describe", "queued-resources describe", "tpu-vm ssh"
    ]  # fmt: skip
    assert stub("status", QUEUED="0").stdout.startswith("rlvr-1: request -, slice READY\n")
    assert ["queued-resources"] not in [call[3:4] for call in stub.calls()]


@pytest.mark.parametrize(
    ("node", "queue", "says"),
    [
        (None, None, "create.sh makes it"),
        ("PREEMPTED", "ACTIVE", "resume.sh"),
        (None, "SUSPENDED", "resume.sh"),
        (None, "FAILED", "resume.sh"),
        (None, "WAITING_FOR_RESOURCES", ""),
    ],
)
def test_status_of_a_slice_that_is_not_there_is_an_error(stub, node, queue, says):
    stub.state(node, queue)
    assert says in stub("status", status=1).stderr
    assert stub.changes() == []


def test_a_look_that_is_not_allowed_is_not_taken_for_an_absent_slice(stub):
    stub.fails("describe")
    for script in ("status", "resume"):
        assert "PERMISSION_DENIED" in stub(script, status=1).stderr
        assert stub.changes() == []


def test_waiting_ends_when_the_slice_is_there_or_never_will_be(stub):
    stub.state("CREATING CREATING READY", "PROVISIONING PROVISIONING ACTIVE")
    assert stub("status", "--wait").stdout.splitlines()[-1] == "rlvr-1: request ACTIVE, slice READY"
    stub.state(None, "WAITING_FOR_RESOURCES FAILED")
    assert "request FAILED" in stub("status", "--wait", status=1).stdout


def test_logs_of_one_worker_or_all(stub):
    stub.workers(train="stays")
    stub("run")
    stub.calls()
    assert "step 1: reward 0.5" in stub("logs").stdout
    assert stub("logs", "--worker=all", "--lines=1").stdout.count("step 1") == 2
    one, both = stub.calls()
    assert one[8:] == ["--worker=0", "--command=rlvr/tpu_setup/worker.sh log 50"]
    assert both[8:] == ["--worker=all", "--command=rlvr/tpu_setup/worker.sh log 1"]
    assert "log 50 --follow" in stub("logs", "--follow", "--dry-run").stdout
    assert "--worker=first: a number, or all" in stub("logs", "--worker=first", status=2).stderr


# --- resume ---

CREATE, DELETE, SSH = "queued-resources create", "queued-resources delete", "tpu-vm ssh"


@pytest.mark.parametrize(
    ("node", "queue", "expected"),
    [
        ("READY", "ACTIVE", []),
        (None, None, [CREATE]),
        ("PREEMPTED", "ACTIVE", [DELETE, CREATE]),
        (None, "SUSPENDED", [DELETE, CREATE]),
        ("PREEMPTED", "SUSPENDING", [DELETE, CREATE]),
        (None, "FAILED", [DELETE, CREATE]),
        ("CREATING READY", "PROVISIONING ACTIVE", []),
    ],
)
def test_resume_makes_the_slice_again_only_when_it_is_gone(stub, node, queue, expected):
    stub.state(node, queue)
    stub("resume")
    assert stub.changes() == [*expected, SSH, SSH, SSH, SSH]  # install; mount, doctor, train


def test_resume_of_a_plain_tpu_vm(stub):
    stub.state("PREEMPTED", None)
    stub("resume", QUEUED="0")
    assert stub.changes() == ["tpu-vm delete", "tpu-vm create", SSH, SSH, SSH, SSH]
    stub.state(None, None)
    stub("resume", QUEUED="0")
    assert stub.changes() == ["tpu-vm create", SSH, SSH, SSH, SSH]


def test_resume_runs_the_same_workdir_with_the_same_keys(stub):
    stub.state("READY", "ACTIVE")
    stub("run", "--config.task=a 'b'")
    first = stub.calls()[-1]
    stub("resume", "--config.task=a 'b'")
    assert stub.calls()[-1] == first


def test_resume_stops_where_a_step_fails(stub):
    stub.state(None, None)
    stub.fails("queued-resources create")
    stub("resume", status=7)
    assert stub.changes() == [CREATE]


# --- GKE ---


def test_gke_commands(stub):
    where = ["--cluster=my-cluster", "--project=my-project", "--zone=us-west4-a"]
    attached = [
        "bucket",
        "--type=gcsfuse",
        "--bucket=bucket",
        "--mount-point=/mnt/bucket",
        "--size=1",
        "--readonly=false",
    ]
    attached += ["--auto-mount=true"]
    stub("gke", "cluster")
    stub("gke", "cluster", SPOT="0", SLICES="2", WORKDIR="/nfs/a")
    stub("gke", "status")
    stub("gke", "stop")
    stub("gke", "delete", "--yes")
    assert stub.calls() == [
        ["xpk", "cluster", "create", *where, "--tpu-type=v5litepod-16", "--num-slices=1", "--spot"],
        ["xpk", "storage", "attach", *where, *attached],
        ["xpk", "cluster", "create", *where, "--tpu-type=v5litepod-16", "--num-slices=2", "--on-demand"],
        ["xpk", "workload", "list", *where],
        ["xpk", "workload", "delete", *where, "--workload=rlvr-1"],
        ["xpk", "cluster", "delete", *where, "--force"],
    ]
    assert "say --yes" in stub("gke", "delete", status=2).stderr
    assert "CLUSTER is not set" in stub("gke", "status", status=2, CLUSTER="").stderr
    assert "unknown 'start'" in stub("gke", "start", status=2).stderr
    assert stub.calls() == []


def test_gke_run_passes_overrides_through_one_more_shell(stub):
    override = "--config.task=jsonl(train='my problems.jsonl')"
    printed = stub("gke", "run", override, "--dry-run").stdout
    assert stub.calls() == []
    words = shlex.split(printed.splitlines()[-1].removeprefix("+ "))
    assert words[:3] == ["xpk", "workload", "create"] and "--max-restarts=50" in words
    command = words[-1].removeprefix("--command=")
    train = shlex.split(command.split(" && ")[-1])
    assert train == ["rlvr", *TRAIN, override]
    assert "\n" not in command  # xpk puts it into a YAML block
