"""Shell functions that run a command and end with its exit code, whatever signals arrive.

The batch script and what runs on the nodes use the same functions: they stand once in the script,
and `declare -f` hands them to the nodes.

Why not `command & wait $!`: a trap interrupts `wait`, and a child that ends at that moment
is reaped and its status dropped (bash 4.2 to 5.3, jobs.c, waitchld: CHECK_WAIT_INTR stands between
waitpid and the job table). A second `wait` then says 127 or 255. So a subshell that ignores TERM
waits, and reports by a pipe; `read` goes on after a trap.
"""

from __future__ import annotations

FUNCTIONS = r"""
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
"""
"""For the batch script and, by DECLARED, for the nodes."""
DECLARED = "declare -f start finish"
"""The command that prints FUNCTIONS."""

ON_NODES = r"""
# Run a command, and pass signals on to it: TERM, and to ranks the notice before the time limit.
# SLURM signals this shell alone or, with some proctrack plugins, all that it started. Nothing must
# get a signal twice: what all get ends the canary, and then there is nothing to pass on.
attend() {
  sleep infinity > /dev/null 2>&1 &
  # shellcheck disable=SC2034 # `noticed` is for the end
  canary=$! child='' early=${early:-} noticed=${noticed:-}
  disown
  trap 'pass_on TERM' TERM
  [ -z "${notice:-}" ] || trap 'noticed=1; pass_on "$notice"' "$notice"
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
  if [ "$1" = "${notice:-}" ] && [ -n "${launcher:-}" ]; then
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
"""
"""What the text of every node begins with, behind FUNCTIONS."""
