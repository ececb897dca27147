"""Checkpoints on one node: found without torch, looked into without running anything, moved."""

from __future__ import annotations

import base64
import io
import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from dslaunch.node import shards

TAG = "step5"


class Bomb:
    """What a hostile checkpoint would be made of."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("/tmp/dslaunch-was-here",)


def save(path: Path, values: object) -> Path:
    """Write a file as torch.save does, as far as it matters: a zip with a pickle in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = io.BytesIO()
    pickle.Pickler(data, protocol=2).dump(values)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", data.getvalue())
        archive.writestr("archive/data/0", b"\x01" * 1000)
    return path


def a_checkpoint(top: Path, ranks: int = 2) -> None:
    shapes = [OrderedDict(weight=(3, 4), bias=(4,))]
    model = {"dp_world_size": ranks, "mp_world_size": 1, "global_steps": 5, "param_shapes": shapes}
    save(top / TAG / "mp_rank_00_model_states.pt", model)
    for rank in range(ranks):
        state = {"zero_stage": 2, "partition_count": [ranks, ranks]}
        values = {"optimizer_state_dict": state, "ds_version": "0.19.8"}
        save(top / TAG / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", values)
    (top / "latest").write_text(TAG)
    (top / "notes.txt").write_text("mine")


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def survey(top: Path) -> dict[str, Any]:
    return shards.do({"do": "survey", "path": str(top)})


def test_a_checkpoint_is_found_and_says_what_it_is(tmp_path: Path) -> None:
    a_checkpoint(tmp_path / "out")
    told = survey(tmp_path)
    (found,) = told["checkpoints"]
    assert (found["root"], found["tag"], told["latest"]) == ("out", TAG, {"out": TAG})
    assert found["header"] == {
        "stage": 2, "world": 2, "parallel": 1, "ranks": 2, "steps": 5, "params": 16,
        "version": "0.19.8", "node_local": False, "nvme": False,
    }  # fmt: skip
    assert len(found["files"]) == 3
    assert all(file["broken"] is None for file in found["files"])


def test_all_files_of_a_trainers_checkpoint_belong_to_it(tmp_path: Path) -> None:
    a_checkpoint(tmp_path / "checkpoint-5")
    (found,) = survey(tmp_path)["checkpoints"]
    assert "checkpoint-5/notes.txt" in [file["path"] for file in found["files"]]
    assert found["root"] == "checkpoint-5"


def test_where_nothing_is_nothing_is_found(tmp_path: Path) -> None:
    assert survey(tmp_path / "none")["checkpoints"] == []


def test_looking_into_a_shard_runs_nothing(tmp_path: Path) -> None:
    save(tmp_path / "t" / "mp_rank_00_model_states.pt", {"a": Bomb(), "global_steps": 3})
    values, names = shards.values_of(str(tmp_path), "t/mp_rank_00_model_states.pt")
    assert values["global_steps"] == 3
    assert names == [["posix", "mkdir"]]
    assert not Path("/tmp/dslaunch-was-here").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"PK\x03\x04" + bytes(5000)])
def test_a_shard_that_was_cut_short_is_seen_without_reading_it(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / TAG / "mp_rank_00_model_states.pt"
    path.parent.mkdir()
    path.write_bytes(content)
    (found,) = survey(tmp_path)["checkpoints"]
    assert found["files"][0]["broken"]
    assert found["header"] == {}


def test_a_byte_that_changed_is_seen_when_all_are_read(tmp_path: Path) -> None:
    path = save(tmp_path / "mp_rank_00_model_states.pt", {"a": 1})
    data = bytearray(path.read_bytes())
    data[data.index(b"\x01" * 1000) + 500] ^= 255
    path.write_bytes(data)
    assert shards.why_broken(str(tmp_path), path.name) is None
    asked = {"do": "check", "path": str(tmp_path), "names": [path.name, "gone.pt"]}
    said = shards.do(asked)
    assert "archive/data/0 is wrong" in said[path.name]
    assert said["gone.pt"] == "No such file or directory"


def test_more_directories_than_can_be_looked_through_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "MOST_DIRECTORIES", 3)
    for number in range(5):
        (tmp_path / str(number)).mkdir()
    with pytest.raises(ValueError, match="more than 3 directories"):
        survey(tmp_path)


def test_looking_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="takes too long"):
        shards.do({"do": "survey", "path": str(tmp_path), "seconds": -1})


# ---------------------------------------------------------------- moving


def send(data: bytes, target: Path, *, upto: int | None = None, mtime: int = 10**18) -> int:
    """Copy in pieces of 7 bytes as the launcher does; how many were sent."""
    version = {
        "path": str(target.parent),
        "name": target.name,
        "size": len(data),
        "mtime": mtime,
        "mode": 0o666,
        "key": "k",
    }
    begun = shards.do({"do": "begin", **version})
    sent = 0
    for offset in range(begun["offset"], upto or len(data), 7):
        piece = base64.b64encode(data[offset : offset + 7]).decode()
        shards.do({"do": "write", "offset": offset, "data": piece, **version})
        sent += 1
    if upto is None and not begun["there"]:
        import hashlib

        shards.do({"do": "finish", "sha256": hashlib.sha256(data).hexdigest(), **version})
    return sent


def test_an_interrupted_copy_continues(tmp_path: Path) -> None:
    data, target = bytes(range(200)), tmp_path / "deep" / "shard.pt"
    assert send(data, target, upto=70) == 10
    assert not target.exists()
    assert send(data, target) == 19
    assert target.read_bytes() == data
    assert target.stat().st_mtime_ns == 10**18
    assert send(data, target) == 0
    assert list(target.parent.iterdir()) == [target]


def test_what_is_left_of_another_version_is_of_no_use(tmp_path: Path) -> None:
    target = tmp_path / "shard.pt"
    send(bytes(100), target, upto=70)
    begun = {
        "do": "begin",
        "path": str(tmp_path),
        "name": "shard.pt",
        "size": 100,
        "mtime": 1,
        "key": "other",
    }
    assert shards.do(begun) == {"there": False, "offset": 0}
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_arrives_changed_does_not_appear(tmp_path: Path) -> None:
    version = {"path": str(tmp_path), "name": "s", "size": 1, "mtime": 1, "mode": 0o600, "key": "k"}
    shards.do({"do": "write", "offset": 0, "data": "QQ==", **version})
    with pytest.raises(ValueError, match="checksums of the sent and the received file differ"):
        shards.do({"do": "finish", "sha256": "0" * 64, **version})
    assert list(tmp_path.iterdir()) == []


def test_a_copy_is_as_private_as_the_user_wants(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        send(b"x", tmp_path / "f")
    finally:
        os.umask(before)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o640


def test_an_empty_file_is_copied(tmp_path: Path) -> None:
    assert send(b"", tmp_path / "empty") == 0
    assert (tmp_path / "empty").read_bytes() == b""


def test_reading_returns_the_version_with_each_piece(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    told = shards.do({"do": "read", "path": str(tmp_path), "name": "f", "offset": 8, "most": 5})
    assert base64.b64decode(told["data"]) == b"89"
    assert (told["size"], told["mtime"]) == (10, path.stat().st_mtime_ns)


def test_removing_takes_the_files_and_the_directories_that_are_empty_then(tmp_path: Path) -> None:
    a_checkpoint(tmp_path / "out", ranks=1)
    names = [f"out/{TAG}/{name}" for name in names_in(tmp_path / "out" / TAG)]
    assert shards.do({"do": "remove", "path": str(tmp_path), "names": names}) == 2
    assert names_in(tmp_path / "out") == ["latest", "notes.txt"]


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "."])
def test_removing_stays_below_the_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="is not below"):
        shards.do({"do": "remove", "path": str(tmp_path), "names": [name]})


def test_room_is_that_of_the_nearest_directory_that_is_there(tmp_path: Path) -> None:
    told = shards.do({"do": "room", "path": str(tmp_path / "not" / "yet")})
    assert told["path"] == str(tmp_path)
    assert told["free"] > 0
    assert told["memory"] is None or told["memory"] > 0
