"""A module of a Python program: the assignments, functions, imports and calls in its source."""

from __future__ import annotations

import ast
import posixpath
from collections import defaultdict
from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from dslaunch.pysource.parse import dotted, parse

Scope = tuple[str, ...]
"""The functions that enclose an expression, the outermost first; () at module level."""
DEFINE_OPTION = ("add_argument", "option", "Option", "DEFINE_string")
"""Functions that define an option of the program, of argparse, click and absl."""


class CallSite(Struct, frozen=True):
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


class SourceModule(Struct):
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
