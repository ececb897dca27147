"""How machines are wired, in text, as data and drawn."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.topology.printed import BRIDGED, CUBE, H100, Wiring, gpu_list, topo_m

from dslaunch.report.topology import as_data, text
from dslaunch.report.topology_svg import drawing
from dslaunch.topology import nccl
from dslaunch.topology.advice import advise
from dslaunch.topology.answers import answers_in, read
from dslaunch.topology.comparison import compare
from dslaunch.topology.model import Topology

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "topology"
SVG = "{http://www.w3.org/2000/svg}"


def recorded() -> dict[str, Topology]:
    files = sorted(EXAMPLES.glob("*.txt"))
    return {file.stem: read(answers_in(file.read_text("utf-8"))) for file in files}


def node(wiring: Wiring) -> Topology:
    return read({"topo_m": topo_m(wiring)})


def test_three_nodes_of_which_one_is_odd(golden: Callable[[str, str], None]):
    by_host = recorded()
    remarks = [
        remark
        for host, topology in by_host.items()
        for remark in nccl.check(dict(topology.host.settings), host)
    ]
    golden("topology/three.txt", text(by_host, compare(by_host), advise(by_host), remarks))


def test_a_machine_alone_is_compared_with_nothing():
    shown = text({"n1": node(H100)}, compare({"n1": node(H100)}))
    assert shown.startswith("n1: 8x GPU, NV18 full mesh, GPU-NIC PIX 8/8, 2 NUMA nodes\n")
    assert "differ" not in shown
    assert "advice" not in shown


def test_machines_that_are_alike_are_shown_once():
    by_host = {f"n{at}": node(H100) for at in range(1, 5)}
    shown = text(by_host, compare(by_host))
    assert shown.startswith("n[1-4]: ")
    assert shown.count("NVLink  0-7") == 1
    assert shown.endswith("\n4 nodes have the same topology\n")


def test_what_could_not_be_read_says_why_and_what_to_do():
    by_host = {"n1": read({"topo_m": "No devices were found\n"})}
    trouble = by_host["n1"].trouble
    assert trouble is not None
    assert trouble.kind == "no_devices"
    assert text(by_host, compare(by_host)).splitlines() == [
        f"n1: unknown: {trouble.message}",
        f"  {trouble.hint}",
    ]


@pytest.mark.parametrize("width", [60, 80])
def test_words_fit_the_width_that_there_is(width: int):
    by_host = {"n1": node(BRIDGED)}
    shown = text(by_host, compare(by_host), advise(by_host), width=width)
    reasons = [line for line in shown.splitlines() if line.startswith("    ")]
    assert reasons
    assert max(map(len, reasons)) <= width


def test_programs_get_the_same_facts():
    by_host = recorded()
    found = json.loads(json.dumps(as_data(by_host, compare(by_host), advise(by_host))))
    assert found["nodes"]["node01"]["summary"].startswith("8x H100 80GB, NV18 full mesh")
    assert found["nodes"]["node03"]["nearest_nics"][5]["link"] == "NODE"
    assert found["nodes"]["node01"]["ring"]["worst"] == "NV18"
    assert found["comparison"]["odd"] == [
        {
            "host": "node03",
            "aspect": "GPU-NIC links",
            "differences": [{"found": "NODE", "expected": "PIX", "place": "GPU5"}],
            "difference": "GPU5: NODE, expected PIX",
        }
    ]
    assert {each["code"] for each in found["advice"]} >= {"devices-excluded", "interface-common"}


def words(svg: str) -> list[str]:
    return [found.text or "" for found in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_a_drawing_names_every_device_and_every_kind_of_link(golden: Callable[[str, str], None]):
    svg = drawing(node(BRIDGED), "node01")
    golden("topology/bridged.svg", svg)
    assert {"GPU0", "GPU3", "mlx5_0", "NV12", "SYS", "NUMA 0", "NUMA 1"} <= set(words(svg))


def test_a_full_mesh_is_one_bar_and_an_uneven_one_an_arc_for_each_pair():
    assert "NV18 between all 8 GPUs" in words(drawing(node(H100)))
    cube = words(drawing(node(CUBE)))
    assert (cube.count("NV1"), cube.count("NV2")) == (8, 8)


def test_kinds_of_links_differ_without_color():
    svg = drawing(node(BRIDGED))
    colors = {c for c in ("#111", "#777", "#e4e4e4", "#f3f3f3", "#fff") if c in svg}
    assert svg.count("#") == sum(svg.count(c) for c in colors)  # grays, and nothing else
    assert 'stroke-dasharray="2 5"' in svg


def test_a_drawing_loads_nothing_and_says_what_it_shows():
    svg = drawing(node(H100), "node01")
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    assert "GPU0-GPU1 NV18" in (root.findtext(f"{SVG}desc") or "")
    assert "href" not in svg
    assert "url(" not in svg
    assert svg.count("http") == 1  # the name of the language


def test_names_that_are_markup_are_words():
    odd = read({"topo_m": topo_m(Wiring(1)), "gpu_list": gpu_list(['A<b>"&'])})
    assert 'A<b>"&' in words(drawing(odd, "<script>"))


def test_boxes_do_not_overlap():
    svg = ElementTree.fromstring(drawing(node(H100)))
    for kind in ("gpu", "nic"):
        left = sorted(
            float(box.get("x", "")) for box in svg.iter(f"{SVG}rect") if box.get("class") == kind
        )
        assert len(left) == 8
        assert all(b - a >= 104 for a, b in pairwise(left))


@settings(max_examples=40)
@given(st.text(max_size=200))
def test_anything_can_be_shown_and_drawn(words: str):
    by_host = {"n1": read(answers_in(words)), "n2": read(answers_in(topo_m(BRIDGED) + words))}
    assert text(by_host, compare(by_host), advise(by_host)).startswith("n")
    for topology in by_host.values():
        assert ElementTree.fromstring(drawing(topology)).tag == f"{SVG}svg"
