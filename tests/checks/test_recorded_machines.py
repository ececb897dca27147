"""What real machines printed, where the recordings lie beside the checkout, and is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from dslaunch.preflight.checks import built_in
from dslaunch.preflight.checks.table_gpu import xid_errors
from dslaunch.preflight.checks.table_ib import flaps
from dslaunch.topology.nvlink import nvlink_status
from tests.checks.recorded import Case, findings

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpus" / "outputs"
pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no recordings in {CORPUS}")
OF_QUERY = {
    name: check
    for name, check in built_in().items()
    if name.startswith("gpu.")
    and name.split(".")[1]
    not in (
        "count",
        "nvlink",
        "nvlink-errors",
        "xid",
        "p2p",
        "leftover",
        "peermem",
        "fabric",
        "vendors",
    )
}
"""Checks that judge the query alone."""


def text(name: str) -> str:
    """A recording."""
    return (CORPUS / f"{name}.txt").read_text("utf-8")


def query(name: str) -> str:
    """A recorded query as we ask it: its index first."""
    head, *rows = (line.split(", ") for line in text(name).splitlines() if line.strip())
    place = head.index("index")
    lines = [[line[place], *line[:place], *line[place + 1 :]] for line in (head, *rows)]
    return "".join(", ".join(line) + "\n" for line in lines)


MACHINES: dict[str, set[tuple[str, str]]] = {
    "nv_csv_h100_idle": set(),
    "nv_csv_h100_load": set(),
    "nv_csv_h200_load": set(),
    "nv_csv_l40s_idle": {("gpu.persistence", "warn")},
    "nv_csv_h100_mig_idle": {("gpu.mig", "fail")},
    "nv_csv_2080s_610_idle": {("gpu.persistence", "warn")},
}


@pytest.mark.parametrize("name", MACHINES)
def test_a_recorded_machine_has_only_the_faults_that_it_has(name: str) -> None:
    answers = {
        "which": {"value": {"nvidia-smi": "/usr/bin/nvidia-smi"}},
        "query": {"value": {"code": 0, "out": query(name), "err": ""}},
    }
    found = {
        (check, finding.level)
        for check in OF_QUERY
        for finding in findings(Case(Path(check) / "x.toml", {"answers": answers}), OF_QUERY[check])
    }
    assert {f for f in found if f[1] not in ("pass", "skip")} == MACHINES[name]


def test_recorded_kernel_logs_give_their_xids() -> None:
    imbue = xid_errors(text("nv_dmesg_imbue_lines"), 10**6)
    assert set(imbue) == {(94, "0000:0f:00"), (64, "0000:0f:00")}
    gpud = xid_errors(text("nv_dmesg_xid119"), 2)
    assert set(gpud) == {(119, "0000:9b:00")}
    assert not flaps(text("nv_dmesg_imbue_lines"), 10**6)


def test_recorded_nvlinks_are_counted() -> None:
    h100, a100, l40s = (
        nvlink_status(text(f"nv_nvlink_{name}")).gpus for name in ("h100", "a100x8", "l40s")
    )
    assert [len(of) for of in h100.values()] == [18]
    assert {len(of) for of in a100.values()} == {12}
    assert not any(l40s.values())


def test_recorded_infiniband_ports_are_all_active() -> None:
    lines = (line.partition(":")[::2] for line in text("ib_sysfs_h100_grep").splitlines())
    ports = {"ports": {"value": dict(lines)}}
    case = Case(Path("ib.port-state") / "x.toml", {"answers": ports})
    found = findings(case, built_in()["ib.port-state"])
    assert [(f.level, f.found) for f in found] == [("pass", "9 ports active")]
