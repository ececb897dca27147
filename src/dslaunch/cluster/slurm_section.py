"""The shape of the cluster file's `slurm:`."""

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
        "such as `USR1@600`, with one of USR1, USR2, TERM, HUP, INT, CONT and at most 65535 s",
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
    Matching(r"(?:/[\w./-]*/)?bash(?: (?:-[a-z]+|--[a-z]+))?", "`bash`, `bash -l` or a path of it"),
]
NodeCount = Annotated[
    Written,
    Matching(
        r"[1-9][0-9]{0,6}(?:-[1-9][0-9]{0,6})?", "a number of nodes, or a range such as `2-4`"
    ),
]
NamePart = Annotated[Written, Matching(r"[A-Za-z0-9.-]+", "part of a host's name")]
Count = Annotated[Written, Matching(r"[1-9][0-9]{0,6}", "a number from 1 to 9999999")]


class SlurmSection(Section):
    """What `dslaunch slurm` asks SLURM for. Options that are not here stand in `directives`."""

    job_name: OneLine | None = Field(None, description="Default: the script's name.")
    partition: OneLine | None = Field(None, description="Where the job waits; commas for several.")
    account: OneLine | None = Field(None, description="Who pays.")
    qos: OneLine | None = Field(None, description="The quality of service.")
    time: (
        Annotated[
            Written,
            Matching(
                r"(?:[0-9]+-)?[0-9]+(?::[0-9]{1,2}){0,2}|UNLIMITED",
                "minutes, `hours:minutes:seconds` or `days-hours:minutes:seconds`",
            ),
        ]
        | None
    ) = Field(None, description="The time limit, such as `20:00:00` or `2-12`.")
    nodes: NodeCount | None = Field(
        None,
        description="How many nodes, or a range: `2-4`. Default: as many as are chosen from "
        "`nodes`.",
    )
    gpus: Literal["gres", "gpus_per_node", "none"] = Field(
        "gres",
        description="How GPUs are asked for: `--gres=gpu:8`, `--gpus-per-node=8`, or not at all.",
    )
    gpu_label: Label | None = Field(
        None,
        description="The label of `nodes` that is the GPU's type for SLURM, as in "
        "`--gres=gpu:h100:8`. Each type becomes one component of a heterogeneous job.",
    )
    cpus_per_task: Count | None = Field(
        None, description="CPUs of each node's launcher, or of each rank with `launcher: direct`."
    )
    mem: Memory | None = Field(
        None,
        description="Memory of each node: `500G`, `500GB`, or `0` for all of it. Default: what the "
        "site has set (DefMemPerNode and its like), which may be less, also with `exclusive`.",
    )
    mem_per_cpu: Memory | None = Field(None, description="Memory for each CPU, instead of `mem`.")
    mem_per_gpu: Memory | None = Field(None, description="Memory for each GPU, instead of `mem`.")
    cpus_per_gpu: Count | None = Field(
        None, description="CPUs for each GPU, instead of `cpus_per_task`; needs GPUs as GRES."
    )
    tmp: Memory | None = Field(None, description="Disk space that each node must have in TmpFS.")
    comment: OneLine | None = Field(None, description="Any text, for the site's accounting.")
    licenses: OneLine | None = Field(None, description="Licenses, such as `matlab:2,ansys`.")
    wckey: OneLine | None = Field(None, description="The workload characterization key.")
    segment: Count | None = Field(
        None,
        description="Nodes that must lie in one block of the network, with topology/block "
        "(SLURM 24.05 or later).",
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
        description="Whole nodes. Default: `true`, unless CPUs or memory are given. `topo`: whole "
        "blocks of the network (SLURM 24.05 or later).",
    )
    reservation: OneLine | None = Field(None, description="A reservation's name.")
    nodelist: OneLine | None = Field(None, description="Nodes that must be among them, folded.")
    exclude: OneLine | None = Field(None, description="Nodes that must not be, folded.")
    switches: OneLine | None = Field(
        None, description="At most so many leaf switches, and how long to wait: `1@2:00:00`."
    )
    mail_type: OneLine | None = Field(None, description="When to send mail, such as `END,FAIL`.")
    mail_user: OneLine | None = Field(None, description="To whom.")
    output: OneLine | None = Field(
        None,
        description="Where the output goes, with the patterns of sbatch. Its directory is made "
        "before the job is submitted. Default: `NAME-JOB.out` in the working directory.",
    )
    error: OneLine | None = Field(
        None, description="Where standard error goes. Default: with the output."
    )
    array: (
        Annotated[Written, Matching(r"[0-9][0-9,:%-]*", "indexes such as `0-9%1` or `1,3`")] | None
    ) = Field(None, description="Many jobs in one; `0-9%1` is a chain of ten.")
    dependency: OneLine | None = Field(
        None, description="Jobs to wait for, such as `afterany:123` or `singleton`."
    )
    requeue: (
        Annotated[
            Written,
            Matching(r"[0-9]{1,4}|site", "how often, a number, or `site` as it is set there"),
        ]
        | None
    ) = Field(
        None,
        description="How often the job may go back into the queue: after a lost node, a "
        "preemption, or `signal`. `site`: as the site has set it (JobRequeue), without a limit. "
        "Default: never.",
    )
    signal: Signal | None = Field(
        None,
        description="What the ranks on all nodes get so many seconds before the time limit (60 "
        "if not given): `USR1@600`, `TERM@120`. Ranks without a handler ignore it, except TERM.",
    )
    shell: Shell | None = Field(
        None,
        description="What runs the batch script: `bash -l` reads the login files. "
        "Default: `/bin/bash`.",
    )
    srun: list[SrunWord] = Field(
        default_factory=list,
        description="More words for srun, which win over ours, such as `--cpu-bind=none`, "
        "`--mpi=pmix`, `--distribution=block`; and variables for it: `SLURM_CPU_BIND=none`.",
    )
    supervised: Annotated[Written, Matching(r"true|false", "true or false")] | None = Field(
        None,
        description="Whether the job runs `dslaunch run --slurm` on its first node, with all that "
        "this does over SSH; else the ranks are started by SLURM alone.",
    )
    restarts: Annotated[Written, Matching(r"[0-9]{1,4}", "how often, a number")] | None = Field(
        None,
        description="How often the ranks are restarted within the job after a failure or a lost "
        "node; needs `supervised: true` or `launcher: elastic`. Default: never.",
    )
    setup: list[Text] = Field(
        default_factory=list,
        description="Shell lines before the start, on the first node, such as `module load cuda`.",
    )
    teardown: list[Text] = Field(
        default_factory=list,
        description="Shell lines after the end, on the first node, such as `rsync -a /tmp/out "
        "/nfs/`. They do not change the exit code, and have the time that the limit leaves.",
    )
    master_suffix: NamePart | None = Field(
        None,
        description="What is put behind the first node's name to reach it by the fast network, "
        "such as `i` or `.ib.site`.",
    )
    container: ContainerSection | None = Field(
        None, description="The image in which the ranks run. Default: none."
    )
    directives: list[
        Annotated[
            str, Matching(r"--?[A-Za-z][^\r\n\x00]*", "an option such as `--hint=nomultithread`")
        ]
    ] = Field(
        default_factory=list,
        description="More `#SBATCH` lines, as they are; they win over the others.",
    )
