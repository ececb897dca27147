"""The common parts of both lints: findings in a text, fixes, and ignored rules."""

from dslaunch.lint.remark import ORDER, Edit, Level, Remark, fails, in_order, mended
from dslaunch.lint.suppression import (
    UNKNOWN_RULE,
    Mention,
    Screened,
    mentions,
    screened,
)

__all__ = [
    "ORDER",
    "UNKNOWN_RULE",
    "Edit",
    "Level",
    "Mention",
    "Remark",
    "Screened",
    "fails",
    "in_order",
    "mended",
    "mentions",
    "screened",
]
