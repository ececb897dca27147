"""What is installed and released: the lock files, the audit, the component list, the archives."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tools.locked import REQUIREMENTS, Locked, read_lock

CHECKOUT = Path(__file__).parents[2]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))
NOT_LOCKED = {"torch", "networkx", "sympy", "mpmath"}
"""torch, which the machine's GPUs decide, and what only torch needs."""

PYTHONS = ["3.11.0", "3.12.0", "3.13.0"]
LOCKS = sorted(path.name for path in REQUIREMENTS.glob("*.lock"))


def declared(*extras: str) -> list[Requirement]:
    """What pyproject.toml asks for: the dependencies, with those of some extras."""
    project = PROJECT["project"]
    lines = list(project["dependencies"])
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    return [Requirement(line) for line in lines]


def pins(lock: str, python: str | None = None) -> dict[str, Locked]:
    """The locked packages that are installed with this Python."""
    return {package.name: package for package in read_lock(lock) if package.applies(python)}


def closure(requirements: list[Requirement]) -> set[str]:
    """Names of these packages and all that they depend on, by the installed ones' metadata."""
    found: set[str] = set()
    open_ends = list(requirements)
    while open_ends:
        requirement = open_ends.pop()
        name = canonicalize_name(requirement.name)
        if name in found or name in NOT_LOCKED:
            continue
        found.add(name)
        for line in importlib.metadata.requires(name) or []:
            needed = Requirement(line)
            extras = requirement.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in extras):
                open_ends.append(needed)
    return found


# ---------------------------------------------------------------- lock files


@pytest.mark.parametrize("python", PYTHONS)
def test_the_run_lock_satisfies_every_range_of_pyproject(python: str) -> None:
    locked = pins("run.lock", python)
    for requirement in declared():
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)].version)


@pytest.mark.parametrize("python", PYTHONS)
def test_the_test_lock_satisfies_every_range_of_pyproject(python: str) -> None:
    locked = pins("test.lock", python) | pins("deepspeed.lock", python)
    groups = [Requirement(line) for line in PROJECT["dependency-groups"]["checkout"]]
    for requirement in [*declared("test", "train"), *groups]:
        name = canonicalize_name(requirement.name)
        if name not in NOT_LOCKED:
            assert requirement.specifier.contains(locked[name].version), name


def test_the_run_lock_holds_the_runtime_dependencies_and_nothing_else() -> None:
    assert set(pins("run.lock")) == closure(declared())


def test_the_test_lock_holds_all_that_the_tests_need() -> None:
    locked = set(pins("test.lock")) | set(pins("deepspeed.lock"))
    assert closure(declared("test", "train")) <= locked


@pytest.mark.parametrize("lock", ["run.lock", "checkout.lock"])
def test_a_smaller_lock_has_the_versions_and_hashes_of_the_test_lock(lock: str) -> None:
    whole = {(package.name, package.version): package.hashes for package in read_lock("test.lock")}
    for package in read_lock(lock):
        assert package.hashes == whole[package.name, package.version]


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_version_has_sha256_hashes(lock: str) -> None:
    for package in read_lock(lock):
        assert package.requirement.specifier
        assert package.hashes
        for text in package.hashes:
            algorithm, digest = text.split(":")
            assert algorithm == "sha256"
            assert len(bytes.fromhex(digest)) == 32


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_package_index_and_no_path(lock: str) -> None:
    text = (REQUIREMENTS / lock).read_text("utf-8")
    assert "://" not in text
    assert "@" not in text
    assert not [line for line in text.splitlines() if line.startswith("-")]


# ---------------------------------------------------------------- audit


class Advisories(BaseHTTPRequestHandler):
    """Answers like an advisory database: the packages in `vulnerable` have one advisory."""

    vulnerable: frozenset[str] = frozenset()

    def do_POST(self) -> None:
        query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = query["package"]["name"]
        body = json.dumps(_advisories(name) if name in self.vulnerable else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Stay quiet."""


def _advisories(name: str) -> dict[str, object]:
    affected = {
        "package": {"name": name, "ecosystem": "PyPI"},
        "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "999"}]}],
    }
    return {"vulns": [{"id": "GHSA-test", "summary": "for a test", "affected": [affected]}]}


@pytest.fixture
def advisory_server(request: pytest.FixtureRequest) -> Iterator[str]:
    handler = type("Handler", (Advisories,), {"vulnerable": frozenset(request.param)})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
        server.shutdown()
        thread.join()


def audit(url: str, cache: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.audit", "--vulnerability-service", "osv"]
    command += ["--osv-url", url, "--cache-dir", str(cache)]
    return subprocess.run(
        command, cwd=CHECKOUT, text=True, capture_output=True, timeout=300, check=False
    )


@pytest.mark.parametrize("advisory_server", [()], indirect=True, ids=["none known"])
def test_an_audit_without_advisories_succeeds(advisory_server: str, tmp_path: Path) -> None:
    done = audit(advisory_server, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("advisory_server", [("paramiko",)], indirect=True)
def test_an_audit_names_a_vulnerable_package(advisory_server: str, tmp_path: Path) -> None:
    done = audit(advisory_server, tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    version = pins("run.lock")["paramiko"].version
    assert done.stdout == f"paramiko {version}: GHSA-test, fixed in 999\n"


def test_an_audit_without_a_database_has_a_separate_exit_code(tmp_path: Path) -> None:
    done = audit("http://127.0.0.1:1/v1/query", tmp_path)
    assert done.returncode == os.EX_TEMPFAIL, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


# ---------------------------------------------------------------- component list


def test_the_sbom_lists_every_runtime_dependency_with_version_and_license(tmp_path: Path) -> None:
    output = tmp_path / "dslaunch.cdx.json"
    command = [sys.executable, "-m", "tools.sbom", str(output)]
    done = subprocess.run(
        command, cwd=CHECKOUT, text=True, capture_output=True, timeout=300, check=False
    )
    # cyclonedx-py has validated it against CycloneDX's JSON schema, or it would have failed
    assert done.returncode == 0, done.stdout + done.stderr
    bom = json.loads(output.read_text("utf-8"))
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    listed = {canonicalize_name(part["name"]): part["version"] for part in bom["components"]}
    assert listed == {name: package.version for name, package in pins("run.lock").items()}
    assert all(part["licenses"] and part["purl"] for part in bom["components"])
    product = bom["metadata"]["component"]
    assert (product["name"], product["version"]) == ("dslaunch", PROJECT["project"]["version"])
    assert product["licenses"][0]["license"]["id"] == "Apache-2.0"


# ---------------------------------------------------------------- archives


def build(directory: Path, umask: int) -> tuple[Path, Path]:
    """Build the wheel and the source distribution of a copy of the checkout's files."""
    old = os.umask(umask)
    try:
        for name in checkout_files():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(CHECKOUT / name, directory / name)
        command = [sys.executable, "-m", "hatchling", "build", "-d", "out"]
        env = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
        subprocess.run(command, cwd=directory, env=env, capture_output=True, check=True)
    finally:
        os.umask(old)
    (wheel,) = directory.glob("out/*.whl")
    (source,) = directory.glob("out/*.tar.gz")
    return wheel, source


def checkout_files() -> list[str]:
    """Paths of the files that git does not ignore."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listing, cwd=CHECKOUT, text=True, capture_output=True, check=True)
    return [name for name in done.stdout.split("\0") if name and (CHECKOUT / name).is_file()]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(tmp_path_factory.mktemp("build") / "copy", umask=0o022)


def test_two_builds_of_the_same_files_are_the_same_bytes(
    archives: tuple[Path, Path], tmp_path: Path
) -> None:
    second = build(tmp_path / "second", umask=0o077)
    for one, other in zip(archives, second, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_the_wheel_holds_the_package_and_its_license_only(archives: tuple[Path, Path]) -> None:
    names = zipfile.ZipFile(archives[0]).namelist()
    metadata = f"dslaunch-{PROJECT['project']['version']}.dist-info"
    assert f"{metadata}/licenses/LICENSE" in names
    assert {name.partition("/")[0] for name in names} == {"dslaunch", metadata}
    kinds = {Path(name).suffix for name in names if name.startswith("dslaunch/")}
    assert kinds == {".json", ".j2", ".py", ".toml", ".typed"}


def test_the_source_distribution_holds_the_license_and_nothing_local(
    archives: tuple[Path, Path],
) -> None:
    with tarfile.open(archives[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "SECURITY.md", "requirements/run.lock", "src/dslaunch/py.typed"} <= names
    assert not [name for name in names if name.startswith((".ci", ".venv", "shared"))]
    assert not [name for name in names if name.endswith((".pyc", ".pem", ".key"))]


def test_the_metadata_names_the_license_as_spdx_expression(archives: tuple[Path, Path]) -> None:
    wheel = zipfile.ZipFile(archives[0])
    (name,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
    lines = wheel.read(name).decode().splitlines()
    assert "License-Expression: Apache-2.0" in lines
    assert "License-File: LICENSE" in lines
