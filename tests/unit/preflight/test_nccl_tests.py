"""What nccl-tests print is read, old and new, and what is no table is no figure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslaunch.preflight.checks.nccl_allreduce import parse

CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpus" / "outputs"
RECORDED = sorted(CORPUS.glob("perf_nccl_*.txt"))
NEW = """\
NCCL version 2.16.2+cuda11.6
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
   536870912     134217728     float     sum      -1   4145.6  129.50  226.63      0   4138.5  129.73  227.02      0
node1:3442:3442 [0] NCCL INFO Launch mode Parallel
  1073741824     268435456     float     sum      -1   8109.1  132.41  231.72    N/A   8109.7  132.40  231.70    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 210.99
"""  # noqa: E501 - as it is printed
OLD = """\
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
           0             0   float     sum    35.20    0.00    0.00    N/A    34.05    0.00    0.00    N/A
  8589934592    2147483648   float     sum    63959  134.30  235.03    N/A    63907  134.41  235.22    N/A
"""  # noqa: E501 - as it is printed


@pytest.mark.parametrize(("text", "peak"), [(NEW, 231.72), (OLD, 235.22)])
def test_the_peak_counts_and_not_the_average(text: str, peak: float) -> None:
    found = parse(text)
    assert found is not None
    assert (found.busbw, found.wrong) == (pytest.approx(peak * 1e9), 0)


def test_wrong_values_are_counted() -> None:
    found = parse(NEW.replace(": 0 OK", ": 12 FAILED"))
    assert found is not None and found.wrong == 12


def test_a_launcher_that_failed_has_measured_nothing() -> None:
    words = "There are not enough slots available in the system to satisfy the 16\nslots"
    assert parse(words) is None
    assert parse(NEW.partition("   536")[0]) is None


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_runs_have_the_peak_that_is_noted_beside_them(path: Path) -> None:
    found, facts = (
        parse(path.read_text()),
        json.loads(path.with_suffix(".json").read_text())["facts"],
    )
    assert found is not None
    assert found.busbw == pytest.approx(facts.get("max_busbw", 235) * 1e9, rel=0.01)
    assert found.busbw > facts["avg_busbw"] * 1e9


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(NEW)), st.integers(0, 40), st.text(max_size=8))
def test_a_damaged_table_gives_a_figure_that_can_be_one_or_none(
    start: int, gone: int, junk: str
) -> None:
    found = parse(NEW[:start] + junk + NEW[start + gone :])
    assert found is None or (found.busbw >= 0 and found.size > 0)
