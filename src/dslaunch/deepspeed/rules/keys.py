"""Keys that DeepSpeed does not know: where it stops, and where it ignores them without a word."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from dslaunch.deepspeed import other_programs, schema
from dslaunch.deepspeed.config_text import Path, path_text
from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.deepspeed.other_programs import KeyAdvice
from dslaunch.deepspeed.schema import Key, by_hand
from dslaunch.lint import Edit, Level, Remark

ALIKE = 0.8
"""From here on (difflib's ratio), two names are taken for one that is misspelt."""
LONGEST = 100
"""Characters of a key that is compared with others."""
SAME = 0.9
"""From here on the one is certainly meant for the other."""
WORD = 0.5
"""From here on, two words of names are taken for one that is misspelt."""
MANY = 4
"""From here on, unknown keys with the same advice are one remark."""
LISTED = 8
"""Of those, so many are named."""
REMARKS = ("_", "$", "#", "//", "comment")
"""How names begin that people use for remarks in JSON."""
CHECKED = "pydantic's `extra=forbid` (DeepSpeed, runtime/config_utils.py)"
UNCHECKED = "DeepSpeed reads this section key by key and never looks at the others"


def unknown(config: LintedConfig) -> Iterator[Remark]:
    """Say which keys this version does not know or has removed."""
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
                continue  # gpt-neox reads them
            remark = _unknown(config, path)
            if len(path) > 1 or remark.level == "error":
                yield remark
            else:
                ignored.setdefault(remark.fix, []).append((path, remark))
    for found in ignored.values():
        yield from _folded(config, found)


def _folded(config: LintedConfig, found: list[tuple[Path, Remark]]) -> Iterator[Remark]:
    """Remarks with the same advice: each by itself, or one where there are many."""
    if len(found) < MANY:
        yield from (remark for _, remark in found)
        return
    (path, first), names = found[0], [str(path[0]) for path, _ in found]
    listed = ", ".join(names[:LISTED]) + (
        f" and {len(names) - LISTED} more" * (len(names) > LISTED)
    )
    message = f"{len(names)} unknown keys are ignored without a word: {listed}"
    yield config.warning("ignored-key", path, message, fix=first.fix, source=UNCHECKED)


def _gpt_neox(config: LintedConfig) -> list[str]:
    """The keys by which this is a config of gpt-neox; none if it is not."""
    data = config.document.data
    known = other_programs.names("gpt_neox")
    names = [str(name) for name in data if other_programs.normalized(name) in known]
    return names if len(names) >= MANY else []


def _of_gpt_neox(config: LintedConfig, names: list[str]) -> Remark:
    listed = ", ".join(names[:LISTED])
    message = f"a config of gpt-neox, which reads its own keys ({listed}); DeepSpeed ignores them"
    return config.info(
        "gpt-neox",
        (names[0],),
        message,
        fix="start it with gpt-neox's deepy.py",
        source="gpt-neox, megatron/neox_arguments",
    )


def _stops(config: LintedConfig, path: Path) -> bool:
    """Whether DeepSpeed stops at an unknown key of this section."""
    section = config.table.find(path[:-1]) if len(path) > 1 else None
    return section is not None and section.unknown_keys == "forbid"


def _closed(config: LintedConfig, path: Path) -> bool:
    """Whether the keys of the section are listed: `{}` may hold anything, such as parameters."""
    if len(path) == 1:
        return True
    section = config.table.general(path[:-1])
    if section in ("optimizer.params", "scheduler.params"):
        return False  # the rules of optimizers know these
    return bool(section is not None and config.table.names(section))


def _removed(config: LintedConfig, path: Path) -> Remark:
    successor = by_hand("unknown_keys")["replacements"].get(path_text(path))
    fix = f"use {successor}" if successor else "take it out"
    older = [v for v in schema.versions() if _known_in(v, path)]
    until = f"; {older[-1]} still had it" if older else ""
    message = f"removed: {config.version} stops at it{until}"
    return config.error(
        "removed-key", path, message, fix=fix, source="DeepSpeed issue 8489, runtime/config.py"
    )


def _known_in(version: str, path: Path) -> Key | None:
    key = schema.load(version).find(path)
    return key if key is not None and key.type != "removed" else None


def _unknown(config: LintedConfig, path: Path) -> Remark:
    meant = _meant(config, path)
    elsewhere = [v for v in schema.versions() if _known_in(v, path)]
    where = f" ({config.version} does not know it; {elsewhere[-1]} does)" if elsewhere else ""
    note = by_hand("unknown_keys")["notes"].get(path_text(path))
    about = f": {note}" if note else ""
    if _stops(config, path):
        message = (
            f"unknown key{where}: DeepSpeed stops with `Extra inputs are not permitted`{about}"
        )
        fix = meant.fix if meant else "take it out"
        edits = meant.edits if meant else ()
        return config.error("unknown-key", path, message, fix=fix, source=CHECKED, edits=edits)
    serious = elsewhere or (meant is not None and meant.serious)
    level: Level = "error" if serious else "warning"
    message = f"unknown key{where}: ignored without a word, so the default is used{about}"
    if not serious:
        message = f"unknown key: ignored without a word{about}"
    fix = meant.fix if meant else "take it out, unless the script reads it"
    edits = meant.edits if meant else ()
    return config.remark(
        "ignored-key", level, path, message, fix=fix, source=UNCHECKED, edits=edits
    )


def is_meant(config: LintedConfig, path: Path) -> bool:
    """Whether an unknown key stands for one of DeepSpeed's: of another version, or misspelt."""
    return _unknown(config, path).level == "error"


@dataclass(frozen=True, slots=True)
class Meant:
    """What to do about an unknown key."""

    fix: str
    edits: tuple[Edit, ...] = ()
    """Where it is certain."""
    serious: bool = True
    """Whether DeepSpeed was to do something, and does not."""


def _meant(config: LintedConfig, path: Path) -> Meant | None:
    """What was meant by an unknown key: known names of other programs before similar letters."""
    name = str(path[-1])
    section = config.table.general(path[:-1]) or ""
    successor = by_hand("unknown_keys")["successors"].get(path_text(path))
    if successor:
        return Meant(f"the key is {successor}", config.rename(path, successor))
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
    """What was meant by a misspelt name of another program's, at the top level."""
    if len(path) > 1:
        return None
    letter = other_programs.normalized(path[0])[:1]
    similar, _ = closest(str(path[0]), other_programs.with_letter(letter))
    known = other_programs.advice((similar,), config.table) if similar else None
    return Meant(known.fix) if known else None


def _advised(config: LintedConfig, path: Path, known: KeyAdvice, section: str) -> Meant:
    """An advice, with the edit where one key only has another name."""
    beside = known.target is not None and known.target in config.table.names(section)
    edits = config.rename(path, known.target) if beside and known.target else ()
    serious = known.target is not None or len(path) > 1
    return Meant(known.fix, edits, serious)


def _elsewhere(config: LintedConfig, path: Path) -> Meant | None:
    """The one section that has a key of this name."""
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
        return Meant("it belongs at the top level", config.lift(path))
    return Meant(f"it belongs in {above}")


def closest(name: str, names: list[str]) -> tuple[str | None, float]:
    """The name that is most like this one, and how much; None below `ALIKE`, or where a word of it
    is another one: `model_parallel_size` is not `data_parallel_size`."""
    if len(name) > LONGEST:
        return None, 0.0
    plain = name.lower().replace("-", "_").replace(" ", "_")
    matchers = {n: difflib.SequenceMatcher(None, plain, n.lower()) for n in names}
    # upper bounds of the ratio that cost little: a file may have thousands of unknown keys
    possible = {n: m for n, m in matchers.items() if m.real_quick_ratio() >= ALIKE}
    near = {n: m for n, m in possible.items() if m.quick_ratio() >= ALIKE}
    same = {n: m for n, m in near.items() if _same_words(plain, n.lower())}
    ratio, found = max([(m.ratio(), n) for n, m in same.items()], default=(0.0, ""))
    return (found, ratio) if ratio >= ALIKE else (None, ratio)


def _same_words(name: str, other: str) -> bool:
    """Whether each word of a name is like one of the other."""
    others = other.split("_")
    return all(
        any(difflib.SequenceMatcher(None, word, each).ratio() >= WORD for each in others)
        for word in name.split("_")
    )


NAMES = ("gpt-neox", "ignored-key", "removed-key", "unknown-key")
RULES = (unknown,)
