"""The texts of the progress of a training. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.run.progress import Progress


def progress_parts(progress: Progress, *, speed: bool = True) -> Iterator[str]:
    """Yield `step 1,240/5,000`, `loss 2.113`, `3.1 it/s` and so on, as far as it is known.

    `speed`: whether steps and tokens per second are parts, too.
    """
    if progress.step is not None:
        yield f"step {step_text(progress)}"
    if progress.epoch is not None:
        yield f"epoch {progress.epoch:g}"
    if progress.loss is not None:
        yield f"loss {progress.loss:.4g}"
    if speed and progress.steps_per_second is not None:
        yield _rate(progress.steps_per_second)
    if speed and progress.tokens_per_second is not None:
        yield f"{progress.tokens_per_second:,.0f} tokens/s"


def step_text(progress: Progress | None) -> str:
    """Return `1,240/5,000`, or `1,240` if the last step is unknown; empty: no step is known."""
    if progress is None or progress.step is None:
        return ""
    last = f"/{progress.last_step:,}" if progress.last_step is not None else ""
    return f"{progress.step:,}{last}"


def _rate(steps_per_second: float) -> str:
    """Return iterations per second, or seconds per iteration if one takes longer than that."""
    if 0 < steps_per_second < 1:
        return f"{1 / steps_per_second:.3g} s/it"
    return f"{steps_per_second:.3g} it/s"
