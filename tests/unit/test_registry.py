"""Parts that are found by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dslaunch.errors import ErrorCode, PluginError, UsageError
from dslaunch.registry import LAUNCHERS, PluginNote, Registry, plugin_faults
from dslaunch.render import formats


def own_parts() -> dict[str, object]:
    """Return the parts that are built in."""
    return {"own": own_parts}


Install = Callable[..., Registry[object]]


@pytest.fixture
def install(tmp_path: Path) -> Iterator[Install]:
    """Install a package with entry points; give the registry of their group."""
    group = f"dslaunch.test.{tmp_path.name}"

    def installed(
        code: str = "", *, package: str = "acme", shape: str = "", **entries: str
    ) -> object:
        (tmp_path / f"{package}_parts.py").write_text(code, "utf-8")
        metadata = tmp_path / f"{package}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Name: {package}\nVersion: 1.0\n", "utf-8")
        lines = [f"{name} = {value}\n" for name, value in entries.items()]
        (metadata / "entry_points.txt").write_text(f"[{group}]\n{''.join(lines)}", "utf-8")
        return Registry(noun="part", group=group, shape=shape, table=f"{__name__}:own_parts")

    sys.path.insert(0, str(tmp_path))
    yield installed
    sys.path.remove(str(tmp_path))
    for package in ("acme", "other"):
        sys.modules.pop(f"{package}_parts", None)


def test_a_module_is_a_part_unless_it_is_private() -> None:
    assert {"torchrun", "direct"} <= set(LAUNCHERS.names())
    assert "accelerate-config" in formats.names()


def test_a_part_is_required_without_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dslaunch.launch.launchers.torchrun", raising=False)
    LAUNCHERS.require("torchrun")
    assert "dslaunch.launch.launchers.torchrun" not in sys.modules


def test_an_installed_part_is_found_and_named(install: Install) -> None:
    parts = install("def mine(): ...", mine="acme_parts:mine")
    assert parts.names() == ("own",)
    assert parts.every_name() == ("own", "mine")
    assert parts.get("mine").__name__ == "mine"  # type: ignore[attr-defined]
    assert list(parts.installed()) == ["mine"]


@pytest.mark.parametrize("ask", [LAUNCHERS.get, LAUNCHERS.require])
def test_an_unknown_name_is_an_error_with_the_known_ones(
    ask: Callable[[str], object],
) -> None:
    with pytest.raises(UsageError, match="`zzz`") as caught:
        ask("zzz")
    assert caught.value.error_code is ErrorCode.UNKNOWN_NAME
    assert str(caught.value.values["available"]).startswith("accelerate, ")


def test_an_installed_name_is_suggested_for_one_that_is_near(install: Install) -> None:
    parts = install("def mine(): ...", mine="acme_parts:mine")
    with pytest.raises(UsageError) as caught:
        parts.get("mien")
    assert caught.value.hint == "did you mean `mine`?"


@pytest.mark.parametrize(
    ("code", "shape", "why"),
    [
        ("import nowhere", "", "cannot be loaded: ModuleNotFoundError: No module named 'nowhere'"),
        ("raise SystemExit(3)", "", "cannot be loaded: SystemExit: 3"),
        ("", "", "cannot be loaded: AttributeError"),
        ("mine = 3", "", "cannot be called"),
        ("mine = 3", "pathlib:Path", "is not a pathlib.Path"),
    ],
)
def test_a_broken_part_is_named_with_its_plugin_and_entry_point(
    install: Install, code: str, shape: str, why: str
) -> None:
    parts = install(code, shape=shape, mine="acme_parts:mine")
    with pytest.raises(PluginError, match="plugin acme: `mine`") as caught:
        parts.get("mine")
    assert f"({parts.group}: acme_parts:mine) {why}" in caught.value.message
    assert caught.value.hint == "update acme or uninstall it"


def test_a_plugin_cannot_replace_what_is_built_in(install: Install) -> None:
    parts = install("def own(): ...", own="acme_parts:own")
    assert parts.get("own") is own_parts
    with pytest.raises(PluginError, match="cannot replace the built-in part `own`"):
        parts.installed()


def test_a_part_with_a_built_in_name_is_not_used_and_a_note_says_so(install: Install) -> None:
    parts = install("def own(): ...", own="acme_parts:own")
    (unused,) = parts.unused()
    assert unused.code is PluginNote.NAME_TAKEN
    assert (unused.values["plugin"], unused.values["name"]) == ("acme", "own")


def test_a_plugin_cannot_replace_what_is_built_in_elsewhere(install: Install) -> None:
    parts = install("def mine(): ...", mine="acme_parts:mine")
    with pytest.raises(PluginError, match="cannot replace the built-in part `mine`"):
        parts.installed(taken=("mine",))


def test_two_plugins_with_one_name_are_refused(install: Install) -> None:
    install("def mine(): ...", mine="acme_parts:mine")
    parts = install("def mine(): ...", package="other", mine="other_parts:mine")
    with pytest.raises(PluginError, match=r"is defined by plugin (acme|other), too"):
        parts.get("mine")


SHAPE = """
from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

Level = Literal["low", "high"]

class Shape(Struct):
    title: str
    level: Level = "low"
    ready: bool = True
    ask: Callable[[], int] | None = None
"""


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ("3", "has a `title` that is no str: int"),
        ("'t', level='odd'", "has a `level` that is none of low, high: 'odd'"),
        ("'t', ready='yes'", "has a `ready` that is no bool: str"),
        ("'t', ask=3", "has a `ask` that cannot be called"),
    ],
)
def test_a_part_with_a_wrong_attribute_is_refused(install: Install, values: str, why: str) -> None:
    code = f"{SHAPE}\nmine = Shape({values})"
    parts = install(code, shape="acme_parts:Shape", mine="acme_parts:mine")
    with pytest.raises(PluginError) as caught:
        parts.get("mine")
    assert caught.value.message.endswith(why)


def test_what_a_part_returns_is_checked_like_the_part(install: Install) -> None:
    code = f"{SHAPE}\nmine = Shape('t')"
    parts = install(code, shape="acme_parts:Shape", mine="acme_parts:mine")
    part = parts.get("mine")
    parts.check_returned("mine", part, type(part))
    with pytest.raises(PluginError, match="has returned int instead of Shape"):
        parts.check_returned("mine", 3, type(part))
    part.level = "odd"  # type: ignore[attr-defined]
    with pytest.raises(PluginError, match="has returned a Shape that has a `level`"):
        parts.check_returned("mine", part, type(part))


def test_plugins_that_clash_affect_no_other_part(install: Install) -> None:
    code = "def mine(): ...\ndef own(): ..."
    install(code, mine="acme_parts:mine", own="acme_parts:own")
    entries = {"mine": "other_parts:mine", "alone": "other_parts:own"}
    parts = install(code, package="other", **entries)
    assert parts.every_name() == ("own", "mine", "alone")
    assert parts.get("own") is own_parts
    assert callable(parts.get("alone"))


def test_a_fault_of_a_plugin_is_named_and_one_of_ours_is_not(install: Install) -> None:
    with pytest.raises(KeyError), plugin_faults():
        raise KeyError("x")
