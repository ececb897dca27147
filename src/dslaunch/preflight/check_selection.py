"""Which checks are made, and for what. Raises errors that name what is near."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.cluster.model import Cluster
from dslaunch.errors import UsageError
from dslaunch.preflight.check import PURPOSES, TIERS, Check, Tier
from dslaunch.preflight.checks import of_tier
from dslaunch.texts import closest


class CheckSelection(Struct, frozen=True):
    """What the user asks for. A word without a point stands for all of its checks: `gpu`."""

    tier: Tier = "static"
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    purposes: frozenset[str] = frozenset()

    def of(self, checks: Mapping[str, Check], cluster: Cluster) -> dict[str, Check]:
        """The checks of the tier, or those named, less those skipped. Raises UsageError."""
        check_settings(cluster, checks)
        named = _named(checks, self.only, "--only")
        wanted = named or set(of_tier(dict(checks), self.tier))
        left_out = _named(checks, self.skip, "--skip")
        if not named:
            left_out |= _named(checks, cluster.preflight.skip, "the cluster file's `preflight`")
        if not wanted - left_out:
            raise UsageError("--only and --skip select no check")
        return {name: check for name, check in checks.items() if name in wanted - left_out}

    def as_recorded(self, tier: Tier, named: Sequence[str]) -> CheckSelection:
        """The same of a recording: unless checks or a tier are named, those that were asked for
        then. Of others it has no answers."""
        if self.only or self.tier != "static":
            return self
        return replace(self, tier=tier, only=tuple(named))

    def named(self, checks: Mapping[str, Check]) -> frozenset[str]:
        """Return the checks requested by name. Raises UsageError."""
        return frozenset(_named(checks, self.only, "--only"))


def _named(checks: Mapping[str, Check], words: Iterable[str], option: str) -> set[str]:
    found: set[str] = set()
    for word in (w for text in words for w in text.split(",")):
        meant = {name for name in checks if name == word or name.startswith(f"{word}.")}
        if not meant:
            raise unknown(word, checks, option)
        found |= meant
    return found


def unknown(word: str, checks: Iterable[str], option: str) -> UsageError:
    """Return the error for an unknown check."""
    meant = closest(word, checks)
    hint = f"did you mean `{meant}`?" if meant else "run `dslaunch preflight --list` for the names"
    return UsageError(f"{option}: no check is named `{word}`", hint=hint)


def check_settings(cluster: Cluster, checks: Mapping[str, Check]) -> None:
    """Raise UsageError for a check or threshold that the cluster file names and none has."""
    own = cluster.preflight
    for name in (*dict(own.severity), *dict(own.limits)):
        if name not in checks:
            raise unknown(name, checks, "the cluster file's `preflight`")
    for name, limits in own.limits:
        for word in dict(limits):
            if word not in checks[name].limits:
                has = ", ".join(checks[name].limits) or "none"
                raise UsageError(
                    f"`preflight.limits.{name}.{word}`: unknown threshold; known: {has}"
                )


def tier_of(word: str) -> Tier:
    """A tier by its name. Raises UsageError."""
    for tier in TIERS:
        if tier == word:
            return tier
    raise UsageError(f"--tier {word}: unknown tier; known: {', '.join(TIERS)}")


def purposes(words: Sequence[str]) -> frozenset[str]:
    """What a job needs beside. Raises UsageError."""
    for word in words:
        if word not in PURPOSES:
            raise UsageError(f"--for {word}: unknown purpose; known: {', '.join(PURPOSES)}")
    return frozenset(words)
