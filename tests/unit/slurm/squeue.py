"""Answers of squeue and sacct as SLURM prints them, for tests that need one of their own."""

from __future__ import annotations

from dslaunch.slurm.answers import ACCOUNTING, COLUMNS

TOKEN = "dslaunch-0123456789abcdef"
SUBMITTED = 1_795_248_000

_ROW = {
    "jobid": "12", "arrayjobid": "12", "arraytaskid": "N/A", "hetjobid": "N/A",
    "hetjoboffset": "N/A", "state": "RUNNING", "exit_code": "0", "restartcnt": "0",
    "submittime": str(SUBMITTED), "starttime": str(SUBMITTED + 1), "endtime": "NONE",
    "userid": "1000", "batchhost": "node1", "reason": "None", "nodelist": "node[1-2]",
    "command": f"/dev/stdin {TOKEN}", "stdout": "/shared/%x-%j.out",
    "stderr": "/shared/%x-%j.out", "name": "train",
    "username": "me",
}  # fmt: skip


def row(**fields: str) -> str:
    """A row of `squeue --Format` of SLURM 22.05, with other values in some fields."""
    cells = _ROW | fields
    padded = (cells[name].encode()[:width].ljust(width) for name, width in COLUMNS.items())
    return b"".join(padded).decode(errors="surrogateescape") + "\n"


_START = {
    "JobIDRaw": "12", "JobID": "12", "State": "COMPLETED", "ExitCode": "0:0",
    "Submit": str(SUBMITTED), "Start": str(SUBMITTED + 1), "End": str(SUBMITTED + 60),
    "UID": "1000", "NodeList": "node[1-2]",
    "SubmitLine": f"sbatch --parsable /dev/stdin {TOKEN}",
}  # fmt: skip


def start(delimiter: str, **fields: str) -> str:
    """A line of sacct with that delimiter."""
    cells = _START | fields
    return delimiter.join(cells[name] for name in ACCOUNTING.split(",")) + "\n"
