"""Both parsers of YAML; and examples of hypothesis without a deadline: the first one pays for
imports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml
from hypothesis import settings

settings.register_profile("without-deadline", deadline=None)
settings.load_profile("without-deadline")


@pytest.fixture(params=["libyaml", "pure Python"], scope="module")
def parser(request: pytest.FixtureRequest) -> Iterator[None]:
    """Either of PyYAML's parsers."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "pure Python":
            patch.delattr(yaml, "CSafeLoader")
        yield
