"""The shape of the cluster file's `slurm:`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dslaunch.cluster.kinds import Label, Matching, Section, Text, Written

OneLine = Annotated[Written, Matching(r"[^\s\x00](?:[^\r\n\x00]*[^\s\x00])?", "text of one line")]
Memory = Annotated[Written, Matching(r"[0-9]+[KMGT]?", "a size such as `500G`, or `0` for all")]
Signal = Annotated[Written, Matching(r"USR[12]@[1-9][0-9]{0,4}", "such as `USR1@600`")]
NamePart = Annotated[Written, Matching(r"[A-Za-z0-9.-]+", "part of a host's name")]
Count = Annotated[Written, Matching(r"[1-9][0-9]{0,6}", "a number from 1 to 9999999")]


class ContainerSection(Section):
    """The image in which the ranks run."""

    runtime: Literal["pyxis", "apptainer"] = Field(
        "pyxis", description="`pyxis`: the plugin of srun; `apptainer`: the program on the nodes."
    )
    image: OneLine = Field(description="What the runtime is given, such as `/images/train.sqsh`.")
    mounts: list[OneLine] = Field(
        default_factory=list, description="Directories to see in it: `/data`, `/data:/mnt:ro`."
    )
    options: list[OneLine] = Field(
        default_factory=list, description="More words for srun, or for `apptainer exec`."
    )


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
    nodes: Count | None = Field(
        None, description="How many nodes. Default: as many as are chosen from `nodes`."
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
    mem: Memory | None = Field(None, description="Memory of each node.")
    constraint: OneLine | None = Field(None, description="Features that the nodes must have.")
    exclusive: (
        Annotated[Written, Matching(r"true|false|user|mcs", "true, false, `user` or `mcs`")] | None
    ) = Field(
        None,
        description="Whole nodes. Default: `true`, unless `cpus_per_task` or `mem` is given.",
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
    array: (
        Annotated[Written, Matching(r"[0-9][0-9,:%-]*", "indexes such as `0-9%1` or `1,3`")] | None
    ) = Field(None, description="Many jobs in one; `0-9%1` is a chain of ten.")
    dependency: OneLine | None = Field(
        None, description="Jobs to wait for, such as `afterany:123` or `singleton`."
    )
    requeue: Annotated[Written, Matching(r"[0-9]{1,4}", "how often, a number")] | None = Field(
        None,
        description="How often the job may go back into the queue: after a lost node, a "
        "preemption, or `signal`. Default: never.",
    )
    signal: Signal | None = Field(
        None,
        description="What the ranks on all nodes get so many seconds before the time limit: "
        "`USR1@600` or `USR2@600`. Ranks without a handler ignore it.",
    )
    setup: list[Text] = Field(
        default_factory=list,
        description="Shell lines before the start, on the first node, such as `module load cuda`.",
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
