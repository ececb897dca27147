"""Templates: configs whose placeholders a script fills in before DeepSpeed reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.lint import Remark
from dslaunch.terminal import cut

JINJA = re.compile(r"\{\{[^{}\n]*\}\}|\{%[^%\n]*%\}")
FILLED_IN = re.compile(
    r"\$\{?[A-Za-z_]\w*\}?|<[A-Za-z][\w -]*>|@\w+@|%\w+%|\{[A-Za-z_]\w*\}|__\w+__"
    r"|(?<![A-Z0-9])[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|[A-Z]{3,}",
    re.ASCII,
)
"""Placeholders of scripts: CONFIG_BATCH_SIZE for sed, ${NAME}, <name>, @NAME@, {name}."""
UNQUOTED = re.compile(
    r":[ \t]*(?:[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|\$\{?\w+\}?|@\w+@|<[\w -]+>)[ \t]*[,}\r\n]",
    re.ASCII,
)
"""The same without quotes; in HJSON such text ends with the line."""
WORDS = frozenset({"INF", "NAN", "NONE", "NULL", "TRUE", "FALSE", "AUTO", "CPU", "NVME"})
"""Values in capitals that are not placeholders."""
FIX = "fill in the template first, and lint the result"
SOURCE = "Megatron-DeepSpeed, examples_deepspeed: sed fills in ds_config_gpt_TEMPLATE.json"


def template(config: LintedConfig) -> Remark | None:
    """Return the finding for a template; None: not a template."""
    found = list(_placeholders(config))
    if not found:
        return None
    first = found[0]
    value = _text(config.raw(first)) if first else ""
    message = _message(value, len(found))
    return config.warning("template", first, message, fix=FIX, source=SOURCE)


def unreadable_template(text: str, file: str) -> Remark | None:
    """Return the finding for a text that cannot be parsed because of its placeholders."""
    found = JINJA.search(text) or UNQUOTED.search(text)
    if found is None:
        return None
    value = found[0].strip(":,} \t\r\n") if found[0].startswith(":") else found[0]
    count = len(JINJA.findall(text)) + len(UNQUOTED.findall(text))
    line = text.count("\n", 0, found.start()) + 1
    column = found.start() - text.rfind("\n", 0, found.start())
    return Remark(
        rule="template",
        level="warning",
        file=file,
        line=line,
        column=column,
        path="",
        message=_message(value, count),
        fix=FIX,
        source=SOURCE,
    )


def _message(value: str, count: int) -> str:
    more = f" and {count - 1} more" if count > 1 else ""
    return f"a template with placeholders: `{cut(value, 37)}`{more}; nothing else was checked"


def _placeholders(config: LintedConfig) -> Iterator[str]:
    """Yield the placeholders for keys that need a number or a boolean."""
    for path, value, key in config.walk():
        if not isinstance(value, str) or key is None or "any" in key.types:
            continue
        word = _text(value)
        is_free_text = "str" in key.types
        if JINJA.search(word) or (not is_free_text and _is_placeholder(word)):
            yield ".".join(map(str, path))


def _text(value: object) -> str:
    """Return a value without a trailing comma, which HJSON includes."""
    return str(value).rstrip(", ")


def _is_placeholder(word: str) -> bool:
    return FILLED_IN.fullmatch(word) is not None and word.upper() not in WORDS
