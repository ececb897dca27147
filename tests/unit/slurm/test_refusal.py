"""What sbatch writes to standard error becomes notices, reasons and options. Texts recorded from
SLURM 22.05; others as its source has them, up to 26.05."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.slurm.refusal import (
    EXPLANATIONS,
    LONGEST_LINE,
    MOST_LINES,
    Refused,
    read_said,
    why_refused,
)

FAILED = "sbatch: error: Batch job submission failed: "
CONFIGURATION = f"{FAILED}Requested node configuration is not available\n"


@pytest.mark.parametrize(
    ("said", "reason", "option"),
    [
        (f"sbatch: error: invalid partition specified: nope\n{FAILED}Invalid partition name "
         "specified\n", Refused.PARTITION, "partition"),
        (f"{FAILED}Invalid account or account/partition combination specified\n", Refused.ACCOUNT,
         "account"),
        (f"{FAILED}Invalid qos specification\n", Refused.QOS, "qos"),
        (f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{FAILED}Job violates accounting/QOS policy "
         "(job submit limit, user's size and/or time limits)\n", Refused.POLICY, "qos"),
        (f"{FAILED}Requested time limit is invalid (missing or exceeds some limit)\n",
         Refused.TIME, "time"),
        (f"{FAILED}Time limit specification required, but not provided\n", Refused.NO_TIME, "time"),
        (CONFIGURATION, Refused.CONFIGURATION, "gres"),
        (f"sbatch: error: Memory specification can not be satisfied\n{CONFIGURATION}",
         Refused.MEMORY, "mem"),
        (f"sbatch: error: CPU count per node can not be satisfied\n{CONFIGURATION}", Refused.CPUS,
         "cpus-per-task"),
        ("allocation failure: Requested node configuration is not available\n",
         Refused.CONFIGURATION, "nodes"),
        (f"{FAILED}Node count specification invalid\n", Refused.NODE_COUNT, "nodes"),
        (f"{FAILED}Invalid generic resource (gres) specification\n", Refused.GRES, "gres"),
        (f"{FAILED}Invalid feature specification\n", Refused.FEATURE, "constraint"),
        (f"{FAILED}Invalid node name specified\n", Refused.NODE_NAME, "nodelist"),
        (f"{FAILED}Requested reservation is invalid\n", Refused.RESERVATION, "reservation"),
        (f"{FAILED}Job dependency problem\n", Refused.DEPENDENCY, "dependency"),
        (f"{FAILED}Invalid job array specification\n", Refused.ARRAY, "array"),
        (f"{FAILED}Invalid license specification\n", Refused.LICENSES, "licenses"),
        ("sbatch: unrecognized option '--nope'\nTry \"sbatch --help\" for more information\n",
         Refused.UNKNOWN_OPTION, "nope"),
        ("sbatch: error: Invalid --mem specification\n", Refused.OPTION_VALUE, "mem"),
        ("sbatch: error: Invalid directive found in batch script: --hold-on\n",
         Refused.UNKNOWN_OPTION, "hold-on"),
        ("sbatch: fatal: --exclusive and --oversubscribe options are mutually exclusive\n",
         Refused.OPTIONS, "oversubscribe"),
        ("sbatch: fatal: --gpus-per-node and --gres=gpu are mutually exclusive.\n",
         Refused.OPTIONS, "gpus-per-node"),
        ("sbatch: fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive.\n",
         Refused.OPTIONS, "mem-per-cpu"),
    ],
)  # fmt: skip
def test_a_refusal_is_a_reason_with_the_options_to_blame(
    said: str, reason: Refused, option: str
) -> None:
    refusal = why_refused(said)
    assert refusal.reason is reason
    assert option in refusal.options


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
         Refused.CONTROLLER),
        (f"{FAILED}Socket timed out on send/recv operation\n", Refused.CONTROLLER),
        (f"{FAILED}Unable to contact slurm controller (connect failure)\n", Refused.CONTROLLER),
        (f"sbatch: error: Munge encode failed: Failed to access \"/run/munge/munge.socket.2\"\n"
         f"{FAILED}Protocol authentication error\n", Refused.AUTHENTICATION),
        ("sbatch: error: Could not establish a configuration source\n", Refused.NO_SLURM),
    ],
)  # fmt: skip
def test_a_controller_that_is_away_is_nothing_wrong_with_the_job(
    said: str, reason: Refused
) -> None:
    refusal = why_refused(said)
    assert (refusal.reason, refusal.options) == (reason, ())


def test_the_sites_sentences_stand_before_slurms_and_decide_nothing() -> None:
    said = (
        "sbatch: error: Invalid qos specification? Project gpu-7 has used up its hours.\n"
        "sbatch: error: See https://site.example/hours\n"
        f"{FAILED}Unspecified error\n"
    )
    refusal = why_refused(said)
    assert refusal.reason is Refused.UNKNOWN
    assert refusal.sentences == (
        "Invalid qos specification? Project gpu-7 has used up its hours.",
        "See https://site.example/hours",
        "Unspecified error",
    )
    assert refusal.explanation is None


def test_a_refusal_without_a_word_says_so() -> None:
    assert why_refused("").sentences == ("sbatch gave no reason",)


def test_every_reason_but_the_unknown_is_explained() -> None:
    assert set(EXPLANATIONS) == set(Refused) - {Refused.UNKNOWN}


@given(st.text() | st.text("sbatch: erof\n-", max_size=200))
def test_any_text_is_a_refusal_of_bounded_size(said: str) -> None:
    refusal = why_refused(said)
    assert 1 <= len(refusal.sentences) <= MOST_LINES + 1
    assert all(len(sentence) <= LONGEST_LINE for sentence in refusal.sentences)


def test_an_estimate_is_no_notice() -> None:
    said = read_said(
        "sbatch: Use --partition=short for tests\n"
        "sbatch: Job 21 to start at 2026-11-21T08:14:22 using 2 processors on nodes a in main\n"
        "sbatch:   Preempts: 7,8\n"
    )
    assert said.notices == ("Use --partition=short for tests",)
    assert [line.split(" ")[0] for line in said.estimate] == ["Job", "Preempts:"]
