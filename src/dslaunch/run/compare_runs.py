"""What differs between two runs, by their records. Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct, to_builtins

from dslaunch.cluster.nodeset import fold
from dslaunch.json_text import json_literal
from dslaunch.run.recorded_run import PlannedDecision, RecordedRun
from dslaunch.run.run_inputs import RecordedConfig
from dslaunch.run.secret_names import MASK, is_secret_name, masked_args, masked_value
from dslaunch.terminal import cut

MOST_CHANGES = 200
"""Changes of one topic that are listed."""
LONGEST = 500
"""Characters of a value that are kept."""
SHORT_DIGEST = 12
"""Characters of a SHA-256 that are shown."""


class Topic(StrEnum):
    """What two runs are compared by, in the order in which it is shown."""

    OUTCOME = "outcome"
    PROGRAM = "program"
    ARGUMENTS = "arguments"
    CODE = "code"
    ENVIRONMENT = "environment"
    CONFIG = "deepspeed-config"
    VERSIONS = "versions"
    NODES = "nodes"
    CLUSTER = "cluster-file"
    DECISIONS = "decisions"
    BATCH_SCRIPT = "batch-script"


class Change(Struct, frozen=True):
    """One difference. None: the run does not have it."""

    name: str
    first: str | None
    second: str | None
    secret: bool = False
    """Whether the values are not shown."""


class TopicChanges(Struct, frozen=True):
    """The differences of one topic."""

    topic: Topic
    changes: tuple[Change, ...]
    more: int = 0
    """Changes that are not listed."""


class RunComparison(Struct, frozen=True):
    """What differs between two runs."""

    first: str
    second: str
    topics: tuple[TopicChanges, ...]
    """Those with differences."""
    not_compared: tuple[Topic, ...] = ()
    """What only one of the runs has recorded, or neither."""

    @property
    def is_equal(self) -> bool:
        """Return whether no difference was found."""
        return not self.topics

    def as_data(self) -> dict[str, Any]:
        """Return all fields, for JSON."""
        fields: dict[str, Any] = to_builtins(self)
        return fields | {"equal": self.is_equal}


Values = Mapping[str, str]


def compare_runs(first: RecordedRun, second: RecordedRun) -> RunComparison:
    """Return what differs between two runs."""
    topics: list[TopicChanges] = []
    not_compared: list[Topic] = []
    for topic, read in _READ.items():
        one, other = read(first), read(second)
        if one is None or other is None:
            not_compared.append(topic)
            continue
        changes = list(_masked(topic, changed_values(one, other)))
        if changes:
            topics.append(_topic(topic, changes))
    if first.script is not None and second.script is not None:
        changes = list(_script_changes(first.script, second.script))
        topics += [_topic(Topic.BATCH_SCRIPT, changes)] if changes else []
    return RunComparison(first.run, second.run, tuple(topics), tuple(not_compared))


def _topic(topic: Topic, changes: Sequence[Change]) -> TopicChanges:
    more = max(len(changes) - MOST_CHANGES, 0)
    return TopicChanges(topic, tuple(map(_shortened, changes[:MOST_CHANGES])), more)


def _shortened(change: Change) -> Change:
    return Change(
        name=cut(change.name, LONGEST),
        first=None if change.first is None else cut(change.first, LONGEST),
        second=None if change.second is None else cut(change.second, LONGEST),
        secret=change.secret,
    )


def changed_values(first: Values, second: Values) -> Iterator[Change]:
    """Yield the names whose values differ: those of the first in its order, then new ones."""
    for name in dict.fromkeys((*first, *second)):
        one, other = first.get(name), second.get(name)
        if one != other:
            yield Change(name, one, other)


def _masked(topic: Topic, changes: Iterable[Change]) -> Iterator[Change]:
    """Yield the changes without values of secrets."""
    for change in changes:
        if topic in _WITH_NAMES and is_secret_name(change.name):
            first, second = (_hidden(text) for text in (change.first, change.second))
            yield Change(change.name, first, second, secret=True)
        else:
            first, second = (_value(change.name, text) for text in (change.first, change.second))
            yield Change(change.name, first, second)


def _hidden(text: str | None) -> str | None:
    return None if text is None else MASK


def _value(name: str, text: str | None) -> str | None:
    return None if text is None else masked_value(name, text)


# ---------------------------------------------------------------- what is compared


def _outcome(run: RecordedRun) -> Values:
    found = run.outcome
    if found is None:
        return {"result": "not recorded"}
    values = {"result": found.status, "exit code": str(found.exit_code), "why": found.message}
    return values | ({"reason": found.what} if found.what else {})


def _program(run: RecordedRun) -> Values:
    return {"program": run.record.program, "launcher": run.record.launcher}


def _arguments(run: RecordedRun) -> Values | None:
    """Return the arguments of the program and of its launcher, and where it was started."""
    if run.inputs is None:
        return None
    values = options_of(run.inputs.args)
    values |= options_of(run.inputs.launcher_args, "launcher ")
    return values | {"directory": run.inputs.directory}


def options_of(args: Sequence[str], prefix: str = "") -> dict[str, str]:
    """Return arguments by their names: options by theirs, others by their position.

    The word after an option counts as its value unless it is an option too. The values of an
    option that occurs several times are joined.
    """
    found: dict[str, list[str]] = {}
    position, option = 0, ""
    for arg in args:
        is_number = arg[1:].replace(".", "", 1).isdecimal()
        if arg.startswith("-") and len(arg) > 1 and not is_number:
            option, equals, value = arg.partition("=")
            found.setdefault(prefix + option, []).extend([value] if equals else [])
            option = "" if equals else option
        elif option:
            found[prefix + option].append(arg)
            option = ""
        else:
            position += 1
            found[f"{prefix}argument {position}"] = [arg]
    return {name: " ".join(values) for name, values in found.items()}


def _code(run: RecordedRun) -> Values | None:
    if run.inputs is None or not run.inputs.files:
        return None
    return {path: digest[:SHORT_DIGEST] for path, digest in run.inputs.files}


def _environment(run: RecordedRun) -> Values | None:
    """Return the variables of the job; of those that differ from node to node each value with its
    nodes."""
    secrets = {name: f"secret, {file or 'of the caller'}" for name, file in _secrets(run)}
    if run.plan is not None:
        by_node = [(node.host, dict(node.env)) for node in run.plan.nodes]
        values = folded_values(by_node)
    elif run.inputs is not None:
        values = dict(run.inputs.env)
    else:
        return None
    return {name: value for name, value in (values | secrets).items() if name not in _OWN_VARIABLES}


_OWN_VARIABLES = ("DSLAUNCH_RESTART_COUNT",)
"""Variables that dslaunch sets for every attempt."""


def _secrets(run: RecordedRun) -> tuple[tuple[str, str], ...]:
    return () if run.inputs is None else run.inputs.secrets


def folded_values(by_node: Sequence[tuple[str, Mapping[str, str]]]) -> dict[str, str]:
    """Return one text per name: the value of all nodes, or each value with its nodes."""
    hosts_of: dict[str, dict[str, list[str]]] = {}
    for host, values in by_node:
        for name, value in values.items():
            hosts_of.setdefault(name, {}).setdefault(value, []).append(host)
    return {name: _with_hosts(values, len(by_node)) for name, values in hosts_of.items()}


def _with_hosts(hosts_of: Mapping[str, Sequence[str]], count: int) -> str:
    if len(hosts_of) == 1 and sum(map(len, hosts_of.values())) == count:
        return next(iter(hosts_of))
    return "; ".join(f"{value} on {fold(hosts)}" for value, hosts in hosts_of.items())


def _config(run: RecordedRun) -> Values | None:
    """Return the keys of the DeepSpeed configs as the nodes got them; the path of the only config
    is a value, so that a copy of it in another place is not all different."""
    if run.inputs is None:
        return None
    configs = run.inputs.configs
    if len(configs) == 1:
        return {"file": configs[0].path} | flat(config_data(configs[0]))
    values: dict[str, str] = {}
    for config in configs:
        values |= {f"{config.path}: {k}": v for k, v in flat(config_data(config)).items()}
    return values


def config_data(config: RecordedConfig, *, given: bool = False) -> Any:
    """Return a recorded config as data: as the nodes got it, or as it was `given`; a text that is
    no JSON as it is."""
    text = config.given if given or config.used is None else config.used
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def config_changes(config: RecordedConfig) -> tuple[Change, ...]:
    """Return what dslaunch has changed in a config."""
    given = flat(config_data(config, given=True))
    return tuple(changed_values(given, flat(config_data(config))))


def flat(data: Any, path: str = "") -> dict[str, str]:
    """Return JSON data as values by their paths, such as `zero_optimization.stage`."""
    found: dict[str, str] = {}
    pending: list[tuple[str, Any]] = [(path, data)]
    while pending:  # no recursion: hostile data may be nested deeply
        at, value = pending.pop()
        if isinstance(value, dict) and value:
            inner = [(f"{at}.{key}" if at else str(key), item) for key, item in value.items()]
            pending += reversed(inner)
        elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
            pending += reversed([(f"{at}[{i}]", item) for i, item in enumerate(value)])
        else:
            found[at] = value if isinstance(value, str) else json_literal(value)
    return found


def _versions(run: RecordedRun) -> Values | None:
    if run.inputs is None or not run.inputs.versions:
        return None
    groups = run.inputs.versions
    return folded_values([(host, group.versions) for group in groups for host in group.hosts])


def _nodes(run: RecordedRun) -> Values:
    hosts = run.record.hosts
    values = {"nodes": f"{len(hosts)}: {fold(hosts)}", "ranks": str(run.record.world_size)}
    if run.plan is not None:
        slots = [(n.host, {"slots": ",".join(map(str, n.slots))}) for n in run.plan.nodes]
        values |= folded_values(slots)
    if hosts:
        values["first node"] = hosts[0]
    return values


_NOT_OF_CLUSTER = ("env", "job", "launcher", "launcher_args", "nodes", "source")
"""Keys that are compared under another topic, or node by node."""


def _cluster(run: RecordedRun) -> Values | None:
    """Return the settings of the cluster file; those of nodes by their names, with the nodes."""
    if run.cluster is None:
        return None
    rest = {key: value for key, value in run.cluster.items() if key not in _NOT_OF_CLUSTER}
    nodes = run.cluster.get("nodes")
    by_node = [
        (str(node.get("host")), _node_settings(node))
        for node in (nodes if isinstance(nodes, list) else [])
        if isinstance(node, dict)
    ]
    names = {"nodes.host": fold(host for host, _ in by_node)}
    return flat(rest) | names | folded_values(by_node)


def _node_settings(node: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of a node that are set, without its name."""
    settings = {
        f"nodes.{key}": value for key, value in node.items() if key != "host" and value is not None
    }
    return flat(settings) if settings else {}


def _decisions(run: RecordedRun) -> Values | None:
    if run.plan is None:
        return None
    found: dict[str, list[str]] = {}
    for decision in run.plan.decisions:
        if decision.code not in _OF_THE_START:
            found.setdefault(decision.what, []).append(_decided(decision))
    return {what: "; ".join(texts) for what, texts in found.items()}


_OF_THE_START = frozenset({"code-same", "code-shipped", "workdir-made", "workdir-given"})
"""Decisions that differ between the first and the second start of an unchanged job."""


def _decided(decision: PlannedDecision) -> str:
    """Return a decision with its reason. A port that was free is another one in every run."""
    value = decision.value
    if decision.values.get("port_origin") == "free":
        value = f"{value.rpartition(':')[0]}, a free port"
    return f"{value} ({decision.why})" if decision.why else value


def _script_changes(first: str, second: str) -> Iterator[Change]:
    """Yield the lines of two batch scripts that differ."""
    one, other = first.splitlines(), second.splitlines()
    matcher = difflib.SequenceMatcher(None, one, other, autojunk=False)
    if len(one) * len(other) > MOST_LINE_PAIRS:
        yield Change("script", "differs", "differs")
        return
    for tag, low, high, other_low, other_high in matcher.get_opcodes():
        if tag != "equal":
            old, new = "\n".join(one[low:high]), "\n".join(other[other_low:other_high])
            yield Change(f"line {low + 1}", _line_text(old), _line_text(new))


MOST_LINE_PAIRS = 4_000_000
"""Products of lines up to which scripts are compared line by line."""


def _line_text(text: str) -> str | None:
    """Return lines of a script without secrets; None: no lines."""
    if not text:
        return None
    return "\n".join(" ".join(masked_args(line.split(" "))) for line in text.splitlines())


_WITH_NAMES = frozenset({Topic.ARGUMENTS, Topic.ENVIRONMENT, Topic.PROGRAM, Topic.CLUSTER})
"""Topics whose names may say that a value is a secret."""
_READ: Mapping[Topic, Callable[[RecordedRun], Values | None]] = {
    Topic.OUTCOME: _outcome,
    Topic.PROGRAM: _program,
    Topic.ARGUMENTS: _arguments,
    Topic.CODE: _code,
    Topic.ENVIRONMENT: _environment,
    Topic.CONFIG: _config,
    Topic.VERSIONS: _versions,
    Topic.NODES: _nodes,
    Topic.CLUSTER: _cluster,
    Topic.DECISIONS: _decisions,
}
