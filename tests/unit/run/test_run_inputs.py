"""What a run was started from, as its record has it."""

from __future__ import annotations

import json

import pytest

from dslaunch import log
from dslaunch.run.run_inputs import masked_config


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize(
    "secret", ['pass"word-of-a-run', "pässwort-of-a-run", "with\\backslash-of-a-run"]
)
def test_a_secret_is_masked_however_the_config_writes_it(secret: str, ascii_only: bool) -> None:
    log.conceal([secret])
    config = {"wandb": {"team": secret}, "list": [f"x {secret}"], "steps": 3}
    kept = json.loads(masked_config(json.dumps(config, ensure_ascii=ascii_only)))
    assert kept == {"wandb": {"team": "***"}, "list": ["x ***"], "steps": 3}
