"""Puts modules of ours into every Python process of a run, before the training's first line.

They are in a ZIP archive in front of PYTHONPATH, whose `sitecustomize` Python imports as it starts.
Bytecode of an archive is never written to disk; for a module in a directory it is, and creates the
directories again if they were removed meanwhile.

A hook is a module of this package with a function `start`, which gets the directory of the run on
the node. It runs in the interpreter of the job (Python 3.8 or newer) and imports nothing of
dslaunch but its own PARTS, by relative imports: in the archive the package has another name. A
module that needs another one to be there is loaded when that one has been imported, so that
processes without it pay nothing. One that watches several is started at once, and its function
`imported` is called after the import of each. An exception of a hook is dropped: it must never
become an error of the job.
"""

from __future__ import annotations

import contextlib
import os
import threading
from importlib.util import find_spec

from dslaunch.node import hook_collectives, hook_stacks, private

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from types import ModuleType
    from typing import Dict, Mapping, Optional, Tuple, Union

    Hooks = Mapping[ModuleType, Union[str, Tuple[str, ...], None]]

ARCHIVE = "python.zip"
"""The archive in the run's directory that is put into PYTHONPATH."""
HOOKS: "Hooks" = {hook_stacks: None, hook_collectives: hook_collectives.AFTER}
"""The modules of every run, each with the module after whose import it is started; None: at once;
several: at once, and `imported` is called after the import of each."""
_PACKAGE = "dslaunch_hooks"
"""The package in the archive that the hooks are in."""
_SITECUSTOMIZE = '''\
"""Starts the hooks of dslaunch, and makes way for the sitecustomize behind it."""

import os
import sys
from _thread import get_ident

_HOOKS = {hooks!r}
_PACKAGE = {package!r}


def _started_after(imported, start):
    """Call `start` when a module has been imported."""

    class Loader:
        """The loader of the module, until it has been used once."""

        def __init__(self, loader):
            self._loader = loader

        def __getattr__(self, name):
            return getattr(self._loader, name)

        def exec_module(self, module):
            module.__loader__ = module.__spec__.loader = self._loader
            self._loader.exec_module(module)
            if Finder in sys.meta_path:
                sys.meta_path.remove(Finder)
            try:
                start()
            except Exception:
                pass

    class Finder:
        """Finds this one module, as the other finders do, until it has been imported: libraries
        also search for modules to see whether they are installed."""

        searching = set()  # threads in which the other finders are asked

        @classmethod
        def find_spec(cls, name, path=None, target=None):
            thread = get_ident()
            if name != imported or thread in cls.searching:
                return None
            import importlib.util  # a process without that module needs none of it

            cls.searching.add(thread)
            try:
                spec = importlib.util.find_spec(name)
            finally:
                cls.searching.discard(thread)
            if spec is not None and hasattr(spec.loader, "exec_module"):
                spec.loader = Loader(spec.loader)
            return spec

    sys.meta_path.insert(0, Finder)


def _start_hooks():
    directory = os.path.dirname(os.path.dirname(__file__))
    __import__(_PACKAGE)  # it finds its modules when the archive is no longer in sys.path
    ours = {_PACKAGE: sys.modules.pop(_PACKAGE)}

    def load(name):
        """Import a hook. Its modules are in sys.modules only meanwhile: what is there when Python
        exits is emptied, and hooks are called until then."""
        sys.modules.update(ours)
        try:
            return getattr(__import__(_PACKAGE + "." + name), name)
        finally:
            for each in list(sys.modules):
                if each.partition(".")[0] == _PACKAGE:
                    ours[each] = sys.modules.pop(each)

    def start(name):
        module = load(name)
        module.start(directory)
        return module

    def watch(name, several):
        module = start(name)
        for imported in several:
            _started_after(imported, lambda imported=imported: module.imported(imported))

    for name, imported in _HOOKS.items():
        try:
            if imported is None:
                start(name)
            elif isinstance(imported, tuple):
                watch(name, imported)
            else:
                _started_after(imported, lambda name=name: start(name))
        except Exception:
            pass


try:
    if sys.version_info >= (3, 8):  # a job may run programs of older Pythons
        _start_hooks()
except Exception:
    pass
sys.path[:] = [path for path in sys.path if path != os.path.dirname(__file__)]
sys.path_importer_cache.pop(os.path.dirname(__file__), None)
# from here on as if we had not been there: without another one, this raises what `site` expects
del sys.modules[__name__]
import sitecustomize
'''


def arm(
    directory: str, environment: Dict[str, str], hooks: "Optional[Hooks]" = None
) -> Dict[str, str]:
    """Return variables that start the hooks in every Python process below. Never fails.

    `directory` is the run's own; `hooks`: others than HOOKS. Python ignores the variables with
    `-E`, `-I` or `-S`.
    """
    archive = os.path.join(directory, ARCHIVE)
    if ":" in archive:  # such a path cannot be written in PYTHONPATH
        return {}
    try:
        _write(archive, HOOKS if hooks is None else hooks)
    except OSError:
        return {}
    before = environment.get("PYTHONPATH")
    # an empty part would mean the working directory
    return {"PYTHONPATH": f"{archive}:{before}" if before else archive}


def _write(archive: str, hooks: Hooks) -> None:
    """Write the archive. Raises OSError."""
    import zipfile  # only where ranks are started: 16 ms

    new = f"{archive}.{os.getpid()}-{threading.get_ident()}"
    fd = private.open_file(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with os.fdopen(fd, "wb") as file, zipfile.ZipFile(file, "w") as written:
            for path, text in _modules(hooks).items():
                # dated 1980, whatever the node's clock says
                written.writestr(zipfile.ZipInfo(path), text)
        os.replace(new, archive)  # a rank that starts now may be reading it
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def _modules(hooks: Hooks) -> Dict[str, str]:
    """Return the texts of the archive's modules, by their paths in it."""
    triggers = {_short(module): imported for module, imported in hooks.items()}
    starter = _SITECUSTOMIZE.replace("{hooks!r}", repr(triggers))
    starter = starter.replace("{package!r}", repr(_PACKAGE))
    needed = [part for module in hooks for part in (module, *getattr(module, "PARTS", ()))]
    texts = {f"{_PACKAGE}/{_short(module)}.py": _source(module) for module in needed}
    return {"sitecustomize.py": starter, f"{_PACKAGE}/__init__.py": "", **texts}


def _short(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def _source(module: ModuleType) -> str:
    """Return the text of a module: on a node, of one that was sent (`transport/program.py`)."""
    spec = find_spec(module.__name__)
    source: str = spec.loader.get_source(module.__name__)  # type: ignore[union-attr]
    return source
