#!/bin/bash
# no-shared-storage: elastic, 2 x 4 ranks
# Written by dslaunch 0.1.0 from clusters/no-shared-storage.yaml; print it again with:
#   dslaunch slurm --render clusters/no-shared-storage.yaml
#SBATCH --job-name=finetune
#SBATCH --chdir=/scratch/train
#SBATCH --output=%x-%j.out
#SBATCH --no-requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
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
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 10000))
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

cd /scratch/train || exit
print_versions python3 torch
is_host=false; [ "$SLURM_NODEID" != 0 ] || is_host=true
attempt=${SLURM_RESTART_COUNT:-0}
export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[${role_name}${rank}]:'
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
attend python3 -u -m torch.distributed.run --nnodes="$SLURM_NNODES" --nproc-per-node=4 \
  --max-restarts=0 --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID"-"$attempt" \
  --rdzv-endpoint="$MASTER_ADDR":"$MASTER_PORT" --rdzv-conf=is_host="$is_host" \
  --local-addr="$SLURMD_NODENAME" --tee=3 finetune.py --deepspeed --deepspeed_config \
  ds_config.json --epochs 3
leave
exit "$code"
END
)

trap : TERM # SLURM terminates the steps; this script waits until they have ended
start srun --kill-on-bad-exit=1 --wait=300 --label --export=ALL --mpi=none bash -c "$on_each_node"
finish
exit "$code"
