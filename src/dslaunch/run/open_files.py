"""How many files a run may open: connections to its nodes, and logs of its ranks."""

from __future__ import annotations

import resource

FOR_A_CONNECTION = 8
"""Files for the connection to a node; an `ssh` program has pipes, and so has its master."""
FOR_THE_REST = 100
"""Files of the run itself: its record, the terminal, libraries."""


def allow_open_files(connections: int, ranks: int) -> int:
    """Let this process open the files of a run, as far as its hard limit permits; return how many
    logs of ranks may be open at a time.

    The soft limit is often 1,024, for programs that call select(2); see getrlimit(2).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    others = FOR_THE_REST + FOR_A_CONNECTION * connections
    wanted = others + ranks
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return ranks if soft == resource.RLIM_INFINITY else soft - others
