"""A plan as people read it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

from dslaunch.cluster.model import Allocation, Node, SecretSource
from dslaunch.launch.decisions import DecisionCode, decision
from dslaunch.launch.job import Job
from dslaunch.launch.plan import Decided, File, Plan, Rendezvous
from dslaunch.launch.planner import make_plan
from dslaunch.render.dry_run import dry_run


def plan(launcher: str = "direct", *args: str) -> Plan:
    node = Node("w0", (0, 1), env=(("NOTE", "a 'b' $c"),))
    job = Job("train.py", args, launcher=launcher, secrets=(SecretSource("HF_TOKEN"),))
    decisions = (
        decision(DecisionCode.MASTER_GIVEN, address="10.0.0.1", port=29500),
        decision(DecisionCode.INTERFACE_GIVEN, assumed=True, interface="eth0"),
    )
    files = (File("ds_config.json", '{\n  "a": 1\n}\n'),)
    decided = Decided(Rendezvous("10.0.0.1", 29500), "/my work", decisions, files)
    return make_plan(Allocation.of([(node, (1,))]), job, decided, cluster="pod")


def test_a_dry_run_has_everything_of_a_node(golden: Callable[[str, str], None]) -> None:
    golden("run/dry-run.txt", dry_run(plan("torchrun", "a b")))


def test_each_rank_that_is_started_directly_shows_its_own_variables() -> None:
    text = dry_run(plan())
    assert "# rank 0\nenv MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 WORLD_SIZE=1 RANK=0 " in text


def test_a_secret_shows_its_name_alone() -> None:
    assert "export HF_TOKEN=***\n" in dry_run(plan())


def test_a_shell_reads_the_shown_commands_as_they_are_run() -> None:
    args = ("a b", "it's", "$HOME", "`id`", "", "é☃")
    shown = dry_run(plan("direct", *args)).splitlines()[-1]
    script = shown.replace(" python3 -u train.py ", ' sh -c \'printf "%s\\0" "$@"\' - ')
    done = subprocess.run(["sh", "-c", script], capture_output=True, check=True, env=os.environ)
    assert done.stdout.decode().split("\0")[:-1] == list(args)


def test_of_many_nodes_that_are_alike_the_first_are_shown_and_the_others_named() -> None:
    usual = [(Node(f"n{number:03}", (0, 1)), (0, 1)) for number in range(1, 100)]
    other = (Node("n100", (0, 1), env=(("NOTE", "other"),)), (0, 1))
    decided = Decided(Rendezvous("n001", 29500), "/work")
    whole = make_plan(Allocation.of([*usual, other]), Job("train.py"), decided, cluster="pod")
    shown = [line for line in dry_run(whole).splitlines() if line.startswith("# n")]
    others = [line for line in dry_run(whole).splitlines() if "more node" in line]
    assert [line.split(":")[0] for line in shown] == ["# n001", "# n002", "# n100"]
    assert [line.rpartition(" ")[2] for line in others] == ["n[003-099]"]
