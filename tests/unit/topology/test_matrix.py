"""`nvidia-smi topo -m`: whole, of every era, and damaged."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.topology.printed import BRIDGED, CUBE, H100, Wiring, labels, topo_m

from dslaunch.notes import note
from dslaunch.topology.answers import answers_in, read
from dslaunch.topology.matrix import TopologyMatrix, parse
from dslaunch.topology.notes import MatrixNote

CORPUS = Path(__file__).resolve().parents[3].parent / "shared" / "corpus" / "topo"
RECORDED = sorted(CORPUS.glob("*.txt"))
CODES = ("NV1", "NV4", "NV12", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS")


def links(wiring: Wiring, era: int = 4) -> dict[tuple[str, str], str]:
    names = labels(wiring, era)
    pairs = [(a, b) for a in range(len(names)) for b in range(a + 1, len(names))]
    return {(names[a], names[b]): wiring.link(a, b) for a, b in pairs}


@pytest.mark.parametrize("era", range(5))
@pytest.mark.parametrize("raw", [False, True], ids=["plain", "underlined"])
def test_every_era_is_read(era: int, raw: bool):
    found = parse(topo_m(BRIDGED, era, raw=raw))
    assert (found.status, found.era, found.notes) == ("ok", era, [])
    assert found.devices == labels(BRIDGED, era)
    assert found.links == links(BRIDGED, era)
    assert found.affinity["GPU3"].cpus == "32-63"
    assert found.affinity["GPU3"].numa == ("1" if era > 2 else None)


RESHAPED = {
    "eight columns": lambda text: text.expandtabs(8),
    "two spaces": lambda text: re.sub(r"\t+", "  ", text),
    "no indent of the header": lambda text: text.lstrip(),
    "indented by a tool": lambda text: "  " + text.replace("\n", "\n  "),
    "header glued": lambda text: text.replace(
        "GPU0\tGPU1\tGPU2\tGPU3\tNIC0", "GPU0GPU1GPU2GPU3NIC0"
    ),
    "cells glued": lambda text: text.replace("SYS\tNODE", "SYSNODE").replace("SYS\tSYS", "SYSSYS"),
    "carriage returns": lambda text: text.replace("\n", "\r\n"),
    "blanks at ends of lines cut": lambda text: re.sub(r"[ \t]+\n", "\n", text),
    "no newline at the end": lambda text: text.rstrip(),
    "no legend, no newline": lambda text: (
        text.split("\nLegend")[0].rstrip() + "\nNIC Legend:\nNIC0: mlx5_0"
    ),
    "escape characters lost": lambda text: "\t[4m" + text[1:].replace("ID\n", "ID[0m\n"),
    "a remark behind": lambda text: text + "\n---\nSYS between GPU0 and GPU1 looks slow\n",
    "a prompt before": lambda text: "user@node01:~$ nvidia-smi topo -m\n" + text,
}


@pytest.mark.parametrize("how", RESHAPED)
def test_editors_and_logs_change_nothing(how: str):
    found = parse(RESHAPED[how](topo_m(BRIDGED)))
    assert (found.status, found.notes) == ("ok", [])
    assert found.links == links(BRIDGED)
    assert found.affinity["GPU2"].cpus == "32-63"
    assert found.nic_names == {"NIC0": "mlx5_0"}


def test_columns_of_nics_are_taken_by_name_and_not_by_number():
    swapped = Wiring(1, ("mlx5_2", "mlx5_0"), {(0, 1): "PIX"})
    assert parse(topo_m(swapped, era=2)).links["GPU0", "mlx5_2"] == "PIX"


def test_the_two_cells_of_a_pair_must_agree():
    row = "GPU0\t X \tNODE\tNV12"
    found = parse(topo_m(BRIDGED).replace(row, "GPU0\t X \tNODE\tNV1"))
    assert ("GPU0", "GPU2") not in found.links
    assert found.status == "partial"
    assert found.notes == [
        note(MatrixNote.LINK_CONTRADICTS, pair="GPU0-GPU2", links="NV1 and NV12")
    ]


def test_a_text_that_ends_early_is_read_as_far_as_it_goes():
    text = topo_m(H100)
    found = parse(text[: text.index("GPU3\tNV18") + 60])
    assert found.status == "partial"
    assert found.devices == labels(H100)
    assert found.links["GPU0", "GPU7"] == "NV18"
    assert ("GPU4", "GPU5") not in found.links
    assert found.affinity["GPU2"].cpus == "0-51"


def test_the_affinity_in_which_a_text_ends_is_not_believed():
    text = topo_m(BRIDGED)
    cut = text[: text.index("GPU2\tNV12") + len("GPU2\tNV12\tSYS\t X \tNODE\tSYS\t32-6")]
    assert "GPU2" not in [gpu for gpu, near in parse(cut).affinity.items() if near.cpus]


def test_a_name_that_was_cut_short_into_another_names_nothing():
    nics = tuple(f"mlx5_{at}" for at in range(11))
    text = topo_m(Wiring(1, nics)).replace("NIC10: mlx5_10\n", "NIC10: mlx5_1")
    names = parse(text).nic_names
    assert names["NIC2"] == "mlx5_2"
    assert "NIC1" not in names
    assert "NIC10" not in names


def test_a_device_that_header_and_row_name_differently_is_left_out():
    found = parse(topo_m(BRIDGED).replace("\nGPU2\t", "\nGPU7\t"))
    assert found.devices == ["GPU0", "GPU1", "GPU3", "NIC0"]
    assert found.status == "partial"
    assert note(MatrixNote.ROW_RENAMED, row="GPU7", title="GPU2") in found.notes


def test_blank_affinity_is_not_known():
    text = topo_m(Wiring(1)).replace("0-31\t0\t\tN/A", "\t\t\t\tN/A")
    found = parse(text)
    assert found.status == "ok"
    assert found.affinity["GPU0"].cpus is None


def test_gpu_memory_with_a_separate_numa_node_is_parsed():
    found = parse(topo_m(Wiring(1)).replace("0-31\t0\t\tN/A", "0-71\t0\t\t1"))
    assert found.affinity["GPU0"].memory_numa == 1


def test_the_matrix_of_p2p_is_no_matrix_of_links():
    assert parse("\tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n").status == "none"


def test_a_second_matrix_is_not_mixed_into_the_first():
    found = parse(topo_m(BRIDGED, legend=False) + topo_m(CUBE))
    assert found.links == links(BRIDGED)


SIDECARS = {path.stem: json.loads(path.with_suffix(".json").read_text()) for path in RECORDED}


@pytest.mark.skipif(not RECORDED, reason="recorded texts do not lie beside the checkout")
@pytest.mark.parametrize("name", [n for n, said in SIDECARS.items() if said["gpus"] and n[0] < "6"])
def test_recorded_matrices_say_what_is_noted_beside_them(name: str):
    said, found = SIDECARS[name], parse((CORPUS / f"{name}.txt").read_bytes().decode())
    gpus = [device for device in found.devices if device.startswith("GPU")]
    assert found.status == said["status"]
    assert (len(gpus), len(found.devices) - len(gpus)) == (said["gpus"], said["nics"])
    assert found.nic_names == said.get("nic_legend", {})
    for pair, link in said["pairs"].items():
        assert _link(found, *pair.split("-")) == link.replace("SOC", "SYS"), pair
    for key, part in (("cpu", "cpus"), ("numa", "numa")):
        for gpu, value in said.get(f"{key}_affinity", {}).items():
            assert getattr(found.affinity[gpu], part) == (None if value == "N/A" else value)
    for gpu, value in said["gpu_numa_id"].items():
        assert found.affinity[gpu].memory_numa == (None if value == "N/A" else int(value))


def _link(found: TopologyMatrix, a: str, b: str) -> str | None:
    return found.links.get((a, b), found.links.get((b, a)))


@pytest.mark.skipif(not RECORDED, reason="recorded texts do not lie beside the checkout")
@pytest.mark.parametrize("name", [n for n, said in SIDECARS.items() if said["status"] == "error"])
def test_recorded_complaints_are_known(name: str):
    found = read(answers_in((CORPUS / f"{name}.txt").read_text()))
    assert found.trouble
    assert (found.status, found.trouble.kind) == ("none", SIDECARS[name]["error_kind"])


@pytest.mark.skipif(not RECORDED, reason="recorded texts do not lie beside the checkout")
@pytest.mark.parametrize("name", ["60_peer_ascend_npu_smi_hccs", "61_peer_rocm_smi_showtopo_4gpu"])
def test_other_makers_tools_are_named_and_not_read(name: str):
    found = read(answers_in((CORPUS / f"{name}.txt").read_text()))
    assert found.trouble
    assert (found.status, found.trouble.kind, found.gpus) == ("none", "other_tool", ())


@st.composite
def wirings(draw: st.DrawFn) -> Wiring:
    gpus, nics = draw(st.integers(1, 6)), draw(st.integers(0, 3))
    pairs = [(a, b) for a in range(gpus + nics) for b in range(a + 1, gpus + nics)]
    nvlink = {(a, b): draw(st.sampled_from(CODES if b < gpus else CODES[4:])) for a, b in pairs}
    names = tuple(f"mlx5_{draw(st.integers(0, 9))}{at}" for at in range(nics))
    return Wiring(gpus, names, nvlink)


@given(wirings(), st.integers(0, 4), st.sampled_from(["\t", "  ", "   "]))
def test_what_was_printed_is_what_is_read(wiring: Wiring, era: int, gap: str):
    found = parse(topo_m(wiring, era).replace("\t", gap))
    assert (found.status, found.notes) == ("ok", [])
    assert (found.devices, found.links) == (labels(wiring, era), links(wiring, era))


@st.composite
def damaged(draw: st.DrawFn, text: str) -> str:
    """A text with one thing wrong in it."""
    how = draw(st.sampled_from(["cut", "lose", "add", "line", "twice", "swap", "word"]))
    at = draw(st.integers(0, len(text) - 1))
    lines, words = text.split("\n"), re.split(r"(\s+)", text)
    line, other = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, len(lines) - 1))
    if how == "cut":
        return text[:at]
    if how == "lose":
        return text[:at] + text[at + 1 :]
    if how == "add":
        return text[:at] + draw(st.sampled_from("0189 \tXNVPSGU\n|")) + text[at:]
    if how == "line":
        return "\n".join(lines[:line] + lines[line + 1 :])
    if how == "twice":
        return "\n".join([*lines[:line], lines[other], *lines[line:]])
    if how == "swap":
        lines[line], lines[other] = lines[other], lines[line]
        return "\n".join(lines)
    word = draw(st.integers(0, len(words) - 1))
    return "".join(words[:word] + words[word + 1 :])


@given(st.data(), wirings(), st.integers(0, 4))
def test_one_damage_never_makes_a_wrong_fact(data: st.DataObject, wiring: Wiring, era: int):
    found = parse(data.draw(damaged(topo_m(wiring, era))))
    assert set(found.links.items()) <= set(links(wiring, era).items())
    assert set(found.devices) <= set(labels(wiring, era))
    if found.status == "ok":
        assert found.devices == labels(wiring, era)


@pytest.mark.skipif(not RECORDED, reason="recorded texts do not lie beside the checkout")
@given(st.data())
def test_recorded_texts_survive_any_damage(data: st.DataObject):
    text = data.draw(st.sampled_from(RECORDED)).read_bytes().decode()
    for _ in range(data.draw(st.integers(1, 4))):
        text = data.draw(damaged(text or "\n"))
    found = read(answers_in(text))
    assert found.status in ("ok", "partial", "none")
    assert (found.status == "none") == (found.trouble is not None)


@given(st.text() | st.text(alphabet="GPUNICX0123 \t\nSYVL:", max_size=300))
def test_any_text_gives_an_answer(text: str):
    found = read(answers_in(text))
    assert found.status == "none" or found.gpus or found.nics


@pytest.mark.skipif(not RECORDED, reason="recorded texts do not lie beside the checkout")
def test_a_look_alike_of_another_program_is_read_where_it_says_the_same():
    found = parse((CORPUS / "63_peer_dcgm_gpushare_psb_legend.txt").read_text())
    assert (found.status, len(found.devices)) == ("ok", 8)
    assert set(found.links.values()) == {"PHB"}
