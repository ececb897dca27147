"""How sbatch, srun and the launchers read their command lines.

SLURM's options are those of sbatch(1) and srun(1), version 22.05, with the pairs of later versions
that scripts have (24.11).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dslaunch.slurm.words import Literal, Word


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _letters(text: str) -> dict[str, str]:
    """`a:array`, in words."""
    return dict(word.split(":") for word in text.split())


SHORT = _letters(
    "a:array A:account b:begin c:cpus-per-task d:dependency D:chdir e:error i:input J:job-name "
    "L:licenses M:clusters m:distribution n:ntasks N:nodes o:output p:partition q:qos S:core-spec "
    "t:time C:constraint F:nodefile w:nodelist x:exclude B:extra-node-info G:gpus H:hold k:no-kill "
    "O:overcommit Q:quiet s:oversubscribe v:verbose h:help V:version"
)
COMMON_FLAGS = _names(
    "hold ignore-pbs overcommit quiet reboot spread-job use-min-nodes verbose contiguous help "
    "usage version no-kill oversubscribe share"
)
OPTIONAL = _names("exclusive get-user-env nice no-kill propagate")
"""Options whose value, if any, follows an equals sign."""
VALUES = _names(
    "array account bb bbf begin comment cpu-freq cpus-per-task dependency deadline delay-boot "
    "chdir error export export-file gid gres gres-flags input job-name licenses clusters container "
    "container-id distribution mail-type mail-user mcs-label ntasks ntasks-per-node nodes output "
    "partition power priority profile qos core-spec signal switches thread-spec time time-min uid "
    "wckey cluster-constraint constraint nodefile mem mincpus reservation tmp nodelist exclude "
    "mem-per-cpu sockets-per-node cores-per-socket threads-per-core extra-node-info "
    "ntasks-per-core ntasks-per-socket ntasks-per-gpu cpus-per-gpu gpus gpu-bind gpu-freq "
    "gpus-per-node gpus-per-socket gpus-per-task mem-per-gpu acctg-freq hint mem-bind cluster "
    "workdir network prefer tres-per-task tres-bind resv-ports segment oom-kill-step"
)


@dataclass(frozen=True, slots=True)
class Grammar:
    """The options of one program."""

    short: Mapping[str, str]
    flags: frozenset[str]
    """Long options without a value."""
    optional: frozenset[str]
    values: frozenset[str]
    """Options with one; empty: those that are not named elsewhere."""

    def names(self) -> frozenset[str]:
        """Every long option."""
        return self.flags | self.optional | self.values

    def full(self, name: str) -> str:
        """An abbreviation's option, if it is one alone; getopt_long(3) takes it."""
        begun = [one for one in self.names() if one.startswith(name)]
        return begun[0] if len(begun) == 1 and name not in self.names() else name


SBATCH = Grammar(
    SHORT | {"W": "wait"},
    COMMON_FLAGS | {"no-requeue", "parsable", "requeue", "wait", "test-only"},
    OPTIONAL,
    VALUES | {"wrap", "batch", "kill-on-invalid-dep", "open-mode", "wait-all-nodes"},
)
SRUN = Grammar(
    SHORT
    | {"E": "preserve-env", "I": "immediate", "K": "kill-on-bad-exit", "l": "label"}
    | {"r": "relative", "T": "threads", "u": "unbuffered", "W": "wait", "X": "disable-status"}
    | {"Z": "no-allocate"},
    COMMON_FLAGS
    | _names(
        "preserve-env label multi-prog overlap pty quit-on-interrupt unbuffered disable-status "
        "no-allocate exact test-only whole interactive"
    ),
    OPTIONAL | {"immediate", "kill-on-bad-exit", "compress", "send-libs", "resv-ports"},
    VALUES
    | _names(
        "bcast bcast-exclude epilog jobid het-group mpi prolog relative slurmd-debug task-epilog "
        "task-prolog threads wait open-mode container-image container-mounts container-workdir "
        "container-name container-env container-remap-root pack-group accel-bind cpu-bind "
        "msg-timeout"
    ),
)
TORCHRUN = Grammar(
    {"m": "module", "r": "redirects", "t": "tee"},
    _names("standalone module no_python run_path use_env"),
    frozenset(),
    frozenset(),
)
DEEPSPEED = Grammar(
    {"H": "hostfile", "i": "include", "e": "exclude"},
    _names(
        "no_ssh no_ssh_check force_multi module no_python no_local_rank bind_cores_to_rank "
        "save_pid elastic_training venv_script"
    ),
    frozenset({"save_pid"}),
    frozenset(),
)
ACCELERATE = Grammar(
    {"m": "module", "q": "quiet"},
    _names(
        "multi_gpu cpu mps tpu xpu use_deepspeed use_fsdp use_megatron_lm use_xpu module "
        "no_python quiet same_network debug enable_cpu_affinity tpu_use_cluster"
    ),
    frozenset(),
    frozenset(),
)


@dataclass(frozen=True, slots=True)
class Option:
    """One option as given."""

    name: str
    """Its long name; launchers' with underscores."""
    given: str
    """As it is written, such as `-N`."""
    value: Word | None
    place: int
    end: int

    @property
    def text(self) -> str:
        """Its value with quotes removed; empty for none."""
        return self.value.value if self.value else ""


def options_of(words: Sequence[Word], grammar: Grammar) -> tuple[list[Option], int]:
    """The options at the beginning of words, and how many words they are. A word that begins with
    an expansion nobody could look into, with more behind it, is taken for options."""
    found: list[Option] = []
    at = 0
    while at < len(words):
        word = words[at]
        if word.value == "--":
            return found, at + 1
        if word.value.startswith("--"):
            option, used = _long(words, at, grammar)
        elif word.value.startswith("-") and len(word.value) > 1:
            option, used = _short(words, at, grammar)
        elif word.expansions and word.expansions[0].place == word.place and at + 1 < len(words):
            at += 1
            continue
        else:
            break
        found.append(option)
        at += used
    return found, at


def _long(words: Sequence[Word], at: int, grammar: Grammar) -> tuple[Option, int]:
    word = words[at]
    given, equals, _ = word.value.partition("=")
    name = given[2:]
    if grammar.values or "-" not in name:
        name = grammar.full(name) if grammar.values else name
    else:
        name = name.replace("-", "_")
    if equals:
        return Option(name, given, word.behind(len(given) + 1), word.place, word.end), 1
    if _takes_none(name, grammar) or at + 1 == len(words):
        return Option(name, given, None, word.place, word.end), 1
    following = words[at + 1]
    if not grammar.values and following.value.startswith("--"):
        return Option(name, given, None, word.place, word.end), 1
    return Option(name, given, following, word.place, following.end), 2


def _takes_none(name: str, grammar: Grammar) -> bool:
    unknown = bool(grammar.values) and name not in grammar.values
    return name in grammar.flags or name in grammar.optional or unknown


def _short(words: Sequence[Word], at: int, grammar: Grammar) -> tuple[Option, int]:
    word = words[at]
    letter = word.value[1]
    name = grammar.short.get(letter, letter)
    given = f"-{letter}"
    first = word.pieces[0]
    attached = word.behind(2) if isinstance(first, Literal) else None
    if attached and attached.value:
        value = None if name in grammar.flags else attached
        return Option(name, given, value, word.place, word.end), 1
    if _takes_none(name, grammar) or at + 1 == len(words):
        return Option(name, given, None, word.place, word.end), 1
    return Option(name, given, words[at + 1], word.place, words[at + 1].end), 2
