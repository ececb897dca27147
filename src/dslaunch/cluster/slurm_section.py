"""The schema of `slurm:` in the cluster file."""

from __future__ import annotations

from dslaunch.cluster.container_section import ContainerSection
from dslaunch.cluster.forms import ListOf, OneOf, Section, SectionForm, Text, key
from dslaunch.cluster.text_forms import LABEL, ONE_LINE, TEXT

MEMORY = Text(
    r"[0-9]+(?:[KMGT]B?)?", "a size such as `500G` or `500GB`, or `0` for all", written=True
)
SIGNAL = Text(
    r"(?:R?B?:|BR:)?(?:SIG)?(?:USR1|USR2|TERM|HUP|INT|CONT)(?:@[0-9]{1,5})?",
    "a signal such as `USR1@600`: USR1, USR2, TERM, HUP, INT or CONT, at most 65535 s",
    written=True,
)
SRUN_WORD = Text(
    r"--[a-z][a-z0-9-]*(?:=[^\r\n\x00]*)?|[A-Z_][A-Z0-9_]*=[^\r\n\x00]*",
    "an option such as `--cpu-bind=none`, or a variable such as `SLURM_CPU_BIND=none`",
    written=True,
)
SHELL = Text(
    r"(?:/[\w./-]*/)?bash(?: (?:-[a-z]+|--[a-z]+))?",
    "`bash`, `bash -l` or a path of bash",
    written=True,
)
NODE_COUNT = Text(
    r"[1-9][0-9]{0,6}(?:-[1-9][0-9]{0,6})?",
    "a number of nodes, or a range such as `2-4`",
    written=True,
)
NAME_PART = Text(r"[A-Za-z0-9.-]+", "part of a host name", written=True)
COUNT = Text(r"[1-9][0-9]{0,6}", "a number from 1 to 9999999", written=True)


class SlurmSection(Section):
    """Options of jobs submitted by `dslaunch slurm`. Use `directives` for others."""

    job_name: str | None = key(
        ONE_LINE, None, description="Name of the job. Default: name of the script."
    )
    partition: str | None = key(
        ONE_LINE, None, description="Partition, or several separated by commas."
    )
    account: str | None = key(ONE_LINE, None, description="Account to charge.")
    qos: str | None = key(ONE_LINE, None, description="Quality of service (QOS).")
    time: str | None = key(
        Text(
            r"(?:[0-9]+-)?[0-9]+(?::[0-9]{1,2}){0,2}|UNLIMITED",
            "minutes, `hours:minutes:seconds` or `days-hours:minutes:seconds`",
            written=True,
        ),
        None,
        description="Time limit, such as `20:00:00` or `2-12` (2 days, 12 hours).",
    )
    nodes: str | None = key(
        NODE_COUNT,
        None,
        description="Number of nodes, or a range such as `2-4`. Default: the number of selected "
        "nodes.",
    )
    gpus: str = key(
        OneOf(("gres", "gpus_per_node", "none")),
        "gres",
        description="How to request GPUs: `--gres=gpu:8`, `--gpus-per-node=8`, or not at all.",
    )
    gpu_label: str | None = key(
        LABEL,
        None,
        description="Label of nodes that holds the GPU type, as in `--gres=gpu:h100:8`. Each type "
        "becomes one component of a heterogeneous job.",
    )
    cpus_per_task: str | None = key(
        COUNT,
        None,
        description="CPUs of the launcher of a node, or of a rank with `launcher: direct`.",
    )
    mem: str | None = key(
        MEMORY,
        None,
        description="Memory per node: `500G`, `500GB`, or `0` for all. Default: the default of the "
        "site (DefMemPerNode), which may be less than all, also with `exclusive`.",
    )
    mem_per_cpu: str | None = key(MEMORY, None, description="Memory per CPU, instead of `mem`.")
    mem_per_gpu: str | None = key(MEMORY, None, description="Memory per GPU, instead of `mem`.")
    cpus_per_gpu: str | None = key(
        COUNT, None, description="CPUs per GPU, instead of `cpus_per_task`; needs GPUs as GRES."
    )
    tmp: str | None = key(MEMORY, None, description="Disk space in TmpFS that each node must have.")
    comment: str | None = key(ONE_LINE, None, description="Comment for the accounting of the site.")
    licenses: str | None = key(ONE_LINE, None, description="Licenses, such as `matlab:2,ansys`.")
    wckey: str | None = key(ONE_LINE, None, description="Workload characterization key.")
    segment: str | None = key(
        COUNT,
        None,
        description="Number of nodes that must be in one block of the network, with "
        "topology/block (SLURM 24.05 or later).",
    )
    constraint: str | None = key(ONE_LINE, None, description="Features that the nodes must have.")
    exclusive: str | None = key(
        Text(r"true|false|user|mcs|topo", "true, false, `user`, `mcs` or `topo`", written=True),
        None,
        description="Request whole nodes. Default: `true`, unless CPUs or memory are set. `topo`: "
        "whole blocks of the network (SLURM 24.05 or later).",
    )
    reservation: str | None = key(ONE_LINE, None, description="Reservation.")
    nodelist: str | None = key(
        ONE_LINE, None, description="Nodes that must be allocated, such as `node[01-02]`."
    )
    exclude: str | None = key(
        ONE_LINE, None, description="Nodes that must not be allocated, such as `node[03-04]`."
    )
    switches: str | None = key(
        ONE_LINE,
        None,
        description="Maximum number of leaf switches, and how long to wait: `1@2:00:00`.",
    )
    mail_type: str | None = key(
        ONE_LINE, None, description="Events to send mail for, such as `END,FAIL`."
    )
    mail_user: str | None = key(ONE_LINE, None, description="Recipient of the mail.")
    output: str | None = key(
        ONE_LINE,
        None,
        description="File for the output, with the patterns of sbatch. Its directory is created "
        "before submission. Default: `NAME-JOB.out` in the working directory.",
    )
    error: str | None = key(
        ONE_LINE, None, description="File for standard error. Default: the same as `output`."
    )
    array: str | None = key(
        Text(r"[0-9][0-9,:%-]*", "indexes such as `0-9%1` or `1,3`", written=True),
        None,
        description="Array of jobs; `0-9%1` runs ten jobs, one at a time.",
    )
    dependency: str | None = key(
        ONE_LINE, None, description="Jobs to wait for, such as `afterany:123` or `singleton`."
    )
    requeue: str | None = key(
        Text(r"[0-9]{1,4}|site", "a number, or `site`", written=True),
        None,
        description="How often the job may be requeued: after a lost node, a preemption, or "
        "`signal`. `site`: setting of the site (JobRequeue), without a limit. Default: never.",
    )
    signal: str | None = key(
        SIGNAL,
        None,
        description="Signal to send to all ranks, and how many seconds before the time limit "
        "(default: 60): `USR1@600`, `TERM@120`. Ranks without a handler ignore it, except TERM.",
    )
    shell: str | None = key(
        SHELL,
        None,
        description="Shell of the batch script; `bash -l` reads the login files. "
        "Default: `/bin/bash`.",
    )
    srun: list[str] = key(
        ListOf(SRUN_WORD),
        (),
        description="More options of srun, such as `--cpu-bind=none` or `--mpi=pmix`; they "
        "override ours. Also environment variables of srun: `SLURM_CPU_BIND=none`.",
    )
    supervised: str | None = key(
        Text(r"true|false", "true or false", written=True),
        None,
        description="Run `dslaunch run --slurm` on the first node, with checks, hang timeout, "
        "root cause and restarts as over SSH. Default: SLURM alone starts the ranks.",
    )
    restarts: str | None = key(
        Text(r"[0-9]{1,4}", "a number from 0 to 9999", written=True),
        None,
        description="How often to restart the ranks within the job after a failure or a lost "
        "node; needs `supervised: true` or `launcher: elastic`. Default: never.",
    )
    setup: list[str] = key(
        ListOf(TEXT),
        (),
        description="Shell commands to run first, on the first node, such as `module load cuda`.",
    )
    teardown: list[str] = key(
        ListOf(TEXT),
        (),
        description="Shell commands to run last, on the first node, such as `rsync -a /tmp/out "
        "/nfs/`. They do not change the exit code, and end with the time limit.",
    )
    master_suffix: str | None = key(
        NAME_PART,
        None,
        description="Suffix of the first node's name on the fast network, such as `i` or "
        "`.ib.site`.",
    )
    container: ContainerSection | None = key(
        SectionForm(ContainerSection), None, description="Container of the ranks. Default: none."
    )
    directives: list[str] = key(
        ListOf(Text(r"--?[A-Za-z][^\r\n\x00]*", "an option such as `--hint=nomultithread`")),
        (),
        description="More `#SBATCH` options, passed unchanged; they override the others.",
    )
