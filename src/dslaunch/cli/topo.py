"""`dslaunch topo`: the GPU and NIC topology of nodes, their differences, and advice."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import options, ui
from dslaunch.cli.json_option import Json
from dslaunch.cli.output_files import output_option
from dslaunch.cli.positional import FILE_ENDINGS, two_files
from dslaunch.cluster.load import load_cluster, read_text
from dslaunch.errors import ConfigError, DslaunchError, Problem, SelectionError, UsageError
from dslaunch.report import topology as report
from dslaunch.report.topology_svg import drawing
from dslaunch.topology import nccl
from dslaunch.topology.advice import advise, slots
from dslaunch.topology.answers import answers_in, read
from dslaunch.topology.comparison import compare
from dslaunch.topology.recorded_text import texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dslaunch.lint import Remark
    from dslaunch.topology.advice_codes import Advice
    from dslaunch.topology.model import Topology

LARGEST = 256 * 2**20
"""Bytes of a recorded text; the matrix of 16 GPUs and 32 NICs has 15,000."""
ASKING = ("topo.uniform", "gpu.count", "gpu.p2p", "gpu.nvlink")
"""Checks whose questions are asked of nodes: `topo -m`, `-L`, `topo -p2p r`, `nvlink -s`."""


def topo(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE...",
            help="Cluster file, whose nodes are asked, or recorded output of `nvidia-smi topo -m`, "
            "one file per node with the node's name; - is standard input. A file may contain the "
            "output of several commands.",
        ),
    ] = None,
    json: Json = False,
    svg: Annotated[
        Path | None,
        output_option("--svg", text="Write a drawing of the first node to a file."),
    ] = None,
    apply: Annotated[
        Path | None,
        typer.Option(
            "--apply",
            metavar="FILE",
            help="Write the advice into this cluster file, where it has keys for it; comments are "
            "kept.",
        ),
    ] = None,
    cluster: options.ClusterOption = None,
) -> None:
    """Show how GPUs and NICs are connected, and give advice.

    Nodes are compared with each other.

    Example: dslaunch topo cluster.yaml
    """
    if apply:
        load_cluster(apply)
    if cluster is not None:
        if files:
            raise two_files(Path(files[0]), cluster)
        files = [str(cluster)]
    files = files or [_default_source()]
    is_cluster = len(files) == 1 and (files[0].endswith(FILE_ENDINGS) or cluster is not None)
    by_host = _asked(Path(files[0])) if is_cluster else _read(files)
    advice = advise(by_host)
    if apply:
        advice = (*advice, *_slots(apply, by_host))
    remarks = _settings(by_host)
    compared = compare(by_host)
    if json:
        ui.data(report.as_data(by_host, compared, advice, remarks))
    else:
        ui.result(report.text(by_host, compared, advice, remarks, width=ui.width()))
    if svg:
        _draw(by_host, svg)
    if apply:
        _apply(apply, advice)
    _check_one_read(by_host, () if is_cluster else files)


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


def _asked(file: Path) -> dict[str, Topology]:
    """Ask the nodes of a cluster file. Raises NodeError if none answers."""
    # imported here: recorded text needs none of it, which takes as long as to read 2,000 nodes
    from dslaunch.preflight.logins import begin_logins

    cluster = options.open_cluster(file)
    with closing(begin_logins(cluster, cluster.nodes)) as logins:
        # and this while the nodes are logged in to
        from dslaunch.preflight import checks
        from dslaunch.preflight.check import Scope
        from dslaunch.preflight.checks._wiring import topologies
        from dslaunch.preflight.runner import Survey

        asking = {name: checks.load()[name] for name in ASKING}
        survey = Survey(Scope(cluster, cluster.nodes), asking, lambda *_: None, logins)
        with closing(survey):
            survey.run()
    for failure in survey.failures.values():
        ui.say(f"no answer from {failure.host}: {failure.message}")
    found = topologies(survey.answers())
    if not found:
        raise DslaunchError("no node reported its GPU topology")
    return found


def _read(files: list[str]) -> dict[str, Topology]:
    """Read each node's file. Raises UsageError for two of one name, ConfigError."""
    by_host: dict[str, Path] = {}
    for file in files:
        host = "stdin" if file == "-" else Path(file).stem
        if host in by_host:
            raise UsageError(
                f"{file}: second file for node {host}",
                hint="name each file like its node, for example node01.txt",
            )
        by_host[host] = Path(file)
    found, unreadable = options.of_each(list(by_host.values()), _text)
    if unreadable is not None:
        raise unreadable
    read_part = cache(lambda part: read(answers_in(part)))  # equal nodes print equal texts
    return {
        f"{host}-{name}" if name else host: read_part(part)
        for host, text in zip(by_host, found, strict=True)
        for name, part in _parts(text).items()
    }


def _parts(text: str) -> dict[str, str]:
    """Return the outputs of several nodes in one text, by name; those with a matrix only."""
    parts = texts(text)
    if len(parts) < 2:
        return {"": text}
    return {name: part for name, part in parts.items() if "GPU" in part} or {"": text}


def _text(file: Path) -> str:
    """Return recorded output; invalid bytes are replaced. Raises ConfigError."""
    try:
        found = options.read_bytes(file, LARGEST)
    except ConfigError as error:
        hint = "name a file with the output of `nvidia-smi topo -m`, or a cluster file"
        raise ConfigError(error.problems, hint=hint) from None
    encoding = "utf-16" if found.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8"
    return found.decode(encoding, "replace")


def _check_one_read(by_host: dict[str, Topology], files: Sequence[str]) -> None:
    """Raise an error if none of the texts has a matrix: ConfigError for files."""
    troubles = [topology.trouble for topology in by_host.values() if topology.trouble]
    if len(troubles) < len(by_host):
        return
    why = "no topology matrix found"
    hint = "\n".join(dict.fromkeys(each.hint for each in troubles if each.hint)) or None
    if not files:
        raise DslaunchError(why, hint=hint)
    problems = tuple(Problem(file, 0, 0, "", why, rule="no-matrix") for file in files)
    raise ConfigError(problems, hint=hint)


def _settings(by_host: dict[str, Topology]) -> tuple[Remark, ...]:
    """Judge the NCCL settings that were recorded with the matrix."""
    found: list[Remark] = []
    for host, topology in by_host.items():
        devices = [nic.device for nic in topology.nics if nic.device]
        found += nccl.check(dict(topology.host.settings), host, devices=devices)
    return tuple(found)


def _slots(file: Path, by_host: dict[str, Topology]) -> tuple[Advice, ...]:
    listed = {node.host: node.slots for node in load_cluster(file).nodes}
    unknown = [host for host in by_host if host not in listed]
    if unknown:
        raise SelectionError(
            f"{file}: unknown nodes: {', '.join(unknown)}",
            hint="name the recorded files like the nodes, for example node01.txt",
        )
    return slots(listed, by_host)


def _draw(by_host: dict[str, Topology], out: Path) -> None:
    host, topology = next(iter(by_host.items()))
    ui.write(out, drawing(topology, host), "--svg")


def _apply(file: Path, advice: tuple[Advice, ...]) -> None:
    """Write the advice into the cluster file; print what was set and what was not."""
    from dslaunch.topology.applying import apply

    old = read_text(file)
    applied = apply(old, str(file), advice)
    if applied.text != old:
        ui.write(file, applied.text, "--apply")
    for line in applied.done:
        ui.say(f"{file}: set {line}")
    for not_applied in applied.left:
        ui.say(f"{file}: not set {not_applied.text}")
    if not applied.done:
        ui.say(f"{file}: no changes")
