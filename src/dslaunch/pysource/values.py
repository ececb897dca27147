"""Find the possible values of an expression in a Python program, without running it.

Supports the usual ways to name a config file: literals, names and attributes with assignments,
defaults of options and parameters, joined paths, `json.load(open(path))`.
"""

from __future__ import annotations

import ast
import posixpath
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import product

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.pysource.module import DEFINE_OPTION, CallSite, Scope, SourceModule, module_paths
from dslaunch.pysource.parse import dotted

SOURCE = "//job"
"""The program's directory in a path that is made from `__file__`. `posixpath` keeps two leading
slashes, so it differs from all paths in programs."""
MOST_STEPS = 2_000
"""Maximum number of expressions to evaluate for one result. Beyond it, for circular references or
too many combinations, the result is `Unread.UNKNOWN`."""
MOST_JOINED = 100
"""Maximum number of combinations of two sets of possible texts."""
LONGEST = 4096
"""Maximum length of a joined text in characters: that of a path on Linux."""
DEEPEST = 40
"""Maximum depth of nested expressions and of names that refer to names."""


class Unread(Enum):
    """A value that is neither text nor settings."""

    UNKNOWN = "unknown"
    """It is computed at run time."""
    NOTHING = "nothing"
    """None or False."""


class StringValue(Struct, frozen=True):
    """A string, such as the path of a config file."""

    text: str


class Argument(Struct, frozen=True):
    """The value of an option on the command line of the program."""

    option: str
    """Name without leading dashes, with `_` for `-`."""
    text: str


class DictLiteral(Struct, frozen=True):
    """A dictionary literal in the source."""

    node: ast.expr
    line: int = 0


Value = StringValue | Argument | DictLiteral | Unread
_Inner = Callable[[ast.expr], Iterator[Value]]
"""Evaluates a part of an expression."""
_Placed = tuple[SourceModule, Scope, ast.expr]
"""An expression, with its module and its enclosing functions."""
_VARIABLE = ("os.environ.get", "os.getenv", "environ.get", "getenv")
"""Functions that return an environment variable, or their second argument."""
_JOIN = ("join", "Path", "PurePath", "PosixPath")
"""Functions that join their arguments to a path."""
_WORKING_DIRECTORY = ("getcwd", "cwd")
_SAME_FILE = (
    "abspath",
    "realpath",
    "normpath",
    "expanduser",
    "str",
    "fspath",
    "open",
    "deepcopy",
    "load",
    "loads",
    "safe_load",
    "dict",
)
"""Functions whose result refers to the file of their first argument, or to its content."""
_KNOWN_FUNCTIONS = (*_JOIN, *_WORKING_DIRECTORY, *_SAME_FILE, "dirname", "field")
_SAME_FILE_METHODS = ("resolve", "absolute", "as_posix", "read_text", "read")
"""Methods whose result refers to the file of their object, or to its content."""
_UNKNOWN: ast.expr = ast.Constant(value=...)
"""An expression whose value is unknown."""


class _Site(Struct, frozen=True):
    """The position of an expression, and its depth in the evaluation."""

    module: SourceModule
    scope: Scope = ()
    depth: int = 0

    def deeper(self) -> _Site:
        return replace(self, depth=self.depth + 1)


class Program:
    """The modules of a program, and the possible values of their expressions."""

    def __init__(
        self,
        modules: Sequence[SourceModule],
        given: Mapping[str, str],
        environment: Mapping[str, str],
    ) -> None:
        self.modules = {module.path: module for module in modules}
        self.given = given
        """The options on the program's command line, `-` as `_`."""
        self.environment = environment
        self.options = _defaults(modules)
        self._steps = 0

    def values(self, call: CallSite, node: ast.expr) -> frozenset[Value]:
        """Return all possible values of an expression at the position of a call."""
        self._steps = 0
        site = _Site(self.modules[call.module], call.scope)
        return frozenset(self._values(node, site))

    def _values(self, node: ast.expr, site: _Site) -> Iterator[Value]:
        self._steps += 1
        if self._steps > MOST_STEPS or site.depth > DEEPEST:
            yield Unread.UNKNOWN
            return
        inside = site.deeper()
        match node:
            case ast.Name():
                yield from self._named(node.id, inside)
            case ast.Attribute():
                yield from self._attribute(node, inside)
            case ast.Subscript(slice=ast.Constant(value=str() as key)):
                yield from self._item(node.value, key, inside)
            case ast.Call():
                yield from self._called(node, inside)
            case _:
                yield from _literal(node, lambda part: self._values(part, inside))

    def _named(self, name: str, site: _Site) -> Iterator[Value]:
        if name == "__file__":
            yield StringValue(f"{SOURCE}/{site.module.path}")
            return
        # the names of the function first, then those of the enclosing functions
        for length in range(len(site.scope), -1, -1):
            found = self._bound(name, site.module, site.scope[:length])
            if found:
                yield from self._any(found, site.depth)
                return
        yield from self._imported(name, site)

    def _bound(self, name: str, module: SourceModule, scope: Scope) -> list[_Placed]:
        """Return what a name stands for in one scope, not in those around it."""
        assigned = module.names.get((scope, name), ())
        if assigned:
            return [(module, scope, value) for value in assigned]
        return self._parameter(name, module, scope)

    def _imported(self, name: str, site: _Site) -> Iterator[Value]:
        origin, name_there = site.module.imported.get(name, ("", ""))
        other = self._module(origin, site.module)
        if other is None or not name_there or site.depth > DEEPEST:
            yield Unread.UNKNOWN
            return
        yield from self._named(name_there, _Site(other, depth=site.depth + 1))

    def _any(self, found: Sequence[_Placed], depth: int) -> Iterator[Value]:
        """Yield the values of several expressions; unknown without expressions."""
        if not found:
            yield Unread.UNKNOWN
        for module, scope, node in found:
            yield from self._values(node, _Site(module, scope, depth))

    def _parameter(self, name: str, module: SourceModule, scope: Scope) -> list[_Placed]:
        """Return the arguments of all calls for a function's parameter, otherwise its default."""
        function = module.functions.get(scope[-1]) if scope else None
        if function is None:
            return []
        positional = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        keyword_only = [each.arg for each in function.args.kwonlyargs]
        if name not in (*positional, *keyword_only):
            return []
        arguments = list(self._arguments(function.name, name, positional))
        if arguments:
            return arguments
        default = _parameter_defaults(function).get(name, _UNKNOWN)
        return [(module, (), default)]

    def _arguments(
        self, function: str, parameter: str, positional: Sequence[str]
    ) -> Iterator[_Placed]:
        """Yield the arguments for a parameter in the calls of all functions with this name."""
        for caller in self.modules.values():
            for call in caller.calls:
                if call.last_name != function:
                    continue
                given = call.keywords | dict(zip(positional, call.node.args, strict=False))
                if parameter in given:
                    yield caller, call.scope, given[parameter]

    def _attribute(self, node: ast.Attribute, site: _Site) -> Iterator[Value]:
        if node.attr == "parent":
            yield from map(_parent, self._values(node.value, site))
            return
        origin = site.module.imported.get(dotted(node.value), ("", ""))
        other = self._module(".".join(filter(None, origin)), site.module)
        if other is not None:
            yield from self._named(node.attr, _Site(other, depth=site.depth))
            return
        if node.attr in self.given and (node.attr in self.options or self._is_field(node.attr)):
            yield Argument(node.attr, self.given[node.attr])
            return
        found = list(self.options.get(node.attr, ()))
        for each in self.modules.values():
            found += [(each, *assigned) for assigned in each.attributes.get(node.attr, ())]
        yield from self._any(found, site.depth)

    def _is_field(self, name: str) -> bool:
        return any(name in module.attributes for module in self.modules.values())

    def _item(self, node: ast.expr, key: str, site: _Site) -> Iterator[Value]:
        for value in self._values(node, site):
            items = entries(value) if isinstance(value, DictLiteral) else {}
            yield from self._values(items.get(key, _UNKNOWN), site)

    def _called(self, node: ast.Call, site: _Site) -> Iterator[Value]:
        def inner(part: ast.expr) -> Iterator[Value]:
            return self._values(part, site)

        function = dotted(node.func)
        arguments = [each for each in node.args if not isinstance(each, ast.Starred)]
        if isinstance(node.func, ast.Attribute):
            if node.func.attr == "joinpath":
                return self._path([node.func.value, *arguments], inner)
            if node.func.attr in _SAME_FILE_METHODS:
                return inner(node.func.value)
        if function in _VARIABLE and arguments:
            return self._variable(arguments, inner)
        if function.rpartition(".")[2] in _KNOWN_FUNCTIONS:
            return self._known(node, arguments, inner)
        return self._returned(function, site)

    def _known(
        self, node: ast.Call, arguments: Sequence[ast.expr], inner: _Inner
    ) -> Iterator[Value]:
        """Yield the results of one of `_KNOWN_FUNCTIONS`."""
        name = dotted(node.func).rpartition(".")[2]
        if name == "dict" and not arguments:
            return iter((DictLiteral(node, node.lineno),))
        if name in _WORKING_DIRECTORY:
            return iter((StringValue("."),))
        if name == "field":
            defaults = [each.value for each in node.keywords if each.arg == "default"]
            return inner(defaults[0] if defaults else _UNKNOWN)
        if not arguments:
            return iter((Unread.UNKNOWN,))
        if name in _JOIN:
            return self._path(arguments, inner)
        if name == "dirname":
            return map(_parent, inner(arguments[0]))
        return inner(arguments[0])

    def _path(self, parts: Sequence[ast.expr], inner: _Inner) -> Iterator[Value]:
        found: list[Value] = [StringValue("")]
        for part in parts:
            found = list(_joined(iter(found), list(inner(part)), "/"))
        yield from found

    def _variable(self, arguments: Sequence[ast.expr], inner: _Inner) -> Iterator[Value]:
        name = arguments[0].value if isinstance(arguments[0], ast.Constant) else None
        if isinstance(name, str) and name in self.environment:
            yield StringValue(self.environment[name])
        elif len(arguments) > 1:
            yield from inner(arguments[1])
        else:
            yield Unread.UNKNOWN

    def _returned(self, name: str, site: _Site) -> Iterator[Value]:
        """Yield the results of a function of the program."""
        module, function = self._function(name, site.module)
        results = () if module is None else module.returned.get(function, ())
        if module is None or not results:
            yield Unread.UNKNOWN
            return
        for scope, value in results:
            yield from self._values(value, _Site(module, scope, site.depth))

    def _function(self, name: str, caller: SourceModule) -> tuple[SourceModule | None, str]:
        """Return the module of a function that is called by a dotted name, and its name there.

        None: the module is not of the program.
        """
        first, _, rest = name.partition(".")
        if first not in caller.imported:
            return caller, name.rpartition(".")[2]
        origin, name_there = caller.imported[first]
        module = self._module(origin, caller)
        if module is None and name_there:
            # `from package import module`
            module = self._module(f"{origin}.{name_there}", caller)
            name_there = ""
        return module, (name_there or rest).rpartition(".")[2]

    def _module(self, name: str, importer: SourceModule) -> SourceModule | None:
        """Return the module that an import of this dotted name in another module finds."""
        for path in module_paths(name, importer.path):
            if path in self.modules:
                return self.modules[path]
        return None


def entries(settings: DictLiteral) -> dict[str, ast.expr]:
    """Return the entries of a dictionary literal with constant keys."""
    node = settings.node
    if isinstance(node, ast.Call):
        return {each.arg: each.value for each in node.keywords if each.arg is not None}
    assert isinstance(node, ast.Dict)
    pairs = zip(node.keys, node.values, strict=True)
    return {
        key.value: value
        for key, value in pairs
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }


def _literal(node: ast.expr, inner: _Inner) -> Iterator[Value]:
    """Yield the values of literals and of expressions that combine others."""
    match node:
        case ast.Constant(value=str() as text):
            yield StringValue(text)
        case ast.Constant(value=None | False):
            yield Unread.NOTHING
        case ast.Dict():
            yield DictLiteral(node, node.lineno)
        case ast.IfExp():
            yield from inner(node.body)
            yield from inner(node.orelse)
        case ast.BoolOp():
            found = [value for part in node.values for value in inner(part)]
            something = [value for value in found if value is not Unread.NOTHING]
            yield from something or found[:1]
        case ast.BinOp(op=ast.Add() | ast.Div()):
            between = "/" if isinstance(node.op, ast.Div) else ""
            yield from _joined(inner(node.left), list(inner(node.right)), between)
        case ast.JoinedStr():
            texts: list[Value] = [StringValue("")]
            for part in node.values:
                shown = part.value if isinstance(part, ast.FormattedValue) else part
                texts = list(_joined(iter(texts), list(inner(shown)), ""))
            yield from texts
        case _:
            yield Unread.UNKNOWN


def _parameter_defaults(
    function: ast.FunctionDef | ast.AsyncFunctionDef,
) -> dict[str, ast.expr]:
    positional = [*function.args.posonlyargs, *function.args.args]
    last = positional[len(positional) - len(function.args.defaults) :]
    pairs = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return {
        **{each.arg: value for each, value in zip(last, function.args.defaults, strict=True)},
        **{each.arg: value for each, value in pairs if value is not None},
    }


def _parent(value: Value) -> Value:
    """Return the parent directory of a path."""
    if not isinstance(value, StringValue):
        return Unread.UNKNOWN
    return StringValue(posixpath.dirname(value.text) or ".")


def _joined(left: Iterator[Value], right: Sequence[Value], between: str) -> Iterator[Value]:
    """Yield all combinations of left and right texts, with `between`: `/` for paths."""
    for count, (first, second) in enumerate(product(left, right)):
        if count > MOST_JOINED:
            yield Unread.UNKNOWN
            return
        if isinstance(first, StringValue) and isinstance(second, StringValue):
            yield _joined_text(first.text, second.text, between)
        else:
            yield Unread.UNKNOWN


def _joined_text(first: str, second: str, between: str) -> Value:
    if len(first) + len(second) > LONGEST:
        return Unread.UNKNOWN
    return StringValue(posixpath.join(first, second) if between else first + second)


def _defaults(modules: Sequence[SourceModule]) -> dict[str, list[_Placed]]:
    """Return the options that a program defines with argparse, click or similar, with defaults.

    An option without a default has None.
    """
    found: dict[str, list[_Placed]] = defaultdict(list)
    for module in modules:
        for call in module.calls:
            function = call.last_name or getattr(call.node.func, "attr", "")
            keywords = call.keywords
            if function == "set_defaults":
                for name, value in keywords.items():
                    found[name].append((module, call.scope, value))
            if function not in DEFINE_OPTION:
                continue
            default = keywords.get("default", ast.Constant(value=None))
            for name in _option_names(call.node):
                found[name].append((module, call.scope, default))
    return dict(found)


def _option_names(node: ast.Call) -> Iterator[str]:
    words = [each.value for each in node.args if isinstance(each, ast.Constant)]
    for word in words:
        if isinstance(word, str) and word.startswith("--"):
            yield word.removeprefix("--").replace("-", "_")
    for keyword in node.keywords:
        if keyword.arg == "dest" and isinstance(keyword.value, ast.Constant):
            yield str(keyword.value.value)
