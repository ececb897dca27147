"""Find the possible values of an expression in a Python program, without running it.

Supports the usual ways to name a config file: literals, names and attributes with assignments,
defaults of options and parameters, joined paths, `json.load(open(path))`.
"""

from __future__ import annotations

import ast
import posixpath
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import product

from dslaunch.pysource.parse import dotted, parse

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


@dataclass(frozen=True, slots=True)
class StringValue:
    """A string, such as the path of a config file."""

    text: str


@dataclass(frozen=True, slots=True)
class Argument:
    """The value of an option on the command line of the program."""

    option: str
    """Name without leading dashes, with `_` for `-`."""
    text: str


@dataclass(frozen=True, slots=True)
class DictLiteral:
    """A dictionary literal in the source."""

    node: ast.expr = field(compare=False)
    line: int = 0


Value = StringValue | Argument | DictLiteral | Unread
Scope = tuple[str, ...]
"""The functions that enclose an expression, the outermost first; () at module level."""
_Inner = Callable[[ast.expr], Iterator[Value]]
_Placed = tuple["SourceModule", Scope, ast.expr]
"""An expression, with its module and its enclosing functions."""


@dataclass(frozen=True, slots=True)
class CallSite:
    """A call, with its position."""

    module: str
    scope: Scope
    node: ast.Call

    @property
    def name(self) -> str:
        """Return the dotted name of the callable, `deepspeed.initialize`; empty without a name."""
        return dotted(self.node.func)

    @property
    def last_name(self) -> str:
        """Return the last part of the name."""
        return self.name.rpartition(".")[2]

    @property
    def keywords(self) -> dict[str, ast.expr]:
        """Return the keyword arguments."""
        return {each.arg: each.value for each in self.node.keywords if each.arg}


@dataclass
class SourceModule:
    """The parts of one module that determine the values of its names."""

    path: str
    """Path relative to the program's directory."""
    names: dict[tuple[Scope, str], list[ast.expr]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Assignments to a name in a function or at module level."""
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Local name -> dotted module and the name in it; "": the module itself."""
    functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=dict)
    returned: dict[str, list[tuple[Scope, ast.expr]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    attributes: dict[str, list[tuple[Scope, ast.expr]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Assignments to `anything.NAME`, and to NAME in the body of a class."""
    calls: list[CallSite] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    """Strings in subscripts and keys of dictionaries."""

    def options(self) -> Iterator[str]:
        """Yield the options that the module defines with argparse or click."""
        for call in self.calls:
            if getattr(call.node.func, "attr", call.name) in DEFINE_OPTION:
                for each in call.node.args:
                    if isinstance(each, ast.Constant) and str(each.value).startswith("-"):
                        yield str(each.value)


DEFINE_OPTION = ("add_argument", "option", "Option", "DEFINE_string")


def read_module(path: str, text: str) -> SourceModule | None:
    """Analyze the source of a module; None: not valid for this interpreter."""
    tree = parse(text)
    if tree is None:
        return None
    reader = _ModuleVisitor(SourceModule(path))
    try:
        reader.visit(tree)
    except RecursionError:
        return None
    return reader.module


class _ModuleVisitor(ast.NodeVisitor):
    """Collects assignments, functions, imports and calls with their enclosing functions."""

    def __init__(self, module: SourceModule) -> None:
        self.module = module
        self.scope: Scope = ()
        self.in_class = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        self.module.functions.setdefault(node.name, node)
        outer, self.scope = self.scope, (*self.scope, node.name)
        was, self.in_class = self.in_class, False
        for statement in node.body:
            self.visit(statement)
        self.scope, self.in_class = outer, was

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        was, self.in_class = self.in_class, True
        self.generic_visit(node)
        self.in_class = was

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._assigned(target, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assigned(node.target, node.value)
            self.visit(node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._assigned(node.target, node.value)
        self.visit(node.value)

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            if item.optional_vars is not None:
                self._assigned(item.optional_vars, item.context_expr)
        self.generic_visit(node)

    visit_AsyncWith = visit_With

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and self.scope:
            self.module.returned[self.scope[-1]].append((self.scope, node.value))
            self.visit(node.value)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            local = alias.asname or alias.name.partition(".")[0]
            whole = alias.name if alias.asname else local
            self.module.imported[local] = (whole, "")
            # `import a.b` binds `a`, and also imports the module `a.b`
            self.module.imported.setdefault(alias.name, (alias.name, ""))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        origin = node.module or ""
        if node.level:
            package = self.module.path.split("/")[: -node.level]
            origin = ".".join([*package, origin] if origin else package)
        for alias in node.names:
            self.module.imported[alias.asname or alias.name] = (origin, alias.name)

    def visit_Dict(self, node: ast.Dict) -> None:
        self._keys(key for key in node.keys if key is not None)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._keys([node.slice])
        self.generic_visit(node)

    def _keys(self, nodes: Iterable[ast.expr]) -> None:
        constants = [node.value for node in nodes if isinstance(node, ast.Constant)]
        self.module.keys.update(value for value in constants if isinstance(value, str))

    def visit_Call(self, node: ast.Call) -> None:
        self.module.keys.update(each.arg for each in node.keywords if each.arg)
        self.module.calls.append(CallSite(self.module.path, self.scope, node))
        self.generic_visit(node)

    def _assigned(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.module.names[self.scope, target.id].append(value)
            if self.in_class:
                self.module.attributes[target.id].append((self.scope, value))
        elif isinstance(target, ast.Attribute):
            self.module.attributes[target.attr].append((self.scope, value))
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for each, its in zip(target.elts, value.elts, strict=False):
                self._assigned(each, its)


@dataclass(frozen=True, slots=True)
class _Site:
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
        module = site.module
        if name == "__file__":
            yield StringValue(f"{SOURCE}/{module.path}")
            return
        # the names of the function first, then those of the enclosing functions
        for length in range(len(site.scope), -1, -1):
            around = site.scope[:length]
            found = [(module, around, value) for value in module.names.get((around, name), ())]
            if not found:
                found = self._parameter(name, module, around)
            if found:
                yield from self._any(found, site.depth)
                return
        origin, its_name = module.imported.get(name, ("", ""))
        other = self._module(origin, module)
        if other is None or not its_name or site.depth > DEEPEST:
            yield Unread.UNKNOWN
            return
        yield from self._named(its_name, _Site(other, depth=site.depth + 1))

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
        names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        defaults = _parameter_defaults(function)
        keywords = [each.arg for each in function.args.kwonlyargs]
        if name not in (*names, *keywords):
            return []
        found: list[_Placed] = []
        for caller in self.modules.values():
            for call in caller.calls:
                if call.last_name != function.name:
                    continue
                given = call.keywords | dict(zip(names, call.node.args, strict=False))
                if name in given:
                    found.append((caller, call.scope, given[name]))
        if not found:
            found.append((module, (), defaults.get(name, _UNKNOWN)))
        return found

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
            item = entries(value).get(key) if isinstance(value, DictLiteral) else None
            yield from self._values(item or _UNKNOWN, site)

    def _called(self, node: ast.Call, site: _Site) -> Iterator[Value]:
        def inner(part: ast.expr) -> Iterator[Value]:
            return self._values(part, site)

        whole = dotted(node.func)
        arguments = [each for each in node.args if not isinstance(each, ast.Starred)]
        if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            if node.func.attr == "joinpath":
                return self._path([node.func.value, *arguments], inner)
            return inner(node.func.value)
        if whole in VARIABLE and arguments:
            return self._variable(arguments, inner)
        if whole.rpartition(".")[2] in FUNCTIONS:
            return self._known(node, arguments, inner)
        return self._returned(whole, site)

    def _known(
        self, node: ast.Call, arguments: Sequence[ast.expr], inner: _Inner
    ) -> Iterator[Value]:
        """Yield the results of one of `FUNCTIONS`."""
        name = dotted(node.func).rpartition(".")[2]
        if name == "dict" and not arguments:
            return iter((DictLiteral(node, node.lineno),))
        if name in HERE:
            return iter((StringValue("."),))
        if name == "field":
            defaults = [each.value for each in node.keywords if each.arg == "default"]
            return inner(defaults[0] if defaults else _UNKNOWN)
        if not arguments:
            return iter((Unread.UNKNOWN,))
        if name in JOINING:
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
        module = site.module
        first, _, rest = name.partition(".")
        where, called = module, name
        if first in module.imported:
            origin, its_name = module.imported[first]
            other = self._module(origin, module)
            if other is None and its_name:
                other, its_name = self._module(f"{origin}.{its_name}", module), ""
            if other is None:
                yield Unread.UNKNOWN
                return
            where, called = other, its_name or rest
        values = where.returned.get(called.rpartition(".")[2], ())
        if not values:
            yield Unread.UNKNOWN
        for scope, value in values:
            yield from self._values(value, _Site(where, scope, site.depth))

    def _module(self, name: str, importer: SourceModule) -> SourceModule | None:
        """Return the module that an import of this dotted name in another module finds."""
        for path in module_paths(name, importer.path):
            if path in self.modules:
                return self.modules[path]
        return None


VARIABLE = ("os.environ.get", "os.getenv", "environ.get", "getenv")
JOINING = ("join", "Path", "PurePath", "PosixPath")
HERE = ("getcwd", "cwd")
SAME = [
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
]
"""Functions whose result refers to the file of their argument, or to its content."""
FUNCTIONS = (*JOINING, *HERE, *SAME, "dirname", "field")
METHODS = ("joinpath", "resolve", "absolute", "as_posix", "read_text", "read")
"""Methods whose result refers to the file of their object, or to its content."""
_UNKNOWN: ast.expr = ast.Constant(value=...)


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


def module_paths(name: str, importer: str) -> Iterator[str]:
    """Yield possible files of a dotted name, in the program's directory or that of the importer:
    Python searches the directory of the script first."""
    if not name:
        return
    relative = name.replace(".", "/")
    beside = posixpath.dirname(importer)
    for base in dict.fromkeys(("", beside)):
        stem = posixpath.join(base, relative)
        yield f"{stem}.py"
        yield f"{stem}/__init__.py"


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
