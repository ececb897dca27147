"""Another user of a node makes directories, files and sockets under our names: they get nothing."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dslaunch.node import agent_socket, directories, files, frames, private, processes, run_files
from dslaunch.transport.ssh.temporary import temporary_parents
from tests.hostile.neighbor import STRANGER, Victim, agents, give_away, ranks, until

LIE = "printed by the stranger"


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    if os.geteuid():
        pytest.skip("only root can act as a second user")
    made = Victim(tmp_path)
    made.shared.mkdir()
    made.shared.chmod(0o1777)
    made.describe()
    for path in (tmp_path, *tmp_path.parents[:3]):  # the stranger can come here
        path.chmod(path.stat().st_mode | 0o011)
    yield made


def forge(place: Path, run: str, host: str = "v0", **about: object) -> Path:
    """A run's directory that looks genuine, made by a stranger."""
    directory = place / f"{run}.{host}.abcd"
    directory.mkdir(parents=True)
    known = {
        "run": run,
        "cluster": LIE,
        "launcher": "direct",
        "started": time.time(),
        "detached": True,
        "hosts": ["v0", "v1"],
        "ranks": [0],
    }
    (directory / "run.json").write_text(json.dumps(known | about))
    event = {"event": "stopping", "rank": -1, "by": LIE, "time": time.time()}
    (directory / "events.jsonl").write_text(json.dumps(event) + "\n")
    output = frames.output_body(0, 1, time.time(), f"{LIE}\n".encode())
    (directory / "journal").write_bytes(frames.frame(frames.OUTPUT, output, 1))
    (directory / "lock").touch()
    for path in (place, directory, *directory.iterdir()):
        path.chmod(0o777)
    return give_away(place)


def test_a_forged_run_is_not_shown_or_removed(victim: Victim) -> None:
    forge(victim.place, "0101-000000-job-aaaa")
    for words in (["ps", "c.yaml", "--all", "--json"], ["clean", "c.yaml", "--ended"]):
        done = victim.dslaunch(*words)
        assert "aaaa" not in done.stdout, words
        assert LIE not in done.stdout + done.stderr
    for words in (["logs"], ["status"], ["stop"]):
        done = victim.dslaunch(*words, "0101-000000-job-aaaa", "c.yaml")
        assert done.returncode != 0, words
        assert LIE not in done.stdout + done.stderr
    assert (victim.place / "0101-000000-job-aaaa.v0.abcd" / "run.json").exists()


def test_a_forged_directory_of_a_live_run_is_not_believed(victim: Victim, live: str) -> None:
    forge(victim.place, live)
    (row,) = json.loads(victim.dslaunch("ps", "c.yaml", "--json").stdout)
    assert (row["run"], row["state"]) == (live, "running")
    logs = victim.dslaunch("logs", live, "c.yaml")
    assert sorted(logs.stdout.splitlines()) == ["v0:0│up 0", "v1:1│up 1"]
    assert LIE not in victim.dslaunch("status", live, "c.yaml").stdout
    before = ranks(live)
    victim.dslaunch("clean", "c.yaml", "--ended")
    assert ranks(live) == before
    assert len(before) == 2


def test_a_copied_directory_of_a_live_run_does_not_end_it(victim: Victim, live: str) -> None:
    own = victim.directory(live)
    shutil.copytree(own, own.with_name(f"{live}.v0.copy"), ignore=lambda *_: ["agent"])
    before = ranks(live)
    victim.dslaunch("clean", "c.yaml", "--ended")
    assert ranks(live) == before
    assert own.exists()


def test_a_live_run_whose_lock_was_removed_is_not_ended(victim: Victim, live: str) -> None:
    (victim.directory(live) / "lock").unlink()
    before = ranks(live)
    victim.dslaunch("clean", "c.yaml", "--ended")
    assert ranks(live) == before


@pytest.mark.parametrize("name", ["run.json", "events.jsonl", "lock", "journal"])
@pytest.mark.parametrize("kind", ["fifo", "device", "symlink", "socket"])
@pytest.mark.parametrize("owner", [0, STRANGER])
def test_a_file_of_another_kind_is_neither_waited_for_nor_read(
    victim: Victim, name: str, kind: str, owner: int
) -> None:
    run = "0101-000000-job-bbbb"
    directory = forge(victim.place, run) / f"{run}.v0.abcd"
    for path in (victim.place, directory, *directory.iterdir()):  # as if all else were ours
        os.chown(path, 0, 0)
        path.chmod(0o700)
    file = directory / name
    secret = victim.path / "secret"
    secret.write_text(json.dumps({"run": run, "cluster": "secret"}))
    file.unlink()
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "device":
        os.mknod(file, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero never ends
    elif kind == "symlink":
        file.symlink_to(secret)
    else:
        os.mknod(file, stat.S_IFSOCK | 0o666)
    os.chown(file, owner, owner, follow_symlinks=False)
    home, began = str(victim.home()), time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(victim.shared))
        found = run_files.runs(home, "v0")
        with pytest.raises(OSError, match=r"."):
            if name == "journal":
                run_files.read_journal(home, "v0", run, 0, 100)
            else:
                private.read(name, private.open_directory(str(directory)), 100)
    assert time.monotonic() - began < 300
    assert "secret" not in json.dumps(found)


def test_ps_does_not_wait_for_a_fifo_of_a_stranger(victim: Victim) -> None:
    directory = forge(victim.place, "0101-000000-job-cccc") / "0101-000000-job-cccc.v0.abcd"
    (directory / "run.json").unlink()
    os.mkfifo(directory / "run.json", 0o666)
    done = victim.dslaunch("ps", "c.yaml", "--json", timeout=300)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.parametrize("size", ["run.json", "events.jsonl"])
def test_a_very_large_file_is_read_in_part(victim: Victim, size: str) -> None:
    run = "0101-000000-job-dddd"
    directory = forge(victim.place, run) / f"{run}.v0.abcd"
    for path in (victim.place, directory, *directory.iterdir()):
        os.chown(path, 0, 0)
        path.chmod(0o700)
    with (directory / size).open("ab") as file:
        file.truncate(1 << 34)
    began = time.monotonic()
    done = victim.dslaunch("ps", "c.yaml", "--all", "--json", timeout=300)
    assert done.returncode == 0
    assert time.monotonic() - began < 300


# ---------------------------------------------------------------- names that are taken


def squat(path: Path, kind: str, target: Path) -> None:
    """Take a name."""
    if kind == "directory":
        path.mkdir(mode=0o777)
    elif kind == "file":
        path.touch()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        target.mkdir(mode=0o700)
        path.symlink_to(target)
        if kind == "link":  # not to a directory that the victim owns
            give_away(target)
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


@pytest.mark.parametrize("kind", ["directory", "file", "fifo", "own-link", "link"])
def test_a_name_that_is_taken_gives_way_to_one_that_cannot_be_guessed(
    victim: Victim, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(victim.shared))
    target = victim.path / "target"
    squat(victim.place, kind, target)
    home = str(victim.path / "home")
    made = [Path(directories.make("r", "v0", home, lasting=False)) for _ in range(2)]
    assert made[0].parent == made[1].parent != victim.place
    assert made[0].parent.parent == victim.shared
    assert stat.S_IMODE(made[0].parent.stat().st_mode) == 0o700
    assert sorted(directories.find(home, "v0", "r")) == sorted(map(str, made))
    assert not target.exists() or list(target.iterdir()) == []
    for path in made:
        directories.remove(str(path))
    assert list(directories.find(home, "v0", "r")) == []


def test_a_shared_directory_without_a_sticky_bit_is_not_used(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim.shared.chmod(0o777)
    monkeypatch.setenv("TMPDIR", str(victim.shared))
    made = Path(directories.make("r", "nonsticky", str(victim.path), lasting=False))
    assert not made.is_relative_to(victim.shared)
    directories.remove(str(made))


def test_no_other_user_can_take_the_directory_of_a_past_run(victim: Victim) -> None:
    (victim.path / "job.py").write_text("print('done')")
    done = victim.dslaunch("run", "c.yaml", "job.py")
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(victim.place.lstat().st_mode) == 0o700
    assert list(victim.place.iterdir()) == []


def test_a_stranger_cannot_have_a_file_written_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    root = tmp_path / "work"
    root.mkdir()
    (root / f"job.py.dslaunch-{os.getpid()}").symlink_to(precious)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as members:
        member = tarfile.TarInfo("job.py")
        member.size = 3
        members.addfile(member, io.BytesIO(b"new"))
    archive.seek(0)
    assert files.unpack(archive, str(root)) == 1
    assert precious.read_text() == "mine"
    assert (root / "job.py").read_text() == "new"


# ---------------------------------------------------------------- sockets


LISTENER = """
import os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
server.listen(8)
print("ready", flush=True)
connection, _ = server.accept()
print("data", connection.recv(4096), flush=True)
"""
CALLER = """
import os, socket, sys
os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
agent = socket.socket(socket.AF_UNIX)
agent.connect(sys.argv[1])
agent.settimeout(60)
try:
    print(agent.recv(4096))
except ConnectionResetError:
    print(b"")
"""


def test_a_socket_of_a_stranger_is_not_connected_to(victim: Victim, live: str) -> None:
    directory = forge(victim.place, live) / f"{live}.v0.abcd"
    command = [sys.executable, "-c", LISTENER, "agent", str(STRANGER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=directory) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "ready\n"
        done = victim.dslaunch("stop", live, "--grace", "1")
        assert done.returncode == 0, done.stderr
        assert until(lambda: ranks(live) == set())
        stranger.kill()
        assert stranger.stdout.read() == ""


def test_a_listener_that_runs_as_a_stranger_is_not_spoken_to(tmp_path: Path) -> None:
    directory = tmp_path / "ours"
    directory.mkdir(mode=0o700)
    command = [sys.executable, "-c", LISTENER, "agent", str(STRANGER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=directory) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "ready\n"
        with pytest.raises(PermissionError):
            agent_socket.dial(str(directory))
        assert stranger.stdout.readline() == "data b''\n"


def test_an_agent_does_not_speak_to_a_stranger(victim: Victim, live: str) -> None:
    directory = victim.directory(live)
    for path in (directory / "agent", directory, *directory.parents):
        if path.is_relative_to(victim.path):
            path.chmod(0o777)
    command = [sys.executable, "-c", CALLER, "agent"]
    where = {"cwd": directory, "capture_output": True, "text": True, "check": True}
    said = {
        uid: subprocess.run([*command, str(uid)], **where).stdout  # type: ignore[call-overload]
        for uid in (STRANGER, 0)
    }
    for path in (directory, *directory.parents):
        if path.is_relative_to(victim.path):
            path.chmod(0o700)
    assert said[STRANGER] == "b''\n"
    assert said[0].startswith("b'\\x00dslaunch")


# ---------------------------------------------------------------- processes


def test_a_process_of_a_stranger_is_not_taken_for_one_of_a_run(victim: Victim) -> None:
    tag = {processes.RUN_ID: "0101-000000-job-eeee", processes.HOST: "v0"}
    command = ["/bin/sh", "-c", "echo 1; exec sleep 60"]
    both = [
        subprocess.Popen(command, env=tag, user=uid, stdout=subprocess.PIPE)
        for uid in (STRANGER, 0)
    ]
    try:
        assert [child.stdout.readline() for child in both if child.stdout] == [b"1\n", b"1\n"]
        assert processes.tagged("0101-000000-job-eeee", "v0") == {both[1].pid}
    finally:
        for child in both:
            child.kill()
            child.communicate()


# ---------------------------------------------------------------- modes


@pytest.mark.parametrize(
    "umask",
    [
        0o000,
        0o077,
        # between the two that leave all and nothing to others
        pytest.param(0o002, marks=pytest.mark.long),
        pytest.param(0o022, marks=pytest.mark.long),
    ],
)
def test_what_a_run_keeps_is_private_whatever_the_umask_is(victim: Victim, umask: int) -> None:
    run = victim.detach(umask=umask)
    try:
        nodes = [victim.home(host) / ".local/state/dslaunch" for host in ("v0", "v1")]
        records = victim.state / "runs"
        paths = [victim.state, *(p for top in (*nodes, records) for p in (top, *top.rglob("*")))]
        # what a rank's Python compiles is written by that, with the job's umask, into ours
        ours = [path for path in paths if "__pycache__" not in path.parts]
        modes = {
            str(path): oct(stat.S_IMODE(path.lstat().st_mode))
            for path in ours
            if (path.is_dir() or path.is_file()) and path.name != "sitecustomize.py"
        }
        wrong = {
            path: mode
            for path, mode in modes.items()
            if mode != ("0o700" if Path(path).is_dir() else "0o600")
        }
        assert wrong == {}
        assert len(modes) > 10
        assert agents(run)
    finally:
        victim.dslaunch("stop", run, "--grace", "0")
        assert until(lambda: ranks(run) == set())


@pytest.mark.parametrize(
    ("owner", "mode"), [(STRANGER, 0o755), (0, 0o775), (0, 0o757), (0, 0o1777)]
)
def test_a_state_directory_that_others_control_is_refused(
    victim: Victim, owner: int, mode: int
) -> None:
    victim.state.mkdir()
    victim.state.chmod(mode)
    os.chown(victim.state, owner, owner)
    (victim.path / "job.py").write_text("print('ran')")
    for words in (["run", "c.yaml", "job.py"], ["ps", "c.yaml"], ["logs", "latest"]):
        done = victim.dslaunch(*words)
        assert done.returncode == 2, (words, done.stderr)
        assert str(victim.state) in done.stderr
        assert list(victim.state.iterdir()) == []
        assert "ran" not in done.stdout
        assert "Traceback" not in done.stderr


def test_a_record_that_a_stranger_made_is_not_read(victim: Victim) -> None:
    """Earlier versions let the group write to the directory of the records."""
    record = victim.state / "runs" / "0101-000000-job-ffff"
    record.mkdir(parents=True)
    about = {"hosts": ["v0"], "detached": False, "started": 1.0, "cluster": LIE, "program": LIE}
    (record / "run.json").write_text(json.dumps(about))
    give_away(record)
    for words in (["ps", "--all"], ["logs", "latest"], ["status", "latest"]):
        done = victim.dslaunch(*words)
        assert LIE not in done.stdout + done.stderr
        assert "ffff" not in done.stdout + done.stderr


@pytest.mark.parametrize(("mode", "is_used"), [(0o700, True), (0o1777, True), (0o777, False)])
def test_ssh_has_no_temporary_file_where_others_can_replace_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, is_used: bool
) -> None:
    """A neighbor's socket in the place of ours would get the secrets of a run."""
    tmp_path.chmod(mode)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert (str(tmp_path) in temporary_parents()) == is_used
