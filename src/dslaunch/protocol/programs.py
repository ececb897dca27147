"""Reports of the programs that the job's interpreter runs on a node, as typed values:
`node/installed.py` and `node/smoke.py`."""

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


class Torch(Sent):
    """PyTorch's version, the GPUs that it sees, and a port that was free."""

    torch: Short
    gpus: Annotated[int, Field(ge=0, le=4096)]
    nccl: bool
    gloo: bool
    port: Port


class RankResult(Sent):
    """The last stage of a rank of the test job, and its measurements."""

    stage: Short
    error: Short | None = None
    late: bool = False
    missing: Several[RankNumber] = ()
    low: float | None = None
    """The lowest sum over ones; a GPU that computes wrong may give any number, also NaN."""
    high: float | None = None
    init: Duration = 0.0
    single: Rate | None = None
    all: Rate = 0.0
    pairs: Annotated[dict[NodeNumber, Rate], Field(default_factory=dict, max_length=64)]


class JobResult(Sent):
    """The results of a node's ranks."""

    ranks: Annotated[Several[RankResult], Field(min_length=1, max_length=4096)]


class PythonModule(Sent):
    """The place of a Python module."""

    at: Path = ""
    """Its file; empty: a directory without `__init__.py`."""
    package: bool = False
    whole: bool = False
    """Whether the whole module of a dotted name exists."""


class Installed(Sent):
    """An interpreter and its packages: `node/installed.py`."""

    executable: Path
    version: Annotated[
        Several[Annotated[int, Field(ge=0, le=9999)]], Field(min_length=2, max_length=3)
    ]
    prefix: Path
    active: Path = ""
    """The environment that is active by its variables, if the interpreter is of another; else
    empty."""
    modules: Annotated[dict[Short, PythonModule], Field(max_length=1000)]
    packages: Annotated[
        dict[Short, Annotated[Several[Path], Field(min_length=2, max_length=2)]],
        Field(max_length=1000),
    ]
    """Name -> version and directory."""
    torch: Annotated[dict[Short, Short], Field(max_length=20)]
    """What torch is built for: `cuda`, `hip`, `xpu`, each a version or `None`."""


TORCH = TypeAdapter(Torch)
INSTALLED = TypeAdapter(Installed)
JOB_RESULT = TypeAdapter(JobResult)


def reported(adapter: TypeAdapter[Model], report: str) -> Model:
    """Return the value on the last line of a program's report. Raises InvalidAnswer."""
    last = report.strip().rpartition("\n")[2]
    try:
        value = read_message(last.encode("utf-8", "replace"))
    except FrameError as error:
        raise InvalidAnswer(str(error)) from None
    return parse(adapter, value)
