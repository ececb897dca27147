"""Which ports a run opens, as docs/explanation/security.md lists them."""

from __future__ import annotations

import json

import pytest
from tests.local.conftest import Emulated

from dslaunch.cluster.model import Network

# Rank 0 prints where the processes of the run listen: all that have its id, and the agents, which
# are the ancestors of the ranks on this machine up to the first that is no agent.
SCRIPT = """
import ipaddress, json, os, re, sys
import torch.distributed as dist

def read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""

def parent(pid):
    return int(read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1])

def is_agent(pid):
    return b"sys.stdin.buffer" in read(f"/proc/{pid}/cmdline")

def members():
    tag = b"DSLAUNCH_RUN_ID=" + os.environ["DSLAUNCH_RUN_ID"].encode()
    ranks = {int(name) for name in os.listdir("/proc") if name.isdigit()
             and tag in read(f"/proc/{name}/environ").split(b"\\0")}
    agents = set()
    for pid in ranks:
        while pid > 1 and (pid in ranks or is_agent(pid)):
            if is_agent(pid):
                agents.add(pid)
            pid = parent(pid)
    assert agents, "the agents were not found"
    return ranks | agents

def sockets(pid):
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for name in names:
        try:
            found = re.fullmatch(r"socket:\\[(\\d+)\\]", os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            continue
        if found:
            yield found[1]

def address(text):
    words = [int(text[at:at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(text), 8)]
    return ipaddress.ip_address(b"".join(words))

def listening():
    ours = {inode for pid in members() for inode in sockets(pid)}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in read(table).decode().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in ours:
                where, _, port = fields[1].partition(":")
                host = address(where)
                mapped = getattr(host, "ipv4_mapped", None) or host
                yield [mapped.is_loopback, int(port, 16)]

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 0:
    found = {"master": int(os.environ["MASTER_PORT"]), "listening": list(listening())}
    print(json.dumps(found), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("launcher", "stores"),
    [
        # `elastic` has their stores and programs too; each rank and launcher imports torch
        pytest.param("direct", 1, marks=pytest.mark.long),
        pytest.param("torchrun", 1, marks=pytest.mark.long),
        ("elastic", 2),
    ],
)
def test_only_the_stores_of_torch_listen_at_all_addresses(
    emulated: Emulated, launcher: str, stores: int
) -> None:
    network = Network(interface="lo")
    seen = emulated.run(SCRIPT, slots=(2, 1), network=network, launcher=launcher)
    assert seen.outcome is not None
    assert seen.outcome.exit_code == 0, seen.outcome
    assert seen.plan_ is not None
    (text,) = [line.text for line in seen.lines if line.text.startswith("{")]
    found = json.loads(text)
    open_to_all = {port for loopback, port in found["listening"] if not loopback}
    # with `elastic` the ranks have a store beside that of the rendezvous
    assert open_to_all == {seen.plan_.rendezvous.port, found["master"]}
    assert len(open_to_all) == stores
    assert len(found["listening"]) > 3  # the ranks' own ports were looked at too
