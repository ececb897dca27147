#!/bin/bash
# addresses: accelerate, 2 x 2 ranks
# Written by dslaunch 0.1.0 from clusters/addresses.yaml; print it again with:
#   dslaunch slurm --render clusters/addresses.yaml
#SBATCH --job-name=train
#SBATCH --chdir="/home/me/my project"
#SBATCH --output=%x-%j.out
#SBATCH --no-requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH --exclusive
set -euo pipefail
unset SLURM_CLUSTERS # of the submission; the commands below query the cluster of this job

# Write the state of this job to <output>.verdict.json, since SLURM forgets jobs within minutes. The
# argument is the exit code, or `null` at the start.
write_verdict() { ... }
this_start=$((${SLURM_RESTART_COUNT:-0} + 1)) began=$(date +%s)
slurm_version=$(scontrol --version 2>/dev/null) || slurm_version=
echo "dslaunch: job $SLURM_JOB_ID, start $this_start on $SLURM_JOB_NODELIST"
write_verdict null || true
trap 'write_verdict $? || true' EXIT
trap 'exit 143' TERM # otherwise bash writes exit code 0 for a canceled job

# This script runs on the first node. The port differs between jobs on the same node.
export MASTER_ADDR="${SLURMD_NODENAME}"
export MASTER_PORT=29600
echo "dslaunch 0.1.0: master $MASTER_ADDR:$MASTER_PORT, bash $BASH_VERSION"

# Start a command in the background, so that signals are handled while it runs; $child is its PID.
# A trap interrupts `wait`, and bash can lose the exit code of a child that ends at that moment. So
# a subshell that ignores signals waits for it, and reports the PID, then the exit code.
start() { ... }
# Wait for the command; $code is its exit code, or 137 if the subshell was killed too.
finish() { ... }

# Every node runs this; variables with the prefix SLURM_ are expanded there.
on_each_node=$(
  declare -f start finish
  cat <<'END'
# Run a command, and forward TERM to it.
# SLURM signals only this shell or, with some proctrack plugins, all its children. No process may get
# a signal twice: a signal to all kills the canary, and then none is forwarded.
attend() { ... }
pass_on() { ... }
leave() { ... }
# Print versions on one node, without importing the packages.
print_versions() { ... }

export GLOO_SOCKET_IFNAME=bond0
export NCCL_SOCKET_IFNAME='=bond0'
cd '/home/me/my project' || exit
print_versions python3 torch accelerate
ranks=$((SLURM_NNODES * 2))
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
attend python3 -u -m accelerate.commands.launch --num_processes="$ranks" \
  --num_machines="$SLURM_NNODES" --machine_rank="$SLURM_NODEID" --main_process_ip="$MASTER_ADDR" \
  --main_process_port="$MASTER_PORT" --gpu_ids=all --multi_gpu --same_network --tee=3 train.py \
  --deepspeed ds_config.json
leave
exit "$code"
END
)

trap : TERM # SLURM terminates the steps; this script waits until they have ended
start srun --kill-on-bad-exit=1 --wait=300 --label --export=ALL --mpi=none bash -c "$on_each_node"
finish
exit "$code"
