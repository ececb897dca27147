"""SLURM on the virtual cluster is real: it schedules, counts GPUs, signals and requeues."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.testbed.scheduler import SHARED, Job, settle, submit, until
from tests.testbed.vcluster import CONTROL, ClusterError, VirtualCluster, missing
from tests.testbed.vcluster.outside import look

LONG = 'echo "restart ${SLURM_RESTART_COUNT:-0}"; srun bash -c "echo ready; exec sleep 1000"'
FOUR = ("--nodes=4", "--ntasks-per-node=1")
Start = Callable[..., VirtualCluster]


def ready(job: Job, ranks: int = 4) -> None:
    """Wait until all its ranks run."""
    until(lambda: job.output.count("ready") == ranks, 300, lambda: job.output + str(job.show()))


def ranks_of(cluster: VirtualCluster) -> int:
    """How many of LONG's processes run, on all nodes."""
    everything = [process for found in cluster.seen().values() for process in found]
    return sum(process.argv == ("sleep", "1000") for process in everything)


def test_a_job_runs_on_four_nodes_with_gpus(slurm_cluster: VirtualCluster) -> None:
    script = """
        echo "on $(hostname) of $(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd,)"
        srun bash -c 'echo "$SLURM_PROCID $(hostname) $SLURM_NTASKS $CUDA_VISIBLE_DEVICES"'"""
    job = submit(slurm_cluster, script, *FOUR, "--gpus-per-node=4")
    job.wait("COMPLETED")
    ranks = [f"{rank} node{rank + 1} 4 0,1,2,3" for rank in range(4)]
    assert sorted(job.output.splitlines()) == [*ranks, "on node1 of node1,node2,node3,node4"]


def test_gpus_can_be_asked_for_by_kind(slurm_cluster: VirtualCluster) -> None:
    run = ["srun", "--nodes=2", "--gpus-per-node=h100:3", "hostname"]
    hosts = slurm_cluster.run(CONTROL, run, check=True).stdout.split()
    assert sorted(hosts) == ["node3", "node4"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--gpus-per-node=5",), "Requested node configuration is not available"),
        (("--nodes=5",), "Node count specification invalid"),
        (("--partition=gpu",), "invalid partition specified: gpu"),
        (("--partition=short", "--time=60"), "Requested time limit is invalid"),
    ],
)
def test_what_no_node_can_give_is_refused(
    slurm_cluster: VirtualCluster, options: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(ClusterError, match=reason):
        submit(slurm_cluster, "srun hostname", *options)


def test_exit_codes_are_those_of_the_ranks(slurm_cluster: VirtualCluster) -> None:
    run = ["srun", *FOUR, "bash", "-c", "[ $SLURM_PROCID != 2 ] || exit 7"]
    assert slurm_cluster.run(CONTROL, run).returncode == 7
    job = submit(slurm_cluster, "srun bash -c 'exit 3'", *FOUR)
    assert (job.wait("FAILED"), job.show()["ExitCode"]) == ("FAILED", "3:0")


def test_an_ordinary_account_owns_what_its_job_writes(slurm_cluster: VirtualCluster) -> None:
    user = slurm_cluster.user
    job = submit(slurm_cluster, "srun id -un", *FOUR, user=user)
    job.wait("COMPLETED")
    assert job.output.split() == [user] * 4


def test_cancelling_ends_every_rank(slurm_cluster: VirtualCluster) -> None:
    job = submit(slurm_cluster, LONG, *FOUR)
    ready(job)
    assert ranks_of(slurm_cluster) == 4
    slurm_cluster.run(CONTROL, ["scancel", job.number], check=True)
    job.wait("CANCELLED")
    until(lambda: ranks_of(slurm_cluster) == 0, 300)


TRAPS = """
    trap 'echo batch USR1' USR1
    rank='trap "echo rank $SLURM_PROCID USR1; exit" USR1; echo ready; while :; do sleep .1; done'
    srun bash -c "$rank" &
    until wait; do :; done
    wait"""


def test_a_signal_reaches_the_ranks_of_all_nodes_but_not_the_script(
    slurm_cluster: VirtualCluster,
) -> None:
    job = submit(slurm_cluster, TRAPS, *FOUR)
    ready(job)
    slurm_cluster.run(CONTROL, ["scancel", "--signal=USR1", job.number], check=True)
    job.wait("COMPLETED")
    told = [line for line in job.output.splitlines() if "USR1" in line]
    assert sorted(told) == [f"rank {rank} USR1" for rank in range(4)]


def test_the_signal_before_the_limit_comes(slurm_cluster: VirtualCluster) -> None:
    job = submit(slurm_cluster, TRAPS, *FOUR, "--time=1", "--signal=USR1@55")
    ready(job)
    job.wait("COMPLETED", within=150)
    assert job.output.count("USR1") == 4
    assert "batch USR1" not in job.output


def test_a_requeued_job_starts_over_under_its_number(slurm_cluster: VirtualCluster) -> None:
    job = submit(slurm_cluster, LONG, *FOUR, "--requeue", "--open-mode=append")
    ready(job)
    slurm_cluster.run(CONTROL, ["scontrol", "requeue", job.number], check=True)
    job.says("restart 1", within=150)
    assert job.show()["Restarts"] == "1"


def test_an_urgent_job_requeues_another(slurm_cluster: VirtualCluster) -> None:
    job = submit(slurm_cluster, LONG, *FOUR, "--exclusive", "--open-mode=append")
    ready(job)
    urgent = submit(slurm_cluster, "srun sleep 1", *FOUR, "--exclusive", "--partition=urgent")
    urgent.wait("COMPLETED")
    job.says("DUE TO PREEMPTION")
    job.says("restart 1", within=150)


@pytest.mark.long  # test_slurm.py has jobs that end, and that start again, for a lost node
def test_a_lost_node_fails_its_job_or_requeues_it(
    can_have_slurm: None, virtual_cluster: Start
) -> None:
    # of SLURM, which may not take a node for lost that has little CPU time
    cluster = virtual_cluster(nodes=4, slurm=True, slurmd_timeout=20)
    one = submit(cluster, LONG, "--nodelist=node1,node3", "--no-requeue")
    other = submit(cluster, LONG, "--nodelist=node2,node4", "--requeue", "--open-mode=append")
    ready(one, 2)
    ready(other, 2)
    cluster.crash("node[34]")
    assert one.wait("NODE_FAIL", within=150)
    until(lambda: other.show()["Restarts"] == "1", 300, lambda: str(other.show()))
    cluster.boot("node[34]")
    other.says("restart 1", within=150)
    settle(cluster)


def test_an_array_has_a_job_for_each_index(slurm_cluster: VirtualCluster) -> None:
    script = "srun echo index $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT"
    submit(slurm_cluster, script, "--array=1-3", "--output=array-%a.out", "--wait", "--nodes=1")
    found = [(slurm_cluster.shared / f"array-{i}.out").read_text() for i in (1, 2, 3)]
    assert found == [f"index {i} of 3\n" for i in (1, 2, 3)]


def test_a_dependent_job_waits_and_detects_a_dependency_that_is_never_satisfied(
    slurm_cluster: VirtualCluster,
) -> None:
    first = submit(slurm_cluster, "srun sleep 2; exit 1")
    after = submit(slurm_cluster, "echo after", f"--dependency=afterany:{first.number}")
    in_vain = submit(slurm_cluster, "echo no", f"--dependency=afterok:{first.number}")
    assert after.show()["Reason"] == "Dependency"
    after.wait("COMPLETED")
    until(lambda: in_vain.show()["Reason"] == "DependencyNeverSatisfied", 300)


def test_a_job_of_two_kinds_of_nodes_runs_as_one(slurm_cluster: VirtualCluster) -> None:
    script = """
        #SBATCH --nodes=2 --gres=gpu:a100:4
        #SBATCH hetjob
        #SBATCH --nodes=1 --gres=gpu:h100:2
        srun --het-group=0,1 bash -c 'echo "$(hostname) $CUDA_VISIBLE_DEVICES"'"""
    job = submit(slurm_cluster, "\n".join(line.strip() for line in script.splitlines()))
    job.wait("COMPLETED")
    assert sorted(job.output.splitlines()) == ["node1 0,1,2,3", "node2 0,1,2,3", "node3 0,1"]


@pytest.mark.long  # test_slurm.py follows a job meanwhile
def test_jobs_outlive_a_controller_that_is_away(slurm_cluster: VirtualCluster) -> None:
    go = slurm_cluster.shared / "go"
    rank = f"echo ready; until [ -e /shared/{go.name} ]; do sleep .1; done"
    job = submit(slurm_cluster, f"srun bash -c '{rank}'; echo end", *FOUR)
    ready(job)
    slurm_cluster.service(CONTROL, "slurmctld", "stop")
    assert "is DOWN" in slurm_cluster.run(CONTROL, ["scontrol", "ping"]).stdout
    slurm_cluster.service(CONTROL, "slurmctld", "start")
    assert job.state == "RUNNING"
    go.touch()
    job.wait("COMPLETED", within=150)
    assert job.output.endswith("end\n")


def test_a_rank_that_takes_too_much_memory_is_killed(slurm_cluster: VirtualCluster) -> None:
    hungry = "import time; taken = bytearray(b'1') * (200 << 20); time.sleep(60)"
    job = submit(slurm_cluster, f'srun python3 -c "{hungry}"', "--mem=50M")
    job.wait("FAILED")
    assert "Exceeded job memory limit" in job.output


def test_sacct_lists_jobs_with_accounting(can_have_slurm: None, virtual_cluster: Start) -> None:
    if reason := missing(slurm=True, accounting=True):
        pytest.skip(reason)
    cluster = virtual_cluster(nodes=2, slurm=True, accounting=True)
    job = submit(cluster, "srun --nodes=2 true; srun bash -c 'exit 4'", "--nodes=2")
    job.wait("FAILED")
    command = ["sacct", "--noheader", "--parsable2", "--format=JobID,State,ExitCode,NodeList"]
    expected = ["1|FAILED|4:0|node[1-2]", "1.batch|FAILED|4:0|node1"]
    expected += ["1.0|COMPLETED|0:0|node[1-2]", "1.1|FAILED|4:0|node[1-2]"]
    until(lambda: cluster.run(CONTROL, command).stdout.splitlines() == expected, 300)


def test_without_accounting_sacct_says_so(slurm_cluster: VirtualCluster) -> None:
    said = slurm_cluster.run(CONTROL, ["sacct"])
    assert (said.returncode, said.stderr) == (1, "Slurm accounting storage is disabled\n")


def test_two_slurm_clusters_share_one_slurmdbd(slurm_pair: VirtualCluster) -> None:
    script = "#!/bin/bash\nsleep 1000\n"
    for environ in ({}, {"SBATCH_CLUSTERS": "other"}):
        sbatch = ["sbatch", "--parsable"]
        done = slurm_pair.run(CONTROL, sbatch, stdin=script, cwd=SHARED, env=environ, check=True)
        number, _, name = done.stdout.strip().partition(";")
        assert name == environ.get("SBATCH_CLUSTERS", "")
        squeue = ["squeue", "--noheader", f"--jobs={number}", f"--clusters={name or 'vcluster'}"]
        assert number in slurm_pair.run(CONTROL, squeue, check=True).stdout


def test_job_submit_lua_prints_messages_and_rejects_jobs(slurm_pair: VirtualCluster) -> None:
    sbatch = ["sbatch", "--wrap=true"]
    done = slurm_pair.run(CONTROL, sbatch, cwd=SHARED, check=True)
    assert done.stderr == "sbatch: Your group has used 812 of 1000 node hours.\n"
    with pytest.raises(ClusterError, match=r"https://hpc\.example\.org/accounts"):
        slurm_pair.run(CONTROL, [*sbatch, "--comment=refuse me"], cwd=SHARED, check=True)


def test_clusters_side_by_side_share_nothing_and_leave_nothing(
    can_have_slurm: None, virtual_cluster: Start, tmp_path: Path
) -> None:
    began = time.monotonic()
    with VirtualCluster(2, tmp_path / "one", slurm=True) as one:
        other = virtual_cluster(nodes=2, slurm=True, gres="node1=gpu:1")
        assert time.monotonic() - began < 200
        jobs = [submit(cluster, "srun hostname", "--nodes=2") for cluster in (one, other)]
        assert [job.wait("COMPLETED") and job.number for job in jobs] == ["1", "1"]
        secret = one.run(CONTROL, ["munge", "-s", "hello"], check=True).stdout
        assert "Invalid credential" in other.run(CONTROL, ["unmunge"], stdin=secret).stderr
        inits = {name: node.init.pid for name, node in one.cluster.nodes.items() if node.init}
        processes = [seen.host_pid for found in look(inits).values() for seen in found]
    assert len(processes) >= 3 * 3
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes), 300)
    assert other.run(CONTROL, ["srun", "--nodes=2", "hostname"], check=True).stdout
    assert not (tmp_path / "one").exists()


def test_settling_brings_back_a_cluster_in_any_state(slurm_cluster: VirtualCluster) -> None:
    submit(slurm_cluster, LONG, *FOUR)
    slurm_cluster.service(CONTROL, "slurmctld", "kill")
    slurm_cluster.service("node2", "slurmd", "kill")
    slurm_cluster.service("node2", "slurmd", "start")
    settle(slurm_cluster)
    assert slurm_cluster.run(CONTROL, ["squeue", "--noheader"], check=True).stdout == ""


def as_root(cluster: VirtualCluster, command: str) -> None:
    """A shell line on the control machine."""
    cluster.run(CONTROL, ["sh", "-c", command], user="root", check=True)


def keep_state(cluster: VirtualCluster) -> None:
    """Keep what the controller knows now, aside."""
    cluster.service(CONTROL, "slurmctld", "stop")
    as_root(cluster, "cd /var/spool && cp -a slurmctld before")
    cluster.service(CONTROL, "slurmctld", "start")


def die_with_kept_state(cluster: VirtualCluster) -> None:
    """Kill the controller, as if it had saved nothing since `keep_state`."""
    cluster.service(CONTROL, "slurmctld", "kill")
    as_root(cluster, "cd /var/spool && rm -r slurmctld && mv before slurmctld")


@pytest.mark.long  # a scenario of slurm_scenarios.py leaves such a cluster behind
def test_settling_ends_steps_that_the_controller_does_not_know_of(
    slurm_cluster: VirtualCluster,
) -> None:
    job = submit(slurm_cluster, LONG, *FOUR, "--hold")
    keep_state(slurm_cluster)
    as_root(slurm_cluster, f"scontrol release {job.number}")
    ready(job)
    die_with_kept_state(slurm_cluster)
    settle(slurm_cluster)
    assert ranks_of(slurm_cluster) == 0


@pytest.mark.long  # a scenario of slurm_scenarios.py has such a number
def test_settling_lets_a_number_be_used_again_that_a_dying_controller_forgot(
    slurm_cluster: VirtualCluster,
) -> None:
    keep_state(slurm_cluster)
    job = submit(slurm_cluster, "echo began; sleep 1; srun true", *FOUR)
    job.says("began")
    die_with_kept_state(slurm_cluster)
    settle(slurm_cluster)
    again = submit(slurm_cluster, "srun true", *FOUR)
    assert again.number == job.number
    again.wait("COMPLETED")


def test_gpus_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"--gres gpu:4: is not NODES=gpu\[:KIND\]:COUNT"):
        VirtualCluster(1, tmp_path / "wrong", slurm=True, gres="gpu:4").up()
