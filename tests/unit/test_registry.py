"""Parts that are found by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dslaunch.errors import PluginError, UsageError
from dslaunch.registry import LAUNCHERS, Registry
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
def test_a_name_that_nobody_has_is_refused_with_those_there_are(
    ask: Callable[[str], object],
) -> None:
    with pytest.raises(UsageError, match="no launcher is named `zzz`") as caught:
        ask("zzz")
    assert str(caught.value.hint).startswith("there are: accelerate, ")


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


def test_a_plugin_cannot_replace_what_is_built_in_elsewhere(install: Install) -> None:
    parts = install("def mine(): ...", mine="acme_parts:mine")
    with pytest.raises(PluginError, match="cannot replace the built-in part `mine`"):
        parts.installed(taken=("mine",))


def test_two_plugins_with_one_name_are_refused(install: Install) -> None:
    install("def mine(): ...", mine="acme_parts:mine")
    parts = install("def mine(): ...", package="other", mine="other_parts:mine")
    with pytest.raises(PluginError, match="is defined by another plugin, too"):
        parts.get("mine")
