"""Run every benchmark in a short form, one after the other: `make bench`.

    python -m benchmarks [NAME...]

Takes a quarter of an hour on two idle CPUs; each benchmark alone measures more (`--help`, or its
docstring). One that fails does not end the others; then the exit code is 1.
"""

from __future__ import annotations

import subprocess
import sys
import time

SHORT = {
    "startup": ["3"],
    "load_nodes": [],
    "offline_scale": ["100", "1000"],
    "simulated": ["100", "300", "1000"],
    "usage_cost": [],
    "recorder": ["3"],
    "output": [],
    "launch_speed": ["2"],
    "peers": ["16", "--rounds", "2"],
    "many_nodes": ["16", "32"],
    "shipping": ["--size", "20", "--rate", "20", "1", "16"],
}
"""Arguments of each benchmark."""


def main() -> None:
    """Run those that are named, or all."""
    names = sys.argv[1:] or list(SHORT)
    failed = [name for name in names if not ran(name)]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def ran(name: str) -> bool:
    """Run a benchmark; return whether it succeeded."""
    arguments = SHORT[name]
    print(f"== python -m benchmarks.{' '.join([name, *arguments])}", flush=True)
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *arguments], check=False)
    print(f"== {name}: {time.monotonic() - began:.0f} s\n", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    main()
