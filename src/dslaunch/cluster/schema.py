"""The schema of the cluster file: its keys, their types, limits and descriptions.

Rules about several keys are in `rules`. Those that a JSON Schema can express are here
too, as `json_schema_extra`, which pydantic itself does not check. A loaded file is a value of
`model`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Discriminator, Field, Tag

from dslaunch.cluster.field_types import (
    Auto,
    Environment,
    Interface,
    Jump,
    Label,
    Matching,
    NameOf,
    Port,
    PortRange,
    Ranks,
    Section,
    Slots,
    Text,
    Variable,
    Word,
    Written,
    automatic,
    mapped,
    ports,
)
from dslaunch.cluster.preflight_section import PreflightSection
from dslaunch.cluster.progress_format import GROUPS
from dslaunch.cluster.progress_format import LONGEST as LONGEST_PATTERN
from dslaunch.cluster.slurm_section import SlurmSection
from dslaunch.registry import LAUNCHERS, TRANSPORTS

TITLE = "dslaunch cluster file"
VERBATIM = ("address", "args", "env", "host", "labels", "name", "ranks", "slurm")
"""Keys at and below which a plain scalar is a string."""
_GROUPS = ", ".join(f"`{name}`" for name in GROUPS)
_LAUNCHERS = ", ".join(f"`{name}`" for name in LAUNCHERS.names())


def _with(*keys: str) -> dict[str, Any]:
    """Return the schema of a mapping that requires all these keys, with strings."""
    return {"properties": {key: {"type": "string"} for key in keys}, "required": list(keys)}


_ONE_INTERPRETER = ConfigDict(json_schema_extra={"not": _with("python", "activate")})
_SPARE: dict[str, Any] = {"properties": {"spare": {"const": True}}, "required": ["spare"]}


class NodeEntry(Section):
    """One node, or several nodes with the same settings."""

    model_config = _ONE_INTERPRETER

    host: Text = Field(
        description="Host name for SSH, shown in logs. Ranges stand for several nodes: "
        "`node[01-04]`, `a[1,3],b7`. May be a `Host` of ~/.ssh/config.",
        json_schema_extra={"pattern": r"^[A-Za-z0-9_[][A-Za-z0-9._,[\]-]*$"},
    )
    slots: Slots = Field(
        description="Number of GPUs per node to use, or their indexes: `8`, `[0, 1, 2, 3]`."
    )
    address: Text | None = Field(
        None,
        description="Address at which the other nodes reach this one. Ranges are paired with "
        "`host` in the written order. Default: detected on the nodes.",
        json_schema_extra={"pattern": r"^[A-Za-z0-9_:[][A-Za-z0-9._,:%[\]-]*$"},
    )
    user: Word | None = Field(None, description="SSH user name. Default: `ssh.user`.")
    port: Port | None = Field(None, description="SSH port. Default: `ssh.port`.")
    identity_file: Text | None = Field(
        None, description="SSH private key. Default: `ssh.identity_file`."
    )
    jump: Jump | None = Field(
        None, description="SSH jump host, `[user@]host[:port]`. Default: `ssh.jump`."
    )
    python: Text | None = Field(
        None, description="Python interpreter of the job. Default: `python` of the file."
    )
    activate: Text | None = Field(
        None,
        description="Shell command that activates the job's environment. Default: `activate` of "
        "the file. Cannot be combined with `python`.",
    )
    env: Environment = Field(
        default_factory=dict,
        description="Environment variables of this node; they override `env` of the file.",
    )
    labels: dict[Label, Written] = Field(
        default_factory=dict, description="Labels for `--label`, such as `rack: r1`."
    )
    spare: bool = Field(
        False, description="Spare node: used to replace a lost node, or if --include names it."
    )


class SshSection(Section):
    """SSH connections to the nodes. Keys that are not set come from ~/.ssh/config."""

    user: Word | None = Field(None, description="SSH user name.")
    port: Port | None = Field(None, description="SSH port.")
    identity_file: Text | None = Field(None, description="SSH private key.")
    jump: Jump | None = Field(None, description="SSH jump host, `[user@]host[:port]`.")
    connect_timeout: float = Field(
        10.0, gt=0, le=3600, description="Connection timeout in seconds."
    )
    fanout: int = Field(
        32, ge=1, le=1024, description="Number of connections to open at the same time."
    )
    tree_fanout: int = Field(
        32,
        ge=2,
        le=1024,
        description="Number of nodes that this machine and each inner node connect to with "
        "`transport: tree`.",
    )
    config_file: Text | None = Field(
        None,
        description="SSH config to use instead of ~/.ssh/config and /etc/ssh/ssh_config, as with "
        "`ssh -F`.",
    )


class NetworkSection(Section):
    """Network between the ranks."""

    interface: Annotated[Auto | Annotated[Interface, Tag("<value>")], Discriminator(automatic)] = (
        Field(
            "auto",
            description="Network interface of the ranks, such as `ib0`. `auto`: the interface on "
            "the route to the master. A name is checked on every node.",
        )
    )
    master_port: Annotated[Auto | Annotated[Port, Tag("<value>")], Discriminator(automatic)] = (
        Field(
            "auto",
            description="Rendezvous (master) port. `auto`: a free port of the first node. A number "
            "is checked to be free.",
        )
    )
    control_port: Annotated[
        Auto | Annotated[Port, Tag("<value>")] | Annotated[PortRange, Tag("<range>")],
        Discriminator(ports),
    ] = Field(
        "auto",
        description="Port, or range such as `29600-29610`, on which the first node of a detached "
        "run listens for the other nodes. `auto`: any free port. Set it if a firewall must allow "
        "it.",
    )


class StorageSection(Section):
    """Directories on the nodes. A relative path starts at the home directory on the node."""

    shared: Annotated[Auto | Annotated[bool, Tag("<value>")], Discriminator(automatic)] = Field(
        "auto", description="Whether all nodes share `checkpoints`. `auto`: tested before a run."
    )
    workdir: Text | None = Field(
        None, description="Working directory of the job. Default: the current directory."
    )
    checkpoints: Text | None = Field(
        None, description="Directory of the checkpoints. Default: `workdir`."
    )
    node_local: Text | None = Field(
        None, description="Fast local directory of each node, for example on NVMe."
    )


class SecretFile(Section):
    """Source of a secret."""

    file: Text = Field(description="File on this machine; a final newline is removed.")


class JobSection(Section):
    """Job to run if the command line names none. Needs `script` or `module`."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [_with("script"), _with("module")]})

    script: Text | None = Field(None, description="Script, relative to the working directory.")
    module: (
        Annotated[str, Matching(r"[^\W\d]\w*(\.[^\W\d]\w*)*", "a module such as `pkg.train`")]
        | None
    ) = Field(None, description="Module to run as `python -m` does.")
    args: list[Written] = Field(default_factory=list, description="Arguments, passed unchanged.")
    env: Environment = Field(
        default_factory=dict, description="Environment variables of the job; they override `env`."
    )


_Secret = Annotated[
    Annotated[Variable, Tag("<scalar>")]
    | Annotated[dict[Variable, SecretFile], Field(min_length=1), Tag("<mapping>")],
    Discriminator(mapped),
]


class ClusterFile(Section):
    """Cluster: nodes, connections, network, storage and jobs."""

    model_config = _ONE_INTERPRETER

    name: (
        Annotated[
            str,
            Matching(r"[A-Za-z0-9][A-Za-z0-9._-]*", "a name of letters, digits, `.`, `_`, `-`"),
        ]
        | None
    ) = Field(None, description="Name of the cluster in messages. Default: name of the file.")
    nodes: list[NodeEntry] = Field(
        min_length=1,
        description="Nodes in rank order. One entry may describe several nodes.",
        json_schema_extra={"contains": {"not": _SPARE}},
    )
    transport: Annotated[str, NameOf(TRANSPORTS, "Transport, which connects to the nodes")] = "auto"
    ssh: SshSection = Field(SshSection(), description="SSH connections to the nodes.")
    network: NetworkSection = Field(NetworkSection(), description="Network between the ranks.")
    storage: StorageSection = Field(StorageSection(), description="Directories on the nodes.")
    python: Text | None = Field(
        None, description="Python interpreter of the job. Default: `python3` on the node."
    )
    activate: Text | None = Field(
        None,
        description="Shell command that activates the job's environment, such as "
        "`source venv/bin/activate`. Cannot be combined with `python`.",
    )
    env: Environment = Field(
        default_factory=dict, description="Environment variables of all processes of a run."
    )
    env_from: list[
        Annotated[
            str,
            Matching(r"[A-Za-z_*][A-Za-z0-9_*]*", "a variable's name or a pattern like `WANDB_*`"),
        ]
    ] = Field(
        default_factory=list,
        description="Environment variables to copy from the caller, such as `WANDB_*`.",
    )
    secrets: list[_Secret] = Field(
        default_factory=list,
        description="Environment variables whose values are never written or logged: `NAME` reads "
        "the caller's environment, `NAME: {file: path}` a file.",
        json_schema_extra={"uniqueItems": True},
    )
    launcher: Annotated[
        str, Matching(r"[A-Za-z_][A-Za-z0-9_-]*", "a launcher's name such as `torchrun`")
    ] = Field(
        "torchrun",
        description=f"Launcher of the ranks: {_LAUNCHERS}, or one of a plugin.",
    )
    launcher_args: list[
        Annotated[str, Matching(r"--[A-Za-z][A-Za-z0-9_-]*(=.*)?", "an option like `--name=value`")]
    ] = Field(
        default_factory=list,
        description="Options that are passed through to the launcher, such as "
        "`--numa-binding=node`. Those that dslaunch sets itself are rejected.",
    )
    progress: list[Annotated[str, Field(min_length=1, max_length=LONGEST_PATTERN)]] = Field(
        default_factory=list,
        max_length=8,
        description="Regular expressions for output that shows the progress of the training, with "
        f"named groups {_GROUPS}: `batch (?P<step>[0-9]+) of (?P<last_step>[0-9]+)`. They come "
        "before the known formats.",
    )
    ranks: Ranks | None = Field(
        None,
        description="Ranks whose output is shown if the command line has no `--ranks`, such as "
        "`0` or `0,8-9`. Default: all. The output of all ranks is recorded.",
    )
    slurm: SlurmSection = Field(
        default_factory=SlurmSection, description="Options of jobs submitted by `dslaunch slurm`."
    )
    preflight: PreflightSection = Field(
        default_factory=PreflightSection, description="Settings of `dslaunch preflight`."
    )
    job: JobSection | None = Field(None, description="Job to run if the command line names none.")


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the cluster file, for editors and other programs."""
    schema = ClusterFile.model_json_schema(mode="validation")
    _close(schema)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": TITLE,
        "description": str(ClusterFile.__doc__).strip(),
    }
    return head | {key: value for key, value in schema.items() if key not in head}


def _close(schema: Any) -> None:
    """Forbid keys that do not match the pattern of a mapping, as pydantic does."""
    if isinstance(schema, dict):
        if "patternProperties" in schema:
            schema["additionalProperties"] = False
        for inner in schema.values():
            _close(inner)
    elif isinstance(schema, list):
        for inner in schema:
            _close(inner)
