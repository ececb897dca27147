"""Whether InfiniBand and RoCE cards have all lanes and the full speed of their PCIe link."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Check, Level, Verdict, passed, skipped
from dslaunch.preflight.checks import _infiniband as infiniband
from dslaunch.preflight.checks._infiniband import Device


def _judge(a: Answers) -> Iterator[Verdict]:
    used = [device for device in infiniband.devices(a).values() if device.active]
    told = [device for device in used if _number(device, "max_link_width")]
    groups: dict[tuple[Level, str], list[str]] = {}
    for device in told:
        if said := _limited(device):
            groups.setdefault(said, []).append(device.name)
    for (level, words), names in groups.items():
        yield Verdict(level, f"{infiniband.named(names)}: {words}", "the card's full link")
    if not groups:
        yield passed("full PCIe link") if told else skipped("no InfiniBand or RoCE card in use")


def _limited(device: Device) -> tuple[Level, str] | None:
    now, most = _number(device, "current_link_width"), _number(device, "max_link_width")
    if now and most and now < most:
        return "fail", f"{now:.0f} of {most:.0f} PCIe lanes"
    now, most = _number(device, "current_link_speed"), _number(device, "max_link_speed")
    if now and most and now < most:
        return "warn", f"{now:g} of {most:g} GT/s PCIe"
    return None


def _number(device: Device, name: str) -> float | None:
    """The kernel writes `255` or `Unknown` for what it does not know, of virtual functions too."""
    found = re.match(r"(\d{1,9}(?:\.\d{1,9})?)\b", device.fields.get(name, ""))
    return float(found[1]) if found and 0 < float(found[1]) < 255 else None


CHECK = Check(
    title="InfiniBand and RoCE cards have their full PCIe link",
    tier="static",
    why="A card in a slot with half the lanes shows its full rate, and moves half of it: all nodes "
    "wait for this one.",
    fix="reseat the card; see the BIOS for the slot's bifurcation and link speed",
    see="sudo dmesg | grep 'available PCIe bandwidth'",
    source="imbue-ai/cluster-health; Linux, Documentation/ABI/testing/sysfs-bus-pci",
    ask=infiniband.ask,
    judge=_judge,
)
