"""What all tests share: comparison with golden files."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the files below tests/golden"
    )
    parser.addoption(
        "--mutations",
        type=int,
        default=1000,
        metavar="N",
        help="hostile variants of what nodes send that each suite in tests/hostile tries (1000)",
    )


def pytest_configure() -> None:
    """A job in a shell's background ignores Ctrl-C, and so does all that it starts: bash could not
    even trap it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with the file of that name below tests/golden, or rewrite the file."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path} is not there: run pytest --update-golden and read it"
        assert text == path.read_text(encoding="utf-8")

    return check
