#!/bin/bash
# many-nodes: deepspeed, 64 x 8 ranks; written by dslaunch
#SBATCH --job-name=train
#SBATCH --chdir=/lustre/train
#SBATCH --output=%x-%j.out
#SBATCH --no-requeue
#SBATCH --nodes=64
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
export NCCL_DEBUG=WARN
export NCCL_IB_HCA=mlx5_0,mlx5_1
export GLOO_SOCKET_IFNAME=ib0
export NCCL_SOCKET_IFNAME='=ib0'
cd /lustre/train || exit
source /lustre/venvs/train/bin/activate || exit
world= n=0
gpus=${CUDA_VISIBLE_DEVICES:-0,1,2,3,4,5,6,7}
[[ $gpus =~ ^[0-9]+(,[0-9]+){7}$ ]] || gpus=0,1,2,3,4,5,6,7
while ((n < SLURM_NNODES)); do world+=",\"$((n++))\":[$gpus]"; done
world=$(printf '{%s}' "${world#,}" | base64 -w 0 | tr '+/' '-_')
python3 -u -m deepspeed.launcher.launch --world_info="$world" --node_rank="$SLURM_NODEID" \
  --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" train.py --deepspeed ds_config.json &
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
