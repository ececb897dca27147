"""Configs that a program names in its code are found by reading its source."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.deepspeed.named_configs import NamedConfig, in_source, modules_of, named_in_code
from dslaunch.pysource.values import SOURCE


def named(
    text: str,
    others: dict[str, str] | None = None,
    *,
    given: dict[str, str] | None = None,
    environment: dict[str, str] | None = None,
) -> tuple[NamedConfig, ...]:
    files = {"train.py": text, **(others or {})}
    return named_in_code(modules_of("train.py", files.get), given or {}, environment or {})


INITIALIZE = "import deepspeed\ndeepspeed.initialize(model=m, config={})\n"
PATHS = {
    "a literal": INITIALIZE.format("'ds.json'"),
    "the older parameter": "import deepspeed\ndeepspeed.initialize(config_params='ds.json')",
    "imported from deepspeed": "from deepspeed import initialize\ninitialize(config='ds.json')",
    "imported under another name": "import deepspeed as ds\nds.initialize(config='ds.json')",
    "a name": "C = './ds.json'\n" + INITIALIZE.format("C"),
    "a name in a function": (
        "import deepspeed\ndef main():\n    c = 'ds.json'\n    deepspeed.initialize(config=c)\n"
    ),
    "a parameter's default": (
        "import deepspeed\ndef main(c='ds.json'):\n    deepspeed.initialize(config=c)\nmain()\n"
    ),
    "a parameter's argument": (
        "import deepspeed\ndef main(c):\n    deepspeed.initialize(config=c)\nmain('ds.json')\n"
    ),
    "os.path.join": "import os\n" + INITIALIZE.format("os.path.join('.', 'ds.json')"),
    "pathlib": "from pathlib import Path\n" + INITIALIZE.format("str(Path('.') / 'ds.json')"),
    "an f-string": "D = '.'\n" + INITIALIZE.format("f'{D}/ds.json'"),
    "read as JSON": "import json\n" + INITIALIZE.format("json.load(open('ds.json'))"),
    "read as JSON in a with": (
        "import json\nwith open('ds.json') as f:\n    c = json.load(f)\n" + INITIALIZE.format("c")
    ),
    "read as JSON text": (
        "import json, pathlib\n"
        + INITIALIZE.format("json.loads(pathlib.Path('ds.json').read_text())")
    ),
    "a function's result": "def get():\n    return 'ds.json'\n" + INITIALIZE.format("get()"),
    "a dictionary's entry": "C = {'ds': 'ds.json'}\n" + INITIALIZE.format("C['ds']"),
    "a variable's default": (
        "import os\n" + INITIALIZE.format("os.environ.get('DS_CONFIG', 'ds.json')")
    ),
    "an attribute": "class C:\n    ds = 'ds.json'\n" + INITIALIZE.format("C.ds"),
    "an option's default": (
        "p.add_argument('--conf', default='ds.json')\na = p.parse_args()\n"
        + INITIALIZE.format("a.conf")
    ),
    "the default of DeepSpeed's option": (
        "p.add_argument('--deepspeed_config', default='ds.json')\n"
    ),
    "the default of Hugging Face's option": "p.add_argument('--deepspeed', default='ds.json')\n",
    "a default that is set": "p.set_defaults(deepspeed_config='ds.json')\n",
    "click": "import click\n@click.option('--ds-config', default='ds.json')\ndef main(): ...\n",
    "Trainer": "args = TrainingArguments(output_dir='o', deepspeed='ds.json')",
    "Trainer, as a module's": "import transformers as t\nt.TrainingArguments(deepspeed='ds.json')",
    "Trainer, a subclass": "args = Seq2SeqTrainingArguments(deepspeed='ds.json')",
    "TRL": "args = SFTConfig(output_dir='o', deepspeed='ds.json')",
    "transformers' own class": "c = HfDeepSpeedConfig('ds.json')",
    "accelerate": "Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config='ds.json'))",
    "accelerate, positional": "Accelerator(deepspeed_plugin=DeepSpeedPlugin('ds.json'))",
    "Lightning": "Trainer(strategy=DeepSpeedStrategy(config='ds.json'))",
    "Composer": "Trainer(deepspeed_config='ds.json')",
    "a dataclass of arguments": (
        "class A:\n    deepspeed: str = field(default='ds.json')\na = parse()\n"
        "TrainingArguments(deepspeed=a.deepspeed)"
    ),
}


@pytest.mark.parametrize("text", PATHS.values(), ids=PATHS)
def test_a_path_in_code_is_found(text: str) -> None:
    (found,) = {(each.path, each.known) for each in named(text)}
    assert found == ("ds.json", True)


def test_line_and_call_are_named() -> None:
    (found,) = named("C = 'ds.json'\n\nargs = TrainingArguments(deepspeed=C)\n")
    assert found.place == "train.py:3"
    assert found.by == "TrainingArguments(deepspeed=...)"


@pytest.mark.parametrize(
    "expression",
    [
        "os.path.join(os.path.dirname(__file__), 'ds.json')",
        "os.path.join(os.path.dirname(os.path.abspath(__file__)), 'ds.json')",
        "Path(__file__).parent / 'ds.json'",
        "Path(__file__).resolve().parent.joinpath('ds.json')",
    ],
)
def test_a_path_beside_the_script_is_one_of_the_jobs_own_files(expression: str) -> None:
    (found,) = named(f"from pathlib import Path\nimport os\n{INITIALIZE.format(expression)}")
    assert found.path == f"{SOURCE}/ds.json"
    assert in_source(found.path) == "ds.json"
    assert in_source("ds.json") is None


def test_modules_that_are_imported_are_read_and_others_are_not() -> None:
    others = {
        "lib/__init__.py": "from .engine import start\n",
        "lib/engine.py": INITIALIZE.format("settings.DS").replace(
            "import deepspeed", "import deepspeed\nfrom . import settings"
        ),
        "lib/settings.py": "DS = 'conf/ds.json'\n",
        "other.py": INITIALIZE.format("'other.json'"),
    }
    (found,) = named("from lib import start\nstart()\n", others)
    assert (found.file, found.path) == ("lib/engine.py", "conf/ds.json")


def test_an_option_on_the_command_line_wins_over_its_default() -> None:
    text = (
        "p.add_argument('--my-conf', default='ds.json')\na = p.parse_args()\n"
        + INITIALIZE.format("a.my_conf")
    )
    (found,) = named(text, given={"my_conf": "other.json"})
    assert (found.path, found.option) == ("other.json", "my_conf")


def test_a_default_counts_for_nothing_where_the_option_is_given() -> None:
    text = "p.add_argument('--deepspeed_config', default='ds.json')"
    assert named(text, given={"deepspeed_config": "x.json"}) == ()


def test_a_variable_of_the_job_wins_over_its_default() -> None:
    text = "import os\n" + INITIALIZE.format("os.getenv('C', 'ds.json')")
    (found,) = named(text, environment={"C": "mine.json"})
    assert found.path == "mine.json"


def test_every_possible_file_is_found() -> None:
    text = "c = 'a.json' if big else 'b.json'\n" + INITIALIZE.format("c")
    assert {each.path for each in named(text)} == {"a.json", "b.json"}


@pytest.mark.parametrize(
    ("literal", "says"),
    [
        ("{'zero_optimization': {'stage': 2}}", False),
        ("{'checkpoint': {'use_node_local_storage': True}}", True),
        ("{'checkpoint': {'use_node_local_storage': False}}", False),
        ("dict(train_batch_size=8)", False),
        ("dict(checkpoint=dict(use_node_local_storage=True))", True),
    ],
)
def test_a_dictionary_in_code_says_what_it_says_of_storage(literal: str, says: bool) -> None:
    (found,) = named(INITIALIZE.format(literal))
    assert (found.node_local, found.path) == (says, None)


def test_a_dictionary_that_is_changed_later_is_not_judged_by_its_first_form() -> None:
    text = "c = {}\nc['checkpoint'] = {'use_node_local_storage': True}\n"
    (found,) = named(text + INITIALIZE.format("c"))
    assert found.node_local is True


@pytest.mark.parametrize(
    "text",
    [
        "Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=2))",
        "Trainer(strategy=DeepSpeedStrategy(stage=3))",
        "Trainer(strategy='deepspeed_stage_2')",
    ],
)
def test_a_config_that_a_library_makes_has_no_node_local_storage(text: str) -> None:
    (found,) = named(text)
    assert found.node_local is False


@pytest.mark.parametrize(
    "expression", ["sys.argv[1]", "unknown()", "f'{x}.json'", "cfg.deepspeed", "a if b else c"]
)
def test_what_only_the_running_program_knows_is_said_to_be_unknown(expression: str) -> None:
    (found,) = named(INITIALIZE.format(expression))
    assert not found.known


@pytest.mark.parametrize(
    "text",
    [
        "import jax\njax.distributed.initialize(config='x.json')",
        "import hydra\nhydra.initialize(config_path='conf')",
        "deepspeed = None\ninitialize(config='x.json')",
        "p.add_argument('--deepspeed', action='store_true')",
        "TrainingArguments(output_dir='o', deepspeed=None)",
        "TrainingArguments(output_dir='o')",
        "Model(config='model.json')",
        "def broken(:",
        "\0",
        "",
    ],
)
def test_nothing_is_found_where_no_config_is_named(text: str) -> None:
    assert named(text) == ()


@pytest.mark.parametrize(
    "text",
    [
        "a = b\nb = a\n" + INITIALIZE.format("a"),
        "a = a + a\n" + INITIALIZE.format("a"),
        "def f():\n    return f()\n" + INITIALIZE.format("f()"),
        "def f(x):\n    f(x)\n    import deepspeed\n    deepspeed.initialize(config=x)\n",
        "".join(f"a = 'a{i}'\n" for i in range(99)) + INITIALIZE.format("f'{a}{a}{a}{a}{a}'"),
        INITIALIZE.format("(" * 90 + "'x'" + ")" * 90 + " + 'y'" * 500),
        "x" + ".a" * 100_000,
        "[" * 100_000,
    ],
)
def test_circles_and_depth_end(text: str) -> None:
    found = named(text)
    assert not found or not all(each.known for each in found)


def test_a_text_that_is_longer_than_a_path_is_unknown() -> None:
    """A long text in hundreds of places of another one would fill the memory."""
    text = f"A = '{'x' * 100_000}'\n" + INITIALIZE.format(f"f'{'{A}' * 1000}'")
    assert [each.known for each in named(text)] == [False]


def test_modules_that_import_each_other_end() -> None:
    others = {"a.py": "from b import C\n", "b.py": "from a import C\n"}
    (found,) = named("from a import C\n" + INITIALIZE.format("C"), others)
    assert not found.known


@given(st.text(alphabet="abc'\"=().,:[]{}\n +/_f", max_size=200))
def test_any_text_is_read_or_left(text: str) -> None:
    for each in named(INITIALIZE.format("'ds.json'") + text):
        assert each.line >= 0
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, MemoryError):
        assert modules_of("a.py", {"a.py": text}.get) == ()
