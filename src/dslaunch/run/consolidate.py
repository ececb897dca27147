"""Make fp32 weights of a gathered checkpoint with DeepSpeed's own converter, here or on a node."""

from __future__ import annotations

import posixpath
import subprocess
from collections.abc import Callable
from pathlib import Path

from dslaunch import transport
from dslaunch.cluster.model import Cluster, Node
from dslaunch.deepspeed.checkpoint import Checkpoint
from dslaunch.errors import DslaunchError, PreflightError, ToolMissingError
from dslaunch.launch.command import Command, Word, activated, at_home
from dslaunch.launch.interpreter import interpreter
from dslaunch.run.places import Place, result
from dslaunch.run.shards import SPARE, in_words

CONVERTER = ("-W", "ignore::RuntimeWarning:runpy", "-m", "deepspeed.utils.zero_to_fp32")
"""Python warns that DeepSpeed imports its own converter first, which does no harm."""
FP32 = 4
"""Bytes of a parameter."""
COPIES, ALWAYS = 2.2, 300 << 20
"""How often the fp32 weights are in memory, and what torch and DeepSpeed take. Hugging Face's guide
says twice; DeepSpeed 0.19.8 on ZeRO-2 and 3 was measured to take 2.14 times and 243 MB."""


def memory_needed(checkpoint: Checkpoint) -> int | None:
    """Bytes of memory that the converter takes; None: the number of parameters is not known."""
    params = checkpoint.header.params
    return None if params is None else round(COPIES * FP32 * params) + ALWAYS


def check_room(checkpoint: Checkpoint, place: Place, output: str) -> None:
    """Raise PreflightError if memory or disk are too small for the conversion."""
    room = result(place.ask("room", output))
    need, params = memory_needed(checkpoint), checkpoint.header.params
    if need is None or params is None:
        return
    short = []
    if room["memory"] is not None and need > room["memory"]:
        short.append(f"{in_words(need)} of memory are needed, {in_words(room['memory'])} are there")
    if FP32 * params + SPARE > room["free"]:
        size = in_words(FP32 * params)
        short.append(f"{room['path']} has {in_words(room['free'])} free, {size} are to be written")
    if short:
        raise PreflightError(
            "\n".join(f"{place.name}: {why}" for why in short),
            hint=f"{params:,} parameters in fp32, {COPIES} times in memory, and the program; "
            "convert where there is more, `--on HOST`, or try it with --force",
        )


def command(python: Word, directory: Word, output: Word, tag: str, *, safetensors: bool) -> Command:
    """The converter's command line."""
    form = ("--safe_serialization",) if safetensors else ()
    return Command((python, *CONVERTER, directory, output, "--tag", tag, *form))


def convert_here(made: Command, say: Callable[[str], None]) -> None:
    """Run the converter on this machine. Raises ToolMissingError or DslaunchError."""
    argv = made.expand({"HOME": str(Path.home())})
    try:
        done = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
    except OSError as error:
        raise ToolMissingError(f"{argv[0]}: {error.strerror}", hint="name one: --python") from None
    lines = []
    with done:
        assert done.stdout is not None
        for line in done.stdout:
            lines.append(line.rstrip())
            say(line.rstrip())
    _judge(done.returncode, lines)


def convert_on(cluster: Cluster, node: Node, made: Command, say: Callable[[str], None]) -> None:
    """Run the converter on a node, over a connection of its own. Raises as `convert_here`."""
    way = transport.get(cluster.transport, cluster)
    try:
        connection = way.connect(node)
        channel = connection.start(f"exec {activated(made, node.activate).shell()} 2>&1")
        text = b""
        while piece := channel.read():
            text += piece
            *whole, text = text.split(b"\n")
            for line in whole:
                say(line.decode(errors="replace").rstrip())
        lines = [text.decode(errors="replace"), channel.stderr()]
        _judge(channel.wait(10), lines)
        channel.close()
        connection.close()
    finally:
        way.close()


def node_command(
    node: Node, place_path: str, output: str, tag: str, *, safetensors: bool
) -> Command:
    """The converter's command line on a node, with the job's interpreter."""
    return command(
        interpreter(node), at_home(place_path), at_home(output), tag, safetensors=safetensors
    )


def _judge(code: int | None, lines: list[str]) -> None:
    if code == 0:
        return
    last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
    text = "\n".join(lines[-50:])
    if "No module named" in text and "deepspeed" in text:
        raise ToolMissingError(
            "the interpreter has no DeepSpeed, whose converter is used",
            hint="name one that has: --python, or convert on a node: --on HOST",
        )
    raise DslaunchError(f"DeepSpeed's converter ended with {code}: {last.strip()[:500]}")


def directory_of(checkpoint: Checkpoint, top: str) -> str:
    """The directory that the converter is given: the one that `latest` is in."""
    return posixpath.normpath(posixpath.join(top, checkpoint.root))
