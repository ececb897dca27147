"""Shell completion of values: hosts, runs, checks, launchers, formats, config keys and tiers.

A completion never fails and prints nothing: without a usable cluster file there are no hosts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from dslaunch.cli.signatures import parameters_of
from dslaunch.errors import DslaunchError

Values = Callable[[Any], Iterable[str]]
"""The values for a parameter; its argument is the parser's context of the command line."""
WITH_SCRIPT = ("run", "rehearse", "slurm", "render")
"""The commands whose words end with a script and its arguments."""
MOST = 1000
"""Values that are offered at most."""
OWN_WORDS = "dslaunch.own_words"
"""Where the parser's context keeps the words before the script: a format, the cluster file."""


def with_completion(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command, with completion for the parameters that have one."""
    for parameter in parameters_of(command):
        values = VALUES.get(parameter.name)
        if values is not None:
            get_args(parameter.annotation)[1].autocompletion = _safe(values)
    return command


_HARMLESS = re.compile(r"[A-Za-z0-9_.,:=/@+-]+")
"""Words that no shell expands. Others, such as labels in a cluster file of another author, are not
offered: zsh evaluates candidates, and bash inserts them unchanged."""


def _safe(values: Values) -> Callable[[Any], list[str]]:
    def complete(ctx: Any) -> list[str]:
        if after_script(ctx):
            return []
        try:
            found = list(dict.fromkeys(values(ctx)))
        except (DslaunchError, OSError, ValueError):
            return []
        return [word for word in found if _HARMLESS.fullmatch(word)][:MOST]

    # typer finds out by the annotation what to pass, and it must be evaluated
    complete.__annotations__ = {"ctx": _context_type(), "return": list[str]}
    return complete


def after_script(ctx: Any) -> bool:
    """Return whether what is completed belongs to the script."""
    return ctx.info_name in WITH_SCRIPT and bool(ctx.params.get("words"))


def _context_type() -> Any:
    import typer

    return typer.Context


def _cluster_file(ctx: Any) -> Path | None:
    """Return the cluster file that the command line names so far; None: the default."""
    words = [str(word) for word in ctx.meta.get(OWN_WORDS, ())]
    named = [ctx.params.get(name) for name in ("cluster_option", "cluster", "file")]
    given = [*filter(None, named), *words[-1:]]
    return Path(given[0]) if given else None


def _hosts(ctx: Any) -> Iterable[str]:
    from dslaunch.cli.options import open_cluster

    return [node.host for node in open_cluster(_cluster_file(ctx)).nodes]


def _labels(ctx: Any) -> Iterable[str]:
    from dslaunch.cli.options import open_cluster

    nodes = open_cluster(_cluster_file(ctx)).nodes
    return [f"{name}={value}" for node in nodes for name, value in node.labels]


def _runs(ctx: Any) -> Iterable[str]:
    from dslaunch.run.local_runs import LATEST, local_runs

    started = [run.run for run in local_runs(os.environ).started]
    return [LATEST, *reversed(started)] if started else []


def _hosts_of_run(ctx: Any) -> Iterable[str]:
    from dslaunch.run.local_runs import LATEST, local_runs
    from dslaunch.run.run_selection import every_record, newest

    name = str(ctx.params.get("run") or LATEST)
    pick = newest(1) if name == LATEST else every_record
    found = local_runs(os.environ, pick).find(name)
    return found.record.hosts if found is not None else []


def _states(ctx: Any) -> Iterable[str]:
    from dslaunch.run.run_state import State

    return [state.value for state in State]


def _scripts(ctx: Any) -> Iterable[str]:
    from dslaunch.run.local_runs import local_runs

    return sorted({Path(run.record.program).name for run in local_runs(os.environ).started})


def _cluster_names(ctx: Any) -> Iterable[str]:
    from dslaunch.run.local_runs import local_runs

    return sorted({run.record.cluster for run in local_runs(os.environ).started})


def _launchers(ctx: Any) -> Iterable[str]:
    from dslaunch.registry import LAUNCHERS

    return LAUNCHERS.every_name()


def _transports(ctx: Any) -> Iterable[str]:
    from dslaunch.registry import TRANSPORTS

    return TRANSPORTS.every_name()


def _checks(ctx: Any) -> Iterable[str]:
    from dslaunch.preflight import checks

    names = sorted(checks.load())
    groups = dict.fromkeys(name.partition(".")[0] for name in names)
    return [*groups, *names]


def _check_names(ctx: Any) -> Iterable[str]:
    from dslaunch.preflight import checks

    return sorted(checks.load())


def _tiers(ctx: Any) -> Iterable[str]:
    from dslaunch.preflight.check import TIERS

    return TIERS


def _purposes(ctx: Any) -> Iterable[str]:
    from dslaunch.preflight.check import PURPOSES

    return PURPOSES


def _config_keys(ctx: Any) -> Iterable[str]:
    from dslaunch.deepspeed.schema import table

    return table(ctx.params.get("version")).keys


def _versions(ctx: Any) -> Iterable[str]:
    from dslaunch.deepspeed import schema

    return map(str, schema.versions())


def _examples(ctx: Any) -> Iterable[str]:
    from dslaunch.deepspeed.initial_config import library

    return [example.name for example in library()]


def _slurm_keys(ctx: Any) -> Iterable[str]:
    from dslaunch.cluster.slurm_section import SlurmSection

    return [f"{name}=" for name in SlurmSection.KEYS]


def _signals(ctx: Any) -> Iterable[str]:
    from dslaunch.run.rank_signals import signal_names

    return signal_names()


def _first_words(ctx: Any) -> Iterable[str]:
    """Return what may come first: a format, a command after another; files are the shell's."""
    from dslaunch.cli.commands import NAMES

    command = str(ctx.info_name)
    given = [*ctx.meta.get(OWN_WORDS, ()), *(ctx.params.get("words") or ())]
    if command == "help":
        words = [name.split() for name in NAMES]
        return [name[len(given)] for name in words if name[: len(given)] == given != name]
    if command == "render" and not given:
        from dslaunch.render.formats import every_name

        return every_name()
    return ["lint"] if command == "slurm" and not given else []


VALUES: Mapping[str, Values] = {
    "include": _hosts,
    "exclude": _hosts,
    "on": _hosts,
    "label": _labels,
    "run": _runs,
    "other": _runs,
    "node": _hosts_of_run,
    "state": _states,
    "script": _scripts,
    "cluster_name": _cluster_names,
    "tail": lambda ctx: ("20", "100", "all"),
    "launcher": _launchers,
    "transport": _transports,
    "only": _checks,
    "skip": _checks,
    "explain": _check_names,
    "tier": _tiers,
    "purpose": _purposes,
    "key": _config_keys,
    "version": _versions,
    "name": _examples,
    "setting": _slurm_keys,
    "signal_name": _signals,
    "words": _first_words,
}
"""The values by the name of the parameter, which is the same in all commands."""


def without_own_words(ctx: Any, args: list[str]) -> list[str]:
    """Return a command line that is being completed, without the words before the script.

    The parser stops at the first word, so that options after the cluster file would be parsed as
    the script's. The words are kept in the context.
    """
    from dslaunch.cli.positional import FILE_ENDINGS

    name = str(ctx.info_name)
    if name not in WITH_SCRIPT:
        return args
    own = [word for word in args[:2] if word.endswith(FILE_ENDINGS)][:1]
    if name == "render" and args and not args[0].startswith("-"):
        own = list(dict.fromkeys([args[0], *own]))
    ctx.meta[OWN_WORDS] = own
    rest = list(args)
    for word in own:
        rest.remove(word)
    return rest
