"""What NCCL and gloo make of the values that people set, where that is not what was meant.

NCCL reads most numbers with `strtoll`, so that `true` is 0, and compares words exactly; neither
is an error to it (NCCL 2.30, src/misc/param.cc and src/graph/paths.cc).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from dslaunch.lint import Level, Remark

LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
"""The kinds of paths that NCCL_P2P_LEVEL and NCCL_NET_GDR_LEVEL are compared with, from near to
far (NCCL 2.30, src/graph/topo.cc)."""
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
    """Judge the values of NCCL's and gloo's variables.

    `file` says where they are from. `devices` and `interfaces` are those of the node, if known:
    then names that are not there, and beginnings that fit several, are found too.
    """
    found: list[Remark] = []
    for name, value in settings.items():
        say = _Speaker(file, name, value)
        if name in ("NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL"):
            found += _level(say)
        elif name in SWITCHES:
            found += _number(say)
        elif name == "NCCL_IB_HCA":
            found += _selection(say, devices, "device")
        elif name == "NCCL_SOCKET_IFNAME":
            found += _selection(say, interfaces, "interface")
        elif name == "GLOO_SOCKET_IFNAME":
            found += _gloo(say, interfaces)
        elif name == "NCCL_DEBUG":
            found += _debug(say)
    return tuple(found)


class _Speaker:
    """Makes remarks about one variable."""

    def __init__(self, file: str, name: str, value: str) -> None:
        self.file, self.name, self.value = file, name, value

    def __call__(
        self, rule: str, message: str, fix: str, source: str, level: Level = "warning"
    ) -> Remark:
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


def _level(say: _Speaker) -> Iterable[Remark]:
    value = say.value
    if value in LEVELS:
        return
    if re.match(r"[0-9]", value):
        yield say("nccl-old-level", "is the old way to write a level", _words(), PATHS, "info")
    elif value.upper() in LEVELS:
        fix = f"write {value.upper()}: the word is compared letter by letter"
        yield say("nccl-ignored-value", "is ignored by NCCL", fix, PATHS)
    elif value.upper() == "NODE":
        fix = "write PHB for it, or SYS: NODE is a word of nvidia-smi that NCCL does not have"
        yield say("nccl-ignored-value", "is ignored by NCCL", fix, PATHS)
    else:
        yield say("nccl-ignored-value", "is ignored by NCCL", _words(), PATHS)


def _words() -> str:
    return "write one of " + ", ".join(("LOC", "NVL", "PIX", "PXB", "PHB", "SYS"))


def _number(say: _Speaker) -> Iterable[Remark]:
    value = say.value.strip()
    if not re.fullmatch(r"[-+]?(?:0[xX][0-9a-fA-F]+|\d+)", value) and value:
        begins = re.match(r"[-+]?\d+", value)
        read = begins[0] if begins else "0"
        yield say(
            "nccl-no-number", f"is read as {read}", "write a whole number, such as 1", NUMBERS
        )
    elif say.name == "NCCL_P2P_DISABLE" and value not in ("0", "1", ""):
        yield say("nccl-ignored-value", "is ignored by NCCL", "only 1 disables P2P", PATHS)
    elif say.name == "NCCL_IB_GID_INDEX":
        words = "pins what NCCL 2.21 and later choose by themselves"
        fix = "leave it out unless NCCL is older and the fabric is RoCE"
        yield say("nccl-pinned-gid", words, fix, DOCUMENTED, "info")


def _selection(say: _Speaker, known: Sequence[str], what: str) -> Iterable[Remark]:
    """Names with commas between; `=` in front takes them exactly, `^` all others."""
    marks = re.match(r"\^?=?", say.value)
    prefix = marks[0] if marks else ""
    names = [name.split(":")[0] for name in say.value[len(prefix) :].split(",") if name]
    if not names:
        yield say("nccl-empty-selection", f"names no {what}", "leave it out", DOCUMENTED)
    if any(name[0] in "=^" for name in names):
        fix = "write `=` or `^` once, in front of the whole list"
        yield say("nccl-inner-mark", "has a mark inside the list", fix, DOCUMENTED)
        return
    if "=" not in prefix:
        yield from _beginnings(say, prefix, names, known, what)
    missing = [name for name in names if known and not any(_meant(k, name, prefix) for k in known)]
    if missing and "^" not in prefix:
        words = f"names {', '.join(missing)}, and the node has no such {what}"
        fix = f"it has {', '.join(known)}"
        yield say("nccl-unknown-name", words, fix, DOCUMENTED, "error")


def _beginnings(
    say: _Speaker, prefix: str, names: list[str], known: Sequence[str], what: str
) -> Iterable[Remark]:
    wide = {name: [k for k in known if k.startswith(name) and k != name] for name in names}
    caught = [f"{name} also takes {', '.join(more)}" for name, more in wide.items() if more]
    exact = [name for name in names if name in known]
    if caught and exact:
        fix = f"write {prefix}={','.join(names)} for these {what}s alone"
        words = f"takes names that begin so: {'; '.join(caught)}"
        yield say("nccl-prefix", words, fix, DOCUMENTED)


def _meant(known: str, name: str, prefix: str) -> bool:
    return known == name if "=" in prefix else known.startswith(name)


def _gloo(say: _Speaker, interfaces: Sequence[str]) -> Iterable[Remark]:
    names = say.value.split(",")
    if re.search(r"[\^=*]", say.value) or not all(names):
        fix = "name the interface as it is, such as eth0; NCCL's `=` and `^` are not for gloo"
        yield say("gloo-no-name", "is no interface's name to gloo", fix, GLOO, "error")
    elif interfaces and (missing := [name for name in names if name not in interfaces]):
        words = f"names {', '.join(missing)}, and the node has no such interface"
        yield say("nccl-unknown-name", words, f"it has {', '.join(interfaces)}", GLOO, "error")


def _debug(say: _Speaker) -> Iterable[Remark]:
    if say.value.upper() not in DEBUG and say.value:
        fix = f"write one of {', '.join(DEBUG)}"
        yield say("nccl-ignored-value", "is ignored by NCCL", fix, DOCUMENTED)
