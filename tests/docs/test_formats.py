"""The pages about JSON formats and about variables of templates are complete."""

from __future__ import annotations

import json
from pathlib import Path

from tools.json_formats import EXAMPLES, FORMATS, Calls, documented, undocumented
from tools.template_variables import VARIABLES

from dslaunch.cli.commands import leaves
from dslaunch.cluster.load import load_cluster
from dslaunch.cluster.select import Selection
from dslaunch.launch.job import Job
from dslaunch.render.batch import grouped
from dslaunch.render.sbatch import values
from dslaunch.run.run_record import RunRecord
from dslaunch.run.status import RunStatus
from dslaunch.slurm.client import here
from dslaunch.slurm.slurm_job import SlurmRequest, prepare_job

ROOT = Path(__file__).parents[2]
QUICK = ("run", "logs", "nodes", "validate", "config explain", "config diff", "config lint")
"""Commands that are called anew; each takes less than a second on an idle machine."""


def test_every_command_with_json_has_a_section() -> None:
    with_json = {
        name for name, command in leaves() if any("--json" in each.opts for each in command.params)
    }
    assert {form.command for form in FORMATS} == with_json


def test_every_key_of_the_examples_is_explained() -> None:
    assert list(undocumented(json.loads(EXAMPLES.read_text("utf-8")))) == []


def test_a_record_and_its_status_name_different_things_differently() -> None:
    (status,) = (form for form in FORMATS if form.command == "status")
    own = set(RunStatus.__struct_fields__) | status.keys.keys()
    assert own & documented(RunRecord).keys() == set()


def test_every_key_has_a_meaning() -> None:
    empty = {
        form.command: [k for k, text in form.documented().items() if not text] for form in FORMATS
    }
    assert {command: keys for command, keys in empty.items() if keys} == {}


def test_every_key_of_a_call_is_explained(tmp_path: Path) -> None:
    calls = Calls(tmp_path)
    printed = {form.command: calls.call(form.call) for form in FORMATS if form.command in QUICK}
    lines = printed.pop("run")
    recorded = {
        command: values if command == "logs" else values[0] for command, values in printed.items()
    }
    events = [each for each in lines if each["kind"] not in ("output", "plan", "outcome")]
    assert events
    assert list(undocumented({**recorded, "run": lines[-1], "events": events})) == []


def test_every_variable_of_templates_is_explained() -> None:
    cluster = load_cluster(ROOT / "clusters/slurm-site.yaml")
    job = Job.on(cluster, "train.py")
    request = SlurmRequest(Selection(), ROOT / "examples", force=True)
    batch = prepare_job(cluster, job, request, here({})).batch
    assert list(values(batch, grouped(batch))) == list(VARIABLES)
