#!/bin/bash
# two-nodes: torchrun, 2 x 8 ranks
# Written by dslaunch 0.1.0 from clusters/two-nodes.yaml; print it again with:
#   dslaunch slurm --render clusters/two-nodes.yaml
#SBATCH --job-name=train
#SBATCH --chdir="/home/me/my project"
#SBATCH --output=%x-%j.out
#SBATCH --no-requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
#SBATCH --exclusive
set -euo pipefail
unset SLURM_CLUSTERS # of the submission; the commands below query the cluster of this job

# Write the state of this job to <output>.verdict.json, since SLURM forgets jobs within minutes. The
# argument is the exit code, or `null` at the start.
write_verdict() {
  local code=$1 output file evidence text ended=null
  output=$(readlink "/proc/$$/fd/1") && [ -f "$output" ] || return 0
  [ "$code" = null ] || ended=$(date +%s)
  # messages of srun and slurmstepd since the last start, as JSON strings; read from the open file,
  # since another user may have replaced the file of that name
  evidence=$(tail -n 10000 -- "/proc/$$/fd/1" | LC_ALL=C awk '
    /^dslaunch: job [0-9]+, start [0-9]+/ { kept = 0 }
    /srun: error: |slurmstepd[^ ]*: error: / && !/\*\*\* STEP / && kept < 8 {
      gsub(/[^ -~]/, "?"); gsub(/["\\]/, "?")
      line[kept++] = "\"" substr($0, 1, 300) "\""
    }
    END { for (i = 0; i < kept; i++) printf "%s%s", i ? ", " : "", line[i] }
  ') || evidence=
  text=$(
    printf '{"version": 1, "job": "%s", "array": "%s", "task": "%s", "start": %d, "began": %d,
 "ended": %s, "exit_code": %s, "nodes": "%s", "batch_host": "%s",
 "versions": {"dslaunch": "%s", "slurm": "%s", "bash": "%s"}, "evidence": [%s]}' \
      "$SLURM_JOB_ID" "${SLURM_ARRAY_JOB_ID:-}" "${SLURM_ARRAY_TASK_ID:-}" "$this_start" "$began" \
      "$ended" "$code" "$SLURM_JOB_NODELIST" "$SLURMD_NODENAME" \
      "0.1.0" "$slurm_version" "$BASH_VERSION" "$evidence"
  )
  file=$(mktemp -u -- "$output.XXXXXX") || return 0
  # noclobber creates the file or fails, so a link of another user is never followed
  if (umask 077 && set -o noclobber && echo "$text" >"$file"); then
    mv -fT -- "$file" "$output.verdict.json" && return 0
  fi
  rm -f -- "$file" # the disk is full
}
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

# Start a command in the background, so that signals are handled while it runs; $child is its PID.
# A trap interrupts `wait`, and bash can lose the exit code of a child that ends at that moment. So
# a subshell that ignores signals waits for it, and reports the PID, then the exit code.
start() {
  exec {output}>&1
  exec {report}< <(
    trap : TERM # a trap is not inherited by the command, unlike an ignored signal
    "$@" >&"$output" {output}>&- &
    echo "$!"
    trap '' HUP INT TERM USR1 USR2
    code=0
    wait "$!" || code=$?
    echo "$code"
  )
  exec {output}>&-
  # shellcheck disable=SC2034 # used in traps
  read -r child <&"$report"
}
# Wait for the command; $code is its exit code, or 137 if the subshell was killed too.
finish() {
  read -r code <&"$report" || code=137
  exec {report}<&-
}

# Every node runs this; variables with the prefix SLURM_ are expanded there.
on_each_node=$(
  declare -f start finish
  cat <<'END'
# Run a command, and forward TERM to it.
# SLURM signals only this shell or, with some proctrack plugins, all its children. No process may get
# a signal twice: a signal to all kills the canary, and then none is forwarded.
attend() {
  RANK='' sleep infinity > /dev/null 2>&1 & # `dslaunch signal` finds ranks by this variable
  canary=$! child='' early=
  disown
  trap 'pass_on TERM' TERM
  start "$@"
  for signal in $early; do pass_on "$signal"; done
}
pass_on() {
  if [ -z "$child" ]; then
    early+=" $1"
    return
  fi
  sleep 0.2 # SLURM may still be sending signals
  ! kill -0 "$canary" 2> /dev/null || kill "-$1" "$child" 2> /dev/null || :
}
leave() {
  finish
  kill "$canary" 2> /dev/null || :
  [ "$code" = 0 ] || sleep 1 # srun kills the step at once, and may lose the last lines of output
}
# Print versions on one node, without importing the packages.
print_versions() {
  [ "$SLURM_PROCID" != 0 ] || "$1" -c '
import importlib.metadata, platform, sys
said = ["python " + platform.python_version()]
for name in sys.argv[1:]:
    try:
        said.append(name + " " + importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        said.append("no " + name)
print("dslaunch: " + ", ".join(said), flush=True)
' "${@:2}" 2> /dev/null || :
}

cd '/home/me/my project' || exit
print_versions python3 torch
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
attend python3 -u -m torch.distributed.run --nnodes="$SLURM_NNODES" --nproc-per-node=8 \
  --node-rank="$SLURM_NODEID" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --tee=3 \
  train.py --deepspeed ds_config.json
leave
exit "$code"
END
)

trap : TERM # SLURM terminates the steps; this script waits until they have ended
start srun --kill-on-bad-exit=1 --wait=300 --label --export=ALL --mpi=none bash -c "$on_each_node"
finish
exit "$code"
