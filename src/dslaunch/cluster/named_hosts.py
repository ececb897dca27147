"""Hosts that a text in another form than that of a cluster file names. Pure.

They are for hints alone: what cannot be understood with certainty yields no host.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from dslaunch.cluster.hostfile import parse_hostfile
from dslaunch.cluster.model import MOST_SLOTS
from dslaunch.cluster.names import address_fault, host_fault, is_loopback
from dslaunch.cluster.nodeset import InvalidNodeSet, expand, fold_in_order
from dslaunch.cluster.synonyms import meant_key, meant_of_node
from dslaunch.errors import ConfigError

MOST = 1000
"""Maximum number of hosts that a hint is made for."""
MOST_ENTRIES = 8
"""Maximum number of entries in a hint."""
EXAMPLE_SLOTS = 8
"""Slots in a hint where the text has none."""
_FIRST = ("master", "head", "head_node", "leader", "chief")
"""Keys for the first node, beside those of the others."""
_BETWEEN = re.compile(r"(?:\s*,\s*|\s+)")
_ANSIBLE_RANGE = re.compile(r"\[([0-9]+):([0-9]+)\]")
_DIGIT = re.compile(r"[0-9]")
_QUOTED = re.compile(r'"([^"]*)"')


class NamedHost(NamedTuple):
    """A host, and what the text says about it."""

    host: str
    slots: int | None = None
    user: str | None = None
    address: str | None = None


def nodes_text(data: dict[str, Any]) -> str | None:
    """Return the key `nodes` of an invalid cluster file as it should be written; None: unknown.

    Unknown are nodes that are mappings with other keys: every mistake in them has its own hint.
    """
    common = next((_slots(n) for key, n in data.items() if _means_slots(key)), None)
    main = "nodes" if "nodes" in data else next(filter(_means_nodes, data), None)
    hosts = _of_top_level(data, common) if main is None else _hosts_of(data[main], common)
    firsts = [data[key] for key in _FIRST if isinstance(data.get(key), str)]
    if hosts and firsts:
        hosts = [*_of_text(firsts[0], common), *hosts]
    alike = groupby(_certain(hosts), key=lambda each: (each.slots, each.user, not each.address))
    entries = [_entry(list(group)) for _, group in alike]
    return f"nodes: [{', '.join(entries)}]" if 0 < len(entries) <= MOST_ENTRIES else None


def _means_nodes(key: object) -> bool:
    return meant_key(str(key), None) == "nodes"


def _means_slots(key: object) -> bool:
    return meant_of_node(str(key)) == "nodes[].slots"


def _entry(alike: list[NamedHost]) -> str:
    """Return the entry of hosts that differ in their names and addresses alone."""
    first = alike[0]
    keys = [
        f"host: {_quoted(fold_in_order(each.host for each in alike))}",
        f"slots: {first.slots or EXAMPLE_SLOTS}",
    ]
    if first.user:
        keys.append(f"user: {first.user}")
    if first.address:
        keys.append(f"address: {_quoted(fold_in_order(each.address or '' for each in alike))}")
    return f"{{{', '.join(keys)}}}"


def _quoted(text: str) -> str:
    """Return text as a value between the braces of YAML; names have no quotes in them."""
    return f"'{text}'" if set(text) & set("[],:") else text


def _of_top_level(data: dict[str, Any], common: int | None) -> list[NamedHost]:
    """Return the hosts that stand in place of `nodes`, as in `node01: 8`; none if one has no
    slots."""
    hosts = [_of_pair(key, value, common) for key, value in data.items() if _is_host(key)]
    return hosts if all(each.slots for each in hosts) else []


def _is_host(key: object) -> bool:
    """Return whether a key is the name of a host: no key of a cluster file has a digit."""
    return _DIGIT.search(str(key)) is not None


def _hosts_of(given: object, common: int | None) -> list[NamedHost]:
    """Return the hosts of the value of `nodes`: text, a list, or a mapping by host."""
    if isinstance(given, str):
        return _of_text(given, common)
    if isinstance(given, list):
        return _of_list(given, common)
    if isinstance(given, dict):
        return [_of_pair(name, value, common) for name, value in given.items()]
    return []


def _of_list(items: list[Any], common: int | None) -> list[NamedHost]:
    """Return the hosts of all items; none if one of them is not certain, or they are too many."""
    found: list[NamedHost] = []
    for item in items:
        hosts = _of_item(item, common)
        found += hosts
        if not hosts or len(found) > MOST:
            return []
    return found


def _of_item(item: object, common: int | None) -> list[NamedHost]:
    if isinstance(item, str):
        return _of_text(item, common)
    if not isinstance(item, dict) or len(item) != 1:
        return []
    ((key, value),) = item.items()
    if key == "host":
        return _of_text(str(value), common)
    return _of_top_level(item, common)


def _of_text(text: str, common: int | None) -> list[NamedHost]:
    """Return the hosts of a line of a hostfile, or of names such as `a, b` and `node[1-4]`."""
    try:
        lines = parse_hostfile(text, "", slots=common or EXAMPLE_SLOTS)
    except ConfigError:
        return [NamedHost(name, common) for name in _names(text)]
    return [NamedHost(line.host, line.slots, line.user) for line in lines]


def _names(text: str) -> tuple[str, ...]:
    try:
        return expand(_BETWEEN.sub(",", text.strip()))
    except InvalidNodeSet:
        return ()


def _of_pair(name: object, value: object, common: int | None) -> NamedHost:
    """Return a host of a mapping: `node1: 8`, `node1: {gpus: 8}`, or `node1` alone."""
    own = value if isinstance(value, dict) else {"slots": value}
    known = {meant_key(str(key), "nodes") or key: found for key, found in own.items()}
    slots, user, address = _slots(known.get("slots")), known.get("user"), known.get("address")
    return NamedHost(
        str(name),
        slots or common,
        user if isinstance(user, str) and user.isidentifier() else None,
        address if isinstance(address, str) and address_fault(address) is None else None,
    )


def _slots(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 < value <= MOST_SLOTS else None


def _certain(hosts: Iterable[NamedHost]) -> list[NamedHost]:
    """Return the hosts if all have valid names and none is named twice, else nothing."""
    found = list(hosts)
    names = {each.host for each in found}
    is_certain = len(names) == len(found) <= MOST and not any(map(host_fault, names))
    return found if is_certain else []


def of_names(names: list[Any]) -> tuple[str, ...]:
    """Return the hosts of a list of names, folded or not; empty if one is not a name."""
    return tuple(each.host for each in _certain(_of_list(names, None)))


def of_inventory(data: object) -> tuple[str, ...]:
    """Return the hosts of an Ansible inventory in YAML, each once, in the written order."""
    found = dict.fromkeys(host for name in _inventory_names(data) for host in _ranged(name))
    return tuple(each.host for each in _certain(map(NamedHost, found)))


def _inventory_names(group: object) -> Iterator[str]:
    if not isinstance(group, dict):
        return
    for key, value in group.items():
        if key == "hosts" and isinstance(value, dict):
            yield from map(str, value)
        else:
            yield from _inventory_names(value)


def of_inventory_lines(lines: list[str]) -> tuple[str, ...]:
    """Return the hosts of an Ansible inventory in INI form: lines outside of `[group:vars]`."""
    found: dict[str, None] = {}
    names_hosts = True
    for line in lines:
        if line.startswith("["):
            names_hosts = not line.endswith((":vars]", ":children]"))
        elif names_hosts and line and not line.startswith(("#", ";")):
            found.update(dict.fromkeys(_ranged(line.split()[0])))
    return tuple(each.host for each in _certain(map(NamedHost, found)))


def _ranged(name: str) -> tuple[str, ...]:
    """Return the hosts of a name of an inventory, where `node[01:04]` is a range; itself if it is
    invalid."""
    return _names(_ANSIBLE_RANGE.sub(r"[\1-\2]", name)) or (name,)


def of_hosts_file(lines: list[str]) -> tuple[str, ...]:
    """Return the first name of each line of /etc/hosts, without those of the machine itself.

    Empty if a line is not an address with names (hosts(5)).
    """
    found: dict[str, None] = {}
    for line in lines:
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            address = ipaddress.ip_address(words[0])
        except ValueError:
            return ()
        if len(words) == 1:
            return ()
        if not (is_loopback(words[0]) or address.is_multicast or words[1].startswith("ip6-")):
            found[words[1]] = None
    return tuple(each.host for each in _certain(map(NamedHost, found)))


def of_csv(lines: list[str]) -> tuple[str, ...]:
    """Return the first fields of comma-separated lines with a number in a later field, such as
    `node01,8`; the first line may be a head. Empty if the text has another form."""
    rows = [[field.strip() for field in line.split(",")] for line in lines]
    if len(rows) > 1 and not any(map(str.isdecimal, rows[0])):
        del rows[0]
    has_numbers = all(any(map(str.isdecimal, row[1:])) for row in rows)
    return of_names([row[0] for row in rows]) if has_numbers else ()


def of_table(lines: list[str]) -> tuple[str, ...]:
    """Return the first words of a table's lines below its head."""
    return of_names([line.split()[0] for line in lines[1:]])


def of_terraform(outputs: dict[str, Any]) -> tuple[str, ...]:
    """Return the hosts of the first output of Terraform that has some: a list, or the values of a
    mapping."""
    for output in outputs.values():
        value = output.get("value") if isinstance(output, dict) else None
        names = list(value.values()) if isinstance(value, dict) else value
        if isinstance(names, list) and (hosts := of_names(names)):
            return hosts
    return ()


def of_terraform_lines(lines: list[str]) -> tuple[str, ...]:
    """Return the hosts in the first list of `terraform output`: `ips = [`, and one name a line."""
    names: list[str] = []
    for line in lines:
        if line.startswith("]") and names:
            break
        match = _QUOTED.fullmatch(line.rstrip(","))
        names += [match[1]] if match else []
    return of_names(names)
