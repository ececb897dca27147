"""The public Python API; `dslaunch` offers the names, docs/reference/api.md documents them.

The command line uses it too. Nothing here prints, reads options or keeps state between calls.
What is imported is imported by the function that needs it, since each takes another part.
"""

from dslaunch.api.deepspeed import AttentionKind as AttentionKind
from dslaunch.api.deepspeed import Estimate as Estimate
from dslaunch.api.deepspeed import estimate as estimate
from dslaunch.api.deepspeed import lint_config as lint_config
from dslaunch.api.earlier_runs import compare_runs as compare_runs
from dslaunch.api.earlier_runs import find_run as find_run
from dslaunch.api.earlier_runs import run_details as run_details
from dslaunch.api.earlier_runs import runs as runs
from dslaunch.api.nodes import allocated as allocated
from dslaunch.api.nodes import select as select
from dslaunch.api.nodes import with_transport as with_transport
from dslaunch.api.plans import assumed_plan as assumed_plan
from dslaunch.api.plans import plan as plan
from dslaunch.api.plans import render as render
from dslaunch.api.preflights import has_job as has_job
from dslaunch.api.preflights import preflight as preflight
from dslaunch.api.preflights import replay_preflight as replay_preflight
from dslaunch.api.slurm import lint_script as lint_script
from dslaunch.api.slurm import slurm_job as slurm_job
from dslaunch.api.starts import check_not_scheduled as check_not_scheduled
from dslaunch.api.starts import rehearse as rehearse
from dslaunch.api.starts import run as run
from dslaunch.api.starts import run_detached as run_detached
from dslaunch.api.starts import run_request as run_request
