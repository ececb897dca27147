"""What our own programs print on nodes, as typed values: `node/smoke.py`, `send_rate.py` and
`write_rate.py`, which are run by the job's interpreter or for a while."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, TypeAdapter

from dslaunch.node.frames import FrameError, read_message
from dslaunch.protocol.values import InvalidAnswer, Model, Path, Port, Sent, Several, Short, parse

Rate = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]
"""Bytes per second."""
Duration = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
NodeNumber = Annotated[str, Field(pattern=r"^[0-9]{1,6}$")]
RankNumber = Annotated[int, Field(ge=0, le=2**20)]


class Failed(Sent):
    """Why a program has no result."""

    error: str = Field(max_length=2000)


class Transferred(Sent):
    """How much a program sent or wrote, and how long that took."""

    bytes: Annotated[int, Field(ge=0, le=2**63)]
    seconds: Duration


class Torch(Sent):
    """What PyTorch there is, how many GPUs it sees, and a port that was free."""

    torch: Short
    gpus: Annotated[int, Field(ge=0, le=4096)]
    nccl: bool
    gloo: bool
    port: Port


class RankResult(Sent):
    """How far a rank of the test job came, and what it measured."""

    stage: Short
    error: Short | None = None
    late: bool = False
    missing: Several[RankNumber] = ()
    low: float | None = None
    """Of the sums over ones; a GPU that computes wrong may give any number, and none."""
    high: float | None = None
    init: Duration = 0.0
    single: Rate | None = None
    all: Rate = 0.0
    pairs: Annotated[dict[NodeNumber, Rate], Field(default_factory=dict, max_length=64)]


class JobResult(Sent):
    """What became of a node's ranks."""

    ranks: Annotated[Several[RankResult], Field(min_length=1, max_length=4096)]


class PythonModule(Sent):
    """Where a Python module is."""

    at: Path = ""
    """Its file; empty: a directory without `__init__.py`."""
    package: bool = False
    whole: bool = False
    """Whether the module that a dotted name means is there, too."""


class Installed(Sent):
    """An interpreter, and what it has: `node/installed.py`."""

    executable: Path
    version: Annotated[
        Several[Annotated[int, Field(ge=0, le=9999)]], Field(min_length=2, max_length=3)
    ]
    prefix: Path
    active: Path = ""
    """The environment that is said to be active, if the interpreter is of another; else empty."""
    modules: Annotated[dict[Short, PythonModule], Field(max_length=1000)]
    packages: Annotated[
        dict[Short, Annotated[Several[Path], Field(min_length=2, max_length=2)]],
        Field(max_length=1000),
    ]
    """Name -> version and directory."""
    torch: Annotated[dict[Short, Short], Field(max_length=20)]
    """What torch says that it is built for: `cuda`, `hip`, `xpu`, each a version or `None`."""


TRANSFERRED = TypeAdapter(Transferred)
TORCH = TypeAdapter(Torch)
INSTALLED = TypeAdapter(Installed)
JOB_RESULT = TypeAdapter(JobResult)
_FAILED = TypeAdapter(Failed)


def printed(adapter: TypeAdapter[Model], output: str) -> Model | Failed:
    """Return what a program printed on its last line. Raises InvalidAnswer."""
    try:
        value = read_message(output.strip().rpartition("\n")[2].encode("utf-8", "replace"))
    except FrameError as error:
        raise InvalidAnswer(str(error)) from None
    return parse(_FAILED, value) if "error" in value else parse(adapter, value)
