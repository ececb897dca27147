#!/bin/bash
# local: direct, 2 x 2 ranks; written by dslaunch
#SBATCH --job-name=train
#SBATCH --output=%x-%j.out
#SBATCH --no-requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gres=gpu:2
#SBATCH --exclusive
set -euo pipefail

# this runs on the first node; no two jobs of a node share a port
export MASTER_ADDR="${SLURMD_NODENAME}"
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 10000))

# every rank runs this; what begins with SLURM_ has its value there
on_each_rank=$(
  cat <<'END'
cd "$HOME"/work || exit
export RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID" WORLD_SIZE="$SLURM_NTASKS" \
  LOCAL_WORLD_SIZE=2 GROUP_RANK="$SLURM_NODEID" NODE_RANK="$SLURM_NODEID" \
  GROUP_WORLD_SIZE="$SLURM_NNODES"
export TORCH_NCCL_ASYNC_ERROR_HANDLING="${TORCH_NCCL_ASYNC_ERROR_HANDLING:-1}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
python3 -u train.py --deepspeed ds_config.json &
rank=$! asked=0
trap 'asked=$((asked + 1)); kill "$rank" 2> /dev/null' TERM
while :; do
  seen=$asked
  wait "$rank"; code=$?
  [ "$seen" != "$asked" ] || break
done
[ "$code" = 0 ] || sleep 1 # srun ends the step at once, and may drop the last words
exit "$code"
END
)

srun --kill-on-bad-exit=1 --wait=300 --label --export=ALL bash -c "$on_each_rank"
