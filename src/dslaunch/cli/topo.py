"""`dslaunch topo`: how machines are wired, who is odd, and what to set for it."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import closing
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeGuard

import typer

from dslaunch.cli import options, ui
from dslaunch.cli.words import FILE_ENDINGS
from dslaunch.errors import DslaunchError, UsageError

if TYPE_CHECKING:
    from dslaunch.lint import Remark
    from dslaunch.topology.advice import Advice
    from dslaunch.topology.model import Topology

LARGEST = 2**20
"""Bytes of a file that are read; the matrix of 16 GPUs and 32 NICs has 15,000."""
ASKING = ("topo.uniform", "gpu.count", "gpu.p2p", "gpu.nvlink")
"""Checks whose questions are asked of nodes: `topo -m`, `-L`, `topo -p2p r`, `nvlink -s`."""


def topo(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE ...",
            help="A cluster file, whose nodes are asked; or recorded output of `nvidia-smi topo "
            "-m`, one file per node, named as the node is; `-` reads standard input. A file may "
            "hold the output of several commands.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", metavar="OUT", help="Draw the first node's wiring into this file."),
    ] = None,
    apply: Annotated[
        Path | None,
        typer.Option(
            "--apply",
            metavar="CLUSTER.yaml",
            help="Write the advice that a cluster file can hold into this one; comments stay.",
        ),
    ] = None,
) -> None:
    """Say how GPUs and network cards are wired, compare nodes, and give advice.

    Example: dslaunch topo cluster.yaml
    """
    from dslaunch.cluster.load import load_cluster
    from dslaunch.report import topology as report
    from dslaunch.topology.advice import advise
    from dslaunch.topology.comparison import compare

    options.check_writable("--svg", svg)
    if apply:
        load_cluster(apply)
    files = files or [_default_source()]
    by_host = _asked(files) if _is_cluster(files) else _read(files)
    advice = advise(by_host)
    if apply:
        advice = (*advice, *_slots(apply, by_host))
    remarks = _settings(by_host)
    compared = compare(by_host)
    if json:
        ui.result(dumps(report.data(by_host, compared, advice, remarks), indent=2))
    else:
        ui.result(report.text(by_host, compared, advice, remarks, width=ui.width()))
    if svg:
        _draw(by_host, svg)
    if apply:
        _apply(apply, advice)
    _none_read(by_host)


def _is_cluster(files: list[str] | None) -> TypeGuard[list[str]]:
    return bool(files) and len(files or ()) == 1 and (files or [""])[0].endswith(FILE_ENDINGS)


def _default_source() -> str:
    """Standard input where a text is sent to it, else the default cluster file.

    Raises UsageError if there is neither.
    """
    try:
        kind = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # no file, such as where another program calls this one
        return "-"
    if stat.S_ISFIFO(kind) or stat.S_ISREG(kind) or stat.S_ISSOCK(kind):
        return "-"
    return str(options.find_cluster(None))


def _asked(files: list[str]) -> dict[str, Topology]:
    """Ask the nodes of a cluster file. Raises NodeError if none answers."""
    from dslaunch.cli.options import open_cluster
    from dslaunch.preflight import checks
    from dslaunch.preflight.check import Scope
    from dslaunch.preflight.checks._wiring import topologies
    from dslaunch.preflight.runner import Survey

    cluster = open_cluster(Path(files[0]))
    asking = {name: checks.load()[name] for name in ASKING}
    wired = asking["topo.uniform"]
    survey = Survey(Scope(cluster, cluster.nodes), asking, lambda *_: None)
    with closing(survey):
        survey.run()
    for failure in survey.failures.values():
        ui.say(f"no answer from {failure.host}: {failure.message}")
    found = topologies(survey.answers(wired))
    if not found:
        raise DslaunchError("no node has GPUs whose wiring could be asked")
    return found


def _read(files: list[str]) -> dict[str, Topology]:
    """Read each node's file. Raises UsageError for two of one name, or what cannot be read."""
    from dslaunch.topology.answers import answers_in, read

    found: dict[str, Topology] = {}
    for file in files:
        host = "stdin" if file == "-" else Path(file).stem
        if host in found:
            raise UsageError(
                f"{file}: there is a file for {host} already",
                hint="a node is named as its file is, without the ending",
            )
        for name, part in _parts(_text(file)).items():
            found[f"{host}-{name}" if name else host] = read(answers_in(part))
    return found


def _parts(text: str) -> dict[str, str]:
    """The outputs of several nodes in one text, by name; those without a matrix are left out."""
    from dslaunch.topology.recorded_text import texts

    parts = texts(text)
    if len(parts) < 2:
        return {"": text}
    return {name: part for name, part in parts.items() if "GPU" in part} or {"": text}


def _text(file: str) -> str:
    """Read recorded output. Bytes that are no text are no devices either."""
    try:
        found = sys.stdin.buffer.read(LARGEST) if file == "-" else _bytes(Path(file))
    except OSError as problem:
        raise UsageError(f"{file}: cannot be read: {problem.strerror}") from None
    encoding = "utf-16" if found.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8"
    return found.decode(encoding, "replace")


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(LARGEST)


def _none_read(by_host: dict[str, Topology]) -> None:
    """Raise DslaunchError if there was no matrix in any of the texts."""
    troubles = [topology.trouble for topology in by_host.values() if topology.trouble]
    if len(troubles) == len(by_host):
        hints = dict.fromkeys(trouble.hint for trouble in troubles if trouble.hint)
        raise DslaunchError("no node's wiring could be read", hint="\n".join(hints) or None)


def _settings(by_host: dict[str, Topology]) -> tuple[Remark, ...]:
    """Judge the NCCL settings that were recorded with the matrix."""
    from dslaunch.topology import nccl

    found: list[Remark] = []
    for host, topology in by_host.items():
        devices = [nic.device for nic in topology.nics if nic.device]
        found += nccl.check(dict(topology.host.settings), host, devices=devices)
    return tuple(found)


def _slots(file: Path, by_host: dict[str, Topology]) -> tuple[Advice, ...]:
    from dslaunch.cluster.load import load_cluster
    from dslaunch.topology.advice import slots

    said = {node.host: node.slots for node in load_cluster(file).nodes}
    unknown = [host for host in by_host if host not in said]
    if unknown:
        raise UsageError(
            f"{file}: there is no node {', '.join(unknown)}",
            hint="name the recorded files as the nodes are named, such as node01.txt",
        )
    return slots(said, by_host)


def _draw(by_host: dict[str, Topology], out: Path) -> None:
    from dslaunch.report.topology_svg import drawing

    host, topology = next(iter(by_host.items()))
    _write(out, drawing(topology, host))


def _apply(file: Path, advice: tuple[Advice, ...]) -> None:
    """Write what can be written; say what was and what was not."""
    from dslaunch.cluster.load import read_text
    from dslaunch.topology.applying import apply

    old = read_text(file)
    applied = apply(old, str(file), advice)
    if applied.text != old:
        _write(file, applied.text)
    for line in applied.done:
        ui.say(f"{file}: set {line}")
    for line in applied.left:
        ui.say(f"{file}: not set {line}")
    if not applied.done:
        ui.say(f"{file}: nothing to change")


def _write(out: Path, text: str) -> None:
    try:
        out.write_text(text, encoding="utf-8", newline="")
    except OSError as problem:
        raise UsageError(f"{out}: cannot be written: {problem.strerror}") from None
