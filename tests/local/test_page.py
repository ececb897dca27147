"""The page of a preflight, opened in a real browser: on a phone, a laptop and a wall."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dslaunch.cluster.load import parse_cluster
from dslaunch.errors import NodeFailure
from dslaunch.preflight import checks
from dslaunch.preflight.check import Finding, Scope
from dslaunch.preflight.judge import Report
from dslaunch.preflight.recording import NodeRecording, Recording
from dslaunch.report.page import as_page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
MEASURE = """
<script>document.title = "wide " + document.documentElement.scrollWidth + " of " + innerWidth +
  " rows " + document.querySelectorAll("#grid tbody tr").length;</script></body>"""
SEARCH = """
<script>
search.value = "node07";
filter();
const shown = find("section.entry:not([hidden]) b").map((each) => each.textContent);
document.title = `shown ${shown} of ${find("section.entry").length}`;
</script></body>"""
SORT = """
<script>
const names = find("#grid thead .up").map((each) => each.textContent);
find("#grid thead button")[names.indexOf("fs.free")].click();
document.title = `first ${document.querySelector("#grid tbody th").textContent}`;
</script></body>"""
SIZES = {"phone": (390, 844), "laptop": (1440, 900), "wall": (3840, 2160)}

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium here")


def page() -> str:
    """Sixty-four nodes: one is silent, one has a hostile name in its answer."""
    text = "nodes: [{host: 'node[01-64]', slots: 8}]"
    cluster = parse_cluster(text, "pod-a.yaml")
    silent = {"node64": NodeFailure("node64", "timeout", "no answer in time")}
    hosts = tuple(node.host for node in cluster.nodes)
    nodes = {host: NodeRecording({}, {}, None, 0.1) for host in hosts[:-1]}
    facts = Recording(Scope(cluster, cluster.nodes), 1_700_000_000.0, nodes, silent)
    names = sorted(checks.built_in())
    findings = (
        Finding(
            "fail",
            "no answer in time",
            "an answer",
            "look at it",
            hosts=("node64",),
            check="ssh.connect",
        ),
        Finding(
            "fail", "7 GPUs", "8", "drain it", "nvidia-smi -L", hosts=("node07",), check="gpu.count"
        ),
        Finding("warn", "<script>alert(1)</script>", "room", hosts=("node09",), check="fs.free"),
        Finding("unknown", "the kernel's log needs root", hosts=hosts[:-1], check="gpu.xid"),
        *(Finding("pass", "fine", hosts=hosts[:-1], check=name) for name in names),
    )
    return as_page(Report(facts, findings), checks.built_in())


def browse(tmp_path: Path, html: str, size: tuple[int, int], *options: str) -> str:
    """Open a page without a network; what it is then, as text."""
    file = tmp_path / "page.html"
    file.write_text(html, "utf-8")
    assert BROWSER is not None
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--proxy-server=127.0.0.1:9", f"--user-data-dir={tmp_path / 'profile'}"]
    command += [f"--window-size={size[0]},{size[1]}", *options, file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_the_page_shows_all_nodes_and_fits_the_screen(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    dom = browse(tmp_path, page().replace("</body>", MEASURE), size, "--dump-dom")
    wide, of, rows = map(int, re.findall(r"wide (\d+) of (\d+) rows (\d+)", dom)[0])
    assert wide <= of, "the page is wider than the screen"
    assert rows == 4, "nodes with equal results are one row"
    for fact in ("node64", "no answer in time", "7 GPUs", "drain it", "nvidia-smi -L"):
        assert fact in dom
    assert "<script>alert" not in dom


def test_findings_can_be_searched(tmp_path: Path) -> None:
    dom = browse(tmp_path, page().replace("</body>", SEARCH), SIZES["laptop"], "--dump-dom")
    assert re.findall(r"<title>(.*?)</title>", dom) == ["shown gpu.count,node07 of 4"]


def test_nodes_can_be_sorted_by_a_check(tmp_path: Path) -> None:
    dom = browse(tmp_path, page().replace("</body>", SORT), SIZES["laptop"], "--dump-dom")
    assert re.findall(r"<title>(.*?)</title>", dom) == ["first node09"]


def test_the_page_can_be_printed(tmp_path: Path) -> None:
    out = tmp_path / "page.pdf"
    browse(tmp_path, page(), SIZES["laptop"], f"--print-to-pdf={out}")
    assert out.read_bytes().startswith(b"%PDF")
