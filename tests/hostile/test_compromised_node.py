"""A node that lies in a run: it reads nothing of the user's, and is named as the failing one."""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Callable

import pytest

from dslaunch.node import frames
from tests.hostile.conftest import HostileCluster
from tests.hostile.node import received

Make = Callable[..., HostileCluster]
HONEST = "def tamper(message): return message"
SCRIPT = "import time\nprint('hello', flush=True)\ntime.sleep(0.2)\n"


def shipped(data: bytes) -> dict[str, bytes]:
    """The files that the launcher sent: name -> content."""
    start = data.find(b"\x1f\x8b")
    found = {}
    while start >= 0:
        try:
            archive = data_of_archive(data, start)
            with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
                for member in tar:
                    file = tar.extractfile(member)
                    found[member.name] = file.read() if file else b""
        except (zlib.error, tarfile.TarError):
            pass
        start = data.find(b"\x1f\x8b", start + 1)
    return found


def data_of_archive(data: bytes, start: int) -> bytes:
    """What a gzip stream that begins there holds, from a connection's bytes."""
    # one frame of data holds all of a small archive
    return zlib.decompressobj(wbits=31).decompress(data[start:])


def test_an_honest_node_is_sent_the_script_and_runs_it(hostile: Make) -> None:
    cluster = hostile(HONEST)
    seen, outcome = cluster.run(SCRIPT)
    assert outcome.status == "ok"
    assert seen.text(1) == ["hello"]
    assert shipped(received(cluster.bad_python)) == {"train.py": SCRIPT.encode()}


@pytest.mark.parametrize(
    "path", ["/etc/hostname", "../secret", "a/../../secret", "secret", "train.py\\0", "~/secret"]
)
def test_a_node_that_asks_for_another_file_is_sent_nothing(hostile: Make, path: str) -> None:
    cluster = hostile(f"""
        def tamper(message):
            value = message.get("value")
            if isinstance(value, dict) and "digests" in value:
                value["digests"]["value"]["{path}"] = None
            return message
    """)
    (cluster.home / "secret").write_text("the user's secret")
    error = cluster.refused(SCRIPT)
    assert [(f.host, f.kind) for f in error.failures] == [("bad", "protocol")]
    assert shipped(received(cluster.bad_python)) == {}


def test_a_node_that_asks_for_an_absolute_path_of_the_user_is_sent_nothing(hostile: Make) -> None:
    cluster = hostile("""
        def tamper(message):
            value = message.get("value")
            if isinstance(value, dict) and "digests" in value:
                home = __file__.rpartition("/bad/")[0]
                value["digests"]["value"] = {"train.py": None, home + "/secret": None}
            return message
    """)
    (cluster.home / "secret").write_text("the user's secret")
    error = cluster.refused(SCRIPT)
    assert [(f.host, f.kind) for f in error.failures] == [("bad", "protocol")]
    assert b"the user's secret" not in b"".join(shipped(received(cluster.bad_python)).values())


LIES = {
    "a port that was not asked for": ("listen", '{"port": 22, "taken": []}'),
    "an address that is none": ("interfaces", '[{"name": "eth0", "address": "$(id)", '
                                '"loopback": False, "up": True}]'),
    "an interface with a newline": ("interfaces", '[{"name": "a\\nb", "address": "10.0.0.1", '
                                    '"loopback": False, "up": True}]'),
    "another directory": ("directories",
                          '{"/etc": {"path": "/etc", "made": False, "error": None}}'),
    "GPUs that are no number": ("gpus", '"eight"'),
    "names that were not asked for": ("resolve", '{"other": ["10.0.0.1"]}'),
    "a list": ("interpreter", "[]"),
    "no answer": ("gpus", "..."),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_node_whose_answer_is_invalid_is_named_and_nothing_starts(
    hostile: Make, name: str
) -> None:
    question, value = LIES[name]
    cluster = hostile(
        f"""
        def tamper(message):
            value = message.get("value")
            if isinstance(value, dict) and "interfaces" in value:
                value[{question!r}] = {{"value": {value}}} if {value} is not ... else 7
            return message
    """,
        bad_first=True,
    )
    error = cluster.refused()
    assert [(f.host, f.kind) for f in error.failures] == [("bad", "protocol")]


START = 'message.get("event") == "started"'
FRAMES = {
    "no JSON": "HEADER.pack(3, 1, 0) + b'{x}'",
    "a list": "HEADER.pack(2, 1, 0) + b'[]'",
    "deep nesting": "HEADER.pack(200000, 1, 0) + b'[' * 200000",
    "a length of 4 GB": "HEADER.pack(2**32 - 1, 1, 0) + b'x' * 100",
    "240 MB announced": "HEADER.pack(240 << 20, 1, 0) + b'x' * 100",
    "many small values": "HEADER.pack(6000002, 1, 0) + b'[' + b'{},' * 2000000 + b']'",
    "an unknown kind": "HEADER.pack(1, 9, 0) + b'x'",
    "output without a header": "HEADER.pack(3, 2, 0) + b'abc'",
    "output of another rank": "HEADER.pack(14, 2, 0) + struct.pack('>iBd', 0, 1, 1.0) + b'x'",
    "output of rank 65537": "HEADER.pack(14, 2, 0) + struct.pack('>iBd', 65537, 1, 1.0) + b'x'",
    "output of rank -2": "HEADER.pack(14, 2, 0) + struct.pack('>iBd', -2, 1, 1.0) + b'x'",
    "output at no time": "HEADER.pack(14, 2, 0) + struct.pack('>iBd', 1, 1, float('nan')) + b'x'",
    "output of a third stream": "HEADER.pack(14, 2, 0) + struct.pack('>iBd', 1, 3, 1.0) + b'x'",
    "a piece of a file": "HEADER.pack(4, 3, 0) + b'\\0\\0\\0\\1'",
    "an event without a kind": "{}",
    "an unknown event": "{'event': 'boom', 'time': 1.0}",
    "an event of another rank": "{**message, 'rank': 0}",
    "a rank that is a text": "{**message, 'rank': '1'}",
    "a time that is a text": "{**message, 'time': 'now'}",
    "a time that is infinite": "{**message, 'time': float('inf')}",
    "a PID below zero": "{**message, 'pid': -1}",
    "a reply that is a text": "{'reply': 'x', 'time': 1.0}",
    "a heartbeat without idle": "{'event': 'beat', 'time': 1.0}",
    "an exit code of a million": "{**message, 'event': 'exit', 'code': 10**6}",
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_malformed_message_means_that_the_node_is_lost_and_the_run_ends(
    hostile: Make, name: str
) -> None:
    cluster = hostile(f"""
        def tamper(message):
            return {FRAMES[name]} if {START} else message
    """)
    seen, outcome = cluster.run("import time\ntime.sleep(600)\n")
    assert outcome.status == "failed"
    assert outcome.cause is not None
    assert (outcome.cause.kind, outcome.cause.host) == ("lost", "bad")
    assert seen.directory is not None
    logs = seen.directory / "logs"
    assert sorted(path.name for path in logs.glob("*")) == []


def test_events_without_end_are_cut_off(hostile: Make) -> None:
    cluster = hostile(f"""
        def tamper(message):
            if {START}:
                body = json.dumps({{**message, "error": "x" * 60000}}).encode()
                for _ in range(2000):
                    send(HEADER.pack(len(body), 1, 0) + body)
            return message
    """)
    _, outcome = cluster.run("import time\ntime.sleep(600)\n")
    assert outcome.cause is not None
    assert (outcome.cause.kind, outcome.cause.host) == ("lost", "bad")


def test_the_largest_messages_of_honest_nodes_pass() -> None:
    files = [
        {"path": f"checkpoints/step{i}/zero_pp_rank_{i}_mp_rank_00_optim_states.pt", "size": i,
         "mtime": 10**18 + i, "file": f"66306:{i}", "broken": None}
        for i in range(60_000)
    ]  # fmt: skip
    data = frames.pack_message({"reply": 1, "value": {"files": files}})
    assert len(list(frames.Decoder().feed(data))) == 1
