"""Which values are masked although they are not declared as secrets."""

from __future__ import annotations

import pytest

from dslaunch.run.secret_names import is_secret_name, masked_args, masked_credentials, masked_tree

SECRET = ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "--db-password", "api_key", "auth")
HARMLESS = ("TOKENIZER", "max_tokens", "--author", "KEYBOARD", "PATH", "monkey", "")


@pytest.mark.parametrize("name", SECRET)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", HARMLESS)
def test_names_of_no_secrets(name: str) -> None:
    assert not is_secret_name(name)


def test_values_of_options_with_secret_names_are_masked() -> None:
    args = ["--hf-token", "a", "--lr", "1", "--api_key=b", "s3://me:pw@host/x"]
    assert masked_args(args) == [
        "--hf-token",
        "***",
        "--lr",
        "1",
        "--api_key=***",
        "s3://***@host/x",
    ]


def test_an_option_after_a_secret_switch_is_shown() -> None:
    assert masked_args(["--auth", "--lr", "1"]) == ["--auth", "--lr", "1"]


def test_only_credentials_of_addresses_are_masked() -> None:
    assert masked_credentials("http://host:80/a@b") == "http://host:80/a@b"


def test_entries_with_secret_names_are_masked_at_any_depth() -> None:
    assert masked_tree({"a": [{"token": "x", "tokens": 5}], "wandb": {"api_key": ""}}) == {
        "a": [{"token": "***", "tokens": 5}],
        "wandb": {"api_key": ""},
    }
