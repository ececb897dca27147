"""The names of the rules of `dslaunch config lint`."""

from __future__ import annotations

NAMES = frozenset({
    "auto-batch", "auto-stage", "auto-unresolved", "batch", "batch-autotp", "batch-fraction",
    "batch-missing", "batch-world", "bf16-accumulation", "bf16-model", "bf16-reduction",
    "both-precisions", "coerced-value", "contiguous-activations", "cpu-memory", "datastates",
    "deprecated-key", "duplicate-key", "elastic-checkpoint", "gpt-neox", "grad-norm",
    "hf-activation-checkpointing", "hf-inference", "hf-mismatch", "hf-node-local",
    "hf-optimizer-offload", "hf-precision", "hf-scheduler", "hf-text", "hpz", "ignored-key",
    "lamb-scale", "legacy-stage1", "local-elastic", "local-model-parallel", "local-universal",
    "local-writer", "loss-scale", "master-weights", "max-grad-norm", "missing-key",
    "missing-parameter", "misspelt-auto", "muon-scatter", "no-bf16", "no-object", "no-params",
    "no-tf32", "no-type", "no-zero", "not-gathered", "not-json", "nvme-directory", "nvme-path",
    "nvme-stage", "offload-stage", "old-and-new", "one-bit-zero", "optimizer", "other-file",
    "param-dtype", "partial-offload", "pcie-stage3", "pipeline-stage", "plateau", "predivide",
    "prescale", "quantised-groups", "removed-key", "scheduler", "stage3-key", "sum-reduction",
    "syntax", "template", "unchecked-choice", "unchecked-type", "unknown-key",
    "unknown-parameter", "untested-optimizer", "warmup-steps", "wrong-batch", "wrong-type",
    "wrong-value",
})  # fmt: skip
"""Every rule, in alphabetical order. A name is stable over releases: people ignore rules by it."""
