"""The shape of the cluster file: its keys, their types, their limits and what they mean.

What needs more than one key to judge is in `rules`; where a JSON Schema can say it to editors, it
is here as well, as a `json_schema_extra` that pydantic itself does not check. The values that a
file becomes are in `model`.
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
from dslaunch.cluster.slurm_section import SlurmSection
from dslaunch.registry import LAUNCHERS, TRANSPORTS

TITLE = "dslaunch cluster file"
VERBATIM = ("address", "args", "env", "host", "labels", "name", "slurm")
"""Keys for which, and below which, a plain scalar is the text that is written."""
_LAUNCHERS = ", ".join(f"`{name}`" for name in LAUNCHERS.names())


def _with(*keys: str) -> dict[str, Any]:
    """Give the schema of a mapping in which all these keys have a value, which is text."""
    return {"properties": {key: {"type": "string"} for key in keys}, "required": list(keys)}


_ONE_INTERPRETER = ConfigDict(json_schema_extra={"not": _with("python", "activate")})
_SPARE: dict[str, Any] = {"properties": {"spare": {"const": True}}, "required": ["spare"]}


class NodeEntry(Section):
    """One machine, or many that are alike."""

    model_config = _ONE_INTERPRETER

    host: Text = Field(
        description="The name that a client dials and that logs show. Folded for many: "
        "`node[01-04]`, `a[1,3],b7`. A name of ~/.ssh/config is fine.",
        json_schema_extra={"pattern": r"^[A-Za-z0-9_[][A-Za-z0-9._,[\]-]*$"},
    )
    slots: Slots = Field(
        description="How many GPUs each may use, or the list of their indexes: `8`, `[0, 1, 2, 3]`."
    )
    address: Text | None = Field(
        None,
        description="What the other nodes dial; folded, it is paired with `host` in the written "
        "order. Default: found out from the nodes.",
        json_schema_extra={"pattern": r"^[A-Za-z0-9_:[][A-Za-z0-9._,:%[\]-]*$"},
    )
    user: Word | None = Field(None, description="The user to log in as. Default: `ssh.user`.")
    port: Port | None = Field(None, description="The SSH port. Default: `ssh.port`.")
    identity_file: Text | None = Field(
        None, description="The private key. Default: `ssh.identity_file`."
    )
    jump: Jump | None = Field(
        None, description="The jump host, `[user@]host[:port]`. Default: `ssh.jump`."
    )
    python: Text | None = Field(
        None, description="The interpreter that runs the job. Default: the file's `python`."
    )
    activate: Text | None = Field(
        None,
        description="A shell line before the job's command. Default: the file's `activate`. "
        "Not together with `python`.",
    )
    env: Environment = Field(
        default_factory=dict,
        description="Variables for this node only; they win over the file's `env`.",
    )
    labels: dict[Label, Written] = Field(
        default_factory=dict, description="What the node can be chosen by, such as `rack: r1`."
    )
    spare: bool = Field(
        False, description="A spare waits: it is used only if it is included by its name."
    )


class SshSection(Section):
    """How the nodes are reached. What is left out is as ~/.ssh/config says."""

    user: Word | None = Field(None, description="The user to log in as.")
    port: Port | None = Field(None, description="The SSH port.")
    identity_file: Text | None = Field(None, description="The private key.")
    jump: Jump | None = Field(None, description="The jump host, `[user@]host[:port]`.")
    connect_timeout: float = Field(
        10.0, gt=0, le=3600, description="Seconds until a silent node counts as unreachable."
    )
    fanout: int = Field(32, ge=1, le=1024, description="How many connections open at once.")
    config_file: Text | None = Field(
        None,
        description="An ssh_config to read instead of ~/.ssh/config and /etc/ssh/ssh_config, as "
        "`ssh -F` does.",
    )


class NetworkSection(Section):
    """What the ranks talk over."""

    interface: Annotated[Auto | Annotated[Interface, Tag("<value>")], Discriminator(automatic)] = (
        Field(
            "auto",
            description="The network interface, such as `ib0`. `auto`: decided by what the nodes "
            "say. A name is used as given, after a check that it is there.",
        )
    )
    master_port: Annotated[Auto | Annotated[Port, Tag("<value>")], Discriminator(automatic)] = (
        Field(
            "auto",
            description="The port where the ranks meet. `auto`: one that is free on the master. "
            "A number is used as given, after a check that it is free.",
        )
    )
    control_port: Annotated[
        Auto | Annotated[Port, Tag("<value>")] | Annotated[PortRange, Tag("<range>")],
        Discriminator(ports),
    ] = Field(
        "auto",
        description="The port, or a range such as `29600-29610`, on which the first node of a "
        "detached run listens for the other nodes. `auto`: any free one. Name it where a firewall "
        "has to let it through.",
    )


class StorageSection(Section):
    """Directories on the nodes. A path without a leading `/` is relative to the node's home."""

    shared: Annotated[Auto | Annotated[bool, Tag("<value>")], Discriminator(automatic)] = Field(
        "auto", description="Whether `checkpoints` is one directory for all nodes. `auto`: tested."
    )
    workdir: Text | None = Field(
        None, description="Where the job runs. Default: the directory of the call, on every node."
    )
    checkpoints: Text | None = Field(
        None, description="Where the job saves. Default: the working directory."
    )
    node_local: Text | None = Field(None, description="A fast directory that each node has alone.")


class SecretFile(Section):
    """Where a secret's value is read."""

    file: Text = Field(description="A file of the caller; its content less a final newline.")


class JobSection(Section):
    """What runs when the command line names nothing. One of `script` and `module`."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [_with("script"), _with("module")]})

    script: Text | None = Field(None, description="A script, relative to the working directory.")
    module: (
        Annotated[str, Matching(r"[^\W\d]\w*(\.[^\W\d]\w*)*", "a module such as `pkg.train`")]
        | None
    ) = Field(None, description="A module's dotted name, run as `python -m` would.")
    args: list[Written] = Field(
        default_factory=list, description="Its arguments, each exactly as it is written."
    )
    env: Environment = Field(
        default_factory=dict, description="Variables for this job; they win over `env`."
    )


_Secret = Annotated[
    Annotated[Variable, Tag("<scalar>")]
    | Annotated[dict[Variable, SecretFile], Field(min_length=1), Tag("<mapping>")],
    Discriminator(mapped),
]


class ClusterFile(Section):
    """One cluster: its nodes, how to reach them and what to run on them."""

    model_config = _ONE_INTERPRETER

    name: (
        Annotated[
            str,
            Matching(r"[A-Za-z0-9][A-Za-z0-9._-]*", "a name of letters, digits, `.`, `_`, `-`"),
        ]
        | None
    ) = Field(None, description="The cluster's name in messages. Default: the file's name.")
    nodes: list[NodeEntry] = Field(
        min_length=1,
        description="The machines, in rank order. One entry may stand for many.",
        json_schema_extra={"contains": {"not": _SPARE}},
    )
    transport: Annotated[str, NameOf(TRANSPORTS, "How nodes are reached")] = "auto"
    ssh: SshSection = Field(SshSection(), description="How the nodes are reached.")
    network: NetworkSection = Field(NetworkSection(), description="What the ranks talk over.")
    storage: StorageSection = Field(StorageSection(), description="Directories on the nodes.")
    python: Text | None = Field(
        None, description="The interpreter that runs the job. Default: `python3` on the node."
    )
    activate: Text | None = Field(
        None,
        description="A shell line before the job's command, such as `source venv/bin/activate`. "
        "Not together with `python`.",
    )
    env: Environment = Field(
        default_factory=dict, description="Variables for every process of a run."
    )
    env_from: list[
        Annotated[
            str,
            Matching(r"[A-Za-z_*][A-Za-z0-9_*]*", "a variable's name or a pattern like `WANDB_*`"),
        ]
    ] = Field(
        default_factory=list,
        description="Variables copied from the caller; `*` stands for any characters.",
    )
    secrets: list[_Secret] = Field(
        default_factory=list,
        description="Variables that are written nowhere: a name, read from the caller's "
        "environment, or `NAME: {file: path}`.",
        json_schema_extra={"uniqueItems": True},
    )
    launcher: Annotated[
        str, Matching(r"[A-Za-z_][A-Za-z0-9_-]*", "a launcher's name such as `torchrun`")
    ] = Field(
        "torchrun",
        description=f"What starts the ranks of a node: {_LAUNCHERS}, or one that is installed.",
    )
    slurm: SlurmSection = Field(
        default_factory=SlurmSection, description="What `dslaunch slurm` asks SLURM for."
    )
    preflight: PreflightSection = Field(
        default_factory=PreflightSection, description="How `dslaunch preflight` judges."
    )
    job: JobSection | None = Field(None, description="What runs when nothing else is named.")


def json_schema() -> dict[str, Any]:
    """Give the JSON Schema (2020-12) of the cluster file, for editors and other programs."""
    schema = ClusterFile.model_json_schema(mode="validation")
    _close(schema)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": TITLE,
        "description": str(ClusterFile.__doc__).strip(),
    }
    return head | {key: value for key, value in schema.items() if key not in head}


def _close(schema: Any) -> None:
    """Let a mapping whose keys must match a pattern have no others, as pydantic means it."""
    if isinstance(schema, dict):
        if "patternProperties" in schema:
            schema["additionalProperties"] = False
        for inner in schema.values():
            _close(inner)
    elif isinstance(schema, list):
        for inner in schema:
            _close(inner)
