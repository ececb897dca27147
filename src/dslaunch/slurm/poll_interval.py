"""The interval between queries to SLURM, which grows with age and with failures."""

from __future__ import annotations

from msgspec import Struct

SOON, ASK_SOON, ASK_LATER = 30.0, 1.0, 10.0
"""Seconds between two queries: ASK_SOON in the first SOON seconds, then ASK_LATER."""
FIRST_WAIT, LONGEST_WAIT = 2.0, 60.0
"""Seconds after the first failed query, doubled by each further one up to the maximum: SLURM may
limit the rate of a user's requests (slurm.conf(5), SlurmctldParameters=rl_enable)."""
JITTER = 0.25
"""The random share of an interval, so that followers do not query at the same time."""


class PollInterval(Struct, frozen=True):
    """The number of failed queries in a row."""

    failures: int = 0

    def failed(self) -> PollInterval:
        """Return the value after one more failure."""
        return PollInterval(self.failures + 1)

    def wait(self, age: float, chance: float) -> float:
        """Return the seconds until the next query, `age` seconds after the first; `chance`: 0 to
        1."""
        if not self.failures:
            return ASK_SOON if age < SOON else ASK_LATER
        doubled: float = FIRST_WAIT * 2.0 ** min(self.failures - 1, 10)
        return min(doubled, LONGEST_WAIT) * (1 + JITTER * (2 * chance - 1))
