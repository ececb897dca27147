"""A rule of `dslaunch slurm lint`. Its name is the entry point's."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.plugin import LintedScript, Remark, rule


@rule(
    "acme-account",
    "warning",
    "a job without an account",
    source="Acme's handbook, cluster",
)
def account(linted: LintedScript) -> Iterator[Remark]:
    """Acme's cluster bills jobs by their account."""
    script = linted.script
    if not script.option_text("account"):
        yield script.remark(
            rule="acme-account",
            level="warning",
            place=0,
            message="the job has no account, so no team is billed",
            fix="#SBATCH --account=TEAM",
        )
