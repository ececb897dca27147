"""The names of the options of sbatch and srun.

From src/common/slurm_opt.c (branches 22.05 to 26.05): an option is known if one of these releases
has it.
"""

from __future__ import annotations


def named(text: str) -> frozenset[str]:
    """Return the names in a text, separated by spaces."""
    return frozenset(text.split())


COMMON_FLAGS = named(
    "consolidate-segments contiguous help hold overcommit oversubscribe parsable quiet reboot "
    "spread-job spread-segments stepmgr test-only usage use-min-nodes verbose version"
)
COMMON_OPTIONAL = named("exclusive nice no-kill oom-kill-step propagate resv-ports")
"""Options whose value, if any, follows an equals sign."""
COMMON_VALUES = named(
    "account acctg-freq autocomplete bb bbf begin chdir cluster cluster-constraint clusters "
    "comment constraint container container-id container-type context core-spec "
    "cores-per-socket cpu-freq "
    "cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error exclude export "
    "extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task "
    "gres gres-flags hint input job-name licenses mail-type mail-user mcs-label mem mem-bind "
    "mem-per-cpu mem-per-gpu mem-update mincpus network nodefile nodelist nodes ntasks "
    "ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres open-mode "
    "output partition power prefer priority profile qos reservation resources segment signal "
    "sockets-per-node switches tasks-per-node thread-spec threads-per-core time time-min tmp "
    "tres-bind tres-per-task uid wckey"
)
SBATCH_FLAGS = COMMON_FLAGS | named("external ignore-pbs no-requeue wait")
SBATCH_OPTIONAL = COMMON_OPTIONAL | named("get-user-env requeue")
SBATCH_VALUES = COMMON_VALUES | named(
    "array batch export-file kill-on-invalid-dep wait-all-nodes wrap"
)
OTHER_NAMES = {
    "array-inx": "array",
    "burst-buffer": "bb",
    "cpu-freq-req": "cpu-freq",
    "mem-per-node": "mem",
    "req-switch": "switches",
    "segment-size": "segment",
    "timelimit": "time",
    "wait4switch": "switches",
}
"""Names in sbatch's variables of options that have another name, such as SBATCH_BURST_BUFFER
(22.05 to 25.05, src/sbatch/opt.c)."""


def as_directive(key: str) -> str | None:
    """Return the sbatch option of a key, as written in a script; None: unknown."""
    name = key.lower().replace("_", "-")
    option = OTHER_NAMES.get(name, name)
    if option in SBATCH_FLAGS:
        return f"--{option}"
    if option in SBATCH_VALUES | SBATCH_OPTIONAL:
        return f"--{option}=..."
    return None
