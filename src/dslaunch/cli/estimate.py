"""`dslaunch estimate`: the memory and network traffic of a training, and a recommendation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch import api
from dslaunch.cli import estimate_options as given
from dslaunch.cli import ui
from dslaunch.cli.training_nodes import FactsFile, hardware_of
from dslaunch.cluster.select import Selection
from dslaunch.deepspeed.estimate import by_nodes
from dslaunch.deepspeed.quantities import parse_bytes, parse_count, parse_nodes, parse_rate
from dslaunch.errors import UsageError
from dslaunch.report import estimate as report
from dslaunch.report import estimate_svg
from dslaunch.report.estimate import recommendation_text

if TYPE_CHECKING:
    from dslaunch.api import AttentionKind, Estimate, Precision
    from dslaunch.run.hardware import Hardware

PRECISIONS: dict[str, Precision] = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}
ATTENTION: dict[str, AttentionKind] = {"sdpa": "sdpa", "eager": "eager"}


def estimate(
    model: given.Model = None,
    params: given.Params = None,
    largest_layer: given.LargestLayer = None,
    meta: given.Meta = False,
    cluster: given.ClusterFile = None,
    facts: FactsFile = None,
    nodes: given.Nodes = None,
    gpus_per_node: given.GpusPerNode = None,
    at_nodes: given.ByNodes = None,
    gpu_memory: given.GpuMemory = None,
    cpu_memory: given.CpuMemory = None,
    nvme: given.Nvme = None,
    headroom: given.Headroom = 10,
    precision: given.Precision = "bf16",
    micro_batch: given.MicroBatch = 1,
    sequence: given.Sequence = 2048,
    attention: given.Attention = "sdpa",
    accumulation: given.Accumulation = 1,
    bucket: given.Bucket = "5e8",
    factor: given.Factor = 1.5,
    bandwidth: given.Network = None,
    gpu_bandwidth: given.Inside = None,
    json: given.Json = False,
    svg: given.Svg = None,
    html: given.Html = None,
    write: given.Write = None,
    target: given.Target = "hf",
    force: given.Force = False,
) -> None:
    """Estimate memory and traffic; recommend a ZeRO stage.

    The tables have every ZeRO stage with and without offload. The recommendation is the fastest
    one that fits.

    Example: dslaunch estimate config.json --nodes 2 --gpus-per-node 8
    """
    if precision not in PRECISIONS:
        known_names = ", ".join(PRECISIONS)
        raise UsageError(f"--precision {precision}: unknown", hint=f"use one of {known_names}")
    if attention not in ATTENTION:
        known_names = ", ".join(ATTENTION)
        raise UsageError(f"--attention {attention}: unknown", hint=f"use one of {known_names}")
    known = None
    if cluster is not None or facts is not None:
        known = hardware_of(cluster, Selection(nodes=nodes, slots=gpus_per_node), facts)
        _say_uneven(known)
    found = api.estimate(
        model,
        params=parse_count(params, "--params") if params else None,
        largest_layer=parse_count(largest_layer, "--largest-layer") if largest_layer else None,
        meta=meta,
        hardware=known,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        gpu_memory=parse_bytes(gpu_memory, "--gpu-memory") if gpu_memory else None,
        cpu_memory=parse_bytes(cpu_memory, "--cpu-memory") if cpu_memory else None,
        nvme=parse_bytes(nvme, "--nvme") if nvme else None,
        headroom=headroom / 100,
        precision=PRECISIONS[precision],
        micro_batch=micro_batch,
        sequence=sequence,
        attention=ATTENTION[attention],
        accumulation=accumulation,
        reduce_bucket=parse_count(bucket, "--reduce-bucket-size"),
        buffer_factor=factor,
        bandwidth=parse_rate(bandwidth, "--bandwidth") if bandwidth else None,
        gpu_bandwidth=parse_rate(gpu_bandwidth, "--gpu-bandwidth") if gpu_bandwidth else None,
    )
    wanted = EstimateFiles(
        svg=svg, html=html, write=write, precision=precision, target=target, force=force
    )
    _tell(found, at_nodes, wanted, json=json)


def _say_uneven(known: Hardware) -> None:
    counts = {node.slots for node in known.nodes}
    if len(counts) > 1:
        ui.say(
            f"nodes have different numbers of GPUs; the estimate uses the minimum, {min(counts)}"
        )


@dataclass(frozen=True, slots=True)
class EstimateFiles:
    """The files that are written."""

    svg: Path | None
    html: Path | None
    write: Path | None
    precision: str
    target: str
    force: bool


def _tell(found: Estimate, at_nodes: str | None, wanted: EstimateFiles, *, json: bool) -> None:
    question, rows, advice = found.question, found.rows, found.recommendation
    counts = parse_nodes(at_nodes, "--by-nodes") if at_nodes else ()
    grid = by_nodes(question, counts)
    _write_files(found, wanted)
    if json:
        ui.data(report.as_data(question, rows, advice, grid))
        return
    if grid:
        ui.result(report.grid_text(grid))
    ui.result(report.text(question, rows, advice, ui.width()))


def _write_files(found: Estimate, wanted: EstimateFiles) -> None:
    question, rows, advice = found.question, found.rows, found.recommendation
    if wanted.svg:
        text = estimate_svg.chart(question, rows, advice)
        _save(wanted.svg, text, "--svg", force=wanted.force)
    if wanted.html:
        text = estimate_svg.page(question, rows, advice)
        _save(wanted.html, text, "--html", force=wanted.force)
    if wanted.write:
        text = _config(found, wanted.precision, wanted.target)
        _save(wanted.write, text, "--write", force=wanted.force)


def _config(found: Estimate, precision: str, target: str) -> str:
    from dslaunch.deepspeed.initial_config import ConfigPurpose, purpose, text

    advice = found.recommendation
    if advice.row is None:
        reason = recommendation_text(found.question, advice)
        raise UsageError(f"--write: no recommendation to write: {reason}")
    asked = purpose(advice.row.strategy.stage, "none", precision, target)
    return text(
        ConfigPurpose(advice.row.strategy, asked.precision, asked.target, advice.checkpointing)
    )


def _save(path: Path, text: str, option: str, *, force: bool) -> None:
    ui.write_new(path, text, option, force=force)
