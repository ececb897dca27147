#!/bin/bash
# mixed: elastic, 2 x 8 + 1 x 4 + 1 x 2 ranks
# Written by dslaunch 0.1.0 from clusters/mixed.yaml; print it again with:
#   dslaunch slurm --render clusters/mixed.yaml
#SBATCH --job-name=train
#SBATCH --chdir="/home/me/my project"
#SBATCH --output=%x-%j.out
#SBATCH --no-requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
#SBATCH --exclusive
#SBATCH hetjob
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
#SBATCH --exclusive
#SBATCH hetjob
#SBATCH --nodes=1
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
echo "dslaunch: job $SLURM_JOB_ID, start $this_start on $SLURM_JOB_NODELIST_HET_GROUP_0,$SLURM_JOB_NODELIST_HET_GROUP_1,$SLURM_JOB_NODELIST_HET_GROUP_2"
write_verdict null || true
trap 'write_verdict $? || true' EXIT
trap 'exit 143' TERM # otherwise bash writes exit code 0 for a canceled job
: "${WANDB_API_KEY:?secret is not set; set it where you call sbatch}"
: "${HF_TOKEN:?secret is not set; set it where you call sbatch}"

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

# Every node starts with this; variables with the prefix SLURM_ are expanded there.
on_all=$(
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

export NCCL_DEBUG=INFO
export GREETING='it'"'"'s "quoted" and costs $5'
END
)

# Every node of component 0 continues with this; variables with the prefix SLURM_ are expanded there.
on_component_0=$(
  printf '%s\n' "$on_all"
  cat <<'END'
cd '/home/me/my project' || exit
print_versions python3 torch
is_host=false; [ "$SLURM_NODEID" != 0 ] || is_host=true
attempt=${SLURM_RESTART_COUNT:-0}
export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[${role_name}${rank}]:'
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
attend python3 -u -m torch.distributed.run --nnodes=4 --nproc-per-node=8 --max-restarts=0 \
  --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID"-"$attempt" \
  --rdzv-endpoint="$MASTER_ADDR":"$MASTER_PORT" --rdzv-conf=is_host="$is_host" \
  --local-addr="$SLURMD_NODENAME" --tee=3 train.py --deepspeed ds_config.json
leave
exit "$code"
END
)

# Every node of component 1 continues with this; variables with the prefix SLURM_ are expanded there.
on_component_1=$(
  printf '%s\n' "$on_all"
  cat <<'END'
export NCCL_IB_DISABLE=1
cd '/home/me/my project' || exit
print_versions /opt/python3.11/bin/python3 torch
is_host=false; [ "$SLURM_NODEID" != 0 ] || is_host=true
attempt=${SLURM_RESTART_COUNT:-0}
export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[${role_name}${rank}]:'
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
attend /opt/python3.11/bin/python3 -u -m torch.distributed.run --nnodes=4 --nproc-per-node=4 \
  --max-restarts=0 --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID"-"$attempt" \
  --rdzv-endpoint="$MASTER_ADDR":"$MASTER_PORT" --rdzv-conf=is_host="$is_host" \
  --local-addr="$SLURMD_NODENAME" --tee=3 train.py --deepspeed ds_config.json
leave
exit "$code"
END
)

# Every node of component 2 continues with this; variables with the prefix SLURM_ are expanded there.
on_component_2=$(
  printf '%s\n' "$on_all"
  cat <<'END'
cd '/home/me/my project' || exit
source "$HOME/train env/bin/activate" || exit
print_versions python3 torch
is_host=false; [ "$SLURM_NODEID" != 0 ] || is_host=true
attempt=${SLURM_RESTART_COUNT:-0}
export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[${role_name}${rank}]:'
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
attend python3 -u -m torch.distributed.run --nnodes=4 --nproc-per-node=2 --max-restarts=0 \
  --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID"-"$attempt" \
  --rdzv-endpoint="$MASTER_ADDR":"$MASTER_PORT" --rdzv-conf=is_host="$is_host" \
  --local-addr="$SLURMD_NODENAME" --tee=3 train.py --deepspeed ds_config.json
leave
exit "$code"
END
)

trap : TERM # SLURM terminates the steps; this script waits until they have ended
start srun --kill-on-bad-exit=1 --wait=300 --label --export=ALL --mpi=none --het-group=0 \
  bash -c "$on_component_0" : \
  --kill-on-bad-exit=1 --wait=300 --label --export=ALL --mpi=none --het-group=1 \
  bash -c "$on_component_1" : \
  --kill-on-bad-exit=1 --wait=300 --label --export=ALL --mpi=none --het-group=2 \
  bash -c "$on_component_2"
finish
exit "$code"
