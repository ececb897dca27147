"""Which values are shown as `***` although they are not declared as secrets. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

MASK = "***"
_SECRET_NAME = re.compile(
    r"(?:^|[_\-.])(?:api_?key|access_?key|private_?key|secret|token|passwd|password|credentials?|"
    r"auth)(?:$|[_\-.])",
    re.IGNORECASE,
)
"""Names such as `HF_TOKEN`, `WANDB_API_KEY` and `--db-password`; `tokenizer` and `max_tokens` are
none."""
_CREDENTIALS = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,20}://)[^/\s:@]{0,200}:[^/\s@]{1,200}@"
)
"""User and password in a URL."""


def is_secret_name(name: str) -> bool:
    """Return whether a variable, option or key of this name usually holds a secret."""
    return _SECRET_NAME.search(name) is not None


def masked_value(name: str, value: str) -> str:
    """Return a value as it may be shown: masked if its name says that it is a secret."""
    return MASK if is_secret_name(name) and value else masked_credentials(value)


def masked_credentials(text: str) -> str:
    """Return a text whose URLs have no user and password."""
    if "://" not in text:  # the expression is slow on long texts
        return text
    return _CREDENTIALS.sub(rf"\g<scheme>{MASK}@", text)


def masked_args(args: Sequence[str]) -> list[str]:
    """Return arguments in which the values of options with secret names are masked."""
    shown: list[str] = []
    is_value = False
    for arg in args:
        flag, equals, _ = arg.partition("=")
        is_option = arg.startswith("-")
        if is_value and not is_option:
            shown.append(MASK)
        elif is_option and equals and is_secret_name(flag):
            shown.append(f"{flag}={MASK}")
        else:
            shown.append(masked_credentials(arg))
        is_value = is_option and not equals and is_secret_name(flag)
    return shown


def masked_tree(value: Any) -> Any:
    """Return JSON data in which the values of keys with secret names are masked."""
    if isinstance(value, dict):
        return {key: _masked_entry(str(key), item) for key, item in value.items()}
    if isinstance(value, list):
        return [masked_tree(item) for item in value]
    return masked_credentials(value) if isinstance(value, str) else value


def _masked_entry(key: str, item: Any) -> Any:
    return MASK if is_secret_name(key) and isinstance(item, str) and item else masked_tree(item)
