"""The environment of sbatch: its options by variables, and what the job inherits. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from dslaunch.cluster.sbatch_options import OTHER_NAMES
from dslaunch.run.secret import Secret
from dslaunch.slurm.directive_settings import (
    GPU_OPTIONS,
    excluded_by,
    options_in,
    requests_gpus,
)
from dslaunch.slurm.grammar import Option
from dslaunch.transport.transports.srun import CONFIGURING

BLOCKING = "SBATCH_WAIT"
"""With it sbatch waits for the end of the job; dslaunch follows the job itself."""
NOT_OURS = ("SLURM_", "SLURMD_", "SRUN_", "SALLOC_")
_DIRECTIVE = re.compile(r"(?m)^#SBATCH[ \t]+(.*)$")


def option_of(variable: str) -> str:
    """Return the option that a variable `SBATCH_...` sets."""
    name = variable.removeprefix("SBATCH_").lower().replace("_", "-")
    return OTHER_NAMES.get(name, name)


def submit_environment(
    environ: Mapping[str, str], script: str, secrets: Mapping[str, Secret]
) -> dict[str, str]:
    """Return the environment of sbatch, which the job inherits: that of the caller, with the
    secrets.

    Without the variables of a current allocation (SLURM_*, whose sizes srun would use), and without
    variables that would silently override the script's `#SBATCH` lines, or that sbatch refuses
    with them (sbatch(1), "INPUT ENVIRONMENT VARIABLES").
    """
    options = _set_by(script)
    kept = {
        name: value
        for name, value in environ.items()
        if name in CONFIGURING or not (name.startswith(NOT_OURS) or _is_overridden(name, options))
    }
    return kept | {name: secret.reveal() for name, secret in secrets.items()}


def variables_used(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of sbatch's environment that set options, by the option."""
    return {option_of(name): name for name in environ if name.startswith("SBATCH_")}


def _is_overridden(name: str, options: frozenset[str]) -> bool:
    """Return whether a variable sets an option that the script sets."""
    return name == BLOCKING or (name.startswith("SBATCH_") and option_of(name) in options)


def _set_by(script: str) -> frozenset[str]:
    """Return the options that a script sets, and those that exclude them."""
    options = _options_of(script)
    names = {name for option in options for name in excluded_by(option.name)}
    if any(requests_gpus(option) for option in options):
        names |= GPU_OPTIONS
    return frozenset(names)


def _options_of(script: str) -> list[Option]:
    return [option for text in _DIRECTIVE.findall(script) for option in options_in(text)]


class WithheldSecrets(Struct, frozen=True):
    """Secrets that sbatch does not pass to the job, and the setting that is the reason."""

    names: tuple[str, ...]
    setting: str
    """An option of sbatch, or the variable SBATCH_EXPORT."""
    value: str

    def __str__(self) -> str:
        names = ", ".join(self.names)
        return (
            f"{self.setting}={self.value} withholds secrets from the job: {names}; remove it, or "
            "add ALL to the list"
        )


def withheld_secrets(
    names: Iterable[str], script: str, environ: Mapping[str, str]
) -> WithheldSecrets | None:
    """Return the secrets in sbatch's environment that a script or SBATCH_EXPORT withholds from the
    job; None: there are none."""
    secrets = tuple(names)
    if not secrets:
        return None
    options = {option.name: option.text for option in _options_of(script)}
    if "export-file" in options:
        return WithheldSecrets(secrets, "--export-file", options["export-file"])
    setting, value = "SBATCH_EXPORT", environ.get("SBATCH_EXPORT", "ALL")
    if "export" in options:
        setting, value = "--export", options["export"]
    if _exports(secrets, value):
        return None
    return WithheldSecrets(secrets, setting, value)


def _exports(names: Iterable[str], value: str) -> bool:
    """Return whether `--export=VALUE` exports variables. A list with `ALL` exports all (22.05,
    sbatch.c and src/common/env.c, `env_merge_filter`)."""
    items = value.split(",")
    return any(item.upper() == "ALL" for item in items) or set(names) <= set(items)
