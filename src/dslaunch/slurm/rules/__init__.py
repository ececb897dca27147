"""The rules for batch scripts, a function each from what was read to what is to be said."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dslaunch.lint import Remark
from dslaunch.slurm.launches import Reading

Rule = Callable[[Reading], Iterator[Remark]]
