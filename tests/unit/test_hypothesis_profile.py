"""The profile of property tests that `make test` uses finds the same examples in each run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def examples() -> list[tuple[str, int]]:
    """Return what one property test tries, in order."""
    tried: list[tuple[str, int]] = []

    @settings(settings.get_profile("quick"), max_examples=500)
    @given(st.text(), st.integers())
    def property_test(text: str, number: int) -> None:
        tried.append((text, number))

    property_test()
    return tried


@pytest.mark.skipif(
    not settings.default.derandomize, reason="another profile of hypothesis was asked for"
)
def test_examples_do_not_depend_on_the_modules_that_are_loaded(tmp_path: Path) -> None:
    before = examples()
    source = tmp_path / "constants.py"
    source.write_text("A, B, C = 'one constant', 'another constant', 1234567890\n")
    spec = importlib.util.spec_from_file_location("loaded_for_its_constants", source)
    with pytest.MonkeyPatch.context() as patch:
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, spec.name, module)
        after = examples()
    assert after == before
