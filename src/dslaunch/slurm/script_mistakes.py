"""What the rules find in an sbatch script: codes, with their texts and what to write instead. Pure.

A rule that finds several things has a code for each: its name, a slash and a word.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from dslaunch.texts import Value, filled

if TYPE_CHECKING:
    from dslaunch.lint import Edit, Level, Remark
    from dslaunch.slurm.script import Script


class ScriptMistake(StrEnum):
    """A mistake in an sbatch script.

    A member is `NAME = "code", level, "text with {parameters}", "what to write instead"`.
    """

    level: Level
    text: str
    fix: str

    def __new__(cls, value: str, level: Level, text: str, fix: str) -> ScriptMistake:
        """Make a member whose value is the code alone."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.level = level
        member.text = text
        member.fix = fix
        return member

    @property
    def rule(self) -> str:
        """Return the name of its rule."""
        return self.value.partition("/")[0]

    def found(
        self,
        script: Script,
        place: int,
        *,
        level: Level | None = None,
        source: str | None = None,
        edits: tuple[Edit, ...] = (),
        **values: Value,
    ) -> Remark:
        """Return the finding at a place of a script.

        `level`: if not the usual one; `source`: if not that of the rule; `values`: the parameters.
        """
        return script.remark(
            self.rule,
            level or self.level,
            place,
            filled(self.text, values),
            fix=filled(self.fix, values),
            source=source,
            edits=edits,
        )

    # directives
    NO_SHEBANG = (
        "no-shebang",
        "error",
        "the first line is not `#!` with an interpreter; sbatch refuses the script",
        "insert #!/bin/bash as the first line",
    )
    DOS_LINE_BREAKS = (
        "dos-line-breaks",
        "error",
        "{found} with DOS line endings (\\r\\n); sbatch refuses the script",
        "use Unix line endings (\\n)",
    )
    LATE_DIRECTIVE = (
        "late-directive",
        "error",
        "silently ignored: SLURM reads directives only before the first command",
        "move it up to the other #SBATCH lines",
    )
    NOT_A_DIRECTIVE = (
        "not-a-directive",
        "warning",
        "{word} starts a comment: SLURM parses only lines that start with #SBATCH",
        "write #SBATCH followed by a space",
    )
    TEMPLATE = (
        "template",
        "warning",
        "{placeholder!r} is a template placeholder ({directives}); sbatch does not replace it",
        "fill in the template before you submit the script",
    )
    CUT_DIRECTIVE = (
        "cut-directive",
        "warning",
        "# starts a comment even inside a word: the rest is silently ignored",
        "put a backslash before #, or quote the value",
    )
    STRAY_WORD = (
        "stray-word",
        "error",
        "{word!r} is not an option; sbatch refuses the script",
        "write options as --name=value, and start comments with #",
    )
    STRAY_EQUALS_SIGN = (
        "stray-word/equals-sign",
        "error",
        "the value of {option} is {value!r}: after a space or a short option, = is part of the "
        "value",
        "write --name=value, or -N value",
    )
    UNKNOWN_OPTION = (
        "unknown-option",
        "error",
        "sbatch has no option --{name}",
        "did you mean {options}?",
    )
    AMBIGUOUS_OPTION = (
        "unknown-option/ambiguous",
        "error",
        "sbatch has no option --{name} (ambiguous abbreviation)",
        "did you mean {options}?",
    )
    PLUGIN_OPTION = (
        "unknown-option/of-a-plugin",
        "info",
        "sbatch has no option --{name}, and refuses it unless a plugin adds it",
        "test it on the cluster: sbatch --test-only; sbatch --help | grep -e --{name}",
    )
    VARIABLE_IN_DIRECTIVE = (
        "variable-in-directive",
        "error",
        "{variable} is not expanded: no shell reads #SBATCH lines",
        "write the value, use SLURM's patterns %j, %x or %u, or pass --{option} on sbatch's "
        "command line",
    )
    OPTION_NOT_A_NUMBER = (
        "not-a-number/option",
        "error",
        "{value!r} is not a number; sbatch refuses the script",
        "write a number",
    )
    OPTION_NOT_A_TIME = (
        "not-a-number/time",
        "error",
        "{value!r} is not a time; sbatch refuses the script",
        "write D-HH:MM:SS or minutes",
    )
    MISSING_OUTPUT_DIRECTORY = (
        "missing-output-directory",
        "info",
        "the directory {directory} does not exist here; if it is missing, the job fails at once "
        "without a log (SLURM before 23.02)",
        "run mkdir -p {directory} before sbatch; in the script it is too late",
    )
    VARYING_OUTPUT_DIRECTORY = (
        "missing-output-directory/varying",
        "info",
        "the directory {directory} differs from job to job; if it is missing, the job fails at "
        "once without a log (SLURM before 23.02)",
        "use %j or %A_%a in the file name, not in the directory",
    )
    EXPORT_LIST = (
        "export-list",
        "warning",
        "without ALL the job gets only the listed variables",
        "export {variable} in the script",
    )
    EXPORT_LIST_CUT = (
        "export-list/cut-value",
        "error",
        "{value!r} is parsed as a variable name: commas separate variables",
        "export {variable} in the script",
    )
    GPUS_PER_TASK = (
        "gpus-per-task",
        "warning",
        "each task sees only its own GPUs, which breaks peer-to-peer copies between them",
        "request --gres=gpu:N or --gpus-per-node=N, and select the GPU by LOCAL_RANK",
    )
    SHARED_OUTPUT = (
        "shared-output",
        "warning",
        "all tasks of the array write this file and overwrite each other's output",
        "use %A_%a in its name",
    )

    # numbers
    NODES_MISMATCH = (
        "nodes-mismatch",
        "error",
        "{option} is {value}, but line {line} requests {nodes}",
        "use $SLURM_NNODES",
    )
    GPUS_MISMATCH = (
        "gpus-mismatch",
        "error",
        "{option} is {value}, but line {line} requests {gpus} per node",
        "use $SLURM_GPUS_ON_NODE",
    )
    GPUS_MISMATCH_IN_TOTAL = (
        "gpus-mismatch/total",
        "error",
        "{option} is {value}, but line {line} requests {gpus} per node (--gpus is the total of the "
        "job)",
        "use $SLURM_GPUS_ON_NODE",
    )
    NO_GPU_REQUEST = (
        "no-gpu-request",
        "warning",
        "{option} is {value}, but no #SBATCH line requests GPUs; on sites with GPUs as GRES, the "
        "job gets none",
        "#SBATCH --gpus-per-node=N",
    )
    TWO_GPU_REQUESTS = (
        "two-gpu-requests",
        "error",
        "--gres requests {gres} GPUs per node, --gpus-per-node {gpus_per_node}; srun refuses to "
        "start",
        "keep one of them",
    )
    LAUNCHERS_PER_NODE = (
        "launcher-per-task",
        "error",
        "srun starts {count} {program} launchers per node, and each of them starts all ranks of a "
        "node",
        "start one launcher per node: srun{options}",
    )
    LAUNCHERS_ON_NODES = (
        "launcher-per-task/on-nodes",
        "error",
        "srun starts {count} {program} launchers on {nodes}, and each of them starts all ranks of "
        "a node",
        "start one launcher per node: srun{options}",
    )
    UNSET_VARIABLE = (
        "unset-variable",
        "warning",
        "{variable} is not set: SLURM sets it only for jobs with --{option}",
        "#SBATCH --{option}=...",
    )
    UNSET_GPUS_PER_NODE = (
        "unset-variable/gpus-per-node",
        "warning",
        "{variable} is not set: SLURM sets it only for jobs with --{option}",
        "use SLURM_GPUS_ON_NODE, which is always set",
    )
    TYPED_GPUS_PER_NODE = (
        "not-a-number/gpus-per-node",
        "error",
        "{variable} is {value!r} as in the directive, not a number",
        "use SLURM_GPUS_ON_NODE, which is a number",
    )
    NUMBER_PER_NODE = (
        "not-a-number/per-node",
        "warning",
        "{variable} is a list such as 8(x2) in a job with several nodes",
        "use SLURM_NTASKS_PER_NODE or SLURM_CPUS_PER_TASK if the options are set",
    )

    # the rendezvous
    LOCALHOST_FALLBACK = (
        "localhost-fallback",
        "error",
        "if this fails, {variable} is silently set to localhost: every node waits for itself, and "
        "the job hangs",
        "end the script instead, with set -e or `|| exit 1`",
    )
    LOCAL_MASTER = (
        "local-master",
        "error",
        "{name} is {value}: every node waits for itself",
        "use {first_node}",
    )
    OWN_NAME_AS_MASTER = (
        "local-master/own-name",
        "error",
        "{expansion} is expanded on each node: every node waits for itself",
        "set and export it in the batch script, which runs on the first node",
    )
    NODE_LIST_AS_NAME = (
        "node-list-as-name",
        "error",
        "SLURM folds node lists, such as node[01-04]: no part of that is the name of a node",
        "use {first_node}",
    )
    LAUNCH_NODE_ADDRESS = (
        "launch-node-address",
        "warning",
        "this is the host where srun was called, which may be a login node",
        "use {first_node}",
    )
    HOSTNAME_ALL_ADDRESSES = (
        "hostname-address/all",
        "warning",
        "hostname {option} may print all addresses of the machine",
        "use the name of the node, which other nodes can resolve",
    )
    HOSTNAME_ADDRESS = (
        "hostname-address",
        "warning",
        "hostname {option} may print 127.0.1.1 on Debian",
        "use the name of the node, which other nodes can resolve",
    )
    BROKEN_PIPE = (
        "broken-pipe",
        "warning",
        "head exits after one line; with this many nodes scontrol may still be writing, and with "
        "-e and pipefail the broken pipe ends the job",
        "use sed -n 1p, which reads to the end",
    )
    FIXED_PORT = (
        "fixed-port",
        "warning",
        "port {port} is in use if another job of this script shares the first node",
        "derive it from the job number: {port_of_job}",
    )
    PORT_PER_NODE = (
        "port-per-node",
        "error",
        "{expansion} is expanded on each node: every node uses another port, and the rendezvous "
        "fails",
        "set and export it in the batch script",
    )
    FIXED_RENDEZVOUS_ID = (
        "fixed-rendezvous-id",
        "info",
        "every job of this script has the rendezvous ID {value}: two jobs on one node and port "
        "join the same group",
        "use the job number: $SLURM_JOB_ID",
    )
    UNEXPANDED_RENDEZVOUS_ID = (
        "fixed-rendezvous-id/unexpanded",
        "info",
        "in single quotes \\{value} is not expanded: the rendezvous ID is the same text in every "
        "job",
        "write $SLURM_JOB_ID without the backslash",
    )
    RENDEZVOUS_ALIAS = (
        "rendezvous-alias",
        "warning",
        "no node recognizes itself by this name, so no node hosts the rendezvous and all time out",
        'add --rdzv_conf "is_host=$([ $SLURM_NODEID = 0 ] && echo 1 || echo 0)", expanded on the '
        "node",
    )

    # ranks
    EARLY_RANK = (
        "early-rank",
        "warning",
        "{expansion} is expanded by the shell of the batch script, where it is 0: every node gets "
        "0",
        "expand it on the node: {written}",
    )
    EARLY_RANK_IGNORED = (
        "early-rank/ignored",
        "info",
        "{expansion} is expanded by the shell of the batch script, where it is 0: every node gets "
        "0, which c10d ignores",
        "expand it on the node: {written}",
    )
    EARLY_RANK_HANGS = (
        "early-rank/hangs",
        "error",
        "{expansion} is expanded by the shell of the batch script, where it is 0: every node gets "
        "0, and the training hangs",
        "expand it on the node: {written}",
    )
    EARLY_RANK_EXPORTED = (
        "early-rank/exported",
        "error",
        "{variable} is 0 on every node: {expansion} is expanded in the batch script, where it is 0",
        "set it on the node: srun bash -c '{variable}={expansion} ...'",
    )
    UNEXPANDED_RANK = (
        "unexpanded-rank",
        "error",
        "${variable} is not expanded: srun starts the program without a shell",
        "start a shell on the node: srun bash -c '...'",
    )
    NOT_EXPORTED = (
        "not-exported",
        "error",
        "{variable} is not set on the nodes: line {line} does not export it",
        "export {variable}",
    )
    CUDA_VISIBLE_DEVICES = (
        "cuda-visible-devices",
        "warning",
        "SLURM sets CUDA_VISIBLE_DEVICES to the GPUs of the job; another value selects GPUs of "
        "other jobs, and one GPU per rank breaks peer-to-peer copies",
        "remove it, and select the GPU by LOCAL_RANK or SLURM_LOCALID in the program",
    )
    IGNORED_NODE_RANK = (
        "ignored-node-rank",
        "info",
        "the c10d rendezvous assigns ranks itself: --node_rank is silently ignored, and rank 0 may "
        "be on any node",
        "remove it, or use --master_addr and --master_port without --rdzv_backend",
    )

    # steps
    NO_SRUN = (
        "no-srun",
        "error",
        "the batch script runs only on the first node, and so does {program}: it waits for the "
        "other nodes, or trains without them",
        "start it with srun, once per node",
    )
    DEEPSPEED_UNDER_SRUN = (
        "deepspeed-under-srun",
        "error",
        "srun starts deepspeed on every node, and each deepspeed starts the whole job: by SSH with "
        "a hostfile, on its own node without one",
        "use deepspeed --no_ssh --node_rank ... --master_addr ... under srun, or deepspeed "
        "--hostfile without srun",
    )
    NODES_TRAIN_ALONE = (
        "no-meeting-place/alone",
        "error",
        "every node trains alone, without the others",
        "add --nnodes $SLURM_NNODES and --master_addr or --rdzv_endpoint",
    )
    NO_MEETING_PLACE = (
        "no-meeting-place",
        "error",
        "torchrun does not read MASTER_ADDR: without --master_addr or --rdzv_endpoint every node "
        "waits for 127.0.0.1",
        'add --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT"',
    )
    NO_NODE_RANK = (
        "no-node-rank",
        "error",
        "--{option} is missing: every node has rank 0",
        "add it on the node: srun bash -c '... --{option} $SLURM_NODEID ...'",
    )
    NO_KILL_ON_BAD_EXIT = (
        "no-kill-on-bad-exit",
        "warning",
        "when a task fails, srun keeps the others running until they time out",
        "use srun --kill-on-bad-exit=1",
    )
    SRUN_CPUS = (
        "srun-cpus",
        "info",
        "srun of SLURM 22.05 and 23.02 ignores --cpus-per-task of the job: each task may get only "
        "1 CPU",
        'use srun --cpus-per-task="$SLURM_CPUS_PER_TASK"',
    )
    SPLIT_LIST = (
        "split-list",
        "error",
        "the shell splits {expansion}: {option} gets the first element, and srun runs the second "
        "as the program",
        '{option}="$(scontrol show hostnames | paste -sd,)"',
    )
    SPLIT_ARRAY = (
        "split-list/array",
        "error",
        "the shell splits {expansion}: {option} gets the first element, and srun runs the second "
        "as the program",
        '{option}=$(IFS=,; echo "${{{array}[*]}}")',
    )
    ABBREVIATED_OPTION = (
        "abbreviated-option",
        "warning",
        "{option} abbreviates {full} of {program}; it fails once a release adds another option "
        "with this prefix",
        "write {full}",
    )
    OLD_LAUNCHER = (
        "old-launcher",
        "info",
        "torch.distributed.launch is deprecated",
        "use torchrun; read LOCAL_RANK instead of --local_rank in the program",
    )

    # the end of a job
    HIDDEN_EXIT_CODE = (
        "hidden-exit-code",
        "warning",
        "the exit code is that of {command}: a failed training looks successful",
        "set -o pipefail",
    )
    HIDDEN_EXIT_CODE_OF_LAST = (
        "hidden-exit-code/unnamed",
        "warning",
        "the exit code is that of the last command: a failed training looks successful",
        "set -o pipefail",
    )
    LOST_EXIT_CODE = (
        "lost-exit-code",
        "warning",
        "the exit code of the job is that of {command} in line {line}: a failed training is "
        "COMPLETED in SLURM",
        "use set -e at the beginning, or code=$? after the training and exit $code at the end",
    )
    LOST_EXIT_CODE_TO_LAST = (
        "lost-exit-code/unnamed",
        "warning",
        "the exit code of the job is that of the last command in line {line}: a failed training is "
        "COMPLETED in SLURM",
        "use set -e at the beginning, or code=$? after the training and exit $code at the end",
    )
    NO_WAIT = (
        "no-wait",
        "error",
        "the script ends while this runs in the background, and SLURM kills it",
        "add wait $! at the end",
    )
    WAIT_FORGETS = (
        "wait-forgets",
        "warning",
        "wait without an argument always returns 0: a failed training is COMPLETED in SLURM",
        "use wait $!",
    )
    ENDLESS_WAIT = (
        "endless-wait",
        "warning",
        "wait also waits for the server in line {line}, which never exits: the job keeps its nodes "
        "until the time limit",
        "set train=$! after the training, use wait $train, then stop the server",
    )
    UNBOUNDED_REQUEUE = (
        "unbounded-requeue",
        "warning",
        "no limit on the number of restarts: a job that cannot succeed never ends",
        '[ "${{SLURM_RESTART_COUNT:-0}}" -lt 3 ] && scontrol requeue "$SLURM_JOB_ID"',
    )
    UNBOUNDED_SUBMISSION = (
        "unbounded-requeue/submission",
        "warning",
        "no limit on the number of restarts: a job that cannot succeed never ends",
        "count the submissions in an argument, or use --requeue and SLURM_RESTART_COUNT",
    )
    OVERWRITTEN_LOG = (
        "overwritten-log",
        "warning",
        "when the job is requeued, its output file is truncated: the log of the first start is "
        "lost",
        "#SBATCH --open-mode=append",
    )
    SIGNAL_ENDS_LAUNCHER = (
        "signal-ends-launcher",
        "warning",
        "SIG{signal} is sent to {program}, which does not forward it but is killed by it: no rank "
        "saves a checkpoint",
        "use --signal=B:..., a trap, and forward the signal to the ranks",
    )
    SIGNAL_ENDS_TORCHRUN = (
        "signal-ends-launcher/torchrun",
        "warning",
        "SIG{signal} is sent to {program}, which does not forward it but is killed by it: no rank "
        "saves a checkpoint",
        "use torchrun --signals-to-handle=SIGTERM,SIGINT,SIG{signal}",
    )
    SIGNAL_WITHOUT_TRAP = (
        "signal-without-trap",
        "error",
        "B: sends SIG{signal} only to the batch script, which has no trap for it and is killed: "
        "the job fails early, and SLURM kills its steps",
        "add trap '...' {signal}, or use --signal={signal}@... without B: for the steps",
    )
    TRAP_COMES_LATE = (
        "trap-comes-late",
        "error",
        "the trap for {signal} runs only after this command ends: bash waits for the foreground "
        "command",
        "use srun ... & and then wait $!",
    )

    # the script as a whole
    SYNTAX_ERROR = (
        "syntax-error",
        "error",
        "bash: {message}",
        "close the quote, bracket, if, loop or here-document at or above this line; check with "
        "bash -n SCRIPT",
    )
    SYNTAX_ERROR_IN_TEMPLATE = (
        "syntax-error/template",
        "error",
        "bash: {message}",
        "replace {placeholder}",
    )
    NOT_READ_WHOLE = (
        "not-read-whole",
        "info",
        "its variables and functions expand to too much text: the rest was not checked",
        "nest fewer variables in the launch commands",
    )
