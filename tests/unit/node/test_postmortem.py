"""What a node can tell about the death of a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from dslaunch.node import postmortem


def test_a_death_by_sigkill_without_a_sign_of_the_oom_killer_proves_nothing() -> None:
    found = postmortem.Postmortem().examine(999999, 9, ["/"])
    assert "oom" not in found
    assert found["signal"] == 9


def test_a_count_that_went_up_proves_the_oom_killer(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([0, 2])
    monkeypatch.setattr(postmortem, "oom_kills", lambda: next(counts))
    found = postmortem.Postmortem().examine(999999, 9, [])
    assert found["oom"] == "its cgroup's oom_kill count went from 0 to 2"


def test_a_line_of_the_kernel_is_reported_unless_it_precedes_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "kmsg"
    record = "4,{},{},-;Memory cgroup out of memory: Killed process {} (python3) anon-rss:1kB\n"
    log.write_text(record.format(1, 100, 4242))
    monkeypatch.setattr(postmortem, "KERNEL_LOG", str(log))
    monkeypatch.setattr(postmortem, "oom_kills", lambda: None)
    death = postmortem.Postmortem()
    assert "oom" not in death.examine(4242, 9, [])
    with log.open("a") as file:
        file.write(record.format(2, 200, 4243))
    found = death.examine(4243, 9, [])
    assert found["oom"] == "Memory cgroup out of memory: Killed process 4243 (python3) anon-rss:1kB"
    assert death.examine(4243, 9, []) == found  # read once, told as often as asked


def test_another_signal_is_not_the_oom_killers(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([0, 2])
    monkeypatch.setattr(postmortem, "oom_kills", lambda: next(counts))
    assert "oom" not in postmortem.Postmortem().examine(999999, 11, [])


def test_full_places_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = postmortem.free
    monkeypatch.setattr(postmortem, "free", lambda p: 10 if p == "/data" else real(p))
    found = postmortem.Postmortem().examine(1, None, ["/data", str(tmp_path)])
    assert found["full"] == ["/data"]


def test_a_place_that_is_not_there_is_not_full() -> None:
    assert postmortem.free("/nowhere") is None
