"""What the security page says is implemented and tested somewhere is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/explanation/security.md"
PLACES = ("", "src/dslaunch", "tests/hostile")
NAMED = sorted(
    set(re.findall(r"`([\w/.-]+(?:\.py|\.md|\.lock|/))`", PAGE.read_text("utf-8")))
    - {"/tmp/torchelastic_*"}
)


def test_files_that_the_security_page_names_exist() -> None:
    ours = [name for name in NAMED if not name.startswith(("/", "~"))]
    missing = [name for name in ours if not any((ROOT / place / name).exists() for place in PLACES)]
    assert missing == []


def test_the_security_page_names_a_test_for_most_guarantees() -> None:
    guarantees = PAGE.read_text("utf-8").partition("## Guarantees")[2].partition("## Limits")[0]
    assert guarantees.count("*Test") >= 7
