"""Mistakes in a cluster file or hostfile: codes with parameters, and their texts. Pure.

docs/reference/codes.md lists the codes; `dslaunch validate` can ignore them by their names.
"""

from __future__ import annotations

from dslaunch.errors import Problem
from dslaunch.notes import Note, NoteCode, sorted_parameters
from dslaunch.texts import Value, parameter_names

__all__ = ["Mistake", "MistakeCode", "Value", "mistake", "parameters"]


class MistakeCode(NoteCode):
    """A kind of mistake, with its text.

    In a text, `{name!r}` is quoted, and shortened if it is long.
    """

    # the file
    MISSING_FILE = "missing-file", "file not found"
    NOT_A_FILE = "not-a-file", "expected a YAML file, got {found}"
    TOO_LARGE = "too-large", "file too large: {size:,} bytes, expected at most {limit:,}"
    UNREADABLE = "unreadable", "cannot be read: {error}"
    UTF_16 = "utf-16", "expected UTF-8 text, got UTF-16"
    NOT_UTF_8 = "not-utf-8", "byte {byte:#04x} is not valid UTF-8; is this a text file?"
    OTHER_FILE = "other-file", "this is {kind}, not a cluster file"
    MORE_PROBLEMS = "more-problems", "{count:,} more problems from here on"

    # invalid YAML
    CONTROL_CHARACTER = (
        "control-character",
        "invalid character {character!r} in YAML; is this a text file?",
    )
    INVALID_YAML = "invalid-yaml", "not valid YAML: {error}"
    TAB = "tab", "not valid YAML: a tab in the indentation; use spaces"
    ESCAPE = (
        "escape",
        "not valid YAML: unknown escape in double quotes; use single quotes, or write `\\\\` for a "
        "backslash",
    )
    UNCLOSED_QUOTE = (
        "unclosed-quote",
        "not valid YAML: the quote {quote} opened here is not closed",
    )
    UNCLOSED_BRACKET = "unclosed-bracket", "not valid YAML: `{bracket}` is not closed"
    EXTRA_BRACKET = (
        "extra-bracket",
        "not valid YAML: unmatched `{bracket}`",
    )
    UNQUOTED_BRACKETS = (
        "unquoted-brackets",
        "not valid YAML: quote names with brackets between `{{` and `}}`: 'node[01-04]'",
    )
    MISSING_COMMA = (
        "missing-comma",
        "not valid YAML: missing comma before this, or `{bracket}` is not closed",
    )
    MISSING_SPACE = "missing-space", "missing space after `{text}`"
    MISSING_COLON = "missing-colon", "not valid YAML: missing colon after `{key}`"
    MERGE_CONFLICT = "merge-conflict", "unresolved conflict of a merge; keep one side"
    TEMPLATE = (
        "template",
        "a template, with `{mark}`; render it with its program, and pass what that writes",
    )
    NO_BREAK_SPACE = "no-break-space", "a no-break space (U+00A0) in the indentation; use spaces"
    VARIABLE = "variable", "variables such as ${{HOST}} are not replaced here; write the value"
    KEY_ALONE = "key-alone", "not valid YAML: missing colon and space after a key"
    UNQUOTED_TEXT = "unquoted-text", "not valid YAML: quote text that begins with `{character}`"
    SECOND_KEY = (
        "second-key",
        "not valid YAML: second `: ` in a line; write each key on its own line, or quote the value",
    )
    INDENTATION = (
        "indentation",
        "not valid YAML: indented by {spaces} spaces, but line {line} by {line_spaces}; indent all "
        "keys of a mapping equally",
    )

    # YAML that is ambiguous or not supported
    SEVERAL_DOCUMENTS = "several-documents", "a second YAML document begins here; expected only one"
    UNPRINTABLE = "unprintable", "the text contains the unprintable character {character!r}"
    MERGE_KEY = "merge-key", "merge keys (`<<`) are not supported; repeat the keys"
    TAG = "tag", "YAML tags such as {tag!r} are not supported; remove it"
    TOO_DEEP = "too-deep", "nested more than {limit} levels deep"
    TOO_MANY_PARTS = "too-many-parts", "more than {limit:,} values, including aliases"
    UNKNOWN_ALIAS = "unknown-alias", "alias `*{name}` without an anchor `&{name}` before it"
    RECURSIVE_ALIAS = "recursive-alias", "alias `*{name}` inside its own anchor"
    KEY_NOT_TEXT = "key-not-text", "expected a string as the key, got a list or a mapping"
    DUPLICATE_KEY = "duplicate-key", "duplicate key {key!r}, first set in line {line}"
    NO_MAPPING = "no-mapping", "expected a mapping such as `nodes: [...]`, got {found}"

    # keys and values
    UNKNOWN_KEY = "unknown-key", "unknown key `{key}`{similar}"
    SBATCH_OPTION = (
        "sbatch-option",
        "unknown key `{key}`; pass this option of sbatch as `directives: [{option}]`",
    )
    MISSING_KEY = "missing-key", "required, but not set"
    EMPTY_VALUE = "empty-value", "must not be empty"
    WRONG_TYPE = "wrong-type", "expected {expected}, got {found}"
    OUT_OF_RANGE = "out-of-range", "expected {expected}, got {found}"
    UNKNOWN_VALUE = "unknown-value", "expected {expected}, got {found}{similar}"
    WRONG_FORMAT = "wrong-format", "expected {expected}, got {found}"
    INVALID_VALUE = "invalid-value", "{error}, got {found}"
    INVALID_SECRET = (
        "invalid-secret",
        "expected {expected}; do not write the value of a secret into this file",
    )

    # names of nodes
    EMPTY_NAME = "empty-name", "the name is empty"
    EMPTY_NAME_IN_LIST = "empty-name-in-list", "empty name in {text!r}"
    BRACKETS = "brackets", "unmatched brackets in {text!r}"
    NO_RANGE = "no-range", "expected a number or a range such as 1-4, got {part!r} in {text!r}"
    IPV6_IN_BRACKETS = (
        "ipv6-in-brackets",
        "expected a number or a range such as 1-4, got {part!r} in {text!r}; write an IPv6 address "
        "without brackets",
    )
    UNEVEN_RANGE = "uneven-range", "the numbers of `{part}` in {text!r} have different lengths"
    BACKWARD_RANGE = "backward-range", "the range `{part}` in {text!r} is descending"
    LONG_NAME = "long-name", "a name in {text!r} has more than {limit} characters"
    TOO_MANY_NAMES = "too-many-names", "{text!r} expands to more than {limit:,} names"
    TOO_MANY_NUMBERS = "too-many-numbers", "{text!r} expands to more than {limit:,} numbers"
    TOO_MANY_NODES = "too-many-nodes", "more than {limit:,} nodes"
    INVALID_HOST = (
        "invalid-host",
        "invalid host name {name!r}{more}; use letters, digits, `.`, `_` and `-`, not starting "
        "with `-` or `.`",
    )
    INVALID_ADDRESS = (
        "invalid-address",
        "invalid address {name!r}{more}; use letters, digits, `.`, `_` and `-`, not starting with "
        "`-` or `.`",
    )
    USER_OR_PORT = (
        "user-or-port",
        "invalid host name {name!r}{more}; set `user` and `port` separately",
    )
    IPV6_HOST = "ipv6-host", "invalid host name {name!r}{more}; set an IPv6 address as `address`"
    INVALID_IPV4 = "invalid-ipv4", "invalid IPv4 address {name!r}{more}"
    INVALID_IPV6 = "invalid-ipv6", "invalid IPv6 address {name!r}{more}"
    UNSPECIFIED_ADDRESS = (
        "unspecified-address",
        "other nodes cannot connect to the address {name!r}{more}",
    )
    DUPLICATE_HOST = "duplicate-host", "duplicate host {name!r}{more}, first listed in line {line}"
    DUPLICATE_ADDRESS = (
        "duplicate-address",
        "duplicate address {name!r}{more}, first used in line {line}",
    )
    ADDRESS_COUNT = "address-count", "expected {hosts} addresses, one per host, got {addresses}"

    # conflicts between keys
    TWO_INTERPRETERS = "two-interpreters", "cannot be combined with `python`; keep one of the two"
    DUPLICATE_SLOT = "duplicate-slot", "duplicate slot {slot}"
    ONLY_SPARES = "only-spares", "all nodes are spare nodes; at least one must not be"
    SCRIPT_AND_MODULE = "script-and-module", "cannot be combined with `script`; keep one of the two"
    NO_PROGRAM = "no-program", "`script` or `module` is required"
    DUPLICATE_SECRET = "duplicate-secret", "duplicate secret `{name}`"
    INVALID_PATTERN = "invalid-pattern", "not a regular expression: {error}"
    PATTERN_GROUPS = (
        "pattern-groups",
        "expected named groups such as `(?P<step>[0-9]+)`, and no unknown ones{known}",
    )
    SLOW_PATTERN = "slow-pattern", "may take too long for some lines: {found}"
    EXPOSED_SECRET = "exposed-secret", "`{name}` is a secret; remove it here"
    UNKNOWN_LAUNCHER = "unknown-launcher", "unknown launcher {name!r}{similar}{known}"
    UNKNOWN_CHECK = "unknown-check", "unknown check {name!r}{similar}{known}"
    UNKNOWN_THRESHOLD = "unknown-threshold", "unknown threshold of {check} {name!r}{similar}{known}"

    # containers
    IMAGE_LIKE_OPTION = (
        "image-like-option",
        "an image name must not start with `-`, which starts an option",
    )
    DEFINED_BY_FILE = (
        "defined-by-file",
        "set `{key}` in the environment definition file instead",
    )
    INVALID_MOUNT = (
        "invalid-mount",
        "expected `DIRECTORY`, `DIRECTORY:PATH` or `DIRECTORY:PATH:ro`",
    )
    UNMOUNTABLE_PATH = (
        "unmountable-path",
        "{runtime} cannot mount a path with `{character}`; mount a directory above it",
    )
    MOUNT_FLAGS = "mount-flags", "pyxis separates mount flags with `+`, not with `,`"
    NO_SUCH_GPU = (
        "no-such-gpu",
        "{runtime} has no option for `{gpu}`; set the option of the site in `options`",
    )
    FORBIDDEN_OPTION = (
        "forbidden-option",
        "{option} hides the variables of SLURM from the ranks; remove it",
    )

    # hostfiles
    BYTE_ORDER_MARK = (
        "byte-order-mark",
        "byte order mark, which DeepSpeed reads as part of the host name; save the file without it",
    )
    NO_HOST = "no-host", "no hosts found, expected lines such as `node1 slots=8`"
    INVALID_LINE = "invalid-line", "expected `host slots=N`, got {written!r}"
    NO_SLOTS_GIVEN = (
        "no-slots-given",
        "expected `host slots=N`, got {written!r}; or set the slots with --slots N",
    )
    IGNORED_TEXT = "ignored-text", "DeepSpeed ignores {text!r} after `slots={slots}`; remove it"
    ABOVE_MAX_SLOTS = (
        "above-max-slots",
        "host {name!r}: {slots} slots, but max_slots is {limit}",
    )
    REPEATED_HOST = "repeated-host", "duplicate host {name!r}"
    ZERO_SLOTS = "zero-slots", "host {name!r}: 0 slots; remove the line"
    TOO_MANY_SLOTS = "too-many-slots", "host {name!r}: {slots} slots, expected at most {limit}"

    # editing
    NOT_EDITABLE = "not-editable", "cannot be edited automatically; set it to {value} by hand"


class Mistake(Note, frozen=True):
    """One mistake without its position. `str()` returns its text."""

    def at(
        self, file: str, place: tuple[int, int] = (0, 0), path: str = "", source: str = ""
    ) -> Problem:
        """Return the mistake with its position: line and column from 1, path in the data."""
        line, column = place
        return Problem(
            file=file,
            line=line,
            column=column,
            path=path,
            message=str(self),
            rule=self.code.value,
            parameters=self.parameters,
            source=source,
        )


def mistake(code: MistakeCode, **values: Value) -> Mistake:
    """Return a mistake with its parameters."""
    return Mistake(code, sorted_parameters(values))


def parameters(code: MistakeCode) -> tuple[str, ...]:
    """Return the names of the parameters of a code, in the order of its text."""
    return parameter_names(code.text)
