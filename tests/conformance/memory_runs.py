"""Trainings whose memory is measured, and what is estimated for each; on CPUs or GPUs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.ports import free_port

from dslaunch.deepspeed.memory import (
    Machines,
    MemorySettings,
    Model,
    Strategy,
    bucket_parts,
    peak,
    state_parts,
)

BUCKET = 1_000_000
PROGRAM = Path(__file__).with_name("measure_memory.py")


@dataclass(frozen=True)
class Case:
    """A model of equal layers on a number of ranks of one machine."""

    hidden: int
    layers: int
    ranks: int

    @property
    def model(self) -> Model:
        """Return its size."""
        return Model(self.hidden * self.hidden * self.layers, self.hidden * self.hidden)

    def estimates(self, strategy: Strategy) -> tuple[float, float]:
        """Return the estimated peaks of a training step, per rank: GPU and CPU bytes."""
        machines, settings = Machines(1, self.ranks), MemorySettings(reduce_bucket=BUCKET)
        parts = (
            *state_parts(self.model, machines, strategy, settings),
            *bucket_parts(self.model, strategy, settings),
        )
        loaded = tuple(part for part in parts if part.when != "loading")
        return peak(loaded, "gpu"), peak(loaded, "cpu") / self.ranks

    def measured(
        self,
        directory: Path,
        runs: list[tuple[Strategy, dict[str, Any]]],
        environment: Mapping[str, str],
    ) -> list[dict[str, Any]]:
        """Return what the ranks took, for each strategy with its ZeRO settings."""
        path = directory / "configs.json"
        path.write_text(json.dumps([_config(strategy, more) for strategy, more in runs]))
        port = free_port()
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={self.ranks}",
             f"--master_port={port}", str(PROGRAM), str(path), str(self.hidden),
             str(self.layers)],
            env=environment, capture_output=True, text=True, check=False, timeout=500,
        )  # fmt: skip
        found = re.search(r"^MEASURED (.*)$", done.stdout, re.M)
        assert found, done.stderr[-3000:]
        results: list[dict[str, Any]] = json.loads(found[1])
        return results


def _config(strategy: Strategy, more: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": strategy.stage, "reduce_bucket_size": BUCKET, **more},
    }
