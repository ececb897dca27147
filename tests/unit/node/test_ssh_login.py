"""Whom a node may be told to log in to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.node.ssh_login import InvalidChildError, destination


@given(st.text(max_size=30), st.text(max_size=10) | st.none(), st.integers(-1, 70000) | st.none())
def test_a_child_is_arguments_of_ssh_that_are_no_options_or_refused(
    host: str, user: str | None, port: int | None
) -> None:
    try:
        words = destination({"host": host, "user": user, "port": port})
    except InvalidChildError:
        return
    assert words[-2:] == ["--", host]
    assert not host.startswith("-")
    assert host.isascii() and host.isprintable() and " " not in host
    assert words[:-2] == [
        *(["-l", user] if user is not None else []),
        *(["-p", str(port)] if port is not None else []),
    ]


@pytest.mark.parametrize(
    "child",
    [
        {}, [], None, "a", {"host": "a", "user": None},
        {"host": "-oProxyCommand=id", "user": None, "port": None},
        {"host": "a b", "user": None, "port": None},
        {"host": "a", "user": "-x", "port": None},
        {"host": "a", "user": None, "port": True},
        {"host": "a", "user": None, "port": "22"},
        {"host": ["a"], "user": None, "port": 22},
    ],
)  # fmt: skip
def test_a_child_that_is_no_plain_address_user_and_port_is_refused(child: object) -> None:
    with pytest.raises(InvalidChildError):
        destination(child)
