"""Check the locked dependencies for known vulnerabilities with pip-audit.

    python -m tools.audit [OPTION OF PIP-AUDIT]...

Exit code 0: no known vulnerability in any of them. 1: at least one. 75 (EX_TEMPFAIL): not known,
because the advisory database could not be reached or does not know some of the packages; pip-audit
itself calls that "no known vulnerabilities found".

torch is not locked, and so not checked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tools.locked import REQUIREMENTS

CLEAN = 0
VULNERABLE = 1
UNKNOWN = os.EX_TEMPFAIL


def main(options: list[str]) -> int:
    """Run pip-audit on the lock files; print the result and return the exit code."""
    done = subprocess.run(_pip_audit(options), capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        print(f"audit: could not check: pip-audit failed: {reason}")
        return UNKNOWN
    return _judge(packages)


def _pip_audit(options: list[str]) -> list[str]:
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off"]
    # the lock files are complete, so that pip has nothing to resolve
    command.append("--disable-pip")
    for lock in ("test.lock", "deepspeed.lock"):  # all others are parts of these
        command += ["--requirement", str(REQUIREMENTS / lock)]
    return [*command, *options]


def _judge(packages: list[dict[str, Any]]) -> int:
    vulnerable = [package for package in packages if package.get("vulns")]
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    for package in vulnerable:
        for advisory in package["vulns"]:
            fixed = ", ".join(advisory["fix_versions"]) or "no version"
            print(f"{package['name']} {package['version']}: {advisory['id']}, fixed in {fixed}")
    if skipped:
        print(f"audit: could not check {len(skipped)} of {len(packages)} packages: ", end="")
        print(*skipped[:5], *(["..."] if skipped[5:] else []))
    if vulnerable:
        return VULNERABLE
    if skipped or not packages:
        return UNKNOWN
    print(f"audit: no known vulnerability in {len(packages)} packages")
    return CLEAN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
