"""No answer that has the right form makes a check stumble."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dslaunch.cluster.load import parse_cluster
from dslaunch.launch.job import Job
from dslaunch.preflight.check import LEVELS, NodeAnswers, Question, Scope
from dslaunch.preflight.checks import built_in
from dslaunch.preflight.flow import RunningCheck
from dslaunch.preflight.judge import judge
from dslaunch.preflight.recording import NodeRecording, Recording
from dslaunch.preflight.verdict import REACHED
from tests.checks.recorded import HELLO, job_with

CHECKS = built_in()
CLUSTER = "nodes: [{host: 'node[1-2]', slots: 2}]\nstorage: {node_local: /scratch}\n"
NUMBER = st.integers(-1, 2**63)
WORDS = st.text(max_size=60) | st.sampled_from(
    [
        *("", "0", "max", "-1", "1048576", "0-15,32", "powersave", "systemd", "4: ACTIVE"),
        *("0.1 0.2 0.3 1/2 3", "99 98 . 1/2 3", "MemTotal: 5 kB\nMemAvailable: 1 kB\n"),
        *("Iface\tDestination\neth0\t00000000\t1\t1\t1\t1\t5\t00000000\n", "32768 60999"),
        *("Leap status : Not synchronized", "NodeName=node1 State=* Reason=", "No devices"),
        *("1 2 0:3 / / rw - nfs4 a:/b rw", " - ", "a b c d e f - g h", "CUDA Version 12.1"),
        *(
            "[]",
            '{"ranks": [{"rank": 0}]}',
            '{"ranks": 1}',
        ),
        '{"torch": "2", "gpus": 1, "nccl": true, "gloo": true, "port": 5}',
        *("NCCL_P2P_LEVEL=NODE\n=\n#", "server:/h 5 1 0 0 5 1 0 0", "/ 0 0 1 0 0 0 1 0"),
    ]
)
ADDRESS = st.ip_addresses().map(str) | st.just("fe80::1%eth0")
RAN = st.fixed_dictionaries({"code": st.integers(0, 255), "out": WORDS, "err": WORDS})
REPORT = st.sampled_from(
    [
        *(
            "",
            "activated\n",
            "activated\n/usr/bin/python3\n",
            "activated\n/p\n{}\n",
            "{",
            "x\ny\n{",
        ),
        job_with({})["report"],
        job_with({"packages": {"torch": ["2", "/v"]}, "torch": {"cuda": "12.4"}})["report"],
    ]
)
JOB = st.fixed_dictionaries(
    {"code": st.none() | st.integers(0, 255), "out": WORDS, "err": WORDS, "report": REPORT},
    optional={"missing": WORDS, "there": st.lists(WORDS), "lacks": st.lists(WORDS)},
)
TRANSFERRED = st.fixed_dictionaries({"bytes": st.integers(0, 2**63), "seconds": st.floats(0, 1e9)})
SIZES = ("mode", "uid", "size", "free", "inodes", "inodes_free")
MOUNT = st.none() | st.fixed_dictionaries(
    dict.fromkeys(("point", "source", "options"), WORDS)
    | {"type": st.sampled_from(["ext4", "nfs4", "lustre", "tmpfs", "fuse.sshfs", ""])}
)
PATH = st.fixed_dictionaries(
    {"path": WORDS, "real": WORDS, "kind": st.just("directory"), "mount": MOUNT}
    | {"writable": st.booleans()}
    | {name: st.integers(0, 2**63) for name in SIZES}
)
INTERFACE = st.fixed_dictionaries(
    {"name": st.sampled_from(["lo", "eth0", "docker0", "ib0"]), "address": ADDRESS}
    | {"loopback": st.booleans(), "up": st.booleans()}
    | {"speed": st.none() | st.integers(0, 800_000), "mtu": st.none() | st.integers(68, 65536)}
)
FILE = st.fixed_dictionaries(
    {"path": WORDS, "size": st.integers(0, 2**50), "uid": NUMBER, "age": st.floats(-5, 1e9)}
)
REHEARSAL = st.fixed_dictionaries(
    {"verdict": st.sampled_from(["would-run", "would-fail", "not-rehearsed"])}
    | {"ranks": st.integers(0, 9), "steps": st.integers(0, 9)}
    | {"not_rehearsed": st.lists(WORDS, max_size=2)}
    | {
        "findings": st.lists(
            st.fixed_dictionaries(
                {"level": st.sampled_from(["error", "warning", "info"])}
                | dict.fromkeys(("code", "where", "text"), WORDS)
                | dict.fromkeys(("hint", "evidence"), st.none() | WORDS)
            ),
            max_size=3,
        )
    }
)


def _some(names: list[str], values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(st.sampled_from([n.replace("*", "x0") for n in names]), values)


def _all(names: list[str], values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(dict.fromkeys(names, values))


def value(question: Question) -> st.SearchStrategy[Any]:
    """Any value that a node may answer to it; see `node/questions.py`."""
    told = question.argument
    call = st.one_of(
        st.fixed_dictionaries({"local": ADDRESS}), st.fixed_dictionaries({"error": WORDS})
    )
    by_kind: dict[str, Callable[[], st.SearchStrategy[Any]]] = {
        "read": lambda: _some(told, WORDS),
        "texts": lambda: _some(told, WORDS),
        "present": lambda: _some(told, WORDS),
        "which": lambda: _all(told, st.none() | WORDS),
        "pci": lambda: st.dictionaries(
            WORDS, st.fixed_dictionaries({"class": WORDS, "device": WORDS, "driver": WORDS})
        ),
        "accelerators": lambda: st.dictionaries(
            st.sampled_from(["nvidia", "amd", "intel", "ascend", "gaudi", "neuron", "mlu"]),
            st.fixed_dictionaries({"devices": st.integers(0, 1024), "bus": st.integers(0, 1024)}),
        ),
        "environment": lambda: _some(told, WORDS),
        "limits": lambda: _all(told, st.lists(NUMBER, min_size=2, max_size=2)),
        "interfaces": lambda: st.lists(INTERFACE, max_size=4),
        "listen": lambda: st.fixed_dictionaries(
            {"port": st.none() | st.integers(1, 65535), "taken": st.just([])}
        ),
        "run": lambda: RAN,
        "each": lambda: _all(list(told["programs"]), RAN),
        "path": lambda: PATH,
        "list": lambda: st.lists(FILE, max_size=3),
        "write": st.none,
        "job": lambda: JOB,
        "send_rate": lambda: TRANSFERRED,
        "write_rate": lambda: TRANSFERRED,
        "digests": lambda: _all(told["paths"], st.none() | st.sampled_from(["aa", "bb"])),
        "mark": lambda: _all(told["paths"], st.none() | WORDS),
        "marks": lambda: _all(told["paths"], st.lists(st.sampled_from(told["names"]))),
        "claim": lambda: _all(told["paths"], st.none() | st.just(told["text"])),
        "resolve": lambda: _all(told, st.lists(ADDRESS, max_size=3)),
        "names": lambda: st.fixed_dictionaries(
            {"hostname": WORDS, "fqdn": WORDS, "addresses": st.lists(ADDRESS, max_size=2)}
        ),
        "rehearsal": lambda: REHEARSAL,
        "dial": lambda: _all(list(told["targets"]), call),
    }
    return by_kind[question.kind]()


def answer(question: Question) -> st.SearchStrategy[Any]:
    """An answer, or why there is none."""
    failed = st.fixed_dictionaries(
        {"error": st.sampled_from(["no answer within 5 s", "Stale file handle", "it crashed"])}
    )
    return st.one_of(st.fixed_dictionaries({"value": value(question)}), failed)


SCOPES = st.builds(
    lambda purposes, launcher, files: Scope(
        (cluster := parse_cluster(CLUSTER, "c.yaml")),
        cluster.nodes,
        Job("", launcher=launcher),
        purposes=frozenset(purposes),
        directories=("/work", "ckpt"),
        root="work",
        files=files,
    ),
    st.sets(st.sampled_from(["mpi", "offload", "zero-infinity"])),
    st.sampled_from(["torchrun", "elastic"]),
    st.sampled_from([(), (("a.py", "aa"), ("b.py", "bb")), (("a.py", ""),)]),
)


@pytest.mark.parametrize("name", sorted(CHECKS))
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_check_judges_any_answer(name: str, data: st.DataObject) -> None:
    check, scope = CHECKS[name], data.draw(SCOPES)
    recorded: dict[str, dict[str, Any]] = {node.host: {} for node in scope.nodes}
    running = RunningCheck(name, check, scope)
    here = running.pending.here if running.pending is not None else {}
    while running.pending is not None:
        for host, asked in running.pending.asked.items():
            for question in asked.values():
                if question.key not in recorded[host]:
                    recorded[host][question.key] = data.draw(answer(question))
        running.answered(
            {n.host: NodeAnswers(n, scope, {}, recorded[n.host], HELLO) for n in scope.nodes}
        )
    own = {q.key: data.draw(answer(q)) for q in here.values()}
    facts = {host: NodeRecording(HELLO, said, (0.0, 0.1), 0.1) for host, said in recorded.items()}
    whole = Recording(scope, 0.0, facts, {}, own)
    found = [f for f in judge(whole, {name: check}).findings if f.check != REACHED]
    assert all(f.level in LEVELS and f.found and f.hosts for f in found)
