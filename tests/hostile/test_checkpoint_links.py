"""Directories in which other users may write: no link of theirs is followed, no mode widened."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from dslaunch.deepspeed.checkpoint import choose
from dslaunch.errors import DslaunchError, PreflightError
from dslaunch.node import files, shards
from dslaunch.run.checkpoint_stores import LocalStore, StoreError
from dslaunch.run.checkpoints import Holdings, gather
from tests.hostile.lying_stores import Lying, looked, tree

SHARD = "step5/zero_pp_rank_1_mp_rank_00_optim_states.pt"


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A file that only the user may read."""
    path = tmp_path / "private"
    path.write_text("secret")
    path.chmod(0o600)
    return path


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A checkpoint in a directory that a group may write in."""
    from tests.hostile.lying_stores import a_checkpoint

    top = a_checkpoint(tmp_path / "checkpoint-5")
    (top / "tokenizer.json").write_text("{}")
    for directory in (top, top / "step5"):
        directory.chmod(0o2775)
    return top.parent


def gathered(node: Path, here: LocalStore, to: Path) -> Holdings:
    holdings = looked(node, Lying("node1"))
    chosen = choose(holdings.checkpoints, "step5", "out")
    gather(chosen, holdings, here, str(to), lambda progress: None)
    return holdings


LINKED = (f"checkpoint-5/{SHARD}", "checkpoint-5/tokenizer.json", "checkpoint-5/step5/new.txt")


@pytest.mark.parametrize("name", LINKED)
def test_a_link_to_a_private_file_is_not_copied(
    node: Path, here: LocalStore, private: Path, tmp_path: Path, name: str
) -> None:
    (node / name).unlink(missing_ok=True)
    (node / name).symlink_to(private)
    with pytest.raises(PreflightError) as raised:
        gathered(node, here, tmp_path / "copy")
    assert "symbolic link" in raised.value.message
    assert not list(tmp_path.glob("copy/**/*"))


def test_a_link_that_takes_the_place_of_a_file_after_the_survey_is_not_followed(
    node: Path, here: LocalStore, private: Path, tmp_path: Path
) -> None:
    holdings = looked(node, Lying("node1"))
    chosen = choose(holdings.checkpoints, "step5", "out")
    path = node / "checkpoint-5" / SHARD
    os.truncate(private, 0)
    private.write_bytes(b"s" * path.stat().st_size)
    os.utime(private, ns=(path.stat().st_mtime_ns, path.stat().st_mtime_ns))
    path.unlink()
    path.symlink_to(private)
    with pytest.raises(StoreError, match="symbolic link"):
        gather(chosen, holdings, here, str(tmp_path / "copy"), lambda progress: None)
    assert b"sss" not in b"".join(p.read_bytes() for p in tmp_path.glob("copy/**/*") if p.is_file())


def test_a_directory_that_becomes_a_link_after_the_survey_is_not_followed(
    node: Path, here: LocalStore, tmp_path: Path
) -> None:
    holdings = looked(node, Lying("node1"))
    chosen = choose(holdings.checkpoints, "step5", "out")
    (node / "checkpoint-5/step5").rename(tmp_path / "elsewhere")
    (node / "checkpoint-5/step5").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="symbolic link"):
        gather(chosen, holdings, here, str(tmp_path / "copy"), lambda progress: None)


def test_links_to_directories_are_not_looked_into(node: Path, tmp_path: Path) -> None:
    (node / "other").symlink_to(tmp_path / "checkpoint-5")
    (node / "checkpoint-5/loop").symlink_to(node)
    told = shards.do({"do": "survey", "path": str(node)})
    assert [part["root"] for part in told["checkpoints"]] == ["checkpoint-5"]


def test_the_directory_that_the_user_names_may_be_a_link(
    node: Path, here: LocalStore, tmp_path: Path
) -> None:
    (tmp_path / "named").symlink_to(node)
    (tmp_path / "disk").mkdir()
    (tmp_path / "copy").symlink_to(tmp_path / "disk")
    gathered(tmp_path / "named", here, tmp_path / "copy")
    assert (tmp_path / "disk/checkpoint-5" / SHARD).is_file()


@pytest.mark.parametrize("name", ["latest", "step5/x_optim_states.pt", "tokenizer.json"])
def test_a_pipe_holds_nothing_up(node: Path, here: LocalStore, tmp_path: Path, name: str) -> None:
    path = node / "checkpoint-5" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    holdings = looked(node, Lying("node1"))
    assert [checkpoint.tag for checkpoint in holdings.checkpoints] == ["step5"]
    shards.do({"do": "names", "path": str(node), "names": [f"checkpoint-5/{name}"]})


def test_latest_and_the_rank_map_are_not_read_through_links(node: Path, private: Path) -> None:
    private.write_text('{"run": "secret", "hosts": ["secret"]}')
    for path in (node / "checkpoint-5/latest", node.parent / f".dslaunch-ranks.{node.name}.json"):
        path.unlink(missing_ok=True)
        path.symlink_to(private)
    told = shards.do({"do": "survey", "path": str(node)})
    assert "secret" not in str(told)


@pytest.mark.parametrize("text", ["a\nb", "\x1b[2J", "--tag", "../x", "", "\xff", "/etc"])
def test_a_latest_that_names_no_directory_counts_as_none(node: Path, text: str) -> None:
    (node / "checkpoint-5/latest").write_bytes(text.encode("latin-1"))
    holdings = looked(node, Lying("node1"))
    assert holdings.failures == {}
    assert not holdings.checkpoints[0].is_latest


@pytest.mark.parametrize(
    ("mode", "directory", "umask", "expected"),
    [
        (0o600, 0o2775, 0o022, 0o600),
        (0o640, 0o2775, 0o022, 0o640),
        (0o666, 0o2775, 0o022, 0o644),
        (0o644, 0o700, 0o022, 0o600),
        (0o664, 0o750, 0o002, 0o660),
        (0o6755, 0o755, 0o022, 0o644),
    ],
)
def test_a_copy_gives_no_user_more_rights_than_its_source(
    node: Path,
    here: LocalStore,
    tmp_path: Path,
    mode: int,
    directory: int,
    umask: int,
    expected: int,
) -> None:
    (node / "checkpoint-5" / SHARD).chmod(mode)
    (node / "checkpoint-5/step5").chmod(directory)
    node.chmod(0o755)
    before = os.umask(umask)
    try:
        gathered(node, here, tmp_path / "copy")
    finally:
        os.umask(before)
    assert (tmp_path / "copy/checkpoint-5" / SHARD).stat().st_mode & 0o7777 == expected


# ---------------------------------------------------------------- writing


DATA = b"new"
VERSION = {"size": len(DATA), "mtime": 10**18, "key": "k" * 16, "mode": 0o644}
PART = f".shard.{'k' * 16}.dslaunch-part"


def put(target: Path, *operations: str) -> None:
    """The operations of a copy of one file."""
    more: dict[str, dict[str, Any]] = {
        "write": {"offset": 0, "data": base64.b64encode(DATA).decode()},
        "finish": {"sha256": hashlib.sha256(DATA).hexdigest()},
        "text": {"text": "step5"},
    }
    for operation in operations:
        question = {"do": operation, "path": str(target), "name": "step5/shard", **VERSION}
        shards.do({**question, **more.get(operation, {})})


WRITING = ("begin", "write", "finish", "text")


@pytest.mark.parametrize("operation", WRITING)
def test_a_directory_that_becomes_a_link_meanwhile_is_not_written_to(
    tmp_path: Path, operation: str
) -> None:
    target, outside = tmp_path / "target", tmp_path / "outside"
    put(target, "begin", "write")
    outside.mkdir()
    (outside / "shard").write_text("old")
    before = tree(outside)
    (target / "step5").rename(tmp_path / "moved")
    (target / "step5").symlink_to(outside)
    with pytest.raises(OSError, match="symbolic link"):
        put(target, operation)
    assert tree(outside) == before


@pytest.mark.parametrize("name", ["shard", PART])
def test_a_link_in_place_of_the_file_is_replaced_and_not_written_through(
    tmp_path: Path, private: Path, name: str
) -> None:
    target = tmp_path / "target"
    (target / "step5").mkdir(parents=True)
    (target / "step5" / name).symlink_to(private)
    put(target, "begin", "write", "finish")
    assert private.read_text() == "secret"
    assert not (target / "step5/shard").is_symlink()
    assert (target / "step5/shard").read_bytes() == DATA


def test_a_part_that_becomes_a_link_meanwhile_is_not_written_through(
    tmp_path: Path, private: Path
) -> None:
    put(tmp_path / "target", "begin", "write")
    part = tmp_path / "target/step5" / PART
    part.unlink()
    part.symlink_to(private)
    for operation in ("write", "finish"):
        with pytest.raises(OSError, match="symbolic link"):
            put(tmp_path / "target", operation)
    assert private.read_text() == "secret"


def test_a_part_with_a_second_name_is_not_continued(tmp_path: Path, private: Path) -> None:
    directory = tmp_path / "target/step5"
    directory.mkdir(parents=True)
    os.link(private, directory / PART)
    with pytest.raises(PermissionError):
        put(tmp_path / "target", "write")
    put(tmp_path / "target", "begin", "write", "finish")
    assert (private.read_text(), private.stat().st_mode & 0o777) == ("secret", 0o600)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_part_of_another_user_is_not_continued(tmp_path: Path) -> None:
    directory = tmp_path / "target/step5"
    directory.mkdir(parents=True)
    (directory / PART).write_bytes(b"x")
    os.chown(directory / PART, 12345, 12345)
    with pytest.raises(PermissionError):
        put(tmp_path / "target", "write")
    put(tmp_path / "target", "begin", "write", "finish")
    assert (directory / "shard").stat().st_uid == 0


def test_a_part_is_private_until_it_is_whole(tmp_path: Path) -> None:
    put(tmp_path / "target", "begin", "write")
    assert (tmp_path / "target/step5" / PART).stat().st_mode & 0o777 == 0o600


BAD_NAMES = ("../x", "/etc/x", "a/../../x", "a//b", ".", "", "a/.", "a\0b", "a/")


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("operation", ["begin", "write", "finish", "text", "read", "sha256"])
def test_no_operation_leaves_its_directory(tmp_path: Path, operation: str, name: str) -> None:
    (tmp_path / "x").write_text("old")
    before = tree(tmp_path)
    question = {"do": operation, "path": str(tmp_path / "top"), "name": name, **VERSION}
    more = {"offset": 0, "most": 3, "data": "QUJD", "sha256": "0" * 64, "text": "t"}
    with pytest.raises(ValueError, match="is not below"):
        shards.do({**question, **more})
    assert {p: v for p, v in tree(tmp_path).items() if p != "top"} == before


def test_removing_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/a").write_text("old")
    (tmp_path / "top").mkdir()
    (tmp_path / "top/tag").symlink_to(tmp_path / "outside")
    (tmp_path / "top/link").symlink_to(tmp_path / "outside/a")
    with pytest.raises(OSError, match="symbolic link"):
        shards.do({"do": "remove", "path": str(tmp_path / "top"), "names": ["tag/a"]})
    assert shards.do({"do": "remove", "path": str(tmp_path / "top"), "names": ["link"]}) == 1
    assert (tmp_path / "outside/a").read_text() == "old"


# ---------------------------------------------------------------- shipped files


def archive(*members: tarfile.TarInfo) -> io.BytesIO:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as made:
        for member in members:
            member.size = 3 if member.isreg() else 0
            made.addfile(member, io.BytesIO(b"new"))
    file.seek(0)
    return file


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a/../../x", "./x", "a//x"])
def test_an_archive_puts_nothing_outside(tmp_path: Path, name: str) -> None:
    (tmp_path / "work").mkdir()
    with pytest.raises(ValueError, match="is not below"):
        files.unpack(archive(tarfile.TarInfo(name)), str(tmp_path / "work"))
    assert list(tree(tmp_path)) == ["work"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_an_archive_holds_nothing_but_files(tmp_path: Path, kind: bytes) -> None:
    member = tarfile.TarInfo("link")
    member.type, member.linkname = kind, "/etc/passwd"
    with pytest.raises(ValueError, match="not a regular file"):
        files.unpack(archive(member), str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_an_archive_is_not_unpacked_through_a_link_of_another_user(
    tmp_path: Path, private: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "work/code").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="symbolic link"):
        files.unpack(archive(tarfile.TarInfo("code/a.py")), str(tmp_path / "work"))
    (tmp_path / "work/a.py").symlink_to(private)
    assert files.unpack(archive(tarfile.TarInfo("a.py")), str(tmp_path / "work")) == 1
    assert (private.read_text(), (tmp_path / "work/a.py").read_text()) == ("secret", "new")
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_name_that_is_not_utf8_is_reported_and_not_left_out(
    node: Path, here: LocalStore, tmp_path: Path
) -> None:
    (node / "checkpoint-5/step5" / os.fsdecode(b"\xff.bin")).write_text("x")
    with pytest.raises(DslaunchError, match="not UTF-8"):
        gathered(node, here, tmp_path / "copy")
