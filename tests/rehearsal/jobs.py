"""The jobs that a rehearsal must judge: broken ones, and sound ones that it must not call broken.

`broken/FAMILY.toml` and `sound/FAMILY.toml` have one table per job, whose name is the job's. Jobs
run on two nodes that have CPUs only. A script writes below its working directory, which the nodes
share only if the job says so (`shared`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from dslaunch.run.hang_verdict import HangCode

HERE = Path(__file__).parent
NODES = 2
SCRIPT = "train.py"
"""The name of a job's script in its working directory."""
LAUNCHERS = frozenset({"torchrun", "deepspeed", "accelerate", "direct"})
PACKAGES = frozenset({"lightning"})
"""Packages that not every test environment has."""

HANGS = frozenset(
    {
        *(f"hang.{code}" for code in HangCode),
        "rehearsal.uneven-steps",
        "rehearsal.world-size",
        "rehearsal.master-loopback",
        "rehearsal.master-port",
        "rehearsal.same-rank",
        "rehearsal.ports-differ",
        "rehearsal.file-not-shared",
        "rehearsal.groups-differ",
    }
)
"""What is found of a job that hangs, or that would after the rehearsed steps."""

FINDINGS: Mapping[str, str] = {
    "rehearsal.accumulated-twice": "the script accumulates gradients, and DeepSpeed does again",
    "rehearsal.accumulation-unused": "gradient accumulation is configured, and no step uses it",
    "rehearsal.batch-differs": "the data loader's batch size differs from the DeepSpeed config's",
    "rehearsal.evaluation-mode": "the model is never in training mode",
    "rehearsal.gradients-kept": "gradients are added to those of the step before",
    "rehearsal.parameters-differ": "ranks have different parameters after a step",
    "rehearsal.same-order": "every epoch has the same order",
    "rehearsal.checkpoint-incomplete": "parts of a checkpoint are missing on a node",
    "rehearsal.checkpoint-overwritten": "several ranks write one checkpoint file",
    "rehearsal.loss-not-finite": "the loss is NaN or infinite",
    "rehearsal.no-steps": "the script exits without an optimizer step",
    "rehearsal.no-update": "the optimizer's parameters are not the trained model's",
    "rehearsal.not-distributed": "a rank runs without a process group",
    "rehearsal.not-synchronized": "ranks have different parameters after a step",
    "rehearsal.broadcast-loss": "each value is compared with the targets of all samples",
    "rehearsal.clipped-scaled": "gradients are clipped while they are scaled",
    "rehearsal.nothing-loaded": "no tensor of a state dict is the model's",
    "rehearsal.parallel-inputs-differ": "ranks of tensor parallelism read different batches",
    "rehearsal.text-is-true": "an argument that means False is True",
    "rehearsal.clipped-in-parts": "divided gradients are clipped by the norm of a part",
    "rehearsal.schedule-steps": "a scheduler makes several steps in each optimizer step",
    "rehearsal.schedule-unused": "the learning rate stays 0, or a scheduler makes no step",
    "rehearsal.steps-skipped": "a gradient scaler skips all steps",
    "rehearsal.spawns-ranks": "the script starts its ranks itself",
    "rehearsal.unread-data": "no rank reads some parts of the data",
    "rehearsal.same-data": "ranks, or workers of a data loader, read the same samples",
}
"""What is wrong with a job that runs, where no lint rule has a code for it."""


class Outcome(StrEnum):
    """What a broken job does if it is started."""

    DIES = "dies"
    """A rank fails."""
    WRONG = "wrong"
    """It trains wrongly, or its results cannot be used."""
    HANGS = "hangs"
    """It does not end, or only after a timeout of minutes."""


@dataclass(frozen=True, slots=True)
class Job:
    """One training job."""

    name: str
    about: str
    """What the user saw, or what a sound job is an example of; one line."""
    script: str
    """Python."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Further files of the working directory: text by path."""
    args: tuple[str, ...] = ()
    """Arguments of the script."""
    launcher: str = "torchrun"
    launcher_args: tuple[str, ...] = ()
    slots: int = 1
    """Ranks on each of the two nodes."""
    shared: bool = False
    """The nodes share the working directory."""
    requires: frozenset[str] = frozenset()
    """Of `PACKAGES`, those without which the job is to be skipped."""


@dataclass(frozen=True, slots=True)
class BrokenJob:
    """A job that must be called broken."""

    job: Job
    source: str
    """The report it was made from: `owner/repository#number`, or the URL of a page."""
    alone: str
    """The last telling line that PyTorch, DeepSpeed or another library writes without dslaunch, as
    `try_job` recorded it; empty if there is none."""
    outcome: Outcome
    expect: frozenset[str]
    """Codes, any of which names what is wrong."""


class InvalidJobError(ValueError):
    """An entry of a file of jobs is invalid: file, entry and mistake."""


@cache
def broken_jobs() -> tuple[BrokenJob, ...]:
    """Return the broken jobs, family by family. Raises InvalidJobError."""
    return tuple(parse_broken(where, name, row) for where, name, row in _rows("broken"))


@cache
def sound_jobs() -> tuple[Job, ...]:
    """Return the sound jobs, family by family. Raises InvalidJobError."""
    return tuple(parse_sound(where, name, row) for where, name, row in _rows("sound"))


def _rows(kind: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path in sorted((HERE / kind).glob("*.toml")):
        for name, row in tomllib.loads(path.read_text("utf-8")).items():
            yield f"{kind}/{path.name}", name, dict(row)


def parse_broken(file: str, name: str, row: dict[str, Any]) -> BrokenJob:
    """Return the job of a table; `row` is used up. Raises InvalidJobError."""
    where = f"{file}, {name}"
    source = _text(where, row, "source")
    alone = _text(where, row, "alone", may_be_empty=True)
    outcome = _outcome(where, row.pop("class", None))
    expect = _texts(where, row, "expect")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+#\d+|https://\S+", source):
        raise InvalidJobError(f"{where}: source: not owner/repository#number or a URL: {source!r}")
    if not expect:
        raise InvalidJobError(f"{where}: expect: empty")
    if "\n" in alone:
        raise InvalidJobError(f"{where}: alone: more than one line")
    return BrokenJob(parse_sound(file, name, row), source, alone, outcome, frozenset(expect))


def parse_sound(file: str, name: str, row: dict[str, Any]) -> Job:
    """Return the job of a table; `row` is used up. Raises InvalidJobError."""
    where = f"{file}, {name}"
    launcher = row.pop("launcher", "torchrun")
    slots = row.pop("slots", 1)
    shared = row.pop("shared", False)
    files = row.pop("files", {})
    requires = _texts(where, row, "requires")
    job = Job(
        name=name,
        about=_text(where, row, "about"),
        script=_text(where, row, "script"),
        files=files,
        args=_texts(where, row, "args"),
        launcher=launcher,
        launcher_args=_texts(where, row, "launcher_args"),
        slots=slots,
        shared=shared,
        requires=frozenset(requires),
    )
    if row:
        raise InvalidJobError(f"{where}: unknown key: {', '.join(sorted(row))}")
    mistake = _mistake(job)
    if mistake:
        raise InvalidJobError(f"{where}: {mistake}")
    return job


def _mistake(job: Job) -> str | None:
    """Return what is wrong with a job's values."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", job.name):
        return "the name is not of lower-case words with `-` between them"
    if "\n" in job.about:
        return "about: more than one line"
    if job.launcher not in LAUNCHERS:
        return f"launcher: not one of {', '.join(sorted(LAUNCHERS))}: {job.launcher!r}"
    if type(job.slots) is not int or not 1 <= job.slots <= 2:
        return f"slots: not 1 or 2: {job.slots!r}"
    if type(job.shared) is not bool:
        return f"shared: not true or false: {job.shared!r}"
    if not job.requires <= PACKAGES:
        return f"requires: not of {', '.join(sorted(PACKAGES))}: {sorted(job.requires)}"
    return _mistake_of_files(job.files)


def _mistake_of_files(files: object) -> str | None:
    if not isinstance(files, dict):
        return f"files: not a table: {files!r}"
    for name, text in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or name == SCRIPT:
            return f"files: not a path below the working directory: {name!r}"
        if not isinstance(text, str):
            return f"files: {name}: not a text"
    return None


def _outcome(where: str, value: object) -> Outcome:
    try:
        return Outcome(str(value))
    except ValueError:
        raise InvalidJobError(f"{where}: class: not dies, wrong or hangs: {value!r}") from None


def _text(where: str, row: dict[str, Any], key: str, *, may_be_empty: bool = False) -> str:
    value = row.pop(key, None)
    if not isinstance(value, str) or (not value and not may_be_empty):
        raise InvalidJobError(f"{where}: {key}: missing, empty or not a text")
    return value


def _texts(where: str, row: dict[str, Any], key: str) -> tuple[str, ...]:
    value = row.pop(key, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidJobError(f"{where}: {key}: not a list of texts")
    return tuple(value)
