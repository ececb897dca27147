"""Accelerators by what the kernel shows, on copies of its directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from dslaunch.node import accelerators


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node's /dev and /sys, empty."""
    for name, path in (
        ("DEV", "dev"),
        ("PCI", "sys/bus/pci/devices"),
        ("KFD", "sys/class/kfd/kfd/topology/nodes"),
        ("RENDER", "sys/class/drm"),
        ("ACCEL", "sys/class/accel"),
    ):
        (tmp_path / path).mkdir(parents=True)
        monkeypatch.setattr(accelerators, name, str(tmp_path / path))
    return tmp_path


def on_bus(system: Path, address: str, vendor: str, kind: str, driver: str = "") -> Path:
    device = system / "sys/bus/pci/devices" / address
    device.mkdir()
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")
    if driver:
        (system / "drivers" / driver).mkdir(parents=True, exist_ok=True)
        (device / "driver").symlink_to(system / "drivers" / driver)
    return device


def file(system: Path, name: str) -> None:
    path = system / "dev" / name
    path.parent.mkdir(exist_ok=True)
    path.touch()


def test_a_node_without_accelerators_has_none(system: Path) -> None:
    on_bus(system, "0000:02:00.0", "0x1a03", "0x030000")  # the BMC's graphics
    assert accelerators.found() == {}


def test_amd_gpus_are_the_nodes_of_kfd_that_have_simds(system: Path) -> None:
    file(system, "kfd")
    for at, simds in enumerate((0, 0, 432, 432)):
        node = system / "sys/class/kfd/kfd/topology/nodes" / str(at)
        node.mkdir()
        (node / "properties").write_text(f"cpu_cores_count 0\nsimd_count {simds}\nmem 1\n")
    on_bus(system, "0000:c1:00.0", "0x1002", "0x038000", "amdgpu")
    assert accelerators.found() == {"amd": {"devices": 2, "bus": 1}}


def test_amd_gpus_without_a_driver_are_on_the_bus_alone(system: Path) -> None:
    on_bus(system, "0000:c1:00.0", "0x1002", "0x120000")
    assert accelerators.found() == {"amd": {"devices": 0, "bus": 1}}


def test_intels_gpus_are_render_nodes_that_are_no_part_of_a_processor(system: Path) -> None:
    for at, address in enumerate(("0000:00:02.0", "0000:3a:00.0")):
        device = on_bus(system, address, "0x8086", "0x038000", "i915")
        render = system / "sys/class/drm" / f"renderD{128 + at}"
        render.mkdir()
        (render / "device").symlink_to(device)
        file(system, f"dri/renderD{128 + at}")
    assert accelerators.found() == {"intel": {"devices": 1, "bus": 1}}


def test_render_nodes_that_a_container_was_not_given_do_not_count(system: Path) -> None:
    device = on_bus(system, "0000:3a:00.0", "0x8086", "0x038000", "xe")
    render = system / "sys/class/drm/renderD128"
    render.mkdir()
    (render / "device").symlink_to(device)
    assert accelerators.found() == {"intel": {"devices": 0, "bus": 1}}


@pytest.mark.parametrize(
    ("vendor", "name"),
    [
        ("nvidia", "nvidia"),
        ("ascend", "davinci"),
        ("gaudi", "hl"),
        ("neuron", "neuron"),
        ("mlu", "cambricon_dev"),
    ],
)
def test_numbered_device_files_are_counted(vendor: str, name: str, system: Path) -> None:
    for entry in (f"{name}0", f"{name}1", f"{name}_manager", f"{name}ctl"):
        file(system, entry)
    assert accelerators.found() == {vendor: {"devices": 2, "bus": 0}}


def test_gaudis_of_newer_kernels_are_below_accel(system: Path) -> None:
    for at, vendor in enumerate(("0x1da3", "0x1da3", "0x8086")):
        device = system / "sys/class/accel" / f"accel{at}" / "device"
        device.mkdir(parents=True)
        (device / "vendor").write_text(vendor)
    assert accelerators.found() == {"gaudi": {"devices": 2, "bus": 0}}
