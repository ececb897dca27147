"""The table of hangs over NCCL is made of what was recorded."""

from pathlib import Path

from tests.gpu.hangs import RECORDED, section

PAGE = Path(__file__).parents[2] / "docs/reference/hangs.md"


def test_hangs_over_nccl_are_documented_as_recorded() -> None:
    assert section(RECORDED.read_text("utf-8").splitlines()) in PAGE.read_text("utf-8")
