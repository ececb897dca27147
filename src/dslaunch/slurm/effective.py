"""What SLURM is asked for in the end: the settings, with what `directives` say in their place.

sbatch takes the last of two equal options, and refuses some that exclude each other. So each
directive of the user's takes the place of our option of that name, and of those that exclude it;
and what depends on an option, such as srun's `--cpus-per-task` or the output's directory, follows
from one value. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from dslaunch.slurm.grammar import SBATCH
from dslaunch.slurm.script import directive_line

if TYPE_CHECKING:
    from dslaunch.cluster.model import Slurm
    from dslaunch.slurm.grammar import Option

EXCLUSIVE = (
    {"mem", "mem-per-cpu", "mem-per-gpu"},
    {"exclusive", "oversubscribe"},  # 23.11
    {"requeue", "no-requeue"},
    {"cpus-per-task", "cpus-per-gpu"},
    {"ntasks-per-node", "ntasks-per-gpu"},
    {"ntasks-per-node", "ntasks-per-tres"},
    {"ntasks-per-node", "ntasks"},
    {"nodelist", "nodefile"},
)
"""Options of which sbatch, by its release, takes one, or of which only one can be meant (SLURM
26.05, src/common/slurm_opt.c, the functions `_validate_*`). For those about GPUs see
`asks_for_gpus`: 26.05 refuses `--gpus-per-node` beside `--gres=gpu`."""
GPU_OPTIONS = frozenset(("gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"))
"""By which the job's GPUs are requested."""
PART_OF_A_NODE = frozenset(("mem-per-cpu", "mem-per-gpu", "cpus-per-gpu"))
"""Whoever asks for so much wants no whole nodes, as with the keys `mem` and `cpus_per_task`."""
UNUSABLE = {
    "wait": "dslaunch follows the job itself",
    "test-only": "use `--check`",
    "wrap": "dslaunch writes the script",
}
"""Options that make sbatch do something else than to submit our script and return."""
PSEUDO = ("error", "chdir", "gres")
"""Options that are rendered though the cluster file has no key for them."""
_GPU_GRES = re.compile(r"(?:gres[/:])?gpu\b|none$", re.IGNORECASE)
_NUMBER = re.compile(r"[1-9][0-9]{0,6}(?:-[1-9][0-9]{0,6})?")


@dataclass(frozen=True, slots=True)
class Given:
    """One option that a directive gives."""

    name: str
    """The long name."""
    value: str | None
    text: str
    """As it is written."""


def given_in(directive: str) -> tuple[Given, ...]:
    """The options of one directive, in order."""
    text, line = directive_line(directive)
    return tuple(_given(text, option) for option in line.options)


def _given(text: str, option: Option) -> Given:
    value = option.text if option.value is not None else None
    return Given(option.name, value, text[option.place : option.end])


def excluded_by(name: str) -> frozenset[str]:
    """The options that stand in the way of one, itself among them."""
    together = (group for group in EXCLUSIVE if name in group)
    return frozenset({name}).union(*together)


def effective(slurm: Slurm) -> Slurm:
    """The settings with what their directives say in their place.

    `directives` keeps what no setting can hold, and `displaced` names the options of ours that
    must not be rendered beside it.
    """
    settled = replace(slurm, directives=())
    kept: list[Verbatim] = []
    for directive in slurm.directives:
        found = given_in(directive)
        if not _whole(directive, found):
            kept.append(Verbatim(directive, found))
            continue
        for one in found:
            settled, done = _settled(settled, one)
            # of two the last wins
            kept = [other for other in kept if not other.gives(one.name)]
            if done:
                kept = [other for other in kept if not other.excluded(one)]
            else:
                kept.append(Verbatim(one.text, (one,)))
    names = {name for each in kept for one in each.options for name in excluded_by(one.name)}
    texts = tuple(each.text for each in kept)
    return replace(settled, directives=texts, displaced=tuple(sorted(names)))


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A directive that is rendered as it is written."""

    text: str
    options: tuple[Given, ...]

    def gives(self, name: str) -> bool:
        """Whether it is that option alone."""
        return [one.name for one in self.options] == [name]

    def excluded(self, one: Given) -> bool:
        """Whether it stands in the way of an option that follows it."""
        return any(self.gives(name) for name in excluded_by(one.name))


def unusable(directives: Iterable[str]) -> Iterator[str]:
    """Why directives are left out."""
    for one in (one for directive in directives for one in given_in(directive)):
        if one.name in UNUSABLE:
            yield f"directive {one.text} is left out: {UNUSABLE[one.name]}"


def _whole(directive: str, found: tuple[Given, ...]) -> bool:
    """Whether a directive has options alone, all of which sbatch knows."""
    _, line = directive_line(directive)
    return bool(found) and not line.strays and all(one.name in SBATCH.names() for one in found)


def asks_for_gpus(one: Given) -> bool:
    """Whether an option says how many GPUs the job gets."""
    if one.name == "gres":
        return any(_GPU_GRES.match(item) for item in (one.value or "").split(","))
    if one.name == "tres-per-task":
        return "gres/gpu" in (one.value or "")
    return one.name in GPU_OPTIONS


Settled = tuple["Slurm", bool]
"""Settings with an option in its place; and whether they say it whole, so that it need not be
rendered as it is."""


def _settled(slurm: Slurm, one: Given) -> Settled:
    if one.name in UNUSABLE:
        return slurm, True
    if asks_for_gpus(one):
        return replace(_without(slurm, {"gres"}), gpus="none"), False
    if one.name in _OF_OUR_OWN:
        return _OF_OUR_OWN[one.name](slurm, one.value)
    if not one.value:
        return slurm, False
    if one.name in PART_OF_A_NODE and slurm.exclusive is None:
        slurm = replace(slurm, exclusive="false")
    slurm = _without(slurm, excluded_by(one.name))
    key = one.name.replace("-", "_")
    if key not in PSEUDO and key not in _keys():
        return slurm, False
    return replace(slurm, options=(*slurm.options, (key, one.value))), True


def _exclusive(slurm: Slurm, value: str | None) -> Settled:
    return replace(slurm, exclusive=value or "true"), True


def _oversubscribe(slurm: Slurm, value: str | None) -> Settled:
    return replace(slurm, exclusive="false"), False


def _no_requeue(slurm: Slurm, value: str | None) -> Settled:
    return replace(slurm, requeue=0), True


def _signal(slurm: Slurm, value: str | None) -> Settled:
    """The script hands on the signals that are for it; others SLURM sends to the ranks itself."""
    from pydantic import ValidationError

    from dslaunch.cluster.slurm_section import SlurmSection

    whose = (value or "").rpartition(":")[0]
    try:
        section = SlurmSection(signal=value if "B" in whose else None)
    except ValidationError:  # a signal that the script cannot hand on
        return replace(slurm, signal=None), False
    return replace(slurm, signal=section.signal), section.signal is not None


def _nodes(slurm: Slurm, value: str | None) -> Settled:
    if value is None or not _NUMBER.fullmatch(value):
        return replace(slurm, nodes=None), False
    return replace(slurm, nodes=value), True


def _job_name(slurm: Slurm, value: str | None) -> Settled:
    return replace(slurm, job_name=value or slurm.job_name), bool(value)


def _output(slurm: Slurm, value: str | None) -> Settled:
    return replace(slurm, output=value or slurm.output), bool(value)


_OF_OUR_OWN = {
    "exclusive": _exclusive,
    "oversubscribe": _oversubscribe,
    "no-requeue": _no_requeue,
    "signal": _signal,
    "nodes": _nodes,
    "job-name": _job_name,
    "output": _output,
}
"""Options that dslaunch itself goes by."""


def _without(slurm: Slurm, names: Iterable[str]) -> Slurm:
    """The settings without those for some options."""
    keys = {name.replace("-", "_") for name in names}
    return replace(slurm, options=tuple(pair for pair in slurm.options if pair[0] not in keys))


def _keys() -> frozenset[str]:
    """The keys of `slurm:` that are handed on to sbatch under their own names."""
    from dslaunch.cluster.model import Slurm
    from dslaunch.cluster.slurm_section import SlurmSection

    return frozenset(SlurmSection.model_fields) - {field.name for field in fields(Slurm)}
