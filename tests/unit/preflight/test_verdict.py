"""The verdict per node, and the commands that drain unfit nodes."""

from __future__ import annotations

import shlex

from dslaunch.cluster.nodeset import expand
from dslaunch.launch.command import LONGEST_ARGUMENT
from dslaunch.preflight.check import Finding
from dslaunch.preflight.verdict import (
    Fitness,
    NodeVerdict,
    drain_commands,
    hosts_that_are,
    node_verdicts,
)

HOSTS = ("n1", "n2", "n3", "n4")
FEW_GPUS = Finding("fail", "7 GPUs", hosts=("n2", "n3"), check="gpu.count")
XID = Finding("fail", "Xid 79", hosts=("n3",), check="gpu.xid")
OTHER_XID = Finding("fail", "Xid 48", hosts=("n3",), check="gpu.xid")
WARNING = Finding("warn", "MTU 9000", hosts=("n1",), check="net.mtu")
NO_ANSWER = Finding("fail", "no answer", hosts=("n4",), check="ssh.connect")
VERDICTS = node_verdicts(HOSTS, ("n1", "n2", "n3"), (FEW_GPUS, XID, OTHER_XID, NO_ANSWER, WARNING))


def test_a_node_is_unfit_if_a_check_failed_and_unknown_if_it_did_not_answer() -> None:
    assert (
        NodeVerdict("n1", Fitness.FIT),
        NodeVerdict("n2", Fitness.UNFIT, ("gpu.count",)),
        NodeVerdict("n3", Fitness.UNFIT, ("gpu.count", "gpu.xid")),
        NodeVerdict("n4", Fitness.UNKNOWN, ("ssh.connect",)),
    ) == VERDICTS


def test_a_node_is_unknown_if_none_of_its_checks_was_answered() -> None:
    answered = Finding("pass", "answered", hosts=HOSTS, check="ssh.connect")
    no_result = Finding("unknown", "no answer within 5 s", hosts=("n1", "n2"), check="gpu.count")
    not_needed = Finding("skip", "one node", hosts=HOSTS, check="net.mesh")
    all_well = Finding("pass", "resolves", hosts=("n2",), check="dns.resolve")
    verdicts = node_verdicts(HOSTS, HOSTS, (answered, no_result, not_needed, all_well))
    assert hosts_that_are(verdicts, Fitness.UNKNOWN) == ("n1",)
    assert hosts_that_are(verdicts, Fitness.FIT) == ("n2", "n3", "n4")


def test_a_job_that_was_not_rehearsed_says_nothing_about_the_nodes() -> None:
    unknown = Finding("unknown", "not rehearsed", hosts=HOSTS, check="job.rehearsal", of_job=True)
    assert hosts_that_are(node_verdicts(HOSTS, HOSTS, (unknown,)), Fitness.FIT) == HOSTS


def test_hosts_are_selected_by_their_verdicts() -> None:
    assert hosts_that_are(VERDICTS, Fitness.FIT) == ("n1",)
    assert hosts_that_are(VERDICTS, Fitness.UNFIT, Fitness.UNKNOWN) == ("n2", "n3", "n4")


def test_unfit_nodes_with_equal_reasons_are_drained_by_one_command() -> None:
    findings = (FEW_GPUS, WARNING, NO_ANSWER)
    verdicts = node_verdicts(HOSTS, ("n1", "n2", "n3"), findings)
    (command,) = drain_commands(verdicts)
    assert shlex.split(command) == [
        "scontrol",
        "update",
        "nodename=n[2-3]",
        "state=drain",
        "reason=dslaunch preflight: gpu.count",
    ]


def test_nodes_that_do_not_fit_into_an_argument_are_drained_by_several_commands() -> None:
    hosts = [f"{'x' * 60}{number:05}-{number % 239}" for number in range(2_000)]
    verdicts = [NodeVerdict(host, Fitness.UNFIT, ("gpu.count",)) for host in hosts]
    named = [shlex.split(command)[2] for command in drain_commands(verdicts)]
    assert len(named) > 1
    assert max(map(len, named)) <= LONGEST_ARGUMENT
    drained = [host for each in named for host in expand(each.removeprefix("nodename="))]
    assert sorted(drained) == sorted(hosts)


def test_reasons_that_differ_are_commands_of_their_own() -> None:
    assert len(list(drain_commands(VERDICTS))) == 2


def test_fit_nodes_are_not_drained() -> None:
    assert list(drain_commands(node_verdicts(("n1",), ("n1",), ()))) == []
