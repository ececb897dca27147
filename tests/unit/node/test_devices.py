"""Programs and PCI devices of a node, as questions about them answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from dslaunch.node import questions


def test_which_says_where_a_program_is_or_that_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").touch(mode=0o755)
    (tmp_path / "plain").touch(mode=0o644)
    monkeypatch.setenv("PATH", f"{tmp_path}:/nowhere")
    found = questions.KINDS["which"](["nvidia-smi", "plain", "of-no-such-name"])
    wanted = {"nvidia-smi": str(tmp_path / "nvidia-smi"), "plain": None, "of-no-such-name": None}
    assert found == wanted


def test_pci_lists_the_devices_of_a_maker_with_their_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address, vendor, driver in (("01:00.0", "0x10de", "nvidia"), ("02:00.0", "0x8086", None)):
        device = tmp_path / "devices" / address
        device.mkdir(parents=True)
        for name, text in (("vendor", vendor), ("class", "0x030200"), ("device", "0x2330")):
            (device / name).write_text(f"{text}\n")
        if driver:
            (tmp_path / driver).mkdir()
            (device / "driver").symlink_to(tmp_path / driver)
    monkeypatch.setattr(questions, "PCI", str(tmp_path / "devices"))
    assert questions.KINDS["pci"](["0x10de"]) == {
        "01:00.0": {"class": "0x030200", "device": "0x2330", "driver": "nvidia"}
    }


def test_pci_is_empty_where_there_is_no_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "PCI", "/nowhere")
    assert questions.KINDS["pci"](["0x10de"]) == {}


def test_of_a_directory_that_is_made_later_the_one_above_answers(tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    for missing in ("to/be/made", "a-file/below"):
        answer = questions.KINDS["above"](str(tmp_path / missing))
        assert (answer["path"], answer["kind"]) == (str(tmp_path), "directory")
        assert answer["size"] > 0


def test_without_an_absolute_home_there_is_a_directory_above_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "no/home")
    monkeypatch.chdir(tmp_path)
    assert questions.KINDS["above"]("work")["path"] == str(tmp_path)
