"""The names of the rules of `dslaunch slurm lint`."""

from __future__ import annotations

NAMES = frozenset({
    "abbreviated-option", "broken-pipe", "cuda-visible-devices", "cut-directive",
    "deepspeed-under-srun", "dos-line-breaks", "early-rank", "endless-wait", "export-list",
    "fixed-port", "fixed-rendezvous-id", "gpus-mismatch", "gpus-per-task", "hidden-exit-code",
    "hostname-address", "ignored-node-rank", "late-directive", "launch-node-address",
    "launcher-per-task", "local-master", "localhost-fallback", "lost-exit-code",
    "missing-output-directory", "no-gpu-request", "no-kill-on-bad-exit", "no-meeting-place",
    "no-node-rank", "no-shebang", "no-srun", "no-wait", "node-list-as-name", "nodes-mismatch",
    "not-a-directive", "not-a-number", "not-exported", "not-read-whole", "old-launcher",
    "overwritten-log", "port-per-node", "rendezvous-alias", "shared-output",
    "signal-ends-launcher", "signal-without-trap", "split-list", "srun-cpus", "stray-word",
    "syntax-error", "template", "trap-comes-late", "two-gpu-requests", "unbounded-requeue",
    "unexpanded-rank", "unknown-option", "unset-variable", "variable-in-directive",
    "wait-forgets",
})  # fmt: skip
"""Every rule, in alphabetical order. A name is stable over releases: people ignore rules by it."""
