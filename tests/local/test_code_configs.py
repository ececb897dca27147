"""A DeepSpeed config that the training's code names reaches the nodes with the change they need."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from dslaunch.errors import PlanError
from dslaunch.launch.decisions import Decision, DecisionCode

if TYPE_CHECKING:
    from conftest import Emulated, Seen

ORIGINAL = '{"train_batch_size": 8}'
LOCAL = {"train_batch_size": 8, "checkpoint": {"use_node_local_storage": True}}
SHOW = "print(__import__('json').dumps(__import__('json').load(open({path!r}))))\n"
# as guides show it: a name at the top of the script, given to Hugging Face's arguments
TRAINER = (
    "deepspeed_config = './ds.json'  # the config\n"
    "def train():\n    training_args = Seq2SeqTrainingArguments(\n"
    "        output_dir='checkpoints',\n        deepspeed=deepspeed_config,\n    )\n"
)
LORA = (
    "DS_CONFIG = 'ds.json'\n"
    "def train():\n    args = TrainingArguments(output_dir='o', deepspeed=DS_CONFIG)\n"
)
ENGINE = "def train():\n    import deepspeed\n    deepspeed.initialize(config='ds.json')\n"


NOT_FITTED = {
    DecisionCode.CONFIG_IN_CODE,
    DecisionCode.CONFIG_OF_PROGRAM,
    DecisionCode.CONFIG_NOT_HERE,
    DecisionCode.CONFIG_NOT_SHIPPED,
    DecisionCode.CONFIG_UNCHANGED,
    DecisionCode.CONFIG_OWN_COPY,
}


def warned(seen: Seen) -> list[Decision]:
    assert seen.plan_ is not None
    return [each for each in seen.plan_.decisions if each.code in NOT_FITTED]


@pytest.mark.parametrize("code", [TRAINER, LORA, ENGINE])
def test_nodes_that_share_nothing_get_a_changed_copy_and_the_users_file_stays(
    emulated: Emulated, code: str
) -> None:
    (emulated.path / "ds.json").write_text(ORIGINAL)
    seen = emulated.run(code + SHOW.format(path="ds.json"))
    for rank in (0, 2):
        assert [json.loads(line) for line in seen.text(rank)] == [LOCAL]
    assert (emulated.path / "ds.json").read_text() == ORIGINAL
    assert warned(seen) == []


def test_a_config_below_the_script_in_a_module_is_changed_too(emulated: Emulated) -> None:
    (emulated.path / "conf").mkdir()
    (emulated.path / "conf/ds.json").write_text(ORIGINAL)
    (emulated.path / "engine.py").write_text(
        "import os\ndef start():\n    import deepspeed\n"
        "    path = os.path.join(os.path.dirname(__file__), 'conf', 'ds.json')\n"
        "    deepspeed.initialize(config=path)\n"
    )
    seen = emulated.run("import engine\n" + SHOW.format(path="conf/ds.json"))
    assert json.loads(seen.text(0)[0]) == LOCAL


def test_a_config_that_a_file_of_arguments_names_is_changed_too(emulated: Emulated) -> None:
    (emulated.path / "ds.json").write_text(ORIGINAL)
    (emulated.path / "sft.yaml").write_text("stage: sft\ndeepspeed: ds.json\n")
    seen = emulated.run(SHOW.format(path="ds.json"), "sft.yaml")
    assert json.loads(seen.text(0)[0]) == LOCAL


def test_an_option_of_the_scripts_own_is_replaced_on_the_command_line(emulated: Emulated) -> None:
    (emulated.path / "ds.json").write_text(ORIGINAL)
    script = (
        "import argparse, json\np = argparse.ArgumentParser()\np.add_argument('--conf')\n"
        "a = p.parse_args()\nprint(json.dumps(json.load(open(a.conf))))\n"
        "if 0:\n    import deepspeed\n    deepspeed.initialize(config=a.conf)\n"
    )
    seen = emulated.run(script, "--conf", "ds.json")
    assert json.loads(seen.text(0)[0]) == LOCAL


def test_a_second_run_ships_nothing_again(emulated: Emulated) -> None:
    (emulated.path / "ds.json").write_text(ORIGINAL)
    emulated.run(ENGINE)
    again = emulated.run(ENGINE, sync=False)
    assert warned(again) == []


def test_without_shipping_the_config_stays_and_that_is_said(emulated: Emulated) -> None:
    (emulated.path / "ds.json").write_text(ORIGINAL)
    emulated.run("pass\n")
    (emulated.path / "job.py").write_text(ENGINE)
    emulated.run(ENGINE + "#\n")
    for work in emulated.path.parent.rglob("work/ds.json"):
        work.write_text(ORIGINAL)
    seen = emulated.run(ENGINE + "#\n", sync=False)
    (warning,) = warned(seen)
    assert warning.values["path"] == "ds.json"


def test_on_shared_storage_nothing_is_changed_or_said(emulated: Emulated) -> None:
    (emulated.path / "ds.json").write_text(ORIGINAL)
    seen = emulated.run(ENGINE + SHOW.format(path="ds.json"), workdir=None)
    assert json.loads(seen.text(0)[0]) == json.loads(ORIGINAL)
    assert warned(seen) == []


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("def f():\n    import deepspeed\n    deepspeed.initialize(config={'zero': 1})\n", 3),
        ("def f():\n    from sys import argv\n    TrainingArguments('o', deepspeed=argv[9])\n", 3),
        ("def f():\n    TrainingArguments('o', deepspeed='/nowhere/ds.json')\n", 2),
        ("def f():\n    DeepSpeedPlugin(zero_stage=2)\n", 2),
    ],
)
def test_what_cannot_be_changed_is_warned_about_with_its_place(
    emulated: Emulated, code: str, line: int
) -> None:
    (warning,) = warned(emulated.run(code))
    assert warning.values["place"] == f"job.py:{line}"


def test_a_dictionary_that_sets_node_local_storage_is_right(emulated: Emulated) -> None:
    config = {"checkpoint": {"use_node_local_storage": True}}
    code = f"def f():\n    import deepspeed\n    deepspeed.initialize(config={config})\n"
    assert warned(emulated.run(code)) == []


def test_one_node_needs_nothing(emulated: Emulated) -> None:
    (emulated.path / "ds.json").write_text(ORIGINAL)
    seen = emulated.run(ENGINE + SHOW.format(path="ds.json"), slots=(1,))
    assert json.loads(seen.text(0)[0]) == json.loads(ORIGINAL)
    assert warned(seen) == []


def test_a_config_that_deepspeed_cannot_read_stops_the_start(emulated: Emulated) -> None:
    (emulated.path / "ds.json").write_text('{"a": 1, "a": 2}')
    with pytest.raises(PlanError):
        emulated.run(ENGINE)


def test_a_config_whose_checkpoints_could_not_be_loaded_stops_the_start(
    emulated: Emulated,
) -> None:
    (emulated.path / "ds.json").write_text('{"zero_optimization": {"elastic_checkpoint": true}}')
    with pytest.raises(PlanError):
        emulated.run(ENGINE)


# ---------------------------------------------------------------- the real Trainer and DeepSpeed

GUIDE = """\
import deepspeed, torch
import torch.distributed.nn  # first: imported later, it keeps the process group alive at the end
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
torch.set_num_threads(1)
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

OUTPUT_DIR = "./checkpoints"
BATCH_SIZE = 4
DS_CONFIG = "ds_zero2_config.json"
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2))
data = [{"input_ids": [(i * k) % 32 for k in range(8)]} for i in range(32)]
data = [{**row, "labels": row["input_ids"]} for row in data]
args = TrainingArguments(
    output_dir=OUTPUT_DIR,
    per_device_train_batch_size=BATCH_SIZE,
    max_steps=2,
    save_strategy="steps",
    save_steps=2,
    optim="adamw_torch",
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
    deepspeed=DS_CONFIG,
)
Trainer(model=model, args=args, train_dataset=data).train()
torch.distributed.destroy_process_group()
"""
GUIDE_CONFIG = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "steps_per_print": 50,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2, "overlap_comm": True},
    "zero_force_ds_cpu_optimizer": False,
    "zero_allow_untested_optimizer": True,
}


@pytest.mark.long  # that the changed copy arrives is shown above, without a training
@pytest.mark.torch
@pytest.mark.deepspeed
def test_a_training_as_guides_show_it_saves_the_model_on_every_node(emulated: Emulated) -> None:
    pytest.importorskip("transformers")
    (emulated.path / "ds_zero2_config.json").write_text(json.dumps(GUIDE_CONFIG))
    seen = emulated.run(GUIDE, slots=(1, 1), launcher="torchrun")
    assert seen.outcome is not None
    assert seen.outcome.exit_code == 0, [seen.text(rank) for rank in (0, 1)]
    saved = emulated.path.parent.rglob("*/global_step2/mp_rank_00_model_states.pt")
    assert len(list(saved)) == 2
