"""Why sbatch refused a job, parsed from its standard error into codes. Pure.

The only place that knows sbatch's English. The texts are those of SLURM 22.05 to 26.05:
src/common/slurm_errno.c, src/common/slurm_opt.c, src/sbatch/sbatch.c and opt.c,
src/slurmctld/node_scheduler.c; they are the same in all of them, unless a release is named.
"""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

MAX_LINES = 100
"""Lines of sbatch's standard error that are parsed, the last ones."""
MAX_LINE_LENGTH = 1000
"""Characters of a line that are parsed."""


class Refused(StrEnum):
    """Why SLURM refused a job."""

    PARTITION = "unknown-partition"
    NO_PARTITION = "no-default-partition"
    PARTITION_GROUP = "partition-group"
    PARTITION_DOWN = "partition-down"
    PARTITION_NODES = "nodes-not-in-partition"
    ACCOUNT = "account"
    QOS = "qos"
    QOS_THRESHOLD = "qos-threshold"
    POLICY = "policy"
    TIME = "time-limit"
    NO_TIME = "no-time-limit"
    NODE_COUNT = "node-count"
    NODE_NAME = "node-name"
    NODE_UNAVAILABLE = "node-unavailable"
    CONFIGURATION = "node-configuration"
    CPUS = "cpus"
    MEMORY = "memory"
    GRES = "gres"
    TASKS = "tasks"
    FEATURE = "feature"
    RESERVATION = "reservation"
    RESERVATION_ACCESS = "reservation-access"
    DEPENDENCY = "dependency"
    ARRAY = "array"
    WCKEY = "wckey"
    LICENSES = "licenses"
    ACCESS = "access"
    SUBMISSIONS = "submissions"
    UNKNOWN_OPTION = "unknown-option"
    OPTION_VALUE = "option-value"
    OPTIONS = "exclusive-options"
    CONTROLLER = "controller"
    AUTHENTICATION = "authentication"
    NO_SLURM = "no-slurm"
    UNKNOWN = "unknown"


class Explanation(Struct, frozen=True):
    """The meaning of a refusal, and what to do."""

    meaning: str
    options: tuple[str, ...] = ()
    """The options of sbatch that can cause it, by their long names."""
    hint: str | None = None


EXPLANATIONS = {
    Refused.PARTITION: Explanation(
        meaning="the partition does not exist",
        options=("partition",),
        hint="`sinfo -s` lists the partitions",
    ),
    Refused.NO_PARTITION: Explanation(
        meaning="no partition is requested, and the site has no default partition",
        options=("partition",),
        hint="set `slurm.partition`; `sinfo -s` lists the partitions",
    ),
    Refused.PARTITION_GROUP: Explanation(
        meaning="only members of certain groups may use this partition",
        options=("partition",),
    ),
    Refused.PARTITION_DOWN: Explanation(
        meaning="the partition is down, inactive or drained",
        options=("partition",),
        hint="`sinfo -s` shows its state",
    ),
    Refused.PARTITION_NODES: Explanation(
        meaning="the requested nodes are not in this partition",
        options=("nodelist", "partition"),
    ),
    Refused.ACCOUNT: Explanation(
        meaning="this account may not use this partition",
        options=("account", "partition"),
        hint="`sacctmgr show associations user=$USER` lists your accounts",
    ),
    Refused.QOS: Explanation(
        meaning="the quality of service (QOS) does not exist or is not allowed for you",
        options=("qos",),
    ),
    Refused.QOS_THRESHOLD: Explanation(
        meaning="the account has exceeded the usage threshold of this QOS",
        options=("qos", "account"),
    ),
    Refused.POLICY: Explanation(
        meaning="the job exceeds a limit of the account or QOS",
        options=("account", "qos"),
    ),
    Refused.TIME: Explanation(
        meaning="the time limit exceeds that of the partition, or a required time limit is missing",
        options=("time", "partition"),
        hint="`sinfo -o '%P %l'` shows the maximum of each partition",
    ),
    Refused.NO_TIME: Explanation(
        meaning="the site requires a time limit",
        options=("time",),
        hint="set `slurm.time`, for example `time: 2:00:00`",
    ),
    Refused.NODE_COUNT: Explanation(
        meaning="the number of nodes is not within the limits of the partition",
        options=("nodes", "partition"),
    ),
    Refused.NODE_NAME: Explanation(
        meaning="a node does not exist",
        options=("nodelist", "exclude"),
    ),
    Refused.NODE_UNAVAILABLE: Explanation(
        meaning="a requested node is down, drained or reserved",
        options=("nodelist",),
    ),
    Refused.CONFIGURATION: Explanation(
        meaning="no nodes of the partition satisfy the request",
        options=(
            "nodes",
            "partition",
            "gres",
            "gpus-per-node",
            "gpus",
            "gpus-per-task",
            "cpus-per-task",
            "mem",
            "mem-per-cpu",
            "mem-per-gpu",
            "constraint",
        ),
        hint="`sinfo -o '%P %D %c %m %G %f'` shows CPUs, memory, GRES and features of the nodes",
    ),
    Refused.CPUS: Explanation(
        meaning="no node has that many CPUs",
        options=("cpus-per-task", "cpus-per-gpu", "ntasks-per-node"),
    ),
    Refused.MEMORY: Explanation(
        meaning="no node has that much memory",
        options=("mem", "mem-per-cpu", "mem-per-gpu"),
        hint="`mem: 0` requests all memory of a node",
    ),
    Refused.GRES: Explanation(
        meaning="this site does not accept GPUs requested this way",
        options=("gres", "gpus-per-node", "gpus", "gpus-per-task"),
        hint="`sinfo -o %G` shows the GRES of the nodes; `slurm.gpus: none` requests none",
    ),
    Refused.TASKS: Explanation(
        meaning="the number of tasks does not match the nodes",
        options=("ntasks", "ntasks-per-node", "nodes"),
    ),
    Refused.FEATURE: Explanation(
        meaning="no node has this feature",
        options=("constraint", "prefer"),
    ),
    Refused.RESERVATION: Explanation(
        meaning="the reservation does not exist or is not active",
        options=("reservation",),
    ),
    Refused.RESERVATION_ACCESS: Explanation(
        meaning="you may not use this reservation",
        options=("reservation",),
    ),
    Refused.DEPENDENCY: Explanation(
        meaning="the dependency names a job that does not exist, or is circular",
        options=("dependency",),
    ),
    Refused.ARRAY: Explanation(
        meaning="the array specification is not valid",
        options=("array",),
    ),
    Refused.WCKEY: Explanation(
        meaning="you may not use this workload characterization key",
        options=("wckey",),
    ),
    Refused.LICENSES: Explanation(
        meaning="the licenses do not exist or are not available",
        options=("licenses",),
    ),
    Refused.ACCESS: Explanation(
        meaning="access to a requested resource is denied",
        options=("partition", "account", "qos", "reservation"),
    ),
    Refused.SUBMISSIONS: Explanation("the site accepts no job submissions at the moment"),
    Refused.UNKNOWN_OPTION: Explanation("sbatch does not know this option"),
    Refused.OPTION_VALUE: Explanation("sbatch cannot parse the value of this option"),
    Refused.OPTIONS: Explanation("these options are mutually exclusive"),
    Refused.CONTROLLER: Explanation(
        meaning="the SLURM controller does not answer",
        hint="try again; `scontrol ping` shows whether it is up",
    ),
    Refused.AUTHENTICATION: Explanation(
        meaning="SLURM cannot authenticate you from this host",
        hint="`munge -n | unmunge` tests the authentication",
    ),
    Refused.NO_SLURM: Explanation(
        meaning="sbatch cannot reach a SLURM controller from this host",
        hint="run dslaunch where sbatch works, for example on a login node",
    ),
}

_CAUSES = {
    "Invalid partition name specified": Refused.PARTITION,
    "No partition specified or system default partition": Refused.NO_PARTITION,
    "User's group not permitted to use this partition": Refused.PARTITION_GROUP,
    "Required partition not available (inactive or drain)": Refused.PARTITION_DOWN,
    "Partition in DOWN state": Refused.PARTITION_DOWN,
    "Requested partition configuration not available now": Refused.PARTITION_DOWN,
    "Requested nodes not in this partition": Refused.PARTITION_NODES,
    "Invalid account or account/partition combination specified": Refused.ACCOUNT,
    "Multiple partition job request not supported when a partition is set in the association": (
        Refused.ACCOUNT
    ),
    "Invalid qos specification": Refused.QOS,
    "Requested account has breached requested QOS usage threshold": Refused.QOS_THRESHOLD,
    "MaxJobCount limit reached": Refused.SUBMISSIONS,
    "System submissions disabled": Refused.SUBMISSIONS,
    "Requested time limit is invalid (missing or exceeds some limit)": Refused.TIME,
    "Time limit specification required, but not provided": Refused.NO_TIME,
    "Node count specification invalid": Refused.NODE_COUNT,
    "Invalid node name specified": Refused.NODE_NAME,
    "Required node not available (down, drained or reserved)": Refused.NODE_UNAVAILABLE,
    "Requested node configuration is not available": Refused.CONFIGURATION,
    "More processors requested than permitted": Refused.CPUS,
    "CPU count specification invalid": Refused.CPUS,
    "Memory required by task is not available": Refused.MEMORY,
    "Invalid generic resource (gres) specification": Refused.GRES,
    "Duplicate generic resource (gres) specification": Refused.GRES,
    "Invalid GRES specification (with and without type identification)": Refused.GRES,
    "Requested GRES option unsupported by configured SelectType plugin": Refused.GRES,
    "Invalid Trackable RESource (TRES) specification": Refused.GRES,
    "Task count specification invalid": Refused.TASKS,
    "Invalid feature specification": Refused.FEATURE,
    "Invalid preferred feature specification": Refused.FEATURE,
    "Requested reservation is invalid": Refused.RESERVATION,
    "Requested reservation not usable now": Refused.RESERVATION,
    "Requested reservation is in use": Refused.RESERVATION,
    "Access denied to requested reservation": Refused.RESERVATION_ACCESS,
    "Job dependency problem": Refused.DEPENDENCY,
    "Circular job dependency": Refused.DEPENDENCY,
    "Invalid job array specification": Refused.ARRAY,
    "Invalid wckey specification": Refused.WCKEY,
    "Invalid license specification": Refused.LICENSES,
    "Licenses currently unavailable": Refused.LICENSES,  # 23.02
    "Access/permission denied": Refused.ACCESS,
    "Socket timed out on send/recv operation": Refused.CONTROLLER,
    "Zero Bytes were transmitted or received": Refused.CONTROLLER,
    "Rate limit exceeded, please retry momentarily": Refused.CONTROLLER,  # 23.02
    "Rate limit exceeded, please retry later": Refused.CONTROLLER,  # 26.05
    "Slurm backup controller in standby mode": Refused.CONTROLLER,
    "Controller is in standby mode, try a different controller": Refused.CONTROLLER,
    "Unable to connect to database": Refused.CONTROLLER,
    "Communication connection failure": Refused.CONTROLLER,
    "Connection refused": Refused.CONTROLLER,
    "Resource temporarily unavailable": Refused.CONTROLLER,
    "Protocol authentication error": Refused.AUTHENTICATION,
}
"""The texts of SLURM's error codes."""
_UNSPECIFIC = ("Unspecified error", "Unexpected message received")
"""Causes that say less than the messages of the site."""

_PATTERNS = (
    (r"Job violates accounting/QOS policy\b.*", Refused.POLICY),
    (r"Requested time limit is invalid\b.*", Refused.TIME),
    (r"Unable to contact slurm controller\b.*", Refused.CONTROLLER),
    (r"Unable to establish controller\b.*", Refused.CONTROLLER),
    (r"Could not establish a configuration source", Refused.NO_SLURM),
    (r"unrecognized option .*|invalid option -- .*", Refused.UNKNOWN_OPTION),
    (r"option .* is ambiguous.*", Refused.UNKNOWN_OPTION),
    (r"Invalid directive found in batch script: .*", Refused.UNKNOWN_OPTION),
    (
        r"option .* requires an argument|option .* doesn't allow an argument",
        Refused.OPTION_VALUE,
    ),
    (
        r"Invalid (?:--)?[a-z-]+ (?:specification|argument\b.*|value\b.*)",
        Refused.OPTION_VALUE,
    ),
    (r"Invalid node list specified", Refused.NODE_NAME),
    (r"invalid number of (?:tasks|nodes|cpus per task) .*", Refused.OPTION_VALUE),
    (r".*--.*(?:mutually exclusive|incompatible).*", Refused.OPTIONS),
    (r".*--.*(?:can not have|Inconsistent values).*", Refused.OPTIONS),
)
_DETAILS = {
    "CPU count per node can not be satisfied": Refused.CPUS,
    "Memory specification can not be satisfied": Refused.MEMORY,
}
"""Details that the controller adds to `Requested node configuration is not available`."""

_PREFIX = re.compile(
    r"(?:(?:sbatch|srun|scontrol|squeue|sinfo|sacct|scancel|slurm_\w+): )?"
    r"(?:(?P<level>error|fatal|warning): )?(?P<text>.*)",
    re.S,
)
_CAUSE = re.compile(r"(?:Batch job submission failed|allocation failure): (?P<cause>.*)", re.S)
_ESTIMATE = re.compile(r"Job \d+ to start at .*|  Preempts: .*", re.S)
_ADVICE = re.compile(r"Try \"\w+ --help\" for more information")
_NAMED = re.compile(r"--([a-z][a-z-]*)")
_VALUED = re.compile(r"Invalid (?:--)?([a-z][a-z-]*) (?:specification|argument|value)")


class Messages(Struct, frozen=True):
    """The standard error of sbatch, sorted."""

    notices: tuple[str, ...] = ()
    """Messages of the site (job_submit plugins, `slurm.log_user`), and warnings of sbatch."""
    cause: str = ""
    """SLURM's reason why it refused the job; empty: it gave none."""
    estimate: tuple[str, ...] = ()
    """The estimated start of the job, of `--test-only`."""


def parse_messages(stderr: str) -> Messages:
    """Sort the lines that sbatch, or another command of SLURM, wrote to standard error."""
    notices: list[str] = []
    estimate: list[str] = []
    cause = ""
    for line in stderr.splitlines()[-MAX_LINES:]:
        text = _without_prefix(line)
        failure = _CAUSE.fullmatch(text)
        if failure is not None:
            cause = failure["cause"].strip()
        elif _ESTIMATE.fullmatch(text):
            estimate.append(text.strip())
        elif text.strip() and not _ADVICE.fullmatch(text.strip()):
            notices.append(text.strip())
    return Messages(tuple(notices), cause, tuple(estimate))


def _without_prefix(line: str) -> str:
    """Return a line without the name of the program and the level; the level of a warning stays."""
    match = _PREFIX.fullmatch(line[:MAX_LINE_LENGTH])
    assert match is not None, "every part of it may be empty"
    return f"warning: {match['text']}" if match["level"] == "warning" else match["text"]


class Refusal(Struct, frozen=True):
    """Why SLURM refused a job."""

    reason: Refused
    messages: tuple[str, ...] = ()
    """What sbatch printed: SLURM's reason first, unless it says nothing. Empty: nothing."""
    options: tuple[str, ...] = ()
    """The options of sbatch that can cause it, by their long names."""

    @property
    def explanation(self) -> str | None:
        """What it means; None: only sbatch's own messages are known."""
        found = EXPLANATIONS.get(self.reason)
        return found.meaning if found else None

    @property
    def headline(self) -> str:
        """What it means, or the first message of sbatch."""
        return self.explanation or next(iter(self.messages), NO_REASON)

    @property
    def text(self) -> str:
        """It in one line: what it means, or the messages of sbatch."""
        return self.explanation or "; ".join(self.messages) or NO_REASON

    @property
    def hint(self) -> str | None:
        """What to do."""
        found = EXPLANATIONS.get(self.reason)
        return found.hint if found else None


NO_REASON = "sbatch gave no reason"


def parse_refusal(stderr: str) -> Refusal:
    """Return why sbatch, or another command of SLURM, failed, by its standard error.

    Only SLURM's own cause decides, never the messages of the site, which may be any text.
    """
    messages = parse_messages(stderr)
    cause = messages.cause
    shown = messages.notices
    if cause:
        shown = (*shown, cause) if cause in _UNSPECIFIC else (cause, *shown)
    elif shown:
        # sbatch itself failed, and its last line is the reason
        cause = shown[-1].rpartition(" error: ")[2]
        shown = (shown[-1], *shown[:-1])
    reason = _reason(cause)
    if reason is Refused.CONFIGURATION:
        detailed = (_DETAILS[line] for line in messages.notices if line in _DETAILS)
        reason = next(detailed, reason)
    return Refusal(reason, shown, _options(reason, cause))


def _reason(cause: str) -> Refused:
    if cause in _CAUSES:
        return _CAUSES[cause]
    matching = (reason for pattern, reason in _PATTERNS if re.fullmatch(pattern, cause, re.S))
    return next(matching, Refused.UNKNOWN)


def _options(reason: Refused, cause: str) -> tuple[str, ...]:
    """Return the options that can cause the refusal: those of its reason, or those that SLURM
    names."""
    explanation = EXPLANATIONS.get(reason)
    if explanation is None or explanation.options:
        return explanation.options if explanation else ()
    valued = _VALUED.match(cause)
    named = [valued[1]] if valued else _NAMED.findall(cause)
    return tuple(dict.fromkeys(named))
