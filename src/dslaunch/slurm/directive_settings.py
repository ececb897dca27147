"""The settings of a job after its `directives` have replaced some of them. Pure.

sbatch uses the last of two equal options, and refuses some that exclude each other. So each
directive of the user replaces our option of that name, and those that exclude it. What depends on
an option, such as srun's `--cpus-per-task` or the directory of the output, uses the same value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.cluster.model import Slurm
from dslaunch.cluster.slurm_section import SlurmSection
from dslaunch.notes import Note, NoteCode, note
from dslaunch.slurm.directive_lines import directive_line
from dslaunch.slurm.grammar import SBATCH, Option

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
"""Options that exclude each other, in some release of sbatch or by their meaning (SLURM 26.05,
src/common/slurm_opt.c, the functions `_validate_*`). For those of GPUs see `requests_gpus`: 26.05
refuses `--gpus-per-node` with `--gres=gpu`."""
GPU_OPTIONS = frozenset(("gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"))
"""Options that request the GPUs of the job."""
PART_OF_A_NODE = frozenset(("mem-per-cpu", "mem-per-gpu", "cpus-per-gpu"))
"""Options that request a part of a node, like the keys `mem` and `cpus_per_task`."""


class DirectiveNote(NoteCode):
    """Why a directive is not used."""

    WAIT = "wait", "directive {option} is ignored: dslaunch follows the job itself"
    TEST_ONLY = "test-only", "directive {option} is ignored: use `--check`"
    WRAP = "wrap", "directive {option} is ignored: dslaunch writes the script"


UNUSABLE = {
    "wait": DirectiveNote.WAIT,
    "test-only": DirectiveNote.TEST_ONLY,
    "wrap": DirectiveNote.WRAP,
}
"""Options with which sbatch does not just submit a script and return."""
PSEUDO = ("error", "chdir", "gres")
"""Options that are rendered without a key in the cluster file."""
_KEYS = frozenset(SlurmSection.KEYS) - set(Slurm.__struct_fields__)
"""The keys of `slurm:` that are passed to sbatch under their own names."""
_GPU_GRES = re.compile(r"(?:gres[/:])?gpu\b|none$", re.IGNORECASE)
_NUMBER = re.compile(r"[1-9][0-9]{0,6}(?:-[1-9][0-9]{0,6})?")


def options_in(directive: str) -> tuple[Option, ...]:
    """Return the options of one directive, in order."""
    return directive_line(directive)[1].options


def excluded_by(name: str) -> frozenset[str]:
    """Return the options that exclude an option, including itself."""
    together = (group for group in EXCLUSIVE if name in group)
    return frozenset({name}).union(*together)


def apply_directives(slurm: Slurm) -> Slurm:
    """Return the settings with their directives applied.

    `directives` keeps what no setting can express, and `displaced` has the names of our options
    that must not be rendered with it.
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
            # of two equal options, the last is used
            replaced = excluded_by(option.name) if done else {option.name}
            kept = [other for other in kept if not other.gives_one_of(replaced)]
            if not done:
                kept.append(Verbatim(text[option.place : option.end], (option,)))
    names = {name for each in kept for one in each.options for name in excluded_by(one.name)}
    texts = tuple(each.text for each in kept)
    return replace(settled, directives=texts, displaced=tuple(sorted(names)))


class Verbatim(Struct, frozen=True):
    """A directive that is rendered unchanged."""

    text: str
    options: tuple[Option, ...]

    def gives_one_of(self, names: Collection[str]) -> bool:
        """Return whether it is one option, and that is one of these."""
        return len(self.options) == 1 and self.options[0].name in names


def unusable(directives: Iterable[str]) -> Iterator[Note]:
    """Yield a note for each directive that is not used."""
    for directive in directives:
        text, line = directive_line(directive)
        for option in line.options:
            if option.name in UNUSABLE:
                written = text[option.place : option.end]
                yield note(UNUSABLE[option.name], option=written)


def requests_gpus(one: Option) -> bool:
    """Return whether an option requests GPUs."""
    if one.name == "gres":
        return any(_GPU_GRES.match(item) for item in one.text.split(","))
    if one.name == "tres-per-task":
        return "gres/gpu" in one.text
    return one.name in GPU_OPTIONS


Settled = tuple[Slurm, bool]
"""Settings with an option applied; and whether they express it completely, so that it is not
rendered unchanged."""


def _settled(slurm: Slurm, one: Option) -> Settled:
    if one.name in UNUSABLE:
        return slurm, True
    if requests_gpus(one):
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
    """Apply `--signal`: the script forwards signals that it gets; SLURM sends others to the
    ranks."""
    is_for_script = "B" in value.rpartition(":")[0]
    section = SlurmSection.read({"signal": value}) if is_for_script else None
    # None: also for a signal that the script cannot forward
    signal = section.signal if section is not None else None
    return replace(slurm, signal=signal), signal is not None


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
"""Options that dslaunch itself uses."""


def _without(slurm: Slurm, names: Iterable[str]) -> Slurm:
    """Return the settings without those for some options."""
    keys = {name.replace("-", "_") for name in names}
    return replace(slurm, options=tuple(pair for pair in slurm.options if pair[0] not in keys))
