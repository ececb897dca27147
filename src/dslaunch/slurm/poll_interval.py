"""When SLURM is asked next: seldom once a job has settled, and ever less while it cannot answer."""

from __future__ import annotations

from dataclasses import dataclass

SOON, ASK_SOON, ASK_LATER = 30.0, 1.0, 10.0
"""Seconds between two questions: ASK_SOON in the first SOON seconds, ASK_LATER after."""
FIRST_WAIT, LONGEST_WAIT = 2.0, 60.0
"""Seconds after the first question that failed, doubled by each further one, up to the longest:
SLURM limits how often a user may ask (slurm.conf(5), SlurmctldParameters=rl_enable)."""
JITTER = 0.25
"""Share by which a wait is shorter or longer, so that not all followers ask at once."""


@dataclass(frozen=True, slots=True)
class PollInterval:
    """How often questions have failed in a row."""

    failures: int = 0

    def failed(self) -> PollInterval:
        """After one more failure."""
        return PollInterval(self.failures + 1)

    def wait(self, age: float, chance: float) -> float:
        """Seconds until the next question, `age` seconds after the first; `chance`: from 0 to 1."""
        if not self.failures:
            return ASK_SOON if age < SOON else ASK_LATER
        doubled: float = FIRST_WAIT * 2.0 ** min(self.failures - 1, 10)
        return min(doubled, LONGEST_WAIT) * (1 + JITTER * (2 * chance - 1))
