from __future__ import annotations

import os
from pathlib import Path

import pytest

from dslaunch.cluster import model
from dslaunch.cluster.load import LARGEST, TOLD, load_cluster, parse_cluster
from dslaunch.cluster.nodeset import LIMIT
from dslaunch.errors import ConfigError, Problem

ONE = "nodes: [{host: a, slots: 1}]\n"
FULL = """\
name: pod-a
nodes:
  - host: node[01-02]
    slots: 2
    address: 10.0.0.[12,11]
    labels: {rack: 01}
  - {host: old01, slots: [3, 1], user: root, port: 2222, python: /opt/py, env: {A: 1e3}}
  - {host: spare01, slots: 1, spare: true, jump: other}
transport: openssh
ssh: {user: ml, identity_file: ~/.ssh/key, jump: b, connect_timeout: 5, fanout: 4, config_file: c}
network: {interface: ib0, master_port: 29500}
storage: {shared: false, workdir: /mnt/proj, checkpoints: ckpt, node_local: /nvme}
activate: source /opt/venv/bin/activate
env: {NCCL_IB_TIMEOUT: 22, X: 0x1F, T: true, N: null, E: , Q: "a b"}
env_from: [HF_HOME, "WANDB_*"]
secrets: [WANDB_API_KEY, {HF_TOKEN: {file: ~/.hf_token}}]
launcher: my_launcher
slurm: {partition: gpu, time: 20:00:00, cpus_per_task: 10, exclusive: true}
job: {module: pkg.train, args: [--lr, 1e-4, --flag, no], env: {B: 022}}
"""


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_cluster(text, "f")
    assert caught.value.exit_code == 3
    return [str(problem).removeprefix("f:") for problem in caught.value.problems]


def test_a_full_file_becomes_the_cluster_that_it_describes() -> None:
    activate = "source /opt/venv/bin/activate"
    common = {"identity_file": "~/.ssh/key", "activate": activate}
    node = {"user": "ml", "jump": "b", "labels": (("rack", "01"),), "slots": (0, 1)}
    assert parse_cluster(FULL, "f") == model.Cluster(
        name="pod-a",
        nodes=(
            model.Node(host="node01", address="10.0.0.12", **node, **common),
            model.Node(host="node02", address="10.0.0.11", **node, **common),
            model.Node(
                "old01", (1, 3), user="root", port=2222, identity_file="~/.ssh/key", jump="b",
                python="/opt/py", env=(("A", "1e3"),),
            ),
            model.Node("spare01", (0,), user="ml", jump="other", spare=True, **common),
        ),
        transport="openssh",
        ssh=model.Ssh(5.0, 4, "c"),
        network=model.Network("ib0", 29500),
        storage=model.Storage(False, "/mnt/proj", "ckpt", "/nvme"),
        env=(("NCCL_IB_TIMEOUT", "22"), ("X", "0x1F"), ("T", "true"), ("N", "null"), ("E", ""),
             ("Q", "a b")),
        env_from=("HF_HOME", "WANDB_*"),
        secrets=(model.SecretSource("WANDB_API_KEY"),
                 model.SecretSource("HF_TOKEN", "~/.hf_token")),
        launcher="my_launcher",
        slurm=model.Slurm(
            (("partition", "gpu"), ("time", "20:00:00"), ("cpus_per_task", "10")),
            exclusive="true",
        ),
        job=model.JobDefaults(None, "pkg.train", ("--lr", "1e-4", "--flag", "no"),
                              (("B", "022"),)),
    )  # fmt: skip


def test_what_is_left_out_is_decided_by_evidence_later() -> None:
    cluster = parse_cluster(ONE, "/site/pod b.yaml")
    assert cluster == model.Cluster(name="pod-b", nodes=(model.Node("a", (0,)),))


def test_auto_is_the_same_as_leaving_it_out() -> None:
    auto = "network: {interface: auto, master_port: auto}\nstorage: {shared: auto}\n"
    assert parse_cluster(ONE + auto, "f") == parse_cluster(ONE, "f")


@pytest.mark.parametrize(
    ("written", "ports"), [("auto", None), ("29600", (29600, 29600)), ("1-65535", (1, 65535))]
)
def test_a_control_port_is_one_port_or_a_range(written: str, ports: tuple[int, int] | None) -> None:
    cluster = parse_cluster(f"{ONE}network: {{control_port: {written}}}\n", "f")
    assert cluster.network.control_port == ports


def test_names_and_addresses_that_look_like_numbers_are_text() -> None:
    cluster = parse_cluster("name: 022\nnodes: [{host: 0017, slots: 1}]", "f")
    assert (cluster.name, cluster.nodes[0].host) == ("022", "0017")


def test_an_entry_that_names_its_interpreter_does_not_get_the_activation_of_the_file() -> None:
    text = "activate: source x\nnodes: [{host: a, slots: 1, python: /p}, {host: b, slots: 1}]"
    a, b = parse_cluster(text, "f").nodes
    assert (a.python, a.activate, b.python, b.activate) == ("/p", None, None, "source x")


NODE = "{host: a, slots: 1}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "nodes: [{host: a, slots: eight}]",
            "1:19: nodes[0].slots: expected an integer, got 'eight'",
        ),
        ("nodes: [{host: a, slots: 022}]", "1:19: nodes[0].slots: expected an integer, got '022'"),
        ('nodes: [{host: a, slots: "8"}]', "1:19: nodes[0].slots: expected an integer, got '8'"),
        ("nodes: [{host: a, slots: 1.5}]", "1:19: nodes[0].slots: expected an integer, got 1.5"),
        ("nodes: [{host: a, slots: true}]", "1:19: nodes[0].slots: expected an integer, got true"),
        ("nodes: [{host: a, slots: }]", "1:19: nodes[0].slots: expected an integer, got nothing"),
        ("nodes: [{host: a, slots: 0}]", "1:19: nodes[0].slots: expected at least 1, got 0"),
        (
            "nodes: [{host: a, slots: 1025}]",
            "1:19: nodes[0].slots: expected at most 1024, got 1025",
        ),
        ("nodes: [{host: a, slots: []}]", "1:19: nodes[0].slots: is empty"),
        (
            "nodes: [{host: a, slots: [0, -1]}]",
            "1:30: nodes[0].slots[1]: expected at least 0, got -1",
        ),
        (
            "nodes: [{host: a, slots: [0, x]}]",
            "1:30: nodes[0].slots[1]: expected an integer, got 'x'",
        ),
        ("nodes: [{host: a, slots: [1, 1]}]", "1:19: nodes[0].slots: slot 1 is there twice"),
        ("nodes: [{host: a}]", "1:9: nodes[0].slots: is missing"),
        ("nodes: [a]", "1:9: nodes[0]: expected a mapping, got 'a'"),
        ("nodes: {a: 8}", "1:1: nodes: expected a list, got a mapping"),
        ("nodes: []", "1:1: nodes: is empty"),
        ("name: x", "1:1: nodes: is missing"),
        (
            "name: a b\n" + ONE,
            "1:1: name: expected a name of letters, digits, `.`, `_`, `-`, got 'a b'",
        ),
        (
            "nodes: [{host: a, slotz: 1, slots: 1}]",
            "1:19: nodes[0].slotz: unknown key `slotz`, did you mean `slots`?",
        ),
        (
            ONE + "trnsport: local",
            "2:1: trnsport: unknown key `trnsport`, did you mean `transport`?",
        ),
        (ONE + "user: me", "2:1: user: unknown key `user`, did you mean `ssh.user`?"),
        (ONE + "qqq: me", "2:1: qqq: unknown key `qqq`"),
        (
            ONE + "secrets: [{A: {fil: x, file: y}}]",
            "2:16: secrets[0].A.fil: unknown key `fil`, did you mean `file`?",
        ),
        (
            ONE + "transport: fabrik",
            "2:1: transport: expected `auto`, `fabric`, `local`, "
            "`openssh` or `srun`, got 'fabrik', did you mean `fabric`?",
        ),
        (ONE + "ssh:", "2:1: ssh: expected a mapping, got nothing"),
        (ONE + "ssh: {port: 0}", "2:7: ssh.port: expected at least 1, got 0"),
        (ONE + "ssh: {port: 65536}", "2:7: ssh.port: expected at most 65535, got 65536"),
        (
            ONE + "ssh: {user: me@host}",
            "2:7: ssh.user: expected one word without `@`, got 'me@host'",
        ),
        (ONE + "ssh: {user: -oProxyCommand=x}", "2:7: ssh.user: expected one word"),
        *(
            (ONE + f"ssh: {{jump: '{jump}'}}", "2:7: ssh.jump: expected jump hosts such as")
            for jump in (
                "-oX",
                "@",
                "a@",
                "@b",
                "a,",
                "a:b",
                "a:",
                "fd00::1",
                "u@-oX",
                "a,-oX",
                "a b",
            )
        ),
        (
            ONE + "ssh: {connect_timeout: 0}",
            "2:7: ssh.connect_timeout: expected more than 0, got 0",
        ),
        (
            ONE + "ssh: {connect_timeout: soon}",
            "2:7: ssh.connect_timeout: expected a number, got 'soon'",
        ),
        (
            ONE + "network: {master_port: '022'}",
            "2:11: network.master_port: expected `auto` or an integer, got '022'",
        ),
        *(
            (
                f"{ONE}network: {{control_port: {value}}}",
                "2:11: network.control_port: expected `auto`, a port or a range of ports such as "
                f"`29600-29610`, got '{value}'",
            )
            for value in ("9-5", "0-5", "1-65536", "29600-", "a-b", "1-2-3")
        ),
        (
            ONE + "network: {control_port: 0}",
            "2:11: network.control_port: expected `auto` or at least 1, got 0",
        ),
        (
            ONE + "network: {interface: a/b}",
            "2:11: network.interface: expected `auto` or an interface's name",
        ),
        (
            ONE + "storage: {shared: yes}",
            "2:11: storage.shared: expected `auto`, true or false, got 'yes'",
        ),
        (ONE + "storage: {workdir: 3}", "2:11: storage.workdir: expected text, got 3"),
        (ONE + "env: {1A: x}", "2:7: env['1A']: expected a variable's name"),
        (ONE + "env: {A: {b: c}}", "2:7: env.A: expected text, got a mapping"),
        (ONE + "env: [A]", "2:1: env: expected a mapping, got a list"),
        (ONE + 'env: {A: "x\\0y"}', "2:10: the text has the character '\\x00' in it"),
        (ONE + "env_from: [A-B]", "2:12: env_from[0]: expected a variable's name or a pattern"),
        (ONE + "secrets: [A, A]", "2:14: secrets[1]: `A` is there already"),
        (ONE + "secrets: [A]\nenv: {A: x}", "3:7: env.A: `A` is a secret; leave it out here"),
        (
            ONE + "secrets: [A]\nenv_from: [A]",
            "3:12: env_from[0]: `A` is a secret; leave it out here",
        ),
        (
            ONE + "secrets: [A]\njob: {script: t.py, env: {A: x}}",
            "3:27: job.env.A: `A` is a secret",
        ),
        (
            "secrets: [A]\nnodes: [{host: a, slots: 1, env: {A: x}}]",
            "2:35: nodes[0].env.A: `A` is a secret",
        ),
        (ONE + "launcher: a b", "2:1: launcher: expected a launcher's name"),
        (
            ONE + "slurm: {cpus-per-task: 3}",
            "2:9: slurm.cpus-per-task: unknown key `cpus-per-task`, did you mean `cpus_per_task`?",
        ),
        (
            ONE + "slurm: {burst_buffer: x}",
            "2:9: slurm.burst_buffer: unknown key `burst_buffer`; it is an option of sbatch: "
            "`directives: [--bb=...]`",
        ),
        (ONE + "slurm: {time: soon}", "2:9: slurm.time: expected minutes, `hours:minutes:seconds`"),
        (
            ONE + "slurm: {container: {image: x, mount: y}}",
            "2:31: slurm.container.mount: unknown key `mount`, did you mean `mounts`?",
        ),
        (
            ONE + "slurm: {container: {runtime: edf, image: x, mounts: [/a]}}",
            "2:54: slurm.container.mounts[0]: the environment definition file says what",
        ),
        (
            ONE + "slurm: {container: {image: x, workdir: run}}",
            "2:31: slurm.container.workdir: expected a path that begins with `/`",
        ),
        (
            ONE + "slurm: {container: {image: x, env: [A=1]}}",
            "slurm.container.env[0]: expected a variable's name",
        ),
        (
            ONE + "partition: gpu",
            "2:1: partition: unknown key `partition`, did you mean `slurm.par",
        ),
        (ONE + "job: {args: [a]}", "2:1: job: needs `script` or `module`"),
        (ONE + "job: {script: a, module: b}", "2:18: job.module: `script` is given as well"),
        (ONE + "job: {module: train.py/x}", "2:7: job.module: expected a module such as"),
        (ONE + "python: p\nactivate: a", "3:1: activate: `python` is given as well"),
        (
            "nodes: [{host: a, slots: 1, python: p, activate: a}]",
            "1:40: nodes[0].activate: `python` is given as well",
        ),
        ("nodes: [{host: a, slots: 1, spare: true}]", "1:1: nodes: all nodes are spares"),
        (f"nodes:\n- {NODE}\n- {NODE}", "3:4: nodes[1].host: host 'a' is there already, in line 2"),
        (
            "nodes: [{host: 'n[1-3,2-3]', slots: 1}]",
            "1:10: nodes[0].host: host 'n2' (and 1 more) is there already, in line 1",
        ),
        (
            "nodes: [{host: 'n[1-', slots: 1}]",
            "1:10: nodes[0].host: the brackets in 'n[1-' do not match",
        ),
        ("nodes: [{host: '', slots: 1}]", "1:10: nodes[0].host: is empty"),
        (
            "nodes: [{host: u@h, slots: 1}]",
            "1:10: nodes[0].host: 'u@h' is no host name; user and port",
        ),
        (
            "nodes: [{host: 'h:22', slots: 1}]",
            "1:10: nodes[0].host: 'h:22' is no host name; user and port",
        ),
        (
            "nodes: [{host: 'fe80::1', slots: 1}]",
            "1:10: nodes[0].host: 'fe80::1' is no host name; write an IPv6",
        ),
        ("nodes: [{host: a b, slots: 1}]", "1:10: nodes[0].host: 'a b' is no host name"),
        ("nodes: [{host: -oX, slots: 1}]", "1:10: nodes[0].host: '-oX' is no host name"),
        ("nodes: [{host: $(x), slots: 1}]", "1:10: nodes[0].host: '$(x)' is no host name"),
        (
            "nodes: [{host: 10.0.0.300, slots: 1}]",
            "1:10: nodes[0].host: '10.0.0.300' is no IPv4 address",
        ),
        (
            "nodes: [{host: a, slots: 1, address: 'fd00::g'}]",
            "1:29: nodes[0].address: 'fd00::g' is no IPv6 address",
        ),
        (
            "nodes: [{host: a, slots: 1, address: 'x y'}]",
            "1:29: nodes[0].address: 'x y' is no address",
        ),
        (
            "nodes: [{host: 'n[1-3]', slots: 1, address: '10.0.0.[1-2]'}]",
            "1:36: nodes[0].address: expected as many as hosts, 3, got 2",
        ),
        (
            "nodes: [{host: 'n[1-2]', slots: 1, address: '10.0.0.[1,1]'}]",
            "1:36: nodes[0].address: address '10.0.0.1' is there already, in line 1",
        ),
        (
            "nodes: [{host: a, slots: 1, labels: {'a b': c}}]",
            "1:38: nodes[0].labels['a b']: expected a label's name",
        ),
        (
            f"nodes: [{{host: 'n[1-{LIMIT}]', slots: 1}}, {NODE}]",
            f"there are more than {LIMIT:,} nodes",
        ),
        (
            "nodes: [{host: a, slots: 1, address: 'fd00::1'}, "
            "{host: b, slots: 1, address: 'fd00:0::1'}]",
            "1:70: nodes[1].address: address 'fd00:0::1' is there already, in line 1",
        ),
        (
            "nodes: [{host: a, slots: 1, address: '[fd00::1]'}]",
            "1:29: nodes[0].address: 'fd00::1' in '[fd00::1]' is no number and no range such as "
            "1-4; write an IPv6 address without brackets",
        ),
        (
            "nodes: [{host: a, slots: 1, address: 0.0.0.0}]",
            "1:29: nodes[0].address: '0.0.0.0' is no address that others can dial",
        ),
        (
            "nodes: [{host: a, slots: 1, address: '::'}]",
            "1:29: nodes[0].address: '::' is no address that others can dial",
        ),
        (
            f"nodes: [{{host: {'n' * 254}, slots: 1}}]",
            "has a name of more than 253 characters",
        ),
        (ONE + "secrets: [[A]]", "2:11: secrets[0]: expected text; a secret's value does not"),
        (ONE + "env:", "2:1: env: expected a mapping, got nothing"),
        (
            "? [a]\n: b\nnodes: [{host: a, slots: 1}]",
            "1:3: a key must be text, not a list or a mapping",
        ),
        (
            "nodes: [{host: n[1-2], slots: 1}]",
            "1:17: not valid YAML: between `{` and `}`, quote a name that has brackets",
        ),
        ("nodes: [{host: @a, slots: 1}]", "1:16: not valid YAML: quote text that begins with `@`"),
        (ONE + "name: x\nname: y", "3:1: the key 'name' is there already, in line 2"),
    ],
    ids=lambda value: value[:60],
)
def test_a_problem_is_told_with_its_place_and_what_was_found(text: str, problem: str) -> None:
    found = problems(text)
    assert len(found) == 1, found
    assert problem in found[0]


def test_every_problem_of_a_file_is_told_at_once_in_the_order_of_lines() -> None:
    found = problems(
        "nodes:\n"
        "  - {host: a, slots: x}\n"
        "  - {host: b, slotz: 1}\n"
        "  - {host: c, slots: 1}\n"
        "  - {host: c, slots: 1, address: '1::x'}\n"
        "transport: fabrik\n"
        "<<: {a: 1}\n"
        "secrets: [T]\n"
        "env: {T: 1}\n"
    )
    assert "".join(line[0] for line in found) == "23355679"


def test_of_a_fault_that_recurs_the_first_are_told_and_how_many_more_there_are() -> None:
    found = problems("nodes:\n" + "".join(f"  - {{host: n{i}, slots: x}}\n" for i in range(150)))
    assert len(found) == TOLD + 1
    assert found[TOLD] == f"{TOLD + 2}:18: from here on there are 50 more problems"


def test_a_fault_that_many_aliases_repeat_is_told_once() -> None:
    found = problems("nodes:\n  - &n {host: a, slots: 1}\n" + "  - *n\n" * 50)
    assert found == ["2:9: nodes[1].host: host 'a' is there already, in line 2"]


def test_what_might_be_a_secret_is_not_shown() -> None:
    found = problems(ONE + "secrets: [{HF_TOKEN: hf_abc123}, hf-abc123]")
    assert len(found) == 2
    assert "abc123" not in "".join(found)


@pytest.mark.parametrize(
    "jump", ["b", "u@b", "b:22", "u@b:2222", "u@a,b:22,c", "[fd00::1]:22", "u@10.0.0.1", "none"]
)
def test_a_way_through_jump_hosts_is_taken_as_it_is_written(jump: str) -> None:
    assert parse_cluster(ONE + f"ssh: {{jump: '{jump}'}}", "f").nodes[0].jump == jump


def test_a_spare_is_no_reason_to_refuse_the_others() -> None:
    cluster = parse_cluster(f"nodes: [{NODE}, {{host: s, slots: 1, spare: true}}]", "f")
    assert [node.spare for node in cluster.nodes] == [False, True]


def test_a_secret_may_match_a_pattern_of_copied_variables() -> None:
    cluster = parse_cluster(ONE + "secrets: [WANDB_API_KEY]\nenv_from: ['WANDB_*']", "f")
    assert cluster.env_from == ("WANDB_*",)


def refused(path: Path) -> Problem:
    with pytest.raises(ConfigError) as caught:
        load_cluster(path)
    (problem,) = caught.value.problems
    return problem


def test_a_file_is_named_in_its_problems(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("nodes: 3")
    assert str(refused(path)) == f"{path}:1:1: nodes: expected a list, got 3"


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    assert refused(tmp_path / "no").message == "there is no such file"


def test_a_directory_is_told(tmp_path: Path) -> None:
    assert refused(tmp_path).message == "is a directory, expected a YAML file"


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert "is no regular file" in refused(tmp_path / "fifo").message


def test_a_device_that_never_ends_is_not_read() -> None:
    assert "is no regular file" in refused(Path("/dev/zero")).message


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)
    assert "at most 16,777,216 are read" in refused(path).message


def test_a_path_through_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    assert refused(tmp_path / "f" / "g").message == "cannot be read: not a directory"


def test_a_path_with_a_nul_is_told() -> None:
    assert "embedded null" in refused(Path("a\0b")).message


@pytest.mark.parametrize(
    ("data", "place", "message"),
    [
        (b"name: a\nb: \xff", (2, 4), "byte 0xff is not UTF-8"),
        ("name: a".encode("utf-16"), (0, 0), "is UTF-16 text"),
        (b"\x7fELF\x02\x01\x01\0\0", (1, 1), "cannot be in YAML"),
        (b"", (1, 1), "got nothing"),
    ],
    ids=["latin", "utf-16", "program", "empty"],
)
def test_a_file_of_something_else_is_told(
    tmp_path: Path, data: bytes, place: tuple[int, int], message: str
) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(data)
    problem = refused(path)
    assert (problem.line, problem.column) == place
    assert message in problem.message


def test_ten_thousand_explicit_nodes_fit() -> None:
    text = "nodes:\n" + "".join(f"  - {{host: n{i:05}, slots: 8}}\n" for i in range(10_000))
    assert len(parse_cluster(text, "f").nodes) == 10_000
