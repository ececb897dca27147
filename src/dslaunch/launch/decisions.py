"""What was decided before a run, and from what: codes with parameters, and their texts. Pure.

The texts stand beside the codes, since plans, rendered files and views show them alike.
docs/reference/codes.md lists the codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from string import Formatter
from typing import Any

from dslaunch.cluster.nodeset import fold

Value = str | int | bool | tuple[str, ...]


class DecisionCode(StrEnum):
    """What was decided, and on which kind of evidence."""

    MASTER_REACHED = "master-reached"
    MASTER_ON_ONE_MACHINE = "master-on-one-machine"
    MASTER_BY_ADDRESS = "master-by-address"
    MASTER_BY_NAME = "master-by-name"
    MASTER_LOCAL = "master-local"
    MASTER_GIVEN = "master-given"
    INTERFACE_OF_ROUTE = "interface-of-route"
    INTERFACE_GIVEN = "interface-given"
    WORKDIR_GIVEN = "workdir-given"
    WORKDIR_HERE = "workdir-here"
    WORKDIR_MADE = "workdir-made"
    STORAGE_SHARED = "storage-shared"
    STORAGE_NOT_SHARED = "storage-not-shared"
    STORAGE_PARTLY_SHARED = "storage-partly-shared"
    STORAGE_NOT_TESTED = "storage-not-tested"
    DEVICES_FOUND = "devices-found"
    DEVICES_CPU = "devices-cpu"
    TRANSPORT_CHOSEN = "transport-chosen"
    CODE_ON_NODES = "code-on-nodes"
    CODE_SAME = "code-same"
    CODE_SHIPPED = "code-shipped"
    CONFIG_FITS = "config-fits"
    CONFIG_COPIED = "config-copied"
    CONFIG_SHIPPED = "config-shipped"
    CONFIG_NOT_HERE = "config-not-here"
    CONFIG_NOT_SHIPPED = "config-not-shipped"
    CONFIG_IN_CODE = "config-in-code"
    CONFIG_OF_PROGRAM = "config-of-program"
    CONFIG_UNCHANGED = "config-unchanged"
    CONFIG_OWN_COPY = "config-own-copy"
    CONFIG_ERROR = "config-error"
    CHECK_WARNING = "check-warning"
    CHECKPOINT_RESUMABLE = "checkpoint-resumable"
    CHECKPOINT_HANDED_OUT = "checkpoint-handed-out"
    CHECKPOINT_NOT_RESUMABLE = "checkpoint-not-resumable"
    CHECKPOINTS_UNKNOWN = "checkpoints-unknown"
    TRAINER_ADVICE = "trainer-advice"
    TRAINER_WITHOUT_CPU = "trainer-without-cpu"
    ACCELERATE_ON_CPU = "accelerate-on-cpu"
    ACCELERATE_PLUGIN = "accelerate-plugin"
    ACCELERATE_NOT_SET = "accelerate-not-set"


MASTER_ASSUMED = frozenset(
    {DecisionCode.MASTER_BY_ADDRESS, DecisionCode.MASTER_BY_NAME, DecisionCode.MASTER_LOCAL}
)


@dataclass(frozen=True, slots=True)
class Decision:
    """One thing that was decided: `master  10.0.0.11:29500  (eth0 of node01: answered ...)`."""

    code: DecisionCode
    values: Mapping[str, Value] = field(default_factory=dict)
    assumed: bool = False
    """Nobody asked the nodes; it may be wrong."""

    @property
    def what(self) -> str:
        """The subject, such as `master`."""
        return _TEXTS[self.code][0]

    @property
    def value(self) -> str:
        """What was decided."""
        return self._filled(1)

    @property
    def why(self) -> str:
        """What it was decided from."""
        return self._filled(2)

    def as_dict(self) -> dict[str, Any]:
        """The code, the parameters and the texts, for JSON."""
        texts = {"what": self.what, "value": self.value, "why": self.why}
        data = {"code": self.code, "values": self.values, "assumed": self.assumed}
        return data | texts

    def _filled(self, part: int) -> str:
        words = {name: _word(name, value) for name, value in self.values.items()}
        return _TEXTS[self.code][part].format_map(words)


def decision(code: DecisionCode, *, assumed: bool = False, **values: Value) -> Decision:
    """Return a decision with its parameters."""
    return Decision(code, values, assumed)


def parameters(code: DecisionCode) -> tuple[str, ...]:
    """Return the names of a decision's parameters, in the order of its texts."""
    pieces = (piece for text in _TEXTS[code] for piece in Formatter().parse(text))
    return tuple(dict.fromkeys(name for _, name, _, _ in pieces if name))


def _word(name: str, value: Value) -> str:
    if name in _WORDS:
        return _WORDS[name][str(value)]
    if isinstance(value, tuple):
        return fold(value) if name == "hosts" else ", ".join(value)
    return str(value)


_WORDS: Mapping[str, Mapping[str, str]] = {
    "port_origin": {"file": "port given", "free": "port free there", "default": "default port"},
    "means_itself": {
        "True": ", but each machine means itself by it: name the node's `address:`",
        "False": "",
    },
    "shared": {"True": "checkpoints are shared", "False": "checkpoints are not shared"},
}
"""Words for parameters that are codes or truth values."""
_NODE_LOCAL = 'set "checkpoint": {{"use_node_local_storage": true}} in it'
_NOT_SHARED = "checkpoints are not shared"
_TEXTS: Mapping[DecisionCode, tuple[str, str, str]] = {
    DecisionCode.MASTER_REACHED: (
        "master",
        "{address}:{port}",
        "{interface} of {host}: answered {others} of {others} other nodes; {port_origin}, checked",
    ),
    DecisionCode.MASTER_ON_ONE_MACHINE: (
        "master",
        "{address}:{port}",
        "{interface} of {host}: all nodes are one machine; {port_origin}, checked",
    ),
    DecisionCode.MASTER_BY_ADDRESS: (
        "master",
        "{address}:{port}",
        "address of {host}, the first node{means_itself}; {port_origin}",
    ),
    DecisionCode.MASTER_BY_NAME: (
        "master",
        "{address}:{port}",
        "name of the first node{means_itself}; {port_origin}",
    ),
    DecisionCode.MASTER_LOCAL: (
        "master",
        "{address}:{port}",
        "all nodes are this machine; {port_origin}",
    ),
    DecisionCode.MASTER_GIVEN: ("master", "{address}:{port}", "given by --master-addr"),
    DecisionCode.INTERFACE_OF_ROUTE: (
        "interface",
        "{interfaces}",
        "each node's own on its route to the master",
    ),
    DecisionCode.INTERFACE_GIVEN: ("interface", "{interface}", "given for all nodes"),
    DecisionCode.WORKDIR_GIVEN: ("workdir", "{path}", "given for all nodes"),
    DecisionCode.WORKDIR_HERE: ("workdir", "{path}", "where dslaunch was called"),
    DecisionCode.WORKDIR_MADE: ("workdir", "{path}", "made on {hosts}: it was not there"),
    DecisionCode.STORAGE_SHARED: (
        "storage",
        "{path} is shared",
        "a file written by each node was seen by all",
    ),
    DecisionCode.STORAGE_NOT_SHARED: (
        "storage",
        "{path} is not shared",
        "a file written by each node was seen by that node only",
    ),
    DecisionCode.STORAGE_PARTLY_SHARED: (
        "storage",
        "{path} is not shared",
        "a file written by each node was seen by some others only",
    ),
    DecisionCode.STORAGE_NOT_TESTED: (
        "storage",
        "{path}",
        "not tested, since nothing can be written there: {error}",
    ),
    DecisionCode.DEVICES_FOUND: ("devices", "{devices} per node", "{sources}"),
    DecisionCode.DEVICES_CPU: ("devices", "CPU", "no node has an accelerator"),
    DecisionCode.TRANSPORT_CHOSEN: ("transport", "{transport}", "{reason}"),
    DecisionCode.CODE_ON_NODES: ("code", "{path}", "on the nodes, the same everywhere"),
    DecisionCode.CODE_SAME: (
        "code",
        "{path} is the same everywhere",
        "{files} compared on {nodes}",
    ),
    DecisionCode.CODE_SHIPPED: (
        "code",
        "{files}, {size} to {nodes}:{path}",
        "missing or different there: {examples}",
    ),
    DecisionCode.CONFIG_FITS: ("DeepSpeed config", "{path}", "fits the storage as it is"),
    DecisionCode.CONFIG_COPIED: ("DeepSpeed config", "a copy of {path}: {change}", "{shared}"),
    DecisionCode.CONFIG_SHIPPED: (
        "DeepSpeed config",
        "{path}, named by {place}, is shipped with {change}",
        _NOT_SHARED,
    ),
    DecisionCode.CONFIG_NOT_HERE: (
        "warning",
        "the DeepSpeed config {path} is not on this machine: neither checked nor fitted",
        "check its name; every node must have it",
    ),
    DecisionCode.CONFIG_NOT_SHIPPED: (
        "warning",
        "{place}: {by} names {path}, which is not among the job's files",
        f"{_NOT_SHARED}: {_NODE_LOCAL} on every node",
    ),
    DecisionCode.CONFIG_IN_CODE: (
        "warning",
        "{place}: the DeepSpeed config of {by} is written in the code",
        f"{_NOT_SHARED}: {_NODE_LOCAL}",
    ),
    DecisionCode.CONFIG_OF_PROGRAM: (
        "warning",
        "{place}: the DeepSpeed config of {by} is known only to the program",
        f"{_NOT_SHARED}: {_NODE_LOCAL}",
    ),
    DecisionCode.CONFIG_UNCHANGED: (
        "warning",
        "{place}: {by} names {path}, which is used unchanged",
        "it needs {change}",
    ),
    DecisionCode.CONFIG_OWN_COPY: (
        "warning",
        "{path} is used unchanged on {nodes}, since it is your own file there",
        f"{_NOT_SHARED}: {_NODE_LOCAL}",
    ),
    DecisionCode.CONFIG_ERROR: (
        "warning",
        "{file}:{line}: {path}: {message}",
        "started with --force; {fix}",
    ),
    DecisionCode.CHECK_WARNING: ("warning", "{hosts}: {found}", "{check}: {fix}"),
    DecisionCode.CHECKPOINT_RESUMABLE: (
        "checkpoints",
        "{checkpoint} can be resumed",
        "every rank finds its shards on its own node",
    ),
    DecisionCode.CHECKPOINT_HANDED_OUT: (
        "checkpoints",
        "{checkpoint} can be resumed",
        "every rank finds its shards on its own node; `latest` now names it on {nodes} too",
    ),
    DecisionCode.CHECKPOINT_NOT_RESUMABLE: (
        "checkpoints",
        "{checkpoint} cannot be resumed here",
        "{problem}; nothing says that this run resumes",
    ),
    DecisionCode.CHECKPOINTS_UNKNOWN: ("checkpoints", "{path} not looked through", "{error}"),
    DecisionCode.TRAINER_ADVICE: ("Trainer", "{advice}", _NOT_SHARED),
    DecisionCode.TRAINER_WITHOUT_CPU: (
        "Trainer",
        "--use_cpu is not given: add it to train with DeepSpeed on CPU",
        "no node has an accelerator; without it the Trainer counts one process",
    ),
    DecisionCode.ACCELERATE_ON_CPU: (
        "environment",
        "{variable}=true",
        "without it each rank trains alone on nodes without accelerators",
    ),
    DecisionCode.ACCELERATE_PLUGIN: (
        "Accelerate",
        "trains with DDP: DeepSpeedPlugin has no effect on CPU",
        "AcceleratorState takes DeepSpeed only without CPU; use launcher `deepspeed`, or the "
        "Trainer with --use_cpu",
    ),
    DecisionCode.ACCELERATE_NOT_SET: (
        "environment",
        "{variable} not set",
        "with it the Trainer ignores its DeepSpeed config",
    ),
}
