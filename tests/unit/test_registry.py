"""Parts that are found by name."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from importlib import metadata

import pytest

from dslaunch.errors import UsageError
from dslaunch.launch import launchers
from dslaunch.registry import Registry
from dslaunch.render import formats


def test_a_module_is_a_part_unless_it_is_private() -> None:
    assert {"torchrun", "direct"} <= set(launchers.names())
    assert "accelerate-config" in formats.names()


def test_a_part_is_required_without_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dslaunch.launch.launchers.torchrun", raising=False)
    launchers.require("torchrun")
    assert "dslaunch.launch.launchers.torchrun" not in sys.modules


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


@pytest.mark.parametrize("ask", [launchers.get, launchers.require])
def test_a_name_that_nobody_has_is_refused_with_those_there_are(
    ask: Callable[[str], object],
) -> None:
    with pytest.raises(UsageError, match="no launcher is named `zzz`") as caught:
        ask("zzz")
    assert str(caught.value.hint).startswith("there are: accelerate, ")
