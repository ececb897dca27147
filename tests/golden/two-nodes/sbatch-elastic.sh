#!/bin/bash
# two-nodes: elastic, 2 x 8 ranks; written by dslaunch
#SBATCH --job-name=train
#SBATCH --chdir="/home/me/my project"
#SBATCH --output=%x-%j.out
#SBATCH --no-requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
#SBATCH --exclusive
set -euo pipefail

# this runs on the first node; no two jobs of a node share a port
export MASTER_ADDR="${SLURMD_NODENAME}"
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 10000))

# every node runs this; what begins with SLURM_ has its value there
on_each_node=$(
  cat <<'END'
cd '/home/me/my project' || exit
is_host=false; [ "$SLURM_NODEID" != 0 ] || is_host=true
attempt=${SLURM_RESTART_COUNT:-0}
export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[${role_name}${rank}]:'
python3 -u -m torch.distributed.run --nnodes="$SLURM_NNODES" --nproc-per-node=8 --max-restarts=0 \
  --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID"-"$attempt" \
  --rdzv-endpoint="$MASTER_ADDR":"$MASTER_PORT" --rdzv-conf=is_host="$is_host" \
  --local-addr="$SLURMD_NODENAME" --tee=3 train.py --deepspeed ds_config.json &
launcher=$! asked=0
trap 'asked=$((asked + 1)); kill "$launcher" 2> /dev/null' TERM
while :; do
  seen=$asked
  wait "$launcher"; code=$?
  [ "$seen" != "$asked" ] || break
done
[ "$code" = 0 ] || sleep 1 # srun ends the step at once, and may drop the last words
exit "$code"
END
)

srun --kill-on-bad-exit=1 --wait=300 --label --export=ALL bash -c "$on_each_node"
