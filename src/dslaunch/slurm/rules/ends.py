"""Rules for the end of a job: lost exit codes, signals without a handler, unlimited requeues."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dslaunch.lint import Edit, Remark
from dslaunch.lint.rules import rule
from dslaunch.slurm import sources
from dslaunch.slurm.script import Script
from dslaunch.slurm.script_mistakes import ScriptMistake
from dslaunch.slurm.shell_words import ShellCommand, Word
from dslaunch.slurm.training_commands import LintedScript, TrainingCommand

LOOKS = re.compile(r"\$\?|\$\{?PIPESTATUS|\bexit\b")
REQUEUE = re.compile(r"\bscontrol\s+requeue")
SIGNAL = re.compile(r"(?P<target>[RB]{0,2}:)?(?P<name>\w+)(@\d+)?")
SERVERS = (
    r"vllm serve|-m vllm\.entrypoints\.openai\.api_server|-m sglang\.launch_server|trl vllm-serve"
    r"|-m http\.server|--block|jupyter (?:lab|notebook)|tensorboard|redis-server|tritonserver"
    r"|mlflow server|text-generation-launcher|nvidia-smi (?:dmon|-l)|dcgmi dmon|sleep infinity"
    r"|tail -f|rocm-smi -l"
)
"""Commands that run until they are stopped; `--block` is an option of `ray start`."""
ENDS = ("kill", "pkill", "killall", "scancel", "timeout")
NUMBERS = {"10": "USR1", "12": "USR2", "15": "TERM", "2": "INT", "1": "HUP"}


@rule(
    "hidden-exit-code",
    "warning",
    "a pipe hides the exit code of the training",
    source="bash(1), pipelines and pipefail",
)
def hidden_exit_codes(linted: LintedScript) -> Iterator[Remark]:
    """Find `srun ... | tee log` without pipefail."""
    script = linted.script
    for launch in linted.launches:
        command = launch.command
        piped = command.operator in ("|", "|&")
        if not piped or script.setting("", "pipefail", command.place):
            continue
        if "PIPESTATUS" in script.text:
            continue
        begin = script.text.rfind("\n", 0, command.place) + 1
        alone = script.text[begin : command.place].strip() == "" and command.depth == 0
        reader = _reader(script, command)
        mistake = (
            ScriptMistake.HIDDEN_EXIT_CODE if reader else ScriptMistake.HIDDEN_EXIT_CODE_OF_LAST
        )
        yield mistake.found(
            script,
            command.place,
            command=reader,
            edits=(Edit(begin, begin, "set -o pipefail\n"),) if alone else (),
        )


def _reader(script: Script, command: ShellCommand) -> str:
    """Return the name of the last command of a pipeline; empty: it has none."""
    after = [other for other in script.commands if other.place > command.place]
    return next((other.name for other in after if other.operator not in ("|", "|&")), "")


@rule(
    "lost-exit-code",
    "warning",
    "a later command replaces the exit code of the training",
    source=sources.SBATCH,
)
def lost_exit_codes(linted: LintedScript) -> Iterator[Remark]:
    """Find commands after the training, whose exit code becomes that of the job."""
    script = linted.script
    if not linted.launches:
        return
    launch = linted.launches[-1]
    command = launch.command
    after = _after(script, command)
    looked = any(LOOKS.search(" ".join([c.name, *c.arguments])) for c in after)
    kept = any(LOOKS.search(one.value.value) for c in after for one in c.all_assignments())
    quiet = command.tested or command.operator == "&" or command.depth > 0
    if after and not (looked or kept or quiet or script.setting("e", "errexit", command.place)):
        last = after[-1]
        mistake = (
            ScriptMistake.LOST_EXIT_CODE if last.name else ScriptMistake.LOST_EXIT_CODE_TO_LAST
        )
        yield mistake.found(
            script, command.place, command=last.name, line=script.where(last.place)[0]
        )


def _after(script: Script, command: ShellCommand) -> list[ShellCommand]:
    """Return the commands after the pipeline of a command, without those in functions."""
    rest = [other for other in script.commands if other.place > command.place]
    while rest and rest[0].before in ("|", "|&"):
        del rest[0]
    return [other for other in rest if other.words]


@rule("no-wait", "error", "a step in the background without `wait`", source=sources.SBATCH)
@rule(
    "wait-forgets", "warning", "`wait` without the exit code of the step", source=sources.BASH_WAIT
)
def background(linted: LintedScript) -> Iterator[Remark]:
    """Find steps in the background without a wait, and waits that ignore the exit code."""
    script = linted.script
    for launch in linted.launches:
        command = launch.command
        if command.operator != "&" or command.shell > 0:
            continue
        foreground = any(one.command.operator != "&" for one in linted.launches)
        if command.depth > 0 and foreground:  # another branch runs in the foreground
            continue
        waits = [c for c in script.commands if c.name == "wait" and c.place > command.place]
        if not waits and not _lingers(script, command):
            yield ScriptMistake.NO_WAIT.found(script, command.place)
        elif waits and not any(wait.arguments for wait in waits) and not _asks(script, waits[-1]):
            last = waits[-1]
            single = sum(one.command.operator == "&" for one in linted.launches) == 1
            jobs = sum(c.operator == "&" for c in script.commands)
            yield ScriptMistake.WAIT_FORGETS.found(
                script,
                last.place,
                edits=(Edit(last.end, last.end, " $!"),) if single and jobs == 1 else (),
            )


@rule("endless-wait", "warning", "`wait` for a server that never exits", source=sources.BASH_WAIT)
def endless_waits(linted: LintedScript) -> Iterator[Remark]:
    """Find a `wait` that also waits for a server in the background, which never exits."""
    script = linted.script
    servers = [
        command
        for command in script.commands
        if command.operator == "&" and _serves(script.expanded(command.words), command)
    ]
    waits = [c for c in script.commands if c.name == "wait" and not c.arguments]
    if not servers or not waits:
        return
    first, wait = servers[0], waits[-1]
    between = [c for c in script.commands if first.place < c.place < wait.place]
    own = {server.place for server in servers}
    works = {one.command.place for one in linted.launches} - own
    if any(c.place in works for c in between) and not any(c.name in ENDS for c in between):
        yield ScriptMistake.ENDLESS_WAIT.found(
            script, wait.place, line=script.where(first.place)[0]
        )


def _serves(words: tuple[Word, ...], command: ShellCommand) -> bool:
    """Return whether a command runs until it is stopped."""
    text = " ".join(word.value for word in words)
    loops = command.keyword == "while" and command.name in ("true", ":")
    return loops or re.search(rf"(?<!\S)(?:{SERVERS})(?!\S)", text) is not None


def _lingers(script: Script, command: ShellCommand) -> bool:
    """Return whether the script keeps running by a loop or a sleep."""
    after = (other for other in script.commands if other.place > command.place)
    return any(other.keyword in ("while", "until") or other.name == "sleep" for other in after)


def _asks(script: Script, wait: ShellCommand) -> bool:
    return any("jobs" in c.arguments or c.name == "jobs" for c in script.commands) or wait.tested


@rule(
    "unbounded-requeue",
    "warning",
    "a job that requeues itself without limit",
    source=sources.REQUEUE,
)
def unbounded_restarts(linted: LintedScript) -> Iterator[Remark]:
    """Find a job that requeues or resubmits itself without a limit."""
    script = linted.script
    bounded = "SLURM_RESTART_COUNT" in script.text
    for command in script.every_command:
        text = " ".join([command.name, *command.arguments])
        requeues = REQUEUE.search(text)
        again = command.name == "sbatch" and re.search(r"\$\{?(0|BASH_SOURCE)", text)
        if not (requeues and not bounded) and not again:
            continue
        mistake = (
            ScriptMistake.UNBOUNDED_REQUEUE if requeues else ScriptMistake.UNBOUNDED_SUBMISSION
        )
        yield mistake.found(script, command.place)


@rule(
    "overwritten-log", "warning", "a requeued job overwrites its log", source=sources.SBATCH_OUTPUT
)
def overwritten_logs(linted: LintedScript) -> Iterator[Remark]:
    """Find a job that may be requeued, and whose log is overwritten then."""
    script = linted.script
    option = script.options.get("requeue")
    requeues = any(REQUEUE.search(" ".join([c.name, *c.arguments])) for c in script.every_command)
    mode = script.option_text("open-mode")
    if (
        not (option or requeues)
        or mode == "append"
        or re.search(r"%\d*r", script.option_text("output"))
    ):
        return
    first = script.lines[0].place if script.lines else 0
    place = option.place if option else first
    end = next((line.end for line in script.lines if line.place <= place < line.end), None)
    edits = (Edit(end, end, "\n#SBATCH --open-mode=append"),) if end and not mode else ()
    yield ScriptMistake.OVERWRITTEN_LOG.found(script, place, edits=edits)


@rule(
    "signal-ends-launcher",
    "warning",
    "a signal that ends the launcher instead of saving a checkpoint",
    source="PyTorch, torch.distributed.run, --signals-to-handle; pytorch issue 154849",
)
@rule(
    "signal-without-trap",
    "error",
    "`--signal` without a handler in the script",
    source="SLURM, sbatch(1), --signal",
)
@rule(
    "trap-comes-late",
    "error",
    "a trap that runs only after the training has ended",
    source="bash(1), signals: a trap runs when the command in the foreground has ended",
)
def signals(linted: LintedScript) -> Iterator[Remark]:
    """Find signals of `--signal` that the receiver does not handle."""
    script = linted.script
    option = script.options.get("signal")
    match = SIGNAL.fullmatch(option.text) if option else None
    if option is None or match is None:
        return
    name = NUMBERS.get(match["name"], match["name"].removeprefix("SIG"))
    if "B" in (match["target"] or ""):
        yield from _batch_signal(linted, option.place, name)
        return
    for launch in linted.launches:
        caught = launch.option("signals_to_handle")
        if launch.launcher and name not in ("TERM", "INT") and not (caught and name in caught.text):
            yield _ends_launcher(linted, launch, option.place, name)
            return


def _ends_launcher(linted: LintedScript, launch: TrainingCommand, place: int, name: str) -> Remark:
    mistake = ScriptMistake.SIGNAL_ENDS_LAUNCHER
    if launch.torch:
        mistake = ScriptMistake.SIGNAL_ENDS_TORCHRUN
    return mistake.found(linted.script, place, signal=name, program=launch.program)


def _batch_signal(linted: LintedScript, place: int, name: str) -> Iterator[Remark]:
    script = linted.script
    numbers = [number for number, known in NUMBERS.items() if known == name]
    names = {name, f"SIG{name}", *numbers}
    traps = [c for c in script.commands if c.name == "trap" and names & set(c.arguments)]
    if not traps:
        yield ScriptMistake.SIGNAL_WITHOUT_TRAP.found(script, place, signal=name)
    for launch in linted.launches if traps else ():
        if launch.command.operator != "&" and launch.command.shell == 0:
            yield ScriptMistake.TRAP_COMES_LATE.found(script, launch.command.place, signal=name)
