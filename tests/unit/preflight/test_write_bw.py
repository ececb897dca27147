"""What ib_write_bw prints is read in either of its units, and what is no table is no figure."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslaunch.preflight.checks.ib_write_bw import bandwidth

RULE = "-" * 87 + "\n"
HEAD = f"""\
{RULE}                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 Number of qps   : 1\t\tTransport type : IB
 Mtu             : 4096[B]
{RULE} local address: LID 0x1907 QPN 0x0867 PSN 0x6d058e RKey 0x1fffb9 VAddr 0x007f58a406e000
{RULE}"""
GBITS = f"""{HEAD} #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      1468416          0.00               391.57 \t\t     0.746863
{RULE}"""
MBYTES = f"""{HEAD} #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      664644           0.00               11728.47\t\t     0.187656
{RULE}"""


@pytest.mark.parametrize(("text", "rate"), [(GBITS, 391.57e9 / 8), (MBYTES, 11728.47 * 2**20)])
def test_the_average_counts_in_the_unit_of_the_head(text: str, rate: float) -> None:
    assert bandwidth(text) == pytest.approx(rate)


def test_what_failed_has_measured_nothing() -> None:
    assert bandwidth("Couldn't connect to node1:18515\nUnable to open file descriptor") is None
    assert bandwidth(HEAD) is None
    assert bandwidth(GBITS.replace("391.57", "inf")) is None


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(GBITS)), st.integers(0, 40), st.text(max_size=8))
def test_a_damaged_table_gives_a_figure_or_none(start: int, gone: int, junk: str) -> None:
    found = bandwidth(GBITS[:start] + junk + GBITS[start + gone :])
    assert found is None or found >= 0
