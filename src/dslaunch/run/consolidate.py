"""Convert a gathered checkpoint to fp32 weights with DeepSpeed's converter, here or on a node."""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Collection, Mapping
from importlib import resources
from pathlib import Path

from dslaunch import transport
from dslaunch.cluster.model import Cluster, Node
from dslaunch.deepspeed.checkpoint import Checkpoint
from dslaunch.deepspeed.loading import beyond_torch, unknown
from dslaunch.errors import (
    DslaunchError,
    ErrorCode,
    NodeError,
    NodeFailure,
    PreflightError,
    ToolMissingError,
)
from dslaunch.launch.command import Command, Word, activated, at_home
from dslaunch.launch.interpreter import interpreter
from dslaunch.plural import byte_count, first_few
from dslaunch.protocol.checkpoints import Names, Room
from dslaunch.run.checkpoint_stores import LONG, CheckpointStore, result
from dslaunch.run.shards import SPARE
from dslaunch.transport.base import Connection
from dslaunch.transport.channel import ChannelOutput

QUIET = ("-W", "ignore::RuntimeWarning:runpy")
"""Python warns that DeepSpeed imports its own converter first, which does no harm."""
LAST_LINES, LONGEST_LINE = 50, 64 * 1024
SHOWN_FILES = 20
"""Unsafe files that an error names."""
KEPT = re.compile(
    r"(CONDA|CUDA|DS|HIP|LC|MKL|NUMEXPR|NVIDIA|OMP|ROCM|TORCH|VIRTUAL)_\w+|PYTHON\w+"
    r"|HOME|LANG|LD_LIBRARY_PATH|LOGNAME|PATH|TERM|TMPDIR|TZ|USER"
)
"""Variables that the converter is started with. Others may be secrets."""
FP32 = 4
"""Bytes of a parameter."""
COPIES, ALWAYS = 2.2, 300 << 20
"""How often the fp32 weights are in memory, and what torch and DeepSpeed take. Hugging Face's guide
says twice; DeepSpeed 0.19.8 on ZeRO-2 and 3 was measured to take 2.14 times and 243 MB."""


def memory_needed(checkpoint: Checkpoint) -> int | None:
    """Return the bytes of memory that the converter needs; None: unknown number of parameters."""
    params = checkpoint.header.params
    return None if params is None else round(COPIES * FP32 * params) + ALWAYS


def check_resources(checkpoint: Checkpoint, place: CheckpointStore, output: str) -> None:
    """Raise PreflightError if memory or disk space are too small for the conversion."""
    room: Room = result(place.ask("room", output))
    need, params = memory_needed(checkpoint), checkpoint.header.params
    if need is None or params is None:
        return
    short = []
    if room.memory is not None and need > room.memory:
        short.append(f"{byte_count(need)} of memory needed, {byte_count(room.memory)} available")
    if FP32 * params + SPARE > room.free:
        size = byte_count(FP32 * params)
        short.append(f"{room.path}: {size} of disk space needed, {byte_count(room.free)} free")
    if short:
        raise PreflightError(
            "\n".join(f"{place.name}: {why}" for why in short),
            hint=f"{params:,} parameters in fp32 are {COPIES} times in memory; convert on a larger "
            "node with `--on HOST`, or try it with --force",
        )


def check_names(checkpoint: Checkpoint, place: CheckpointStore, directory: str) -> None:
    """Raise PreflightError for files that would run other code when they are loaded.

    The converter loads every file of the checkpoint's directory that is named as a shard, also
    one that is not of this checkpoint.
    """
    loaded = checkpoint.loaded()
    told: Mapping[str, Names] = result(place.ask("names", directory, names=list(loaded)), LONG)
    wrong = [f"{place.name}: {path}: {why}" for path in loaded for why in _doubts(told.get(path))]
    if wrong:
        raise PreflightError(
            "\n".join([f"{checkpoint.name} is not safe to load", *first_few(wrong, SHOWN_FILES)]),
            hint="loading such a file runs what it names, which may be any program; if the "
            "training itself saves these objects, convert it with --trust",
            code=ErrorCode.CHECKPOINT_UNSAFE,
        )


def _doubts(names: Names | None) -> list[str]:
    if names is None:
        return ["not checked"]
    found = [f"names {name}" for name in unknown(names.names)]
    return found if names.error is None else [*found, names.error]


def command(
    python: Word, directory: Word, output: Word, tag: str, *, safetensors: bool, trust: bool
) -> Command:
    """Return the converter's command line; with `trust` it loads whatever the shards name."""
    form = ("--safe_serialization",) if safetensors else ()
    names = "" if trust else ",".join(beyond_torch())
    program = f"exec({_program()!r})"
    converter = (python, *QUIET, "-c", program, names)
    return Command((*converter, directory, output, f"--tag={tag}", *form))


def _program() -> str:
    """Return the text of the program that starts DeepSpeed's converter."""
    return resources.files("dslaunch.node").joinpath("converter.py").read_text("utf-8")


def convert_here(made: Command, say: Callable[[str], None]) -> None:
    """Run the converter on this machine, without network where the system allows that.

    Raises ToolMissingError or DslaunchError.
    """
    argv = made.expand({"HOME": str(Path.home())})
    environment = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)}
    if shutil.which(argv[0]) is None:  # else `unshare` would be the one to miss it
        raise ToolMissingError(f"{argv[0]} not found", hint="set another interpreter with --python")
    done = subprocess.Popen(
        [*_without_network(), *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        text=True,
        errors="replace",
    )
    lines: deque[str] = deque(maxlen=LAST_LINES)
    with done:
        assert done.stdout is not None
        while line := done.stdout.readline(LONGEST_LINE):
            lines.append(line.rstrip())
            say(line.rstrip())
    _judge(done.returncode, lines)


def _without_network() -> tuple[str, ...]:
    """Return the prefix of a command that runs it without network; empty: not possible here."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return ()
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    words = (unshare, *user, "--net", "--")
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        tried = subprocess.run([*words, "true"], capture_output=True, timeout=10, check=False)
        return words if tried.returncode == 0 else ()
    return ()


def convert_on(cluster: Cluster, node: Node, made: Command, say: Callable[[str], None]) -> None:
    """Run the converter on a node, over its own connection.

    Raises as `convert_here`, and NodeError where the node cannot be reached or the connection
    breaks.
    """
    opened = transport.get(cluster.transport, cluster, [node])
    try:
        convert_over(opened.connect(node), node, made, say)
    finally:
        opened.close()


def convert_over(
    connection: Connection, node: Node, made: Command, say: Callable[[str], None]
) -> None:
    """Run the converter over a connection, which is closed. Raises as `convert_on`."""
    lines: deque[str] = deque(maxlen=LAST_LINES)
    try:
        channel = connection.start(f"exec {activated(made, node.activate).shell()} 2>&1")
        output = ChannelOutput(channel)
        text = b""
        while piece := output.read():
            *whole, text = (text + piece).split(b"\n")
            if len(text) > LONGEST_LINE:
                whole, text = [*whole, text], b""
            for line in whole:
                lines.append(line.decode(errors="replace").rstrip())
                say(lines[-1])
        end = output.end()
        lines.extend([text.decode(errors="replace"), end.stderr])
        code = end.code
        channel.close()
    except OSError as error:
        why = f"the connection broke: {error}"
        raise NodeError((NodeFailure(node.host, "broken", why),)) from None
    finally:
        connection.close()
    if code is None:
        why = "the connection ended before DeepSpeed's converter"
        raise NodeError((NodeFailure(node.host, "lost", why),))
    _judge(code, lines)


def node_command(
    node: Node, place_path: str, output: str, tag: str, *, safetensors: bool, trust: bool
) -> Command:
    """Return the converter's command line on a node, with the job's interpreter."""
    return command(
        interpreter(node),
        at_home(place_path),
        at_home(output),
        tag,
        safetensors=safetensors,
        trust=trust,
    )


def _judge(code: int, lines: Collection[str]) -> None:
    if code == 0:
        return
    last = next((line for line in reversed([*lines]) if line.strip()), "no output")
    if code == os.EX_UNAVAILABLE:  # of node/converter.py
        raise ToolMissingError(
            "DeepSpeed, whose converter is used, is not installed for this interpreter",
            hint="set another interpreter with --python, or convert on a node with --on HOST",
        )
    raise DslaunchError(f"DeepSpeed's converter failed with exit code {code}: {last.strip()[:500]}")


def directory_of(checkpoint: Checkpoint, top: str) -> str:
    """Return the directory for the converter: the one with the file `latest`."""
    return posixpath.normpath(posixpath.join(top, checkpoint.root))
