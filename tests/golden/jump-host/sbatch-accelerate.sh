#!/bin/bash
# jump-host: accelerate, 3 x 4 ranks; written by dslaunch
#SBATCH --job-name=trainer.main
#SBATCH --output=%x-%j.out
#SBATCH --no-requeue
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
#SBATCH --exclusive
set -euo pipefail

# this runs on the first node; no two jobs of a node share a port
export MASTER_ADDR="${SLURMD_NODENAME}"
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 10000))

# every node runs this; what begins with SLURM_ has its value there
on_each_node=$(
  cat <<'END'
cd "$HOME"/projects/llm || exit
ranks=$((SLURM_NNODES * 4))
"$HOME"/venvs/train/bin/python -u -m accelerate.commands.launch --num_processes="$ranks" \
  --num_machines="$SLURM_NNODES" --machine_rank="$SLURM_NODEID" --main_process_ip="$MASTER_ADDR" \
  --main_process_port="$MASTER_PORT" --gpu_ids=all --multi_gpu --same_network --tee=3 --module \
  trainer.main --config configs/7b.yaml &
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
