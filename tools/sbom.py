"""Write a software bill of materials of dslaunch and its runtime dependencies: CycloneDX, JSON.

    python -m tools.sbom OUTPUT

Versions come from requirements/run.lock. Licenses and the graph come from the metadata of these
packages in this environment, which must therefore have exactly these versions. cyclonedx-py
validates the result against CycloneDX's schema.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from tools.locked import Locked, read_lock

CHECKOUT = Path(__file__).resolve().parents[1]


def main(output: str) -> int:
    """Write the file; return the exit code."""
    locked = [package for package in read_lock("run.lock") if package.applies()]
    wrong = [message for package in locked if (message := _mismatch(package))]
    if wrong:
        print("sbom: this environment differs from requirements/run.lock:", *wrong, sep="\n  ")
        print("hint: run 'make lint', which installs the locked versions, and try again")
        return 1
    with tempfile.TemporaryDirectory() as directory:
        python = _environment_of(locked, Path(directory))
        return subprocess.run(_cyclonedx(python, output), check=False).returncode


def _mismatch(package: Locked) -> str | None:
    try:
        found = importlib.metadata.version(package.name)
    except importlib.metadata.PackageNotFoundError:
        return f"{package.name}: locked {package.version}, not installed"
    if found != package.version:
        return f"{package.name}: locked {package.version}, installed {found}"
    return None


def _environment_of(locked: list[Locked], directory: Path) -> Path:
    """Make a virtual environment that shows these packages and no others; return its Python."""
    venv.create(directory, with_pip=False)
    (site,) = directory.glob("lib/python*/site-packages")
    for package in locked:
        metadata = _metadata_directory(package)
        (site / metadata.name).symlink_to(metadata)
    return directory / "bin" / "python"


def _metadata_directory(package: Locked) -> Path:
    """Return the package's `NAME-VERSION.dist-info` in this environment."""
    distribution = importlib.metadata.distribution(package.name)
    (path,) = [
        Path(str(distribution.locate_file(file)))
        for file in distribution.files or []
        if file.match("*.dist-info/METADATA") and len(file.parts) == 2
    ]
    return path.parent


def _cyclonedx(python: Path, output: str) -> list[str]:
    return [
        *(sys.executable, "-m", "cyclonedx_py", "environment"),
        *("--pyproject", str(CHECKOUT / "pyproject.toml"), "--mc-type", "application"),
        *("--output-reproducible", "--spec-version", "1.6", "--output-format", "JSON"),
        *("--output-file", output, str(python)),
    ]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
