"""The options of sbatch, srun and launchers, and the parser of their command lines.

SLURM's options are those of src/common/slurm_opt.c (branches 22.05 to 26.05): an option of
one of these releases is known. Both programs use getopt_long(3), which accepts every unambiguous
prefix of a name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from dslaunch.cluster.sbatch_options import (
    COMMON_FLAGS,
    COMMON_OPTIONAL,
    COMMON_VALUES,
    SBATCH_FLAGS,
    SBATCH_OPTIONAL,
    SBATCH_VALUES,
    named,
)
from dslaunch.slurm.shell_words import Literal, Word


def _letters(text: str) -> dict[str, str]:
    """Parse words such as `a:array`."""
    return dict(word.split(":") for word in text.split())


ALIASES = {"tasks-per-node": "ntasks-per-node", "cpu_bind": "cpu-bind", "pack-group": "het-group"}
"""Old names that SLURM still accepts; two names of one option are not ambiguous."""
FORMER = {"share": "oversubscribe", "workdir": "chdir"}
"""Options that these releases no longer have, with their replacements."""
COMMON_LETTERS = _letters(
    "A:account B:extra-node-info C:constraint D:chdir F:nodefile G:gpus H:hold J:job-name "
    "L:licenses M:clusters N:nodes O:overcommit Q:quiet S:core-spec V:version W:wait b:begin "
    "c:cpus-per-task d:dependency e:error h:help i:input k:no-kill m:distribution n:ntasks "
    "o:output p:partition q:qos s:oversubscribe t:time v:verbose w:nodelist x:exclude"
)
PLUGIN_VALUES = named(
    "container-image container-mounts container-workdir container-name container-save "
    "container-env container-unshare "  # NVIDIA/pyxis, args.c
    "image volume module shifter.image shifter.volume shifter.module "  # NERSC/shifter, wrapper.c
    "environment uenv view repo "  # eth-cscs: container engine, slurm-uenv-mount
    "tunnel"  # harvardinformatics/spank-tunnel
)
"""Options of plugins (spank(7)), valid where the plugin is installed."""
PLUGIN_FLAGS = named(
    "container-mount-home no-container-mount-home container-remap-root no-container-remap-root "
    "container-entrypoint no-container-entrypoint container-entrypoint-log container-writable "
    "container-readonly ccm"
)
PLUGIN_OPTIONAL = named("x11")
"""An option of SLURM if it is built with X11."""
LATER = named(
    "async autocomplete consolidate-segments container-id container-type external "
    "external-launcher extra ignore-signals mem-update oom-kill-step parsable resources resv-ports "
    "segment spread-segments stepmgr treewidth tres-bind tres-per-task wait-for-children"
)
"""Options that 22.05 lacks: an abbreviation that also matches one of these was unambiguous
there."""


class Grammar(Struct, frozen=True):
    """The options of a program."""

    short: Mapping[str, str]
    flags: frozenset[str]
    """Long options without a value."""
    optional: frozenset[str]
    values: frozenset[str]
    """Long options with a value; empty: all options that are not in another field."""
    plugins: frozenset[str] = field(default_factory=frozenset)
    """Options that only plugins have."""

    def names(self) -> frozenset[str]:
        """Return all long options."""
        return self.flags | self.optional | self.values

    def full(self, name: str) -> str:
        """Return the option of an abbreviated name, if it is unambiguous; otherwise the name
        itself."""
        if name in self.names():
            return ALIASES.get(name, name)
        begun = {ALIASES.get(one, one) for one in self.names() if one.startswith(name)}
        for meant in (begun, begun - LATER - self.plugins):
            if len(meant) == 1:
                return next(iter(meant))
        return name


SBATCH = Grammar(
    short=COMMON_LETTERS | {"a": "array"},
    flags=SBATCH_FLAGS | PLUGIN_FLAGS,
    optional=SBATCH_OPTIONAL | PLUGIN_OPTIONAL,
    values=SBATCH_VALUES | PLUGIN_VALUES,
    plugins=PLUGIN_VALUES | PLUGIN_FLAGS | PLUGIN_OPTIONAL,
)
SRUN = Grammar(
    short=COMMON_LETTERS
    | _letters(
        "E:preserve-env I:immediate K:kill-on-bad-exit T:threads X:disable-status Z:no-allocate "
        "l:label r:relative u:unbuffered"
    ),
    flags=COMMON_FLAGS
    | PLUGIN_FLAGS
    | named(
        "async debugger-test disable-status exact interactive label multi-prog no-allocate "
        "preserve-env quit-on-interrupt unbuffered wait-for-children whole"
    ),
    optional=COMMON_OPTIONAL
    | PLUGIN_OPTIONAL
    | named("bcast compress external-launcher immediate kill-on-bad-exit overlap pty send-libs"),
    values=COMMON_VALUES
    | PLUGIN_VALUES
    | named(
        "accel-bind bcast-exclude cpu-bind cpu_bind epilog het-group ignore-signals jobid mpi "
        "msg-timeout pack-group prolog relative slurmd-debug task-epilog task-prolog threads "
        "treewidth wait"
    ),
    plugins=PLUGIN_VALUES | PLUGIN_FLAGS | PLUGIN_OPTIONAL,
)
TORCHRUN = Grammar(
    {"m": "module", "r": "redirects", "t": "tee"},
    named("standalone module no_python run_path use_env"),
    frozenset(),
    frozenset(),
)
DEEPSPEED = Grammar(
    {"H": "hostfile", "i": "include", "e": "exclude"},
    named(
        "no_ssh no_ssh_check force_multi module no_python no_local_rank bind_cores_to_rank "
        "save_pid elastic_training venv_script"
    ),
    frozenset({"save_pid"}),
    frozenset(),
)
ACCELERATE = Grammar(
    {"m": "module", "q": "quiet"},
    named(
        "multi_gpu cpu mps tpu xpu use_deepspeed use_fsdp use_megatron_lm use_xpu module "
        "no_python quiet same_network debug enable_cpu_affinity tpu_use_cluster"
    ),
    frozenset(),
    frozenset(),
)


class Option(Struct, frozen=True):
    """An option on a command line."""

    name: str
    """The long name; that of launchers with underscores."""
    given: str
    """The option as written, such as `-N`."""
    value: Word | None
    place: int
    end: int

    @property
    def text(self) -> str:
        """Its value with quotes removed; empty for none."""
        return self.value.value if self.value else ""


def options_of(words: Sequence[Word], grammar: Grammar) -> tuple[list[Option], int]:
    """Return the options at the beginning of words, and the number of their words. A word that
    starts with an unknown expansion, and is not the last one, counts as options."""
    found: list[Option] = []
    at = 0
    while at < len(words):
        word = words[at]
        if word.value == "--":
            return found, at + 1
        if word.value.startswith("--"):
            option, used = _long(words, at, grammar)
            found.append(option)
        elif word.value.startswith("-") and len(word.value) > 1:
            options, used = _short(words, at, grammar)
            found += options
        elif word.expansions and word.expansions[0].place == word.place and at + 1 < len(words):
            used = 1
        else:
            break
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


def _short(words: Sequence[Word], at: int, grammar: Grammar) -> tuple[list[Option], int]:
    """Return the options of one word: several flags may follow one dash, as in `-lN2`
    (getopt(3))."""
    word = words[at]
    found: list[Option] = []
    letters = len(word.value) if isinstance(word.pieces[0], Literal) else 2
    for index in range(1, letters):
        letter = word.value[index]
        given = f"-{letter}"
        name = grammar.short.get(letter, letter)
        attached = word.behind(index + 1)
        if name in grammar.flags and letter in grammar.short:
            found.append(Option(name, given, None, word.place, word.end))
            continue
        if attached.value:
            return [*found, Option(name, given, attached, word.place, word.end)], 1
        if _takes_none(name, grammar) or at + 1 == len(words):
            return [*found, Option(name, given, None, word.place, word.end)], 1
        following = words[at + 1]
        return [*found, Option(name, given, following, word.place, following.end)], 2
    return found, 1
