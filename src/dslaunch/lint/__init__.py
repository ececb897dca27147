"""What the lints share: remarks on a user's text, edits that mend it, rules that are ignored."""

from dslaunch.lint.remark import ORDER, Edit, Level, Remark, fails, in_order, mended
from dslaunch.lint.suppression import (
    UNKNOWN_RULE,
    Mention,
    Screened,
    closest_rule,
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
    "closest_rule",
    "fails",
    "in_order",
    "mended",
    "mentions",
    "screened",
]
