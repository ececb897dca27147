"""Whether all nodes have the same code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from dslaunch.preflight.check import Asked, Check, Level, Nodes, Question, Scope, Verdict

Digests = Mapping[str, str | None]


def _ask(scope: Scope) -> Asked:
    if not scope.files:
        return {}
    argument = {"root": scope.root, "paths": [path for path, _ in scope.files]}
    return {"digests": Question("digests", argument, 15)}


def _compare(nodes: Nodes) -> Iterator[Verdict]:
    scope = next(iter(nodes.values())).scope
    if not scope.files:
        yield Verdict("skip", "no script is named", hosts=tuple(nodes))
        return
    said: dict[str, Digests] = {h: a["digests"] for h, a in nodes.items() if a.has("digests")}
    for host in nodes.keys() - said.keys():
        why = nodes[host].why(nodes[host].asked["digests"])
        yield Verdict("unknown", why or "it was not asked", hosts=(host,))
    if said:
        yield from _judged(scope, said)


def _judged(scope: Scope, said: Mapping[str, Digests]) -> Iterator[Verdict]:
    """A file that is nowhere, or nowhere as it is here, is still to be copied, which
    `dslaunch run` does: what divides the nodes is a fault."""
    here = {path: digest for path, digest in scope.files if digest}
    hosts = tuple(said)
    if not any(digest for found in said.values() for digest in found.values()):
        words = f"{_some([path for path, _ in scope.files])} not there"
        level: Level = "info" if here else "fail"
        fix = "" if here else "copy it there, or correct its path"
        yield Verdict(level, words, fix=fix, hosts=hosts)
        return
    wanted = {path: here.get(path) or _most(path, said) for path, _ in scope.files}
    bad = {
        h: [p for p, digest in wanted.items() if found.get(p) != digest]
        for h, found in said.items()
    }
    if all(bad.values()) and len({str(sorted(d.items())) for d in said.values()}) == 1:
        yield Verdict("info", f"{_some(bad[hosts[0]])} not as it is here", hosts=hosts)
        return
    for host, paths in bad.items():
        missing = [path for path in paths if said[host].get(path) is None]
        other = [path for path in paths if path not in missing]
        for words, which in (("missing", missing), ("another version", other)):
            if which:
                expected = "as it is here" if here else "as on the other nodes"
                yield Verdict("fail", f"{_some(which)}: {words}", expected, hosts=(host,))
    fine = tuple(host for host, paths in bad.items() if not paths)
    if fine:
        yield Verdict(
            "pass", "the same code" if not here else "the code is as it is here", hosts=fine
        )


def _most(path: str, said: Mapping[str, Digests]) -> str | None:
    found = [digests.get(path) for digests in said.values() if digests.get(path)]
    return Counter(found).most_common(1)[0][0] if found else None


def _some(paths: list[str]) -> str:
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return ", ".join(paths[:3]) + more


CHECK = Check(
    title="all nodes have the same code",
    tier="gate",
    why="Ranks that run different code wait for each other in different collectives, for ever.",
    fix="copy it again: `dslaunch run` does, unless it is told --no-sync",
    see="sha256sum FILE",
    source="PyTorch, torch.distributed: mismatched collectives hang",
    ask=_ask,
    compare=_compare,
)
