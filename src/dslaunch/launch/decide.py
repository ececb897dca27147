"""Judge what the nodes said: where the ranks meet, over which interface, what is shared. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dslaunch.cluster.model import Allocation, Cluster, Placement
from dslaunch.errors import ErrorCode, PlanError, PreflightError
from dslaunch.launch.decisions import Decision, DecisionCode, decision
from dslaunch.launch.facts import Directory, Facts, Interface, NodeFacts
from dslaunch.launch.plan import Rendezvous

DEFAULT_PORTS = range(20_000, 30_000)
"""Where a free port is looked for: below the range that Linux takes outgoing ports from
(32768-60999), so that no client can take it between the check and the start."""
PORTS_TRIED = 16


def ports_to_try(cluster: Cluster, seed: int) -> list[int]:
    """The ports that the master is to try, in order: the file's, or some that `seed` picks."""
    if cluster.network.master_port is not None:
        return [cluster.network.master_port]
    size = len(DEFAULT_PORTS)
    return [DEFAULT_PORTS[(seed + i * 37) % size] for i in range(PORTS_TRIED)]


def master_addresses(
    cluster: Cluster, master: Placement, interfaces: tuple[Interface, ...], resolved: list[str]
) -> list[str]:
    """The addresses at which the master may be reached, the likeliest first.

    The file's own address if it names one. Else what the other nodes' resolvers say of its
    name, then its interfaces, the fastest first; loopback is last, for nodes emulated on one
    machine. With `network.interface` only that interface's addresses.
    """
    if master.node.address is not None:
        return [master.node.address]
    wanted = cluster.network.interface
    usable = [i for i in interfaces if i.up and wanted in (None, i.name)]
    ordered = sorted(usable, key=lambda i: (i.loopback, -(i.speed or 0)))
    own = {i.address for i in usable}
    return list(dict.fromkeys([*(a for a in resolved if a in own), *(i.address for i in ordered)]))


@dataclass(frozen=True, slots=True)
class Route:
    """The address at which all nodes reach the master, and the master's interface that has it."""

    address: str
    interface: str


def choose_route(facts: Facts) -> Route:
    """Take the first address at which every other node reached the master.

    A loopback address only for one machine. Raises PreflightError with what each node said.
    """
    master, *others = facts.nodes
    loopback = {i.address for i in master.interfaces if i.loopback}
    addresses = [d.address for d in master.dialled]
    if facts.one_machine:
        addresses.sort(key=lambda address: address not in loopback)
    else:
        addresses = [address for address in addresses if address not in loopback]
    if not addresses:
        has = ", ".join(f"{i.name} {i.address}" for i in master.interfaces)
        raise PreflightError(
            f"{master.host} has no usable address" + (f", only {has}" if has else ""),
            hint="correct `network.interface`, or name the node's `address:`",
            code=ErrorCode.NO_ADDRESS,
        )
    for address in addresses:
        if all(_reached(node, address) for node in facts.nodes):
            names = (i.name for i in master.interfaces if i.address == address)
            return Route(address, next(names, "?"))
    said = [f"{n.host}: {d.address}: {d.error}" for n in others for d in n.dialled if d.error]
    raise PreflightError(
        "\n".join([f"no address of {master.host} can be reached by all other nodes", *said]),
        hint=f"let the nodes reach {master.host} on every port, or name the right network with "
        "`address:` of the node or `network.interface`",
        code=ErrorCode.MASTER_UNREACHABLE,
    )


def _reached(node: NodeFacts, address: str) -> bool:
    return any(d.address == address and d.local is not None for d in node.dialled)


def interfaces_used(facts: Facts, route: Route) -> tuple[tuple[str, str], ...]:
    """Each node's interface on the way to the master, by the address that it dialled from."""
    pairs = []
    for node in facts.nodes:
        local = next(d.local for d in node.dialled if d.address == route.address)
        name = next((i.name for i in node.interfaces if i.address == local), None)
        if name is not None:
            pairs.append((node.host, name))
    return tuple(pairs)


def choose_port(cluster: Cluster, facts: Facts) -> int:
    """The port that the master holds free. Raises PreflightError if it has none."""
    if facts.port.free is not None:
        return facts.port.free
    port, why = facts.port.taken[0]
    raise PreflightError(
        f"{facts.nodes[0].host}: port {port} cannot be used: {why.lower()}",
        hint="set `network: {master_port: auto}` to have a free one chosen, or stop what holds it: "
        f"`ss -ltnp sport = :{port}` shows it",
        code=ErrorCode.PORT_TAKEN,
    )


def decide_rendezvous(cluster: Cluster, facts: Facts) -> tuple[Rendezvous, tuple[Decision, ...]]:
    """Where the ranks meet, and why. Raises PreflightError."""
    port = choose_port(cluster, facts)
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
    """Raise PreflightError where `network.interface` is not what the nodes use.

    The master's address decides the route; where the file names both, they must agree.
    """
    wanted = cluster.network.interface
    if wanted is None or facts.one_machine:
        return
    wrong = []
    for node in facts.nodes:
        there = {interface.name for interface in node.interfaces}
        if there and wanted not in there:
            has = ", ".join(sorted(there))
            wrong.append(f"{node.host}: no interface {wanted!r}, it has {has}")
        elif used.get(node.host, wanted) != wanted:
            wrong.append(f"{node.host}: the route to {route.address} uses {used[node.host]!r}")
    if wrong:
        raise PreflightError(
            "\n".join([f"network.interface is {wanted!r}, but the nodes do not use it", *wrong]),
            hint="correct `network.interface`, or give "
            f"{facts.nodes[0].host} an `address:` that it has on that interface",
            code=ErrorCode.WRONG_INTERFACE,
        )


def own_addresses(facts: Facts, route: Route) -> tuple[tuple[str, str], ...]:
    """Each node's own address on the way to the master."""
    pairs = (
        (n.host, next((d.local for d in n.dialled if d.address == route.address), None))
        for n in facts.nodes
    )
    return tuple((host, address) for host, address in pairs if address is not None)


def decide_shared(cluster: Cluster, facts: Facts, path: str) -> tuple[bool | None, Decision]:
    """Whether all nodes see one directory at `path`, and why; None: it could not be tested.

    Raises PlanError if that contradicts the file, or checkpoints that it names cannot be written.
    """
    views = [(node, directory_at(node, path)) for node in facts.nodes]
    broken = [f"{n.host}: {d.path}: {d.error}" for n, d in views if d.error]
    if broken and cluster.storage.checkpoints is None:
        untested = DecisionCode.STORAGE_NOT_TESTED
        return None, decision(untested, assumed=True, path=path, error=broken[0])
    if broken:
        raise PlanError(
            "\n".join(["checkpoints cannot be written", *broken]),
            hint="set `storage.checkpoints` to a directory that the job's user can write",
            code=ErrorCode.CHECKPOINTS_NOT_WRITABLE,
        )
    everyone = {node.host for node in facts.nodes}
    shared = all(set(d.seen) == everyone for _, d in views)
    if cluster.storage.shared is not None and cluster.storage.shared != shared:
        raise PlanError(
            f"storage.shared is {str(cluster.storage.shared).lower()}, but {path} is "
            f"{'one directory for all nodes' if shared else 'not the same directory everywhere'}",
            hint="mount it on every node, or set `storage: {shared: auto}`",
            code=ErrorCode.STORAGE_DIFFERS,
        )
    return shared, decision(_how_shared(views, shared=shared), path=path)


def _how_shared(views: list[tuple[NodeFacts, Directory]], *, shared: bool) -> DecisionCode:
    if shared:
        return DecisionCode.STORAGE_SHARED
    apart = all(d.seen == (n.host,) for n, d in views)
    return DecisionCode.STORAGE_NOT_SHARED if apart else DecisionCode.STORAGE_PARTLY_SHARED


def decide_workdir(facts: Facts, path: str) -> tuple[Decision, ...]:
    """Name the nodes on which the working directory was made: a typo makes one on every node."""
    made = tuple(node.host for node in facts.nodes if directory_at(node, path).made)
    if not made:
        return ()
    return (decision(DecisionCode.WORKDIR_MADE, path=path, hosts=made),)


def check_destination(facts: Facts, path: str, hosts: Sequence[str]) -> None:
    """Raise PlanError for nodes that cannot be sent the job's files."""
    views = [(node.host, directory_at(node, path)) for node in facts.nodes if node.host in hosts]
    broken = [f"{host}: {view.path}: {view.error}" for host, view in views if view.error]
    if broken:
        raise PlanError(
            "\n".join(["the working directory cannot be written", *broken]),
            hint="set `storage.workdir` or --workdir to a directory that the job's user can write",
            code=ErrorCode.WORKDIR_NOT_WRITABLE,
        )


def directory_at(node: NodeFacts, path: str) -> Directory:
    """What a node said of a directory that it was asked about."""
    return next(d for d in node.directories if d.asked == path)


def check_interpreters(allocation: Allocation, facts: Facts) -> None:
    """Raise PreflightError naming every node that lacks the job's interpreter."""
    missing = [
        f"{p.node.host}: no interpreter {p.node.python or 'python3'!r}"
        for p, n in zip(allocation.placements, facts.nodes, strict=True)
        if n.interpreter is None and p.node.activate is None
    ]
    if missing:
        raise PreflightError(
            "\n".join(missing),
            hint="install it there, or set `python:` or `activate:` for those nodes",
            code=ErrorCode.NO_INTERPRETER,
        )


def check_program(facts: Facts, script: str | None, *, same: bool = True) -> None:
    """Raise PlanError if a script that is not here is missing on some node, or different there
    although it must be the `same`."""
    if script is None:
        return
    found = {n.host: dict(n.different).get(script) for n in facts.nodes}
    missing = [host for host, digest in found.items() if digest is None]
    if missing:
        raise PlanError(
            f"script {script!r} is neither here nor on {', '.join(missing)}",
            hint="check its name; it is looked for from the working directory",
            code=ErrorCode.SCRIPT_MISSING,
        )
    if same and len(set(found.values())) > 1:
        raise PlanError(
            f"script {script!r} is not the same on all nodes: {', '.join(found)}",
            hint="run dslaunch where the right one is, and it is shipped",
            code=ErrorCode.SCRIPT_DIFFERS,
        )
