"""`dslaunch checkpoint` on nodes emulated on this machine: real agents, shards made by hand."""

from __future__ import annotations

import json
import pickle
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from dslaunch.cli.checkpoint import APP
from dslaunch.errors import ConfigError, DslaunchError, ErrorCode

NODES = """\
name: two
transport: local
nodes: [{host: 'node[1-2]', slots: 2}, {host: node3, slots: 2, spare: true}]
storage: {workdir: work}
"""
Call = Callable[..., Result]


def save(path: Path, values: dict[str, object]) -> None:
    """A file like torch.save's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps(values, protocol=2))
        archive.writestr("a/data/0", path.name * 100)


def save_all(home: Path, tag: str) -> None:
    """What DeepSpeed leaves on two nodes with two ranks each, ZeRO-2."""
    for node in (0, 1):
        top = home / f"node{node + 1}/work/out"
        save(top / tag / "mp_rank_00_model_states.pt", {"mp_world_size": 1, "global_steps": 7})
        for rank in (2 * node, 2 * node + 1):
            state = {"zero_stage": 2, "partition_count": 4}
            name = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
            save(top / tag / name, {"optimizer_state_dict": state})
    (home / "node1/work/out/latest").write_text(tag)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The homes of the emulated nodes, with two checkpoints."""
    monkeypatch.setenv("DSLAUNCH_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(NODES)
    home = tmp_path / "state/emulated/two"
    save_all(home, "step5")
    save_all(home, "step7")
    yield home


@pytest.fixture
def call(home: Path) -> Call:
    """Call a sub-command; it must succeed."""

    def run(*words: str) -> Result:
        return CliRunner().invoke(APP, words, catch_exceptions=False)

    return run


def refusal(call: Call, *words: str) -> DslaunchError:
    with pytest.raises(DslaunchError) as raised:
        call(*words)
    return raised.value


def files(top: Path) -> set[str]:
    return {str(path.relative_to(top)) for path in top.rglob("*") if path.is_file()}


def test_checkpoints_are_listed_with_what_their_shards_say(call: Call) -> None:
    told = json.loads(call("ls", "c.yaml", "out", "--json").stdout)
    assert [(one["name"], one["complete"]) for one in told] == [("step5", True), ("step7", True)]
    first = told[0]
    assert (first["stage"], first["world"], first["steps"]) == (2, 4, 7)
    assert told[1]["latest"] == {"node1": "step7"}
    copies = [copy for copies in first["files"].values() for copy in copies]
    assert {copy["host"] for copy in copies} == {"node1", "node2"}
    assert {copy["broken"] for copy in copies} == {None}


def test_a_gathered_checkpoint_is_as_on_shared_storage(call: Call, tmp_path: Path) -> None:
    call("gather", "c.yaml", "out", "--to", "all")
    names = {f"step7/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(4)}
    assert files(tmp_path / "all") == {*names, "step7/mp_rank_00_model_states.pt", "latest"}
    assert (tmp_path / "all/latest").read_text() == "step7"
    again = call("gather", "c.yaml", "out", "--to", "all", "--json").stdout
    assert json.loads(again)["there"] == 5


def test_what_was_gathered_is_spread_to_other_nodes(call: Call, home: Path) -> None:
    call("gather", "c.yaml", "out", "--to", "all")
    done = call("spread", "c.yaml", "out", "--from", "all", "-i", "node1@node3", "--json")
    spread = json.loads(done.stdout)
    assert (spread["name"], spread["hosts"]) == ("step7", ["node1", "node3"])
    assert (home / "node3/work/out/latest").read_text() == "step7"
    names = {f"step7/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (2, 3)}
    assert files(home / "node3/work/out") == {*names, "step7/mp_rank_00_model_states.pt", "latest"}
    verified = json.loads(call("verify", "c.yaml", "out", "-i", "node1@node3", "--json").stdout)
    assert verified["faults"] == []


ASKED = """\
#!/bin/sh
echo "$(basename "$0")" >> "{log}"
exec {python} "$@"
"""
"""An interpreter that notes for which node it was started."""


def test_spread_waits_for_no_node_that_it_does_not_need(call: Call, home: Path) -> None:
    log = Path("asked")
    nodes = []
    for number, spare in ((1, False), (2, False), (3, True)):
        python = Path.cwd() / f"node{number}"
        python.write_text(ASKED.format(log=log.absolute(), python=sys.executable))
        python.chmod(0o755)
        nodes.append({"host": python.name, "slots": 2, "spare": spare, "python": str(python)})
    settings = {"name": "two", "transport": "local", "storage": {"workdir": "work"}}
    Path("c.yaml").write_text(json.dumps({**settings, "nodes": nodes}))

    def asked(*words: str) -> set[str]:
        log.write_text("")
        call(*words)
        return set(log.read_text().split())

    every = {"node1", "node2", "node3"}
    on_node1 = f"node1:{home}/node1/all"
    assert asked("gather", "c.yaml", "out", "--to", on_node1) == every
    assert asked("gather", "c.yaml", "out", "--to", "all") == every
    targets = ("-i", "node2@node3")
    assert asked("spread", "c.yaml", "out", "--from", "all", *targets) == {"node2", "node3"}
    assert asked("spread", "c.yaml", "out", "--from", on_node1, *targets) == every


def test_verify_names_what_a_node_lacks(call: Call) -> None:
    error = refusal(call, "verify", "c.yaml", "out", "-i", "node2@node3")
    assert error.exit_code == 4
    assert "zero_pp_rank_0_mp_rank_00_optim_states.pt" in error.message
    # who lacks it, and who has it
    assert {"node1", "node2"} <= set(re.findall(r"node\d", error.message))


def test_a_truncated_shard_is_reported_and_an_older_tag_used(call: Call, home: Path) -> None:
    path = home / "node2/work/out/step7/zero_pp_rank_3_mp_rank_00_optim_states.pt"
    path.write_bytes(path.read_bytes()[:50])
    listed = json.loads(call("ls", "c.yaml", "out", "--json").stdout)
    assert [(one["name"], one["complete"]) for one in listed] == [("step5", True), ("step7", False)]
    error = refusal(call, "gather", "c.yaml", "out", "--tag", "step7", "--to", "all")
    assert error.error_code is ErrorCode.CHECKPOINT_INCOMPLETE
    assert "node2: zero_pp_rank_3_mp_rank_00_optim_states.pt" in error.message
    done = call("gather", "c.yaml", "out", "--to", "all", "--json")
    assert json.loads(done.stdout)["name"] == "step5"


def test_another_number_of_ranks_is_refused(call: Call) -> None:
    error = refusal(call, "spread", "c.yaml", "out", "--slots", "1")
    # of step7, saved by 4 ranks; here are 2
    assert (error.exit_code, re.findall(r"\d+", error.message)) == (3, ["7", "4", "2"])


def test_pruning_shows_first_and_removes_then(call: Call, home: Path) -> None:
    shown = call("prune", "c.yaml", "out", "--keep", "1").stdout
    assert shown.splitlines()[0] == "step5"
    assert (home / "node1/work/out/step5").is_dir()
    removed = call("prune", "c.yaml", "out", "--keep", "1", "--yes", "--json").stdout
    assert json.loads(removed)["files_removed"] == 6
    assert sorted(p.name for p in (home / "node1/work/out").iterdir()) == ["latest", "step7"]
    again = json.loads(call("prune", "c.yaml", "out", "--keep", "1", "--json").stdout)
    assert again["checkpoints"] == []


def test_the_directory_of_one_checkpoint_is_not_what_is_asked_for(call: Call) -> None:
    error = refusal(call, "ls", "c.yaml", "out/step7")
    assert "step7" in error.message


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("ls", "c.yaml", "a", "b"), 2, "expected 1 directory"),
        (("consolidate", "--to", "x"), 2, "no directory given"),
        (("gather", "c.yaml", "out", "--tag", "step9", "--to", "x"), 3, "step9"),
        (("consolidate", "c.yaml", "out", "--to", "x", "--on", "node9"), 3, "--on node9"),
    ],
)
def test_a_wrong_command_line_and_what_it_names_have_their_codes(
    call: Call, words: tuple[str, ...], code: int, message: str
) -> None:
    error = refusal(call, *words)
    assert (error.exit_code, message in error.message) == (code, True)


def test_an_interpreter_without_deepspeed_is_said_so(call: Call, tmp_path: Path) -> None:
    call("gather", "c.yaml", "out", "--to", "all")
    # an interpreter without its packages
    (tmp_path / "bare").write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    (tmp_path / "bare").chmod(0o755)
    error = refusal(call, "consolidate", "all", "--to", "w", "--python", str(tmp_path / "bare"))
    assert (error.exit_code, "DeepSpeed" in error.message) == (6, True)


# ---------------------------------------------------------------- directories that are none


@pytest.mark.parametrize(
    "words", [("ls",), ("prune", "--keep", "2"), ("verify",), ("gather", "--to", "gathered")]
)
def test_a_named_directory_that_no_node_has_is_an_error(call: Call, words: tuple[str, ...]) -> None:
    refused = refusal(call, *words, "c.yaml", "outt")
    assert (refused.exit_code, refused.hint) == (3, ErrorCode.NO_CHECKPOINT.hint)
    assert refused.message.endswith("/outt: No such file or directory on node[1-3]")


def test_what_is_no_directory_is_an_error(call: Call, home: Path) -> None:
    (home / "node1/work/out/file").write_text("")
    refused = refusal(call, "ls", "c.yaml", "out/file")
    assert refused.exit_code == 3
    assert isinstance(refused, ConfigError)
    assert {problem.message for problem in refused.problems} == {
        "Not a directory on node1",
        "No such file or directory on node[2-3]",
    }


def test_a_directory_that_one_node_has_is_listed_with_the_nodes_that_cannot_read_it(
    call: Call, home: Path
) -> None:
    (home / "node3/work").mkdir(parents=True, exist_ok=True)
    (home / "node3/work/out").write_text("a file where the others have a directory")
    done = call("ls", "c.yaml", "out")
    assert "step7" in done.stdout
    assert "node3: Not a directory" in done.stderr


def test_the_directory_of_the_cluster_file_may_not_exist_yet(call: Call, home: Path) -> None:
    later = NODES.replace("workdir: work", f"checkpoints: {home}/later")
    Path("c.yaml").write_text(later)
    done = call("ls", "c.yaml")
    assert (done.exit_code, done.stdout) == (0, f"no checkpoints in {home}/later\n")
    assert refusal(call, "verify", "c.yaml").error_code is ErrorCode.NO_CHECKPOINT


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere", "nowhere: No such file or directory"),
        ("c.yaml", "c.yaml: Not a directory"),
        ("node1:/nowhere", "node1:/nowhere: No such file or directory on node1"),
    ],
)
def test_a_source_that_cannot_be_read_is_an_error(call: Call, source: str, message: str) -> None:
    refused = refusal(call, "spread", "c.yaml", "out", "--from", source)
    assert (refused.exit_code, refused.message) == (3, message)


def test_a_directory_without_checkpoints_is_an_error_of_its_own(call: Call, home: Path) -> None:
    (home / "node1/work/empty").mkdir()
    assert call("ls", "c.yaml", "empty").stdout == "no checkpoints in work/empty\n"
    refused = refusal(call, "gather", "c.yaml", "empty", "--to", "x")
    assert refused.error_code is ErrorCode.NO_CHECKPOINT
