"""Which files have the memory limits of a cgroup, from what a node says its groups are."""

from __future__ import annotations

from dslaunch.preflight.checks.table_mem_shm import MOST_LEVELS, limit_files


def test_a_group_and_all_above_it_have_limits() -> None:
    assert limit_files("0::/slurm/job_7") == [
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/slurm/memory.max",
        "/sys/fs/cgroup/slurm/job_7/memory.max",
    ]


def test_the_memory_controller_of_v1_has_its_own_root() -> None:
    assert limit_files("9:cpu,memory:/job_7\n1:name=systemd:/elsewhere") == [
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/job_7/memory.limit_in_bytes",
    ]


def test_lines_that_no_kernel_writes_ask_for_no_file() -> None:
    first = limit_files("0::/job_7")

    assert limit_files("\n0\n0:\n0::/job_7\n0::/elsewhere") == first
    assert limit_files("\n" * 1000) == []


def test_deep_groups_are_read_from_the_root() -> None:
    deep = limit_files("0::/" + "/".join("g" for _ in range(10 * MOST_LEVELS)))

    assert len(deep) == 1 + MOST_LEVELS
