"""What all tests share: comparison with golden files."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# No deadlines, and no complaint that examples are made slowly: both are wall time, which other
# programs use up. Growth of time is what tests/hostile/test_time_growth.py measures, as processor
# time.
#
# `quick`, which `make test` uses, tries the same examples in each run: a rare counterexample must
# not fail a commit that has nothing to do with it. `thorough`, which `make test-all` uses, searches
# at random. What it finds becomes an @example of its test.
WITHOUT_WALL_TIME = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", WITHOUT_WALL_TIME, derandomize=True, max_examples=50)
settings.register_profile("thorough", WITHOUT_WALL_TIME, derandomize=False, max_examples=1000)
settings.load_profile("quick")

GOLDEN = Path(__file__).parent / "golden"
TESTBED = Path(__file__).parent / "testbed"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite tests/golden and the texts in tests/checks",
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


def pytest_sessionstart() -> None:
    """Draw no constants from the source code of loaded modules where examples are to be the same
    in each run: which modules are loaded depends on the tests that ran before in this process."""
    if settings.default.derandomize:
        providers._get_local_constants = providers.Constants


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect the tests without collecting garbage: each time, it would look at all tests found so
    far, which is a fifth of the processor time of collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make testbed` collects tests/testbed only. What waits alternates with what computes."""
    for item in items:
        if item.get_closest_marker("sshd") and TESTBED not in item.path.parents:
            raise pytest.UsageError(f"{item.nodeid} is marked sshd: move it to {TESTBED}")
    places = alternating([item.path for item in items])
    items.sort(key=lambda item: (item.get_closest_marker("longest") is None, places[item.path]))


def alternating(paths: list[Path]) -> dict[Path, float]:
    """Return a place from 0 to 1 for each file, given that of each test. The files of the testbed,
    whose tests mostly wait for nodes and daemons, are spread evenly among the others, whose tests
    use up a CPU: so each worker of pytest-xdist begins with both kinds, and no CPU is idle."""
    testbed = {path for path in set(paths) if TESTBED in path.parents}
    computing = [path for path in paths if path not in testbed]
    waiting = [path for path in dict.fromkeys(paths) if path in testbed]
    places: dict[Path, float] = {}
    for group in (computing, waiting):
        places |= {path: number / len(group) for number, path in enumerate(group)}
    return places


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
