"""The options of `dslaunch estimate`, in groups that belong together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from msgspec import Struct

from dslaunch.cli.output_files import output_option
from dslaunch.cli.training_nodes import FactsFile, hardware_of
from dslaunch.cluster.select import Selection
from dslaunch.errors import ErrorCode, UsageError

if TYPE_CHECKING:
    from dslaunch.api import AttentionKind
    from dslaunch.deepspeed.initial_config import Precision
    from dslaunch.run.hardware import Hardware

Parsed = TypeVar("Parsed")
Known = TypeVar("Known", bound=str)

Model = Annotated[
    Path | None,
    typer.Argument(
        metavar="MODEL",
        help="Hugging Face config.json, safetensors file or index, or a directory with them.",
    ),
]
Params = Annotated[
    str | None,
    typer.Option("--params", metavar="N", help="Parameters of the model, for example 7e9 or 7B."),
]
LargestLayer = Annotated[
    str | None,
    typer.Option(
        "--largest-layer", metavar="N", help="Parameters of the largest layer, for example 65e6."
    ),
]
Meta = Annotated[
    bool,
    typer.Option("--meta", help="Count parameters with torch and transformers, without weights."),
]
ClusterFile = Annotated[
    Path | None,
    typer.Option(
        "--cluster", "-c", metavar="FILE", help="Use the nodes and GPUs of this cluster file."
    ),
]
Nodes = Annotated[int | None, typer.Option("--nodes", metavar="N", min=1, help="Number of nodes.")]
GpusPerNode = Annotated[
    int | None, typer.Option("--gpus-per-node", metavar="N", min=1, help="GPUs of each node.")
]
ByNodes = Annotated[
    str | None,
    typer.Option(
        "--by-nodes", metavar="N,N", help="Also print tables by number of nodes, for example 1,2,4."
    ),
]
GpuMemory = Annotated[
    str | None,
    typer.Option(
        "--gpu-memory", metavar="SIZE", help="Memory of each GPU, for example 80GB or 80GiB."
    ),
]
CpuMemory = Annotated[
    str | None,
    typer.Option(
        "--cpu-memory",
        metavar="SIZE",
        help="Memory of each node, for example 1TB (default: label `memory` in the cluster file).",
    ),
]
Nvme = Annotated[
    str | None,
    typer.Option(
        "--nvme", metavar="SIZE", help="Free space on the NVMe of each node, for example 4TB."
    ),
]
Headroom = Annotated[
    int,
    typer.Option(
        "--headroom", metavar="PERCENT", min=0, max=90, help="Share of the memory to keep free."
    ),
]
PrecisionName = Annotated[
    str, typer.Option("--precision", metavar="TYPE", help="Precision: bf16, fp16 or fp32.")
]
MicroBatch = Annotated[
    int, typer.Option("--micro-batch", metavar="N", min=1, help="Micro-batch size of a GPU.")
]
Sequence = Annotated[
    int, typer.Option("--sequence", metavar="N", min=1, help="Sequence length in tokens.")
]
AttentionName = Annotated[
    str, typer.Option("--attention", metavar="KIND", help="Attention: sdpa or eager.")
]
Accumulation = Annotated[
    int,
    typer.Option("--accumulation", metavar="N", min=1, help="Gradient accumulation steps."),
]
Bucket = Annotated[
    str,
    typer.Option(
        "--reduce-bucket-size", metavar="N", help="`reduce_bucket_size` of the config, in elements."
    ),
]
Factor = Annotated[
    float,
    typer.Option(
        "--buffer-factor", metavar="FACTOR", min=1, help="DeepSpeed's buffer factor for CPU memory."
    ),
]
Network = Annotated[
    str | None,
    typer.Option(
        "--bandwidth",
        metavar="RATE",
        help="Network bandwidth of a node, for example 100Gbit or 12.5GB/s.",
    ),
]
Inside = Annotated[
    str | None,
    typer.Option(
        "--gpu-bandwidth",
        metavar="RATE",
        help="Bandwidth between GPUs of a node, for example 450GB/s.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON; sizes are in bytes.")]
Svg = Annotated[Path | None, output_option("--svg", text="Write a chart to a file.")]
Html = Annotated[
    Path | None,
    output_option("--html", text="Write an HTML page with chart and tables."),
]
Write = Annotated[
    Path | None,
    output_option("--write", text="Write the recommended DeepSpeed config."),
]
Target = Annotated[
    str,
    typer.Option("--for", metavar="READER", help="What reads the file of --write: hf or native."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace existing files.")]

PRECISIONS: tuple[Precision, ...] = ("bf16", "fp16", "fp32")
ATTENTION: tuple[AttentionKind, ...] = ("sdpa", "eager")


class SizeOptions(Struct, frozen=True):
    """The size of a model, without a file or beside it."""

    params: Params = None
    largest_layer: LargestLayer = None
    meta: Meta = False


class HardwareOptions(Struct, frozen=True):
    """The nodes, what each has, and how they are connected."""

    cluster: ClusterFile = None
    facts: FactsFile = None
    nodes: Nodes = None
    gpus_per_node: GpusPerNode = None
    gpu_memory: GpuMemory = None
    cpu_memory: CpuMemory = None
    nvme: Nvme = None
    headroom: Headroom = 10
    bandwidth: Network = None
    gpu_bandwidth: Inside = None

    @property
    def known(self) -> Hardware | None:
        """Return what is known of the nodes. Raises DslaunchError."""
        if self.cluster is None and self.facts is None:
            return None
        chosen = Selection(nodes=self.nodes, slots=self.gpus_per_node)
        return hardware_of(self.cluster, chosen, self.facts)


class TrainingOptions(Struct, frozen=True):
    """What is trained at a time, and how."""

    precision: PrecisionName = "bf16"
    micro_batch: MicroBatch = 1
    sequence: Sequence = 2048
    attention: AttentionName = "sdpa"
    accumulation: Accumulation = 1
    bucket: Bucket = "5e8"
    factor: Factor = 1.5


class EstimateFiles(Struct, frozen=True):
    """The files that are written."""

    svg: Svg = None
    html: Html = None
    write: Write = None
    target: Target = "hf"
    force: Force = False


def parsed(text: str | None, option: str, parse: Callable[[str, str], Parsed]) -> Parsed | None:
    """Return the value of an option that may be left out. `parse` raises UsageError."""
    return parse(text, option) if text else None


def one_of(text: str, option: str, known: tuple[Known, ...]) -> Known:
    """Return the value of an option with few values. Raises UsageError for another one."""
    for each in known:
        if each == text:
            return each
    raise UsageError.coded(ErrorCode.UNKNOWN_CHOICE, option=option, value=text, choices=known)
