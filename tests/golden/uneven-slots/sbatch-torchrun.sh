#!/bin/bash
# uneven-slots: torchrun, 1 x 8 + 1 x 4 + 1 x 2 ranks; written by dslaunch
#SBATCH --job-name=train
#SBATCH --chdir="/home/me/my project"
#SBATCH --output=%x-%j.out
#SBATCH --no-requeue
#SBATCH --nodes=1
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

# this runs on the first node; no two jobs of a node share a port
export MASTER_ADDR="${SLURMD_NODENAME}"
export MASTER_PORT=29400

# every node of component 0 runs this; what begins with SLURM_ has its value there
on_component_0=$(
  cat <<'END'
export GLOO_SOCKET_IFNAME=eth0
export NCCL_SOCKET_IFNAME='=eth0'
cd '/home/me/my project' || exit
python3 -u -m torch.distributed.run --nnodes=3 --nproc-per-node=8 --node-rank="$SLURM_NODEID" \
  --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --tee=3 train.py --model 'llama 8b' \
  --note 'it costs $$5' &
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

# every node of component 1 runs this; what begins with SLURM_ has its value there
on_component_1=$(
  cat <<'END'
export GLOO_SOCKET_IFNAME=eth0
export NCCL_SOCKET_IFNAME='=eth0'
cd '/home/me/my project' || exit
python3 -u -m torch.distributed.run --nnodes=3 --nproc-per-node=4 --node-rank="$SLURM_NODEID" \
  --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --tee=3 train.py --model 'llama 8b' \
  --note 'it costs $$5' &
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

# every node of component 2 runs this; what begins with SLURM_ has its value there
on_component_2=$(
  cat <<'END'
export GLOO_SOCKET_IFNAME=eth0
export NCCL_SOCKET_IFNAME='=eth0'
cd '/home/me/my project' || exit
python3 -u -m torch.distributed.run --nnodes=3 --nproc-per-node=2 --node-rank="$SLURM_NODEID" \
  --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --tee=3 train.py --model 'llama 8b' \
  --note 'it costs $$5' &
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

srun --kill-on-bad-exit=1 --wait=300 --label --export=ALL --het-group=0 bash -c \
  "$on_component_0" : \
  --kill-on-bad-exit=1 --wait=300 --label --export=ALL --het-group=1 bash -c "$on_component_1" : \
  --kill-on-bad-exit=1 --wait=300 --label --export=ALL --het-group=2 bash -c "$on_component_2"
