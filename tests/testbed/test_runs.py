"""`dslaunch run` over real sshd: four nodes with their own network, names, homes and disks."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from secrets import token_hex

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.testbed.project import SLEEPER, Project, wait_for
from tests.testbed.scheduler import EXAMPLES, parameters

# ---------------------------------------------------------------- trainings


UNEVEN = "nodes: [{host: node1, slots: 2}, {host: node2, slots: 1}]"
EVEN = "nodes: [{host: 'node[1-3]', slots: 1}]"


@pytest.mark.torch
@pytest.mark.parametrize(
    ("launcher", "nodes"),
    [
        ("direct", UNEVEN),
        # tests/conformance/test_lines_train.py trains with their commands; each node has one more
        # process that imports torch
        pytest.param("torchrun", UNEVEN, marks=pytest.mark.long),
        pytest.param("deepspeed", UNEVEN, marks=pytest.mark.long),
        pytest.param("accelerate", EVEN, marks=pytest.mark.long),
    ],
)
def test_every_launcher_trains_as_one_process_does(
    project: Project, alone: float, launcher: str, nodes: str
) -> None:
    project.write("train.py", (EXAMPLES / "train_ddp.py").read_text())
    project.describe(nodes, launcher=launcher)
    done = project.run("c.yaml", "train.py", "--steps", "20", timeout=480)
    assert done.returncode == 0, done.stderr
    assert parameters(done.stdout) == pytest.approx(alone, abs=1e-4)
    assert project.nothing_is_left()


@pytest.mark.parametrize("transport", ["fabric", "openssh"])
def test_a_program_of_the_working_directory_is_shipped_and_run(
    project: Project, transport: str
) -> None:
    text = '#!/bin/sh\necho "rank $RANK: $1"\n'
    project.cluster.put("control", f"{project.path}/job.sh", text, mode=0o755)
    done = project.run("--transport", transport, "c.yaml", "--no-python", "./job.sh", "a b")
    assert done.returncode == 0, done.stderr
    printed = [f"node{rank // 2 + 1}:{rank}│rank {rank}: a b" for rank in range(8)]
    assert sorted(done.stdout.splitlines()) == printed


def test_a_node_is_reached_through_a_jump_host(project: Project) -> None:
    control = project.cluster.address("control")
    rules = (
        "add table inet behind; "
        "add chain inet behind input { type filter hook input priority 0; }; "
        f"add rule inet behind input ip saddr {control} drop"
    )
    project.cluster.run("node4", ["nft", rules], user="root", check=True)
    try:
        project.write("job.py", "import os, socket; print(socket.gethostname())")
        project.describe("nodes: [{host: node1, slots: 1}, {host: node4, slots: 1, jump: node3}]")
        for transport in ("fabric", "openssh"):
            project.describe(
                "nodes: [{host: node1, slots: 1}, {host: node4, slots: 1, jump: node3}]",
                transport=transport,
            )
            done = project.run("c.yaml", "job.py")
            assert "node4:1│node4\n" in done.stdout, done.stderr
    finally:
        project.cluster.run("node4", ["nft", "delete", "table", "inet", "behind"], user="root")


def test_an_ordinary_user_can_run(project: Project) -> None:
    user = project.cluster.user
    script = "import os; print(os.getuid())"
    project.cluster.put("control", f"/home/{user}/p/job.py", script, 0o644)
    text = f"nodes: [{{host: node2, slots: 1}}]\npython: {sys.executable}\nlauncher: direct\n"
    project.cluster.put(
        "control", f"/home/{user}/p/c.yaml", text + "storage: {workdir: work}\n", 0o644
    )
    command = project.command("run", "c.yaml", "job.py")
    done = project.cluster.run("control", command, cwd=f"/home/{user}/p", user=user)
    assert re.search(r"node2:0│\d+", done.stdout), done.stderr


def test_a_shared_directory_is_found_to_be_shared(project: Project) -> None:
    project.write("job.py", "print('hi')")
    project.describe(storage="{workdir: /shared/proj}")
    done = project.run("c.yaml", "job.py")
    assert done.returncode == 0, done.stderr
    decisions = project.decisions()
    assert decisions["storage-shared"]["path"] == "/shared/proj"
    # once for all nodes
    shipped = decisions["code-shipped"]
    assert (shipped["nodes"], shipped["path"]) == (["node1"], "/shared/proj")


NASTY = st.text(
    st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=40
) | st.sampled_from(
    ["", "$HOME", "`id`", "a\nb", "'", '"', "\\", "*", "--", "-x", "$(id)", "!!", "%h"]
)


@settings(
    max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(NASTY, min_size=12, max_size=40), NASTY)  # a run for each list
def test_arguments_and_environment_arrive_unchanged_through_real_sshd(
    project: Project, args: list[str], value: str
) -> None:
    project.write(
        "echo.py",
        "import json, os, sys\nif os.environ['RANK'] == '0':\n"
        "    print(json.dumps([sys.argv[1:], os.environ['V'], len(os.environ['BIG'])]))\n",
    )
    project.describe("nodes: [{host: node2, slots: 1}]", env_from="[V, BIG]")
    done = project.run("c.yaml", "echo.py", *args, env={"V": value, "BIG": "x" * 100_000})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.partition("│")[2]) == [args, value, 100_000]


# ---------------------------------------------------------------- what goes wrong


def test_a_node_that_is_off_is_named_and_nothing_starts(project: Project) -> None:
    project.write("job.py", SLEEPER)
    project.cluster.fault("node3", "sshd-down")
    done = project.run("c.yaml", "job.py")
    assert done.returncode == 5
    assert project.reason("problem", "failures") == ("nodes", [["node3", "refused"]])
    assert "up" not in done.stdout


def test_an_ssh_server_that_hangs_is_given_up(project: Project) -> None:
    project.write("job.py", SLEEPER)
    project.describe(ssh="{connect_timeout: 40}")  # the other nodes must be reached in it
    project.cluster.fault("node2", "sshd-hang")
    began = time.monotonic()
    done = project.run("c.yaml", "job.py")
    assert done.returncode == 5
    ((host, failure),) = project.outcome()["reason"]["failures"]
    assert host == "node2"
    assert failure in ("timeout", "throttled")
    assert time.monotonic() - began < 200


def test_a_changed_host_key_is_refused(project: Project) -> None:
    project.write("job.py", SLEEPER)
    project.cluster.fault("node2", "host-key")
    for transport in ("fabric", "openssh"):
        project.describe(transport=transport)
        done = project.run("c.yaml", "job.py")
        assert done.returncode == 5
        assert project.reason("failures") == ([["node2", "host-key-changed"]],), done.stderr


def test_an_unknown_host_key_is_refused_and_not_written_down(project: Project) -> None:
    project.write("job.py", SLEEPER)
    project.write("ssh_config", "Host *\n  GlobalKnownHostsFile /dev/null\n")
    project.describe(ssh="{config_file: ssh_config}")
    done = project.run("c.yaml", "job.py")
    assert done.returncode == 5
    unknown = [[f"node{number}", "host-key-unknown"] for number in (1, 2, 3, 4)]
    assert project.reason("failures") == (unknown,), done.stderr
    assert "dslaunch trust" in done.stderr
    assert project.cluster.run("control", ["cat", "/root/.ssh/known_hosts"]).returncode != 0


def test_a_wrong_key_is_an_authentication_failure(project: Project) -> None:
    project.write("job.py", SLEEPER)
    keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{project.path}/wrong"]
    project.cluster.run("control", keygen, check=True)
    project.cluster.fault("node1", "password-only")
    done = project.run("c.yaml", "job.py")
    assert done.returncode == 5
    assert project.reason("failures") == ([["node1", "authentication"]],), done.stderr


def test_an_unknown_name_is_said_so(project: Project) -> None:
    project.write("job.py", SLEEPER)
    project.describe("nodes: [{host: node1, slots: 1}, {host: nowhere, slots: 1}]")
    done = project.run("c.yaml", "job.py")
    assert done.returncode == 5
    assert project.reason("failures") == ([["nowhere", "name"]],), done.stderr


def test_an_interpreter_that_one_node_lacks_is_found_before_the_start(project: Project) -> None:
    project.write("job.py", SLEEPER)
    nodes = "nodes: [{host: node1, slots: 1}, {host: node2, slots: 1, python: /nope/python}]"
    project.describe(nodes)
    done = project.run("c.yaml", "job.py")
    assert done.returncode == 4
    assert project.reason("problem") == ("no-interpreter",), done.stderr
    assert "/nope/python" in done.stderr


def test_a_taken_port_is_found_before_the_start(project: Project) -> None:
    project.write("job.py", SLEEPER)
    project.describe(network="{master_port: 29500}")
    server = (
        "import socket, time; s = socket.create_server(('', 29500)); print(1, flush=True); "
        "time.sleep(60)"
    )
    with project.cluster.popen("node1", [sys.executable, "-c", server]) as taken:
        taken.stdout.readline()
        done = project.run("c.yaml", "job.py")
    assert done.returncode == 4
    assert project.reason("problem") == ("port-taken",), done.stderr


def test_a_blocked_network_is_found_before_the_start(project: Project) -> None:
    project.write("job.py", SLEEPER)
    project.cluster.fault("node1", "block", "20000-29999")
    done = project.run("c.yaml", "job.py")
    assert done.returncode == 4
    assert project.reason("problem") == ("master-unreachable",), done.stderr


def test_a_missing_script_is_said_so(project: Project) -> None:
    done = project.run("c.yaml", "gone.py")
    assert done.returncode == 3
    assert project.reason("problem") == ("script-missing",), done.stderr


def test_a_noisy_shell_is_no_harm(project: Project) -> None:
    project.write("job.py", "print('fine')")
    project.cluster.put("node2", "/root/.bashrc", "echo Welcome; echo oops >&2\n")
    try:
        done = project.run("c.yaml", "job.py")
        assert done.returncode == 0, done.stderr
        assert "Welcome" not in done.stdout
    finally:
        project.cluster.run("node2", ["rm", "/root/.bashrc"])


def test_a_shell_that_prints_during_the_run_is_named_with_what_it_printed(
    project: Project,
) -> None:
    script = "import pathlib, time; pathlib.Path('started').touch(); time.sleep(600)"
    project.write("job.py", script)
    waits = "until [ -e /root/work/started ]; do sleep 0.1; done"
    project.cluster.put("node2", "/root/.bashrc", f"({waits}; echo You have mail.) &\n")
    try:
        done = project.run("c.yaml", "job.py")
        assert done.returncode != 0
        assert "You have mail." in done.stderr
        assert ".bashrc" in done.stderr
    finally:
        project.cluster.run("node2", ["rm", "/root/.bashrc"])


# ---------------------------------------------------------------- how it ends


@pytest.mark.parametrize(
    ("ending", "code", "signal_number"),
    [
        pytest.param("import nowhere", 1, None, id="at import", marks=pytest.mark.long),
        pytest.param(  # test_loopback.py has a rank that exits with a code
            "time.sleep(2); sys.exit(9)", 9, None, id="after two seconds", marks=pytest.mark.long
        ),
        pytest.param("os.kill(os.getpid(), 9)", 137, signal.SIGKILL, id="by SIGKILL"),
        pytest.param(
            "os.kill(os.getpid(), 11)", 139, signal.SIGSEGV, id="by SIGSEGV", marks=pytest.mark.long
        ),
    ],
)
def test_one_failing_rank_ends_all_nodes_and_is_named(
    project: Project, ending: str, code: int, signal_number: int | None
) -> None:
    project.write("job.py", f"{SLEEPER}if rank == 5:\n    {ending}\ntime.sleep(300)")
    began = time.monotonic()
    done = project.run("c.yaml", "job.py")
    assert (done.returncode, time.monotonic() - began < 200) == (code, True)
    exit_code = None if signal_number else code
    found = project.reason("code", "host", "rank", "exit_code", "signal")
    assert found == ("rank-failed", "node3", 5, exit_code, signal_number)
    assert project.all_nodes_confirmed()
    assert project.nothing_is_left()


def test_ctrl_c_once_lets_ranks_end_gracefully(project: Project) -> None:
    handler = "import signal\ndef bye(*_):\n    print('saved', rank); sys.exit(0)\n"
    arm = "signal.signal(signal.SIGTERM, bye)\nprint('ready', flush=True)\ntime.sleep(300)"
    project.write("job.py", SLEEPER + handler + arm)
    with project.start("c.yaml", "job.py") as running:
        wait_for(running, "ready", times=8)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=300)
        assert running.popen.returncode == 130
    assert out.count("saved") == 8, out + err
    assert project.nothing_is_left()


def test_ctrl_c_twice_ends_at_once(project: Project) -> None:
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    project.write("job.py", f"{SLEEPER}{deaf}print('ready', flush=True)\ntime.sleep(300)")
    with project.start("--grace", "1000", "c.yaml", "job.py") as running:
        wait_for(running, "ready", times=8)
        running.send_signal(signal.SIGINT)
        project.wait_for_event("stopping")  # two wishes, not one
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=300)
        assert running.popen.returncode == 130
    assert project.nothing_is_left()


def test_another_run_of_the_same_user_is_not_touched(project: Project) -> None:
    project.write("job.py", SLEEPER + "time.sleep(300)")
    project.write("bad.py", SLEEPER + "sys.exit(1)")
    with project.start("c.yaml", "job.py") as bystander:
        wait_for(bystander, "up", times=8)
        assert project.run("c.yaml", "bad.py").returncode == 1
        assert bystander.popen.poll() is None
        for node in project.cluster.names:
            ranks = [p for p in project.cluster.processes(node) if "RANK" in p.environ]
            assert len(ranks) == 2
        bystander.send_signal(signal.SIGINT)
        bystander.communicate(timeout=300)
    assert project.nothing_is_left()


def test_secrets_are_in_no_command_line_file_or_log(project: Project) -> None:
    secret = f"sEcReT-{token_hex(8)}"  # not one that stands in a file of the checkout
    project.write("job.py", SLEEPER + "print(os.environ['TOKEN'], flush=True)\ntime.sleep(3)")
    project.describe(secrets="[TOKEN]")
    with project.start("c.yaml", "job.py", env={"TOKEN": secret}) as running:
        wait_for(running, "***", times=8)
        for node in (*project.cluster.names, "control"):
            for process in project.cluster.processes(node):
                assert secret not in " ".join(process.argv)
            # -xdev: the checkout, which may be below /tmp, is on another file system
            grep = f"find /tmp /root /var -xdev -type f -exec grep -l {secret} {{}} +"
            assert project.cluster.run(node, ["sh", "-c", grep]).stdout == ""
        out, err = running.communicate(timeout=300)
    assert secret not in out + err


def test_json_events_tell_the_whole_run(project: Project) -> None:
    project.write("job.py", SLEEPER)
    done = project.run("--json", "c.yaml", "job.py")
    kinds = [json.loads(line)["kind"] for line in done.stdout.splitlines()]
    assert kinds.count("connected") == 4
    assert kinds.count("exit") == kinds.count("output") == 8
    assert kinds[-1] == "outcome"
