"""Estimates of memory and communication as text and as data.

GiB is 2^30 bytes, which DeepSpeed's own tables call GB. Figures are per GPU; those of CPU memory
per node.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import to_builtins

from dslaunch.deepspeed.activations import compared
from dslaunch.deepspeed.communication import Collective
from dslaunch.deepspeed.estimate import (
    GIVEN_BY,
    Alternative,
    EstimateInput,
    Recommendation,
    Row,
    Shortage,
)
from dslaunch.deepspeed.memory import FAULTS, GIB, Strategy
from dslaunch.plural import counted

WIDTH = 80
"""The width of the text, in columns, if the terminal's is unknown."""
WIDE = 110
"""The width, in columns, from which the parts of the total are shown."""
Line = tuple[str, ...]
PLACES = {"gpu": "-", "cpu": "cpu", "nvme": "nvme"}


def text(
    question: EstimateInput, rows: Sequence[Row], advice: Recommendation, width: int | None = None
) -> str:
    """Return the tables, the meaning of their columns, and the recommendation last."""
    fit = width or WIDTH
    body = [_line(row, wide=fit >= WIDE) for row in rows]
    parts = [
        heading(question),
        aligned([_head(wide=fit >= WIDE), *body]),
        "\n".join(_wrapped(note, fit) for note in notes(question, rows)),
        aligned([("ZERO", "SENT BY EACH GPU PER STEP", "GiB", "SECONDS"), *_traffic(rows)]),
        _wrapped(_about_traffic(question), fit),
        _wrapped(f"-> {recommendation_text(question, advice)}", fit),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def recommendation_text(question: EstimateInput, advice: Recommendation) -> str:
    """Return the recommendation in one line."""
    if advice.outcome == "fits" and advice.row is not None:
        row = advice.row
        shortage = f"; {_shortage(advice.shortage)}" if advice.shortage else ""
        return (
            f"{row.strategy}{_checkpointing(row)}: the fastest strategy that fits, with "
            f"{total(row) / GIB:.1f} GiB per GPU and {row.cpu / GIB:.1f} GiB of CPU memory per "
            f"node{shortage}"
        )
    options = " and ".join(advice.missing)
    if advice.candidate is not None:
        may = f"{advice.candidate} may fit: add {options} to know"
        return f"{may}; {_nothing_fits(question, advice)}" if advice.alternatives else may
    if advice.outcome == "unknown":
        return f"add {options} to know what fits"
    return _nothing_fits(question, advice)


def _nothing_fits(question: EstimateInput, advice: Recommendation) -> str:
    batch = question.batch.micro
    asked = f" with micro-batch {batch}" if question.sized.shape is not None else ""
    ways = [_alternative_text(each) for each in advice.alternatives]
    if ways:
        return f"nothing fits{asked}; {'; or '.join(ways)}"
    reason = f"; {_shortage(advice.shortage)}" if advice.shortage else ""
    return f"nothing fits{asked}, on any number of these nodes{reason}"


def _alternative_text(alternative: Alternative) -> str:
    strategy = f"{alternative.row.strategy}{_checkpointing(alternative.row)}"
    if alternative.nodes is not None:
        return f"{strategy} fits on {alternative.nodes} of these nodes"
    return (
        f"{strategy} fits with micro-batch {alternative.micro_batch} and "
        f"{alternative.accumulation} accumulation steps, the same batch size"
    )


def _shortage(shortage: Shortage) -> str:
    kind = {"gpu": "per GPU", "cpu": "of CPU memory per node", "nvme": "of NVMe per node"}
    return f"{shortage.strategy} needs {shortage.need / GIB:.1f} GiB {kind[shortage.place]}"


def _checkpointing(row: Row) -> str:
    return " with activation checkpointing" if row.fits == "checkpointing" else ""


Grid = Mapping[int, Sequence[Row]]
"""The rows of an estimate by the number of nodes."""


def grid_text(grid: Grid) -> str:
    """Return the memory per GPU and per node on different numbers of nodes."""
    tables = []
    for title, size in (("PER GPU", total), ("PER NODE", lambda row: row.cpu)):
        counts = [f"{n} NODES" if n > 1 else "1 NODE" for n in grid]
        head = ("ZERO", "OPT", "PARAM", "INIT", *(f"{count} " for count in counts))
        lines = [
            (*_names(same[0]), *(_gib(size(row)) + _mark(row) for row in same))
            for same in zip(*grid.values(), strict=True)
        ]
        tables.append(
            f"GiB {title}; *: fits, c: with activation checkpointing\n{aligned([head, *lines])}"
        )
    return "\n\n".join(tables) + "\n"


def total(row: Row) -> int:
    """Return the total bytes per GPU, with activation checkpointing if needed to fit."""
    return row.gpu_checkpointed if row.fits == "checkpointing" else row.gpu


def _mark(row: Row) -> str:
    return {"yes": "*", "checkpointing": "c"}.get(row.fits, " ")


def heading(question: EstimateInput) -> str:
    """Return the model and the machines in two lines."""
    model, machines = question.sized.model, question.machines
    width = "16-bit" if question.settings.width == 2 else "fp32"
    return (
        f"{model.params:,} parameters, {model.largest_layer:,} in the largest layer, {width}\n"
        f"{counted(machines.nodes, 'node')} x {counted(machines.gpus_per_node, 'GPU')}; "
        "GiB = 2^30 bytes, per GPU, and per node for CPU"
    )


def aligned(lines: Sequence[Line]) -> str:
    """Return lines in aligned columns, numbers to the right; the first line is the head."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    right = [all(_number(cell) for cell in column[1:]) for column in zip(*lines, strict=True)]
    return "\n".join(
        " ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def _number(cell: str) -> bool:
    return cell in ("", "-") or cell.rstrip("*c ").replace(".", "").isdecimal()


def _head(*, wide: bool) -> Line:
    more = ("BUCKETS", "ACTIVATIONS", "CHECKPOINTED") if wide else ()
    theirs = ("DSPEED-GPU", "-CPU", "STATES-GPU", "-CPU")
    return ("ZERO", "OPT", "PARAM", "INIT", *theirs, *more, "ALL-GPU", "FITS", "WHY")


def _line(row: Row, *, wide: bool) -> Line:
    theirs, acts = row.theirs, row.activations
    more = (
        _gib(row.buckets),
        _gib(acts.full) if acts else "-",
        _gib(acts.checkpointed) if acts else "-",
    )
    return (
        *_names(row),
        _gib(theirs.gpu) if theirs else "-",
        _gib(theirs.cpu) if theirs else "-",
        _gib(row.states.gpu),
        _gib(row.states.cpu),
        *(more if wide else ()),
        _gib(total(row)),
        {"checkpointing": "ckpt", "unknown": "?"}.get(row.fits, row.fits),
        " ".join(row.faults),
    )


def _names(row: Row) -> Line:
    strategy = row.strategy
    return (
        str(strategy.stage),
        PLACES[strategy.optimizer],
        PLACES[strategy.params],
        str(int(strategy.zero_init)) if strategy.stage == 3 else "-",
    )


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"


def notes(question: EstimateInput, rows: Sequence[Row]) -> list[str]:
    """Return the meaning of columns and letters, and the assumptions."""
    said = [
        "DSPEED: DeepSpeed's own estimate of the model states, if it has one. STATES: the same, "
        "with its errors corrected. ALL: including buckets and activations."
    ]
    used = sorted({letter for row in rows for letter in row.faults})
    said += [f"{letter}: DeepSpeed's estimate {FAULTS[letter]}" for letter in used]
    if any(row.fits == "checkpointing" for row in rows):
        said.append("ckpt: fits with activation checkpointing only; ALL includes it")
    if question.sized.partial:
        said.append(
            "Only the text part of this model is counted: the size of its other parts is unknown. "
            "Use --meta to count all of it."
        )
    missing = sorted({GIVEN_BY[name] for row in rows for name in row.unknown})
    if missing:
        said.append(f"?: unknown whether it fits; add {', '.join(missing)}")
    if question.sized.shape is None:
        said.append(
            "Activations are not included: their size is known only for dense text models with a "
            "config.json."
        )
    else:
        batch = question.batch
        said.append(
            f"Activations: micro-batch {batch.micro} of {batch.sequence} tokens, "
            f"{batch.attention} attention, no dropout."
        )
        family = question.sized.family
        if family and not compared(family):
            said.append(
                f"Activations of {family} models are approximate: they were not compared with a "
                "real training."
            )
    if question.limits.gpu is not None or question.limits.cpu is not None:
        left = f"{question.limits.headroom:.0%}"
        said.append(f"{left} of the memory is kept free for CUDA, NCCL and fragmentation.")
    return said


def _traffic(rows: Sequence[Row]) -> list[Line]:
    by_stage = {row.strategy.stage: row for row in reversed(rows)}
    return [
        (
            str(stage),
            _collectives(row.moved),
            _gib(sum(c.sent for c in row.moved)),
            "-" if row.seconds is None else f"{row.seconds:.3f}",
        )
        for stage, row in sorted(by_stage.items())
    ]


def _collectives(moved: Sequence[Collective]) -> str:
    counts = {each.times for each in moved}
    if len(counts) == 1 and counts != {1}:
        return f"{counts.pop()} x ({', '.join(each.what for each in moved)})"
    return ", ".join(
        f"{each.times} x {each.what}" if each.times > 1 else each.what for each in moved
    )


def _about_traffic(question: EstimateInput) -> str:
    if question.bandwidth.network or question.bandwidth.inside:
        return "SECONDS: at the given bandwidth, without overlap with computation."
    return "Add --bandwidth (of the network of a node) to estimate the time."


def _wrapped(line: str, width: int) -> str:
    return textwrap.fill(
        line, width, subsequent_indent="   ", break_long_words=False, break_on_hyphens=False
    )


def as_data(
    question: EstimateInput, rows: Sequence[Row], advice: Recommendation, grid: Grid | None = None
) -> dict[str, Any]:
    """Return the estimate as plain values; sizes in bytes, times in seconds."""
    chosen = None
    if advice.row is not None:
        chosen = {**_strategy(advice.row.strategy), "checkpointing": advice.checkpointing}
    return {
        "model": {
            **to_builtins(question.sized.model),
            "source": question.sized.source,
            "partial": question.sized.partial,
        },
        "machines": to_builtins(question.machines),
        "settings": to_builtins(question.settings),
        "limits": to_builtins(question.limits),
        "batch": {**to_builtins(question.batch), "accumulation": question.accumulation},
        "unit": "bytes; gpu per GPU, cpu and nvme per node",
        "strategies": [_row(row) for row in rows],
        "faults": FAULTS,
        "recommendation": {
            "strategy": chosen,
            "text": recommendation_text(question, advice),
            "outcome": advice.outcome,
            "missing": list(advice.missing),
            "micro_batch": advice.micro_batch,
            "shortage": to_builtins(advice.shortage) if advice.shortage else None,
            "alternatives": [_alternative(each) for each in advice.alternatives],
        },
        "by_nodes": {str(n): [_brief(row) for row in same] for n, same in (grid or {}).items()},
    }


def _alternative(alternative: Alternative) -> dict[str, Any]:
    return {
        **_strategy(alternative.row.strategy),
        "checkpointing": alternative.row.fits == "checkpointing",
        "micro_batch": alternative.micro_batch,
        "accumulation": alternative.accumulation,
        "nodes": alternative.nodes,
    }


def _strategy(strategy: Strategy) -> dict[str, Any]:
    data = to_builtins(strategy)
    return data if strategy.stage == 3 else {**data, "zero_init": None}


def _brief(row: Row) -> dict[str, Any]:
    keys = ("gpu", "gpu_checkpointed", "cpu", "nvme", "seconds")
    numbers = {key: getattr(row, key) for key in keys}
    return {**_strategy(row.strategy), **numbers, "fits": row.fits, "unknown": row.unknown}


def _row(row: Row) -> dict[str, Any]:
    return {
        **_strategy(row.strategy),
        "deepspeed": to_builtins(row.theirs) if row.theirs else None,
        "states": to_builtins(row.states),
        "faults": list(row.faults),
        "parts": [
            {**to_builtins(part), "size": round(part.size)} for part in row.parts if part.size
        ],
        "activations": to_builtins(row.activations) if row.activations else None,
        "buckets": row.buckets,
        "gpu": row.gpu,
        "gpu_checkpointed": row.gpu_checkpointed,
        "cpu": row.cpu,
        "nvme": row.nvme,
        "communication": [to_builtins(each) for each in row.moved],
        "seconds": row.seconds,
        "fits": row.fits,
        "unknown": list(row.unknown),
    }
