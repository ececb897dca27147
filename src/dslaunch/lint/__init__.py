"""The common parts of both lints: findings in a text, fixes, and ignored rules."""

from dslaunch.lint.remark import ORDER, Edit, Level, Remark, fails, fixed_text, in_order
from dslaunch.lint.suppression import (
    UNKNOWN_RULE,
    Screened,
    Suppression,
    screened,
    suppressions,
)

__all__ = [
    "ORDER",
    "UNKNOWN_RULE",
    "Edit",
    "Level",
    "Remark",
    "Screened",
    "Suppression",
    "fails",
    "fixed_text",
    "in_order",
    "screened",
    "suppressions",
]
