"""The schema of the cluster file: its keys, their types, limits and descriptions.

Rules about several keys are in `rules`. Those that a JSON Schema can express are here too, as
`MORE`, which only the JSON Schema has. A loaded file is a value of `model`.
"""

from __future__ import annotations

from typing import Any, Literal

from dslaunch.cluster.forms import (
    AutoOr,
    Either,
    Fault,
    Flag,
    ListOf,
    MappingOf,
    NameOf,
    Number,
    Report,
    Schema,
    Section,
    SectionForm,
    Text,
    key,
    sections_in,
)
from dslaunch.cluster.mistakes import MistakeCode, mistake
from dslaunch.cluster.preflight_section import PreflightSection
from dslaunch.cluster.progress_format import GROUPS
from dslaunch.cluster.progress_format import LONGEST as LONGEST_PATTERN
from dslaunch.cluster.slurm_section import SlurmSection
from dslaunch.cluster.text_forms import (
    ENVIRONMENT,
    INTERFACE,
    JUMP,
    LABEL,
    PORT,
    PORT_RANGE,
    RANKS,
    SLOT,
    SLOT_COUNT,
    TEXT,
    VARIABLE,
    WORD,
    WRITTEN,
)
from dslaunch.cluster.yamltext import Path, described
from dslaunch.registry import LAUNCHERS, TRANSPORTS

TITLE = "dslaunch cluster file"
VERBATIM = ("address", "args", "env", "host", "labels", "name", "ranks", "slurm")
"""Keys at and below which a plain scalar is a string."""
_GROUPS = ", ".join(f"`{name}`" for name in GROUPS)
_LAUNCHERS = ", ".join(f"`{name}`" for name in LAUNCHERS.names())


def _with(*keys: str) -> Schema:
    """Return the schema of a mapping that requires all these keys, with strings."""
    return {"properties": {key: {"type": "string"} for key in keys}, "required": list(keys)}


_ONE_INTERPRETER: Schema = {"not": _with("python", "activate")}
_ONE_PROGRAM: Schema = {"oneOf": [_with("script"), _with("module")]}
_SPARE: Schema = {"properties": {"spare": {"const": True}}, "required": ["spare"]}


def _listed(value: Any) -> int:
    """Return which form of `slots` a value has: 0, a number; 1, a list."""
    return int(isinstance(value, list))


def _ranged(value: Any) -> int:
    """Return which form of `control_port` a value has: 1, a range of ports."""
    return int(isinstance(value, str) and value != "auto")


def _mapped(value: Any) -> int:
    """Return which form a secret has: 0, a name; 1, a mapping."""
    return int(isinstance(value, dict))


class NodeEntry(Section):
    """One node, or several nodes with the same settings."""

    MORE = _ONE_INTERPRETER

    index = 0
    """The index of the entry in the file."""
    host: str = key(
        TEXT,
        description="Host name for SSH, shown in logs. Ranges stand for several nodes: "
        "`node[01-04]`, `a[1,3],b7`. May be a `Host` of ~/.ssh/config.",
        more={"pattern": r"^[A-Za-z0-9_[][A-Za-z0-9._,[\]-]*$"},
    )
    slots: int | list[int] = key(
        Either((SLOT_COUNT, ListOf(SLOT, at_least=1, unique=True)), choose=_listed),
        description="Number of GPUs per node to use, or their indexes: `8`, `[0, 1, 2, 3]`.",
    )
    address: str | None = key(
        TEXT,
        None,
        description="Address at which the other nodes reach this one. Ranges are paired with "
        "`host` in the written order. Default: detected on the nodes.",
        more={"pattern": r"^[A-Za-z0-9_:[][A-Za-z0-9._,:%[\]-]*$"},
    )
    user: str | None = key(WORD, None, description="SSH user name. Default: `ssh.user`.")
    port: int | None = key(PORT, None, description="SSH port. Default: `ssh.port`.")
    identity_file: str | None = key(
        TEXT, None, description="SSH private key. Default: `ssh.identity_file`."
    )
    jump: str | None = key(
        JUMP, None, description="SSH jump host, `[user@]host[:port]`. Default: `ssh.jump`."
    )
    python: str | None = key(
        TEXT, None, description="Python interpreter of the job. Default: `python` of the file."
    )
    activate: str | None = key(
        TEXT,
        None,
        description="Shell command that activates the job's environment. Default: `activate` of "
        "the file. Cannot be combined with `python`.",
    )
    env: dict[str, str] = key(
        ENVIRONMENT,
        {},
        description="Environment variables of this node; they override `env` of the file.",
    )
    labels: dict[str, str] = key(
        MappingOf(LABEL, WRITTEN), {}, description="Labels for `--label`, such as `rack: r1`."
    )
    spare: bool = key(
        Flag(),
        False,
        description="Spare node: used to replace a lost node, or if --include names it.",
    )


class SshSection(Section):
    """SSH connections to the nodes. Keys that are not set come from ~/.ssh/config."""

    user: str | None = key(WORD, None, description="SSH user name.")
    port: int | None = key(PORT, None, description="SSH port.")
    identity_file: str | None = key(TEXT, None, description="SSH private key.")
    jump: str | None = key(JUMP, None, description="SSH jump host, `[user@]host[:port]`.")
    connect_timeout: float = key(
        Number(above=0, at_most=3600, whole=False),
        10.0,
        description="Connection timeout in seconds.",
    )
    fanout: int = key(
        Number(at_least=1, at_most=1024),
        32,
        description="Number of connections to open at the same time.",
    )
    tree_fanout: int = key(
        Number(at_least=2, at_most=1024),
        32,
        description="Number of nodes that this machine and each inner node connect to with "
        "`transport: tree`.",
    )
    config_file: str | None = key(
        TEXT,
        None,
        description="SSH config to use instead of ~/.ssh/config and /etc/ssh/ssh_config, as with "
        "`ssh -F`.",
    )


class NetworkSection(Section):
    """Network between the ranks."""

    interface: str = key(
        AutoOr(INTERFACE),
        "auto",
        description="Network interface of the ranks, such as `ib0`. `auto`: the interface on the "
        "route to the master. A name is checked on every node.",
    )
    master_port: int | Literal["auto"] = key(
        AutoOr(PORT),
        "auto",
        description="Rendezvous (master) port. `auto`: a free port of the first node. A number is "
        "checked to be free.",
    )
    control_port: str | int = key(
        Either((AutoOr(PORT), PORT_RANGE), choose=_ranged),
        "auto",
        description="Port, or range such as `29600-29610`, on which the first node of a detached "
        "run listens for the other nodes. `auto`: any free port. Set it if a firewall must allow "
        "it.",
    )


class StorageSection(Section):
    """Directories on the nodes. A relative path starts at the home directory on the node."""

    shared: bool | Literal["auto"] = key(
        AutoOr(Flag()),
        "auto",
        description="Whether all nodes share `checkpoints`. `auto`: tested before a run.",
    )
    workdir: str | None = key(
        TEXT, None, description="Working directory of the job. Default: the current directory."
    )
    checkpoints: str | None = key(
        TEXT, None, description="Directory of the checkpoints. Default: `workdir`."
    )
    node_local: str | None = key(
        TEXT, None, description="Fast local directory of each node, for example on NVMe."
    )


class SecretFile(Section):
    """Source of a secret."""

    file: str = key(TEXT, description="File on this machine; a final newline is removed.")


class JobSection(Section):
    """Job to run if the command line names none. Needs `script` or `module`."""

    MORE = _ONE_PROGRAM

    script: str | None = key(TEXT, None, description="Script, relative to the working directory.")
    module: str | None = key(
        Text(r"[^\W\d]\w*(\.[^\W\d]\w*)*", "a module such as `pkg.train`"),
        None,
        description="Module to run as `python -m` does.",
    )
    args: list[str] = key(ListOf(WRITTEN), (), description="Arguments, passed unchanged.")
    env: dict[str, str] = key(
        ENVIRONMENT, {}, description="Environment variables of the job; they override `env`."
    )


_SECRET = Either(
    (VARIABLE, MappingOf(VARIABLE, SectionForm(SecretFile), at_least=1)), choose=_mapped
)


class _Entries(ListOf, frozen=True):
    """The entries of nodes. The valid ones remain if others are not."""

    def read(self, value: Any, path: Path, report: Report) -> Any:
        """Return the entries whose host is valid; INVALID: it is no list, or empty."""
        if not isinstance(value, list) or not value:
            return super().read(value, path, report)
        entries = []
        for index, each in enumerate(value):
            entry = _entry(each, index, report)
            if entry is not None:
                entries.append(entry)
        return entries


def _entry(data: Any, index: int, report: Report) -> NodeEntry | None:
    """Return an entry without its invalid keys; None: it has no valid host."""
    path: Path = ("nodes", index)
    if not isinstance(data, dict):
        expected = "a mapping"
        if isinstance(data, str):
            expected += " such as `{host: node01, slots: 8}`"
        found = mistake(MistakeCode.WRONG_TYPE, expected=expected, found=described(data))
        report(Fault(path, found, data))
        return None
    values = NodeEntry.given(data, path, report)
    if "host" not in values:
        return None
    # the names are compared with those of other entries, whatever the slots are
    entry = NodeEntry({"slots": 1, **values})
    entry.index = index
    return entry


class ClusterFile(Section):
    """Cluster: nodes, connections, network, storage and jobs."""

    MORE = _ONE_INTERPRETER

    name: str | None = key(
        Text(r"[A-Za-z0-9][A-Za-z0-9._-]*", "a name of letters, digits, `.`, `_`, `-`"),
        None,
        description="Name of the cluster in messages. Default: name of the file.",
    )
    nodes: list[NodeEntry] = key(
        _Entries(SectionForm(NodeEntry), at_least=1),
        description="Nodes in rank order. One entry may describe several nodes.",
        more={"contains": {"not": _SPARE}},
    )
    transport: str = key(NameOf(TRANSPORTS, "Transport, which connects to the nodes"), "auto")
    ssh: SshSection = key(
        SectionForm(SshSection), SshSection({}), description="SSH connections to the nodes."
    )
    network: NetworkSection = key(
        SectionForm(NetworkSection), NetworkSection({}), description="Network between the ranks."
    )
    storage: StorageSection = key(
        SectionForm(StorageSection), StorageSection({}), description="Directories on the nodes."
    )
    python: str | None = key(
        TEXT, None, description="Python interpreter of the job. Default: `python3` on the node."
    )
    activate: str | None = key(
        TEXT,
        None,
        description="Shell command that activates the job's environment, such as "
        "`source venv/bin/activate`. Cannot be combined with `python`.",
    )
    env: dict[str, str] = key(
        ENVIRONMENT, {}, description="Environment variables of all processes of a run."
    )
    env_from: list[str] = key(
        ListOf(Text(r"[A-Za-z_*][A-Za-z0-9_*]*", "a variable's name or a pattern like `WANDB_*`")),
        (),
        description="Environment variables to copy from the caller, such as `WANDB_*`.",
    )
    secrets: list[str | dict[str, SecretFile]] = key(
        ListOf(_SECRET, unique=True),
        (),
        description="Environment variables whose values are never written or logged: `NAME` reads "
        "the caller's environment, `NAME: {file: path}` a file.",
    )
    launcher: str = key(
        Text(r"[A-Za-z_][A-Za-z0-9_-]*", "a launcher's name such as `torchrun`"),
        "torchrun",
        description=f"Launcher of the ranks: {_LAUNCHERS}, or one of a plugin.",
    )
    launcher_args: list[str] = key(
        ListOf(Text(r"--[A-Za-z][A-Za-z0-9_-]*(=.*)?", "an option like `--name=value`")),
        (),
        description="Options that are passed through to the launcher, such as "
        "`--numa-binding=node`. Those that dslaunch sets itself are rejected.",
    )
    progress: list[str] = key(
        ListOf(Text(at_least=1, at_most=LONGEST_PATTERN), at_most=8),
        (),
        description="Regular expressions for output that shows the progress of the training, with "
        f"named groups {_GROUPS}: `batch (?P<step>[0-9]+) of (?P<last_step>[0-9]+)`. They come "
        "before the known formats.",
    )
    ranks: str | None = key(
        RANKS,
        None,
        description="Ranks whose output is shown if the command line has no `--ranks`, such as "
        "`0` or `0,8-9`. Default: all. The output of all ranks is recorded.",
    )
    slurm: SlurmSection = key(
        SectionForm(SlurmSection),
        SlurmSection({}),
        description="Options of jobs submitted by `dslaunch slurm`.",
    )
    preflight: PreflightSection = key(
        SectionForm(PreflightSection),
        PreflightSection({}),
        description="Settings of `dslaunch preflight`.",
    )
    job: JobSection | None = key(
        SectionForm(JobSection), None, description="Job to run if the command line names none."
    )


def json_schema() -> Schema:
    """Return the JSON Schema (2020-12) of the cluster file, for editors and other programs."""
    sections = {section.__name__: section for section in sections_in(ClusterFile)}
    head: Schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": {name: section.schema() for name, section in sorted(sections.items())},
    }
    return head | ClusterFile.schema() | {"title": TITLE}
