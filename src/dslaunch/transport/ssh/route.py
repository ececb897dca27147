"""Resolve the route to a node: every host on it, as OpenSSH resolves it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.cluster.model import Node
from dslaunch.terminal import shortened
from dslaunch.transport.ssh.config import Asked, Directives, Options, look_up
from dslaunch.transport.ssh.known_hosts import DEFAULT_PORT, HostName

MOST_HOPS = 8
"""Hosts on one route; a longer one is probably a loop."""
USER_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
GLOBAL_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
NONE = "none"
"""Switches an option off."""
_HOP = re.compile(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>[0-9]{1,5}))?/?")
_NUMBER = re.compile(r"[0-9]{1,5}")
_TOKEN = re.compile(r"%(.?)|\$\{([^${}]{0,255})\}", re.DOTALL)


class RouteError(Exception):
    """The route to a node cannot be resolved; the message says why."""


class Client(Struct, frozen=True):
    """The user and the files on this machine that routes depend on."""

    files: tuple[Directives, ...]
    """The configuration files; the first that sets an option wins."""
    user: str
    home: Path
    environ: Mapping[str, str]


class Destination(Struct, frozen=True):
    """A host as the user or a ProxyJump names it."""

    alias: str
    user: str | None = None
    port: int | None = None
    identity_file: str | None = None
    jump: str | None = None


class Hop(Struct, frozen=True):
    """One host of a route, resolved."""

    alias: str
    host: str
    """The name or address that is dialed."""
    port: int
    user: str
    known_as: HostName
    """The name under which its key is known."""
    known_hosts: tuple[Path, ...]
    identity_files: tuple[Path, ...]
    """The private keys that are named; empty: those with standard names."""
    only_these_keys: bool
    """Whether no other keys of the agent are offered (IdentitiesOnly)."""
    proxy_command: str | None
    """The program through which OpenSSH would connect."""
    jump: str | None
    """The jump hosts: `[user@]host[:port]`, with commas between."""
    options: Options


def route(client: Client, node: Node) -> tuple[Hop, ...]:
    """Return every host on the route to a node, the node last. Raises RouteError."""
    target = Destination(
        alias=node.host,
        user=node.user,
        port=node.port,
        identity_file=node.identity_file,
        jump=node.jump,
    )
    return _hops(client, target, ())


def login_user(client: Client, node: Node) -> str:
    """Return the user that a node is logged in to as."""
    options = look_up(client.files, Asked(node.host, node.user, client.user))
    return _user(client, node.user, options)


def _user(client: Client, named: str | None, options: Options) -> str:
    return named or options.first("user") or client.user


def _hops(client: Client, target: Destination, above: tuple[str, ...]) -> tuple[Hop, ...]:
    if target.alias in above:
        raise RouteError(f"jump host loop: {' through '.join((*above, target.alias))}")
    if len(above) >= MOST_HOPS:
        raise RouteError(f"more than {MOST_HOPS} jump hosts: {' through '.join(above)}")
    hop = _resolve(client, target)
    if hop.jump is None:
        return (hop,)
    # the last host of the list is reached through those before it, else by its own configuration:
    # ssh starts another ssh for it, with `-J` and the rest of the list
    before, _, last = hop.jump.rpartition(",")
    via = replace(parse_hop(last), jump=before or None)
    return (*_hops(client, via, (*above, target.alias)), hop)


def parse_hop(text: str) -> Destination:
    """Parse `[user@]host[:port]`. Raises RouteError."""
    user, at, host = text.strip().removeprefix("ssh://").rpartition("@")
    parts = _HOP.fullmatch(host)
    if parts is None or (at and not user):
        raise RouteError(f"jump host {shortened(text)}: expected [user@]host[:port]")
    port = _port_number(parts["port"], f"jump host {shortened(text)}") if parts["port"] else None
    return Destination(parts["v6"] or parts["host"], user or None, port)


def _resolve(client: Client, target: Destination) -> Hop:
    """Return one host of a route by the SSH configuration. Raises RouteError."""
    options = look_up(client.files, Asked(target.alias, target.user, client.user))
    host = expand(options.first("hostname") or "%h", {"h": target.alias}, {})
    user = _user(client, target.user, options)
    port = target.port or _port(options)
    key_alias = options.first("hostkeyalias")
    tokens = {
        "d": str(client.home),
        "h": host,
        "n": target.alias,
        "p": str(port),
        "r": user,
        "u": client.user,
        "k": key_alias or host,
    }
    user_files = options.words("userknownhostsfile") or USER_KNOWN_HOSTS
    global_files = options.words("globalknownhostsfile") or GLOBAL_KNOWN_HOSTS
    return Hop(
        alias=target.alias,
        host=host,
        port=port,
        user=user,
        known_as=HostName(key_alias or host, port, alias=key_alias is not None),
        known_hosts=_paths((*user_files, *global_files), tokens, client),
        identity_files=_paths(_identities(target, options), tokens, client),
        only_these_keys=is_on(options, "identitiesonly"),
        proxy_command=_proxy_command(target, options),
        jump=_jump_hosts(target, options, tokens),
        options=options,
    )


def _paths(names: Sequence[str], tokens: Mapping[str, str], client: Client) -> tuple[Path, ...]:
    """Return the files that an option names, without `none`. Raises RouteError."""
    texts = (expand(name, tokens, client.environ) for name in names if name != NONE)
    return tuple(in_home(text, client.home) for text in texts)


def _jump_hosts(target: Destination, options: Options, tokens: Mapping[str, str]) -> str | None:
    """Return the jump hosts; those of the cluster file come before ProxyJump. Raises RouteError."""
    jump = target.jump or expand(options.first("proxyjump") or NONE, tokens, {})
    return None if jump.lower() == NONE else jump


def _proxy_command(target: Destination, options: Options) -> str | None:
    """Return the ProxyCommand; a jump host of the cluster file, also `none`, replaces it."""
    command = None if target.jump else options.first("proxycommand")
    return None if command == NONE else command


def is_on(options: Options, keyword: str) -> bool:
    """Return whether a switch is set to yes."""
    return (options.first(keyword) or "no").lower() in ("yes", "true")


def _identities(target: Destination, options: Options) -> Sequence[str]:
    """Return the key of the cluster file, then those of the configuration."""
    own = (target.identity_file,) if target.identity_file else ()
    return (*own, *options.words("identityfile"))


def _port(options: Options) -> int:
    text = options.first("port")
    if text is None:
        return DEFAULT_PORT
    return _port_number(text, f"{options.found['port'][0].place}: Port")


def _port_number(text: str, where: str) -> int:
    """Return a port. Raises RouteError for other text, such as `²`."""
    number = int(text) if _NUMBER.fullmatch(text) else 0
    if not 0 < number < 2**16:
        raise RouteError(f"{where} {shortened(text)} is not a port number")
    return number


def in_home(text: str, home: Path) -> Path:
    """Return a path, `~` replaced by the home directory."""
    return home / text[2:] if text.startswith("~/") else Path(text).expanduser()


def expand(text: str, tokens: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """Replace tokens such as `%h`, and `${NAME}`. Raises RouteError for one that is not
    defined."""

    def value(found: re.Match[str]) -> str:
        token, variable = found.groups()
        values, name = (environ, variable) if token is None else ({"%": "%", **tokens}, token)
        if name not in values:
            raise RouteError(f"{text!r}: {found[0]} is not defined here")
        return values[name]

    return _TOKEN.sub(value, text)
