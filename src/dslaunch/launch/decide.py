"""Decide the rendezvous, the interfaces and the shared storage from facts of the nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from dslaunch.cluster.model import Allocation, Cluster, Placement
from dslaunch.cluster.nodeset import fold
from dslaunch.errors import ErrorCode, PlanError, PreflightError
from dslaunch.launch.decisions import Decision, DecisionCode, decision
from dslaunch.launch.facts import Directory, Facts, Interface, NodeFacts
from dslaunch.launch.plan import Rendezvous

DEFAULT_PORTS = range(20_000, 30_000)
"""The range to find a free port in: below the ephemeral ports of Linux (32768-60999), so that no
client can use the port between the check and the start."""
PORTS_TRIED = 16


def ports_to_try(cluster: Cluster, seed: int) -> list[int]:
    """Return the ports to try on the master, in order: that of the file, or some by `seed`."""
    if cluster.network.master_port is not None:
        return [cluster.network.master_port]
    size = len(DEFAULT_PORTS)
    return [DEFAULT_PORTS[(seed + i * 37) % size] for i in range(PORTS_TRIED)]


def master_addresses(
    cluster: Cluster, master: Placement, interfaces: tuple[Interface, ...], resolved: list[str]
) -> list[str]:
    """Return possible addresses of the master, the most likely first.

    The address in the file if it is set. Otherwise the addresses to which the other nodes resolve
    its name, then those of its interfaces, the fastest first; loopback is last, for nodes emulated
    on one machine. With `network.interface` only the addresses of that interface.
    """
    if master.node.address is not None:
        return [master.node.address]
    wanted = cluster.network.interface
    usable = [i for i in interfaces if i.up and wanted in (None, i.name)]
    ordered = sorted(usable, key=lambda i: (i.loopback, -(i.speed or 0)))
    own = {i.address for i in usable}
    return list(dict.fromkeys([*(a for a in resolved if a in own), *(i.address for i in ordered)]))


class Route(Struct, frozen=True):
    """The address at which all nodes reach the master, and its interface."""

    address: str
    interface: str


def choose_route(facts: Facts) -> Route:
    """Return the first address at which every other node reached the master.

    A loopback address is valid on one machine only. Raises PreflightError with the errors per node.
    """
    master, *others = facts.nodes
    loopback = {i.address for i in master.interfaces if i.loopback}
    addresses = [d.address for d in master.dialled]
    if facts.one_machine:
        addresses.sort(key=lambda address: address not in loopback)
    else:
        addresses = [address for address in addresses if address not in loopback]
    if not addresses:
        interfaces = tuple(f"{i.name} {i.address}" for i in master.interfaces)
        raise PreflightError.coded(
            ErrorCode.NO_ADDRESS, host=master.host, interfaces=interfaces or ("no interface",)
        )
    for address in addresses:
        if all(_reached(node, address) for node in facts.nodes):
            names = (i.name for i in master.interfaces if i.address == address)
            return Route(address, next(names, "?"))
    failed = (f"{n.host}: {d.address}: {d.error}" for n in others for d in n.dialled if d.error)
    raise PreflightError.coded(ErrorCode.MASTER_UNREACHABLE, host=master.host, lines=tuple(failed))


def _reached(node: NodeFacts, address: str) -> bool:
    return any(d.address == address and d.local is not None for d in node.dialled)


def interfaces_used(facts: Facts, route: Route) -> tuple[tuple[str, str], ...]:
    """Return the interface of each node on its route to the master, from its source address."""
    pairs = []
    for node in facts.nodes:
        local = next(d.local for d in node.dialled if d.address == route.address)
        name = next((i.name for i in node.interfaces if i.address == local), None)
        if name is not None:
            pairs.append((node.host, name))
    return tuple(pairs)


def choose_port(facts: Facts) -> int:
    """Return the port that the master reserved. Raises PreflightError if none was free."""
    if facts.port.free is not None:
        return facts.port.free
    port, error = facts.port.taken[0]
    host = facts.nodes[0].host
    raise PreflightError.coded(ErrorCode.PORT_TAKEN, host=host, port=port, error=error.lower())


def decide_rendezvous(cluster: Cluster, facts: Facts) -> tuple[Rendezvous, tuple[Decision, ...]]:
    """Return the rendezvous, and the decisions with their evidence. Raises PreflightError."""
    port = choose_port(facts)
    route = choose_route(facts)
    interfaces = interfaces_used(facts, route)
    check_interface(cluster, facts, route, dict(interfaces))
    names = tuple(dict.fromkeys(name for _, name in interfaces))
    here = DecisionCode.MASTER_ON_ONE_MACHINE
    decisions = (
        decision(
            here if facts.one_machine else DecisionCode.MASTER_REACHED,
            address=route.address,
            port=port,
            interface=route.interface,
            host=facts.nodes[0].host,
            others=len(facts.nodes) - 1,
            port_origin="free" if cluster.network.master_port is None else "file",
        ),
        decision(DecisionCode.INTERFACE_OF_ROUTE, interfaces=names),
    )
    return Rendezvous(route.address, port, interfaces, own_addresses(facts, route)), decisions


def check_interface(cluster: Cluster, facts: Facts, route: Route, used: Mapping[str, str]) -> None:
    """Raise PreflightError if nodes do not use `network.interface`.

    The master's address decides the route; if the file sets both, they must agree.
    """
    wanted = cluster.network.interface
    if wanted is None or facts.one_machine:
        return
    wrong = []
    for node in facts.nodes:
        there = {interface.name for interface in node.interfaces}
        if there and wanted not in there:
            has = ", ".join(sorted(there))
            wrong.append(f"{node.host}: no interface {wanted!r}; it has {has}")
        elif used.get(node.host, wanted) != wanted:
            wrong.append(f"{node.host}: the route to {route.address} uses {used[node.host]!r}")
    if wrong:
        raise PreflightError.coded(
            ErrorCode.WRONG_INTERFACE,
            interface=wanted,
            host=facts.nodes[0].host,
            lines=tuple(wrong),
        )


def own_addresses(facts: Facts, route: Route) -> tuple[tuple[str, str], ...]:
    """Return the address of each node on its route to the master."""
    pairs = (
        (n.host, next((d.local for d in n.dialled if d.address == route.address), None))
        for n in facts.nodes
    )
    return tuple((host, address) for host, address in pairs if address is not None)


def decide_shared(cluster: Cluster, facts: Facts, path: str) -> tuple[bool | None, Decision]:
    """Return whether all nodes share the directory `path`, and the evidence; None: not testable.

    Raises PlanError if this contradicts the file, or if its `checkpoints` are not writable.
    """
    views = [(node, directory_at(node, path)) for node in facts.nodes]
    broken = [f"{n.host}: {d.path}: {d.error}" for n, d in views if d.error]
    if broken and cluster.storage.checkpoints is None:
        untested = DecisionCode.STORAGE_NOT_TESTED
        return None, decision(untested, assumed=True, path=path, error=broken[0])
    if broken:
        raise PlanError.coded(ErrorCode.CHECKPOINTS_NOT_WRITABLE, lines=tuple(broken))
    stores = len({directory.first for _, directory in views})
    shared = stores == 1
    if cluster.storage.shared is not None and cluster.storage.shared != shared:
        raise PlanError.coded(
            ErrorCode.STORAGE_DIFFERS,
            said=str(cluster.storage.shared).lower(),
            path=path,
            found="shared by all nodes" if shared else "not shared by all nodes",
        )
    return shared, decision(_how_shared(stores, len(views)), path=path)


def _how_shared(stores: int, nodes: int) -> DecisionCode:
    """Return how `nodes` share a directory that is on `stores` different file systems."""
    if stores == 1:
        return DecisionCode.STORAGE_SHARED
    apart = stores == nodes
    return DecisionCode.STORAGE_NOT_SHARED if apart else DecisionCode.STORAGE_PARTLY_SHARED


def decide_workdir(facts: Facts, path: str) -> tuple[Decision, ...]:
    """Return the nodes that had no working directory: a typing mistake creates it on every node."""
    made = tuple(node.host for node in facts.nodes if directory_at(node, path).made)
    if not made:
        return ()
    return (decision(DecisionCode.WORKDIR_MADE, path=path, hosts=made),)


def check_destination(facts: Facts, path: str, hosts: Sequence[str]) -> None:
    """Raise PlanError for nodes that cannot receive the files of the job."""
    views = [(node.host, directory_at(node, path)) for node in facts.nodes if node.host in hosts]
    broken = [f"{host}: {view.path}: {view.error}" for host, view in views if view.error]
    if broken:
        raise PlanError.coded(ErrorCode.WORKDIR_NOT_WRITABLE, lines=tuple(broken))


def directory_at(node: NodeFacts, path: str) -> Directory:
    """Return the facts of a node about a directory."""
    return next(d for d in node.directories if d.asked == path)


def check_interpreters(allocation: Allocation, facts: Facts) -> None:
    """Raise PreflightError with every node that lacks the interpreter of the job."""
    missing = [
        f"{p.node.host}: {p.node.python or 'python3'}"
        for p, n in zip(allocation.placements, facts.nodes, strict=True)
        if n.interpreter is None and p.node.activate is None
    ]
    if missing:
        raise PreflightError.coded(ErrorCode.NO_INTERPRETER, lines=tuple(missing))


def check_program(
    facts: Facts, script: str | None, *, program: str, similar: str, same: bool = True
) -> None:
    """Raise PlanError if a script that is not on this machine is missing on a node, or differs
    between nodes although it must be the `same`.

    `program`: the path of the script as the user wrote it; `similar`: that of a file that may be
    meant.
    """
    if script is None:
        return
    found = {n.host: dict(n.different).get(script) for n in facts.nodes}
    missing = [host for host, digest in found.items() if digest is None]
    if missing:
        raise PlanError.coded(
            ErrorCode.SCRIPT_MISSING, script=program, hosts=fold(missing), similar=similar
        )
    if same and len(set(found.values())) > 1:
        raise PlanError.coded(ErrorCode.SCRIPT_DIFFERS, script=program, hosts=fold(found))
