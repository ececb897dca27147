"""Answers to questions become values of their kind, or an error of their question alone."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checks.recorded import HELLO

from dslaunch.protocol import survey
from dslaunch.protocol.values import Address, InvalidAnswer, adapter_of, parse

INTERFACE = {
    "name": "eth0",
    "address": "10.0.0.1",
    "loopback": False,
    "up": True,
    "speed": 25000,
    "mtu": 1500,
}


def interface(**changes: Any) -> dict[str, Any]:
    return {"value": [{**INTERFACE, **changes}]}


def test_a_value_keeps_what_was_asked_and_drops_the_rest() -> None:
    sent = {"/proc/a": "1", "/sys/x/state": "2", "/sys/x/y/state": "3", "/etc/shadow": "4"}
    found = survey.answer("read", ["/proc/a", "/sys/*/state"], {"value": sent, "seconds": 1})
    assert found == {"value": {"/proc/a": "1", "/sys/x/state": "2"}, "seconds": 1.0}
    which = {"value": {"ls": "/bin/ls", "evil": 5}}
    assert survey.answer("which", ["ls"], which) == {"value": {"ls": "/bin/ls"}}


@pytest.mark.parametrize("sent", [None, [], "x", 5, {}, {"seconds": 1}, {"error": 5}])
def test_what_is_no_answer_is_invalid(sent: object) -> None:
    assert survey.answer("write", {}, sent)["code"] == "invalid"


def test_equal_answers_of_many_nodes_are_one_with_the_seconds_of_the_first() -> None:
    known, question = survey.KnownAnswers(), ('which ["ls"]', "which", ["ls"])
    sent = [{"value": {"ls": "/bin/ls"}, "seconds": seconds} for seconds in (0.1, 0.2)]
    first, second = (known.answer(*question, each) for each in sent)
    assert first is second
    assert first == {"value": {"ls": "/bin/ls"}, "seconds": 0.1}


def test_nodes_with_equal_answers_have_one_object() -> None:
    known = survey.KnownAnswers()

    def of_node(path: str) -> dict[str, survey.Answer]:
        answer = known.answer('which ["ls"]', "which", ["ls"], {"value": {"ls": path}})
        return known.of_node({'which ["ls"]': answer})

    first, second, third = of_node("/bin/ls"), of_node("/bin/ls"), of_node("/usr/bin/ls")
    assert first is second
    assert third == {'which ["ls"]': {"value": {"ls": "/usr/bin/ls"}}}


@given(
    st.lists(
        st.fixed_dictionaries(
            {"value": st.sampled_from([True, 1, 1.0, {"ls": "/ls"}, {"ls": 1}, {}, None])},
            optional={"seconds": st.sampled_from([1, 1.5, -1, "x"]), "error": st.just("none")},
        )
    )
)
def test_a_known_answer_is_what_it_is_alone_but_for_its_seconds(
    several: list[dict[str, Any]],
) -> None:
    known = survey.KnownAnswers()
    for sent in several:
        found = known.answer('which ["ls"]', "which", ["ls"], sent)
        alone = survey.answer("which", ["ls"], sent)
        assert {**found, "seconds": None} == {**alone, "seconds": None}


def test_an_error_goes_before_a_value_and_is_bounded() -> None:
    assert survey.answer("write", {}, {"error": "no", "value": None}) == {"error": "no"}
    assert survey.answer("write", {}, {"error": ""})["error"]
    assert len(survey.answer("write", {}, {"error": "x" * 10**6})["error"]) < 2000


@pytest.mark.parametrize(
    ("kind", "argument", "value"),
    [
        ("which", ["ls"], {}),
        ("limits", ["STACK"], {"STACK": [1]}),
        ("limits", ["STACK"], {"STACK": [True, 1]}),
        ("dial", {"targets": {"n1": ["10.0.0.1", 5]}}, {"n1": {}}),
        ("listen", {"ports": [0]}, {"port": 0}),
        ("listen", {"ports": [0]}, {"port": 65536}),
        ("run", {}, {"code": 0, "out": "x" * 300_000, "err": ""}),
        ("run", {}, {"code": 0, "out": b"", "err": ""}),
        ("list", {}, [{"path": "/a\0", "size": 1, "age": 0.0}]),
        ("list", {}, [{"path": "/a", "size": 1, "age": float("nan")}]),
        ("marks", {"paths": ["/a"]}, {"/a": ["../x"]}),
        ("claim", {"paths": ["/a"]}, {"/a": "../x"}),
        ("interfaces", None, [{}] * 100_000),
    ],
)
def test_a_value_of_another_shape_is_invalid(kind: str, argument: object, value: object) -> None:
    found = survey.answer(kind, argument, {"value": value})
    assert (found.get("code"), "value" in found) == ("invalid", False)


@pytest.mark.parametrize(
    "address",
    ["-oProxyCommand=x", "localhost", "1.2.3.4;id", "fe80::1%-x", "fe80::1%eth0", "", " "],
)
def test_what_other_nodes_dial_is_an_address(address: str) -> None:
    assert survey.answer("interfaces", None, interface(address=address))["code"] == "invalid"
    assert "value" in survey.answer("interfaces", None, interface(address="fd00::1"))


@pytest.mark.parametrize("name", ["", "a b", "x" * 16, "eth0\n", "../../a"])
def test_the_name_of_an_interface_is_one(name: str) -> None:
    assert survey.answer("interfaces", None, interface(name=name))["code"] == "invalid"


def test_an_error_about_an_answer_shows_no_control_character() -> None:
    found = survey.answer("pci", ["0x10de"], {"value": {"\x1b[2J": {"class": 5}}})
    assert found["code"] == "invalid"
    assert found["error"].isprintable()


@pytest.mark.parametrize(
    "key", ["", "read", "read {", "steal []", "read 5", "read [[]]", "dial []"]
)
def test_a_recorded_key_that_is_no_question_has_no_value(key: str) -> None:
    found = survey.recorded(key, {"value": {}})
    assert found is None or found.get("code") == "invalid"


@pytest.mark.parametrize(
    "changes",
    [
        {"uid": -1},
        {"uid": True},
        {"python": "3.11"},
        {"executable": "a\0b"},
        {"cores": 0},
        {"boot": 5},
    ],
)
def test_a_first_message_of_another_shape_is_invalid(changes: dict[str, Any]) -> None:
    assert survey.hello(HELLO)["uid"] == 1000
    with pytest.raises(InvalidAnswer):
        survey.hello({**HELLO, **changes})


@pytest.mark.parametrize("zone", ["\x1b[31m", "a b", "a\nb", "a/b", "x" * 16])
def test_an_address_has_no_zone_that_is_no_interface(zone: str) -> None:
    parse(adapter_of(Address), "fe80::1%eth0")
    with pytest.raises(InvalidAnswer):
        parse(adapter_of(Address), f"fe80::1%{zone}")


NUMBERS = st.lists(
    st.sampled_from(["0", "1", "01", "255", "256", "", "-1", "0x1", " 1"]), max_size=5
)


@given(st.one_of(NUMBERS.map(".".join), st.ip_addresses().map(str), st.text(max_size=20)))
def test_an_address_is_what_pythons_own_module_takes_for_one(text: str) -> None:
    try:
        ipaddress.ip_address(text)
        is_address = "%" not in text
    except ValueError:
        is_address = False
    if is_address:
        assert parse(adapter_of(Address), text) == text
    elif "%" not in text:
        with pytest.raises(InvalidAnswer):
            parse(adapter_of(Address), text)
