"""The documentation as a site, and the pages of it that are made from the program."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tools.diagrams import DIAGRAMS, IMAGES, Diagram, as_svg
from tools.reference import DIRECTORY, PAGES

ROOT = Path(__file__).resolve().parents[2]
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""What a browser loads with a page: element -> attribute."""


@pytest.mark.parametrize("name", PAGES)
def test_generated_page_is_current(name: str) -> None:
    assert (DIRECTORY / name).read_text("utf-8") == PAGES[name](), "run: make reference"


@pytest.mark.parametrize("diagram", DIAGRAMS, ids=lambda diagram: diagram.name)
def test_diagram_is_current(diagram: Diagram) -> None:
    written = (IMAGES / f"{diagram.name}.svg").read_text("utf-8")
    assert written == as_svg(diagram), "run: make pictures"


PAGES_OF_DOCS = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("list_of_pages", ["docs/index.md", "mkdocs.yml"])
def test_every_page_is_listed(list_of_pages: str) -> None:
    listed = (ROOT / list_of_pages).read_text("utf-8")
    others = [page for page in PAGES_OF_DOCS if page != Path("index.md")]
    assert [str(page) for page in others if str(page) not in listed] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs/howto").glob("*.md")), ids=lambda p: p.stem)
def test_every_howto_begins_with_what_it_needs(page: Path) -> None:
    _, second, *_ = page.read_text("utf-8").split("\n\n")
    assert second.startswith("**Needs:** ")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it."""
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return directory


def test_site_builds_without_warnings_and_has_every_page(site: Path) -> None:
    assert [
        page for page in PAGES_OF_DOCS if not (site / page.with_suffix(".html")).is_file()
    ] == []


def test_site_loads_nothing_from_elsewhere(site: Path) -> None:
    foreign = {
        f"{page.relative_to(site)}: {address}"
        for page in site.rglob("*.html")
        for address in loaded(page.read_text("utf-8"))
        if address.startswith(("http:", "https:", "//"))
    }
    assert foreign == set()


def loaded(html: str) -> list[str]:
    """Return the addresses of what a browser loads with a page."""
    reader = _Loaded()
    reader.feed(html)
    return reader.addresses


class _Loaded(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "link" and attributes.get("rel") in ("canonical", "prev", "next"):
            return
        address = attributes.get(LOADED.get(tag, ""))
        if address:
            self.addresses.append(address)
