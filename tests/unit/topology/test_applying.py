"""Advice in a cluster file: written where nobody has said otherwise, and nowhere else."""

from __future__ import annotations

import pytest

from dslaunch.topology.advice_codes import Advice, AdviceCode, Where
from dslaunch.topology.applying import NotApplied, NotAppliedCode, apply

FILE = """\
# the pod
nodes:
  - host: node[01-02]  # first rack
    slots: 8
  - {host: node03, slots: [0, 1, 2]}
network:
  interface: auto  # to be decided
"""
ALL = ("node01", "node02", "node03")


def advice(
    what: str, value: str | None, hosts: tuple[str, ...] = ALL, where: Where = "env"
) -> Advice:
    return Advice(what, value, AdviceCode.MODELS_DIFFER, hosts=hosts, where=where)


def changed(*given: Advice, text: str = FILE) -> list[str]:
    """The lines that are new."""
    applied = apply(text, "c.yaml", given)
    old = text.splitlines()
    return [line for line in applied.text.splitlines() if line not in old]


def test_an_interface_replaces_auto_and_the_comment_stays():
    given = advice("network.interface", "ib0", where="interface")
    assert changed(given) == ["  interface: ib0  # to be decided"]


def test_what_all_nodes_need_is_for_the_file():
    assert changed(advice("NCCL_IB_HCA", "=mlx5_0")) == ["env:", '  NCCL_IB_HCA: "=mlx5_0"']


def test_what_the_nodes_of_an_entry_need_is_for_the_entry():
    assert changed(advice("NCCL_IB_HCA", "=mlx5_0", ALL[:2])) == [
        "    env:",
        '      NCCL_IB_HCA: "=mlx5_0"',
    ]
    assert changed(advice("A", "1", ALL[2:])) == [
        '  - {host: node03, slots: [0, 1, 2], env: {A: "1"}}'
    ]


def test_an_entry_is_not_taken_apart():
    applied = apply(FILE, "c.yaml", [advice("A", "1", ("node01",))])
    assert applied.text == FILE
    assert applied.left == (
        NotApplied(NotAppliedCode.SHARED_ENTRY, "nodes[0].env.A", "1", "node01"),
    )


def test_slots_are_written_as_a_number_if_possible():
    assert changed(advice("slots", "0,1,2,3", ALL[:2], "slots")) == ["    slots: 4"]
    assert changed(advice("slots", "0,2", ALL[2:], "slots")) == [
        "  - {host: node03, slots: [0, 2]}"
    ]


@pytest.mark.parametrize(
    ("there", "code", "detail"),
    [
        ("eth0", NotAppliedCode.OTHER_VALUE, "eth0"),
        ("ib0", NotAppliedCode.SET_ALREADY, ""),
    ],
)
def test_existing_values_are_kept(there: str, code: NotAppliedCode, detail: str):
    text = FILE.replace("auto", there)
    applied = apply(text, "c.yaml", [advice("network.interface", "ib0", where="interface")])
    assert (applied.text, applied.left) == (
        text,
        (NotApplied(code, "network.interface", "ib0", detail),),
    )


def test_what_is_no_setting_is_not_written():
    applied = apply(FILE, "c.yaml", [advice("P2P", None), advice("ZeRO stage", "2", where="")])
    assert (applied.text, applied.done, applied.left) == (FILE, (), ())


def test_what_was_written_is_written_once():
    given = [advice("A", "1"), advice("B", "x y")]
    once = apply(FILE, "c.yaml", given)
    twice = apply(once.text, "c.yaml", given)
    assert once.done == ("env.A: 1", "env.B: x y")
    assert (twice.text, twice.done) == (once.text, ())


def test_values_that_cannot_be_edited_are_kept_and_reported():
    text = 'nodes: [{host: a, slots: 1}]\nenv: &both {A: "1"}\nslurm: *both\n'
    applied = apply(text, "c.yaml", [advice("B", "1", ("a",))])
    assert applied.text == text
    left = [(each.code, each.place) for each in applied.left]
    assert left == [(NotAppliedCode.NOT_EDITABLE, "env.B")]
