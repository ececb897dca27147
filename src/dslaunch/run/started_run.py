"""A run that this process has started: it continues in its own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from dslaunch.errors import UsageError
from dslaunch.registry import plugin_faults
from dslaunch.run.handle import RankStacks, RunHandle
from dslaunch.run.interrupts import Interrupts, Until
from dslaunch.run.launch import run_job
from dslaunch.run.local_runs import local_runs
from dslaunch.run.log_selection import selection_of
from dslaunch.run.replay import replay
from dslaunch.run.shown_lines import shown_lines
from dslaunch.run.ssh_run import SshRun
from dslaunch.run.status import Reports
from dslaunch.run.view import Callbacks

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from dslaunch.launch.plan import Plan
    from dslaunch.run.events import Event, Line
    from dslaunch.run.outcome import Outcome
    from dslaunch.run.rank_signals import Signaled
    from dslaunch.run.request import RunRequest
    from dslaunch.run.status import RunStatus
    from dslaunch.run.view import StartStep, View


class PlanView(Callbacks):
    """Hands lines and events on, and keeps the latest plan."""

    unseen = False
    output_closed = False

    def __init__(
        self, on_line: Callable[[Line], object], on_event: Callable[[Event], object]
    ) -> None:
        super().__init__(on_line, on_event)
        self.planned = threading.Event()
        self.latest: tuple[Plan, Path] | None = None

    def begin(self, step: StartStep, late: Collection[str]) -> None:
        """Do nothing: only lines, events and the plan are handed on."""

    def plan(self, plan: Plan, directory: Path) -> None:
        """Keep the plan, and where the run is recorded."""
        self.latest = plan, directory
        self.planned.set()


class Run:
    """A run that this process has started. As a context manager it does not outlive the block."""

    def __init__(
        self,
        request: RunRequest,
        on_line: Callable[[Line], object],
        on_event: Callable[[Event], object],
    ) -> None:
        """Start it, and wait until it is planned. Raises the error that prevents the start."""
        self._environ = request.environ
        self._view = view = PlanView(on_line, on_event)
        self._interrupts = Interrupts()
        # Python waits for the thread when the program ends, so that no training is cut off
        pool = ThreadPoolExecutor(1, thread_name_prefix="dslaunch-run")
        self._ended = pool.submit(run_job, request, lambda: view, self._interrupts)
        self._ended.add_done_callback(lambda _: view.planned.set())
        pool.shutdown(wait=False)
        try:
            view.planned.wait()
        except BaseException:  # such as a notebook's interrupt
            self.stop()
            raise
        if view.latest is None:
            self._ended.result()

    @property
    def plan(self) -> Plan:
        """What its nodes do; after a restart that of the latest attempt."""
        return self._known[0]

    @property
    def directory(self) -> Path:
        """Where it is recorded."""
        return self._known[1]

    @property
    def name(self) -> str:
        """Its name, as `find_run` and `dslaunch status` take it."""
        return self.directory.name

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._ended.done()

    def wait(self, timeout: float | None = None) -> Outcome:
        """Wait for its end, and return how it ended.

        Raises TimeoutError after `timeout` seconds, and the run continues; the DslaunchError that
        prevented the start of its ranks.
        """
        with plugin_faults():
            outcome, _ = self._ended.result(timeout)
        return outcome

    def stop(self) -> None:
        """Ask all ranks to end, and return at once. A second call kills those that have not."""
        self._interrupts.stop()

    def status(self) -> RunStatus:
        """Return its state; while it is running, its nodes are asked. Raises DslaunchError."""
        handle = self._handle
        return handle.summary(Reports()) if self.done else handle.status()

    def stacks(self, timeout: float = 15.0) -> RankStacks:
        """Return what every rank is doing. A node may take `timeout` seconds.

        Raises DslaunchError.
        """
        return self._handle.stacks(timeout)

    def signal(
        self, name: str, *, ranks: Collection[int] | None = None, force: bool = False
    ) -> Signaled:
        """Send a signal such as `USR1` to the processes of its ranks, or of some of them.

        Raises UsageError, DslaunchError as `RunHandle.signal`.
        """
        return self._handle.signal(name, ranks=ranks, force=force)

    def logs(
        self,
        *,
        ranks: Collection[int] | None = None,
        hosts: Collection[str] | None = None,
        since: float | None = None,
        until: float | None = None,
        matching: str | None = None,
        tail: int | None = None,
        follow: bool = False,
    ) -> Iterator[Line]:
        """Yield what its ranks have written, by time; with `follow` by arrival, until its end.

        The conditions are those of `RunHandle.logs`. Raises UsageError.
        """
        selection = selection_of(
            ranks=ranks, hosts=hosts, since=since, until=until, matching=matching, tail=tail
        )

        def show(view: View, enough: Until) -> None:
            replay(self.directory, view, selection, follow=follow, until=enough)

        return shown_lines(show)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while not self.done:
            self.stop()
            try:
                self._ended.exception()
            except KeyboardInterrupt:  # kill at once what does not end
                continue

    @property
    def _handle(self) -> RunHandle:
        recorded = local_runs(self._environ).exactly(self.name)
        if recorded is None:
            raise UsageError(f"{self.directory}: the record of the run does not exist any more")
        return SshRun.recorded(recorded)

    @property
    def _known(self) -> tuple[Plan, Path]:
        assert self._view.latest is not None  # the constructor has waited for it
        return self._view.latest
