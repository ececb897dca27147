#!/bin/bash
# slurm-site: torchrun, 4 x 4 ranks; written by dslaunch
#SBATCH --job-name=train
#SBATCH --chdir=/fsx/team/train
#SBATCH --output=logs/%x-%A_%a.out
#SBATCH --mail-type=END
#SBATCH --mail-user=me@site
#SBATCH --array=0-9%1
#SBATCH --dependency=afterany:12
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@600
#SBATCH --partition=a,b
#SBATCH --qos=high
#SBATCH --constraint="a100&ib"
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --mem=0
#SBATCH --exclude=bad[1-2]
#SBATCH --hint=nomultithread
set -euo pipefail

# SLURM itself knows no bound
if ((${SLURM_RESTART_COUNT:-0} > 3)); then
  echo "job $SLURM_JOB_ID was requeued 3 times and is not again" >&2
  exit 1
fi

set +u # modules and conda read unset variables
module load cuda
set -u

# this runs on the first node; no two jobs of a node share a port
export MASTER_ADDR="${SLURMD_NODENAME}i"
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 10000))

# every node runs this; what begins with SLURM_ has its value there
on_each_node=$(
  cat <<'END'
export NCCL_SOCKET_IFNAME='=eth0'
cd /fsx/team/train || exit
trap '' USR1 # until a rank sets a handler
python3 -u -m torch.distributed.run --nnodes="$SLURM_NNODES" --nproc-per-node=4 \
  --node-rank="$SLURM_NODEID" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --tee=3 \
  train.py --resume auto &
launcher=$! asked=0 warned=false
trap 'asked=$((asked + 1)) warned=true; kill -USR1 $(cat "/proc/$launcher/task/$launcher/children")' USR1
trap 'asked=$((asked + 1)); kill "$launcher" 2> /dev/null' TERM
while :; do
  seen=$asked
  wait "$launcher"; code=$?
  [ "$seen" != "$asked" ] || break
done
! $warned || ! ((${SLURM_RESTART_COUNT:-0} < 3)) || exit 0
[ "$code" = 0 ] || sleep 1 # srun ends the step at once, and may drop the last words
exit "$code"
END
)

# before the time limit SLURM signals this script, which passes it on to all nodes
asked=
trap 'asked=1; kill -USR1 "$step"' USR1
srun --kill-on-bad-exit=1 --wait=300 --label --export=ALL --cpus-per-task=16 \
  --container-image=/images/train.sqsh --container-mounts=/data:/data,/home:/home:ro \
  --container-env=MASTER_ADDR,MASTER_PORT bash -c "$on_each_node" &
step=$!
while :; do
  seen=$asked code=0
  wait "$step" || code=$?
  [ "$seen" = "$asked" ] && break
done
if [ -n "$asked" ] && ((${SLURM_RESTART_COUNT:-0} < 3)); then
  echo "job $SLURM_JOB_ID goes back into the queue"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
