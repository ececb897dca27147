"""The pipes of the ranks' output: unnamed ones for processes that the agent starts, named ones for
ranks that a launcher starts. No output is in a file, where a crash would leave it."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Iterator, List, Optional

STDOUT, STDERR, ERROR, BORN = 1, 2, 3, 4
"""ERROR: what torch's `record` writes about an exception. BORN: the rank's own process number; a
rank that ends at once would not be found by searching."""
NAMES = {STDOUT: "stdout", STDERR: "stderr", ERROR: "error", BORN: "born"}
PIECE = 64 * 1024
RANK_SCRIPT = "rank.py"
_RANK_SCRIPT = '''\
"""Gives a rank that a launcher starts its own pipes, and becomes the rank.

rank.py [--local_rank=N] VARIABLE script|module|command PROGRAM [ARGUMENT...]

VARIABLE is the one whose value names the pipes, RANK or LOCAL_RANK.
"""

import os
import sys

words = sys.argv[1:]
# DeepSpeed puts this before the arguments of a script or a module
local_rank = [words.pop(0)] if words[0].startswith("--local_rank=") else []
variable, kind, program = words[:3]
place = "%s/%s-%s" % (os.environ["DSLAUNCH_LOGS"], variable, os.environ[variable])
if "TORCHELASTIC_ERROR_FILE" in os.environ:
    os.environ["TORCHELASTIC_ERROR_FILE"] = place + ".error"
for stream, name in ((1, "stdout"), (2, "stderr")):
    # without a reader this fails, and does not wait for one
    pipe = os.open(place + "." + name, os.O_WRONLY | os.O_NONBLOCK)
    os.set_blocking(pipe, True)
    os.dup2(pipe, stream)
    os.close(pipe)
born = os.open(place + ".born", os.O_WRONLY | os.O_NONBLOCK)
os.write(born, b"%d\\n" % os.getpid())
os.close(born)
python = {"script": [sys.executable, "-u"], "module": [sys.executable, "-u", "-m"], "command": []}
command = python[kind] + [program] + local_rank + words[3:]
try:
    os.execvp(command[0], command)
except OSError as error:
    sys.stderr.write("could not start: %s: %s\\n" % (command[0], error.strerror))
    sys.exit(127)
'''


class Pipe:
    """The reading end of one process's standard output or error."""

    def __init__(self, fd: int, rank: int, stream: int) -> None:
        self.fd = fd
        self.rank = rank
        self.stream = stream
        os.set_blocking(fd, False)

    def read(self) -> Optional[bytes]:
        """Return what can be read now: empty at the end, None if there is nothing yet."""
        try:
            return os.read(self.fd, PIECE)
        except BlockingIOError:
            return None

    def drain(self) -> Iterator[bytes]:
        """Yield all that can be read now."""
        while True:
            data = self.read()
            if not data:
                return
            yield data

    def close(self) -> None:
        """Close the pipe."""
        os.close(self.fd)


def make_rank_pipes(directory: str, ranks: range) -> List[Pipe]:
    """Create the named pipes of all ranks of a node below `directory`, and the script that a
    launcher starts as each rank. Returns the pipes. Raises OSError.

    A pipe has two names, since ranks are known by LOCAL_RANK, DeepSpeed's by RANK. A rank that is
    started again opens the same pipe.
    """
    with open(os.path.join(directory, RANK_SCRIPT), "w", encoding="ascii") as file:
        file.write(_RANK_SCRIPT)
    pipes = []
    for local_rank, rank in enumerate(ranks):
        for stream, name in NAMES.items():
            path = os.path.join(directory, f"LOCAL_RANK-{local_rank}.{name}")
            os.mkfifo(path, 0o600)
            os.link(path, os.path.join(directory, f"RANK-{rank}.{name}"))
            # for writing too: without our own writer the pipe would end between two ranks
            pipes.append(Pipe(os.open(path, os.O_RDWR | os.O_NONBLOCK), rank, stream))
    return pipes
