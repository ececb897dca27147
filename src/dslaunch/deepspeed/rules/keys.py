"""Unknown keys: those at which DeepSpeed stops, and those that it silently ignores."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from msgspec import Struct

from dslaunch.deepspeed import other_programs, schema
from dslaunch.deepspeed.config_text import Path, path_text
from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.deepspeed.other_programs import KeyAdvice
from dslaunch.deepspeed.schema import Key, by_hand
from dslaunch.lint import Edit, Level, Remark
from dslaunch.lint.rules import rule
from dslaunch.plural import listed

ALIKE = 0.8
"""From this ratio of difflib on, a name counts as a misspelling of the other."""
LONGEST = 100
"""The most characters of a key that is compared with others."""
SAME = 0.9
"""From this ratio on, a misspelling is certain enough for `--fix`."""
WORD = 0.5
"""From this ratio on, a word of a name counts as a misspelling of the other."""
MANY = 4
"""From this number on, unknown keys with the same advice are one finding."""
LISTED = 8
"""The number of keys that such a finding lists."""
REMARKS = ("_", "$", "#", "//", "comment")
"""Prefixes of names that serve as comments in JSON."""
CHECKED = "pydantic's `extra=forbid` (DeepSpeed, runtime/config_utils.py)"
UNCHECKED = "DeepSpeed does not check this section for unknown keys"


@rule(
    "ignored-key",
    "error",
    "an unknown key that DeepSpeed silently ignores",
    source=UNCHECKED,
)
@rule("unknown-key", "error", "an unknown key at which DeepSpeed stops", source=CHECKED)
@rule(
    "removed-key",
    "error",
    "a key that this DeepSpeed version has removed",
    source="DeepSpeed issue 8489, runtime/config.py",
)
@rule("gpt-neox", "info", "a GPT-NeoX config", source="gpt-neox, megatron/neox_arguments")
def unknown(config: LintedConfig) -> Iterator[Remark]:
    """Report keys that this version does not know or has removed."""
    neox = _gpt_neox(config)
    if neox:
        yield _of_gpt_neox(config, neox)
    ignored: dict[str | None, list[tuple[Path, Remark]]] = {}
    for path, _, key in config.walk():
        if str(path[-1]).startswith(REMARKS) and not _stops(config, path):
            continue
        if key is not None and key.type == "removed":
            yield _removed(config, path)
        elif key is None and config.table.general(path) is None and _closed(config, path):
            if neox and len(path) == 1:
                continue  # GPT-NeoX reads them
            remark = _unknown(config, path)
            if len(path) > 1 or remark.level == "error":
                yield remark
            else:
                ignored.setdefault(remark.fix, []).append((path, remark))
    for found in ignored.values():
        yield from _folded(config, found)


def _folded(config: LintedConfig, found: list[tuple[Path, Remark]]) -> Iterator[Remark]:
    """Yield findings with the same advice: one by one, or as one if there are many."""
    if len(found) < MANY:
        yield from (remark for _, remark in found)
        return
    (path, first), names = found[0], [str(path[0]) for path, _ in found]
    message = f"{len(names)} unknown keys are silently ignored: {listed(names, LISTED)}"
    yield config.warning("ignored-key", path, message, fix=first.fix, source=UNCHECKED)


def _gpt_neox(config: LintedConfig) -> list[str]:
    """Return the keys that only GPT-NeoX has; none if this is not a config of GPT-NeoX."""
    data = config.document.data
    known = other_programs.names("gpt_neox")
    names = [str(name) for name in data if other_programs.normalized(name) in known]
    return names if len(names) >= MANY else []


def _of_gpt_neox(config: LintedConfig, names: list[str]) -> Remark:
    own = ", ".join(names[:LISTED])
    message = f"a config of GPT-NeoX; DeepSpeed ignores its own keys ({own})"
    return config.info(
        "gpt-neox",
        (names[0],),
        message,
        fix="start the training with deepy.py of GPT-NeoX",
    )


def _stops(config: LintedConfig, path: Path) -> bool:
    """Return whether DeepSpeed stops at an unknown key of this section."""
    section = config.table.find(path[:-1]) if len(path) > 1 else None
    return section is not None and section.unknown_keys == "forbid"


def _closed(config: LintedConfig, path: Path) -> bool:
    """Return whether the keys of the section are known; some sections may have any keys."""
    if len(path) == 1:
        return True
    section = config.table.general(path[:-1])
    if section in ("optimizer.params", "scheduler.params"):
        return False  # checked by the rules of optimizers
    return bool(section is not None and config.table.names(section))


def _removed(config: LintedConfig, path: Path) -> Remark:
    successor = by_hand("unknown_keys")["replacements"].get(path_text(path))
    fix = f"use {successor}" if successor else "remove it"
    older = [v for v in schema.versions() if _known_in(v, path)]
    until = f" (last supported in {older[-1]})" if older else ""
    message = f"{config.version} has removed this key and stops at it{until}"
    return config.error("removed-key", path, message, fix=fix)


def _known_in(version: str, path: Path) -> Key | None:
    key = schema.load(version).find(path)
    return key if key is not None and key.type != "removed" else None


def _unknown(config: LintedConfig, path: Path) -> Remark:
    meant = _meant(config, path)
    elsewhere = [v for v in schema.versions() if _known_in(v, path)]
    where = f" in {config.version} (known in {elsewhere[-1]})" if elsewhere else ""
    note = by_hand("unknown_keys")["notes"].get(path_text(path))
    about = f": {note}" if note else ""
    if _stops(config, path):
        message = (
            f"unknown key{where}: DeepSpeed stops with `Extra inputs are not permitted`{about}"
        )
        fix = meant.fix if meant else "remove it"
        edits = meant.edits if meant else ()
        return config.error("unknown-key", path, message, fix=fix, edits=edits)
    serious = elsewhere or (meant is not None and meant.serious)
    level: Level = "error" if serious else "warning"
    message = f"unknown key{where}: silently ignored, the default is used{about}"
    if not serious:
        message = f"unknown key: silently ignored{about}"
    fix = meant.fix if meant else "remove it, unless the script reads it"
    edits = meant.edits if meant else ()
    return config.remark(
        "ignored-key", level, path, message, fix=fix, source=UNCHECKED, edits=edits
    )


def is_meant(config: LintedConfig, path: Path) -> bool:
    """Return whether an unknown key is a misspelling of a known one, or from another version."""
    return _unknown(config, path).level == "error"


class Meant(Struct, frozen=True):
    """The advice for an unknown key."""

    fix: str
    edits: tuple[Edit, ...] = ()
    """The change, if it is certain."""
    serious: bool = True
    """Whether a setting of DeepSpeed is lost."""


def _meant(config: LintedConfig, path: Path) -> Meant | None:
    """Return what was meant by an unknown key; names of other programs precede similar names."""
    name = str(path[-1])
    section = config.table.general(path[:-1]) or ""
    successor = by_hand("unknown_keys")["successors"].get(path_text(path))
    if successor:
        return Meant(f"write {successor}", config.rename(path, successor))
    names = [n for n in config.table.names(section) if not n.startswith(("<", "["))]
    plain = other_programs.normalized(name)
    if plain in names and plain != name:
        return Meant(f"did you mean {plain}?", config.rename(path, plain))
    known = other_programs.advice(path, config.table)
    if known:
        return _advised(config, path, known, section)
    similar, ratio = closest(name, names)
    if similar:
        edits = config.rename(path, similar) if ratio >= SAME else ()
        return Meant(f"did you mean {similar}?", edits)
    return _elsewhere(config, path) or _misspelt_foreign(config, path)


def _misspelt_foreign(config: LintedConfig, path: Path) -> Meant | None:
    """Return what was meant by a misspelled name of another program, at the top level."""
    if len(path) > 1:
        return None
    letter = other_programs.normalized(path[0])[:1]
    similar, _ = closest(str(path[0]), other_programs.with_letter(letter))
    known = other_programs.advice((similar,), config.table) if similar else None
    return Meant(known.fix) if known else None


def _advised(config: LintedConfig, path: Path, known: KeyAdvice, section: str) -> Meant:
    """Return the advice, with the edit if only the name of the key differs."""
    beside = known.target is not None and known.target in config.table.names(section)
    edits = config.rename(path, known.target) if beside and known.target else ()
    serious = known.target is not None or len(path) > 1
    return Meant(known.fix, edits, serious)


def _elsewhere(config: LintedConfig, path: Path) -> Meant | None:
    """Return the section to which a key of this name belongs, if there is exactly one."""
    name = path[-1]
    private = tuple(by_hand("unknown_keys")["private_sections"])
    places = [
        key.path
        for key in config.table.keys.values()
        if key.name == name and key.type != "removed" and not key.path.startswith(private)
    ]
    if len(places) != 1:
        return None
    above = places[0].rpartition(".")[0]
    if not above:
        return Meant("move it to the top level", config.lift(path))
    return Meant(f"move it to {above}")


def closest(name: str, names: list[str]) -> tuple[str | None, float]:
    """Return the most similar name and its ratio.

    None below `ALIKE`, or if a word of it is another one: `model_parallel_size` is not
    `data_parallel_size`.
    """
    if len(name) > LONGEST:
        return None, 0.0
    plain = name.lower().replace("-", "_").replace(" ", "_")
    matchers = {n: difflib.SequenceMatcher(None, plain, n.lower()) for n in names}
    # cheap upper bounds of the ratio first: a file may have thousands of unknown keys
    possible = {n: m for n, m in matchers.items() if m.real_quick_ratio() >= ALIKE}
    near = {n: m for n, m in possible.items() if m.quick_ratio() >= ALIKE}
    same = {n: m for n, m in near.items() if _same_words(plain, n.lower())}
    ratio, found = max([(m.ratio(), n) for n, m in same.items()], default=(0.0, ""))
    return (found, ratio) if ratio >= ALIKE else (None, ratio)


def _same_words(name: str, other: str) -> bool:
    """Return whether each word of a name is similar to a word of the other."""
    others = other.split("_")
    return all(
        any(difflib.SequenceMatcher(None, word, each).ratio() >= WORD for each in others)
        for word in name.split("_")
    )
