"""Whether cards of one kind have the same firmware."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dslaunch.preflight.check import Check, Nodes, Verdict
from dslaunch.preflight.checks import _infiniband as infiniband


def _compare(nodes: Nodes) -> Iterator[Verdict]:
    found = {
        host: [
            (device.name, device.fields["board_id"], device.fields["fw_ver"])
            for device in infiniband.devices(a).values()
            if {"board_id", "fw_ver"} <= device.fields.keys()
        ]
        for host, a in infiniband.with_devices(nodes).items()
    }
    versions = Counter((board, firmware) for of in found.values() for _, board, firmware in of)
    usual: dict[str, str] = {}
    for (board, firmware), _ in versions.most_common():
        usual.setdefault(board, firmware)
    for host, of in found.items():
        odd: dict[tuple[str, str], list[str]] = {}
        for name, board, firmware in of:
            if firmware != usual[board]:
                odd.setdefault((firmware, usual[board]), []).append(name)
        for (firmware, common), names in odd.items():
            words = f"{infiniband.named(names)}: firmware {firmware}"
            yield Verdict("warn", words, f"{common} as most", hosts=(host,))
        if of and not odd:
            yield Verdict("pass", "the same firmware", hosts=(host,))


CHECK = Check(
    title="InfiniBand and RoCE cards have the same firmware",
    tier="static",
    why="Nodes whose cards behave differently under load are among the hardest to find.",
    fix="update the cards' firmware (`mlxfwmanager`), and reboot",
    see="grep . /sys/class/infiniband/*/fw_ver",
    source="imbue-ai/cluster-health; facebookresearch/gcm",
    ask=infiniband.ask,
    compare=_compare,
)
