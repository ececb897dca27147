"""The options of `dslaunch estimate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
Precision = Annotated[
    str, typer.Option("--precision", metavar="TYPE", help="Precision: bf16, fp16 or fp32.")
]
MicroBatch = Annotated[
    int, typer.Option("--micro-batch", metavar="N", min=1, help="Micro-batch size of a GPU.")
]
Sequence = Annotated[
    int, typer.Option("--sequence", metavar="N", min=1, help="Sequence length in tokens.")
]
Attention = Annotated[
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
Svg = Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Write a chart to a file.")]
Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write an HTML page with chart and tables."),
]
Write = Annotated[
    Path | None,
    typer.Option("--write", metavar="FILE", help="Write the recommended DeepSpeed config."),
]
Target = Annotated[
    str,
    typer.Option("--for", metavar="READER", help="What reads the file of --write: hf or native."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace existing files.")]
