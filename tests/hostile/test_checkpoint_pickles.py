"""Shards made to harm whoever looks into them: nothing in them runs, and looking stays cheap."""

from __future__ import annotations

import io
import os
import pickle
import resource
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dslaunch.cli.checkpoint import APP
from dslaunch.errors import DslaunchError, PreflightError
from dslaunch.node import shards, torchfile
from dslaunch.run.checkpoint_stores import LocalStore
from dslaunch.run.checkpoints import look_here
from dslaunch.run.consolidate import check_names, command, convert_here
from tests.hostile.lying_stores import a_checkpoint

EVIL = "step5/zero_pp_rank_0_mp_rank_00_optim_states.pt"
CHECKOUT = Path(__file__).parents[2]


class Bomb:
    """Runs a program when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def zipped(data: bytes, name: str = "a/data.pkl", method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr(name, data)
    return file.getvalue()


def values(marker: Path) -> dict[str, Any]:
    state = {"zero_stage": 2, "partition_count": 2, "x": Bomb(marker)}
    return {"optimizer_state_dict": state}


def by_global(marker: Path) -> bytes:
    return zipped(pickle.dumps(values(marker), protocol=2))


def by_text_instructions(marker: Path) -> bytes:
    return zipped(pickle.dumps(values(marker), protocol=0))


def by_stack_global(marker: Path) -> bytes:
    return zipped(pickle.dumps(values(marker), protocol=4))


def by_memo(marker: Path) -> bytes:
    """The name of the function is put together from the memo, as no scanner of text sees it."""
    text = f"touch {marker}".encode()
    return zipped(
        b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x940h\x00h\x01\x93"
        + b"X" + struct.pack("<I", len(text)) + text + b"\x85R."
    )  # fmt: skip


def by_old_instance(marker: Path) -> bytes:
    return zipped(b"(X" + struct.pack("<I", 4) + b"trueiposix\nsystem\n.")


def not_zipped(marker: Path) -> bytes:
    return pickle.dumps(values(marker), protocol=2)


def compressed(marker: Path) -> bytes:
    return zipped(pickle.dumps(values(marker), protocol=2), method=zipfile.ZIP_DEFLATED)


def with_harmless_entry(name: str, marker: Path) -> bytes:
    """An archive whose usual pickle is harmless, and whose entry `name` is not."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps({}, protocol=2))
        archive.writestr(name, pickle.dumps(values(marker), protocol=2))
    return file.getvalue()


def two_entries(marker: Path) -> bytes:
    return with_harmless_entry("A/DATA.PKL", marker)


def two_archives(marker: Path) -> bytes:
    return by_global(marker) + zipped(pickle.dumps({}, protocol=2))


def with_a_program(marker: Path) -> bytes:
    return with_harmless_entry("a/constants.pkl", marker)


def behind_a_wrong_name(marker: Path) -> bytes:
    """The table of contents and the entry itself have different names."""
    return by_global(marker).replace(b"a/data.pkl", b"a/none.pkl", 1)


def behind_a_nul(marker: Path) -> bytes:
    """torch takes `a` for the pickle: names are texts of C to it, which end at a NUL."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a_b/data.pkl", pickle.dumps({}, protocol=2))
        archive.writestr("a", pickle.dumps(values(marker), protocol=2))
    return file.getvalue().replace(b"a_b/data.pkl", b"a\0b/data.pkl")


def after_its_end(marker: Path) -> bytes:
    return zipped(pickle.dumps(values(marker), protocol=2)[:-1] + b"0cposix\nsystem\n.")


MAKERS = (
    *(by_global, by_text_instructions, by_stack_global, by_memo, by_old_instance, not_zipped),
    *(compressed, two_entries, two_archives, with_a_program, behind_a_wrong_name, after_its_end),
    behind_a_nul,
)
Maker = Callable[[Path], bytes]


def checked(top: Path, here: LocalStore) -> None:
    holdings = look_here(here, str(top))
    check_names(holdings.checkpoints[0], here, str(top))


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_a_shard_that_could_run_something_is_refused_and_runs_nothing(
    tmp_path: Path, here: LocalStore, maker: Maker
) -> None:
    marker = tmp_path / "was-here"
    top = a_checkpoint(tmp_path / "top")
    checked(top, here)
    (top / EVIL).write_bytes(maker(marker))
    with pytest.raises(PreflightError) as raised:
        checked(top, here)
    assert EVIL in raised.value.message
    names = [path.relative_to(top).as_posix() for path in top.rglob("*.pt")]
    shards.do({"do": "check", "path": str(top), "names": names})
    assert not marker.exists()


@pytest.mark.parametrize(
    "shape", [b"ctorch\nSize\n)R", b"ctorch\nSize\n", b"}", b"](]e", b"(NN\x85t", b"\x8a\1\xff"]
)
def test_a_shape_that_is_none_leaves_the_size_unknown(
    tmp_path: Path, here: LocalStore, shape: bytes
) -> None:
    top = a_checkpoint(tmp_path / "top")
    name = next(path for path in top.rglob("*.pt") if path.name.endswith("model_states.pt"))
    shapes = b"\x80\x02}(X\x0c\0\0\0param_shapes]}(X\1\0\0\0w" + shape + b"uau."
    name.write_bytes(zipped(shapes))
    (found,) = look_here(here, str(top)).checkpoints
    assert found.header.params is None


def test_the_refusal_names_the_file_and_the_function(tmp_path: Path, here: LocalStore) -> None:
    top = a_checkpoint(tmp_path / "top")
    (top / EVIL).write_bytes(by_global(tmp_path / "was-here"))
    with pytest.raises(PreflightError) as raised:
        checked(top, here)
    assert f"here: {EVIL}: names posix.system" in raised.value.message.splitlines()
    assert raised.value.exit_code == 4


def test_a_file_that_is_no_shard_of_the_checkpoint_is_looked_into_as_well(
    tmp_path: Path, here: LocalStore
) -> None:
    top = a_checkpoint(tmp_path / "top")
    (top / "step5/unknown_optim_states.pt").write_bytes(by_global(tmp_path / "was-here"))
    with pytest.raises(PreflightError, match="unknown_optim_states"):
        checked(top, here)


def test_a_link_in_place_of_a_shard_is_not_loaded(tmp_path: Path, here: LocalStore) -> None:
    top = a_checkpoint(tmp_path / "top")
    (tmp_path / "evil.pt").write_bytes(by_global(tmp_path / "was-here"))
    (top / "step5/x_optim_states.pt").symlink_to(tmp_path / "evil.pt")
    with pytest.raises(PreflightError, match="symbolic link"):
        checked(top, here)


@pytest.mark.parametrize(
    "maker", [by_global, by_stack_global, not_zipped], ids=lambda m: m.__name__
)
def test_no_command_runs_what_a_shard_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, maker: Maker
) -> None:
    monkeypatch.setenv("DSLAUNCH_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    marker = tmp_path / "was-here"
    nodes = "nodes: [{host: 'node1', slots: 2}]\nstorage: {workdir: work}\n"
    (tmp_path / "c.yaml").write_text(f"name: one\ntransport: local\n{nodes}")
    top = a_checkpoint(tmp_path / "state/emulated/one/node1/work/out")
    (top / EVIL).write_bytes(maker(marker))
    codes = []
    for words in (
        ("ls", "c.yaml", "out"),
        ("verify", "c.yaml", "out", "--tag", "step5"),
        ("gather", "c.yaml", "out", "--to", "all", "--tag", "step5"),
        ("consolidate", "all", "--to", "w", "--tag", "step5"),
        ("consolidate", "c.yaml", "out", "--to", "w", "--tag", "step5", "--on", "node1"),
    ):
        done = CliRunner().invoke(APP, words)
        error = done.exception
        assert error is None or isinstance(error, DslaunchError)
        codes.append(getattr(error, "exit_code", 0))
    assert codes == [0, 0, 0, 4, 4]
    assert not marker.exists()


@pytest.mark.deepspeed
@pytest.mark.parametrize("trust", [False, True])
def test_the_converter_itself_runs_nothing_unless_it_is_trusted(
    tmp_path: Path, trust: bool
) -> None:
    import torch

    marker = tmp_path / "was-here"
    top = a_checkpoint(tmp_path / "top")
    for shard in top.rglob("*.pt"):
        torch.save(values(marker), shard)
    made = command(
        sys.executable, str(top), str(tmp_path / "w"), "step5", safetensors=False, trust=trust
    )
    with pytest.raises(DslaunchError):
        convert_here(made, lambda line: None)
    assert marker.exists() == trust


@pytest.mark.deepspeed
def test_the_converter_imports_nothing_from_the_directory_it_is_called_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "was-here"
    for name in ("torch.py", "contextlib.py", "deepspeed.py", "numpy.py"):
        (tmp_path / name).write_text(f"open({str(marker)!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    made = command(
        sys.executable, str(tmp_path), str(tmp_path / "w"), "t", safetensors=False, trust=False
    )
    with pytest.raises(DslaunchError):
        convert_here(made, lambda line: None)
    assert not marker.exists()


@pytest.mark.torch
def test_what_torch_saves_is_read_and_allowed(tmp_path: Path, here: LocalStore) -> None:
    import torch

    top = a_checkpoint(tmp_path / "top")
    tensors = {str(kind): torch.zeros(3, dtype=kind) for kind in (torch.bfloat16, torch.int64)}
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    values = {"module": tensors, "parameter": parameter, "nothing": torch.empty(0), "set": {1}}
    torch.save(values, top / "step5/mp_rank_00_model_states.pt")
    checked(top, here)
    names = {"do": "check", "path": str(top), "names": ["step5/mp_rank_00_model_states.pt"]}
    assert shards.do(names) == {"step5/mp_rank_00_model_states.pt": None}


NUMPY = b"\x80\x02cnumpy\ndtype\n"


@pytest.mark.parametrize(
    "data",
    [
        NUMPY + b"X\x01\x00\x00\x00O\x85R.",
        NUMPY + b"X\x02\x00\x00\x00V8\x85R.",
        NUMPY + b"X\x02\x00\x00\x00f8\x85R(K\x03NN}NK\x08K\x08K\x00tb.",
        NUMPY + b"X\x02\x00\x00\x00f8\x85RNb.",
    ],
)
def test_arrays_whose_bytes_would_be_addresses_are_refused(
    tmp_path: Path, here: LocalStore, data: bytes
) -> None:
    top = a_checkpoint(tmp_path / "top")
    (top / EVIL).write_bytes(zipped(data))
    with pytest.raises(PreflightError, match="dtype of objects or fields"):
        checked(top, here)


# ---------------------------------------------------------------- cost


def shape_bomb() -> bytes:
    """A shape whose product would be a text of a gigabyte."""
    return pickle.dumps({"param_shapes": [{"w": ("a" * 100, 10**7)}]}, protocol=2)


def number_bomb() -> bytes:
    lengths = tuple(range(2**60, 2**60 + 60))
    return pickle.dumps({"param_shapes": [{str(n): lengths for n in range(10_000)}]}, protocol=2)


def laughs() -> bytes:
    """Shapes that are shared: little to store, endless to count."""
    group = {str(n): (1,) * 60 for n in range(20_000)}
    return pickle.dumps({"param_shapes": [group] * 900}, protocol=2)


def wide() -> bytes:
    """A text of which one character makes all others take four bytes."""
    text = "\U0001f600".encode() + b"x" * 30_000_000
    return b"\x80\x02X" + struct.pack("<I", len(text)) + text + b"."


def colliding() -> bytes:
    """Keys of a mapping that have the same hash."""
    keys = (n * (2**61 - 1) for n in range(300_000))
    items = (b"\x8a\x0c" + key.to_bytes(12, "little") + b"N" for key in keys)
    return b"\x80\x02}(" + b"".join(items) + b"u."


BOMBS: dict[str, Callable[[], bytes]] = {
    "memo": lambda: b"\x80\x02Nr\xf0\xff\xff\x7f.",
    "long-bytes": lambda: b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b".",
    "long-text": lambda: b"\x80\x02X\xff\xff\xff\xff.",
    "lists": lambda: b"\x80\x02" + b"]" * 8_000_000 + b".",
    "dicts": lambda: b"\x80\x02" + b"}" * 8_000_000 + b".",
    "marks": lambda: b"\x80\x02" + b"(" * 8_000_000 + b".",
    "nested": lambda: b"\x80\x02)" + b"\x85" * 1_900_000 + b".",
    "memos": lambda: b"\x80\x02N" + b"".join(b"r" + struct.pack("<I", n) for n in range(900_000)),
    "big": lambda: b"\x80\x02X" + struct.pack("<I", 60_000_000) + b"x" * 60_000_000 + b".",
    "wide": wide,
    "colliding": colliding,
    "shape": shape_bomb,
    "number": number_bomb,
    "laughs": laughs,
}  # fmt: skip
LIMITED = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from dslaunch.node import shards, torchfile
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
told = shards.do({"do": "survey", "path": sys.argv[2]})
name = told["checkpoints"][0]["files"][0]["path"]
shards.do({"do": "names", "path": sys.argv[2], "names": [name]})
shards.do({"do": "check", "path": sys.argv[2], "names": [name]})
with open("/proc/self/status") as status:
    print(next(line.split()[1] for line in status if line.startswith("VmHWM:")))
"""


MOST_SECONDS = 30.0
"""20 times what a slow machine needs; without limits a bomb takes minutes, or all memory."""


def cost(top: Path) -> tuple[float, int]:
    """Seconds of CPU and kilobytes of memory that looking at a directory takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [sys.executable, "-c", LIMITED, str(CHECKOUT / "src"), str(top)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime, int(done.stdout)


@pytest.mark.parametrize("name", BOMBS)
def test_looking_into_a_hostile_shard_takes_little_time_and_memory(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / "t/mp_rank_00_model_states.pt"
    path.parent.mkdir()
    path.write_bytes(zipped(BOMBS[name]()))
    seconds, kilobytes = cost(tmp_path)
    assert kilobytes < 300_000
    assert seconds < MOST_SECONDS


@pytest.mark.parametrize("count", [0xFFFF, 700_000])
def test_a_table_of_contents_of_many_entries_takes_little_memory(
    tmp_path: Path, count: int
) -> None:
    entry = struct.pack("<4s6H3I5H2I", b"PK\1\2", *[0] * 6, *[0] * 3, 0, *[0] * 4, 0, 0)
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0, min(count, 0xFFFF), len(entry) * count, 4, 0)
    path = tmp_path / "t/mp_rank_00_model_states.pt"
    path.parent.mkdir()
    path.write_bytes(b"PK\3\4" + entry * count + end)
    seconds, kilobytes = cost(tmp_path)
    assert kilobytes < 300_000
    assert seconds < MOST_SECONDS


def test_entries_that_share_their_bytes_are_refused() -> None:
    """Half a million of them, each as large as the file, would be read for days."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name in ("a/data.pkl", "a/data/0", "a/data/1"):
            archive.writestr(name, bytes(100))
    data = bytearray(written.getvalue())
    assert len(torchfile.entries(io.BytesIO(data))) == 3
    last = data.rindex(b"PK\1\2")
    data[last + 42 : last + 46] = struct.pack("<I", 50)
    with pytest.raises(ValueError):
        torchfile.entries(io.BytesIO(data))


def test_a_damaged_shard_is_reported_whichever_byte_is_wrong(tmp_path: Path) -> None:
    whole = (a_checkpoint(tmp_path / "top") / EVIL).read_bytes()
    began = time.process_time()
    for position in range(0, len(whole), 7):
        for value in (0, 0x7F, 0xFF):
            damaged = bytearray(whole)
            damaged[position] = value
            (tmp_path / "top" / EVIL).write_bytes(damaged)
            shards.do({"do": "survey", "path": str(tmp_path / "top")})
            for operation in ("check", "names"):
                shards.do({"do": operation, "path": str(tmp_path / "top"), "names": [EVIL]})
    assert time.process_time() - began < 60
