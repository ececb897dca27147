"""The record of a run: written when it starts, read by all commands about it later.

One JSON file in the run directory. `dslaunch schema run` prints its JSON Schema.
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    Field,
    Strict,
    TypeAdapter,
)

from dslaunch.cluster.progress_format import fault
from dslaunch.errors import UsageError
from dslaunch.protocol.values import Count, InvalidAnswer, Pid, Several, Time, parse
from dslaunch.run.recorded_values import Name, Recorded
from dslaunch.run.run_directory import read_begin

FILE = "run.json"
FORMAT = 1
LARGEST = 16 << 20
"""Bytes that are read of a record; the names of 4,096 nodes take about 100 kB."""


def _progress_pattern(value: str) -> str:
    """Return a valid pattern of `Cluster.progress`; raise ValueError for others."""
    found = fault(value)
    if found is not None:
        raise ValueError(found.code.value)
    return value


ProgressPattern = Annotated[str, AfterValidator(_progress_pattern)]
Group = Annotated[tuple[Count, Count], Strict(False)]


class JobRecord(Recorded):
    """The SLURM job that a run is, as it was submitted."""

    job: Annotated[str, Field(pattern=r"^[0-9]{1,18}$", description="Its number.")]
    cluster: Name = Field("", description="The SLURM cluster; empty: that of the commands.")
    name: Name = Field("", description="The job's name.")
    submitted: Count | None = Field(
        None, description="Seconds since the epoch; null: SLURM could not tell yet."
    )
    token: Name = Field("", description="The word that only this job has in its submission.")
    user: Count | None = Field(None, description="The number of the user whose job it is.")
    output: Name = Field("", description="The path of its output; empty: not known.")
    groups: Several[Group] = Field(description="Nodes and ranks of each node, in rank order.")
    direct: bool = Field(description="Whether each task is a rank.")
    elastic: bool = Field(False, description="Whether the launcher is elastic.")
    supervised: bool = Field(False, description="Whether `dslaunch run` runs within the job.")


class RunRecord(Recorded):
    """A run as it was started: an attempt of an SSH run, or a SLURM job."""

    format: Literal[1] = Field(1, description="The version of this shape.")
    program: Name = Field(description="The script, module or program.")
    cluster: Name = Field(description="The name of the cluster in its file.")
    launcher: Name = Field(description="What starts the ranks of a node.")
    hosts: Several[Name] = Field(description="The nodes, in rank order.")
    world_size: Count = Field(description="How many ranks there are.")
    detached: bool = Field(description="Whether it runs without the launcher.")
    attempt: Count = Field(0, description="Restarts before this attempt.")
    agents: Name = Field(description="The name that the agents of this attempt carry.")
    started: Time = Field(description="Seconds since the epoch.")
    pid: Pid | None = Field(None, description="The process that started it.")
    machine: Name = Field(
        "",
        validation_alias=AliasChoices("from", "machine"),
        serialization_alias="from",
        description="The machine on which it was started.",
    )
    submission: Name = Field(
        "", description="The token of the SLURM job in whose script it was started."
    )
    progress_patterns: Annotated[tuple[ProgressPattern, ...], Strict(False)] = Field(
        (), max_length=8, description="Regular expressions for the progress of the training."
    )
    slurm: JobRecord | None = Field(None, description="The SLURM job; null: an SSH run.")

    def as_data(self) -> dict[str, Any]:
        """Return all fields, for JSON."""
        return self.model_dump(mode="json", by_alias=True)

    def as_json(self) -> str:
        """Return the text of the file."""
        return self.model_dump_json(by_alias=True) + "\n"


_RECORD: TypeAdapter[RunRecord] = TypeAdapter(RunRecord)


class RecordFault(StrEnum):
    """Why a record cannot be used."""

    UNREADABLE = "unreadable"
    DAMAGED = "damaged"
    OTHER_VERSION = "other-version"


_FAULTS = {
    RecordFault.UNREADABLE: "cannot be read",
    RecordFault.DAMAGED: "is damaged",
    RecordFault.OTHER_VERSION: "was written by another version of dslaunch",
}


class RecordError(UsageError):
    """The record of a run cannot be used."""

    def __init__(self, path: Path, code: RecordFault, detail: str) -> None:
        self.run, self.code = path.parent.name, code
        super().__init__(
            f"{self.run}: its record {path} {_FAULTS[code]}: {detail}",
            hint=f"if the run is over, remove {path.parent}",
        )


def read_record(directory: Path) -> RunRecord | None:
    """Return the record of a run; None: nothing is recorded. Raises RecordError."""
    path = directory / FILE
    try:
        data = json.loads(read_begin(path, LARGEST))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(path, RecordFault.UNREADABLE, error.strerror or str(error)) from None
    except (ValueError, RecursionError):
        raise RecordError(path, RecordFault.DAMAGED, "not JSON") from None
    if not isinstance(data, dict):
        raise RecordError(path, RecordFault.DAMAGED, "not an object")
    # the first versions wrote no number, and mostly the same fields
    numbered = "format" in data
    if numbered and data["format"] != FORMAT:
        raise RecordError(path, RecordFault.OTHER_VERSION, f"format {str(data['format'])[:40]}")
    try:
        return parse(_RECORD, data)
    except InvalidAnswer as error:
        code = RecordFault.DAMAGED if numbered else RecordFault.OTHER_VERSION
        raise RecordError(path, code, str(error)) from None


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the file, for other programs."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "dslaunch run"}
    schema = RunRecord.model_json_schema(by_alias=True, mode="serialization")
    return head | {key: value for key, value in schema.items() if key not in head}
