"""Decisions before a run, with their evidence: codes with parameters, and their texts. Pure.

The texts are here because plans, rendered files and views all show them.
docs/reference/codes.md lists the codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from dslaunch.cluster.nodeset import fold
from dslaunch.texts import parameter_names

Value = str | int | bool | tuple[str, ...]


class DecisionCode(StrEnum):
    """A decision together with the kind of its evidence."""

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
    THREADS_LIMITED = "threads-limited"
    TRANSPORT_CHOSEN = "transport-chosen"
    TREE_DETOUR = "tree-detour"
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
"""Assumptions about the rendezvous address and port."""
INTERFACE_ASSUMED = frozenset({DecisionCode.INTERFACE_GIVEN})
"""Assumptions about the network interface of each node."""


class Decision(Struct, frozen=True):
    """One decision: `master  10.0.0.11:29500  (eth0 of node01, reached by ...)`."""

    code: DecisionCode
    values: Mapping[str, Value] = field(default_factory=dict)
    assumed: bool = False
    """Not checked on the nodes; it may be wrong."""

    @property
    def what(self) -> str:
        """Return the subject, such as `master`."""
        return _TEXTS[self.code][0]

    @property
    def value(self) -> str:
        """Return what was decided."""
        return self._filled(1)

    @property
    def why(self) -> str:
        """Return the evidence or the reason."""
        return self._filled(2)

    def as_data(self) -> dict[str, Any]:
        """Return the code, the parameters and the texts, for JSON."""
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
    return parameter_names(*_TEXTS[code])


def _word(name: str, value: Value) -> str:
    """Return the text of a parameter."""
    if name in _WORDS:
        return _WORDS[name][str(value)]
    if name == "others":
        return "the other node" if value == 1 else f"all {value} other nodes"
    if isinstance(value, tuple):
        return fold(value) if name in _NODE_LISTS else ", ".join(value)
    return str(value)


_NODE_LISTS = ("hosts", "nodes", "parents")
_WORDS: Mapping[str, Mapping[str, str]] = {
    "port_origin": {
        "file": "requested port",
        "free": "free port",
        "default": "default port",
    },
    "means_itself": {
        "True": ", which every machine resolves to itself: set `address:` of the node",
        "False": "",
    },
    "shared": {"True": "checkpoints are shared", "False": "checkpoints are not shared"},
}
"""Texts of parameters that are codes or booleans."""
_NODE_LOCAL = 'set "checkpoint": {{"use_node_local_storage": true}} in it'
_NOT_SHARED = "checkpoints are not shared"
_TEXTS: Mapping[DecisionCode, tuple[str, str, str]] = {
    DecisionCode.MASTER_REACHED: (
        "master",
        "{address}:{port}",
        "{interface} of {host}, reached by {others}; {port_origin}, checked",
    ),
    DecisionCode.MASTER_ON_ONE_MACHINE: (
        "master",
        "{address}:{port}",
        "{interface} of {host}, all nodes are on one machine; {port_origin}, checked",
    ),
    DecisionCode.MASTER_BY_ADDRESS: (
        "master",
        "{address}:{port}",
        "address of {host}, the first node{means_itself}; {port_origin}",
    ),
    DecisionCode.MASTER_BY_NAME: (
        "master",
        "{address}:{port}",
        "host name of the first node{means_itself}; {port_origin}",
    ),
    DecisionCode.MASTER_LOCAL: (
        "master",
        "{address}:{port}",
        "all nodes are on this machine; {port_origin}",
    ),
    DecisionCode.MASTER_GIVEN: ("master", "{address}:{port}", "from --master-addr"),
    DecisionCode.INTERFACE_OF_ROUTE: (
        "interface",
        "{interfaces}",
        "on the route of each node to the master",
    ),
    DecisionCode.INTERFACE_GIVEN: ("interface", "{interface}", "from the cluster file"),
    DecisionCode.WORKDIR_GIVEN: ("workdir", "{path}", "set for all nodes"),
    DecisionCode.WORKDIR_HERE: ("workdir", "{path}", "current directory"),
    DecisionCode.WORKDIR_MADE: ("workdir", "{path}", "created on {hosts}, where it did not exist"),
    DecisionCode.STORAGE_SHARED: (
        "storage",
        "{path} is shared",
        "every node saw the test files of all nodes",
    ),
    DecisionCode.STORAGE_NOT_SHARED: (
        "storage",
        "{path} is not shared",
        "each node saw only its own test file",
    ),
    DecisionCode.STORAGE_PARTLY_SHARED: (
        "storage",
        "{path} is not shared",
        "some nodes did not see the test files of others",
    ),
    DecisionCode.STORAGE_NOT_TESTED: (
        "storage",
        "{path}",
        "not tested, because it is not writable: {error}",
    ),
    DecisionCode.DEVICES_FOUND: ("devices", "{devices} per node", "{sources}"),
    DecisionCode.DEVICES_CPU: ("devices", "CPU", "no accelerator found on any node"),
    DecisionCode.THREADS_LIMITED: (
        "threads",
        "OMP_NUM_THREADS=1",
        "several ranks per node; change it with --env or `env:`",
    ),
    DecisionCode.TRANSPORT_CHOSEN: ("transport", "{transport}", "{reason}"),
    DecisionCode.TREE_DETOUR: (
        "transport",
        "{hosts} reached another way",
        "login from {parents} failed: {kind}",
    ),
    DecisionCode.CODE_ON_NODES: ("code", "{path}", "already on the nodes, identical"),
    DecisionCode.CODE_SAME: (
        "code",
        "{path} is up to date on all nodes",
        "{files} compared on {nodes}",
    ),
    DecisionCode.CODE_SHIPPED: (
        "code",
        "{files}, {size}, copied to {nodes}:{path}",
        "missing or different on the nodes: {examples}",
    ),
    DecisionCode.CONFIG_FITS: ("DeepSpeed config", "{path}", "unchanged, fits the storage"),
    DecisionCode.CONFIG_COPIED: ("DeepSpeed config", "copy of {path} with {change}", "{shared}"),
    DecisionCode.CONFIG_SHIPPED: (
        "DeepSpeed config",
        "copy of {path}, used in {place}, with {change}",
        _NOT_SHARED,
    ),
    DecisionCode.CONFIG_NOT_HERE: (
        "warning",
        "DeepSpeed config {path} not found on this machine: neither checked nor adapted",
        "check its name; it must exist on every node",
    ),
    DecisionCode.CONFIG_NOT_SHIPPED: (
        "warning",
        "{place}: {by} uses {path}, which is not a file of the job",
        f"{_NOT_SHARED}: {_NODE_LOCAL} on every node",
    ),
    DecisionCode.CONFIG_IN_CODE: (
        "warning",
        "{place}: the DeepSpeed config of {by} is in the code",
        f"{_NOT_SHARED}: {_NODE_LOCAL}",
    ),
    DecisionCode.CONFIG_OF_PROGRAM: (
        "warning",
        "{place}: the DeepSpeed config of {by} is computed by the program",
        f"{_NOT_SHARED}: {_NODE_LOCAL}",
    ),
    DecisionCode.CONFIG_UNCHANGED: (
        "warning",
        "{place}: {by} uses {path}, which is not adapted",
        "it needs {change}",
    ),
    DecisionCode.CONFIG_OWN_COPY: (
        "warning",
        "{path} on {nodes} is not adapted, because it is your own file",
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
        "every rank has its shards on its own node",
    ),
    DecisionCode.CHECKPOINT_HANDED_OUT: (
        "checkpoints",
        "{checkpoint} can be resumed",
        "every rank has its shards on its own node; `latest` was written on {nodes}",
    ),
    DecisionCode.CHECKPOINT_NOT_RESUMABLE: (
        "checkpoints",
        "{checkpoint} cannot be resumed on these nodes",
        "{problem}; this run does not seem to resume",
    ),
    DecisionCode.CHECKPOINTS_UNKNOWN: ("checkpoints", "{path} not searched", "{error}"),
    DecisionCode.TRAINER_ADVICE: (
        "Trainer",
        "--save_on_each_node is not set: only the first node saves trainer_state.json; the others "
        "cannot resume and never delete old checkpoints",
        _NOT_SHARED,
    ),
    DecisionCode.TRAINER_WITHOUT_CPU: (
        "Trainer",
        "--use_cpu is not set: add it to train with DeepSpeed on CPU",
        "no accelerator on any node; without --use_cpu the Trainer uses one process",
    ),
    DecisionCode.ACCELERATE_ON_CPU: (
        "environment",
        "{variable}=true",
        "without it, ranks on nodes without accelerators do not join a process group",
    ),
    DecisionCode.ACCELERATE_PLUGIN: (
        "Accelerate",
        "trains with DDP: DeepSpeedPlugin has no effect on CPU",
        "Accelerate does not support DeepSpeed on CPU; use launcher `deepspeed`, or the Trainer "
        "with --use_cpu",
    ),
    DecisionCode.ACCELERATE_NOT_SET: (
        "environment",
        "{variable} not set",
        "with it, the Trainer ignores its DeepSpeed config",
    ),
}
