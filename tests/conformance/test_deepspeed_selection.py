"""What we select is what the real DeepSpeed selects from the same, written out in full."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dslaunch.cluster.hostfile import parse_hostfile
from dslaunch.cluster.model import Cluster, Node
from dslaunch.cluster.select import Selection, select
from dslaunch.errors import ConfigError, SelectionError
from dslaunch.launch.job import Job
from dslaunch.launch.plan import Decided, Rendezvous
from dslaunch.render.formats import render
from dslaunch.render.launch import Launch

pytestmark = [pytest.mark.deepspeed, pytest.mark.filterwarnings("ignore")]

Pool = dict[str, list[int]]

SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def runner() -> Iterator[Any]:
    """DeepSpeed's launcher, with its messages of every refusal turned off."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("deepspeed")
        from deepspeed.launcher import runner
    before = runner.logger.level
    runner.logger.setLevel("CRITICAL")
    yield runner
    runner.logger.setLevel(before)


_HOSTS = st.lists(
    st.builds("{}{}".format, st.sampled_from(["n", "node-", "10.0.0."]), st.integers(0, 40)),
    unique=True,
    min_size=1,
    max_size=6,
)


@st.composite
def _pools(draw: st.DrawFn) -> dict[str, int]:
    """Hosts with how many slots each has."""
    return {host: draw(st.integers(1, 8)) for host in draw(_HOSTS)}


@st.composite
def _filters(draw: st.DrawFn) -> tuple[dict[str, int], str]:
    """A pool, and a filter that names some of its slots one by one, in any order."""
    pool = draw(_pools())
    hosts = draw(st.lists(st.sampled_from(list(pool)), min_size=1, max_size=8))
    parts = []
    for host in hosts:
        slots = draw(st.lists(st.integers(0, pool[host] - 1), min_size=1, max_size=5))
        parts.append(f"{host}:{','.join(map(str, slots))}")
    return pool, "@".join(parts)


def ours(pool: dict[str, int], **selection: Any) -> Pool:
    cluster = Cluster("c", tuple(Node(host, tuple(range(n))) for host, n in pool.items()))
    try:
        placements = select(cluster, Selection(**selection)).placements
    except SelectionError as error:
        assert "empty" in error.message
        return {}
    return {p.node.host: list(p.slots) for p in placements}


def hostfile(pool: dict[str, int]) -> list[str]:
    return [f"{host} slots={count}\n" for host, count in pool.items()]


@SLOW
@given(pool=_pools())
def test_a_hostfile_is_read_as_deepspeed_reads_it(runner: Any, pool: dict[str, int]) -> None:
    lines = hostfile(pool)
    theirs = runner._parse_hostfile(lines)
    ours = [(line.host, line.slots) for line in parse_hostfile("".join(lines), "f")]
    assert ours == list(theirs.items())


@SLOW
@given(text=st.text(alphabet="ab1 slots=24,#\t\n", max_size=40))
def test_what_we_accept_as_a_hostfile_deepspeed_reads_alike(runner: Any, text: str) -> None:
    try:
        found = parse_hostfile(text, "f")
    except ConfigError:
        return
    assert list(found) == list(runner._parse_hostfile(text.split("\n")).items())


@SLOW
@given(pool_and_filter=_filters())
def test_what_is_included_is_what_deepspeed_includes(
    runner: Any, pool_and_filter: tuple[dict[str, int], str]
) -> None:
    pool, text = pool_and_filter
    theirs = runner.parse_inclusion_exclusion(pool, text, "")
    assert list(ours(pool, include=text).items()) == list(theirs.items())


@SLOW
@given(pool_and_filter=_filters())
def test_what_is_excluded_is_what_deepspeed_excludes(
    runner: Any, pool_and_filter: tuple[dict[str, int], str]
) -> None:
    pool, text = pool_and_filter
    theirs = runner.parse_inclusion_exclusion(pool, "", text)
    assert list(ours(pool, exclude=text).items()) == list(theirs.items())


@SLOW
@given(pool_and_filter=_filters())
def test_what_we_selected_written_out_in_full_is_selected_by_deepspeed(
    runner: Any, pool_and_filter: tuple[dict[str, int], str]
) -> None:
    pool, text = pool_and_filter
    bare = re.sub(r":[0-9,]+", "", text)
    found = ours(pool, include=bare)
    full = "@".join(f"{host}:{','.join(map(str, slots))}" for host, slots in found.items())
    theirs = runner.parse_inclusion_exclusion(pool, full, "")
    assert list(theirs.items()) == list(found.items())


@st.composite
def _launches(draw: st.DrawFn) -> Launch:
    """A job on a part of a cluster whose nodes have any slots, chosen in any way."""
    slots = st.lists(st.integers(0, 15), min_size=1, max_size=5, unique=True).map(sorted)
    nodes = tuple(Node(host, tuple(draw(slots))) for host in draw(_HOSTS))
    named = draw(st.lists(st.sampled_from(nodes), min_size=1, max_size=4, unique=True))
    text = "@".join(f"{n.host}:{draw(st.sampled_from(n.slots))}" for n in named)
    filters = st.sampled_from([{}, {"include": text}, {"exclude": text}])
    counts = {"nodes": draw(st.none() | st.integers(1, len(named)))}
    try:
        allocation = select(Cluster("c", nodes), Selection(**draw(filters), **counts))
    except SelectionError:  # of what is left, there are fewer nodes
        allocation = select(Cluster("c", nodes), Selection())
    args = tuple(draw(st.lists(_ARGUMENTS, max_size=4)))
    decided = Decided(Rendezvous("10.0.0.1", 29501), "/work of all")
    return Launch("c", allocation, Job("train.py", args, launcher="deepspeed"), decided)


_ARGUMENTS = st.sampled_from(["--", "-H", "--include=n1", "--num_gpus", "a b", "", "it's", "$x\n"])


@SLOW
@given(launch=_launches())
def test_the_printed_deepspeed_command_starts_the_selected_slots_with_the_given_arguments(
    runner: Any, launch: Launch, tmp_path: Path
) -> None:
    path = tmp_path / "hostfile"
    path.write_text(render("hostfile", launch).text)
    words = shlex.split(render("deepspeed", launch).text)
    read = runner.parse_args(words[words.index("deepspeed") + 1 :])
    pool = runner.fetch_hostfile(str(path))
    started = runner.parse_inclusion_exclusion(pool, read.include, read.exclude)
    assert list(started.items()) == [(p.node.host, list(p.slots)) for p in launch.placements]
    assert (read.user_script, tuple(read.user_args)) == ("train.py", launch.job.args)
    assert (read.master_addr, read.master_port) == ("10.0.0.1", 29501)


@SLOW
@given(pool=_pools())
def test_everything_is_selected_when_nothing_is_asked(runner: Any, pool: dict[str, int]) -> None:
    theirs = runner.parse_inclusion_exclusion(pool, "", "")
    assert list(ours(pool).items()) == list(theirs.items())


@pytest.mark.parametrize("text", ["jeff", "w0:1@jeff", "w0:", "w0:a", "w0:0:1", "w0@", "w1@w0:1@5"])
def test_what_deepspeed_refuses_we_refuse(runner: Any, text: str) -> None:
    pool = {"w0": 4, "w1": 4}
    for selection in ({"include": text}, {"exclude": text}):
        inclusion, exclusion = selection.get("include", ""), selection.get("exclude", "")
        with pytest.raises(ValueError, match=r"\w"):
            runner.parse_inclusion_exclusion(pool, inclusion, exclusion)
        cluster = Cluster("c", tuple(Node(host, tuple(range(n))) for host, n in pool.items()))
        with pytest.raises(SelectionError):
            select(cluster, Selection(**selection))
