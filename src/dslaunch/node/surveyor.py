"""A process beside the agent that answers the questions that may hang."""

from __future__ import annotations

import contextlib
import os
import socket
import threading

from dslaunch.node import frames, survey

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any


class Surveyor:
    """A process beside the agent that answers the questions that may hang.

    It is neither the agent's child nor the guardian's: a process that waits for a dead file server
    cannot be ended, and would count as left behind by the run.
    """

    def __init__(self) -> None:
        self.socket, requests = socket.socketpair()
        if os.fork() == 0:
            self.socket.close()
            os.setsid()
            nowhere = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(nowhere, number)
            survey.serve(lambda: requests.recv(survey.PIECE), requests.sendall)
        requests.close()
        self.asking = threading.Lock()
        self.replies = survey.messages(lambda: self.socket.recv(survey.PIECE))

    def ask(self, request: frames.Message) -> Any:
        """Return the value of the reply to a request. Raises OSError if the process is gone."""
        with self.asking:
            self.socket.sendall(frames.pack_message(request))
            for reply in self.replies:
                return reply["value"]
        raise ConnectionResetError("the process that answers questions is gone")

    def leave(self) -> None:
        """Close the connection in a process that does not ask, without ending the surveyor."""
        self.socket.close()

    def end(self) -> None:
        """Let the surveyor clean up and exit."""
        with contextlib.suppress(OSError):  # a thread that waits for an answer gets an error
            self.socket.shutdown(socket.SHUT_RDWR)
        with self.asking:
            self.socket.close()
