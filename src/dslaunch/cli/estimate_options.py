"""What `dslaunch estimate` is asked with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    Path | None,
    typer.Argument(
        metavar="MODEL",
        help="A Hugging Face config.json, a safetensors file or index, or a directory.",
    ),
]
Params = Annotated[str | None, typer.Option("--params", help="Parameters, such as 7e9 or 7B.")]
LargestLayer = Annotated[
    str | None, typer.Option("--largest-layer", help="Parameters of the largest module: 65e6.")
]
Meta = Annotated[
    bool, typer.Option("--meta", help="Count with torch and transformers, without weights.")
]
ClusterFile = Annotated[
    Path | None, typer.Option("--cluster", "-c", help="Take nodes and GPUs from this file.")
]
Nodes = Annotated[int | None, typer.Option("--nodes", min=1, help="How many nodes.")]
GpusPerNode = Annotated[int | None, typer.Option("--gpus-per-node", min=1, help="GPUs of each.")]
ByNodes = Annotated[
    str | None, typer.Option("--by-nodes", help="Tables for these numbers of nodes too: 1,2,4.")
]
GpuMemory = Annotated[
    str | None,
    typer.Option("--gpu-memory", help="Of each GPU: 80GB is 80 * 10^9 bytes, 80GiB 80 * 2^30."),
]
CpuMemory = Annotated[
    str | None,
    typer.Option(
        "--cpu-memory", help="Of each node: 1TB; default: the cluster file's labels `memory`."
    ),
]
Nvme = Annotated[str | None, typer.Option("--nvme", help="Free on each node's own NVMe: 4TB.")]
Headroom = Annotated[
    int, typer.Option("--headroom", min=0, max=90, help="Percent of the memory to leave free.")
]
Precision = Annotated[str, typer.Option("--precision", help="bf16, fp16 or fp32.")]
MicroBatch = Annotated[
    int, typer.Option("--micro-batch", min=1, help="Samples on a GPU at a time.")
]
Sequence = Annotated[int, typer.Option("--sequence", min=1, help="Tokens of a sample.")]
Attention = Annotated[str, typer.Option("--attention", help="sdpa or eager.")]
Accumulation = Annotated[
    int, typer.Option("--accumulation", min=1, help="Micro-batches of a step.")
]
Bucket = Annotated[str, typer.Option("--reduce-bucket-size", help="As in the config, in elements.")]
Factor = Annotated[
    float, typer.Option("--buffer-factor", min=1, help="DeepSpeed's factor for CPU memory.")
]
Network = Annotated[
    str | None, typer.Option("--bandwidth", help="Of a node's network: 100Gbit, or 12.5GB/s.")
]
Inside = Annotated[
    str | None,
    typer.Option("--gpu-bandwidth", help="Of a GPU to the others of its node: 450GB/s."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON; sizes in bytes.")]
Svg = Annotated[Path | None, typer.Option("--svg", help="Write a chart to this file.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write chart and tables as a page.")]
Write = Annotated[
    Path | None, typer.Option("--write", help="Write the recommended DeepSpeed config.")
]
Target = Annotated[str, typer.Option("--for", help="Whom --write writes for: hf or native.")]
Force = Annotated[bool, typer.Option("--force", help="Replace files that are there.")]
