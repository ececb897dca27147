"""Whether a firewall is on: told only, since what counts is whether connections pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dslaunch.preflight.check import Answers, Asked, Check, Nodes, Question, Verdict, passed

UFW = "/etc/ufw/ufw.conf"
FILES = Question("read", [UFW])
FIREWALLD = Question("present", ["/run/firewalld", "/run/firewalld.pid", "firewall-cmd"])
STATE = Question("run", {"argv": ["firewall-cmd", "--state"]}, 5)


def _then(nodes: Nodes) -> Mapping[str, Asked]:
    return {h: {"state": STATE} for h, a in nodes.items() if a.has("firewalld") and _installed(a)}


def _installed(a: Answers) -> bool:
    return "firewall-cmd" in a["firewalld"] and len(a["firewalld"]) > 1


def _judge(a: Answers) -> Iterator[Verdict]:
    ufw = "ENABLED=yes" in a["files"].get(UFW, "").replace('"', "")
    firewalld = _installed(a) and a.value(STATE)["out"].strip() == "running"
    if ufw or firewalld:
        yield Verdict(
            "info", f"{'ufw' if ufw else 'firewalld'} is on; see net.mesh for what it blocks"
        )
    else:
        yield passed("neither ufw nor firewalld is on")


CHECK = Check(
    title="no firewall service is on",
    tier="static",
    why="It explains connections that do not pass, which `net.mesh` finds.",
    fix="allow all TCP between the nodes",
    see="ufw status; firewall-cmd --list-all",
    source="ufw(8); firewall-cmd(1)",
    ask=lambda scope: {"files": FILES, "firewalld": FIREWALLD},
    then=_then,
    judge=_judge,
)
