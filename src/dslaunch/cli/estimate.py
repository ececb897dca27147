"""`dslaunch estimate`: the memory and network traffic of a training, and a recommendation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch import api
from dslaunch.cli import estimate_options as given
from dslaunch.cli import ui
from dslaunch.cli.estimate_options import ATTENTION, PRECISIONS, one_of, parsed
from dslaunch.cli.signatures import with_option_groups
from dslaunch.deepspeed.estimate import by_nodes
from dslaunch.deepspeed.quantities import parse_bytes, parse_count, parse_nodes, parse_rate
from dslaunch.errors import UsageError
from dslaunch.report import estimate as report
from dslaunch.report import estimate_svg
from dslaunch.report.estimate import recommendation_text

if TYPE_CHECKING:
    from dslaunch.api import Estimate
    from dslaunch.deepspeed.initial_config import Precision
    from dslaunch.run.hardware import Hardware


@with_option_groups
def estimate(
    *,
    model: given.Model = None,
    size: given.SizeOptions,
    hardware: given.HardwareOptions,
    training: given.TrainingOptions,
    at_nodes: given.ByNodes = None,
    json: given.Json = False,
    files: given.EstimateFiles,
) -> None:
    """Estimate memory and traffic; recommend a ZeRO stage.

    The tables have every ZeRO stage with and without offload. The recommendation is the fastest
    one that fits.

    Example: dslaunch estimate config.json --nodes 2 --gpus-per-node 8
    """
    precision = one_of(training.precision, "--precision", PRECISIONS)
    attention = one_of(training.attention, "--attention", ATTENTION)
    known = hardware.known
    if known is not None:
        _say_uneven(known)
    found = api.estimate(
        model,
        params=parsed(size.params, "--params", parse_count),
        largest_layer=parsed(size.largest_layer, "--largest-layer", parse_count),
        meta=size.meta,
        hardware=known,
        nodes=hardware.nodes,
        gpus_per_node=hardware.gpus_per_node,
        gpu_memory=parsed(hardware.gpu_memory, "--gpu-memory", parse_bytes),
        cpu_memory=parsed(hardware.cpu_memory, "--cpu-memory", parse_bytes),
        nvme=parsed(hardware.nvme, "--nvme", parse_bytes),
        headroom=hardware.headroom / 100,
        precision=precision,
        micro_batch=training.micro_batch,
        sequence=training.sequence,
        attention=attention,
        accumulation=training.accumulation,
        reduce_bucket=parse_count(training.bucket, "--reduce-bucket-size"),
        buffer_factor=training.factor,
        bandwidth=parsed(hardware.bandwidth, "--bandwidth", parse_rate),
        gpu_bandwidth=parsed(hardware.gpu_bandwidth, "--gpu-bandwidth", parse_rate),
    )
    counts = parse_nodes(at_nodes, "--by-nodes") if at_nodes else ()
    grid = by_nodes(found.question, counts)
    _write_files(found, files, precision)
    if json:
        ui.data(report.as_data(found.question, found.rows, found.recommendation, grid))
        return
    if grid:
        ui.result(report.grid_text(grid))
    ui.result(report.text(found.question, found.rows, found.recommendation, ui.width()))


def _say_uneven(known: Hardware) -> None:
    counts = {node.slots for node in known.nodes}
    if len(counts) > 1:
        ui.say(
            f"nodes have different numbers of GPUs; the estimate uses the minimum, {min(counts)}"
        )


def _write_files(found: Estimate, wanted: given.EstimateFiles, precision: Precision) -> None:
    question, rows, advice = found.question, found.rows, found.recommendation
    if wanted.svg:
        text = estimate_svg.chart(question, rows, advice)
        ui.write_new(wanted.svg, text, "--svg", force=wanted.force)
    if wanted.html:
        text = estimate_svg.page(question, rows, advice)
        ui.write_new(wanted.html, text, "--html", force=wanted.force)
    if wanted.write:
        text = _config(found, precision, wanted.target)
        ui.write_new(wanted.write, text, "--write", force=wanted.force)


def _config(found: Estimate, precision: Precision, target: str) -> str:
    from dslaunch.deepspeed.initial_config import ConfigPurpose, purpose, text

    advice = found.recommendation
    if advice.row is None:
        reason = recommendation_text(found.question, advice)
        raise UsageError(f"--write: no recommendation to write: {reason}")
    asked = purpose(advice.row.strategy.stage, "none", precision, target)
    return text(
        ConfigPurpose(advice.row.strategy, asked.precision, asked.target, advice.checkpointing)
    )
