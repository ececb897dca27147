"""Rules for the rendezvous: the address and the port of the first node."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from msgspec import Struct

from dslaunch.lint import Edit, Remark
from dslaunch.lint.rules import rule
from dslaunch.slurm import sources
from dslaunch.slurm.rules.counts import gpus_per_node
from dslaunch.slurm.script import Script
from dslaunch.slurm.script_mistakes import ScriptMistake
from dslaunch.slurm.shell_parser import expansion_commands, inner_commands
from dslaunch.slurm.shell_words import Expansion, Literal, ShellCommand, Word
from dslaunch.slurm.training_commands import LintedScript, TrainingCommand

ADDRESS = re.compile(r"(?i)(master|head|main)_?(addr(ess)?|node|host|ip|process_ip|node_ip)|master")
PORT = re.compile(r"(?i)(master|rdzv|main_process)_port")
ADDRESS_OPTIONS = ("master_addr", "rdzv_endpoint", "main_process_ip")
PORT_OPTIONS = ("master_port", "main_process_port")
LOCAL = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|0\.0\.0\.0|::1)(:\d+)?")
FALLBACK = re.compile(r":?[-=](localhost|127\.)")
OWN_NAMES = ("HOSTNAME", "SLURMD_NODENAME", "SLURM_TOPOLOGY_ADDR")
MANY_NODES = 128
"""From this number the names may exceed the 4,096 bytes that scontrol writes at once."""
WHOLE_NODE_GPUS = 4
"""A job with this many GPUs per node hardly shares its nodes with another job."""
FIRST_NODE = 'scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p'
FROM_JOB = "$((15000 + SLURM_JOB_ID % 10000))"


class RendezvousWord(Struct, frozen=True):
    """A word with the address or the port of the rendezvous."""

    name: str
    """The name of the variable or the option."""
    value: Word


def addresses(linted: LintedScript) -> Iterator[RendezvousWord]:
    """Return the variables and options that set the master address."""
    return _rendezvous_words(linted, ADDRESS, ADDRESS_OPTIONS)


def ports(linted: LintedScript) -> Iterator[RendezvousWord]:
    """Return the variables and options that set the master port."""
    return _rendezvous_words(linted, PORT, PORT_OPTIONS)


def _rendezvous_words(
    linted: LintedScript, variable: re.Pattern[str], options: tuple[str, ...]
) -> Iterator[RendezvousWord]:
    for command in linted.texts():
        for one in command.all_assignments():
            if variable.fullmatch(one.name):
                yield RendezvousWord(one.name, one.value)
    for launch in linted.launches:
        for name in options:
            option = launch.option(name)
            if option is not None and option.value is not None:
                yield RendezvousWord(name, option.value)


def expansions_of(words: Iterable[RendezvousWord]) -> Iterator[tuple[str, Expansion]]:
    """Return the expansions in such words, with the name of each."""
    return ((word.name, expansion) for word in words for expansion in word.value.expansions)


@rule(
    "localhost-fallback",
    "error",
    "a master address that falls back to localhost",
    source="pith-train pull request 91",
)
def fallbacks(linted: LintedScript) -> Iterator[Remark]:
    """Find addresses that fall back to localhost when a command fails."""
    script = linted.script
    for name, expansion in expansions_of(addresses(linted)):
        if FALLBACK.search(expansion.operation) or _echoes_local(expansion):
            yield ScriptMistake.LOCALHOST_FALLBACK.found(script, expansion.place, variable=name)


def _echoes_local(expansion: Expansion) -> bool:
    return any(
        command.before == "||" and any(LOCAL.fullmatch(word) for word in command.arguments)
        for command in expansion_commands(expansion)
    )


@rule(
    "local-master",
    "error",
    "a master address that is different on each node",
    source=sources.TORCHRUN,
)
def local_masters(linted: LintedScript) -> Iterator[Remark]:
    """Find localhost, or each node's own name, as the master address of several nodes."""
    script = linted.script
    if not script.several_nodes:
        return
    for word in addresses(linted):
        if LOCAL.fullmatch(word.value.constant or ""):
            yield ScriptMistake.LOCAL_MASTER.found(
                script,
                word.value.place,
                name=word.name,
                value=word.value.value,
                first_node=FIRST_NODE,
            )
        for expansion in word.value.expansions:
            programs = [command.name for command in expansion_commands(expansion)]
            own = expansion.name in OWN_NAMES or "hostname" in programs
            if own and expansion.shell > 0:
                yield ScriptMistake.OWN_NAME_AS_MASTER.found(
                    script, expansion.place, expansion=expansion.raw, source=sources.EXPANSION
                )


@rule(
    "node-list-as-name",
    "error",
    "a node list in place of one host name",
    source="SLURM, scontrol(1), show hostnames; sbatch(1), SLURM_JOB_NODELIST",
)
@rule(
    "launch-node-address",
    "warning",
    "the address of the submitting host as the master address",
    source="pith-train pull request 47",
)
def lists_for_names(linted: LintedScript) -> Iterator[Remark]:
    """Find a folded node list where one name is expected, and the node that called srun."""
    script = linted.script
    if not script.several_nodes:
        return
    for _, expansion in expansions_of(addresses(linted)):
        if _cuts_list(expansion):
            yield ScriptMistake.NODE_LIST_AS_NAME.found(
                script, expansion.place, first_node=FIRST_NODE
            )
        if expansion.name == "SLURM_LAUNCH_NODE_IPADDR":
            yield ScriptMistake.LAUNCH_NODE_ADDRESS.found(
                script, expansion.place, first_node=FIRST_NODE
            )


def _cuts_list(expansion: Expansion) -> bool:
    """Return whether it is the node list itself, or a part of its text."""
    if not re.search(r"SLURM_(JOB_)?NODELIST", expansion.raw) or expansion.within:
        return False
    cuts = ("cut", "awk", "sed", "tr", "echo")
    commands = expansion_commands(expansion)
    return not commands or all(command.name in cuts for command in commands)


@rule(
    "hostname-address",
    "warning",
    "a master address from `hostname -i` or `hostname -I`",
    source="Debian, /etc/hosts: 127.0.1.1 is the machine's own name; hostname(1)",
)
def own_addresses(linted: LintedScript) -> Iterator[Remark]:
    """Find `hostname --ip-address` and `hostname -I`."""
    for _, expansion in expansions_of(addresses(linted)):
        for command in expansion_commands(expansion):
            if command.name != "hostname" or not command.arguments:
                continue
            option = command.arguments[0]
            if option in ("-I", "--all-ip-addresses") and command.operator != "|":
                mistake = ScriptMistake.HOSTNAME_ALL_ADDRESSES
            elif option in ("-i", "--ip-address"):
                mistake = ScriptMistake.HOSTNAME_ADDRESS
            else:
                continue
            yield mistake.found(linted.script, expansion.place, option=option)


@rule("broken-pipe", "warning", "`head` ends the script with a broken pipe", source=sources.HEAD)
def broken_pipes(linted: LintedScript) -> Iterator[Remark]:
    """Find `scontrol ... | head -n 1` if a broken pipe ends the script."""
    script = linted.script
    for command, other in _pipes(script):
        strict = script.setting("e", "errexit", other.place)
        strict = strict and script.setting("", "pipefail", other.place)
        first = " ".join(other.arguments) in ("-n 1", "-n1", "-1", "--lines=1", "-n 1 -")
        many = (script.number("nodes") or 0) >= MANY_NODES
        if command.name == "scontrol" and other.name == "head" and strict and many:
            yield ScriptMistake.BROKEN_PIPE.found(
                script,
                other.place,
                edits=(Edit(other.place, other.end, "sed -n 1p"),) if first else (),
            )


def _pipes(script: Script) -> Iterator[tuple[ShellCommand, ShellCommand]]:
    """Yield pipes whose failure the shell notices: not those within `export NAME=$(...)`."""
    for command in script.commands:
        inner = () if command.words else tuple(inner_commands(command))
        yield from ((a, b) for a, b in pairwise(inner) if a.operator == b.before == "|")
    yield from ((a, b) for a, b in pairwise(script.commands) if a.operator == b.before == "|")


@rule(
    "fixed-port",
    "warning",
    "a fixed master port that two jobs on one node would share",
    source="Lightning, SLURMEnvironment: a port from the job's number; stas00/ml-engineering",
)
def fixed_ports(linted: LintedScript) -> Iterator[Remark]:
    """Find ports that two jobs on the same node would both use."""
    if alone_on_nodes(linted.script):
        return
    for word in ports(linted):
        if (word.value.constant or "").isdecimal():
            start, end = _range(word.value)
            yield _fixed_port(linted, word.value.value, start, end)
    for launch in linted.launches:
        endpoint = launch.option("rdzv_endpoint")
        last = endpoint.value.pieces[-1] if endpoint and endpoint.value else None
        match = re.search(r":(\d+)$", last.text) if isinstance(last, Literal) else None
        if match and isinstance(last, Literal) and not _single(launch):
            places = last.places[match.start(1) :]
            yield _fixed_port(linted, match[1], places[0], places[-1] + 1)


def alone_on_nodes(script: Script) -> bool:
    """Return whether other jobs on the nodes of this job are unlikely."""
    found = gpus_per_node(script)
    gpus = found is not None and found[0] >= WHOLE_NODE_GPUS and script.several_nodes
    return gpus or "exclusive" in script.options or script.option_text("mem") == "0"


def _range(word: Word) -> tuple[int, int]:
    places = [
        place for piece in word.pieces if isinstance(piece, Literal) for place in piece.places
    ]
    return places[0], places[-1] + 1


def _fixed_port(linted: LintedScript, port: str, start: int, end: int) -> Remark:
    plain = linted.script.text[start:end] == port
    return ScriptMistake.FIXED_PORT.found(
        linted.script,
        start,
        port=port,
        port_of_job=FROM_JOB,
        edits=(Edit(start, end, FROM_JOB),) if plain else (),
    )


def _single(launch: TrainingCommand) -> bool:
    nodes = launch.option("nnodes")
    return nodes is not None and nodes.text == "1"


@rule(
    "port-per-node",
    "error",
    "a master port that each node chooses itself",
    source=sources.EXPANSION,
)
def port_per_node(linted: LintedScript) -> Iterator[Remark]:
    """Find ports that each node chooses for itself."""
    for _, expansion in expansions_of(ports(linted)):
        random = "RANDOM" in expansion.raw or "shuf" in expansion.raw
        if random and expansion.shell > 0:
            yield ScriptMistake.PORT_PER_NODE.found(
                linted.script, expansion.place, expansion=expansion.raw
            )


@rule(
    "fixed-rendezvous-id",
    "info",
    "a rendezvous id that is the same in every job",
    source="PyTorch, torchrun (elastic launch), --rdzv-id",
)
def rendezvous_ids(linted: LintedScript) -> Iterator[Remark]:
    """Find rendezvous IDs that are the same in every job."""
    for launch in linted.launches:
        option = launch.option("rdzv_id")
        if not launch.torch or option is None or option.value is None or not option.value.constant:
            continue
        if launch.option("standalone") or _single(launch):
            continue
        start, end = _range(option.value)
        plain = linted.script.text[start:end] == option.value.value
        held = option.value.value.startswith("$")
        escaped = held and linted.script.text[start - 1] == "\\"
        edits = (Edit(start, end, "$SLURM_JOB_ID"),) if plain and not held else ()
        edits = (Edit(start - 1, start, ""),) if plain and escaped else edits
        mistake = (
            ScriptMistake.UNEXPANDED_RENDEZVOUS_ID if held else ScriptMistake.FIXED_RENDEZVOUS_ID
        )
        yield mistake.found(linted.script, start, value=option.value.value, edits=edits)


@rule(
    "rendezvous-alias",
    "warning",
    "a c10d endpoint that is not the host name of the node",
    source=sources.TORCHRUN_ALIAS,
)
def aliases(linted: LintedScript) -> Iterator[Remark]:
    """Find c10d endpoints with a name that is not the host name."""
    for launch in linted.launches:
        backend, endpoint = launch.option("rdzv_backend"), launch.option("rdzv_endpoint")
        conf = launch.option("rdzv_conf")
        if not (backend and backend.text == "c10d" and endpoint and endpoint.value):
            continue
        if conf and "is_host" in conf.text:
            continue
        pieces = endpoint.value.pieces
        behind = pieces[1] if len(pieces) > 1 and isinstance(pieces[0], Expansion) else None
        if isinstance(behind, Literal) and behind.text[0] not in ":":
            yield ScriptMistake.RENDEZVOUS_ALIAS.found(linted.script, endpoint.place)
