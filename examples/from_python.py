"""Check two nodes, train on them and read the result, all from Python.

`python from_python.py clusters/local.yaml train_ddp.py --steps 20`, where that file emulates nodes
on this machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

import dslaunch


def main(cluster_file: str, script: str, *args: str) -> int:
    """Run the script on the cluster, and return the exit code that the run deserves."""
    directory = Path(script).resolve().parent
    try:
        cluster = dslaunch.Cluster.load(cluster_file)
        job = dslaunch.Job.on(cluster, Path(script).name, args, launcher="direct")
        report = dslaunch.preflight(cluster, job=job, tier="gate", cwd=directory)
        for finding in report.findings:
            if finding.level in ("fail", "warn"):
                print(f"{finding.level}: {finding.check}: {finding.found}", *finding.hosts)
        with dslaunch.run(cluster, job, cwd=directory) as run:
            for line in run.logs(ranks=[0], follow=True):
                print(f"{line.host} {line.rank} {line.text}")
            outcome = run.wait()
    except dslaunch.DslaunchError as error:
        print(f"{type(error).__name__}: {error.message}", error.hint or "", sep="\n")
        return error.exit_code
    print(f"{outcome.status} ({outcome.reason.code}), recorded in {run.directory}")
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
