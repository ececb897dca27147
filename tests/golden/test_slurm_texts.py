"""The texts about SLURM jobs and about rendered texts, compared whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from string import Formatter

import pytest

from dslaunch.cluster.discover import DiscoveryNote
from dslaunch.notes import Note, NoteCode, Value
from dslaunch.render.notes import RenderNote
from dslaunch.run.outcome import Outcome
from dslaunch.slurm.job_status import JobPhase, JobStatus
from dslaunch.slurm.notices import JobNotice, NoticeCode, notice_text
from dslaunch.slurm.output_evidence import Cut
from dslaunch.slurm.partition import PartitionNote
from dslaunch.slurm.query_failures import QueryFailure
from dslaunch.slurm.refusal import EXPLANATIONS
from dslaunch.slurm.requeue import RequeueNote
from dslaunch.slurm.script_mistakes import ScriptMistake
from dslaunch.slurm.verdict import Account, Ending, JobVerdict
from dslaunch.slurm.verdict_text import PENDING_TEXTS, message, outcome_of, pending_text
from dslaunch.texts import filled, parameter_names

Golden = Callable[[str, str], None]

PARAMETERS: dict[str, Value] = {
    "accounts": ("lab", "class"),
    "command": "squeue",
    "count": 16,
    "cpus": "8",
    "differences": ("interpreter", "environment"),
    "error": "Permission denied",
    "file": "hostfile",
    "first": "node1",
    "host": "login1",
    "job": "12",
    "launcher": "direct",
    "limit": 3,
    "maximum": "2-00:00:00",
    "names": ("HF_TOKEN", "WANDB_API_KEY"),
    "nodes": "n[1-4]",
    "partition": "gpu",
    "seconds": 60,
    "settings": ("user", "port"),
    "slots": "2,3",
    "tool": "mpirun",
    "words": ("'a b'",),
    "workdir": "/work",
}
CODES: tuple[type[NoteCode], ...] = (
    RenderNote,
    DiscoveryNote,
    PartitionNote,
    RequeueNote,
    QueryFailure,
)


def test_every_mistake_in_a_script_says_what_to_write_instead(golden: Golden) -> None:
    lines = []
    for mistake in ScriptMistake:
        names = parameter_names(mistake.text, mistake.fix)
        values = {name: PARAMETERS.get(name, name.upper()) for name in names}
        text, fix = filled(mistake.text, values), filled(mistake.fix, values)
        lines += [f"{mistake} ({mistake.level})", f"  {text}", f"  {fix}"]
    golden("slurm/script-mistakes.txt", "".join(f"{line}\n" for line in lines))


def example(code: NoteCode) -> Note:
    """A note with a value for each of its parameters."""
    names = {name for _, name, _, _ in Formatter().parse(code.text) if name}
    return Note(code, {name: PARAMETERS[name] for name in sorted(names)})


@pytest.mark.parametrize("codes", CODES, ids=lambda codes: codes.__name__)
def test_every_note_has_its_text(codes: type[NoteCode], golden: Golden) -> None:
    lines = [f"{code}: {example(code)}\n" for code in codes]
    golden(f"slurm/{codes.__name__}.txt", "".join(lines))


def test_every_refusal_is_explained(golden: Golden) -> None:
    lines = []
    for reason, explanation in EXPLANATIONS.items():
        lines.append(f"{reason}: {explanation.meaning}\n")
        lines += [f"  hint: {explanation.hint}\n"] if explanation.hint else []
    golden("slurm/refusals.txt", "".join(lines))


def verdicts() -> Iterator[JobVerdict]:
    """An example of every ending."""
    for code in Ending:
        yield JobVerdict(
            code,
            "12",
            exit_code=7,
            nodes="n[1-2]",
            node="n2",
            ranks=(1,) if code is Ending.OUT_OF_MEMORY else (),
            used=311 << 20,
            limit=100 << 20,
            signal=15,
            path="/work/12.out",
            by=Account(1001, "ann"),
            state="REVOKED",
        )
    yield JobVerdict(Ending.NODE_FAILED, "14", exit_code=5, task="12_3", start=2)
    yield JobVerdict(Ending.OUT_OF_MEMORY, "12", exit_code=137)
    yield JobVerdict(Ending.OUT_OF_MEMORY, "12", exit_code=137, step="0", node="n2")


def test_every_ending_has_its_text(golden: Golden) -> None:
    lines = []
    for verdict in verdicts():
        outcome: Outcome = outcome_of([verdict])
        lines.append(f"{verdict.code}: {message(verdict)}\n")
        lines += [f"  hint: {outcome.hint}\n"] if outcome.hint else []
    golden("slurm/endings.txt", "".join(lines))


def test_every_reason_of_a_pending_job_has_its_text(golden: Golden) -> None:
    reasons = [*PENDING_TEXTS, "QOSMaxGRESPerUser", "AssocGrpNodeLimit", "Unheard"]
    lines = [f"{reason}: {pending_text(reason)}\n" for reason in reasons]
    golden("slurm/pending.txt", "".join(lines))


NOW = 1_800_000_000


def notices() -> Iterator[JobNotice]:
    """Every notice, of every phase and every end of a start."""
    for phase in JobPhase:
        verdict = JobVerdict(Ending.TIME_LIMIT, "12", exit_code=124)
        ended = phase is JobPhase.ENDED
        yield JobNotice(
            NoticeCode.STATUS,
            status=JobStatus(
                phase,
                name="12",
                state="SUSPENDED",
                reason="Priority",
                nodes="n[1-2]",
                start=2,
                verdict=verdict if ended else None,
            ),
        )
    for cut in Cut:
        yield JobNotice(NoticeCode.REQUEUED, job="12", cut=cut)
    for code in NoticeCode:
        if code not in (NoticeCode.STATUS, NoticeCode.REQUEUED):
            error = QueryFailure.NO_CONTACT.text
            yield JobNotice(code, job="12", error=error, path="/work/12.out", host="n1")


def test_every_notice_has_its_text(golden: Golden) -> None:
    lines = [f"{notice.code}: {notice_text(notice, NOW)}\n" for notice in notices()]
    golden("slurm/notices.txt", "".join(lines))
