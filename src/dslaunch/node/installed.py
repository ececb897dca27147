"""Report what the interpreter that runs this has installed.

A separate program, given to the job's interpreter with `-c`: its first argument is the file that it
reports into, its second what to look for. It imports none of that: importing PyTorch takes seconds.
It runs on Python 3.6 and newer, to report also interpreters that are too old for a job.
"""

import importlib.util
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # to import `typing` takes longer than to look
    from typing import Any, Dict, List, Optional

TORCH = ("__version__", "cuda", "hip", "xpu")
"""The names in `torch/version.py` that say what torch is built for."""
LONGEST = 65536
"""Characters of a file that are read."""


def main(told: "Dict[str, Any]") -> "Dict[str, Any]":
    """Return the interpreter, and where the wanted modules and packages are."""
    first = sys.path[:1] if sys.path[:1] == [""] else []
    others = sys.path[len(first) :]
    modules = {name: module(name) for name in told["modules"]}
    # a script's own directory comes first for its imports, the working directory for a module's
    sys.path[:] = [*told["beside"], *others]
    modules.update((name, module(name)) for name in told["imports"] if name not in modules)
    return {
        "executable": sys.executable or "",
        "version": list(sys.version_info[:3]),
        "prefix": sys.prefix,
        "active": elsewhere(),
        "modules": {name: found for name, found in modules.items() if found is not None},
        "packages": packages(others, told["packages"]),
        "torch": torch(modules.get("torch")),
    }


def elsewhere() -> str:
    """Return the environment that is said to be active, if this interpreter is of another; else
    empty."""
    said = [os.environ.get(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    active = [path for path in said if path]
    own = os.path.realpath(sys.prefix)
    return "" if own in map(os.path.realpath, active) else "".join(active[:1])


def module(name: str) -> "Optional[Dict[str, Any]]":
    """Return where a module is, and whether the whole of a dotted name is there; None: nothing
    is."""
    top, *below = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except ImportError:
        return None
    except ValueError:  # it is imported already, from an unknown place
        return {"at": "", "package": False, "places": [], "whole": not below}
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or ())
    inside = [os.path.join(place, *below) for place in places] if below else []
    whole = not below or any(map(is_module, inside))
    # a directory without `__init__.py` has no origin: Python takes it for a package of no code
    at = spec.origin or ""
    return {"at": at, "package": bool(places), "places": places[:1], "whole": whole}


def is_module(path: str) -> bool:
    """Return whether a path without its ending is a module's."""
    files = (path + ".py", os.path.join(path, "__init__.py"))
    return any(map(os.path.isfile, files))


def packages(directories: "List[str]", names: "List[str]") -> "Dict[str, List[str]]":
    """Return the versions of installed packages by their .dist-info directories, as pip writes
    them."""
    found: "Dict[str, List[str]]" = {}
    for directory in directories:
        try:
            entries = os.listdir(directory)
        except OSError:
            continue
        for entry in sorted(entries):
            stem, dot, ending = entry.rpartition(".")
            name, dash, version = stem.partition("-")
            plain = name.lower().replace("_", "-").replace(".", "-")
            if dot and dash and ending in ("dist-info", "egg-info") and plain in names:
                found.setdefault(plain, [version, directory])
    return found


def torch(found: "Optional[Dict[str, Any]]") -> "Dict[str, str]":
    """Return what torch is built for, from its version file: names with their values or `None`."""
    if not found or not found["places"]:
        return {}
    try:
        with open(os.path.join(found["places"][0], "version.py"), encoding="utf-8") as file:
            lines = file.read(LONGEST).splitlines()
    except (OSError, ValueError):
        return {}
    values = {}
    for line in lines:
        left, equals, right = line.partition("=")
        name = left.partition(":")[0].strip()
        if equals and name in TORCH:
            values[name] = right.strip().strip("'\"")
    return values


def program() -> None:
    """Report into the file that is named first."""
    result = json.dumps(main(json.loads(sys.argv[2])))
    with open(sys.argv[1], "w") as file:
        file.write(result + "\n")


if __name__ == "__main__":
    program()
