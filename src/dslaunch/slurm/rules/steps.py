"""Rules for the start of a training: srun, its options, and those of launchers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from dslaunch.cluster.sbatch_options import named
from dslaunch.lint import Edit, Remark
from dslaunch.lint.rules import rule
from dslaunch.slurm import sources
from dslaunch.slurm.script import Script
from dslaunch.slurm.script_mistakes import ScriptMistake
from dslaunch.slurm.shell_parser import expansion_commands
from dslaunch.slurm.shell_words import Expansion, Word
from dslaunch.slurm.training_commands import LintedScript, SrunStep, TrainingCommand

TORCH_OPTIONS = named(
    "nnodes nproc_per_node rdzv_backend rdzv_endpoint rdzv_id rdzv_conf standalone max_restarts "
    "monitor_interval start_method role module no_python run_path log_dir redirects tee "
    "local_ranks_filter node_rank master_addr master_port local_addr logs_specs event_log_handler "
    "signals_to_handle virtual_local_rank numa_binding use_env shutdown_timeout "
    "duplicate_stdout_filters duplicate_stderr_filters"
)
CPUS = "cpus-per-task"
LIST_OPTIONS = ("-w", "--nodelist", "-x", "--exclude")


@rule(
    "no-srun",
    "error",
    "a multi-node launcher that runs on the first node only",
    source=sources.SBATCH,
)
def first_node_only(linted: LintedScript) -> Iterator[Remark]:
    """Find a launcher for several nodes that runs only on the first, in the batch script."""
    script = linted.script
    for launch in linted.launches:
        alone = launch.step is None and launch.command.words[0].place == launch.place
        nodes = launch.option("nnodes", "num_machines")
        one = nodes is not None and script.constant(nodes.value) == "1"
        several = script.several_nodes and not one and launch.option("standalone") is None
        certain = launch.command.depth == 0
        if alone and several and (launch.torch or (launch.program == "accelerate" and nodes)):
            yield ScriptMistake.NO_SRUN.found(
                script,
                launch.place,
                level="error" if certain else "warning",
                program=launch.program,
            )


@rule(
    "deepspeed-under-srun",
    "error",
    "`deepspeed` under srun connects to the nodes by SSH itself",
    source="DeepSpeed, launcher/runner.py, --no_ssh",
)
def deepspeed_by_ssh(linted: LintedScript) -> Iterator[Remark]:
    """Find deepspeed under srun that starts the job on all nodes by SSH."""
    script = linted.script
    for launch in linted.launches:
        if launch.program != "deepspeed" or launch.step is None or not script.several_nodes:
            continue
        if not {"no_ssh", "launcher"} & launch.options.keys():
            yield ScriptMistake.DEEPSPEED_UNDER_SRUN.found(script, launch.place)


@rule(
    "no-meeting-place",
    "error",
    "launchers of several nodes without a rendezvous address",
    source=sources.TORCHRUN,
)
def no_rendezvous(linted: LintedScript) -> Iterator[Remark]:
    """Find launchers on several nodes without a rendezvous."""
    script = linted.script
    for launch in linted.launches:
        if not launch.step or not script.several_nodes or not launch.torch:
            continue
        nodes = launch.option("nnodes", "nnode")
        if launch.option("standalone") or nodes is None or nodes.text == "1":
            mistake = ScriptMistake.NODES_TRAIN_ALONE
        elif launch.option("master_addr", "rdzv_endpoint") is None:
            mistake = ScriptMistake.NO_MEETING_PLACE
        else:
            continue
        yield mistake.found(script, launch.place)


@rule("no-node-rank", "error", "a static rendezvous without a node rank", source=sources.TORCHRUN)
def static_rank(linted: LintedScript) -> Iterator[Remark]:
    """Find a launcher on several nodes without a node rank."""
    for launch in linted.launches:
        if not launch.step or not linted.script.several_nodes:
            continue
        backend = launch.option("rdzv_backend")
        dealt = backend is not None and backend.text not in ("static", "")  # c10d and its like
        static = launch.torch and launch.option("master_addr") and not backend
        accelerate = launch.program == "accelerate" and launch.option("num_machines") and not dealt
        name = "machine_rank" if accelerate else "node_rank"
        if (static or accelerate) and not launch.option(name, "rdzv_endpoint"):
            yield ScriptMistake.NO_NODE_RANK.found(
                linted.script,
                launch.place,
                option=name,
                source=sources.ACCELERATE if accelerate else sources.TORCHRUN,
            )


@rule(
    "no-kill-on-bad-exit",
    "warning",
    "a step that continues after one of its tasks failed",
    source=sources.SRUN_KILL,
)
def kill_on_bad_exit(linted: LintedScript) -> Iterator[Remark]:
    """Find a step of several tasks that keeps running after one has failed."""
    script = linted.script
    variable = script.assigned.get("SLURM_KILL_BAD_EXIT")
    if variable and variable[-1].value.value != "0":
        return
    for step in _training(linted):
        option = step.options.get("kill-on-bad-exit")
        chosen = option is not None
        limit = step.options["wait"].text if "wait" in step.options else "0"
        if chosen or limit != "0" or not _several_tasks(linted, step):
            continue
        yield ScriptMistake.NO_KILL_ON_BAD_EXIT.found(
            script, step.place, edits=(Edit(step.end, step.end, " --kill-on-bad-exit=1"),)
        )


def _training(linted: LintedScript) -> Iterator[SrunStep]:
    """Yield each step that trains, once."""
    seen: set[int] = set()
    for launch in linted.launches:
        trains = launch.launcher or launch.program == "python"
        if trains and launch.step and launch.step.place not in seen:
            seen.add(launch.step.place)
            yield launch.step


def _several_tasks(linted: LintedScript, step: SrunStep) -> bool:
    own = [step.options[name].text for name in ("nodes", "ntasks") if name in step.options]
    if own and all(value == "1" for value in own):
        return False
    asked = (linted.script.option_text(name) for name in ("ntasks", "ntasks-per-node"))
    return linted.script.several_nodes or any(value not in ("", "1") for value in asked)


@rule(
    "srun-cpus",
    "info",
    "`--cpus-per-task`, which srun of SLURM 22.05 and later does not inherit",
    source=sources.SRUN_CPUS,
)
def cpus_of_steps(linted: LintedScript) -> Iterator[Remark]:
    """Find --cpus-per-task of the job, which srun of SLURM 22.05 and 23.02 ignores.

    Other releases read SLURM_CPUS_PER_TASK; only these two read SRUN_CPUS_PER_TASK instead.
    """
    script = linted.script
    if script.option_text(CPUS) in ("", "1") or "SRUN_CPUS_PER_TASK" in script.assigned:
        return
    bind = script.last("SLURM_CPU_BIND", len(script.text))
    if bind and bind.value.value.endswith("none"):
        return
    for step in _training(linted):
        unbound = "cpu-bind" in step.options and step.options["cpu-bind"].text.endswith("none")
        if not unbound and not {CPUS, "cpus-per-gpu"} & step.options.keys():
            yield ScriptMistake.SRUN_CPUS.found(
                script,
                step.place,
                edits=(Edit(step.end, step.end, ' --cpus-per-task="$SLURM_CPUS_PER_TASK"'),),
            )


@rule(
    "split-list",
    "error",
    "a list that the shell splits into several words",
    source="bash(1), arrays: ${NAME[@]}; word splitting",
)
def split_lists(linted: LintedScript) -> Iterator[Remark]:
    """Find a list in the value of an option that the shell splits: the second word becomes the
    program."""
    script = linted.script
    for step in linted.steps:
        words = [word for word in step.command.words if word.place >= step.place]
        for before, word in pairwise(words):
            for piece in word.pieces:
                option = word.value.partition("=")[0] if word.value.startswith("--") else ""
                name = option or (before.bare if before.bare in LIST_OPTIONS else "")
                if name and isinstance(piece, Expansion) and _splits(script, piece):
                    is_array = piece.name and "[" in piece.raw
                    mistake = ScriptMistake.SPLIT_ARRAY if is_array else ScriptMistake.SPLIT_LIST
                    yield mistake.found(
                        script, piece.place, expansion=piece.raw, option=name, array=piece.name
                    )


def _splits(script: Script, expansion: Expansion) -> bool:
    """Return whether the shell certainly splits an expansion, in a job with several nodes."""
    several = (script.number("nodes") or 0) > 1
    if expansion.commands is not None:
        return several and not expansion.quoted and _is_node_list(Word((expansion,), 0, 0))
    every = expansion.raw == f"${{{expansion.name}[@]}}"
    joined = expansion.raw == f"${{{expansion.name}[*]}}" and not expansion.quoted
    given = script.last(expansion.name, expansion.place)
    if given is None:
        return False
    if every or joined:
        elements = given.value.array or ()
        return len(elements) > 1 or any(_is_node_list(element) for element in elements)
    plain = expansion.raw in (f"${expansion.name}", f"${{{expansion.name}}}")
    return plain and not expansion.quoted and several and _is_node_list(given.value)


def _is_node_list(word: Word) -> bool:
    """Return whether a word is the whole output of `scontrol show hostnames`."""
    if len(word.pieces) != 1 or not isinstance(word.pieces[0], Expansion):
        return False
    commands = expansion_commands(word.pieces[0])
    shown = [command.arguments[:2] for command in commands]
    return shown in ([("show", "hostnames")], [("show", "hostname")])


@rule(
    "abbreviated-option",
    "warning",
    "an abbreviated option of torchrun",
    source="Python, argparse, allow_abbrev; PyTorch, torch.distributed.run, --nnodes",
)
def abbreviations(linted: LintedScript) -> Iterator[Remark]:
    """Find abbreviated options of torchrun, such as --nnode."""
    for launch in linted.launches:
        if not launch.torch:
            continue
        for option in launch.options.values():
            meant = [one for one in TORCH_OPTIONS if one.startswith(option.name)]
            if option.name in TORCH_OPTIONS or len(meant) != 1 or len(option.given) < 4:
                continue
            yield _abbreviation(
                linted, launch, given=option.given, place=option.place, meant=meant[0]
            )


def _abbreviation(
    linted: LintedScript, launch: TrainingCommand, *, given: str, place: int, meant: str
) -> Remark:
    dashes = "-" in given[2:]
    full = "--" + (meant.replace("_", "-") if dashes else meant)
    end = place + len(given)
    plain = linted.script.text[place:end] == given
    return ScriptMistake.ABBREVIATED_OPTION.found(
        linted.script,
        place,
        option=given,
        full=full,
        program=launch.program,
        edits=(Edit(place, end, full),) if plain else (),
    )


@rule(
    "old-launcher",
    "info",
    "`torch.distributed.launch`, which is deprecated",
    source="PyTorch, torch.distributed.launch: deprecated in favor of torchrun",
)
def old_launchers(linted: LintedScript) -> Iterator[Remark]:
    """Find torch.distributed.launch."""
    for launch in linted.launches:
        if launch.program == "torch.distributed.launch":
            yield ScriptMistake.OLD_LAUNCHER.found(linted.script, launch.place)
