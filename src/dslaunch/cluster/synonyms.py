"""Names that other formats use for the keys of a cluster file. A table, pure."""

from __future__ import annotations

from collections.abc import Mapping

_NODE = {
    "host": "hostname host_name hosts node nodes name server machine ansible_host "
    "inventory_hostname",
    "slots": "gpus gpu num_gpus n_gpus ngpus gpu_count gpus_per_node slots_per_node max_slots "
    "nproc_per_node num_processes procs_per_node devices accelerators cuda_visible_devices",
    "address": "ip ip_address ipaddr addr internal_ip private_ip master_addr",
    "user": "username user_name ssh_user login ansible_user remote_user",
    "port": "ssh_port ansible_port",
    "identity_file": "key key_file keyfile ssh_key ssh_key_file private_key ssh_private_key "
    "identity identityfile ansible_ssh_private_key_file pem",
    "jump": "bastion gateway proxy proxy_jump proxyjump jump_host jumphost via",
    "python": "interpreter python_path python_executable ansible_python_interpreter executable",
    "activate": "venv virtualenv conda conda_env setup init_script",
    "env": "environment envs env_vars envvars vars variables",
    "labels": "label tags tag roles attributes",
    "spare": "standby backup reserve hot_spare",
}
_TOP = {
    "name": "cluster cluster_name clustername title",
    "nodes": "hosts host node workers worker machines machine servers server hostfile inventory "
    "node_list nodelist node_names resources",
    "transport": "connection backend rsh launcher_transport",
    "launcher": "launch launch_method distributed_backend runner",
    "python": _NODE["python"],
    "activate": _NODE["activate"],
    "env": _NODE["env"],
    "env_from": "pass_env export_env forward_env inherit_env",
    "secrets": "secret secret_env",
    "job": "task run training train command",
    "slurm": "sbatch scheduler batch",
    "preflight": "checks healthcheck health_checks",
    "ssh.user": _NODE["user"],
    "ssh.port": _NODE["port"],
    "ssh.identity_file": _NODE["identity_file"],
    "ssh.jump": _NODE["jump"],
    "ssh.connect_timeout": "timeout ssh_timeout connection_timeout",
    "ssh.fanout": "parallel parallelism forks max_parallel",
    "ssh.config_file": "ssh_config ssh_config_file",
    "network.interface": "nic iface ifname interface_name socket_ifname nccl_socket_ifname "
    "gloo_socket_ifname net_interface",
    "network.master_port": "masterport main_process_port rdzv_port rendezvous_port",
    "storage.shared": "shared_fs shared_storage nfs shared_filesystem",
    "storage.workdir": "cwd chdir working_dir workingdir working_directory work_dir directory",
    "storage.checkpoints": "checkpoint checkpoint_dir ckpt_dir output_dir save_dir save_path",
    "storage.node_local": "scratch local_scratch local_dir nvme",
    "job.script": "entrypoint program main training_script script_path",
    "job.module": "python_module",
    "job.args": "arguments argv script_args parameters params",
}


def _of_section(section: str) -> dict[str, str]:
    """Return the names of the keys of a section that are also recognized at the top level."""
    keys = {key.partition(".")[::2]: words for key, words in _TOP.items()}
    return {key: words for (first, key), words in keys.items() if first == section and key}


_SECTION = {
    "ssh": _of_section("ssh"),
    "network": _of_section("network") | {"control_port": "controller_port"},
    "storage": _of_section("storage"),
    "job": _of_section("job")
    | {
        "env": _NODE["env"],
        "script": "entrypoint program main training_script script_path command cmd run file",
    },
    "slurm": {
        "partition": "queue partitions",
        "time": "time_limit timelimit walltime timeout duration",
        "mem": "memory ram mem_per_node",
        "cpus_per_task": "cpus ncpus num_cpus cpus_per_node cores",
        "gpus": "gres gpus_per_node gpu_request",
        "nodes": "num_nodes nnodes node_count",
        "nodelist": "node_list hosts",
        "exclude": "exclude_nodes excludes",
        "account": "project allocation",
        "job_name": "name jobname",
        "output": "log logfile log_file stdout",
        "setup": "modules module pre_run before_script commands",
        "directives": "extra sbatch_args additional_parameters options",
        "container": "image container_image",
        "signal": "sig",
    },
    "preflight": {
        "skip": "ignore exclude disable disabled skip_checks",
        "severity": "severities level levels",
        "limits": "limit thresholds threshold",
    },
}


def _by_word(table: Mapping[str, str]) -> dict[str, str]:
    return {word: key for key, words in table.items() for word in words.split()}


_FOR_NODE = _by_word(_NODE)
_FOR_TOP = _by_word(_TOP)
_FOR_SECTION = {section: _by_word(table) for section, table in _SECTION.items()}


def meant_key(key: str, section: str | None) -> str | None:
    """Return the key that another name means; None: unknown.

    `section` is the top-level key of its section; None: the key is at the top level.
    """
    if section is None:
        return _FOR_TOP.get(_plain(key))
    if section == "nodes":
        return _FOR_NODE.get(_plain(key))
    return _FOR_SECTION.get(section, {}).get(_plain(key))


def meant_of_node(key: str) -> str | None:
    """Return the key of a node entry that a key at the top level means; None: unknown."""
    word = _plain(key)
    node = word if word in _NODE else _FOR_NODE.get(word)
    return f"nodes[].{node}" if node else None


def _plain(key: str) -> str:
    return key.lower().replace("-", "_").replace(" ", "_")
