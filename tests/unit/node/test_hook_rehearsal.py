"""The hook of rehearsals: what it records of a process, without PyTorch."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest

from dslaunch.node import hook_code, hook_recorder, rank_hooks, rehearsal
from dslaunch.node.redact import FIXED, Secrets
from dslaunch.protocol.rehearsal import Record

Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a program as a rank of a rehearsal, and return its records."""
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)

    def start(text: str, rank: str = "3", **more: str) -> list[dict[str, Any]]:
        variables = rehearsal.prepare(str(directory), 2)
        variables |= rank_hooks.arm(str(directory), {}, {**rank_hooks.HOOKS, **rehearsal.HOOKS})
        environment = {**os.environ, **variables, "RANK": rank, **more}
        subprocess.run(
            [sys.executable, "-c", text], env=environment, cwd=tmp_path, check=False, timeout=300
        )
        found = rehearsal.records(str(directory), [3], {})
        return list(found["3"]["records"]) if found else []

    return start


def pretend(directory: Path, module: str, code: str) -> None:
    """Write a module that programs in the directory import instead of PyTorch's."""
    *packages, name = module.split(".")
    for package in packages:
        directory /= package
        directory.mkdir()
        (directory / "__init__.py").touch()
    (directory / f"{name}.py").write_text(code)


def of_kind(records: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [record for record in records if record["kind"] == kind]


def test_a_rank_records_its_start_and_its_end(run: Run, tmp_path: Path) -> None:
    records = run("pass", WORLD_SIZE="8", OMP_NUM_THREADS="4")
    assert [record["kind"] for record in records] == ["start", "ended"]
    assert (records[0]["world"], records[0]["threads"]) == (8, 4)
    assert records[0]["cwd"] == str(tmp_path)


def test_a_process_without_a_rank_records_nothing(run: Run) -> None:
    assert run("pass", rank="") == []


def test_processes_that_a_rank_starts_or_forks_record_nothing(run: Run) -> None:
    text = (
        "import os, subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'open(\"of_child\", \"w\")'])\n"
        "if not os.fork():\n    open('/tmp/x/y', 'w')\n"
        "os.wait()"
    )
    assert [record["kind"] for record in run(text)] == ["start", "ended"]


def test_a_process_of_a_rank_that_joins_a_process_group_is_recorded(
    run: Run, tmp_path: Path
) -> None:
    pretend(tmp_path, "torch.distributed.distributed_c10d", "def init_process_group(): pass\n")
    child = "import torch.distributed.distributed_c10d as c10d; c10d.init_process_group()"
    text = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])"
    assert [record["kind"] for record in run(text)] == ["start", "spawned-joins", "ended"]


def test_a_collective_is_recorded_before_it_begins_with_its_lines(run: Run, tmp_path: Path) -> None:
    pretend(tmp_path, "torch.distributed.distributed_c10d", "def barrier(): raise SystemExit(6)\n")
    (tmp_path / "torch/distributed/__init__.py").write_text("class ProcessGroup: pass\n")
    library = tmp_path / "site-packages"
    library.mkdir()
    call = "from torch.distributed.distributed_c10d import barrier\ndef wait(): barrier()\n"
    (library / "trainer.py").write_text(call)
    (tmp_path / "train.py").write_text("import trainer\n\ntrainer.wait()\n")
    records = run("import sys; sys.path.append('site-packages'); import train")
    assert of_kind(records, "collective-begins") == [
        {
            "kind": "collective-begins",
            "number": 1,
            "operation": "barrier",
            "file": "train.py",
            "line": 3,
            "caller": "trainer.py",
            "caller_line": 2,
        }
    ]


@pytest.mark.parametrize(
    ("group", "operations"),
    [("(Mesh(), 0)", ["all_gather_single"]), ("Mesh()", ["all_gather_single"]), ("Part()", [])],
)
def test_a_collective_of_a_distributed_tensor_is_recorded_if_all_ranks_call_it(
    run: Run, tmp_path: Path, group: str, operations: list[str]
) -> None:
    module = "torch.distributed._functional_collectives"
    pretend(tmp_path, module, "def all_gather_single(part, dim, group): pass\n")
    (tmp_path / "torch/distributed/distributed_c10d.py").write_text(
        "def init_process_group(): pass\n"
        "def get_world_size(): return 2\n"
        "def get_rank(): return 0\n"
        "def get_backend(): return 'gloo'\n"
    )
    text = (
        "class Mesh:\n    def size(self, dim=0): return 2\n"
        "class Part:\n    def size(self): return 1\n"
        "from torch.distributed import distributed_c10d\n"
        "distributed_c10d.init_process_group()\n"
        f"import {module} as functional\n"
        f"functional.all_gather_single('part', 0, {group})"
    )
    begun = of_kind(run(text), "collective-begins")
    assert [each["operation"] for each in begun] == operations


@pytest.mark.parametrize(
    ("plan", "members"),
    [
        ("{'up': ColwiseParallel(), 'down': Other()}", [[0, 2]]),
        ("Own()", [[0, 2]]),
        ("{'experts': Other()}", []),
        ("None", []),
    ],
)
def test_ranks_that_divide_tensors_are_recorded_and_those_that_divide_experts_are_not(
    run: Run, tmp_path: Path, plan: str, members: list[list[int]]
) -> None:
    module = "torch.distributed.tensor.parallel.api"
    pretend(tmp_path, module, "def parallelize_module(module, mesh, plan=None): pass\n")
    text = (
        "class Ranks:\n    def flatten(self): return self\n    def tolist(self): return [2, 0]\n"
        "class Mesh:\n    ndim, mesh = 1, Ranks()\n    def size(self): return 2\n"
        "class ColwiseParallel: pass\nclass Own(ColwiseParallel): pass\nclass Other: pass\n"
        f"from {module} import parallelize_module\n"
        f"parallelize_module('layer', Mesh(), {plan})"
    )
    assert [each["members"] for each in of_kind(run(text), "tensor-parallel")] == members


def test_an_exception_is_recorded_with_the_line_of_the_script(run: Run, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import json\n\ndef work():\n    json.loads('x')\n")
    (raised,) = of_kind(run("import os, own\nos.chdir('/')\nown.work()"), "exception")
    assert (raised["error"], raised["file"], raised["line"]) == ("JSONDecodeError", "own.py", 4)


def test_an_exception_without_a_text_is_recorded_with_the_line_that_raised_it(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text("def work():\n    assert len([]) > 0\n")
    (raised,) = of_kind(run("import own\nown.work()"), "exception")
    assert (raised["error"], raised["text"]) == ("AssertionError", "assert len([]) > 0 (own.py:2)")


def test_an_exception_that_is_handled_is_not_recorded(run: Run) -> None:
    assert of_kind(run("try:\n    1 / 0\nexcept ZeroDivisionError:\n    pass"), "exception") == []


def test_other_hosts_are_recorded_once_and_this_one_is_not(run: Run) -> None:
    text = (
        "import socket\n"
        "for name in ('hub.invalid', 'hub.invalid', 'localhost', 'master.invalid'):\n"
        "    try:\n        socket.getaddrinfo(name, 443)\n    except OSError:\n        pass"
    )
    hosts = of_kind(run(text, MASTER_ADDR="master.invalid"), "host")
    assert [each["name"] for each in hosts] == ["hub.invalid"]


def test_a_secret_in_the_name_of_a_host_is_masked(run: Run) -> None:
    """What an agent sends is masked by `Secrets.values`, but for fields with names of the run."""
    text = (
        "import socket\ntry:\n    socket.getaddrinfo('s3cret.invalid', 443)\nexcept OSError: pass"
    )
    (found,) = of_kind(Secrets(["s3cret"]).values(run(text)), "host")
    assert found["name"] == "***.invalid"


def test_no_field_of_a_record_is_exempt_from_masking() -> None:
    fields = {name for kind in get_args(Record) for name in kind.model_fields}
    assert fields
    assert not fields & FIXED


def test_the_first_file_that_is_written_in_a_directory_is_recorded(
    run: Run, tmp_path: Path
) -> None:
    text = "open('a', 'w'); open('b', 'w'); open('/dev/null', 'w'); open('a')"
    assert [each["path"] for each in of_kind(run(text), "written")] == [str(tmp_path / "a")]


def test_a_record_for_which_the_disk_has_no_space_costs_no_other_one(run: Run) -> None:
    text = (
        "import os, resource\n"
        "size = os.path.getsize('run/rehearsal/3.jsonl')\n"
        "limits = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5, limits[1]))\n"
        "open('empty', 'w').close()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, limits)\n"
    )
    assert [record["kind"] for record in run(text)] == ["start", "ended"]


def test_a_full_record_leaves_the_script_alone(run: Run) -> None:
    text = (
        "import os\n"
        "for n in range(100):\n    os.mkdir(str(n)); open(f'{n}/x', 'w').close()\n"
        "open('end', 'w')"
    )
    assert len(of_kind(run(text), "written")) == 64


def test_a_directory_of_records_that_is_gone_leaves_the_script_alone(
    run: Run, tmp_path: Path
) -> None:
    text = "import shutil; shutil.rmtree('run'); open('done', 'w').close()"
    assert run("pass")
    with pytest.raises(FileNotFoundError):
        run(text)
    assert (tmp_path / "done").exists()


def test_a_kernel_that_is_built_is_recorded_even_if_it_fails(run: Run, tmp_path: Path) -> None:
    code = "def load(name):\n    raise RuntimeError\ndef load_inline(name):\n    return 7\n"
    pretend(tmp_path, "torch.utils.cpp_extension", code)
    text = (
        "import torch.utils.cpp_extension as built\nassert built.load_inline(name='first') == 7\n"
        "try:\n    built.load('second')\nexcept RuntimeError:\n    pass"
    )
    builds = [each for each in run(text) if each["kind"].startswith("build")]
    assert [(each["kind"], each.get("name")) for each in builds] == [
        ("build-begins", "first"),
        ("build-ends", None),
        ("build-begins", "second"),
        ("build-ends", None),
    ]


def test_a_program_in_the_place_of_a_rank_is_recorded_from_its_start(run: Run) -> None:
    text = (
        "import os, sys\n"
        "if 'AGAIN' not in os.environ:\n"
        "    os.environ['AGAIN'] = 'yes'\n"
        "    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])"
    )
    records = run(text)
    assert [each["kind"] for each in records] == ["start", "replaced", "start", "ended"]
    assert records[1]["program"] == os.path.realpath(sys.executable)[-200:]


@pytest.mark.parametrize(
    ("code", "averages"),
    [
        ("for p in model.parameters():\n    dist.all_reduce(p.data)", True),
        ("for n, p in model.named_parameters():\n    if n:\n        dist.all_reduce(p)", True),
        ("averager.average_parameters(model.parameters())", True),
        ("for p in model.parameters():\n    dist.all_reduce(p.grad)", False),
        ("for p in model.parameters():\n    p.clamp_(0)\ndist.all_reduce(loss)", False),
    ],
)
def test_averaging_of_parameters_is_known_by_the_code(code: str, averages: bool) -> None:
    assert hook_code.averages_parameters(ast.parse(code)) is averages


@pytest.mark.parametrize(
    ("code", "passes"),
    [
        ("dist.send(hidden, 1)", True),
        ("torch.distributed.all_to_all_single(got, tokens)", True),
        ("from torch.distributed import isend, irecv", True),
        ("class Sum(torch.autograd.Function):\n    def forward(c, x): dist.all_reduce(x)", True),
        ("for p in model.parameters():\n    dist.all_reduce(p.grad)", False),
        ("socket.send(b'')\nqueue.recv()", False),
    ],
)
def test_passing_activations_is_known_by_the_code(code: str, passes: bool) -> None:
    assert hook_code.passes_activations(ast.parse(code)) is passes


def test_the_code_of_a_script_is_found_where_it_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "own.py"
    file.write_text("dist.all_reduce(loss)\n")
    monkeypatch.setitem(sys.modules, "own", cast("Any", SimpleNamespace(__file__=str(file))))
    monkeypatch.chdir("/")
    (code,) = hook_code.own_code(str(tmp_path))
    assert hook_code.names_reductions(code)


def test_a_note_is_made_while_another_thread_makes_one_and_not_within_one(tmp_path: Path) -> None:
    def note_in_thread(_: hook_recorder.Recorder) -> None:
        hook_recorder.note(lambda recorder: recorder.write("nested"))
        args = (lambda recorder: recorder.write("of-thread"),)
        thread = threading.Thread(target=hook_recorder.note, args=args)
        thread.start()
        thread.join()

    file = tmp_path / "0.jsonl"
    hook_recorder.record_with(hook_recorder.Recorder(str(file), 2, None, []))
    try:
        hook_recorder.note(note_in_thread)
    finally:
        hook_recorder.record_with(None)
    assert [json.loads(line)["kind"] for line in file.read_text().splitlines()] == ["of-thread"]


@pytest.mark.parametrize(
    ("argument", "texts"), [("False", ["False"]), ("0", ["0"]), ("True", []), ("yes", [])]
)
def test_an_argument_that_means_false_and_is_true_is_recorded(
    run: Run, argument: str, texts: list[str]
) -> None:
    text = (
        "import argparse\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('-a', '--amp', type=bool)\n"
        f"parser.parse_args(['--amp', '{argument}'])"
    )
    found = of_kind(run(text), "text-is-true")
    assert [(each["argument"], each["text"]) for each in found] == [("--amp", t) for t in texts]


def test_records_are_private(run: Run, tmp_path: Path) -> None:
    run("pass")
    file = tmp_path / "run/rehearsal/3.jsonl"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_secrets_are_masked_before_they_are_written(run: Run, tmp_path: Path) -> None:
    secret = 'hunter2-"and"-more'
    variables = {"DSLAUNCH_REHEARSAL_SECRETS": "OTHER,TOKEN", "TOKEN": secret}
    text = "import json, os\nraise ValueError(os.environ['TOKEN'], json.dumps(os.environ['TOKEN']))"
    (raised,) = of_kind(run(text, **variables), "exception")
    assert "***" in raised["text"]
    written = (tmp_path / "run/rehearsal/3.jsonl").read_text()
    assert "hunter2" not in written


def test_the_beginning_of_a_secret_at_a_cut_is_masked(run: Run) -> None:
    variables = {"DSLAUNCH_REHEARSAL_SECRETS": "TOKEN", "TOKEN": "hunter2-and-more"}
    text = "import os\nraise ValueError('x' * 990 + os.environ['TOKEN'])"
    (raised,) = of_kind(run(text, **variables), "exception")
    assert raised["text"] == "x" * 990 + "***"


def test_records_are_read_from_a_position_in_whole_lines(tmp_path: Path) -> None:
    rehearsal.prepare(str(tmp_path), 2)
    file = tmp_path / "rehearsal/0.jsonl"
    file.write_text('{"kind": "held"}\nnot JSON\n{"kind": "unfin')
    file.chmod(0o600)
    tmp_path.chmod(0o700)
    first = rehearsal.records(str(tmp_path), range(2), {})
    assert first == {"0": {"records": [{"kind": "held"}], "position": 26}}
    with file.open("a") as more:
        more.write('ished"}\n')
    second = rehearsal.records(str(tmp_path), range(2), {"0": 26})
    assert second["0"]["records"] == [json.loads('{"kind": "unfinished"}')]
    assert rehearsal.records(str(tmp_path), range(2), {"0": second["0"]["position"]}) == {}


def test_records_that_are_a_link_are_not_read(tmp_path: Path) -> None:
    rehearsal.prepare(str(tmp_path), 2)
    secret = tmp_path / "secret"
    secret.write_text('{"kind": "held"}\n')
    (tmp_path / "rehearsal/0.jsonl").symlink_to(secret)
    with pytest.raises(OSError, match="symbolic links"):
        rehearsal.records(str(tmp_path), range(1), {})
