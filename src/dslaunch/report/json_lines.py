"""Lines of output for programs: a JSON object per line. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from dslaunch.json_text import json_lines_of, json_text
from dslaunch.run.events import LineBlock


def json_lines(block: LineBlock, fields: Mapping[str, str] = {}) -> str:
    """Return an object for each line of a block, with these fields and those of `Line`.

    All are made at once, in a tenth of the time that it takes one by one.
    """
    (empty,) = replace(block, text="")
    # quotes within a value are escaped: this is there once
    before, _, after = json_text({**fields, **empty.as_data()}).partition('"text": ""')
    begin, end = f'{before}"text": ', f"{after}\n"
    texts = json_lines_of(block.text.split("\n"))
    following = f"{end}{begin}"
    return f"{begin}{texts.replace(chr(10), following)}{end}"
