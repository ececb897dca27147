"""Run DeepSpeed's converter so that it loads nothing but what is known to be harmless.

The text of this file is given to a Python that has DeepSpeed: `python -c TEXT NAMES ARGUMENTS...`.
The converter loads shards with `torch.load(weights_only=False)`, which runs whatever a shard names.
This program makes torch use its restricted unpickler anyway. NAMES, separated by commas, are what
it may load in addition to torch's own. Without NAMES it loads everything.

Without DeepSpeed it exits with EX_UNAVAILABLE (sysexits.h).
"""

from __future__ import annotations

import sys

sys.path[:] = [place for place in sys.path if place]  # the working directory is not trusted

import contextlib  # noqa: E402 - see above
import importlib.util  # noqa: E402
import os  # noqa: E402
import runpy  # noqa: E402
import warnings  # noqa: E402


def main() -> None:
    """Remove the names from the arguments, and run DeepSpeed's converter with the others."""
    names = sys.argv.pop(1)
    if importlib.util.find_spec("deepspeed") is None:
        sys.exit(os.EX_UNAVAILABLE)
    if names:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            restrict(names.split(","))
    runpy.run_module("deepspeed.utils.zero_to_fp32", run_name="__main__", alter_sys=True)


def restrict(names: list[str]) -> None:
    """Make torch load nothing but tensors, plain values and `names`."""
    import torch

    allow = getattr(torch.serialization, "add_safe_globals", None)
    if allow is None:  # torch 2.3 and older: only the check of the shards protects
        return
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    for name in names:
        module, _, last = name.rpartition(".")
        with contextlib.suppress(ImportError, AttributeError):
            found = getattr(importlib.import_module(module), last)
            allow([found])
            if name != f"{found.__module__}.{found.__qualname__}":
                allow([(found, name)])
    with contextlib.suppress(ImportError):
        types = vars(importlib.import_module("numpy.dtypes")).values()
        allow([kind for kind in types if isinstance(kind, type)])


if __name__ == "__main__":
    main()
