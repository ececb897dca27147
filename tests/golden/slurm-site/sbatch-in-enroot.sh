#!/bin/bash
# slurm-site: deepspeed, 4 x 4 ranks
# Written by dslaunch 0.1.0 from clusters/slurm-site.yaml; print it again with:
#   dslaunch slurm --render clusters/slurm-site.yaml
#SBATCH --job-name=train
#SBATCH --chdir=/fsx/team/train
#SBATCH --output=%x-%j.out
#SBATCH --no-requeue
#SBATCH --partition=gpu
#SBATCH --account=lab
#SBATCH --time=20:00:00
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=10
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
export NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility

# Every task runs this on its node: it passes the variables to the container and starts it.
into_container=$(
  cat <<'END'
words=('--mount=/my\040data:/data:none:x-create=auto,rbind,ro')
for name in "${!SLURM@}" "${!PMI@}" \
  MASTER_ADDR MASTER_PORT CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES \
  GPU_DEVICE_ORDINAL ZE_AFFINITY_MASK; do
  [ -n "${!name+set}" ] || continue
  if [[ ${!name} == *$'\n'* ]]; then
    echo "enroot cannot pass $name: its value has several lines" >&2
    exit 1
  fi
  words+=("--env=$name")
done
exec enroot start "${words[@]}" /images/train.sqsh "$@"
END
)

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

: "${SLURM_PROCID:?did not reach the container}"
: "${MASTER_ADDR:?did not reach the container}"
export NCCL_SOCKET_IFNAME='=eth0'
cd /fsx/team/train || exit
print_versions python3 torch deepspeed
world= n=0
gpus=${CUDA_VISIBLE_DEVICES:-0,1,2,3}
[[ $gpus =~ ^[0-9]+(,[0-9]+){3}$ ]] || gpus=0,1,2,3
while ((n < SLURM_NNODES)); do world+=",\"$((n++))\":[$gpus]"; done
world=$(printf '{%s}' "${world#,}" | base64 -w 0 | tr '+/' '-_')
attend python3 -u -m deepspeed.launcher.launch --world_info="$world" --node_rank="$SLURM_NODEID" \
  --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" train.py --resume auto
leave
exit "$code"
END
)

trap : TERM # SLURM terminates the steps; this script waits until they have ended
start srun --kill-on-bad-exit=1 --wait=300 --label --export=ALL --cpus-per-task=10 --mpi=none bash -c \
  "$into_container" dslaunch bash -c "$on_each_node"
finish
exit "$code"
