"""Runs in the interpreter that has DeepSpeed: reads configs as JSON lines, says what it does."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings


def main() -> None:
    """One line for each config: null where it is taken, else the error's kind and first words."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(sys.stderr):
        import logging

        from deepspeed.runtime.config import DeepSpeedConfig

        logging.disable(logging.CRITICAL)
        answers = [judged(DeepSpeedConfig, json.loads(line)) for line in sys.stdin]
    for answer in answers:
        sys.stdout.write(json.dumps(answer) + "\n")


def judged(read: type, config: object) -> str | None:
    """What DeepSpeed says when it stops at a config."""
    try:
        read(config)
    except Exception as error:  # noqa: BLE001 - any way to fail is a refusal
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None


if __name__ == "__main__":
    main()
