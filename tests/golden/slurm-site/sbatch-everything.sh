#!/bin/bash -l
# slurm-site: torchrun, 4 x 4 ranks
# Written by dslaunch 0.1.0 from clusters/slurm-site.yaml; this prints it again:
#   dslaunch slurm --render clusters/slurm-site.yaml
#SBATCH --job-name=train
#SBATCH --chdir=/fsx/team/train
#SBATCH --output=logs/%x-%A_%a.out
#SBATCH --error=logs/%x-%A_%a.err
#SBATCH --comment="llama, 3rd try"
#SBATCH --wckey=llm
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
#SBATCH --licenses=x:2
#SBATCH --segment=2
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --mem=0
#SBATCH --tmp=100G
#SBATCH --exclude=bad[1-2]
#SBATCH --hint=nomultithread
set -euo pipefail
unset SLURM_CLUSTERS # where it was submitted from; commands here are for the job's own cluster

# Write how this job stands beside its output, as <output>.verdict.json: SLURM forgets jobs within
# minutes. The argument is the exit code, or `null` at the start.
write_verdict() {
  local code=$1 output file evidence text ended=null
  output=$(readlink "/proc/$$/fd/1") && [ -f "$output" ] || return 0
  [ "$code" = null ] || ended=$(date +%s)
  # what srun and slurmstepd said since the last start, as JSON strings; read from the open file,
  # since others may have put something in the place of its name
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
  # noclobber makes the file or fails, so that a link of others is never written through
  if (umask 077 && set -o noclobber && echo "$text" >"$file"); then
    mv -fT -- "$file" "$output.verdict.json" && return 0
  fi
  rm -f -- "$file" # a full disk
}
this_start=$((${SLURM_RESTART_COUNT:-0} + 1)) began=$(date +%s)
slurm_version=$(scontrol --version 2>/dev/null) || slurm_version=
echo "dslaunch: job $SLURM_JOB_ID, start $this_start on $SLURM_JOB_NODELIST"
write_verdict null || true
trap 'write_verdict $? || true' EXIT
trap 'exit 143' TERM # without it bash takes the exit code of a job that is canceled for 0

# SLURM itself has no limit for requeues
if ((${SLURM_RESTART_COUNT:-0} > 3)); then
  echo "job $SLURM_JOB_ID was requeued 3 times and is not again" >&2
  exit 1
fi

set +u # modules and conda read unset variables
module load cuda
set -u

# This script runs on the first node. No two jobs of a node share a port.
export MASTER_ADDR="${SLURMD_NODENAME}i"
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 10000))
echo "dslaunch 0.1.0: master $MASTER_ADDR:$MASTER_PORT, bash $BASH_VERSION"

# Run a command in the background, so that signals need not wait for its end; $child is its process.
# A trap interrupts `wait`, and bash can lose the exit code of a child that ends at that moment. So
# a subshell that ignores signals waits, and reports first the process, then its exit code.
start() {
  exec {output}>&1
  exec {report}< <(
    [ -z "${notice:-}" ] || trap '' "$notice"
    trap : TERM # the command does not inherit a trap, as it would an ignored signal
    "$@" >&"$output" {output}>&- &
    echo "$!"
    trap '' HUP INT TERM USR1 USR2
    code=0
    wait "$!" || code=$?
    echo "$code"
  )
  exec {output}>&-
  # shellcheck disable=SC2034 # for traps
  read -r child <&"$report"
}
# Wait for its end; $code is its exit code, or 137 if the subshell was killed, too.
finish() {
  read -r code <&"$report" || code=137
  exec {report}<&-
}

# Every node runs this; variables that begin with SLURM_ have their values there.
on_each_node=$(
  declare -f start finish
  cat <<'END'
# Run a command, and pass signals on to it: TERM, and to ranks the notice before the time limit.
# SLURM signals this shell alone or, with some proctrack plugins, all that it started. Nothing must
# get a signal twice: what all get ends the canary, and then there is nothing to pass on.
attend() {
  sleep infinity > /dev/null 2>&1 &
  # shellcheck disable=SC2034 # `noticed` is for the end
  canary=$! child='' early=${early:-} noticed=${noticed:-}
  disown
  trap 'pass_on TERM' TERM
  trap 'noticed=1; pass_on "$notice"' "$notice"
  start "$@"
  for signal in $early; do pass_on "$signal"; done
}
pass_on() {
  if [ -z "$child" ]; then
    early+=" $1"
    return
  fi
  sleep 0.2 # SLURM may still be signaling
  # shellcheck disable=SC2046 # several processes
  ! kill -0 "$canary" 2> /dev/null || kill "-$1" $(receivers "$1") 2> /dev/null || :
}
receivers() {
  if [ "$1" = "$notice" ] && [ -n "${launcher:-}" ]; then
    cat "/proc/$child/task/$child/children"
  else
    echo "$child"
  fi
}
leave() {
  finish
  kill "$canary" 2> /dev/null || :
  [ "$code" = 0 ] || sleep 1 # srun ends the step at once, and may drop the last lines of output
}
# Print versions, on one node; packages are not imported for it.
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

notice=USR1 launcher=1
trap 'noticed=1 early+=" USR1"' USR1
: "${SLURM_PROCID:?did not reach the container}"
: "${MASTER_ADDR:?did not reach the container}"
export NCCL_SOCKET_IFNAME='=eth0'
cd /fsx/team/train || exit
print_versions python3 torch
attend python3 -u -m torch.distributed.run --nnodes="$SLURM_NNODES" --nproc-per-node=4 \
  --node-rank="$SLURM_NODEID" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --tee=3 \
  train.py --resume auto
leave
[ -z "$noticed" ] || ((${SLURM_RESTART_COUNT:-0} >= 3)) || exit 0
exit "$code"
END
)

trap : TERM # SLURM ends the steps itself; the script stays until they have ended
# Before the time limit SLURM signals this script, which passes the signal on to all nodes.
child='' asked=''
trap 'asked=1; [ -z "$child" ] || kill -USR1 "$child" || :' USR1
export SLURM_DEBUG=1
start srun --kill-on-bad-exit=1 --wait=300 --label --export=ALL --cpus-per-task=16 --mpi=none \
  --cpu-bind=none --container-image=/images/train.sqsh \
  --container-mounts=/data:/data,/home:/home:ro --container-env=MASTER_ADDR,MASTER_PORT \
  bash -c "$on_each_node"
finish
write_verdict "$code" || true # a slow end may be cut off

(
  set +eu
rsync -a /tmp/out /nfs/
) || :
case $(squeue --noheader --format=%T --jobs="$SLURM_JOB_ID" 2>/dev/null) in
  *COMPLETING* | *CANCELLED*) asked='' ;; # it was canceled, and is not to come back
esac
if [ -n "$asked" ] && ((${SLURM_RESTART_COUNT:-0} < 3)); then
  echo "job $SLURM_JOB_ID is requeued"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
