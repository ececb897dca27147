"""What a job writes about its own end: a small JSON file beside its output, by the shell alone.

SLURM forgets a job some minutes after its end, and not every site has accounting; batch hosts need
not have Python. The file is written at each start and at its end, in one step, for its user alone.
`slurm/job_files.py` reads it.
"""

from __future__ import annotations

START_MARK = "dslaunch:"
"""Begins the line with which a start of a job begins in its output, to which all starts append."""
SUFFIX = ".verdict.json"
"""The file's name is that of the output with this."""
LINES_READ = 10_000
"""Of the output's end, in which SLURM's own lines about the end are looked for."""
LINES_KEPT = 8

_SHELL = r"""
# Write how this job stands beside its output, as <output>@SUFFIX@: SLURM forgets jobs within
# minutes. The argument is the exit code, or `null` at the start.
write_verdict() {
  local code=$1 output file evidence text ended=null
  output=$(readlink "/proc/$$/fd/1") && [ -f "$output" ] || return 0
  [ "$code" = null ] || ended=$(date +%s)
  # what srun and slurmstepd said since the last start, as JSON strings; read from the open file,
  # since others may have put something in the place of its name
  evidence=$(tail -n @READ@ -- "/proc/$$/fd/1" | LC_ALL=C awk '
    /^@MARK@ job [0-9]+, start [0-9]+/ { kept = 0 }
    /srun: error: |slurmstepd[^ ]*: error: / && !/\*\*\* STEP / && kept < @KEPT@ {
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
      "$ended" "$code" "@NODES@" "$SLURMD_NODENAME" \
      "@VERSION@" "$slurm_version" "$BASH_VERSION" "$evidence"
  )
  file=$(mktemp -u -- "$output.XXXXXX") || return 0
  # noclobber makes the file or fails, so that a link of others is never written through
  if (umask 077 && set -o noclobber && echo "$text" >"$file"); then
    mv -fT -- "$file" "$output@SUFFIX@" && return 0
  fi
  rm -f -- "$file" # a full disk
}
this_start=$((${SLURM_RESTART_COUNT:-0} + 1)) began=$(date +%s)
slurm_version=$(scontrol --version 2>/dev/null) || slurm_version=
echo "@MARK@ job $SLURM_JOB_ID, start $this_start on @NODES@"
write_verdict null || true
trap 'write_verdict $? || true' EXIT
trap 'exit 143' TERM # without it bash takes the exit code of a job that is canceled for 0
"""


def verdict_lines(version: str, nodes: str) -> str:
    """Return the lines of the batch script that write the job's verdict, now and at its end.

    `version` is that of dslaunch, `nodes` shell text for the names of all nodes. The lines set a
    trap for EXIT, and print the mark of a start.
    """
    values = {
        "@SUFFIX@": SUFFIX,
        "@READ@": str(LINES_READ),
        "@KEPT@": str(LINES_KEPT),
        "@MARK@": START_MARK,
        "@VERSION@": version,
        "@NODES@": nodes,
    }
    text = _SHELL.strip()
    for name, value in values.items():
        text = text.replace(name, value)
    return text
