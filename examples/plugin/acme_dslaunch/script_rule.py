"""A rule of `dslaunch slurm lint`. Its name is the entry point's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dslaunch.lint import Remark
    from dslaunch.slurm.training_commands import Reading


def account(reading: Reading) -> Iterator[Remark]:
    """Acme's cluster bills jobs by their account."""
    script = reading.script
    if not script.asked("account"):
        yield script.remark(
            "acme-account",
            "warning",
            0,
            "the job has no account, and is billed to nobody",
            fix="#SBATCH --account=TEAM",
            source="Acme's handbook, cluster",
        )
