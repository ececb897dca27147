"""Programs that are started as a rank is, and what a job's interpreter says that it has."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.pythons import interpreter

from dslaunch.node import trial
from dslaunch.preflight.checks._job import program

# not those of another worker, whose programs would be ended too
ENV = {"DSLAUNCH_RUN_ID": f"trial-of-test-{os.getpid()}", "DSLAUNCH_HOST": "n1"}
REPORT = [{"name": trial.REPORT}]
INSTALLED = [{"name": trial.INSTALLED}]


def run(*argv: Any, cwd: str = "/", seconds: float = 300.0, **more: Any) -> dict[str, Any]:
    """How a program ends."""
    told = {"argv": argv, "env": ENV, "cwd": cwd, "seconds": seconds, **more}
    return trial.run(told, "/")


def ends(pid: int) -> bool:
    """Whether a process ends: one that was killed may be dying yet."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(process) as handle:
        return bool(select.select([handle], [], [], 300)[0])


def test_it_gets_the_run_s_variables_directory_and_no_input(tmp_path: Path) -> None:
    line = 'echo "$DSLAUNCH_HOST $PWD $(wc -c)"; echo said >"$0"; echo oh >&2; exit 7'
    done = run("sh", "-c", line, REPORT, cwd=str(tmp_path))
    assert done["out"].split() == ["n1", str(tmp_path), "0"]
    assert (done["code"], done["err"], done["report"]) == (7, "oh\n", "said\n")


def test_a_directory_that_the_run_has_yet_to_make_stands_for_an_empty_one() -> None:
    assert run("pwd", cwd="not/there/yet")["out"] == "/\n"


def late(script: str) -> Any:
    """Return how a script ends that is late: with more time on a machine so busy that it has not
    begun."""
    for seconds in (0.5, 5, 50):
        done = run("sh", "-c", script, seconds=seconds)
        if done["out"].count("\n") > 1:
            break
    return done


def test_a_program_that_is_late_is_ended_and_its_output_kept() -> None:
    done = late("echo begun; sleep 600 & echo $!; wait")
    begun, pid = done["out"].split()
    assert (done["code"], begun) == (None, "begun")
    assert ends(int(pid))


def test_what_a_program_leaves_is_not_waited_for_and_tidied_up() -> None:
    done = run("sh", "-c", "setsid sleep 600 & echo $!", tidy=True)
    assert done["code"] == 0
    assert ends(int(done["out"]))


def test_only_its_own_node_is_tidied_where_several_are_emulated_on_a_machine() -> None:
    with subprocess.Popen(["sleep", "600"], env={**os.environ, **ENV, "DSLAUNCH_HOST": "n2"}) as it:
        assert run("true", tidy=True)["code"] == 0
        assert it.poll() is None
        it.kill()


def test_what_a_program_leaves_is_not_waited_for_while_it_writes() -> None:
    assert run("sh", "-c", "yes & exit 3", seconds=600.0)["code"] == 3


def test_a_flood_of_output_is_cut_and_ended() -> None:
    done = late("echo first; yes; echo never")
    assert done["code"] is None
    assert done["out"].startswith("first\ny\n")
    assert len(done["out"]) <= 2 * trial.HALF


def test_the_number_of_a_program_is_its_own_until_its_group_was_killed() -> None:
    """Another process could get the number of one whose status was taken, and be killed."""
    with Path(os.devnull).open("wb") as nowhere:
        handle = nowhere.fileno()
        it = trial.Program.spawned(["true"], {**os.environ}, out=handle, err=handle)
    with os.fdopen(os.pidfd_open(it.pid)) as handle:
        assert select.select([handle], [], [], 300)[0]
    assert it.has_ended()
    assert Path(f"/proc/{it.pid}").exists()
    assert it.end() == 0
    assert not Path(f"/proc/{it.pid}").exists()


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(FileNotFoundError) as missing:
        run("no-such-program")
    assert missing.value.filename == "no-such-program"


# ---------------------------------------------------------------- what an interpreter has


def installed(
    tmp_path: Path,
    *wanted: str,
    python: str = sys.executable,
    env: dict[str, str] | None = None,
) -> dict[str, Any]:
    """What an interpreter says in a directory."""
    report = tmp_path / "report"
    subprocess.run(
        [python, "-c", program("installed"), str(report), *wanted],
        cwd=tmp_path,
        env={**os.environ, **(env or {})},
        check=True,
        timeout=300,
    )
    found: dict[str, Any] = json.loads(report.read_text())
    return found


@pytest.mark.parametrize("minor", range(8, 15))
def test_every_python_says_what_it_has(tmp_path: Path, minor: int) -> None:
    found = installed(
        tmp_path, "module=json", "module=json.tool", "module=nonesuch", python=interpreter(minor)
    )
    assert found["version"][:2] == [3, minor]
    assert set(found["modules"]) == {"json", "json.tool"}
    assert found["modules"]["json.tool"]["whole"]


def test_what_a_start_up_file_of_python_prints_arrives_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('welcome')")
    env = {**ENV, "PYTHONPATH": str(tmp_path)}
    done = run(sys.executable, "-c", INSTALLED, REPORT, env=env)
    assert (done["code"], done["out"]) == (0, "welcome\n")
    assert json.loads(done["report"])["executable"] == sys.executable


def test_modules_are_distinguished_from_files_and_directories_with_their_names(
    tmp_path: Path,
) -> None:
    (tmp_path / "afile.py").touch()
    (tmp_path / "adirectory").mkdir()
    (tmp_path / "apackage").mkdir()
    (tmp_path / "apackage/__init__.py").touch()
    names = ["afile.part", "adirectory.part", "apackage.part", "apackage"]
    found = installed(tmp_path, *(f"module={name}" for name in names))["modules"]
    assert {name: (bool(m["at"]), m["package"], m["whole"]) for name, m in found.items()} == {
        "afile.part": (True, False, False),
        "adirectory.part": (False, True, False),
        "apackage.part": (True, True, False),
        "apackage": (True, True, True),
    }


def test_a_script_s_imports_are_looked_for_beside_it(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/ours.py").touch()
    (tmp_path / "elsewhere.py").touch()
    imports = ["import=ours", "import=elsewhere", "import=sys"]
    found = installed(tmp_path, "beside=code", *imports)["modules"]
    assert set(found) == {"ours", "sys"}


def test_names_that_are_not_ascii_are_reported_too(tmp_path: Path) -> None:
    place = tmp_path / 'a "b" \\ü\U0001f600'
    (place / "ours").mkdir(parents=True)
    (place / "ours/__init__.py").touch()
    found = installed(tmp_path, f"beside={place}", "import=ours")["modules"]
    assert found["ours"]["at"] == str(place / "ours/__init__.py")


def test_what_is_imported_already_is_found_too(tmp_path: Path) -> None:
    found = installed(tmp_path, "module=os.path", "module=sys", "module=__main__")["modules"]
    assert set(found) == {"os.path", "sys", "__main__"}
    assert found["os.path"]["at"]
    assert found["__main__"]["at"] == ""


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("cuda: Optional[str] = '12.4'", "12.4"),
        ("cuda = '11.8'", "11.8"),
        ("cuda: Optional[str] = None", "None"),
    ],
)
def test_torch_is_read_and_not_imported(tmp_path: Path, line: str, value: str) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / "torch/version.py").write_text(f"__version__ = '2.5.1'\n{line}\nhip = None\n")
    found = installed(tmp_path, "module=torch")["torch"]
    assert found == {"__version__": "2.5.1", "cuda": value, "hip": "None"}


def test_another_environment_than_the_active_one_is_reported(tmp_path: Path) -> None:
    none = {"VIRTUAL_ENV": "", "CONDA_PREFIX": ""}
    assert installed(tmp_path, env=none)["active"] == ""
    assert installed(tmp_path, env={**none, "VIRTUAL_ENV": "/moved"})["active"] == "/moved"
    (tmp_path / "link").symlink_to(sys.prefix)
    same = {**none, "CONDA_PREFIX": str(tmp_path / "link")}
    assert installed(tmp_path, env=same)["active"] == ""
