"""Every check on recorded answers: says what it must, for each case and nothing beside it.

`--update-golden` rewrites the texts of verdicts, never their levels and hosts.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dslaunch.preflight.checks import built_in
from tests.checks.recorded import Case, expected, findings, read, rewrite

CASES = [read(path) for path in sorted(Path(__file__).parent.glob("*/*.toml"))]
CHECKS = built_in()
GOOD = {"pass", "skip", "info"}


def test_every_case_is_of_a_check() -> None:
    assert {case.check for case in CASES} <= CHECKS.keys()


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_a_check_says_of_recorded_answers_what_it_must(
    name: str, request: pytest.FixtureRequest
) -> None:
    updates = bool(request.config.getoption("--update-golden"))
    for case in (each for each in CASES if each.check == name):
        assert_says_what_it_must(case, updates)


def assert_says_what_it_must(case: Case, updates: bool) -> None:
    """What is found in a case is what it expects; where only texts differ, update them if asked."""
    found = findings(case, CHECKS[case.check])
    wanted = list(expected(case))
    said = [(f.level, f.found, f.hosts) for f in found]
    assert len(said) == len(wanted), (case.path, said)
    left = list(said)
    others: list[int] = []
    for number, (level, words, hosts) in enumerate(wanted):
        match = [s for s in left if s[0] == level and words in s[1] and hosts in ((), s[2])]
        if match:
            left.remove(match[0])
        else:
            others.append(number)
    texts: dict[int, str] = {}
    for number in others:
        level, words, hosts = wanted[number]
        match = [s for s in left if s[0] == level and hosts in ((), s[2])]
        assert match, (case.path, level, words, hosts, said)
        left.remove(match[0])
        texts[number] = match[0][1]
    if texts and updates:
        rewrite(case, texts)
        return
    assert not texts, (case.path, texts, wanted)


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_a_finding_that_is_bad_says_what_to_do(name: str) -> None:
    of_check = [case for case in CASES if case.check == name]
    for finding in (each for case in of_check for each in findings(case, CHECKS[name])):
        if finding.level in ("fail", "warn"):
            assert finding.fix and finding.see, finding
        assert finding.found == finding.found.strip().rstrip("."), finding
        assert finding.hosts, finding


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_a_check_has_a_case_that_passes_and_one_that_does_not(name: str) -> None:
    levels = [{level for level, _, _ in expected(case)} for case in CASES if case.check == name]
    assert any(level <= GOOD for level in levels), "no case passes"
    assert any(level - GOOD for level in levels) or name in ONLY_TELL, "no case fails"


ONLY_TELL = {"net.firewall"}
"""Checks that only ever tell, and never find fault."""
