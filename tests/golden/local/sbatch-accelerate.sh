#!/bin/bash
# local: accelerate, 2 x 2 ranks
# Written by dslaunch 0.1.0 from clusters/local.yaml; this prints it again:
#   dslaunch slurm --render clusters/local.yaml
#SBATCH --job-name=train
#SBATCH --output=%x-%j.out
#SBATCH --no-requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH --exclusive
set -euo pipefail
unset SLURM_CLUSTERS # where it was submitted from; commands here are for the job's own cluster

# Write how this job stands beside its output, as <output>.verdict.json: SLURM forgets jobs within
# minutes. The argument is the exit code, or `null` at the start.
write_verdict() { ... }
this_start=$((${SLURM_RESTART_COUNT:-0} + 1)) began=$(date +%s)
slurm_version=$(scontrol --version 2>/dev/null) || slurm_version=
echo "dslaunch: job $SLURM_JOB_ID, start $this_start on $SLURM_JOB_NODELIST"
write_verdict null || true
trap 'write_verdict $? || true' EXIT
trap 'exit 143' TERM # without it bash takes the exit code of a job that is canceled for 0

# This script runs on the first node. No two jobs of a node share a port.
export MASTER_ADDR="${SLURMD_NODENAME}"
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 10000))
echo "dslaunch 0.1.0: master $MASTER_ADDR:$MASTER_PORT, bash $BASH_VERSION"

# Run a command in the background, so that signals need not wait for its end; $child is its process.
# A trap interrupts `wait`, and bash can lose the exit code of a child that ends at that moment. So
# a subshell that ignores signals waits, and reports first the process, then its exit code.
start() { ... }
# Wait for its end; $code is its exit code, or 137 if the subshell was killed, too.
finish() { ... }

# Every node runs this; variables that begin with SLURM_ have their values there.
on_each_node=$(
  declare -f start finish
  cat <<'END'
# Run a command, and pass TERM on to it.
# SLURM signals this shell alone or, with some proctrack plugins, all that it started. Nothing must
# get a signal twice: what all get ends the canary, and then there is nothing to pass on.
attend() { ... }
pass_on() { ... }
leave() { ... }
# Print versions, on one node; packages are not imported for it.
print_versions() { ... }

cd "$HOME"/work || exit
print_versions python3 torch accelerate
ranks=$((SLURM_NNODES * 2))
attend python3 -u -m accelerate.commands.launch --num_processes="$ranks" \
  --num_machines="$SLURM_NNODES" --machine_rank="$SLURM_NODEID" --main_process_ip="$MASTER_ADDR" \
  --main_process_port="$MASTER_PORT" --gpu_ids=all --multi_gpu --same_network --tee=3 train.py \
  --deepspeed ds_config.json
leave
exit "$code"
END
)

trap : TERM # SLURM ends the steps itself; the script stays until they have ended
start srun --kill-on-bad-exit=1 --wait=300 --label --export=ALL --mpi=none bash -c "$on_each_node"
finish
exit "$code"
