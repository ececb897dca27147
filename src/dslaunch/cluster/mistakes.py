"""What can be wrong in a cluster file or a hostfile: codes with parameters, and their texts. Pure.

docs/reference/codes.md lists the codes; `dslaunch validate` can ignore them by their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from string import Formatter
from typing import Any

from dslaunch.errors import Problem
from dslaunch.terminal import shortened

Value = str | int | float | tuple[str, ...]


class MistakeCode(StrEnum):
    """A kind of mistake, with the text for people."""

    text: str
    """`{name!r}` is quoted and cut to a length that is readable in a message."""

    def __new__(cls, value: str, text: str) -> MistakeCode:
        """Make a member whose value is the code alone."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.text = text
        return member

    # the file
    MISSING_FILE = "missing-file", "there is no such file"
    NOT_A_FILE = "not-a-file", "is {found}, expected a YAML file"
    TOO_LARGE = "too-large", "has {size:,} bytes, at most {limit:,} are read"
    UNREADABLE = "unreadable", "cannot be read: {error}"
    UTF_16 = "utf-16", "is UTF-16 text, expected UTF-8"
    NOT_UTF_8 = "not-utf-8", "byte {byte:#04x} is not UTF-8; is this a text file?"
    OTHER_FILE = "other-file", "this is {kind}, not a cluster file"
    MORE_PROBLEMS = "more-problems", "from here on there are {count:,} more problems"

    # YAML that cannot be read
    CONTROL_CHARACTER = (
        "control-character",
        "the character {character!r} cannot be in YAML; is this a text file?",
    )
    INVALID_YAML = "invalid-yaml", "not valid YAML: {error}"
    TAB = "tab", "not valid YAML: a tab; indent with spaces"
    ESCAPE = (
        "escape",
        "not valid YAML: in double quotes `\\` begins an escape; use single quotes, or write "
        "`\\\\`",
    )
    UNCLOSED_QUOTE = (
        "unclosed-quote",
        "not valid YAML: the quote {quote} that opens here is not closed",
    )
    UNCLOSED_BRACKET = "unclosed-bracket", "not valid YAML: `{bracket}` is not closed"
    EXTRA_BRACKET = (
        "extra-bracket",
        "not valid YAML: `{bracket}` closes nothing; is it one too many?",
    )
    UNQUOTED_BRACKETS = (
        "unquoted-brackets",
        "not valid YAML: between `{{` and `}}`, quote a name that has brackets: 'node[01-04]'",
    )
    MISSING_COMMA = (
        "missing-comma",
        "not valid YAML: a comma is missing before this, or `{bracket}` is not closed",
    )
    MISSING_SPACE = "missing-space", "a space is missing after `{text}`"
    MISSING_COLON = "missing-colon", "not valid YAML: a colon is missing after `{key}`"
    KEY_ALONE = "key-alone", "not valid YAML: a colon and a space are missing after a key"
    UNQUOTED_TEXT = "unquoted-text", "not valid YAML: quote text that begins with `{character}`"
    SECOND_KEY = (
        "second-key",
        "not valid YAML: a second `: ` in one line; write each key on its own line, or quote the "
        "value",
    )
    INDENTATION = (
        "indentation",
        "not valid YAML: indented by {spaces} spaces, line {line} by {line_spaces}; keys of one "
        "mapping begin in the same column",
    )

    # YAML that means something else than it seems to, or that is not supported
    SEVERAL_DOCUMENTS = "several-documents", "a second document begins; there must be one"
    UNPRINTABLE = "unprintable", "the text has the character {character!r} in it"
    MERGE_KEY = "merge-key", "merge keys are not supported; repeat what is meant"
    TAG = "tag", "tags such as {tag!r} are not supported"
    TOO_DEEP = "too-deep", "more than {limit} lists and mappings in each other"
    TOO_MANY_PARTS = "too-many-parts", "more than {limit:,} parts, aliases counted"
    UNKNOWN_ALIAS = "unknown-alias", "the alias `*{name}` has no anchor `&{name}` before it"
    RECURSIVE_ALIAS = "recursive-alias", "the alias `*{name}` is inside what it stands for"
    KEY_NOT_TEXT = "key-not-text", "a key must be text, not a list or a mapping"
    DUPLICATE_KEY = "duplicate-key", "the key {key!r} is there already, in line {line}"
    NO_MAPPING = "no-mapping", "expected a mapping such as `nodes: [...]`, got {found}"

    # keys and values
    UNKNOWN_KEY = "unknown-key", "unknown key `{key}`{similar}"
    SBATCH_OPTION = (
        "sbatch-option",
        "unknown key `{key}`; it is an option of sbatch: `directives: [{option}]`",
    )
    MISSING_KEY = "missing-key", "is missing"
    EMPTY_VALUE = "empty-value", "is empty"
    WRONG_TYPE = "wrong-type", "expected {expected}, got {found}"
    OUT_OF_RANGE = "out-of-range", "expected {expected}, got {found}"
    UNKNOWN_VALUE = "unknown-value", "expected {expected}, got {found}{similar}"
    WRONG_FORMAT = "wrong-format", "expected {expected}, got {found}"
    INVALID_VALUE = "invalid-value", "{error}, got {found}"
    INVALID_SECRET = (
        "invalid-secret",
        "expected {expected}; a secret's value does not belong in this file",
    )

    # names of nodes
    EMPTY_NAME = "empty-name", "the name is empty"
    EMPTY_NAME_IN_LIST = "empty-name-in-list", "there is an empty name in {text!r}"
    BRACKETS = "brackets", "the brackets in {text!r} do not match"
    NO_RANGE = "no-range", "{part!r} in {text!r} is no number and no range such as 1-4"
    IPV6_IN_BRACKETS = (
        "ipv6-in-brackets",
        "{part!r} in {text!r} is no number and no range such as 1-4; write an IPv6 address "
        "without brackets",
    )
    UNEVEN_RANGE = "uneven-range", "`{part}` in {text!r} has numbers of different length"
    BACKWARD_RANGE = "backward-range", "`{part}` in {text!r} runs backwards"
    LONG_NAME = "long-name", "{text!r} has a name of more than {limit} characters"
    TOO_MANY_NAMES = "too-many-names", "{text!r} stands for more than {limit:,} names"
    TOO_MANY_NUMBERS = "too-many-numbers", "{text!r} stands for more than {limit:,} numbers"
    TOO_MANY_NODES = "too-many-nodes", "there are more than {limit:,} nodes"
    INVALID_HOST = (
        "invalid-host",
        "{name!r} is no host name; expected letters, digits, `.`, `_` and `-`, not beginning "
        "with `-` or `.`{more}",
    )
    INVALID_ADDRESS = (
        "invalid-address",
        "{name!r} is no address; expected letters, digits, `.`, `_` and `-`, not beginning with "
        "`-` or `.`{more}",
    )
    USER_OR_PORT = (
        "user-or-port",
        "{name!r} is no host name; user and port have keys of their own{more}",
    )
    IPV6_HOST = "ipv6-host", "{name!r} is no host name; write an IPv6 address under `address`{more}"
    INVALID_IPV4 = "invalid-ipv4", "{name!r} is no IPv4 address{more}"
    INVALID_IPV6 = "invalid-ipv6", "{name!r} is no IPv6 address{more}"
    UNSPECIFIED_ADDRESS = (
        "unspecified-address",
        "{name!r} is no address that others can dial{more}",
    )
    DUPLICATE_HOST = "duplicate-host", "host {name!r}{more} is there already, in line {line}"
    DUPLICATE_ADDRESS = (
        "duplicate-address",
        "address {name!r}{more} is there already, in line {line}",
    )
    ADDRESS_COUNT = "address-count", "expected as many as hosts, {hosts}, got {addresses}"

    # what does not fit together
    TWO_INTERPRETERS = "two-interpreters", "`python` is given as well; keep one of the two"
    DUPLICATE_SLOT = "duplicate-slot", "slot {slot} is there twice"
    ONLY_SPARES = "only-spares", "all nodes are spares; at least one must not be"
    SCRIPT_AND_MODULE = "script-and-module", "`script` is given as well; keep one of the two"
    NO_PROGRAM = "no-program", "needs `script` or `module`"
    DUPLICATE_SECRET = "duplicate-secret", "`{name}` is there already"
    EXPOSED_SECRET = "exposed-secret", "`{name}` is a secret; leave it out here"
    UNKNOWN_LAUNCHER = "unknown-launcher", "unknown launcher {name!r}{similar}{known}"
    UNKNOWN_CHECK = "unknown-check", "unknown check {name!r}{similar}{known}"
    UNKNOWN_THRESHOLD = "unknown-threshold", "unknown threshold of {check} {name!r}{similar}{known}"

    # containers
    IMAGE_LIKE_OPTION = (
        "image-like-option",
        "an image whose name begins with `-` would be read as an option",
    )
    DEFINED_BY_FILE = (
        "defined-by-file",
        "the environment definition file has the `{key}`; write it there",
    )
    INVALID_MOUNT = (
        "invalid-mount",
        "expected `DIRECTORY`, `DIRECTORY:PATH` or `DIRECTORY:PATH:ro`",
    )
    UNMOUNTABLE_PATH = (
        "unmountable-path",
        "{runtime} cannot mount a path with `{character}`; mount a directory above it",
    )
    MOUNT_FLAGS = "mount-flags", "pyxis separates flags by `+`, not by `,`"
    NO_SUCH_GPU = (
        "no-such-gpu",
        "{runtime} has no option for `{gpu}`; name the site's own in `options`",
    )
    FORBIDDEN_OPTION = "forbidden-option", "{option} keeps SLURM's variables from the ranks"

    # hostfiles
    BYTE_ORDER_MARK = (
        "byte-order-mark",
        "a byte order mark, which DeepSpeed takes for a part of the name; save it without",
    )
    NO_HOST = "no-host", "has no host, expected lines of `host slots=N`"
    INVALID_LINE = "invalid-line", "expected `host slots=N`, got {written!r}"
    NO_SLOTS_GIVEN = (
        "no-slots-given",
        "expected `host slots=N`, got {written!r}; name the slots with --slots N",
    )
    IGNORED_TEXT = "ignored-text", "{text!r} after `slots={slots}`, which DeepSpeed ignores"
    ABOVE_MAX_SLOTS = (
        "above-max-slots",
        "host {name!r} has more slots, {slots}, than max_slots, {limit}",
    )
    REPEATED_HOST = "repeated-host", "host {name!r} is there already"
    ZERO_SLOTS = "zero-slots", "host {name!r} has no slots; leave it out"
    TOO_MANY_SLOTS = "too-many-slots", "host {name!r} has {slots} slots, at most {limit} can be"

    # editing
    NOT_EDITABLE = "not-editable", "cannot be changed in place; write {value} there by hand"


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong, without its place. As a string it is the text for people."""

    code: MistakeCode
    values: Mapping[str, Value] = field(default_factory=dict)

    def __str__(self) -> str:
        return _TEXTS.format(self.code.text, **self.values)

    def at(
        self, file: str, place: tuple[int, int] = (0, 0), path: str = "", source: str = ""
    ) -> Problem:
        """Return the mistake with its place: line and column from 1, the path in the data."""
        line, column = place
        return Problem(
            file=file,
            line=line,
            column=column,
            path=path,
            message=str(self),
            rule=self.code.value,
            parameters=self.values,
            source=source,
        )


def mistake(code: MistakeCode, **values: Value) -> Mistake:
    """Return a mistake with its parameters."""
    return Mistake(code, values)


def parameters(code: MistakeCode) -> tuple[str, ...]:
    """Return the names of the parameters of a code, in the order of its text."""
    names = (name for _, name, _, _ in Formatter().parse(code.text))
    return tuple(dict.fromkeys(name for name in names if name))


class _Texts(Formatter):
    """Fills the texts; parameters that may be left out have words of their own."""

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:
        """Return the words for a parameter."""
        value = kwargs.get(key)
        if key == "similar":
            return f", did you mean `{value}`?" if value else ""
        if key == "more":
            return f" (and {value:,} more)" if value else ""
        if key == "known":
            return _listed(value)
        return kwargs[key]

    def convert_field(self, value: Any, conversion: Any) -> Any:
        """Quote what users have written, and cut it."""
        return shortened(value) if conversion == "r" else value


def _listed(names: tuple[str, ...]) -> str:
    if not names:
        return "; it has none"
    return f"; there are: {', '.join(names)}" if len(names) < 10 else ""


_TEXTS = _Texts()
