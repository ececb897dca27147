"""Parts that are found by name."""

from __future__ import annotations

import types
from importlib import metadata

import pytest

from dslaunch.errors import UsageError
from dslaunch.launch import launchers
from dslaunch.registry import Registry
from dslaunch.render import formats


def test_a_module_is_a_part_unless_it_is_private() -> None:
    assert {"torchrun", "direct"} <= set(launchers.names())
    assert "accelerate-config" in formats.names()


def test_what_others_installed_is_found_where_nothing_built_in_has_the_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def entry_points(**wanted: str) -> list[object]:
        asked.append(wanted)
        return [types.SimpleNamespace(load=lambda: "theirs")]

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    parts: Registry[object] = Registry("p", (), "PART", "dslaunch.parts", "part")
    assert parts.get("mine") == "theirs"
    assert asked == [{"group": "dslaunch.parts", "name": "mine"}]


def test_a_name_that_nobody_has_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="no launcher is named `zzz`") as caught:
        launchers.get("zzz")
    assert str(caught.value.hint).startswith("there are: accelerate, ")
