"""Wrong invocations of every command: the exit code, and the facts that lead on.

A message says where, what was found and what to do. What it must name is a word of the user's, and
a word of the way out; sentences may change.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Called = subprocess.CompletedProcess[str]
C = "c.yaml"
RUN = ("run", C)
SLURM = ("slurm", "--render", C)

WRONG: tuple[tuple[tuple[str, ...], int, tuple[str, ...]], ...] = (
    # the program
    (("runn", C), 2, ("runn", "run")),
    (("--nosuch",), 2, ("--nosuch",)),
    (("-v",), 2, ("-h",)),
    *(((name, "--nosuch"), 2, ("--nosuch", f"{name} -h")) for name in (
        *("run", "slurm", "ps", "status", "logs", "attach", "stacks", "stop", "signal", "clean"),
        *("preflight", "topo", "estimate", "render", "nodes", "validate", "init", "schema"),
    )),
    # the cluster file
    *(((name,), 2, ("cluster.yaml", "dslaunch init")) for name in (
        "run", "slurm", "preflight", "nodes", "validate", "topo", "clean"
    )),
    *(((name, "no.yaml"), 3, ("no.yaml", "dslaunch init")) for name in (
        "run", "slurm", "ps", "preflight", "nodes", "validate", "clean"
    )),
    (("render", "torchrun", "no.yaml"), 3, ("no.yaml",)),
    (("validate", "d"), 3, ("d", "directory")),
    (("validate", "-"), 3, ("-", "standard input")),
    (("validate", "d", "gone.yaml", "wrong.json"), 3, ("d:", "gone.yaml", "wrong.json")),
    (("run", "ds.json", "train.py"), 2, ("ds.json", ".yaml")),
    (("run", "d", "train.py"), 2, ("'d'", ".yaml")),
    (("slurm", "train.py"), 2, ("train.py", ".yaml")),
    # what to run
    ((*RUN,), 2, ("script", "dslaunch run")),
    ((*SLURM,), 2, ("script", "dslaunch slurm")),
    ((*RUN, "d"), 2, ("'d'", "directory", "SCRIPT.py")),
    ((*RUN, "/tmp"), 2, ("/tmp", "directory")),
    ((*SLURM, "d"), 2, ("'d'", "directory")),
    ((*RUN, ""), 2, ("empty",)),
    ((*RUN, C), 2, (C, "YAML")),
    ((*SLURM, C), 2, (C, "YAML")),
    ((*RUN, "job.sh"), 2, ("job.sh", "--no-python")),
    ((*RUN, "-m", "pkg/train.py"), 2, ("pkg/train.py", "pkg.train")),
    ((*RUN, "-m"), 2, ("--module",)),
    ((*RUN, "--no-python"), 2, ("--no-python",)),
    ((*RUN, "--no-python", "job.sh"), 2, ("./job.sh", "PATH")),
    ((*RUN, "--no-python", "./job.sh"), 2, ("./job.sh", "chmod")),
    ((*RUN, "-m", "--no-python", "x"), 2, ("--module", "--no-python")),
    (("slurm", C, "gone.py"), 3, ("gone.py", "--workdir")),
    (("slurm", C, "tran.py"), 3, ("tran.py", "train.py")),
    # names that no file can have, and words that would fill the screen
    (("schema", "x" * 100_000), 2, ("xxx...",)),
    ((*RUN, "--dry-run", "x" * 300), 2, ("File name too long",)),
    (("checkpoint", "consolidate", "x" * 300, "--to", "o"), 2, ("xxx", "File name too long")),
    (("init", "--ssh-config", "loop"), 3, ("loop", "symbolic links")),
    # the choice of nodes
    *(((name, *how, "-i", text, C, "train.py"), 3, named) for name, how in (
        ("run", ("--dry-run",)), ("slurm", ("--render",))
    ) for text, named in (
        ("n9", ("n9", "n[1-2]")), ("n1:7", ("7", "0,1")), ("", ("--include", "empty")),
        ("n[1", ("n[1",)), ("n1@n1:0", ("n1",)),
    )),
    ((*RUN, "-e", "n[1-2]", "train.py"), 3, ("n[1-2]",)),
    ((*RUN, "-i", "n1", "-e", "n2", "train.py"), 3, ("--include", "--exclude")),
    ((*RUN, "-N", "9", "train.py"), 3, ("--nodes 9", "2")),
    ((*RUN, "-N", "0", "train.py"), 2, ("-N 0",)),
    ((*RUN, "--nnodes=two", "train.py"), 2, ("--nnodes two", "integer")),
    ((*RUN, "torchrun", "train.py"), 2, ("torchrun", "--launcher")),
    ((*RUN, "job.sbatch"), 2, ("job.sbatch", "dslaunch slurm lint")),
    ((*RUN, "ds.json"), 2, ("ds.json", "SCRIPT")),
    ((*RUN, "train.ipynb"), 2, ("train.ipynb", "nbconvert")),
    (("init", "node1", "node2"), 2, ("node1 node2", "--hosts")),
    (("preflight", C, "n1"), 2, ("n1", "--include")),
    (("topo", "n1"), 3, ("n1", "nvidia-smi topo -m")),
    ((*RUN, "--slots", "9", "train.py"), 3, ("--slots 9", "2")),
    ((*RUN, "--label", "gpu=x", "train.py"), 3, ("gpu=x",)),
    ((*RUN, "--min-nodes", "3", "train.py"), 3, ("--min-nodes 3", "2")),
    ((*SLURM, "--min-nodes", "3", "train.py"), 3, ("--min-nodes 3", "2")),
    ((*SLURM, "--min-nodes", "1", "train.py"), 2, ("--min-nodes", "--launcher elastic")),
    (("nodes", C, "-i", "zz"), 3, ("zz", "n[1-2]")),
    (("preflight", C, "-i", "zz"), 3, ("zz", "n[1-2]")),
    # values of options
    *(((*RUN, option, "", "train.py"), 2, (option, "empty")) for option in (
        "--launcher", "--workdir", "--transport", "--label", "--env", "--ranks"
    )),
    ((*SLURM, "--set", "", "train.py"), 2, ("--set", "empty")),
    ((*RUN, "-l", "torchrum", "train.py"), 2, ("torchrum", "torchrun")),
    ((*RUN, "--transport", "fabrik", "train.py"), 2, ("fabrik", "fabric")),
    ((*RUN, "--transport", "fake", "train.py"), 2, ("fake", "fabric")),
    ((*RUN, "--env", "1A=3", "train.py"), 2, ("1A", "NAME=VALUE")),
    ((*RUN, "--env", "NOT_SET_AT_ALL", "train.py"), 2, ("NOT_SET_AT_ALL", "NAME=VALUE")),
    ((*RUN, "-r", "x", "train.py"), 2, ("--ranks x", "0-3,8")),
    ((*RUN, "-r", "7", "train.py"), 2, ("7", "0 to 3")),
    ((*SLURM, "-r", "4", "train.py"), 2, ("4", "0 to 3")),
    ((*RUN, "-r", "3-1", "train.py"), 2, ("3-1",)),
    *(((*RUN, option, "-1", "train.py"), 2, (option,)) for option in (
        "--grace", "--exit-timeout", "--heartbeat-timeout", "--reconnect-timeout",
        "--hang-timeout", "--restarts",
    )),
    *(((*RUN, option, seconds, "train.py"), 2, (option, seconds)) for seconds in ("nan", "inf")
        for option in (
            "--grace", "--exit-timeout", "--heartbeat-timeout", "--reconnect-timeout",
            "--hang-timeout",
        )),
    (("rehearse", "--time-limit", "inf", C, "train.py"), 2, ("--time-limit", "inf")),
    ((*SLURM, "--hang-timeout", "inf", "train.py"), 2, ("--hang-timeout", "inf")),
    (("stop", "--grace", "inf", "gone"), 2, ("--grace", "inf")),
    (("top", "--interval", "inf", "gone"), 2, ("--interval", "inf")),
    *(((name, "--node", "n[1", "gone"), 2, ("--node", "n[1")) for name in ("top", "logs")),
    (("ps", "--watch", "--interval", "inf"), 2, ("--interval", "inf")),
    (("stacks", "--timeout", "inf", "gone"), 2, ("--timeout", "inf")),
    ((*RUN, "--dry-run", "--notify", "http://x.org", "train.py"), 2, ("--notify", "https")),
    ((*RUN, "-d", "--restarts", "2", "train.py"), 2, ("--detach", "--restarts")),
    ((*RUN, "--slurm", "train.py"), 2, ("SLURM", "salloc")),
    ((*RUN, "--launcher"), 2, ("--launcher", "dslaunch run -h")),
    # DeepSpeed configs
    ((*RUN, "train.py", "--deepspeed_config", "wrong.json"), 3, ("wrong.json:1:", "--force")),
    ((*SLURM, "train.py", "--deepspeed_config", "wrong.json"), 3, ("wrong.json:1:", "--force")),
    # slurm
    ((*SLURM, "--check", "train.py"), 2, ("--render", "--check")),
    ((*SLURM, "--set", "foo=1", "train.py"), 2, ("foo",)),
    ((*SLURM, "--set", "time", "train.py"), 2, ("time", "--set time=2:00:00")),
    ((*SLURM, "--template", "gone.j2", "train.py"), 3, ("gone.j2",)),
    ((*SLURM, "-o", "/no/dir", "train.py"), 2, ("/no/dir",)),
    ((*SLURM, "-o", C, "train.py"), 2, ("--output", C)),
    (("slurm", "lint", "gone.sh"), 3, ("gone.sh",)),
    (("slurm", "lint", "d"), 3, ("d", "directory")),
    # runs
    *(((name, "gone"), 2, ("gone", "dslaunch ps")) for name in (
        "status", "logs", "attach", "stacks", "stop"
    )),
    (("stop",), 2, ("RUN",)),
    (("signal",), 2, ("RUN",)),
    (("signal", "latest"), 2, ("SIGNAL",)),
    (("signal", "gone", "USR1"), 2, ("gone", "dslaunch ps")),
    (("clean", C, "gone"), 2, ("gone",)),
    # preflight
    (("preflight", C, "--from", "train.py"), 3, ("train.py:1:1", "JSON", "--save")),
    (("preflight", C, "--baseline", "train.py"), 3, ("train.py:1:1", "JSON", "--save")),
    (("preflight", C, "--from", "ds.json"), 3, ("ds.json", "--save")),
    (("preflight", C, "--from", "gone"), 3, ("gone", "--save")),
    (("preflight", C, "--from", "d"), 3, ("d", "--save")),
    (("preflight", C, "--only", "no.check"), 2, ("no.check", "--list")),
    (("preflight", C, "--skip", "no.check"), 2, ("no.check", "--list")),
    (("preflight", C, "--fail-on-change"), 2, ("--fail-on-change", "--baseline")),
    (("preflight", C, "--junit", "/no/dir"), 2, ("--junit", "/no")),
    (("preflight", C, "train.py"), 2, ("train.py",)),
    # topo
    (("topo", "gone.txt"), 3, ("gone.txt",)),
    (("topo", "d"), 3, ("d", "directory")),
    (("topo", "train.py"), 3, ("nvidia-smi topo -m",)),
    # config, estimate
    (("config", "nosuch"), 2, ("nosuch",)),
    (("config", "lint"), 2, ("FILE",)),
    (("config", "lint", "gone"), 3, ("gone",)),
    (("config", "lint", "d"), 3, ("d", "directory")),
    (("config", "init", "--stage", "9"), 2, ("9", "0, 1, 2, 3")),
    (("config", "init", "ds.json"), 2, ("ds.json", "dslaunch config init -h")),
    (("estimate",), 2, ("--params", "config.json")),
    (("estimate", "--params", "1e30"), 2, ("--params", "1e18")),
    (("estimate", "gone"), 3, ("gone",)),
    (("estimate", "d"), 3, ("d", "config.json")),
    # checkpoints
    (("checkpoint", "consolidate", "d"), 2, ("--to",)),
    (("checkpoint", "consolidate"), 2, ("--to",)),
    (("checkpoint", "prune", "--keep", "1", C, ""), 2, ("DIR", "empty")),
    (("checkpoint", "consolidate", "gone", "--to", "o"), 3, ("gone", "gather")),
    (("checkpoint", "consolidate", "train.py", "--to", "o"), 3, ("train.py", "gather")),
    (("checkpoint", "consolidate", "d", "--to", "o"), 3, ("d",)),
    # render, init
    (("render",), 2, ("FORMAT", "torchrun")),
    (("render", "nosuch", C), 2, ("nosuch", "torchrun")),
    (("render", C, "torchrun"), 2, (C, "dslaunch render FORMAT")),
    (("render", "hostfile", C, "-o", "/no/dir"), 2, ("/no/dir",)),
    (("init",), 2, ("--hostfile",)),
    (("render", "hostfile", C, "-o", C), 2, ("--output", C)),
    (("render", "hostfile", C, "-o", ""), 2, ("--output", "empty")),
    (("nodes", ""), 2, ("CLUSTER.yaml", "empty")),
    (("render", "hostfile", "-l", "torchrum", C), 2, ("torchrum", "torchrun")),
    (("render", "torchrun", "--master-addr", "a b", C), 2, ("--master-addr", "a b")),
    (("init", C), 2, (C,)),
    (("init", "--hostfile", "gone"), 3, ("gone",)),
    (("init", "--hostfile", "d"), 3, ("d", "directory")),
    (("init", "--hostfile", "/dev/zero"), 3, ("/dev/zero", "too large")),
    (("init", "--hosts", "n[1"), 2, ("n[1",)),
    (("init", "--ssh-config", "gone"), 3, ("gone",)),
    (("schema", "extra"), 2, ("extra",)),
)  # fmt: skip


@pytest.fixture
def place(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cluster file, a script, configs, and a directory; nobody sends anything."""
    monkeypatch.setenv("DSLAUNCH_STATE", str(directory / "state"))
    (directory / C).write_text("transport: local\nnodes: [{host: 'n[1-2]', slots: 2}]\n")
    (directory / "train.py").write_text("print(1)\n")
    (directory / "job.sh").write_text("echo\n")
    (directory / "ds.json").write_text('{"train_batch_size": 8}')
    (directory / "wrong.json").write_text('{"zero_optimisation": {}}')
    (directory / "d").mkdir()
    (directory / "loop").symlink_to("loop")
    with Path("/dev/null").open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        yield directory


@pytest.mark.parametrize(
    ("words", "code", "names"), WRONG, ids=[" ".join(words) for words, *_ in WRONG]
)
def test_a_wrong_invocation_says_what_is_wrong_and_what_to_do(
    dslaunch: Callable[..., Called],
    place: Path,
    words: tuple[str, ...],
    code: int,
    names: tuple[str, ...],
) -> None:
    before = sorted(place.iterdir())
    done = dslaunch(*words)
    assert done.returncode == code, done.stderr
    for name in names:
        assert name.lower() in done.stderr.lower()
    assert "Traceback" not in done.stderr
    assert "Errno" not in done.stderr
    # a mistake leaves nothing behind
    assert [path for path in sorted(place.iterdir()) if path.name != "state"] == before
