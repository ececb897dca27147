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


class Reason(StrEnum):
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
    Reason.PARTITION: Explanation(
        "there is no such partition", ("partition",), "`sinfo -s` lists them"
    ),
    Reason.NO_PARTITION: Explanation(
        "no partition is requested, and the site has no default one",
        ("partition",),
        "set `slurm.partition`; `sinfo -s` lists them",
    ),
    Reason.PARTITION_GROUP: Explanation(
        "only members of certain groups may use this partition", ("partition",)
    ),
    Reason.PARTITION_DOWN: Explanation(
        "this partition takes no jobs now", ("partition",), "`sinfo -s` shows its state"
    ),
    Reason.PARTITION_NODES: Explanation(
        "the requested nodes are not in this partition", ("nodelist", "partition")
    ),
    Reason.ACCOUNT: Explanation(
        "this account may not use this partition",
        ("account", "partition"),
        "`sacctmgr show associations user=$USER` lists yours",
    ),
    Reason.QOS: Explanation("there is no such quality of service for you", ("qos",)),
    Reason.QOS_THRESHOLD: Explanation(
        "the account has used up what this quality of service allows", ("qos", "account")
    ),
    Reason.POLICY: Explanation(
        "a limit of the account or quality of service is reached", ("account", "qos")
    ),
    Reason.TIME: Explanation(
        "the time limit is more than the partition gives, or none is given where one must be",
        ("time", "partition"),
        "`sinfo -o '%P %l'` shows how much each gives",
    ),
    Reason.NO_TIME: Explanation(
        "the site requires a time limit", ("time",), "set `slurm.time`, such as 2:00:00"
    ),
    Reason.NODE_COUNT: Explanation(
        "the partition does not give so many nodes, or so few", ("nodes", "partition")
    ),
    Reason.NODE_NAME: Explanation("there is no such node", ("nodelist", "exclude")),
    Reason.NODE_UNAVAILABLE: Explanation(
        "a requested node is down, drained or reserved", ("nodelist",)
    ),
    Reason.CONFIGURATION: Explanation(
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
    Reason.CPUS: Explanation(
        "no node has so many CPUs", ("cpus-per-task", "cpus-per-gpu", "ntasks-per-node")
    ),
    Reason.MEMORY: Explanation(
        "no node has so much memory",
        ("mem", "mem-per-cpu", "mem-per-gpu"),
        "`mem: 0` is all that a node has",
    ),
    Reason.GRES: Explanation(
        "this site does not accept GPUs requested this way",
        ("gres", "gpus-per-node", "gpus", "gpus-per-task"),
        "`sinfo -o %G` shows what the nodes have; `slurm.gpus: none` requests none",
    ),
    Reason.TASKS: Explanation(
        "the number of tasks does not fit", ("ntasks", "ntasks-per-node", "nodes")
    ),
    Reason.FEATURE: Explanation("no node has this feature", ("constraint", "prefer")),
    Reason.RESERVATION: Explanation("there is no such reservation now", ("reservation",)),
    Reason.RESERVATION_ACCESS: Explanation("this reservation is for others", ("reservation",)),
    Reason.DEPENDENCY: Explanation("there is no such job to wait for", ("dependency",)),
    Reason.ARRAY: Explanation("the array is not valid", ("array",)),
    Reason.WCKEY: Explanation("this workload key is not yours", ("wckey",)),
    Reason.LICENSES: Explanation("there are no such licenses", ("licenses",)),
    Reason.ACCESS: Explanation(
        "you may not use this", ("partition", "account", "qos", "reservation")
    ),
    Reason.SUBMISSIONS: Explanation("the site takes no jobs now"),
    Reason.UNKNOWN_OPTION: Explanation("sbatch has no such option"),
    Reason.OPTION_VALUE: Explanation("sbatch cannot read the value of this option"),
    Reason.OPTIONS: Explanation("these options exclude each other"),
    Reason.CONTROLLER: Explanation(
        "SLURM's controller does not answer", (), "try again; `scontrol ping` asks it"
    ),
    Reason.AUTHENTICATION: Explanation(
        "SLURM cannot authenticate you from this host", (), "`munge -n | unmunge` tests it"
    ),
    Reason.NO_SLURM: Explanation(
        "sbatch cannot reach a SLURM controller from this host",
        (),
        "run it where sbatch works, on a login node",
    ),
}

_CAUSES = {
    "Invalid partition name specified": Reason.PARTITION,
    "No partition specified or system default partition": Reason.NO_PARTITION,
    "User's group not permitted to use this partition": Reason.PARTITION_GROUP,
    "Required partition not available (inactive or drain)": Reason.PARTITION_DOWN,
    "Partition in DOWN state": Reason.PARTITION_DOWN,
    "Requested partition configuration not available now": Reason.PARTITION_DOWN,
    "Requested nodes not in this partition": Reason.PARTITION_NODES,
    "Invalid account or account/partition combination specified": Reason.ACCOUNT,
    "Multiple partition job request not supported when a partition is set in the association": (
        Reason.ACCOUNT
    ),
    "Invalid qos specification": Reason.QOS,
    "Requested account has breached requested QOS usage threshold": Reason.QOS_THRESHOLD,
    "MaxJobCount limit reached": Reason.SUBMISSIONS,
    "System submissions disabled": Reason.SUBMISSIONS,
    "Requested time limit is invalid (missing or exceeds some limit)": Reason.TIME,
    "Time limit specification required, but not provided": Reason.NO_TIME,
    "Node count specification invalid": Reason.NODE_COUNT,
    "Invalid node name specified": Reason.NODE_NAME,
    "Required node not available (down, drained or reserved)": Reason.NODE_UNAVAILABLE,
    "Requested node configuration is not available": Reason.CONFIGURATION,
    "More processors requested than permitted": Reason.CPUS,
    "CPU count specification invalid": Reason.CPUS,
    "Memory required by task is not available": Reason.MEMORY,
    "Invalid generic resource (gres) specification": Reason.GRES,
    "Duplicate generic resource (gres) specification": Reason.GRES,
    "Invalid GRES specification (with and without type identification)": Reason.GRES,
    "Requested GRES option unsupported by configured SelectType plugin": Reason.GRES,
    "Invalid Trackable RESource (TRES) specification": Reason.GRES,
    "Task count specification invalid": Reason.TASKS,
    "Invalid feature specification": Reason.FEATURE,
    "Invalid preferred feature specification": Reason.FEATURE,
    "Requested reservation is invalid": Reason.RESERVATION,
    "Requested reservation not usable now": Reason.RESERVATION,
    "Requested reservation is in use": Reason.RESERVATION,
    "Access denied to requested reservation": Reason.RESERVATION_ACCESS,
    "Job dependency problem": Reason.DEPENDENCY,
    "Circular job dependency": Reason.DEPENDENCY,
    "Invalid job array specification": Reason.ARRAY,
    "Invalid wckey specification": Reason.WCKEY,
    "Invalid license specification": Reason.LICENSES,
    "Licenses currently unavailable": Reason.LICENSES,  # 23.02
    "Access/permission denied": Reason.ACCESS,
    "Socket timed out on send/recv operation": Reason.CONTROLLER,
    "Zero Bytes were transmitted or received": Reason.CONTROLLER,
    "Rate limit exceeded, please retry momentarily": Reason.CONTROLLER,  # 23.02
    "Rate limit exceeded, please retry later": Reason.CONTROLLER,  # 26.05
    "Slurm backup controller in standby mode": Reason.CONTROLLER,
    "Controller is in standby mode, try a different controller": Reason.CONTROLLER,
    "Unable to connect to database": Reason.CONTROLLER,
    "Communication connection failure": Reason.CONTROLLER,
    "Connection refused": Reason.CONTROLLER,
    "Resource temporarily unavailable": Reason.CONTROLLER,
    "Protocol authentication error": Reason.AUTHENTICATION,
}
"""The texts of SLURM's error codes."""

_PATTERNS = (
    (r"Job violates accounting/QOS policy\b.*", Reason.POLICY),
    (r"Requested time limit is invalid\b.*", Reason.TIME),
    (r"Unable to contact slurm controller\b.*", Reason.CONTROLLER),
    (r"Unable to establish controller\b.*", Reason.CONTROLLER),
    (r"Could not establish a configuration source", Reason.NO_SLURM),
    (r"unrecognized option .*|invalid option -- .*", Reason.UNKNOWN_OPTION),
    (r"option .* is ambiguous.*", Reason.UNKNOWN_OPTION),
    (r"Invalid directive found in batch script: .*", Reason.UNKNOWN_OPTION),
    (r"option .* requires an argument|option .* doesn't allow an argument", Reason.OPTION_VALUE),
    (r"Invalid (?:--)?[a-z-]+ (?:specification|argument\b.*|value\b.*)", Reason.OPTION_VALUE),
    (r"Invalid node list specified", Reason.NODE_NAME),
    (r"invalid number of (?:tasks|nodes|cpus per task) .*", Reason.OPTION_VALUE),
    (r".*--.*(?:mutually exclusive|incompatible).*", Reason.OPTIONS),
    (r".*--.*(?:can not have|Inconsistent values).*", Reason.OPTIONS),
)
_DETAILS = {
    "CPU count per node can not be satisfied": Reason.CPUS,
    "Memory specification can not be satisfied": Reason.MEMORY,
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

    reason: Reason
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
    if reason is Reason.CONFIGURATION:
        detailed = (_DETAILS[line] for line in read.notices if line in _DETAILS)
        reason = next(detailed, reason)
    return Refusal(reason, sentences, _options(reason, cause))


def _reason(cause: str) -> Reason:
    if cause in _CAUSES:
        return _CAUSES[cause]
    fitting = (reason for pattern, reason in _PATTERNS if re.fullmatch(pattern, cause, re.S))
    return next(fitting, Reason.UNKNOWN)


def _options(reason: Reason, cause: str) -> tuple[str, ...]:
    """The options to blame: those that the reason always concerns, else those that SLURM names."""
    known = EXPLANATIONS.get(reason, Explanation("")).options
    if known or reason is Reason.UNKNOWN:
        return known
    valued = _VALUED.match(cause)
    named = [valued[1]] if valued else _NAMED.findall(cause)
    return tuple(dict.fromkeys(named))
