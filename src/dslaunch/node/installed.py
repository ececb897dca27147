"""Report what the interpreter that runs this has installed.

A separate program, given to the job's interpreter with `-c`: its first argument is the file that it
reports into, the others what to look for, each as `KIND=NAME` (see WANTED). It imports none of
that: importing PyTorch takes seconds. It runs on Python 3.6 and newer, to report also interpreters
that are too old for a job.

All nodes wait for it, so it imports nothing that Python has not imported itself: `json` and
`importlib.util` would take as long as all else, the start of Python included. It ends without
taking Python down in order, which would take nearly as long as what is asked.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # to import `typing` takes longer than to look
    from typing import Any, Dict, List, Optional

TORCH = ("__version__", "cuda", "hip", "xpu")
"""The names in `torch/version.py` that say what torch is built for."""
WANTED = ("module", "import", "beside", "package")
"""What is looked for: modules; modules that a script imports; the script's directory; packages."""
LONGEST = 65536
"""Characters of a file that are read."""


def main(words: "List[str]") -> "Dict[str, Any]":
    """Return the interpreter, and where the wanted modules and packages are."""
    told: "Dict[str, List[str]]" = {kind: [] for kind in WANTED}
    for word in words:
        kind, _, name = word.partition("=")
        told[kind].append(name)
    first = sys.path[:1] if sys.path[:1] == [""] else []
    others = sys.path[len(first) :]
    modules = {name: module(name) for name in told["module"]}
    # a script's own directory comes first for its imports, the working directory for a module's
    sys.path[:] = [*told["beside"], *others]
    modules.update((name, module(name)) for name in told["import"] if name not in modules)
    return {
        "executable": sys.executable or "",
        "version": list(sys.version_info[:3]),
        "prefix": sys.prefix,
        "active": elsewhere(),
        "modules": {name: found for name, found in modules.items() if found is not None},
        "packages": packages(others, told["package"]),
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
    if top in sys.modules:
        spec = getattr(sys.modules[top], "__spec__", None)
        if spec is None:  # from an unknown place
            return {"at": "", "package": False, "places": [], "whole": not below}
    else:
        spec = found(top)
        if spec is None:
            return None
    places = list(spec.submodule_search_locations or ())
    inside = [os.path.join(place, *below) for place in places] if below else []
    whole = not below or any(map(is_module, inside))
    # a directory without `__init__.py` has no origin: Python takes it for a package of no code
    at = spec.origin or ""
    return {"at": at, "package": bool(places), "places": places[:1], "whole": whole}


def found(name: str) -> "Optional[Any]":
    """Return the spec of a top-level module that is not imported yet; None: it is not there."""
    for finder in sys.meta_path:
        if hasattr(finder, "find_spec"):  # else it is one for older releases of Python
            try:
                spec = finder.find_spec(name, None)
            except ImportError:
                return None
            if spec is not None:
                return spec
    return None


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


def as_json(value: "Any") -> str:
    """Return a value as JSON, in ASCII."""
    if isinstance(value, dict):
        items = (as_json(key) + ": " + as_json(each) for key, each in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_json, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if is_plain(value):
        return f'"{value}"'
    import json  # for the rare text that is not plain

    return str(json.dumps(value))


def is_plain(text: str) -> bool:
    """Return whether a text stands in JSON as it is."""
    return all(" " <= letter <= "~" and letter not in '\\"' for letter in text)


def program() -> None:
    """Report into the file that is named first."""
    result = as_json(main(sys.argv[2:]))
    with open(sys.argv[1], "w") as file:
        file.write(result + "\n")


if __name__ == "__main__":
    program()
    sys.stdout.flush()  # what a start-up file of Python has printed is reported, too
    os._exit(0)
