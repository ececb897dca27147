"""Whether a firewall is on: told only, since what counts is whether connections pass."""

from __future__ import annotations

from dslaunch.preflight.check import Answers, Check, Question, Verdict, passed
from dslaunch.preflight.flow import NodeFlow, each

UFW = "/etc/ufw/ufw.conf"
FILES = Question("read", [UFW])
FIREWALLD = Question("present", ["/run/firewalld", "/run/firewalld.pid", "firewall-cmd"])
STATE = Question("run", {"argv": ["firewall-cmd", "--state"]}, 5)


def _flow(a: Answers) -> NodeFlow:
    firewalld = a["firewalld"]
    running = False
    if "firewall-cmd" in firewalld and len(firewalld) > 1:
        a = yield {"state": STATE}
        running = a.value(STATE)["out"].strip() == "running"
    ufw = "ENABLED=yes" in a["files"].get(UFW, "").replace('"', "")
    if ufw or running:
        name = "ufw" if ufw else "firewalld"
        return [Verdict("info", f"{name} is on; see net.mesh for what it blocks")]
    return [passed("neither ufw nor firewalld is on")]


CHECK = Check(
    title="no firewall service is on",
    tier="static",
    why="It explains connections that do not pass, which `net.mesh` finds.",
    fix="allow all TCP between the nodes",
    see="ufw status; firewall-cmd --list-all",
    source="ufw(8); firewall-cmd(1)",
    ask=lambda scope: {"files": FILES, "firewalld": FIREWALLD},
    flow=each(_flow),
)
