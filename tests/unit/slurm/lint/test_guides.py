"""A script as a guide has it: torch.distributed.run under srun, with `bash -c '...'` (huggingface/
transformers, DeepSpeed guide, section SLURM): what is right in it, what is risky, what fails."""

from __future__ import annotations

import re
from pathlib import Path

from dslaunch.report.lint import as_text
from dslaunch.slurm.lint import fixed, lint_script

PAGE = Path(__file__).parents[4] / "docs/howto/check-an-sbatch-script.md"
SCRIPT = Path(__file__).parent / "guides/srun-bash-c.sbatch"


def test_errors_and_risks_of_the_guides_script_are_found() -> None:
    remarks = lint_script(SCRIPT.read_text(), SCRIPT.name).remarks
    assert [(r.line, r.level, r.rule) for r in remarks] == [
        (1, "error", "no-shebang"),
        (13, "warning", "no-kill-on-bad-exit"),
        (13, "info", "srun-cpus"),
    ]


def test_good_practice_is_found_too() -> None:
    good_practice = lint_script(SCRIPT.read_text(), SCRIPT.name).good_practice
    assert [(r.line, r.rule) for r in good_practice] == [
        (3, "launcher-per-node"),
        (10, "first-node"),
        (14, "nodes-of-job"),
        (14, "rank-on-node"),
    ]


def test_double_quotes_are_distinguished_from_single_ones() -> None:
    text = SCRIPT.read_text().replace("'", '"')
    found = [r for r in lint_script(text, SCRIPT.name).remarks if r.rule == "early-rank"]
    assert [(r.line, r.column) for r in found] == [(14, 69)]
    assert "--node_rank \\$SLURM_PROCID" in fixed(text)


def test_a_fixed_script_has_no_findings() -> None:
    mended = fixed(SCRIPT.read_text())
    assert lint_script(mended, SCRIPT.name).remarks == ()
    assert ' --cpus-per-task="$SLURM_CPUS_PER_TASK" ' in mended


def test_a_rank_that_c10d_ignores_is_no_error() -> None:
    text = 'srun -K1 bash -c "torchrun --nnodes 2 --node_rank $SLURM_PROCID %s x.py"\n'
    for more, level in (("--rdzv_backend c10d", "info"), ("--master_addr $M", "error")):
        remarks = lint_script(f"#!/bin/bash\n#SBATCH --nodes=2\n{text % more}").remarks
        assert [r.level for r in remarks if r.rule == "early-rank"] == [level]


def test_a_script_that_stays_needs_no_wait() -> None:
    text = "#!/bin/bash\nsrun -K1 python serve.py &\n"
    rules = [r.rule for r in lint_script(text).remarks]
    assert rules == ["no-wait"]
    loop = "while curl -s localhost; do sleep 60; done\n"
    assert lint_script(text + loop).remarks == ()


def test_the_page_shows_what_is_said() -> None:
    script, shown = re.findall(r"^```text\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    remarks = lint_script(script, "train.sbatch").remarks
    said = as_text(remarks).splitlines()
    assert [line for line in shown.splitlines() if line not in said] == []
    assert len(remarks) == 4
