"""Tests of the type of secret values: nothing that is made of one shows it."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Struct, to_builtins

from dslaunch.run.secret import Secret


class Holder(Struct):
    """Something that has a secret."""

    secrets: dict[str, Secret]


def test_a_text_of_what_holds_a_secret_does_not_show_it() -> None:
    secret = Secret("s3cr3t")
    shown = f"{secret} {secret!r} {Holder({'TOKEN': secret})} {[secret]}"
    assert "s3cr3t" not in shown
    assert secret.reveal() == "s3cr3t"


@pytest.mark.parametrize("write", [to_builtins, json.dumps, pickle.dumps, copy.deepcopy])
def test_what_holds_a_secret_cannot_be_recorded(write: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError):
        write(Holder({"TOKEN": Secret("s3cr3t")}))
