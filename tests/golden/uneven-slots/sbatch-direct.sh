#!/bin/bash
# uneven-slots: direct, 1 x 8 + 1 x 4 + 1 x 2 ranks; written by dslaunch
#SBATCH --job-name=train
#SBATCH --chdir="/home/me/my project"
#SBATCH --output=%x-%j.out
#SBATCH --no-requeue
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gres=gpu:8
#SBATCH --exclusive
#SBATCH hetjob
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
#SBATCH --exclusive
#SBATCH hetjob
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --gres=gpu:2
#SBATCH --exclusive
set -euo pipefail

# this runs on the first node; no two jobs of a node share a port
export MASTER_ADDR="${SLURMD_NODENAME}"
export MASTER_PORT=29400

# every rank of component 0 runs this; what begins with SLURM_ has its value there
on_component_0=$(
  cat <<'END'
export GLOO_SOCKET_IFNAME=eth0
export NCCL_SOCKET_IFNAME='=eth0'
cd '/home/me/my project' || exit
export RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID" WORLD_SIZE=14 LOCAL_WORLD_SIZE=8 \
  GROUP_RANK="$SLURM_NODEID" NODE_RANK="$SLURM_NODEID" GROUP_WORLD_SIZE=3
export TORCH_NCCL_ASYNC_ERROR_HANDLING="${TORCH_NCCL_ASYNC_ERROR_HANDLING:-1}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
python3 -u train.py --model 'llama 8b' --note 'it costs $5' &
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

# every rank of component 1 runs this; what begins with SLURM_ has its value there
on_component_1=$(
  cat <<'END'
export GLOO_SOCKET_IFNAME=eth0
export NCCL_SOCKET_IFNAME='=eth0'
cd '/home/me/my project' || exit
export RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID" WORLD_SIZE=14 LOCAL_WORLD_SIZE=4 \
  GROUP_RANK="$SLURM_NODEID" NODE_RANK="$SLURM_NODEID" GROUP_WORLD_SIZE=3
export TORCH_NCCL_ASYNC_ERROR_HANDLING="${TORCH_NCCL_ASYNC_ERROR_HANDLING:-1}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
python3 -u train.py --model 'llama 8b' --note 'it costs $5' &
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

# every rank of component 2 runs this; what begins with SLURM_ has its value there
on_component_2=$(
  cat <<'END'
export GLOO_SOCKET_IFNAME=eth0
export NCCL_SOCKET_IFNAME='=eth0'
cd '/home/me/my project' || exit
export RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID" WORLD_SIZE=14 LOCAL_WORLD_SIZE=2 \
  GROUP_RANK="$SLURM_NODEID" NODE_RANK="$SLURM_NODEID" GROUP_WORLD_SIZE=3
export TORCH_NCCL_ASYNC_ERROR_HANDLING="${TORCH_NCCL_ASYNC_ERROR_HANDLING:-1}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
python3 -u train.py --model 'llama 8b' --note 'it costs $5' &
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

srun --kill-on-bad-exit=1 --wait=300 --label --export=ALL --het-group=0 bash -c \
  "$on_component_0" : \
  --kill-on-bad-exit=1 --wait=300 --label --export=ALL --het-group=1 bash -c "$on_component_1" : \
  --kill-on-bad-exit=1 --wait=300 --label --export=ALL --het-group=2 bash -c "$on_component_2"
