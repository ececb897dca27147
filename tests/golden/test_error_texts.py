"""The texts and hints of errors with codes, compared whole."""

from __future__ import annotations

from collections.abc import Callable

from dslaunch.errors import ErrorCode
from dslaunch.texts import Value, filled

EXAMPLES: dict[str, Value] = {
    "count": 2,
    "host": "gpu01",
    "hosts": "gpu[01-02]",
    "interfaces": ("lo 127.0.0.1",),
    "launchers": ("deepspeed", "torchrun"),
    "least": 4,
    "limit": 131071,
    "lines": ("gpu01: first", "gpu02: second"),
    "option": "--include",
    "other": "gpu02",
    "port": 29500,
}
"""Parameters whose example is not their own name."""


def test_every_error_with_a_text_says_what_it_is_and_what_to_do(
    golden: Callable[[str, str], None],
) -> None:
    lines = []
    for code in ErrorCode:
        if code.text:
            values = {name: EXAMPLES.get(name, name.upper()) for name in code.parameters}
            values.pop("available", None)
            lines += [f"{code}", f"  {filled(code.text, values)}", f"  {filled(code.hint, values)}"]
    golden("errors.txt", "".join(f"{line.rstrip()}\n" for line in lines))
