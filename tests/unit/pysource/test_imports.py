"""What a script imports: certain only where no way through it goes without."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dslaunch.pysource.imports import Imports, imports_of

SCRIPT = '''
"""A training."""
from __future__ import annotations
import os, torch.distributed as dist
from transformers import Trainer
from . import sibling
import here.part
try:
    import flash_attn
except ImportError:
    flash_attn = None
if TYPE_CHECKING:
    import typed
def main():
    import deepspeed
if __name__ == "__main__":
    import wandb
'''


def test_imports_of_the_top_level_are_certain_and_those_of_functions_and_branches_possible() -> (
    None
):
    found = imports_of(SCRIPT, frozenset(["here"]))
    assert found.certain == ("__future__", "os", "torch", "transformers")
    assert found.possible == ("deepspeed", "wandb")
    assert found.read


def test_a_script_that_changes_the_search_path_is_certain_of_nothing() -> None:
    found = imports_of("import sys\nsys.path.append('..')\nimport ours, megatron\n")
    assert (found.certain, found.possible) == ((), ("megatron",))


def test_a_script_that_installs_packages_is_certain_of_nothing() -> None:
    found = imports_of("import os\nos.system('pip install einops')\nimport einops\n")
    assert (found.certain, found.possible) == ((), ("einops", "os"))


def test_a_source_that_python_does_not_read_says_nothing() -> None:
    assert imports_of("print 'Python 2'") == Imports()
    assert imports_of("import a\0") == Imports()
    assert not imports_of("(" * 5000).read


@given(st.text(max_size=200))
def test_no_source_makes_it_stumble(source: str) -> None:
    found = imports_of(source)
    assert not set(found.certain) & set(found.possible)
