"""`dslaunch checkpoint` on nodes emulated on this machine: real agents, shards made by hand."""

from __future__ import annotations

import json
import pickle
import re
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from dslaunch.cli.checkpoint import APP
from dslaunch.cluster.model import Cluster, Node
from dslaunch.errors import DslaunchError

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
    lines = call("ls", "c.yaml", "out").stdout.splitlines()
    assert re.match(r"step5 +2 +4 +7 +\S+ kB +\S+ \S+ +complete +node\[1-2\]", lines[1])
    assert lines[2].startswith("step7* ")
    detail = call("ls", "c.yaml", "out", "--tag", "step7").stdout.splitlines()
    assert re.match(r"node2 +2,3 +whole", detail[2])
    assert re.match(r"node3 +- +-", detail[3])
    told = json.loads(call("ls", "c.yaml", "out", "--json").stdout)
    assert [(one["name"], one["complete"]) for one in told] == [("step5", True), ("step7", True)]


def test_a_gathered_checkpoint_is_as_on_shared_storage(call: Call, tmp_path: Path) -> None:
    assert "step7 is in all" in call("gather", "c.yaml", "out", "--to", "all").stdout
    names = {f"step7/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(4)}
    assert files(tmp_path / "all") == {*names, "step7/mp_rank_00_model_states.pt", "latest"}
    assert (tmp_path / "all/latest").read_text() == "step7"
    again = call("gather", "c.yaml", "out", "--to", "all", "--json").stdout
    assert json.loads(again)["there"] == 5


def test_what_was_gathered_is_spread_to_other_nodes(call: Call, home: Path) -> None:
    call("gather", "c.yaml", "out", "--to", "all")
    done = call("spread", "c.yaml", "out", "--from", "all", "-i", "node1@node3")
    assert "step7 is on node1, node3" in done.stdout
    assert (home / "node3/work/out/latest").read_text() == "step7"
    names = {f"step7/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (2, 3)}
    assert files(home / "node3/work/out") == {*names, "step7/mp_rank_00_model_states.pt", "latest"}
    assert "all whole and in place" in call("verify", "c.yaml", "out", "-i", "node1@node3").stdout


def test_spread_waits_for_no_node_that_it_does_not_need(
    call: Call, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dslaunch.run import checkpoint_stores

    asked: list[list[str]] = []
    real = checkpoint_stores.open_places

    def recorded(cluster: Cluster, nodes: Sequence[Node]) -> object:
        asked.append([node.host for node in nodes])
        return real(cluster, nodes)

    monkeypatch.setattr(checkpoint_stores, "open_places", recorded)
    call("gather", "c.yaml", "out", "--to", f"node1:{home}/node1/all")
    call("gather", "c.yaml", "out", "--to", "all")
    call("spread", "c.yaml", "out", "--from", "all", "-i", "node2@node3")
    call("spread", "c.yaml", "out", "--from", f"node1:{home}/node1/all", "-i", "node2@node3")
    every = ["node1", "node2", "node3"]
    assert asked == [every, every, ["node2", "node3"], every]


def test_verify_names_what_a_node_lacks(call: Call) -> None:
    error = refusal(call, "verify", "c.yaml", "out", "-i", "node2@node3")
    assert error.exit_code == 4
    assert "node2 (ranks 0-1) lacks zero_pp_rank_0_mp_rank_00_optim_states.pt" in error.message
    assert "which node1 has" in error.message


def test_a_shard_that_was_cut_short_is_told_and_an_older_tag_taken(call: Call, home: Path) -> None:
    path = home / "node2/work/out/step7/zero_pp_rank_3_mp_rank_00_optim_states.pt"
    path.write_bytes(path.read_bytes()[:50])
    assert "lacks 1 of 5 shards, 1 broken" in call("ls", "c.yaml", "out").stdout
    error = refusal(call, "gather", "c.yaml", "out", "--tag", "step7", "--to", "all")
    assert "node2: zero_pp_rank_3_mp_rank_00_optim_states.pt is cut short" in error.message
    done = call("gather", "c.yaml", "out", "--to", "all")
    assert "step5 is the newest complete one; `latest` names step7" in done.stderr


def test_another_number_of_ranks_is_refused(call: Call) -> None:
    assert (
        "saved by 4 ranks, this would be 2"
        in refusal(call, "spread", "c.yaml", "out", "--slots", "1").message
    )


def test_pruning_shows_first_and_removes_then(call: Call, home: Path) -> None:
    shown = call("prune", "c.yaml", "out", "--keep", "1").stdout
    assert shown.startswith("step5\n1 checkpoints")
    assert (home / "node1/work/out/step5").is_dir()
    assert "removed: 6 files" in call("prune", "c.yaml", "out", "--keep", "1", "--yes").stdout
    assert sorted(p.name for p in (home / "node1/work/out").iterdir()) == ["latest", "step7"]
    assert call("prune", "c.yaml", "out", "--keep", "1").stdout == "nothing to remove\n"


def test_the_directory_of_one_checkpoint_is_not_what_is_asked_for(call: Call) -> None:
    error = refusal(call, "ls", "c.yaml", "out/step7")
    assert "is the directory of one checkpoint" in error.message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("ls", "c.yaml", "a", "b"), "one directory is wanted"),
        (
            ("gather", "c.yaml", "nowhere", "--to", "x"),
            "no DeepSpeed checkpoint below work/nowhere",
        ),
        (("gather", "c.yaml", "out", "--tag", "step9", "--to", "x"), "no 'step9' is there"),
        (("consolidate", "--to", "x"), "no directory given"),
        (("consolidate", "c.yaml", "out", "--to", "x", "--on", "node9"), "no such node"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(
    call: Call, words: tuple[str, ...], message: str
) -> None:
    error = refusal(call, *words)
    assert (error.exit_code, message in error.message) == (2, True)


def test_an_interpreter_without_deepspeed_is_said_so(call: Call, tmp_path: Path) -> None:
    call("gather", "c.yaml", "out", "--to", "all")
    # an interpreter without its packages
    (tmp_path / "bare").write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    (tmp_path / "bare").chmod(0o755)
    error = refusal(call, "consolidate", "all", "--to", "w", "--python", str(tmp_path / "bare"))
    assert (error.exit_code, "has no DeepSpeed" in error.message) == (6, True)
