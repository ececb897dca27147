"""An estimate of memory and traffic, for people and programs.

GiB is 2^30 bytes, what DeepSpeed's own tables call GB; a figure per GPU, or per node for CPU.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dslaunch.deepspeed.activations import compared
from dslaunch.deepspeed.communication import Collective
from dslaunch.deepspeed.estimate import GIVEN_BY, EstimateInput, Recommendation, Row
from dslaunch.deepspeed.memory import FAULTS, GIB, Strategy
from dslaunch.plural import counted

WIDTH = 80
"""Columns where nobody has said how many there are."""
WIDE = 110
"""Columns from which the parts of the total are shown too."""
Line = tuple[str, ...]
PLACES = {"gpu": "-", "cpu": "cpu", "nvme": "nvme"}


def text(
    question: EstimateInput, rows: Sequence[Row], advice: Recommendation, width: int | None = None
) -> str:
    """The tables, what their letters mean, and the recommendation last."""
    fit = width or WIDTH
    body = [_line(row, wide=fit >= WIDE) for row in rows]
    parts = [
        heading(question),
        aligned([_head(wide=fit >= WIDE), *body]),
        "\n".join(_wrapped(note, fit) for note in notes(question, rows)),
        aligned([("ZERO", "EACH GPU SENDS IN A STEP", "GiB", "SECONDS"), *_traffic(rows)]),
        _wrapped(_about_traffic(question), fit),
        _wrapped(f"-> {advice.text}", fit),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


Grid = Mapping[int, Sequence[Row]]
"""The rows of an estimate by the number of nodes."""


def grid_text(grid: Grid) -> str:
    """What each GPU, and each node, needs on so many nodes; marked where it fits."""
    tables = []
    for title, size in (("PER GPU", total), ("PER NODE", lambda row: row.cpu)):
        counts = [f"{n} NODES" if n > 1 else "1 NODE" for n in grid]
        head = ("ZERO", "OPT", "PARAM", "INIT", *(f"{count} " for count in counts))
        lines = [
            (*_names(same[0]), *(_gib(size(row)) + _mark(row) for row in same))
            for same in zip(*grid.values(), strict=True)
        ]
        tables.append(
            f"GiB {title}; *: all fits, c: with activation checkpointing\n{aligned([head, *lines])}"
        )
    return "\n\n".join(tables) + "\n"


def total(row: Row) -> int:
    """What a GPU needs in all; with activation checkpointing where it fits only so."""
    return row.gpu_checkpointed if row.fits == "checkpointing" else row.gpu


def _mark(row: Row) -> str:
    return {"yes": "*", "checkpointing": "c"}.get(row.fits, " ")


def heading(question: EstimateInput) -> str:
    """What was asked, in one line or two."""
    model, machines = question.sized.model, question.machines
    width = "16-bit" if question.settings.width == 2 else "fp32"
    return (
        f"{model.params:,} parameters, {model.largest_layer:,} in the largest layer, {width}\n"
        f"{counted(machines.nodes, 'node')} x {counted(machines.gpus_per_node, 'GPU')}; "
        "GiB = 2^30 bytes, per GPU, and per node for CPU"
    )


def aligned(lines: Sequence[Line]) -> str:
    """Columns one space apart, numbers to the right; the first line is the head."""
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
    return cell in ("", "-") or cell.rstrip("*c ").replace(".", "").isdigit()


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
    """What the columns and letters mean, and what was assumed."""
    said = [
        "DSPEED: DeepSpeed's own estimate of the model states, where it has one. STATES: the same "
        "with its faults mended. ALL: with buckets and activations."
    ]
    used = sorted({letter for row in rows for letter in row.faults})
    said += [f"{letter}: DeepSpeed's estimate {FAULTS[letter]}" for letter in used]
    if any(row.fits == "checkpointing" for row in rows):
        said.append("ckpt: fits with activation checkpointing, and ALL is with it")
    if question.sized.partial:
        said.append(
            "Only the text part of this model is counted: no rule knows its other parts. --meta "
            "counts all of it."
        )
    missing = sorted({GIVEN_BY[name] for row in rows for name in row.unknown})
    if missing:
        said.append(f"?: not known whether it fits without {', '.join(missing)}")
    if question.sized.shape is None:
        said.append(
            "Activations are left out: their size needs the shape of a dense model over text, "
            "from its config.json."
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
                f"Activations of {family} models are approximate: they were not compared with "
                "what a training keeps."
            )
    if question.limits.gpu is not None or question.limits.cpu is not None:
        left = f"{question.limits.headroom:.0%}"
        said.append(f"What fits leaves {left} of the memory for CUDA, NCCL and fragmentation.")
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
        return "SECONDS: at the stated bandwidth, with nothing hidden behind computing."
    return "Say --bandwidth (of a node's network) to learn how long that takes."


def _wrapped(line: str, width: int) -> str:
    return textwrap.fill(
        line, width, subsequent_indent="   ", break_long_words=False, break_on_hyphens=False
    )


def as_data(
    question: EstimateInput, rows: Sequence[Row], advice: Recommendation, grid: Grid | None = None
) -> dict[str, Any]:
    """The same for programs; sizes in bytes, times in seconds."""
    chosen = None
    if advice.row is not None:
        chosen = {**_strategy(advice.row.strategy), "checkpointing": advice.checkpointing}
    return {
        "model": {
            **asdict(question.sized.model),
            "source": question.sized.source,
            "partial": question.sized.partial,
        },
        "machines": asdict(question.machines),
        "settings": asdict(question.settings),
        "limits": asdict(question.limits),
        "batch": {**asdict(question.batch), "accumulation": question.accumulation},
        "unit": "bytes; gpu per GPU, cpu and nvme per node",
        "strategies": [_row(row) for row in rows],
        "faults": FAULTS,
        "recommendation": {
            "strategy": chosen,
            "text": advice.text,
            "outcome": advice.outcome,
            "missing": list(advice.missing),
            "micro_batch": advice.micro_batch,
        },
        "by_nodes": {str(n): [_brief(row) for row in same] for n, same in (grid or {}).items()},
    }


def _strategy(strategy: Strategy) -> dict[str, Any]:
    data = asdict(strategy)
    return data if strategy.stage == 3 else {**data, "zero_init": None}


def _brief(row: Row) -> dict[str, Any]:
    keys = ("gpu", "gpu_checkpointed", "cpu", "nvme", "seconds")
    numbers = {key: getattr(row, key) for key in keys}
    return {**_strategy(row.strategy), **numbers, "fits": row.fits, "unknown": row.unknown}


def _row(row: Row) -> dict[str, Any]:
    return {
        **_strategy(row.strategy),
        "deepspeed": asdict(row.theirs) if row.theirs else None,
        "states": asdict(row.states),
        "faults": list(row.faults),
        "parts": [{**asdict(part), "size": round(part.size)} for part in row.parts if part.size],
        "activations": asdict(row.activations) if row.activations else None,
        "buckets": row.buckets,
        "gpu": row.gpu,
        "gpu_checkpointed": row.gpu_checkpointed,
        "cpu": row.cpu,
        "nvme": row.nvme,
        "communication": [asdict(each) for each in row.moved],
        "seconds": row.seconds,
        "fits": row.fits,
        "unknown": list(row.unknown),
    }
