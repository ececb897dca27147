"""What ranks of a rehearsal record, if a hostile script or node chose it: judged all the same."""

from __future__ import annotations

from typing import Any

import pytest

from dslaunch.protocol.rehearsal import REHEARSAL, TrainerArguments
from dslaunch.protocol.values import MOST_TEXT, parse
from dslaunch.rehearsal.findings import FindingKind
from dslaunch.rehearsal.judge import Rehearsal
from tests.growth import Work, grows
from tests.unit.rehearsal.test_judge import (
    DDP,
    ENGINE,
    HELD,
    OPTIMIZER,
    START,
    TORCH,
    Sent,
    group,
    judged,
    loader,
    saved,
    step,
)

GPU: Sent = {"devices": {"cuda": 100}, "gpu_total": 8 << 30}
CONFIGS = ("[" * MOST_TEXT, '{"checkpoint":' * 10_000, f'{{"train_batch_size": {"9" * 4000}}}')
"""DeepSpeed configs: nested too deeply to be parsed, and with a number that no float holds."""
MOST = 2000
"""Records of each kind: as many as a rank's hook writes."""


def of_engine(config: str) -> Rehearsal:
    """Judge two ranks that train with a DeepSpeed config and save a checkpoint."""
    given: Sent = {"kind": "deepspeed-config", "path": None, "text": config}
    sizes = [{**DDP, **GPU}, {**OPTIMIZER, **GPU}]
    told = [given, {"kind": "host", "name": "hf.co"}, saved("save_checkpoint", "/data/saved")]
    records = [START, TORCH, group(0), *sizes, ENGINE, *told, step(1), step(2), HELD]
    return judged(records, records, shared=False)


@pytest.mark.parametrize("config", CONFIGS, ids=("lists", "objects", "number"))
def test_a_config_that_cannot_be_read_hides_no_other_finding(config: str) -> None:
    found = {finding.code for finding in of_engine(config).findings}
    assert FindingKind.NETWORK.code in found


def test_a_setting_that_no_float_holds_is_not_a_record() -> None:
    trainer = {"kind": "trainer", "arguments": {"max_steps": 10**400}}
    told = parse(REHEARSAL, {"0": {"records": [trainer], "position": 1}})
    assert not any(isinstance(record, TrainerArguments) for record in told["0"].records)


def test_one_finding_names_few_hosts() -> None:
    hosts: list[Sent] = [{"kind": "host", "name": f"{n}.hf.co"} for n in range(MOST)]
    (found,) = judged([START, TORCH, *hosts]).findings
    assert (found.code, len(found.text) < 1000) == (FindingKind.NETWORK.code, True)


def many(kind: str, count: int) -> list[Any]:
    if kind == "saved":
        return [saved("torch.save", f"/data/{number}", tensors=1) for number in range(count)]
    # of a data set that is divided among more ranks than there are, in parts that are all read
    parts = {"replicas": 4, "replica": 3, "samples": 9} if kind == "parts" else {}
    loaders = [loader(number=number, workers=2, **parts) for number in range(count)]
    loaders += [loader(number=count, **{**parts, "replica": each}) for each in range(4) if parts]
    batch = {"kind": "batch", "index": 1, "size": 4, "digest": "a" * 16}
    return [*loaders, *({**batch, "loader": number} for number in range(count))]


@pytest.mark.parametrize("kind", ["saved", "loader", "parts"])
def test_many_records_of_a_rank_are_judged_in_time(kind: str) -> None:
    def judging(count: int) -> Work:
        made = many(kind, count)
        records = [START, TORCH, group(0), DDP, OPTIMIZER, *made, step(1), step(2), HELD]
        return lambda: judged(records, records)

    assert not grows(judging, MOST // 16)
