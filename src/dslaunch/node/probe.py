"""Questions to the agent: the kinds of `questions`, and those about runs and interpreters."""

from __future__ import annotations

import functools
import os
import subprocess

from dslaunch.node import paths, questions, rank_signals, run_files

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Callable, Dict, List, Mapping, Optional

    Answer = Dict[str, Any]


class Context:
    """The node and run that a question is about."""

    def __init__(self, home: str, host: str, run: str, environment: Mapping[str, str]) -> None:
        """`host`: this node's name in the cluster file; `run`: the agent's run, or its own name if
        it only answers questions; `environment`: of the run's processes, empty before its start."""
        self.home, self.host, self.run, self.environment = home, host, run, environment


def answer(asked: Dict[str, Any], context: Context) -> Dict[str, Answer]:
    """Return the answers by name: to questions for agents only, and to any of `questions`."""

    def one(name: str, argument: Any) -> Any:
        if name in QUESTIONS:
            return QUESTIONS[name](argument, context)
        return questions.KINDS[name](argument)

    return {
        name: questions.answered(functools.partial(one, name, argument))
        for name, argument in asked.items()
    }


def _interpreter(path: str, _: Context) -> Optional[str]:
    """Return where the interpreter is, None if there is none."""
    return paths.program(path if "/" not in path else paths.absolute(path))


def _gpus(_: Any, __: Context) -> Optional[int]:
    """Return how many GPUs the driver lists, None without nvidia-smi."""
    program = paths.program("nvidia-smi")
    if program is None:
        return None
    done = subprocess.run(
        [program, "-L"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=10, check=False
    )
    if done.returncode:
        raise ValueError(done.stdout.decode(errors="replace").strip()[:200])
    return sum(line.startswith(b"GPU ") for line in done.stdout.splitlines())


def _directories(wanted: List[str], _: Context) -> Dict[str, Answer]:
    """Create missing directories; return for each its path, whether it was created, and the
    error."""

    def one(path: str) -> Answer:
        where = paths.absolute(path)
        made = not os.path.isdir(where)
        try:
            os.makedirs(where, exist_ok=True)
        except OSError as error:
            return {"path": where, "made": False, "error": error.strerror}
        return {"path": where, "made": made, "error": None}

    return {path: one(path) for path in wanted}


def _runs(argument: Any, context: Context) -> List[Answer]:
    return run_files.runs(context.home, context.host)


def _clean(argument: Answer, context: Context) -> Answer:
    return run_files.clean(context.home, context.host, argument["run"], argument["ended"])


def _hang(argument: Answer, context: Context) -> Optional[Answer]:
    return run_files.hang(context.home, context.host, argument["run"])


def _nccl_ras(_: Any, context: Context) -> Optional[str]:
    from dslaunch.node import nccl_ras  # only for hangs

    return nccl_ras.report(context.environment.get(nccl_ras.VARIABLE, ""))


def _journal(argument: Answer, context: Context) -> Answer:
    """Return a piece of what a detached run has kept, as text that JSON can carry."""
    import base64  # only for `logs` of a detached run: 1 ms

    data, size = run_files.read_journal(
        context.home,
        context.host,
        argument["run"],
        position=argument["position"],
        most=argument["most"],
    )
    return {"data": base64.b64encode(data).decode(), "size": size}


def _shards(argument: Answer, context: Context) -> Any:
    from dslaunch.node import (
        shards,
    )  # with pickle and zipfile, which take longer than all other imports

    return shards.do({**argument, "path": paths.absolute(argument["path"])})


def _job_signal(argument: Answer, _: Context) -> Answer:
    return rank_signals.answer(argument)


QUESTIONS: Dict[str, Callable[[Any, Context], Any]] = {
    "clean": _clean,
    "directories": _directories,
    "gpus": _gpus,
    "hang": _hang,
    "interpreter": _interpreter,
    "job_signal": _job_signal,
    "journal": _journal,
    "nccl_ras": _nccl_ras,
    "runs": _runs,
    "shards": _shards,
}
