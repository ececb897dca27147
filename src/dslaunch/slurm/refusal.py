"""What sbatch writes to standard error: the site's words, and why a job was not taken. Pure.

The texts are those of SLURM 22.05 to 26.05: src/common/slurm_errno.c, src/common/slurm_opt.c,
src/sbatch/sbatch.c and opt.c, src/slurmctld/node_scheduler.c; the texts used here are the same in
all of them, unless a release is named.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

MOST_LINES = 100
"""Lines of sbatch's standard error that are kept, the last ones."""
LONGEST_LINE = 1000
"""Characters of one of them that are kept."""


class Refused(StrEnum):
    """Why SLURM did not take a job."""

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


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a reason means, and what to do."""

    words: str
    options: tuple[str, ...] = ()
    """The options of sbatch, by their long names, that can be to blame."""
    hint: str | None = None


EXPLANATIONS = {
    Refused.PARTITION: Explanation(
        "there is no such partition", ("partition",), "`sinfo -s` lists them"
    ),
    Refused.NO_PARTITION: Explanation(
        "no partition is requested, and the site has no default one",
        ("partition",),
        "set `slurm.partition`; `sinfo -s` lists them",
    ),
    Refused.PARTITION_GROUP: Explanation(
        "only members of certain groups may use this partition", ("partition",)
    ),
    Refused.PARTITION_DOWN: Explanation(
        "this partition takes no jobs now", ("partition",), "`sinfo -s` shows its state"
    ),
    Refused.PARTITION_NODES: Explanation(
        "the requested nodes are not in this partition", ("nodelist", "partition")
    ),
    Refused.ACCOUNT: Explanation(
        "this account may not use this partition",
        ("account", "partition"),
        "`sacctmgr show associations user=$USER` lists yours",
    ),
    Refused.QOS: Explanation("there is no such quality of service for you", ("qos",)),
    Refused.QOS_THRESHOLD: Explanation(
        "the account has used up what this quality of service allows", ("qos", "account")
    ),
    Refused.POLICY: Explanation(
        "a limit of the account or quality of service is reached", ("account", "qos")
    ),
    Refused.TIME: Explanation(
        "the time limit is more than the partition gives, or none is given where one must be",
        ("time", "partition"),
        "`sinfo -o '%P %l'` shows how much each gives",
    ),
    Refused.NO_TIME: Explanation(
        "the site requires a time limit", ("time",), "set `slurm.time`, such as 2:00:00"
    ),
    Refused.NODE_COUNT: Explanation(
        "the partition does not give so many nodes, or so few", ("nodes", "partition")
    ),
    Refused.NODE_NAME: Explanation("there is no such node", ("nodelist", "exclude")),
    Refused.NODE_UNAVAILABLE: Explanation(
        "a requested node is down, drained or reserved", ("nodelist",)
    ),
    Refused.CONFIGURATION: Explanation(
        "no nodes of the partition have what is requested",
        (
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
        "`sinfo -o '%P %D %c %m %G %f'` shows what nodes there are",
    ),
    Refused.CPUS: Explanation(
        "no node has so many CPUs", ("cpus-per-task", "cpus-per-gpu", "ntasks-per-node")
    ),
    Refused.MEMORY: Explanation(
        "no node has so much memory",
        ("mem", "mem-per-cpu", "mem-per-gpu"),
        "`mem: 0` is all that a node has",
    ),
    Refused.GRES: Explanation(
        "this site does not accept GPUs requested this way",
        ("gres", "gpus-per-node", "gpus", "gpus-per-task"),
        "`sinfo -o %G` shows what the nodes have; `slurm.gpus: none` requests none",
    ),
    Refused.TASKS: Explanation(
        "the number of tasks does not fit", ("ntasks", "ntasks-per-node", "nodes")
    ),
    Refused.FEATURE: Explanation("no node has this feature", ("constraint", "prefer")),
    Refused.RESERVATION: Explanation("there is no such reservation now", ("reservation",)),
    Refused.RESERVATION_ACCESS: Explanation("this reservation is for others", ("reservation",)),
    Refused.DEPENDENCY: Explanation("there is no such job to wait for", ("dependency",)),
    Refused.ARRAY: Explanation("the array is not valid", ("array",)),
    Refused.WCKEY: Explanation("this workload key is not yours", ("wckey",)),
    Refused.LICENSES: Explanation("there are no such licenses", ("licenses",)),
    Refused.ACCESS: Explanation(
        "you may not use this", ("partition", "account", "qos", "reservation")
    ),
    Refused.SUBMISSIONS: Explanation("the site takes no jobs now"),
    Refused.UNKNOWN_OPTION: Explanation("sbatch has no such option"),
    Refused.OPTION_VALUE: Explanation("sbatch cannot read the value of this option"),
    Refused.OPTIONS: Explanation("these options exclude each other"),
    Refused.CONTROLLER: Explanation(
        "SLURM's controller does not answer", (), "try again; `scontrol ping` asks it"
    ),
    Refused.AUTHENTICATION: Explanation(
        "SLURM cannot authenticate you from this host", (), "`munge -n | unmunge` tests it"
    ),
    Refused.NO_SLURM: Explanation(
        "sbatch cannot reach a SLURM controller from this host",
        (),
        "run it where sbatch works, on a login node",
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
"""What the controller adds to `Requested node configuration is not available`."""

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


@dataclass(frozen=True, slots=True)
class Said:
    """What sbatch wrote to standard error, sorted."""

    notices: tuple[str, ...] = ()
    """The site's own lines (job_submit plugins, `slurm.log_user`), and warnings of sbatch."""
    cause: str = ""
    """SLURM's own reason why it did not take the job; empty: it gave none."""
    estimate: tuple[str, ...] = ()
    """When the job would start, of `--test-only`."""


def read_said(text: str) -> Said:
    """Sort the lines that sbatch, or another of SLURM's commands, wrote to standard error."""
    notices: list[str] = []
    estimate: list[str] = []
    cause = ""
    for line in text.splitlines()[-MOST_LINES:]:
        words = _words(line)
        told = _CAUSE.fullmatch(words)
        if told is not None:
            cause = told["cause"].strip()
        elif _ESTIMATE.fullmatch(words):
            estimate.append(words.strip())
        elif words.strip() and not _ADVICE.fullmatch(words.strip()):
            notices.append(words.strip())
    return Said(tuple(notices), cause, tuple(estimate))


def _words(line: str) -> str:
    """A line without the program's name and the level in front; a warning stays called one."""
    match = _PREFIX.fullmatch(line[:LONGEST_LINE])
    assert match is not None, "every part of it may be empty"
    return f"warning: {match['text']}" if match["level"] == "warning" else match["text"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why SLURM did not take a job."""

    reason: Refused
    sentences: tuple[str, ...]
    """What was said of it: first the site's own lines, then SLURM's. Never empty."""
    options: tuple[str, ...] = ()
    """The options of sbatch, by their long names, that can be to blame."""

    @property
    def explanation(self) -> str | None:
        """Our own words for it; None: SLURM's say all that is known."""
        found = EXPLANATIONS.get(self.reason)
        return found.words if found else None

    @property
    def words(self) -> str:
        """It in one line: our own words, else SLURM's."""
        return self.explanation or "; ".join(self.sentences)

    @property
    def hint(self) -> str | None:
        """What to do."""
        found = EXPLANATIONS.get(self.reason)
        return found.hint if found else None


def why_refused(said: str) -> Refusal:
    """Why sbatch, or another of SLURM's commands, failed, by its standard error.

    Only SLURM's own cause decides, never the lines of the site, which may say anything.
    """
    read = read_said(said)
    cause = read.cause
    if cause:
        sentences = (*read.notices, cause)
    else:
        # sbatch itself stopped, and its last line says why
        sentences = read.notices or ("sbatch gave no reason",)
        cause = sentences[-1].rpartition(" error: ")[2]
    reason = _reason(cause)
    if reason is Refused.CONFIGURATION:
        detailed = (_DETAILS[line] for line in read.notices if line in _DETAILS)
        reason = next(detailed, reason)
    return Refusal(reason, sentences, _options(reason, cause))


def _reason(cause: str) -> Refused:
    if cause in _CAUSES:
        return _CAUSES[cause]
    fitting = (reason for pattern, reason in _PATTERNS if re.fullmatch(pattern, cause, re.S))
    return next(fitting, Refused.UNKNOWN)


def _options(reason: Refused, cause: str) -> tuple[str, ...]:
    """The options to blame: those that the reason always concerns, else those that SLURM names."""
    known = EXPLANATIONS.get(reason, Explanation("")).options
    if known or reason is Refused.UNKNOWN:
        return known
    valued = _VALUED.match(cause)
    named = [valued[1]] if valued else _NAMED.findall(cause)
    return tuple(dict.fromkeys(named))
