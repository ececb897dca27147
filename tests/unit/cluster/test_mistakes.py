"""Mistakes that people make in cluster files are told in their words and at the right line."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.cluster import rules, schema, yamltext
from dslaunch.cluster.load import check_names, parse, parse_cluster
from dslaunch.cluster.named_hosts import nodes_text
from dslaunch.cluster.other_files import recognized
from dslaunch.cluster.synonyms import meant_key
from dslaunch.cluster.yaml_errors import ParserFault, fault_of
from dslaunch.errors import ConfigError, Problem


def problems(text: str, name: str = "c.yaml") -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        parse_cluster(text, name)
    return caught.value.problems


SYNTAX = {
    "a tab": ("nodes:\n\t- host: a\n", 2, "tab"),
    "a tab after spaces": ("nodes:\n  - host: a\n  \tslots: 8\n", 3, "tab"),
    "a quote": ('nodes:\n  - host: "a\n    slots: 8\nname: x\n', 2, "unclosed-quote"),
    "a single quote": ("nodes:\n  - host: 'a\n    slots: 8\n", 2, "unclosed-quote"),
    "no space": ("nodes:\n  - host:a\n    slots: 8\n", 2, "missing-space"),
    "no space at the top": ("name:pod\nnodes:\n  - {host: a, slots: 8}\n", 1, "missing-space"),
    "no space below": ("nodes:\n  - host: a\n    slots:8\n    user: b\n", 3, "missing-space"),
    "no space after a dash": ("nodes:\n  -host: a\n   slots: 8\n", 2, "missing-space"),
    "no colon": ("nodes\n  - host: a\n", 1, "missing-colon"),
    "too little indented": ("nodes:\n  - host: a\n   slots: 8\n", 3, "indentation"),
    "too much indented": ("nodes:\n  - host: a\n     slots: 8\n", 3, "indentation"),
    "indented otherwise": ("nodes:\n- host: a\n  slots: 8\n name: b\n", 4, "indentation"),
    "a brace": ("nodes:\n  - {host: a, slots: 8\nname: x\n", 2, "unclosed-bracket"),
    "a bracket": ("nodes: [a, b\nname: x\n", 1, "unclosed-bracket"),
    "a brace at the end": ("name: x\nnodes: {\n", 2, "unclosed-bracket"),
    "a brace too many": ("nodes: {host: a, slots: 8}}\n", 1, "extra-bracket"),
    "a comma": ("nodes:\n  - {host: a slots: 8}\n", 2, "missing-comma"),
    "two in a line": ("nodes:\n  - host: a slots: 8\n", 2, "second-key"),
    "an escape": ('python: "C:\\new\\q"\n', 1, "escape"),
    "a sign": ("name: @x\n", 1, "unquoted-text"),
    "a key twice": ("name: a\nname: b\nnodes: [{host: a, slots: 1}]\n", 2, "duplicate-key"),
}


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(("text", "line", "code"), SYNTAX.values(), ids=SYNTAX.keys())
def test_invalid_yaml_is_reported_at_the_line_of_the_mistake(
    text: str, line: int, code: str
) -> None:
    found = problems(text)[0]
    assert (found.line, found.rule) == (line, code)
    assert found.source == text.split("\n")[line - 1]


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('a: "\\q"\n', ParserFault.ESCAPE),
        ("a: @x\n", ParserFault.TOKEN),
        ("- a\n b: c\n", ParserFault.VALUE),
        ('a: "x\n', ParserFault.QUOTED),
        ("a: 'x\n---\n", ParserFault.QUOTED),
        ("a: {b c: d\nx: y\n", ParserFault.FLOW_MAPPING),
        ("a: [b\nc: d\n", ParserFault.FLOW),
        ("a: {b: [\n", ParserFault.FLOW),
        ('a: 1\n"b"\n', ParserFault.KEY),
        ("a: 1\n- b\n", ParserFault.BLOCK),
        ("x: *\n", ParserFault.OTHER),
    ],
)
def test_a_complaint_of_either_parser_has_the_same_code(text: str, fault: ParserFault) -> None:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with pytest.raises(yaml.MarkedYAMLError) as caught:
        list(yaml.parse(text, Loader=loader))
    assert fault_of(caught.value.problem or "", caught.value.context or "") is fault


@pytest.mark.usefixtures("parser")
@given(st.text(alphabet="nodes: host-a{}[],'\"\n\t\\#&*|>1@", max_size=60))
def test_any_text_is_a_cluster_file_or_an_error_with_words(text: str) -> None:
    try:
        parse_cluster(text, "c.yaml")
    except ConfigError as error:
        assert all(problem.message for problem in error.problems)


OTHER_FILES = {
    "a hostfile": "# ours\nnode1 slots=8\nnode2 slots=8 max_slots=8\n",
    "a list of hosts": "node1:8\nnode2:8\n",
    "a DeepSpeed config": '{"train_batch_size": 8, "zero_optimization": {"stage": 2}}',
    "an accelerate config": "compute_environment: X\ndistributed_type: MULTI_GPU\n",
    "an sbatch script": "#!/bin/bash\n#SBATCH -N 2\nsrun true\n",
    "a script": "#!/bin/sh\nexec true\n",
    "an SSH configuration": "Host a\n  HostName 10.0.0.1\n  User ml\n",
    "a Kubernetes manifest": "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n",
    "an Ansible inventory": "all:\n  hosts:\n    a: {ansible_host: 10.0.0.1}\n",
    "an Ansible file": "[gpu]\nnode1 ansible_host=10.0.0.1\n",
    "a SLURM configuration": "ClusterName=x\nNodeName=n[1-4] CPUs=8\n",
    "a Ray cluster config": "cluster_name: x\nprovider: {type: local}\n",
    "a Docker Compose file": "services: {a: {image: b}}\n",
    "a training config": "model_name_or_path: x\nlearning_rate: 1e-4\n",
    "a hosts file such as /etc/hosts": "127.0.0.1 localhost\n10.0.0.1 a a.example  # x\n",
    "output of Terraform": '{"ips": {"type": "list", "value": ["10.0.0.1"]}}',
    "a Terraform state": '{"version": 4, "terraform_version": "1.9.0", "outputs": {}}',
    "output of sinfo": "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\ngpu* up 1 4 idle a\n",
}


@pytest.mark.parametrize(("kind", "text"), OTHER_FILES.items(), ids=OTHER_FILES.keys())
def test_another_kind_of_file_is_named_as_what_it_is(kind: str, text: str) -> None:
    (found,) = problems(text)
    assert (found.rule, found.parameters) == ("other-file", (("kind", kind),))


def test_several_documents_of_kubernetes_and_bare_names_are_named_too() -> None:
    kubernetes = "apiVersion: v1\nkind: A\n---\napiVersion: v1\n"
    assert dict(problems(kubernetes)[0].parameters) == {"kind": "a Kubernetes manifest"}
    assert dict(problems("node1\nnode2\n")[0].parameters) == {"kind": "a list of hosts"}
    half = '{\n  "train_batch_size": 8,\n'
    assert dict(problems(half)[0].parameters) == {"kind": "a DeepSpeed config"}
    assert dict(problems("[a.b]\nx = 1\n")[0].parameters) == {"kind": "an INI or TOML file"}
    python = "import torch\nprint(1)\n"
    assert dict(problems(python, "train.py")[0].parameters) == {"kind": "a Python script"}


def test_a_cluster_file_with_mistakes_is_still_a_cluster_file() -> None:
    text = "nodes: [{host: a, slots: 8}]\ntrain_batch_size: 8\nzero_optimization: {}\n"
    assert recognized(text, {"nodes": [], "zero_optimization": {}}, "c.yaml") is None
    assert [problem.line for problem in problems(text)] == [2, 3]


HOSTS_IN_OTHER_FILES = {
    "ansible": "all:\n  children:\n    a:\n      hosts:\n        node[01:02]:\n        node03:\n",
    "ansible, ini": "[gpu]\nnode[01:02] ansible_user=ml\nnode03\n\n[gpu:vars]\nansible_port=22\n",
    "/etc/hosts": "::1 ip6-localhost\n10.0.0.1 node01 n1\n10.0.0.2 node02\n10.0.0.3 node03\n",
    "terraform, json": '{"names": {"type": "list", "value": ["node01", "node02", "node03"]}}',
    "terraform": 'a = "b"\nnames = [\n  "node01",\n  "node02",\n  "node03",\n]\nx = [\n"a"\n]\n',
    "a YAML list": "- node01\n- node02\n- node03\n",
    "a YAML list with slots": "- node01: 8\n- node02: 8\n- node03: 8\n",
    "one line": "node[01-02], node03\n",
    "csv": "node01,8\nnode02,8\nnode03,8\n",
    "csv with a head": "host, ip, gpus\nnode01, 10.0.0.1, 8\nnode02, , 8\nnode03, , 8\n",
    "kubectl get nodes": "NAME     STATUS   ROLES    AGE   VERSION\n"
    "node01   Ready    <none>   10d   v1.29.1\n"
    "node02   Ready    <none>   10d   v1.29.1\n"
    "node03   Ready    <none>   10d   v1.29.1\n",
}


@pytest.mark.parametrize("text", HOSTS_IN_OTHER_FILES.values(), ids=HOSTS_IN_OTHER_FILES.keys())
def test_the_hint_for_another_kind_of_file_is_the_command_that_converts_it(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_cluster(text, "c.yaml")
    assert "`dslaunch init --hosts 'node[01-03]' --slots 8`" in str(caught.value.hint)


@pytest.mark.parametrize("line", ["10.0.0.1 n{}\n", "n{} ansible_user=x\n", "- n{}\n"])
def test_the_hint_has_all_hosts_of_a_long_file_or_none(line: str) -> None:
    for count, hosts in ((300, "n[0-299]"), (20_000, "node[1-4]")):
        with pytest.raises(ConfigError) as caught:
            parse_cluster("".join(line.format(number) for number in range(count)), "c.yaml")
        assert f"'{hosts}'" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("nodes: [a, b]", "nodes: [{host: 'a,b', slots: 8}]"),
        ("nodes: [a, b]\nslots: 4", "nodes: [{host: 'a,b', slots: 4}]"),
        ("nodes: node[01-04]", "nodes: [{host: 'node[01-04]', slots: 8}]"),
        ("hosts: n1 n2\ngpus_per_node: 2", "nodes: [{host: 'n[1-2]', slots: 2}]"),
        ("nodes: {a: 8, b: 4}", "nodes: [{host: a, slots: 8}, {host: b, slots: 4}]"),
        (
            "nodes:\n  n1: {ip: 10.0.0.1, gpus: 8}\n  n2: {ip: 10.0.0.2, gpus: 8}",
            "nodes: [{host: 'n[1-2]', slots: 8, address: '10.0.0.[1-2]'}]",
        ),
        ("nodes: ['ml@a slots=2', 'b:8']",
         "nodes: [{host: a, slots: 2, user: ml}, {host: b, slots: 8}]"),
        ("master: n0\nworkers: [n1, n2]\ngpus: 8", "nodes: [{host: 'n[0-2]', slots: 8}]"),
        ("slots: 2\nnodes:\n  - host: a\n  - host: b", "nodes: [{host: 'a,b', slots: 2}]"),
        ("nodes: [{host: a}, {host: b}]", "nodes: [{host: 'a,b', slots: 8}]"),
        ("nodes: [{n1: 4}, {n2: 4}]", "nodes: [{host: 'n[1-2]', slots: 4}]"),
        ("n1: 4\nn2: {gpus: 4}\nenv: {A: b}", "nodes: [{host: 'n[1-2]', slots: 4}]"),
    ],
)  # fmt: skip
def test_the_hint_for_nodes_in_another_form_is_a_key_that_is_valid(text: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_cluster(text, "c.yaml")
    assert f"`{meant}`" in str(caught.value.hint)
    parse_cluster(meant, "c.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "nodes: [{host: a, slots: eight}]",
        "nodes: [{host: a, slots: 8}]\nservers: x\nmaster: a",
        "nodes: [a, {host: b, slots: 8}]",
        "nodes: [a, a]",
        "nodes: [-oProxyCommand=x]",
        "nodes: 'n[1-99999999]'",
        "nodes: [a, 5]",
        "n1: 4\nn2: fast",
    ],
)
def test_nodes_that_are_not_certain_have_no_such_hint(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_cluster(text, "c.yaml")
    assert caught.value.hint is None


def test_nodes_without_slots_have_a_hint_of_what_slots_are() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_cluster("nodes: [{host: a, user: ml}, {host: b, slots: 8}]", "c.yaml")
    assert "`slots`" in str(caught.value.hint) and "GPUs" in str(caught.value.hint)


@given(st.text(alphabet="nodes: ha-1[],{}'\n\t=@", max_size=40))
def test_a_hint_for_any_text_below_nodes_is_a_key_that_is_valid(text: str) -> None:
    found = nodes_text({"nodes": text, "slots": 2})
    assert found is None or parse_cluster(found, "c.yaml").nodes


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("hosts: [{host: a, slots: 8}]", ["nodes"]),
        ("nodes: [{host: a, gpus: 8}]", ["slots"]),
        ("nodes: [{hostname: a, num_gpus: 8, ip: 10.0.0.1}]", ["host", "slots", "address"]),
        ("nodes: [{host: a, slots: 8}]\nnic: eth0", ["network.interface"]),
        ("nodes: [{host: a, slots: 8}]\nuser: x", ["ssh.user"]),
        ("nodes: [{host: a, slots: 8}]\ngpus: 8", ["nodes[].slots"]),
        ("nodes: [{host: a, slots: 8}]\nssh: {key: x}", ["identity_file"]),
        ("nodes: [{host: a, slots: 8}]\nslurm: {queue: x, walltime: 1}", ["partition", "time"]),
    ],
)
def test_words_of_other_formats_lead_to_the_right_key(text: str, meant: list[str]) -> None:
    assert [dict(problem.parameters)["similar"] for problem in problems(text)] == meant


def test_every_synonym_has_an_existing_key() -> None:
    tables = {
        None: schema.ClusterFile,
        "nodes": schema.NodeEntry,
        "ssh": schema.SshSection,
        "storage": schema.StorageSection,
    }
    words = ["gpus", "hosts", "ip", "workers", "username", "bastion", "nfs", "timeout", "cwd"]
    for section, shape in tables.items():
        for word in words:
            meant = meant_key(word, section)
            top = (meant or "name").partition(".")[0]
            assert meant is None or top in shape.KEYS, (section, word)


def test_a_bad_host_hides_no_duplicate() -> None:
    text = "nodes:\n  - {host: 'a,b b,-x', slots: 8}\n  - {host: a, slots: nope}\n  - {host: a}\n"
    found = [(p.line, p.path) for p in problems(text)]
    assert found == [
        (2, "nodes[0].host"),
        (3, "nodes[1].host"),
        (3, "nodes[1].slots"),
        (4, "nodes[2].slots"),
        (4, "nodes[2].host"),
    ]


def test_the_line_is_not_shown_where_a_secret_may_stand() -> None:
    text = "nodes: [{host: a, slots: 8}]\nsecrets: [hf_abcdef-secret]\nenv: {K: [hunter2]}\n"
    assert [problem.source for problem in problems(text)] == ["", ""]


NAMES = rules.KnownNames(("torchrun", "direct"), {"fs.free": ("warn", "fail"), "gpu.count": ()})


@pytest.mark.parametrize(
    ("lines", "paths"),
    [
        ("launcher: torchrum", ["launcher"]),
        ("launcher: direct", []),
        ("preflight: {skip: [fs.fre, gpu, fs.free]}", ["preflight.skip[0]"]),
        ("preflight: {severity: {gpu: warn}}", ["preflight.severity.gpu"]),
        ("preflight: {limits: {fs.free: {warm: 3}}}", ["preflight.limits['fs.free'].warm"]),
        ("preflight: {limits: {gpu.count: {warn: 3}}}", ["preflight.limits['gpu.count'].warn"]),
    ],
)
def test_names_that_nothing_has_are_errors(lines: str, paths: list[str]) -> None:
    parsed = parse(f"nodes: [{{host: a, slots: 8}}]\n{lines}\n", "c.yaml")
    found: list[str] = []
    try:
        check_names(parsed, NAMES)
    except ConfigError as error:
        found = [problem.path for problem in error.problems]
    assert found == paths


def test_a_document_without_a_section_has_no_unknown_names() -> None:
    document = yamltext.parse("nodes: []", "f")
    assert list(rules.unknown_names(document, NAMES)) == []
