"""Validation by JSON Schema, for what we write and for the schemas that we publish.

jsonschema is imported without the grammar of internationalized addresses: no schema of ours has
such a value, and compiling it takes 5 s of processor time in each process.
"""

from __future__ import annotations

import sys

import pytest

with pytest.MonkeyPatch.context() as patch:
    patch.setitem(sys.modules, "rfc3987_syntax", None)
    from jsonschema import Draft202012Validator, validate

__all__ = ["Draft202012Validator", "validate"]
