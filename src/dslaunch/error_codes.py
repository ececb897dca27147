"""What can be wrong before a run: codes with parameters, and their texts and hints. Pure.

docs/reference/codes.md lists the codes.
"""

from __future__ import annotations

from enum import StrEnum

from dslaunch.texts import parameter_names


class ErrorCode(StrEnum):
    """A kind of error, with the text and the hint for users.

    The first ten have no text: they are for errors without their own code, one for each class
    of errors. Others without a text are raised with one.
    """

    text: str
    """`{name!r}` is quoted and cut to a length that is readable in a message."""
    hint: str
    """What to do; empty: nothing that helps in every case."""

    def __new__(cls, value: str, text: str = "", hint: str = "") -> ErrorCode:
        """Make a member whose value is the code alone."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.text = text
        member.hint = hint
        return member

    @property
    def parameters(self) -> tuple[str, ...]:
        """Return the names of the parameters, in the order of the text and the hint."""
        return parameter_names(self.text, self.hint)

    FAILED = "failed"
    USAGE = "usage"
    CONFIG = "config"
    SELECTION = "selection"
    PLAN = "plan"
    PREFLIGHT = "preflight"
    NODES = "nodes"
    TOOL_MISSING = "tool-missing"
    PLUGIN = "plugin"
    INTERRUPTED = "interrupted"

    # the command line and calls from Python
    INVALID_OPTION = (
        "invalid-option",
        "{option}: expected {expected}, got {value!r}",
        "write for example {example}",
    )
    UNKNOWN_CHOICE = (
        "unknown-choice",
        "{option}: unknown value {value!r}",
        "expected one of {choices}",
    )
    UNKNOWN_NAME = ("unknown-name", "unknown {noun} `{name}`", "{meant}{available}")
    UNKNOWN_RULE = ("unknown-rule", "--ignore: unknown rule `{name}`", "{meant}{available}")
    NO_SCRIPT = (
        "no-script",
        "no script given, and the cluster file has no `job:` section",
        "add SCRIPT to the command line, or a `job:` section to the cluster file",
    )
    OPTION_WITHOUT_SCRIPT = (
        "option-without-script",
        "{option} needs a SCRIPT on the command line",
        "add SCRIPT, or leave {option} out to run the `job:` of the cluster file",
    )
    NO_ARGUMENT_LIST = (
        "no-argument-list",
        "args is a string, expected a list of strings",
        "write args={split}",
    )
    NOT_A_STRING = ("not-a-string", "{where}: {value} is not a string", "write {written}")
    FILE_AS_MODULE = (
        "file-as-module",
        "--module {program}: a module name does not end with .py",
        "use --module {module}, or leave --module out to run the file",
    )
    OPTION_AS_SCRIPT = (
        "option-as-script",
        "{program} is an option, expected the script",
        "put options of dslaunch before the script; write ./{program} for a file of that name",
    )
    SECRET_ON_COMMAND_LINE = (
        "secret-on-command-line",
        "--env {names}: already defined in `secrets` of the cluster file",
        "leave them out here: values of secrets are read from the sources in `secrets`, such as "
        "your environment",
    )
    NOT_A_METRICS_FILE = (
        "not-a-metrics-file",
        "--metrics {path}: exists, and is not a file of metrics that dslaunch wrote for you",
        "name another file, or remove that one",
    )
    NO_SSH_HOSTS = (
        "no-ssh-hosts",
        "the SSH config has no `Host` entry that looks like a node",
        "name the nodes: --hosts node[01-04]",
    )
    NOT_IN_A_JOB = (
        "not-in-a-job",
        "{variable} is not set",
        "run the command inside salloc or a SLURM job",
    )
    RUN_NOT_RECORDED = (
        "run-not-recorded",
        "run {name!r} not found: not in this machine's records, and no cluster file given",
        "list all runs with `dslaunch ps --all CLUSTER.yaml`",
    )
    NODES_NOT_IN_RUN = (
        "nodes-not-in-run",
        "{hosts}: not a node of run {run}",
        "its nodes: {existing}",
    )
    RANKS_NOT_IN_RUN = (
        "ranks-not-in-run",
        "no such rank in run {run}, which has {count}: {ranks}",
        "its ranks: {existing}",
    )
    WOULD_FAIL = (
        "would-fail",
        "not started: its rehearsal shows that the job would fail",
        "correct what was found, or start it without --rehearse",
    )
    NOT_REHEARSED = (
        "not-rehearsed",
        "not started: the job could not be rehearsed",
        "the page says why; or start it without --rehearse",
    )
    NO_LINE_TIMES = (
        "no-line-times",
        "run {run} is a SLURM job: the lines of its output have no times",
        "select lines with --tail or --grep",
    )
    STEPS_REFUSED = (
        "steps-refused",
        "job {job} cannot be reached by steps: {why}",
        "run dslaunch where `srun --overlap --jobid={job} hostname` works, such as a login node",
    )
    JOB_NOT_RUNNING = (
        "job-not-running",
        "run {run}: job {job} is not running",
        "show its state: dslaunch status {run}",
    )
    SEVERAL_TASKS = (
        "several-tasks",
        "run {run} is a job array with {count} running tasks",
        "name one of them, for example {task}",
    )
    TOO_MANY_SLOTS = ("too-many-slots", "{slots} slots per node, expected at most {limit}")
    INVALID_HOSTS = ("invalid-hosts", "{source}: {error}")
    REPEATED_HOST = ("repeated-host", "{source}: {name!r} is listed twice", "list each host once")
    OFFLOAD_NEEDS_STAGE = (
        "offload-needs-stage",
        "--offload {offload} needs ZeRO stage {least} or higher, got --stage {stage}",
        "use --stage {least}, or --offload {fitting}",
    )

    # include, exclude, counts and labels
    INCLUDE_AND_EXCLUDE = (
        "include-and-exclude",
        "--include and --exclude cannot be combined",
        "list the nodes to use in --include, or the nodes to leave out in --exclude",
    )
    EMPTY_SELECTION = (
        "empty-selection",
        "the selection is empty: no slots are left",
        "{available}",
    )
    INVALID_FILTER = (
        "invalid-filter",
        "{option} {text!r}: {error}",
        "write for example {option} node[01-03]:0-3@node07:0,2",
    )
    UNKNOWN_NODE = ("unknown-node", "{option}: unknown node {hosts}", "{meant}{available}")
    NODE_AND_SLOTS = (
        "node-and-slots",
        "{option}: {host} is listed both with and without slots",
        "keep one of the two",
    )
    UNKNOWN_SLOT = (
        "unknown-slot",
        "{option}: {host} has no slot {missing}",
        "slots of {host}: {slots}",
    )
    UNKNOWN_LABEL = (
        "unknown-label",
        "--label {label}: no node has this label",
        "{meant}{available}",
    )
    COUNT_BELOW_ONE = ("count-below-one", "{option} {count}: expected 1 or more")
    TOO_FEW_SELECTED = (
        "too-few-selected",
        "--nodes {wanted}: only {count} selected: {hosts}",
        "use --nodes {count} or less, or select more nodes; spare nodes are used only if --include "
        "lists them",
    )
    TOO_FEW_SLOTS = (
        "too-few-slots",
        "--slots {wanted}: fewer slots on {hosts}",
        "use --slots {least} or less, or leave these nodes out with --exclude",
    )
    MIN_NODES_ABOVE_SELECTED = (
        "min-nodes-above-selected",
        "--min-nodes {wanted}: only {count} selected: {hosts}",
        "use --min-nodes {count} or less, or select more nodes",
    )

    # what cluster, job and nodes have
    NO_ADDRESS = (
        "no-address",
        "{host}, the first node, has no address that other nodes can use; it has {interfaces}",
        "correct `network.interface`, or set `address:` for this node in the cluster file",
    )
    MASTER_UNREACHABLE = (
        "master-unreachable",
        "no address of {host}, the first node, can be reached by all other nodes{lines}",
        "allow connections between the nodes on all ports, or select another network with "
        "`address:` of {host} or `network.interface`",
    )
    PORT_TAKEN = (
        "port-taken",
        "{host}: cannot use port {port} as the master port: {error}",
        "set `network: {{master_port: auto}}` to use any free port, or stop the process that uses "
        "this one: `ss -ltnp sport = :{port}` shows it",
    )
    WRONG_INTERFACE = (
        "wrong-interface",
        "network.interface is {interface!r}, but nodes do not use it{lines}",
        "correct `network.interface`, or set `address:` of {host} to its address on that interface",
    )
    CHECKPOINTS_NOT_WRITABLE = (
        "checkpoints-not-writable",
        "the checkpoint directory is not writable{lines}",
        "set `storage.checkpoints` to a directory that the user of the job can write",
    )
    STORAGE_DIFFERS = (
        "storage-differs",
        "storage.shared is {said}, but {path} is {found}",
        "mount the same file system on every node, or set `storage: {{shared: auto}}`",
    )
    WORKDIR_NOT_WRITABLE = (
        "workdir-not-writable",
        "the working directory is not writable{lines}",
        "set `storage.workdir` or --workdir to a directory that the user of the job can write",
    )
    NO_INTERPRETER = (
        "no-interpreter",
        "Python of the job not found{lines}",
        "install it on these nodes, or set `python:` or `activate:` for them",
    )
    TOO_FEW_DEVICES = (
        "too-few-devices",
        "slots in use have no accelerator{lines}",
        "correct `slots:` in the cluster file, or exclude the node: -e NODE",
    )
    SCRIPT_MISSING = (
        "script-missing",
        "script {script!r} not found on this machine nor on {hosts}{similar}",
        "check its name; a relative path starts at the working directory",
    )
    SCRIPT_DIFFERS = (
        "script-differs",
        "script {script!r} differs between nodes: {hosts}",
        "run dslaunch from a machine that has the right version: it copies it to the nodes",
    )
    CODE_DIFFERS = "code-differs"
    CODE_TOO_LARGE = "code-too-large"
    CONFIG_ERRORS = "config-errors"
    LAUNCHER_ARGUMENT = "launcher-argument"
    UNEVEN_SLOTS = (
        "uneven-slots",
        "launcher `{launcher}` needs the same number of slots on every node, but {host} has "
        "{slots} and {other} has {other_slots}",
        "use --slots {least}, or one of these launchers: {launchers}",
    )
    TOO_FEW_NODES = (
        "too-few-nodes",
        "only {count} of the requested nodes available, expected at least {wanted}",
        "reduce --min-nodes, select more nodes, or add spare nodes (`spare: true`) to the cluster "
        "file",
    )
    WORLD_INFO_TOO_LONG = (
        "world-info-too-long",
        "launcher `deepspeed`: --world_info for {nodes} nodes has {size} bytes, and Linux limits "
        "an argument to {limit} bytes",
        "use --launcher torchrun, or `dslaunch render torchrun`",
    )
    PDSH_COMMAND_TOO_LONG = (
        "pdsh-command-too-long",
        "launcher `deepspeed`: the command that pdsh passes to each of {nodes} nodes has {size} "
        "bytes, and Linux limits it to {limit} bytes",
        "use --launcher torchrun, or `dslaunch render torchrun`",
    )
    ARGUMENT_TOO_LONG = (
        "argument-too-long",
        "argument {number} of the job has {size} bytes, and Linux limits an argument to {limit} "
        "bytes",
        "write it to a file, and pass the file's name",
    )
    VARIABLE_TOO_LONG = (
        "variable-too-long",
        "variable {name} with its value has {size} bytes, and Linux limits it to {limit} bytes",
        "write the value to a file, and pass the file's name",
    )
    INCLUDE_TOO_LONG = (
        "include-too-long",
        "--include for {nodes} nodes has {size} bytes, and Linux limits an argument to {limit} "
        "bytes",
        "write the selected nodes to a hostfile with `dslaunch render hostfile`, and omit "
        "--include",
    )
    UNUSABLE_SECRET = "unusable-secret"
    TRANSPORT_LESS_STRICT = "transport-less-strict"
    NO_CHECKPOINT = (
        "no-checkpoint",
        "no DeepSpeed checkpoint found below {path}",
        "name the directory that the training saves to; on nodes a relative path starts at "
        "`storage.workdir` of the cluster file",
    )
    UNKNOWN_CHECKPOINT = (
        "unknown-checkpoint",
        "no checkpoint {name!r}",
        "available: {checkpoints}",
    )
    AMBIGUOUS_CHECKPOINT = (
        "ambiguous-checkpoint",
        "several checkpoints match {name}: {matches}",
        "use the full name of one of them",
    )
    NO_COMPLETE_CHECKPOINT = (
        "no-complete-checkpoint",
        "no checkpoint below {path} is complete",
        "found: {checkpoints}",
    )
    SAVES_COLLIDE = (
        "saves-collide",
        "--save_on_each_node with a shared checkpoint directory: the first rank of every node "
        "would write the same files at the same time",
        "remove --save_on_each_node: on shared storage, rank 0 saves for all nodes",
    )
    UNIVERSAL_NEEDS_SHARED = (
        "universal-needs-shared",
        "checkpoint.load_universal: every rank reads the whole universal checkpoint, but the nodes "
        "have no shared storage",
        "copy it to shared storage, or resume the original checkpoint with as many ranks as saved "
        "it",
    )
    ELASTIC_NEEDS_SHARED = (
        "elastic-needs-shared",
        "zero_optimization.elastic_checkpoint: every rank reads the shards of all ranks, but the "
        "nodes have no shared storage",
        "remove elastic_checkpoint, and resume with the same number of ranks",
    )
    MODEL_PARALLEL_NEEDS_SHARED = (
        "model-parallel-needs-shared",
        "{setting}, but the nodes have no shared storage: with checkpoint.use_node_local_storage "
        "only the first rank of each node writes model states, so some are lost, such as "
        "mp_rank_01_model_states.pt",
        "save to shared storage: set `storage.checkpoints`",
    )
    MODEL_PARALLEL_CHECKPOINT = (
        "model-parallel-checkpoint",
        "{checkpoint} was saved with {ranks} model-parallel ranks: which node needs which shard is "
        "unknown",
        "run `dslaunch checkpoint gather` into shared storage, and load it from there",
    )
    WORLD_SIZE_DIFFERS = (
        "world-size-differs",
        "{checkpoint} was saved by {saved} ranks, this run has {ranks}: DeepSpeed refuses to load "
        "it (`used a DP world size of`)",
        "use {saved} slots, or convert the gathered checkpoint with ds_to_universal.py of "
        "DeepSpeed, on shared storage",
    )
    SHARDS_MISSING_ON_NODES = (
        "shards-missing-on-nodes",
        "{checkpoint} cannot be resumed on these nodes{lines}",
        "run `dslaunch checkpoint spread`: it copies every shard to the node that needs it, from "
        "the other nodes or from a gathered copy; to train from the beginning, use another "
        "checkpoint directory",
    )
    NVME_ORDER_DIFFERS = (
        "nvme-order-differs",
        "{checkpoint} has tensors on NVMe of each node, saved with the nodes in the order "
        "{saved_hosts}; the order is now {hosts}",
        "use the same nodes in the same order",
    )
    OTHER_CHECKPOINT_RESUMABLE = (
        "other-checkpoint-resumable",
        "{error}",
        "{checkpoint} can be resumed on these nodes: add --resume_from_checkpoint {checkpoint}",
    )
    NO_TRANSFORMERS = (
        "no-transformers",
        "--meta needs torch and transformers: {error}",
        "install them, or leave --meta out",
    )
    MODEL_NOT_BUILT = "model-not-built", "{path}: transformers cannot build the model: {error}"
    CHECKPOINT_INCOMPLETE = "checkpoint-incomplete"
    CHECKPOINT_LINKS = "checkpoint-links"
    CHECKPOINT_UNSAFE = "checkpoint-unsafe"
    DISK_FULL = "disk-full"
    SLURM_REFUSED = "slurm-refused"
