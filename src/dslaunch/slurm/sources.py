"""Sources of several rules. Facts about SLURM were tested with release 22.05.8."""

SBATCH = "SLURM, sbatch(1)"
SBATCH_OUTPUT = "SLURM, sbatch(1), --output and --open-mode"
SBATCH_VARIABLES = "SLURM, sbatch(1), output environment variables"
SRUN_CPUS = (
    "SLURM, release notes of 22.05 (SLURM_CPUS_PER_TASK no longer read) and 23.11 (read again);"
    " srun/opt.c, env_vars"
)
SRUN_KILL = (
    "SLURM, srun(1), --kill-on-bad-exit; stas00/ml-engineering, orchestration/slurm/launchers"
)
EXPANSION = "stas00/ml-engineering, orchestration/slurm; huggingface/accelerate issues 1645, 2816"
HEAD = "POSIX, Shell Command Language, 2.9.2; bash(1), pipefail; stas00/ml-engineering"
TORCHRUN = "PyTorch, torch.distributed.run: --nnodes, --master-addr, --rdzv-endpoint"
TORCHRUN_ALIAS = (
    "pytorch issue 73656; torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py"
)
ACCELERATE = "Accelerate, accelerate launch: --num_machines, --machine_rank, --main_process_ip"
BASH_WAIT = "bash(1), wait"
REQUEUE = "SLURM, scontrol(1), requeue; sbatch(1), SLURM_RESTART_COUNT; TorchX slurm_scheduler.py"
GRES = "SLURM, gres.html; awsome-distributed-ai issue 71"
