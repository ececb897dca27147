"""What SLURM is asked for in the end: the settings, with what `directives` say in their place.

sbatch takes the last of two equal options, and refuses some that exclude each other. So each
directive of the user's takes the place of our option of that name, and of those that exclude it;
and what depends on an option, such as srun's `--cpus-per-task` or the output's directory, follows
from one value. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace

from pydantic import ValidationError

from dslaunch.cluster.model import Slurm
from dslaunch.cluster.slurm_section import SlurmSection
from dslaunch.slurm.grammar import SBATCH, Option
from dslaunch.slurm.script import directive_line

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
_KEYS = frozenset(SlurmSection.model_fields) - {field.name for field in fields(Slurm)}
"""The keys of `slurm:` that are handed on to sbatch under their own names."""
_GPU_GRES = re.compile(r"(?:gres[/:])?gpu\b|none$", re.IGNORECASE)
_NUMBER = re.compile(r"[1-9][0-9]{0,6}(?:-[1-9][0-9]{0,6})?")


def options_in(directive: str) -> tuple[Option, ...]:
    """Return the options of one directive, in order."""
    return directive_line(directive)[1].options


def excluded_by(name: str) -> frozenset[str]:
    """The options that stand in the way of one, itself among them."""
    together = (group for group in EXCLUSIVE if name in group)
    return frozenset({name}).union(*together)


def apply_directives(slurm: Slurm) -> Slurm:
    """Return the settings with what their directives say in their place.

    `directives` keeps what no setting can hold, and `displaced` names the options of ours that
    must not be rendered beside it.
    """
    settled = replace(slurm, directives=())
    kept: list[Verbatim] = []
    for directive in slurm.directives:
        text, line = directive_line(directive)
        known = all(option.name in SBATCH.names() for option in line.options)
        if not line.options or line.strays or not known:
            kept.append(Verbatim(directive, line.options))
            continue
        for option in line.options:
            settled, done = _settled(settled, option)
            # of two the last wins
            replaced = excluded_by(option.name) if done else {option.name}
            kept = [other for other in kept if not other.gives_one_of(replaced)]
            if not done:
                kept.append(Verbatim(text[option.place : option.end], (option,)))
    names = {name for each in kept for one in each.options for name in excluded_by(one.name)}
    texts = tuple(each.text for each in kept)
    return replace(settled, directives=texts, displaced=tuple(sorted(names)))


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A directive that is rendered as it is written."""

    text: str
    options: tuple[Option, ...]

    def gives_one_of(self, names: Collection[str]) -> bool:
        """Whether it is one of these options alone."""
        return len(self.options) == 1 and self.options[0].name in names


def unusable(directives: Iterable[str]) -> Iterator[str]:
    """Yield why directives are left out."""
    for directive in directives:
        text, line = directive_line(directive)
        for option in line.options:
            if option.name in UNUSABLE:
                written = text[option.place : option.end]
                yield f"directive {written} is left out: {UNUSABLE[option.name]}"


def asks_for_gpus(one: Option) -> bool:
    """Whether an option says how many GPUs the job gets."""
    if one.name == "gres":
        return any(_GPU_GRES.match(item) for item in one.text.split(","))
    if one.name == "tres-per-task":
        return "gres/gpu" in one.text
    return one.name in GPU_OPTIONS


Settled = tuple[Slurm, bool]
"""Settings with an option in its place; and whether they say it whole, so that it need not be
rendered as it is."""


def _settled(slurm: Slurm, one: Option) -> Settled:
    if one.name in UNUSABLE:
        return slurm, True
    if asks_for_gpus(one):
        return replace(_without(slurm, {"gres"}), gpus="none"), False
    if one.name in _OF_OUR_OWN:
        return _OF_OUR_OWN[one.name](slurm, one.text)
    if not one.text:
        return slurm, False
    if one.name in PART_OF_A_NODE and slurm.exclusive is None:
        slurm = replace(slurm, exclusive="false")
    slurm = _without(slurm, excluded_by(one.name))
    key = one.name.replace("-", "_")
    if key not in PSEUDO and key not in _KEYS:
        return slurm, False
    return replace(slurm, options=(*slurm.options, (key, one.text))), True


def _signal(slurm: Slurm, value: str) -> Settled:
    """The script hands on the signals that are for it; others SLURM sends to the ranks itself."""
    is_for_script = "B" in value.rpartition(":")[0]
    try:
        section = SlurmSection(signal=value if is_for_script else None)
    except ValidationError:  # a signal that the script cannot hand on
        return replace(slurm, signal=None), False
    return replace(slurm, signal=section.signal), section.signal is not None


def _nodes(slurm: Slurm, value: str) -> Settled:
    is_number = _NUMBER.fullmatch(value) is not None
    return replace(slurm, nodes=value if is_number else None), is_number


_OF_OUR_OWN: Mapping[str, Callable[[Slurm, str], Settled]] = {
    "exclusive": lambda slurm, value: (replace(slurm, exclusive=value or "true"), True),
    "oversubscribe": lambda slurm, _: (replace(slurm, exclusive="false"), False),
    "no-requeue": lambda slurm, _: (replace(slurm, requeue=0), True),
    "signal": _signal,
    "nodes": _nodes,
    "job-name": lambda slurm, value: (
        replace(slurm, job_name=value or slurm.job_name),
        bool(value),
    ),
    "output": lambda slurm, value: (replace(slurm, output=value or slurm.output), bool(value)),
}
"""Options that dslaunch itself goes by."""


def _without(slurm: Slurm, names: Iterable[str]) -> Slurm:
    """The settings without those for some options."""
    keys = {name.replace("-", "_") for name in names}
    return replace(slurm, options=tuple(pair for pair in slurm.options if pair[0] not in keys))
