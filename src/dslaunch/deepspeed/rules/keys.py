"""Keys that DeepSpeed does not know: where it stops, and where it ignores them without a word."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from dslaunch.deepspeed import schema
from dslaunch.deepspeed.schema import Key
from dslaunch.deepspeed.subject import Subject
from dslaunch.deepspeed.text import Path, path_text
from dslaunch.lint import Edit, Level, Remark

ALIKE = 0.8
"""From here on (difflib's ratio), two names are taken for one that is misspelt."""
SAME = 0.9
"""From here on the one is certainly meant for the other."""
SUCCESSORS = {
    "aio.thread_count": "intra_op_parallelism",
    "bf16.check_overflow": "check_grad_overflow",
    "activation_checkpointing.partitioned_activations": "partition_activations",
}
"""Names that DeepSpeed's own documentation or comments have, and its code does not."""
GONE = {
    "zero_optimization.grad_hooks": "documented (config-json.md), but no version's code has it",
    "autotuning.start_step": "in a comment only; the keys are start_profile_step and "
    "end_profile_step",
    "autotuning.end_step": "in a comment only; the keys are start_profile_step and "
    "end_profile_step",
}
REMARKS = ("_", "$", "#", "//", "comment")
"""How names begin that people use for remarks in JSON."""
CHECKED = "pydantic's `extra=forbid` (DeepSpeed, runtime/config_utils.py)"
UNCHECKED = "DeepSpeed reads this section key by key and never looks at the others"
REPLACEMENTS = {
    "amp": "fp16, bf16 or torch_autocast",
    "curriculum_learning": "data_efficiency.data_sampling.curriculum_learning",
    "elasticity": "the three batch keys, set directly",
}


def unknown(subject: Subject) -> Iterator[Remark]:
    """Say which keys this version does not know or has removed."""
    for path, _, key in subject.walk():
        if str(path[-1]).startswith(REMARKS) and not _stops(subject, path):
            continue
        if key is not None and key.type == "removed":
            yield _removed(subject, path)
        elif key is None and subject.table.general(path) is None and _closed(subject, path):
            yield _unknown(subject, path)


def _stops(subject: Subject, path: Path) -> bool:
    """Whether DeepSpeed stops at an unknown key of this section."""
    section = subject.table.find(path[:-1]) if len(path) > 1 else None
    return section is not None and section.unknown_keys == "forbid"


def _closed(subject: Subject, path: Path) -> bool:
    """Whether the keys of the section are listed: `{}` may hold anything, such as parameters."""
    if len(path) == 1:
        return True
    section = subject.table.general(path[:-1])
    if section in ("optimizer.params", "scheduler.params"):
        return False  # the rules of optimizers know these
    return bool(section is not None and subject.table.names(section))


def _removed(subject: Subject, path: Path) -> Remark:
    successor = REPLACEMENTS.get(path_text(path))
    fix = f"use {successor}" if successor else "take it out"
    older = [v for v in schema.versions() if _known_in(v, path)]
    until = f"; {older[-1]} still had it" if older else ""
    message = f"removed: {subject.version} stops at it{until}"
    return subject.remark(
        "removed-key", "error", path, message, fix, "DeepSpeed issue 8489, runtime/config.py"
    )


def _known_in(version: str, path: Path) -> Key | None:
    key = schema.load(version).find(path)
    return key if key is not None and key.type != "removed" else None


def _unknown(subject: Subject, path: Path) -> Remark:
    stops = _stops(subject, path)
    fix, edits = _meant(subject, path)
    elsewhere = [v for v in schema.versions() if _known_in(v, path)]
    where = f" ({subject.version} does not know it; {elsewhere[-1]} does)" if elsewhere else ""
    note = GONE.get(path_text(path))
    about = f": {note}" if note else ""
    if stops:
        message = (
            f"unknown key{where}: DeepSpeed stops with `Extra inputs are not permitted`{about}"
        )
        return subject.remark("unknown-key", "error", path, message, fix, CHECKED, edits)
    level: Level = "error" if fix or elsewhere else "warning"
    message = f"unknown key{where}: ignored without a word, so the default is used{about}"
    return subject.remark("ignored-key", level, path, message, fix, UNCHECKED, edits)


def _meant(subject: Subject, path: Path) -> tuple[str | None, tuple[Edit, ...]]:
    """What to do about an unknown key, and the edit where that is certain."""
    name = str(path[-1])
    section = subject.table.general(path[:-1]) or ""
    successor = SUCCESSORS.get(path_text(path))
    if successor:
        return f"the key is {successor}", subject.rename(path, successor)
    names = [n for n in subject.table.names(section) if not n.startswith(("<", "["))]
    similar, ratio = closest(name, names)
    if similar:
        edits = subject.rename(path, similar) if ratio >= SAME else ()
        return f"did you mean {similar}?", edits
    places = [k.path for k in subject.table.keys.values() if k.name == name and k.type != "removed"]
    if len(places) == 1:
        above = places[0].rpartition(".")[0]
        if not above:
            return "it belongs at the top level", subject.lift(path)
        return f"it belongs in {above}", ()
    return None, ()


def closest(name: str, names: list[str]) -> tuple[str | None, float]:
    """The name that is most like this one, and how much; None below `ALIKE`."""
    plain = name.lower().replace("-", "_").replace(" ", "_")
    rated = [(difflib.SequenceMatcher(None, plain, n.lower()).ratio(), n) for n in names]
    ratio, found = max(rated, default=(0.0, ""))
    return (found, ratio) if ratio >= ALIKE else (None, ratio)


RULES = (unknown,)
