"""Values of NCCL's variables that do not do what they say."""

from __future__ import annotations

import pytest

from dslaunch.topology.nccl import check

NICS = ("mlx5_0", "mlx5_1", "mlx5_10", "mlx5_bond_0")
INTERFACES = ("lo", "eth0", "ib0")

WRONG = [
    ("NCCL_P2P_LEVEL", "NODE", "nccl-ignored-value", "is ignored by NCCL"),
    ("NCCL_P2P_LEVEL", "nvl", "nccl-ignored-value", "is ignored by NCCL"),
    ("NCCL_P2P_LEVEL", "2", "nccl-old-level", "2 "),
    ("NCCL_NET_GDR_LEVEL", "NODE", "nccl-ignored-value", "is ignored by NCCL"),
    ("NCCL_P2P_DISABLE", "true", "nccl-no-number", "is parsed as 0"),
    ("NCCL_P2P_DISABLE", "2", "nccl-ignored-value", "is ignored by NCCL"),
    ("NCCL_IB_DISABLE", "yes", "nccl-no-number", "is parsed as 0"),
    ("NCCL_IB_TIMEOUT", "22s", "nccl-no-number", "is parsed as 22"),
    ("NCCL_IB_GID_INDEX", "3", "nccl-pinned-gid", "NCCL 2.21"),
    ("NCCL_IB_HCA", "mlx5_1", "nccl-prefix", "mlx5_10"),
    ("NCCL_IB_HCA", "^mlx5_1", "nccl-prefix", "mlx5_10"),
    ("NCCL_IB_HCA", "=mlx5_7", "nccl-unknown-name", "names mlx5_7"),
    ("NCCL_IB_HCA", "=mlx5_0,=mlx5_1", "nccl-inner-mark", "inside the list"),
    ("NCCL_IB_HCA", "", "nccl-empty-selection", "names no device"),
    ("NCCL_IB_HCA", "=:1", "nccl-empty-selection", "names no device"),
    ("NCCL_IB_TIMEOUT", "٢٢", "nccl-no-number", "is parsed as 0"),
    ("NCCL_SOCKET_IFNAME", "=eth1", "nccl-unknown-name", "names eth1"),
    ("GLOO_SOCKET_IFNAME", "^lo", "gloo-no-name", "gloo"),
    ("GLOO_SOCKET_IFNAME", "=eth0", "gloo-no-name", "gloo"),
    ("GLOO_SOCKET_IFNAME", "eth1", "nccl-unknown-name", "names eth1"),
    ("NCCL_DEBUG", "1", "nccl-ignored-value", "is ignored by NCCL"),
]


@pytest.mark.parametrize(("name", "value", "rule", "words"), WRONG)
def test_values_that_do_not_do_what_they_say(name: str, value: str, rule: str, words: str):
    (found,) = check({name: value}, "node01", devices=NICS, interfaces=INTERFACES)
    assert (found.rule, found.path, found.file) == (rule, name, "node01")
    assert found.message.startswith(f"{name}={value} ")
    assert words in found.message
    assert found.fix
    assert found.source


RIGHT = [
    ("NCCL_P2P_LEVEL", "NVL"),
    ("NCCL_P2P_DISABLE", "1"),
    ("NCCL_IB_TIMEOUT", "0x16"),
    ("NCCL_IB_HCA", "=mlx5_0,mlx5_1"),
    ("NCCL_IB_HCA", "=mlx5_0:1"),
    ("NCCL_IB_HCA", "mlx5"),
    ("NCCL_IB_HCA", "^=mlx5_bond_0"),
    ("NCCL_SOCKET_IFNAME", "ib,eth"),
    ("NCCL_SOCKET_IFNAME", "^lo,docker"),
    ("GLOO_SOCKET_IFNAME", "eth0"),
    ("NCCL_DEBUG", "info"),
    ("NCCL_ALGO", "Ring"),
]


@pytest.mark.parametrize(("name", "value"), RIGHT)
def test_values_that_are_right_are_left_alone(name: str, value: str):
    assert check({name: value}, "node01", devices=NICS, interfaces=INTERFACES) == ()


def test_names_are_not_judged_where_the_nodes_are_not_known():
    assert check({"NCCL_IB_HCA": "=mlx5_7", "GLOO_SOCKET_IFNAME": "eth9"}, "node01") == ()


def test_the_word_of_nvidia_smi_gets_nccls_word_for_it():
    (found,) = check({"NCCL_P2P_LEVEL": "NODE"}, "node01")
    assert (found.fix or "").startswith("write PHB or SYS")
