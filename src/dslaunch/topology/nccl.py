"""Values of NCCL's and gloo's variables that do not have the intended effect.

NCCL parses most numbers with `strtoll`: `true` is 0. It compares words exactly, and reports no
error for either (NCCL 2.30, src/misc/param.cc and src/graph/paths.cc).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from dslaunch.lint import Level, Remark

LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
"""Kinds of paths for NCCL_P2P_LEVEL and NCCL_NET_GDR_LEVEL, from near to far
 (NCCL 2.30, src/graph/topo.cc)."""
PATHS = "NCCL 2.30, src/graph/paths.cc, ncclGetLevel"
NUMBERS = "NCCL 2.30, src/misc/param.cc, ncclLoadParam"
DOCUMENTED = "NCCL documentation, Environment Variables"
GLOO = "PyTorch, GLOO_SOCKET_IFNAME: createDeviceForInterface"
SWITCHES = (
    "NCCL_IB_DISABLE",
    "NCCL_SHM_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_NVLS_ENABLE",
    "NCCL_NVB_DISABLE",
    "NCCL_IGNORE_DISABLED_P2P",
    "NCCL_CUMEM_ENABLE",
    "NCCL_MNNVL_ENABLE",
    "NCCL_CROSS_NIC",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_TIMEOUT",
    "NCCL_IB_RETRY_CNT",
    "NCCL_IB_TC",
    "NCCL_IB_SL",
    "NCCL_IB_QPS_PER_CONNECTION",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_BUFFSIZE",
    "NCCL_NTHREADS",
    "NCCL_SOCKET_NTHREADS",
    "NCCL_NSOCKS_PERTHREAD",
    "NCCL_DMABUF_ENABLE",
    "NCCL_IB_PCI_RELAXED_ORDERING",
)
"""Variables whose values are whole numbers."""
DEBUG = ("VERSION", "WARN", "INFO", "ABORT", "TRACE")


def check(
    settings: Mapping[str, str],
    file: str,
    *,
    devices: Sequence[str] = (),
    interfaces: Sequence[str] = (),
) -> tuple[Remark, ...]:
    """Return findings about the values of NCCL's and gloo's variables.

    `file` is their source. With the known `devices` and `interfaces` of the node, unknown names and
    ambiguous prefixes are found too.
    """
    found: list[Remark] = []
    for name, value in settings.items():
        setting = _Setting(file, name, value)
        if name in ("NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL"):
            found += _level(setting)
        elif name in SWITCHES:
            found += _number(setting)
        elif name == "NCCL_IB_HCA":
            found += _selection(setting, devices, "device")
        elif name == "NCCL_SOCKET_IFNAME":
            found += _selection(setting, interfaces, "interface")
        elif name == "GLOO_SOCKET_IFNAME":
            found += _gloo(setting, interfaces)
        elif name == "NCCL_DEBUG":
            found += _debug(setting)
    return tuple(found)


class _Setting(Struct, frozen=True):
    """One variable with its value."""

    file: str
    name: str
    value: str

    def finding(
        self, rule: str, message: str, fix: str, source: str, level: Level = "warning"
    ) -> Remark:
        """Return a finding; `message` continues `NAME=VALUE`."""
        words = f"{self.name}={self.value} {message}"
        return Remark(
            rule=rule,
            level=level,
            file=self.file,
            line=0,
            column=0,
            path=self.name,
            message=words,
            fix=fix,
            source=source,
        )


def _level(setting: _Setting) -> Iterable[Remark]:
    value = setting.value
    if value in LEVELS:
        return
    if re.match(r"[0-9]", value):
        yield setting.finding(
            "nccl-old-level", "is the deprecated form of a level", _words(), PATHS, "info"
        )
    elif value.upper() in LEVELS:
        fix = f"write {value.upper()}: the value is case-sensitive"
        yield setting.finding("nccl-ignored-value", "is ignored by NCCL", fix, PATHS)
    elif value.upper() == "NODE":
        fix = "write PHB or SYS: NCCL does not know nvidia-smi's NODE"
        yield setting.finding("nccl-ignored-value", "is ignored by NCCL", fix, PATHS)
    else:
        yield setting.finding("nccl-ignored-value", "is ignored by NCCL", _words(), PATHS)


def _words() -> str:
    return "write one of " + ", ".join(("LOC", "NVL", "PIX", "PXB", "PHB", "SYS"))


def _number(setting: _Setting) -> Iterable[Remark]:
    value = setting.value.strip()
    if not re.fullmatch(r"[-+]?(?:0[xX][0-9a-fA-F]+|[0-9]+)", value) and value:
        begins = re.match(r"[-+]?[0-9]+", value)
        read = begins[0] if begins else "0"
        yield setting.finding(
            "nccl-no-number", f"is parsed as {read}", "write an integer, such as 1", NUMBERS
        )
    elif setting.name == "NCCL_P2P_DISABLE" and value not in ("0", "1", ""):
        yield setting.finding(
            "nccl-ignored-value", "is ignored by NCCL", "only 1 disables P2P", PATHS
        )
    elif setting.name == "NCCL_IB_GID_INDEX":
        words = "sets what NCCL 2.21 and later select automatically"
        fix = "remove it unless NCCL is older and the fabric is RoCE"
        yield setting.finding("nccl-pinned-gid", words, fix, DOCUMENTED, "info")


def _selection(setting: _Setting, known: Sequence[str], what: str) -> Iterable[Remark]:
    """Check a list of names; a leading `=` matches them exactly, `^` excludes them."""
    marks = re.match(r"\^?=?", setting.value)
    prefix = marks[0] if marks else ""
    listed = setting.value[len(prefix) :].split(",")
    # a name may have a port behind it, `mlx5_0:1`
    names = [name for each in listed if (name := each.partition(":")[0])]
    if not names:
        yield setting.finding("nccl-empty-selection", f"names no {what}", "remove it", DOCUMENTED)
    if any(name[0] in "=^" for name in names):
        fix = "write `=` or `^` once, before the whole list"
        yield setting.finding("nccl-inner-mark", "has a prefix inside the list", fix, DOCUMENTED)
        return
    if "=" not in prefix:
        yield from _beginnings(setting, prefix, names, known, what)
    missing = [name for name in names if known and not any(_meant(k, name, prefix) for k in known)]
    if missing and "^" not in prefix:
        words = f"names {', '.join(missing)}, which is not a {what} of the node"
        fix = f"the node has {', '.join(known)}"
        yield setting.finding("nccl-unknown-name", words, fix, DOCUMENTED, "error")


def _beginnings(
    setting: _Setting, prefix: str, names: list[str], known: Sequence[str], what: str
) -> Iterable[Remark]:
    wide = {name: [k for k in known if k.startswith(name) and k != name] for name in names}
    caught = [f"{name} also matches {', '.join(more)}" for name, more in wide.items() if more]
    exact = [name for name in names if name in known]
    if caught and exact:
        fix = f"write {prefix}={','.join(names)} to match only these {what}s"
        words = f"matches by prefix: {'; '.join(caught)}"
        yield setting.finding("nccl-prefix", words, fix, DOCUMENTED)


def _meant(known: str, name: str, prefix: str) -> bool:
    return known == name if "=" in prefix else known.startswith(name)


def _gloo(setting: _Setting, interfaces: Sequence[str]) -> Iterable[Remark]:
    names = setting.value.split(",")
    if re.search(r"[\^=*]", setting.value) or not all(names):
        fix = (
            "write the interface's full name, such as eth0; gloo does not support NCCL's "
            "`=` and `^`"
        )
        yield setting.finding(
            "gloo-no-name", "is not an interface name for gloo", fix, GLOO, "error"
        )
    elif interfaces and (missing := [name for name in names if name not in interfaces]):
        words = f"names {', '.join(missing)}, which is not an interface of the node"
        yield setting.finding(
            "nccl-unknown-name", words, f"the node has {', '.join(interfaces)}", GLOO, "error"
        )


def _debug(setting: _Setting) -> Iterable[Remark]:
    if setting.value.upper() not in DEBUG and setting.value:
        fix = f"write one of {', '.join(DEBUG)}"
        yield setting.finding("nccl-ignored-value", "is ignored by NCCL", fix, DOCUMENTED)
