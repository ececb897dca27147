#!/bin/bash
# addresses: accelerate, 2 x 2 ranks; written by dslaunch
#SBATCH --job-name=train
#SBATCH --chdir="/home/me/my project"
#SBATCH --output=%x-%j.out
#SBATCH --no-requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH --exclusive
set -euo pipefail

# this runs on the first node; no two jobs of a node share a port
export MASTER_ADDR="${SLURMD_NODENAME}"
export MASTER_PORT=29600

# every node runs this; what begins with SLURM_ has its value there
on_each_node=$(
  cat <<'END'
export GLOO_SOCKET_IFNAME=bond0
export NCCL_SOCKET_IFNAME='=bond0'
cd '/home/me/my project' || exit
ranks=$((SLURM_NNODES * 2))
python3 -u -m accelerate.commands.launch --num_processes="$ranks" --num_machines="$SLURM_NNODES" \
  --machine_rank="$SLURM_NODEID" --main_process_ip="$MASTER_ADDR" \
  --main_process_port="$MASTER_PORT" --gpu_ids=all --multi_gpu --same_network --tee=3 train.py \
  --deepspeed ds_config.json &
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
