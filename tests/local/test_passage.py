"""What goes through unchanged: arguments, environment, output, files; and what never shows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dslaunch.cluster.model import SecretSource
from dslaunch.errors import ErrorCode, PlanError, PreflightError, UsageError
from dslaunch.launch.decisions import DecisionCode

if TYPE_CHECKING:
    from conftest import Emulated

ECHO = (
    "import json, os, sys\n"
    "if os.environ['RANK'] == '0':\n"
    "    print(json.dumps([[os.fsencode(a).hex() for a in sys.argv[1:]], os.environ.get('V')]))\n"
)
NASTY = st.text(
    st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=30
) | st.sampled_from(
    ["", " ", "$HOME", "`id`", "a\nb", "'", '"', "\\", "*", "--", "-x", "é", "%n", "$$"]
)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(NASTY, max_size=4), NASTY)
def test_arguments_and_environment_arrive_unchanged(
    emulated: Emulated, args: list[str], value: str
) -> None:
    seen = emulated.run(ECHO, *args, slots=(1,), env=(("V", value),))
    found, variable = json.loads(seen.text(0)[0])
    assert [bytes.fromhex(a).decode() for a in found] == args
    assert variable == value


def test_a_rank_can_be_interrupted_and_hung_up(emulated: Emulated) -> None:
    script = (
        "from signal import SIGHUP, SIGINT, getsignal\n"
        "print(getsignal(SIGHUP).name, getsignal(SIGINT).__name__)\n"
    )
    assert emulated.run(script, slots=(1,)).text(0) == ["SIG_DFL default_int_handler"]


def test_an_argument_of_100_kilobytes_arrives(emulated: Emulated) -> None:
    script = "import sys; print(len(sys.argv[1]))"
    assert emulated.run(script, "x" * 100_000, slots=(1,)).text(0) == ["100000"]


def test_no_line_is_lost_or_reordered_within_a_rank(emulated: Emulated) -> None:
    script = "import os, sys\nr = os.environ['RANK']\nfor i in range(20000): print(r, i)\n"
    seen = emulated.run(script)
    for rank in range(3):
        assert seen.text(rank) == [f"{rank} {i}" for i in range(20000)]


def test_a_secret_is_in_the_process_and_nowhere_else(emulated: Emulated, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cr3t-value\n")
    script = "import os; t = os.environ['TOKEN']; print(len(t), t)"
    seen = emulated.run(
        script, slots=(1,), secrets=(SecretSource("TOKEN", str(tmp_path / "token")),)
    )
    assert seen.text(0) == ["12 ***"]
    for path in seen.directory.rglob("*"):
        assert path.is_dir() or b"s3cr3t-value" not in path.read_bytes()


def test_the_file_of_a_secret_is_not_shipped_with_the_scripts_directory(
    emulated: Emulated,
) -> None:
    (emulated.path / "token").write_text("s3cr3t-value\n")
    (emulated.path / "link").symlink_to("token")
    (emulated.path / "hard").hardlink_to(emulated.path / "token")
    (emulated.path / "lib.py").touch()
    script = "import os; print(sorted(n for n in os.listdir() if n[0] != '_'))"
    secrets = (SecretSource("TOKEN", str(emulated.path / "token")),)
    assert emulated.run(script, slots=(1,), secrets=secrets).text(0) == ["['job.py', 'lib.py']"]


BAD = {
    "NUL": (b"s3cr3t\0value", "has a NUL byte"),
    "not UTF-8": (b"s3cr3t\xff\xfe", "is not UTF-8 text"),
    "too long": (b"s3cr3t" * 30_000, "is longer than 128 KiB"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_secret_that_no_variable_can_hold_is_refused_by_name_without_its_value(
    kind: str, emulated: Emulated, tmp_path: Path
) -> None:
    data, why = BAD[kind]
    (tmp_path / "token").write_bytes(data)
    emulated.environ["OTHER"] = os.fsdecode(data)
    secrets = (SecretSource("TOKEN", str(tmp_path / "token")), SecretSource("OTHER"))
    with pytest.raises(UsageError, match=why) as caught:
        emulated.run("print('started')", secrets=secrets)
    said = str(caught.value)
    assert (said.count("secret TOKEN: "), said.count("secret OTHER: ")) == (1, 1)
    assert "s3cr3t" not in said
    assert list(emulated.path.glob("work*")) == []


def test_a_directory_as_file_of_a_secret_is_reported(emulated: Emulated, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"secret TOKEN: {tmp_path}: Is a directory"):
        emulated.run("", secrets=(SecretSource("TOKEN", str(tmp_path)),))


def test_an_empty_secret_is_an_empty_variable(emulated: Emulated, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    script = "import os; print([os.environ['TOKEN']])"
    secrets = (SecretSource("TOKEN", str(tmp_path / "token")),)
    assert emulated.run(script, slots=(1,), secrets=secrets).text(0) == ["['']"]


def test_an_unavailable_secret_is_reported_before_the_start(emulated: Emulated) -> None:
    with pytest.raises(UsageError, match="NOPE") as caught:
        emulated.run("", secrets=(SecretSource("NOPE"),))
    assert caught.value.error_code is ErrorCode.UNUSABLE_SECRET


def test_the_scripts_directory_is_shipped_to_nodes_that_do_not_share_it(emulated: Emulated) -> None:
    (emulated.path / "lib.py").write_text("WORD = 'shipped'")
    seen = emulated.run("import lib, os; print(lib.WORD, os.getcwd())")
    home = Path(os.environ["DSLAUNCH_STATE"]) / "emulated" / "test"
    assert seen.text(0) == [f"shipped {home}/n0/work"]
    assert seen.text(2) == [f"shipped {home}/n1/work"]


def test_what_is_there_already_is_not_shipped_again(emulated: Emulated) -> None:
    emulated.run("pass")
    seen = emulated.run("pass")
    same = [d for d in seen.plan_.decisions if d.code is DecisionCode.CODE_SAME]
    assert [d.values["path"] for d in same] == ["work"]


def test_without_sync_a_difference_is_refused(emulated: Emulated) -> None:
    with pytest.raises(PlanError, match=r"job\.py") as caught:
        emulated.run("pass", sync=False)
    assert caught.value.error_code is ErrorCode.CODE_DIFFERS


def test_a_deepspeed_config_is_adapted_to_separate_storage(emulated: Emulated) -> None:
    original = '{"train_batch_size": 6}'
    (emulated.path / "ds.json").write_text(original)
    script = "import json, sys; print(json.load(open(sys.argv[2])))"
    seen = emulated.run(script, "--deepspeed", "ds.json")
    assert seen.text(0) == [
        "{'train_batch_size': 6, 'checkpoint': {'use_node_local_storage': True}}"
    ]
    assert (emulated.path / "ds.json").read_text() == original


def test_a_deepspeed_config_stays_as_it_is_where_storage_is_shared(emulated: Emulated) -> None:
    (emulated.path / "ds.json").write_text('{"train_batch_size": 6}')
    script = "import sys; print(sys.argv[2])"
    seen = emulated.run(script, "--deepspeed", "ds.json", workdir=None)
    assert seen.text(0) == ["ds.json"]


def test_a_script_that_is_nowhere_is_named_as_typed_with_a_similar_one(emulated: Emulated) -> None:
    (emulated.path / "examples").mkdir()
    (emulated.path / "examples" / "train_ddp.py").write_text("")
    with pytest.raises(
        PlanError, match=r"'examples/train_dpp\.py'.*examples/train_ddp\.py`"
    ) as caught:
        emulated.run("", program="examples/train_dpp.py")
    assert caught.value.error_code is ErrorCode.SCRIPT_MISSING


def test_progress_bars_end_in_their_last_state(emulated: Emulated) -> None:
    script = "import sys\nfor i in range(1000): sys.stdout.write(f'\\r{i}')\nprint()"
    assert emulated.run(script, slots=(1,)).text(0)[-1] == "999"


def test_the_node_directory_is_gone_afterwards(emulated: Emulated) -> None:
    seen = emulated.run("import os; print(os.environ['DSLAUNCH_NODE_DIR'])", slots=(1,))
    assert not Path(seen.text(0)[0]).exists()


def test_a_taken_port_is_refused_with_the_port(emulated: Emulated) -> None:
    import socket

    from dslaunch.cluster.model import Network

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PreflightError, match=str(port)) as caught:
            emulated.run("", network=Network(master_port=port))
    assert caught.value.error_code is ErrorCode.PORT_TAKEN


@pytest.mark.torch
@pytest.mark.deepspeed
@pytest.mark.parametrize(
    "launcher",
    [
        "direct",
        "elastic",
        "deepspeed",
        # both start ranks by the program that `elastic` has
        pytest.param("torchrun", marks=pytest.mark.long),
        pytest.param("accelerate", marks=pytest.mark.long),
    ],
)
def test_a_program_of_the_working_directory_runs_as_every_rank(
    emulated: Emulated, launcher: str
) -> None:
    program = emulated.path / "job.sh"
    program.write_text('#!/bin/sh\necho "rank $RANK of $WORLD_SIZE: $1"\n')
    program.chmod(0o755)
    seen = emulated.run(
        "", "a b", program="./job.sh", kind="command", slots=(2,), launcher=launcher
    )
    assert seen.outcome is not None
    assert seen.outcome.exit_code == 0
    assert [seen.text(rank)[-1] for rank in (0, 1)] == [f"rank {r} of 2: a b" for r in (0, 1)]
