"""Notes what ranks give to torch.distributed and PyTorch's recorder does not keep: the rank that a
collective sends from or to, and the other rank of a transfer that is begun and waited for later.

The functions are replaced by ones that call them, and note two times and a rank. A collective of
the recorder is the call in which it was entered. Part of `hook_collectives.py`.

Where torch.compile traces a function, nothing is noted: the graph would break. Until a function
knows that, it may use no global name, since torch would import this module to look it up.
"""

import collections
import contextlib
import functools
import time
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

ROOTED = {"broadcast": "src", "reduce": "dst", "gather": "dst", "scatter": "src"}
"""Collectives that send from one rank or to one rank, and their parameter for it."""
BEGUN = {"isend": "dst", "irecv": "src"}
"""Functions that begin a transfer, and their parameter for the other rank."""
COMPLETED = ("send", "recv")
"""Functions that return when a transfer is complete."""
KINDS = {"isend": "send", "irecv": "recv"}
KEPT = 64
"""The last calls that are noted, of collectives and of transfers each."""
_NEVER = 1 << 63


class _Rooted:
    """A call of a collective with a root."""

    def __init__(self, operation: str, root: "Optional[int]") -> None:
        self.operation, self.root = operation, root
        self.began, self.ended = time.time_ns(), _NEVER


class _Begun:
    """A transfer that has been begun. It must not keep the tensor that belongs to it."""

    def __init__(self, kind: str, peer: "Optional[int]", work: "Any") -> None:
        self.kind, self.peer, self.work = kind, peer, weakref.ref(work)

    @property
    def is_pending(self) -> bool:
        """Return whether the program still has it, and it is not complete. Gloo completes it where
        it is waited for."""
        work = self.work()
        try:
            return work is not None and not work.is_completed()
        except Exception:  # noqa: BLE001 - it has failed
            return False


class Calls:
    """The last calls of a process."""

    def __init__(self) -> None:
        self._rooted: "Deque[_Rooted]" = collections.deque(maxlen=KEPT)
        self._begun: "Deque[_Begun]" = collections.deque(maxlen=KEPT)
        self.transfers = 0
        """How many have been completed, or begun to be waited for later."""
        self._compiling: "List[Callable[[], bool]]" = []

    def leave_out_compiling(self, is_compiling: "Callable[[], bool]") -> None:
        """Note no call during which a function of torch says that it is compiling."""
        self._compiling[:] = [is_compiling]

    def watch(self, c10d: "Any") -> None:
        """Replace the functions in `torch.distributed.distributed_c10d`."""
        for name, parameter in ROOTED.items():
            rank = _Parameter(c10d, getattr(c10d, name), parameter)
            self._replace(c10d, name, functools.partial(self._call_with_root, name, rank))
        for name, parameter in BEGUN.items():
            rank = _Parameter(c10d, getattr(c10d, name), parameter)
            self._replace(c10d, name, functools.partial(self._call_begun, KINDS[name], rank))
        for name in COMPLETED:
            self._replace(c10d, name, self._call_counted)

    def _replace(self, c10d: "Any", name: str, noting: "Callable[..., Any]") -> None:
        original, compiling = getattr(c10d, name), self._compiling

        @functools.wraps(original)
        def call(*args: "Any", **kwargs: "Any") -> "Any":
            if compiling and compiling[0]():
                return original(*args, **kwargs)
            return noting(original, args, kwargs)

        setattr(c10d, name, call)

    def root_of(self, operation: str, entered: int) -> "Optional[int]":
        """Return the root of a collective that was entered at this time, in nanoseconds since the
        epoch; None: unknown."""
        for call in reversed(tuple(self._rooted)):
            if call.operation == operation and call.began <= entered <= call.ended:
                return call.root
        return None

    def pending(self) -> "Optional[Tuple[str, Optional[int]]]":
        """Return the kind and the other rank of the oldest transfer that is not complete: programs
        wait for transfers in the order in which they have begun them."""
        return next(
            ((each.kind, each.peer) for each in tuple(self._begun) if each.is_pending), None
        )

    def _call_with_root(
        self, name: str, rank: "_Parameter", original: "Any", args: "Any", kwargs: "Any"
    ) -> "Any":
        noted = _Rooted(name, rank.of(args, kwargs, default=0))
        self._rooted.append(noted)
        try:
            return original(*args, **kwargs)
        finally:
            noted.ended = time.time_ns()

    def _call_begun(
        self, kind: str, rank: "_Parameter", original: "Any", args: "Any", kwargs: "Any"
    ) -> "Any":
        work = original(*args, **kwargs)
        self.transfers += 1
        if work is not None:  # of several that begin together, or a rank that is no member
            with contextlib.suppress(TypeError):  # works of other backends: no weak references
                self._begun.append(_Begun(kind, rank.of(args, kwargs, default=None), work))
        return work

    def _call_counted(self, original: "Any", args: "Any", kwargs: "Any") -> "Any":
        result = original(*args, **kwargs)
        self.transfers += 1
        return result


class _Parameter:
    """A parameter of a function that is a rank, as such or by its number in the group."""

    def __init__(self, c10d: "Any", function: "Any", name: str) -> None:
        import inspect  # in a rank only: agents import this module too

        self._c10d, self._name, self._in_group = c10d, name, f"group_{name}"
        names = inspect.signature(function).parameters
        self._index = {each: index for index, each in enumerate(names)}

    def of(
        self, args: "Tuple[Any, ...]", kwargs: "Dict[str, Any]", default: "Optional[int]"
    ) -> "Optional[int]":
        """Return the rank that a call gives; None: unknown, or none. `default`: the number in the
        group that it is where the call gives none."""
        try:
            rank = self._given(self._name, args, kwargs)
            if rank is not None:
                return int(rank)
            in_group = self._given(self._in_group, args, kwargs)
            in_group = default if in_group is None else in_group
            if in_group is None:
                return None
            group = self._given("group", args, kwargs) or self._c10d.group.WORLD
            return int(self._c10d.get_global_rank(group, in_group))
        except Exception:  # noqa: BLE001 - the call itself reports what is wrong with it
            return None

    def _given(self, name: str, args: "Tuple[Any, ...]", kwargs: "Dict[str, Any]") -> "Any":
        index = self._index.get(name, len(args))
        return args[index] if index < len(args) else kwargs.get(name)
