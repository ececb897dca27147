"""The configs in guides to DeepSpeed that people follow, where these lie beside the checkout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dslaunch.deepspeed.config_text import parse
from dslaunch.deepspeed.lint import guess_reader, lint, unreadable
from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.deepspeed.schema import table
from dslaunch.errors import ConfigError
from dslaunch.lint import Remark

GUIDES = sorted(Path(__file__).parents[3].joinpath("shared/seeds").glob("*.txt"))
BROKEN = {
    "000": [("not-json", "")],
    "001": [],
    # as DeepSpeed 0.19.8 says: `aio` belongs to the top level, and `amp` was removed
    "002": [("unknown-key", "zero_optimization.aio")],
    "003": [("removed-key", "amp")],
}
"""What is an error in each guide: a comma too many before a closing brace, where `auto` says that
Hugging Face reads the file, and keys that DeepSpeed refuses."""
FEWEST = 3


def configs(text: str) -> Iterator[str]:
    """Blocks that open with a brace alone on its line, up to the one that closes it."""
    lines: list[str] = []
    depth = 0
    for line in text.splitlines():
        if depth or line.strip() == "{":
            lines.append(line)
            depth += line.count("{") - line.count("}")
            if depth <= 0:
                yield "\n".join(lines)
                lines, depth = [], 0


def remarks(text: str) -> tuple[Remark, ...]:
    """What the lint has to say to a config."""
    try:
        document = parse(text, "ds.json")
    except ConfigError as error:
        return unreadable(error)
    return lint(LintedConfig(document, table(), guess_reader(document)))


@pytest.mark.skipif(not GUIDES, reason="the guides do not lie beside the checkout")
@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: str(path.stem))
def test_only_what_is_broken_in_a_guide_is_an_error(guide: Path) -> None:
    found = [remarks(config) for config in configs(guide.read_text("utf-8"))]
    assert len(found) >= FEWEST
    every = [remark for one in found for remark in one if remark.level == "error"]
    # most blocks show one section of a config, and leave out zero_optimization like the others
    errors = [(each.rule, each.path) for each in every if each.rule != "no-zero"]
    assert errors == BROKEN[guide.name[:3]]
