"""The schema of `slurm:` in the cluster file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dslaunch.cluster.container_section import ContainerSection, OneLine
from dslaunch.cluster.field_types import Label, Matching, Section, Text, Written

Memory = Annotated[
    Written, Matching(r"[0-9]+(?:[KMGT]B?)?", "a size such as `500G` or `500GB`, or `0` for all")
]
Signal = Annotated[
    Written,
    Matching(
        r"(?:R?B?:|BR:)?(?:SIG)?(?:USR1|USR2|TERM|HUP|INT|CONT)(?:@[0-9]{1,5})?",
        "a signal such as `USR1@600`: USR1, USR2, TERM, HUP, INT or CONT, at most 65535 s",
    ),
]
SrunWord = Annotated[
    Written,
    Matching(
        r"--[a-z][a-z0-9-]*(?:=[^\r\n\x00]*)?|[A-Z_][A-Z0-9_]*=[^\r\n\x00]*",
        "an option such as `--cpu-bind=none`, or a variable such as `SLURM_CPU_BIND=none`",
    ),
]
Shell = Annotated[
    Written,
    Matching(
        r"(?:/[\w./-]*/)?bash(?: (?:-[a-z]+|--[a-z]+))?", "`bash`, `bash -l` or a path of bash"
    ),
]
NodeCount = Annotated[
    Written,
    Matching(
        r"[1-9][0-9]{0,6}(?:-[1-9][0-9]{0,6})?", "a number of nodes, or a range such as `2-4`"
    ),
]
NamePart = Annotated[Written, Matching(r"[A-Za-z0-9.-]+", "part of a host name")]
Count = Annotated[Written, Matching(r"[1-9][0-9]{0,6}", "a number from 1 to 9999999")]


class SlurmSection(Section):
    """Options of jobs submitted by `dslaunch slurm`. Use `directives` for others."""

    job_name: OneLine | None = Field(
        None, description="Name of the job. Default: name of the script."
    )
    partition: OneLine | None = Field(
        None, description="Partition, or several separated by commas."
    )
    account: OneLine | None = Field(None, description="Account to charge.")
    qos: OneLine | None = Field(None, description="Quality of service (QOS).")
    time: (
        Annotated[
            Written,
            Matching(
                r"(?:[0-9]+-)?[0-9]+(?::[0-9]{1,2}){0,2}|UNLIMITED",
                "minutes, `hours:minutes:seconds` or `days-hours:minutes:seconds`",
            ),
        ]
        | None
    ) = Field(None, description="Time limit, such as `20:00:00` or `2-12` (2 days, 12 hours).")
    nodes: NodeCount | None = Field(
        None,
        description="Number of nodes, or a range such as `2-4`. Default: the number of selected "
        "nodes.",
    )
    gpus: Literal["gres", "gpus_per_node", "none"] = Field(
        "gres",
        description="How to request GPUs: `--gres=gpu:8`, `--gpus-per-node=8`, or not at all.",
    )
    gpu_label: Label | None = Field(
        None,
        description="Label of nodes that holds the GPU type, as in `--gres=gpu:h100:8`. Each type "
        "becomes one component of a heterogeneous job.",
    )
    cpus_per_task: Count | None = Field(
        None, description="CPUs of the launcher of a node, or of a rank with `launcher: direct`."
    )
    mem: Memory | None = Field(
        None,
        description="Memory per node: `500G`, `500GB`, or `0` for all. Default: the default of the "
        "site (DefMemPerNode), which may be less than all, also with `exclusive`.",
    )
    mem_per_cpu: Memory | None = Field(None, description="Memory per CPU, instead of `mem`.")
    mem_per_gpu: Memory | None = Field(None, description="Memory per GPU, instead of `mem`.")
    cpus_per_gpu: Count | None = Field(
        None, description="CPUs per GPU, instead of `cpus_per_task`; needs GPUs as GRES."
    )
    tmp: Memory | None = Field(None, description="Disk space in TmpFS that each node must have.")
    comment: OneLine | None = Field(None, description="Comment for the accounting of the site.")
    licenses: OneLine | None = Field(None, description="Licenses, such as `matlab:2,ansys`.")
    wckey: OneLine | None = Field(None, description="Workload characterization key.")
    segment: Count | None = Field(
        None,
        description="Number of nodes that must be in one block of the network, with "
        "topology/block (SLURM 24.05 or later).",
    )
    constraint: OneLine | None = Field(None, description="Features that the nodes must have.")
    exclusive: (
        Annotated[
            Written,
            Matching(r"true|false|user|mcs|topo", "true, false, `user`, `mcs` or `topo`"),
        ]
        | None
    ) = Field(
        None,
        description="Request whole nodes. Default: `true`, unless CPUs or memory are set. `topo`: "
        "whole blocks of the network (SLURM 24.05 or later).",
    )
    reservation: OneLine | None = Field(None, description="Reservation.")
    nodelist: OneLine | None = Field(
        None, description="Nodes that must be allocated, such as `node[01-02]`."
    )
    exclude: OneLine | None = Field(
        None, description="Nodes that must not be allocated, such as `node[03-04]`."
    )
    switches: OneLine | None = Field(
        None, description="Maximum number of leaf switches, and how long to wait: `1@2:00:00`."
    )
    mail_type: OneLine | None = Field(
        None, description="Events to send mail for, such as `END,FAIL`."
    )
    mail_user: OneLine | None = Field(None, description="Recipient of the mail.")
    output: OneLine | None = Field(
        None,
        description="File for the output, with the patterns of sbatch. Its directory is created "
        "before submission. Default: `NAME-JOB.out` in the working directory.",
    )
    error: OneLine | None = Field(
        None, description="File for standard error. Default: the same as `output`."
    )
    array: (
        Annotated[Written, Matching(r"[0-9][0-9,:%-]*", "indexes such as `0-9%1` or `1,3`")] | None
    ) = Field(None, description="Array of jobs; `0-9%1` runs ten jobs, one at a time.")
    dependency: OneLine | None = Field(
        None, description="Jobs to wait for, such as `afterany:123` or `singleton`."
    )
    requeue: (
        Annotated[
            Written,
            Matching(r"[0-9]{1,4}|site", "a number, or `site`"),
        ]
        | None
    ) = Field(
        None,
        description="How often the job may be requeued: after a lost node, a preemption, or "
        "`signal`. `site`: setting of the site (JobRequeue), without a limit. Default: never.",
    )
    signal: Signal | None = Field(
        None,
        description="Signal to send to all ranks, and how many seconds before the time limit "
        "(default: 60): `USR1@600`, `TERM@120`. Ranks without a handler ignore it, except TERM.",
    )
    shell: Shell | None = Field(
        None,
        description="Shell of the batch script; `bash -l` reads the login files. "
        "Default: `/bin/bash`.",
    )
    srun: list[SrunWord] = Field(
        default_factory=list,
        description="More options of srun, such as `--cpu-bind=none` or `--mpi=pmix`; they "
        "override ours. Also environment variables of srun: `SLURM_CPU_BIND=none`.",
    )
    supervised: Annotated[Written, Matching(r"true|false", "true or false")] | None = Field(
        None,
        description="Run `dslaunch run --slurm` on the first node, with checks, hang timeout, "
        "root cause and restarts as over SSH. Default: SLURM alone starts the ranks.",
    )
    restarts: Annotated[Written, Matching(r"[0-9]{1,4}", "a number from 0 to 9999")] | None = Field(
        None,
        description="How often to restart the ranks within the job after a failure or a lost "
        "node; needs `supervised: true` or `launcher: elastic`. Default: never.",
    )
    setup: list[Text] = Field(
        default_factory=list,
        description="Shell commands to run first, on the first node, such as `module load cuda`.",
    )
    teardown: list[Text] = Field(
        default_factory=list,
        description="Shell commands to run last, on the first node, such as `rsync -a /tmp/out "
        "/nfs/`. They do not change the exit code, and end with the time limit.",
    )
    master_suffix: NamePart | None = Field(
        None,
        description="Suffix of the first node's name on the fast network, such as `i` or "
        "`.ib.site`.",
    )
    container: ContainerSection | None = Field(
        None, description="Container of the ranks. Default: none."
    )
    directives: list[
        Annotated[
            str, Matching(r"--?[A-Za-z][^\r\n\x00]*", "an option such as `--hint=nomultithread`")
        ]
    ] = Field(
        default_factory=list,
        description="More `#SBATCH` options, passed unchanged; they override the others.",
    )
