"""Hands an archive on to the agent of another node while it arrives, by this node's own ssh.

The other agent has got the checksums of the pieces from the launcher, and takes nothing else: this
node can delay the archive, but not change it.
"""

from __future__ import annotations

import base64
import contextlib
import subprocess
import threading
import time

from dslaunch.node import frames, paths, ssh_login

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, Iterator, Optional

    from dslaunch.node.files import Archive

STALLED = 30.0
"""Seconds in which the other node must take a piece, or let us in."""
MOST_OF_ERROR = 4096
"""Characters of ssh's error output that are reported, at most: the last ones."""


class Handover:
    """An ssh to one other node, which gets all pieces of an archive."""

    def __init__(self, archive: Archive, about: Dict[str, Any]) -> None:
        """`about`: `child` and `options` for the login, the shell `line` and the `text` of the
        program to run there, and the number `as` which the archive has there."""
        self.archive, self.about = archive, about
        self._changing = threading.Lock()
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._ended = self._stalled = False
        self._writing_since: Optional[float] = None
        """When the current write began; None: none waits for the other node."""

    def run(self) -> Dict[str, str]:
        """Log in, send all pieces, and wait until they were taken; return how that ended.

        Raises OSError if the archive cannot be read, InvalidChildError.
        """
        ssh = paths.program("ssh")
        if ssh is None:
            return {"how": "no-ssh", "words": ""}
        process = self._start(ssh)
        try:
            with contextlib.suppress(BrokenPipeError):  # its exit code and error output say why
                self._send(process)
            self._writing_since = time.monotonic()
            _, errors = process.communicate()
        finally:
            self.end()
        words = errors.decode(errors="replace")[-MOST_OF_ERROR:]
        if self._stalled:
            return {"how": "stalled", "words": words}
        return {"how": "failed" if process.returncode else "done", "words": words}

    def look(self, now: float) -> None:
        """End it if the other node takes nothing."""
        since = self._writing_since
        if since is not None and now - since > STALLED:
            self._stalled = True
            self.end()

    def end(self) -> None:
        """End the ssh, if it is there. Safe to call twice, in any thread."""
        with self._changing:
            self._ended = True
            if self._process is not None and self._process.poll() is None:
                self._process.kill()

    def _start(self, ssh: str) -> subprocess.Popen[bytes]:
        options, child = self.about["options"], self.about["child"]
        with self._changing:
            if self._ended:
                raise ConnectionAbortedError("no longer needed")
            self._process = ssh_login.start(ssh, options, child, output=subprocess.DEVNULL)
            return self._process

    def _send(self, process: subprocess.Popen[bytes]) -> None:
        """Write what the other node reads. Raises OSError."""
        assert process.stdin
        for data in self._pieces():
            view = memoryview(data)
            self._writing_since = time.monotonic()
            while view:
                view = view[process.stdin.write(view) :]
            self._writing_since = None

    def _pieces(self) -> Iterator[bytes]:
        yield self.about["line"].encode() + b"\n"
        for text in self.about["text"]:
            yield base64.b64decode(text)
        for number in range(len(self.archive.digests)):
            yield frames.pack_data(self.about["as"], self.archive.piece(number))
