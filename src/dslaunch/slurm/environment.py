"""The environment of sbatch: what it is told by variables, and what the job inherits. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from dslaunch.cluster.sbatch_options import OTHER_NAMES
from dslaunch.run.secret import Secret
from dslaunch.slurm.directive_settings import (
    GPU_OPTIONS,
    asks_for_gpus,
    excluded_by,
    options_in,
)
from dslaunch.slurm.grammar import Option
from dslaunch.transport.transports.srun import CONFIGURING

BLOCKING = "SBATCH_WAIT"
"""With it sbatch returns when the job has ended; dslaunch follows the job itself."""
NOT_OURS = ("SLURM_", "SLURMD_", "SRUN_", "SALLOC_")
_DIRECTIVE = re.compile(r"(?m)^#SBATCH[ \t]+(.*)$")


def option_of(variable: str) -> str:
    """The option that a variable `SBATCH_...` gives."""
    name = variable.removeprefix("SBATCH_").lower().replace("_", "-")
    return OTHER_NAMES.get(name, name)


def submit_environment(
    environ: Mapping[str, str], script: str, secrets: Mapping[str, Secret]
) -> dict[str, str]:
    """The environment of sbatch, which the job inherits: the caller's, with the secrets.

    Without what an allocation that we are in left there (SLURM_*: srun would take its sizes),
    and without what would silently win over the script's own `#SBATCH` lines, or which sbatch
    refuses beside them (sbatch(1), "INPUT ENVIRONMENT VARIABLES").
    """
    said = _said_by(script)
    kept = {
        name: value
        for name, value in environ.items()
        if name in CONFIGURING or not (name.startswith(NOT_OURS) or _beaten(name, said))
    }
    return kept | {name: secret.reveal() for name, secret in secrets.items()}


def variables_used(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables by which an environment for sbatch gives it options, by the option."""
    return {option_of(name): name for name in environ if name.startswith("SBATCH_")}


def _beaten(name: str, said: frozenset[str]) -> bool:
    """Whether a variable gives sbatch what it must not be given."""
    return name == BLOCKING or (name.startswith("SBATCH_") and option_of(name) in said)


def _said_by(script: str) -> frozenset[str]:
    """The options that a script gives, and those that exclude them."""
    options = _options_of(script)
    names = {name for option in options for name in excluded_by(option.name)}
    if any(asks_for_gpus(option) for option in options):
        names |= GPU_OPTIONS
    return frozenset(names)


def _options_of(script: str) -> list[Option]:
    return [option for text in _DIRECTIVE.findall(script) for option in options_in(text)]


def withheld(names: Iterable[str], script: str, environ: Mapping[str, str]) -> str | None:
    """What keeps variables of sbatch's environment from the job: an option, or a variable of
    sbatch's; None: nothing does."""
    found = {option.name: option.text for option in _options_of(script)}
    if "export-file" in found:
        return f"--export-file={found['export-file']}"
    if "export" in found:
        return None if _exports(names, found["export"]) else f"--export={found['export']}"
    value = environ.get("SBATCH_EXPORT", "ALL")
    return None if _exports(names, value) else f"SBATCH_EXPORT={value} of your environment"


def _exports(names: Iterable[str], value: str) -> bool:
    """Whether `--export=VALUE` hands on variables. A list with `ALL` in it exports all (22.05,
    sbatch.c and src/common/env.c, `env_merge_filter`)."""
    items = value.split(",")
    return any(item.upper() == "ALL" for item in items) or set(names) <= set(items)
