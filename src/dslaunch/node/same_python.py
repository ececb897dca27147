"""The job's interpreter as a copy of this process, where that is the same.

Mostly the job's interpreter is the program that runs this. A copy of this process then shows what
it would import, after it has done what `-I -S` left out (`transport/program.py`): to import
`site`, which adds the user's packages and runs start-up files of Python. That takes a node half as
much processor time as another start. Where variables or the interpreter may make a difference, it
is started.
"""

from __future__ import annotations

import os
import sys

from dslaunch.node import installed, paths

TYPE_CHECKING = False
if TYPE_CHECKING:  # to import `typing` takes a node longer than to answer most of its questions
    from typing import Any, Dict, List, NoReturn

OF_PYTHON = "PYTHON"
"""How variables begin that Python reads at its start, unless it is isolated (`-I`)."""
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
HARMLESS = (NO_BYTECODE, "PYTHONHASHSEED", "PYTHONUNBUFFERED")
"""Those of them, often set, that have nothing to do with what is imported."""
OF_LIBRARIES = ("LD_", "LC_", "LANG", "GLIBC_", "MALLOC_")
"""How variables begin that the dynamic linker and the C library read at the start of a program."""
OF_EVERY_START = frozenset(
    ("os", "os.path", "posixpath", "genericpath", "stat", "_stat", "_collections_abc", "abc")
)
"""Modules that `site` imports: with `-S` this program has done that."""
MOST_VARIABLES = 64 * 1024
"""Characters of all variables: the kernel starts no program with too many (execve(2), E2BIG)."""
FAILED = 1
"""Exit code of Python after an exception."""


def is_same(python: str, environment: Dict[str, str]) -> bool:
    """Return whether a command `python` with these variables would start the program that runs
    this, with nothing that makes a difference to it."""
    changed = [name for name, text in environment.items() if os.environ.get(name) != text]
    return (
        sys.implementation.name == "cpython"
        and bool(sys.flags.isolated and sys.flags.no_site)
        and hasattr(installed.__loader__, "at_start")
        and (os.getuid(), os.getgid()) == (os.geteuid(), os.getegid())
        and bool(sys.executable)
        and sum(map(len, environment.values())) < MOST_VARIABLES
        and paths.program(python, environment.get("PATH")) == sys.executable
        and not any(name.startswith(OF_PYTHON) for name in {*environment} - {*HARMLESS})
        and not any(name.startswith(OF_LIBRARIES) for name in changed)
    )


def start(argv: List[str], environment: Dict[str, str], out: int, err: int, report: int) -> int:
    """Start a copy that does what the job's interpreter would: `argv` is its command line, with
    the text of `installed` and its arguments. Return the process, which has its own group.

    `out`, `err`: where it writes to. `report`: what the arguments name, into which the copy also
    writes what the shell would that starts the interpreter.
    """
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            _redirect(out, err, report)
            os.environ.clear()
            os.environ.update(environment)
            os.write(report, f"activated\n{sys.executable}\n".encode(errors="surrogateescape"))
            _import_site(argv, environment)
            _look(argv)
        finally:
            os._exit(FAILED)
    try:
        os.setpgid(pid, pid)
    except OSError:
        pass  # the copy has done so, and may have ended
    return pid


def _redirect(out: int, err: int, report: int) -> None:
    """Close all files but those that a program would inherit."""
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, report)
    os.closerange(report + 1, 256)


def _import_site(argv: List[str], environment: Dict[str, str]) -> None:
    """Do what follows at the start of Python. Where that fails, start it: it fails in its own
    way."""
    loader: Any = installed.__loader__
    sys.meta_path.remove(loader)
    for name in {*sys.modules} - loader.at_start - OF_EVERY_START:
        del sys.modules[name]
    sys.dont_write_bytecode = bool(environment.get(NO_BYTECODE))
    try:
        import site

        # where this is not decided, `main` takes it from `-I`
        site.ENABLE_USER_SITE = True
        site.main()
        sys.path.insert(0, "")  # the working directory, for a program that is given with `-c`
    except BaseException:  # noqa: BLE001 - whatever a start-up file raises, also SystemExit
        os.execve(sys.executable, argv, environment)


def _look(argv: List[str]) -> NoReturn:
    """Run `installed` as the interpreter would run its text."""
    _, option, _, *arguments = argv
    sys.argv = [option, *arguments]
    try:
        installed.program()
        sys.stdout.flush()
    except Exception:  # noqa: BLE001 - reported by its traceback, as that of any program
        sys.excepthook(*sys.exc_info())
        os._exit(FAILED)
    os._exit(0)
