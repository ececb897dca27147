"""Find the parts of a user's SSH configuration that only OpenSSH supports. A table, and its use.

Options that are in no table need OpenSSH: an unknown option may be one that restricts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from dslaunch.transport.ssh.keys import STANDARD_NAMES, certificate_of, kind_of

if TYPE_CHECKING:
    from dslaunch.transport.ssh.config import Directive
    from dslaunch.transport.ssh.route import Hop


class Need(Struct, frozen=True, order=True):
    """One feature that the `fabric` transport lacks."""

    feature: str
    """The option as the configuration spells it, or the file, with its place."""
    why: str
    weaker: bool
    """Whether a connection without it would be less strict instead of failing."""


class Surroundings(Struct, frozen=True):
    """What the user has besides files: keys in an agent, a Kerberos ticket."""

    agent_key_types: tuple[str, ...] = ()
    ticket: bool = False
    home: Path = Path("/nonexistent")


class Rule(Struct, frozen=True):
    """When an option needs OpenSSH."""

    why: str
    weaker: bool
    unless: tuple[str, ...] = ("no", "none", "false")
    """Values, in lower case, for which it does not need OpenSSH."""


_NO_SECURITY_KEYS = "Paramiko does not support FIDO security keys"
_NO_CERTIFICATES = "Paramiko logs in without certificates"
_ALGORITHMS = Rule("Paramiko negotiates algorithms by its own list", weaker=True, unless=())
_ADDRESS = Rule("Paramiko chooses the local address itself", weaker=True, unless=("any",))
RULES: dict[str, Rule] = {
    "addressfamily": _ADDRESS,
    "bindaddress": _ADDRESS,
    "bindinterface": _ADDRESS,
    "canonicalizehostname": Rule("Paramiko does not canonicalize names", weaker=True),
    "casignaturealgorithms": _ALGORITHMS,
    "certificatefile": Rule("Paramiko does not present this certificate", weaker=False),
    "checkhostip": Rule("Paramiko does not check the address's key", weaker=True),
    "ciphers": _ALGORITHMS,
    "hostbasedauthentication": Rule(
        "Paramiko does not support host-based authentication", weaker=False
    ),
    "hostkeyalgorithms": _ALGORITHMS,
    "identityagent": Rule(
        "Paramiko asks the agent of SSH_AUTH_SOCK", weaker=False, unless=("ssh_auth_sock",)
    ),
    "kexalgorithms": _ALGORITHMS,
    "knownhostscommand": Rule("Paramiko does not run this command", weaker=False),
    "macs": _ALGORITHMS,
    "pkcs11provider": Rule("Paramiko does not support PKCS#11 keys", weaker=False),
    "proxyusefdpass": Rule("Paramiko does not pass descriptors", weaker=True),
    "pubkeyacceptedalgorithms": _ALGORITHMS,
    "pubkeyacceptedkeytypes": _ALGORITHMS,
    "pubkeyauthentication": Rule(
        "dslaunch logs in with keys only", weaker=False, unless=("yes", "true")
    ),
    "requiredrsasize": Rule("Paramiko accepts shorter RSA keys", weaker=True, unless=()),
    "revokedhostkeys": Rule("Paramiko does not read lists of revoked keys", weaker=True),
    "verifyhostkeydns": Rule("Paramiko does not look up host keys in DNS", weaker=False),
}
"""Option in lower case -> when it needs OpenSSH."""
_TICKET_RULES = {
    "gssapiauthentication": Rule("Paramiko is used without Kerberos", weaker=False),
    "gssapikeyexchange": Rule("Paramiko is used without Kerberos", weaker=False),
}
"""Rules that hold only with a Kerberos ticket: Debian and Red Hat set the option for everybody."""
APPLIED = frozenset(
    [
        "globalknownhostsfile",
        "host",
        "hostkeyalias",
        "hostname",
        "identitiesonly",
        "identityfile",
        "include",
        "match",
        "port",
        "proxycommand",
        "proxyjump",
        "user",
        "userknownhostsfile",
    ]
)
"""Options that `route` and the fabric transport apply."""
_WITHOUT_EFFECT = """
addkeystoagent batchmode canonicaldomains canonicalizefallbacklocal canonicalizemaxdots
canonicalizepermittedcnames challengeresponseauthentication channeltimeout clearallforwardings
compression compressionlevel connectionattempts connecttimeout controlmaster controlpath
controlpersist dynamicforward enableescapecommandline enablesshkeysign escapechar
exitonforwardfailure fingerprinthash forkafterauthentication forwardagent forwardx11
forwardx11timeout forwardx11trusted gatewayports gssapiclientidentity gssapidelegatecredentials
gssapikexalgorithms gssapirenewalforcesrekey gssapiserveridentity gssapitrustdns hashknownhosts
hostbasedacceptedalgorithms hostbasedkeytypes ignoreunknown ipqos kbdinteractiveauthentication
kbdinteractivedevices keepalive localcommand localforward loglevel logverbose
nohostauthenticationforlocalhost numberofpasswordprompts obscurekeystroketiming
passwordauthentication permitlocalcommand permitremoteopen preferredauthentications protocol
rekeylimit remotecommand remoteforward requesttty securitykeyprovider sendenv
serveralivecountmax serveraliveinterval sessiontype setenv stdinnull streamlocalbindmask
streamlocalbindunlink stricthostkeychecking syslogfacility tag tcpkeepalive tunnel tunneldevice
updatehostkeys usekeychain useprivilegedport userroaming versionaddendum visualhostkey
warnweakcrypto xauthlocation
"""
WITHOUT_EFFECT = frozenset(_WITHOUT_EFFECT.split())
"""Options without effect on dslaunch, or where dslaunch is always stricter."""


def needs_of_options(hop: Hop, around: Surroundings) -> Iterator[Need]:
    """Yield what the options of one host of a route need OpenSSH for."""
    for directive in hop.options.undecided:
        yield _undecided(directive)
    for directives in hop.options.found.values():
        for directive in directives:
            yield from _needs_of_option(directive, around)
    if hop.proxy_command is not None:
        place = hop.options.found["proxycommand"][0].place
        yield Need(f"ProxyCommand ({place})", "Paramiko has no shell for it", weaker=True)


def _undecided(directive: Directive) -> Need:
    if not directive.keyword:
        return Need(directive.place, "the line cannot be parsed", weaker=True)
    text = " ".join(("Match", *directive.words))
    feature = _shown(f"{text} ({directive.place})")
    return Need(feature, "only OpenSSH can evaluate it", weaker=True)


def _shown(text: str) -> str:
    """Return printable text: bytes of a file that are not UTF-8 are replaced."""
    return text.encode(errors="replace").decode()


def _needs_of_option(directive: Directive, around: Surroundings) -> Iterator[Need]:
    keyword = directive.keyword
    if keyword in APPLIED or keyword in WITHOUT_EFFECT:
        return
    if keyword in _TICKET_RULES and not around.ticket:
        return
    unknown = Rule("dslaunch does not support this option", weaker=True, unless=())
    rule = RULES.get(keyword) or _TICKET_RULES.get(keyword, unknown)
    value = " ".join(directive.words)
    if value.lower() not in rule.unless:
        yield Need(_shown(f"{keyword} {value} ({directive.place})"), rule.why, rule.weaker)


def needs_of_keys(
    files: Sequence[Path], around: Surroundings, *, only_these: bool
) -> Iterator[Need]:
    """Yield what the user's keys need OpenSSH for; without named files, the standard ones.

    With `only_these` (IdentitiesOnly) the agent's other keys are not offered.
    """
    standard = [around.home / ".ssh" / name for name in STANDARD_NAMES]
    for path in files or standard:
        yield from _needs_of_key(path, only_these=only_these)
    if not only_these:
        yield from _needs_of_agent(around.agent_key_types)


def _needs_of_key(path: Path, *, only_these: bool) -> Iterator[Need]:
    kind = kind_of(path)
    if kind == "security-key":
        yield Need(str(path), _NO_SECURITY_KEYS, weaker=False)
    elif kind == "public":
        yield Need(str(path), "Paramiko accepts no public key as IdentityFile", weaker=False)
    elif kind == "encrypted" and only_these:
        why = "with IdentitiesOnly, Paramiko does not ask the agent for this key"
        yield Need(str(path), why, weaker=False)
    certificate = certificate_of(path)
    if kind != "missing" and certificate is not None:
        yield Need(str(certificate), _NO_CERTIFICATES, weaker=False)


def _needs_of_agent(types: Sequence[str]) -> Iterator[Need]:
    for key_type in types:
        if key_type.startswith("sk-"):
            yield Need(f"{key_type} in ssh-agent", _NO_SECURITY_KEYS, weaker=False)
        elif "-cert-v" in key_type:
            yield Need(f"{key_type} in ssh-agent", _NO_CERTIFICATES, weaker=False)
