"""The documentation site builds without a warning, its links lead somewhere, and it needs no other host."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import tablepuppet

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow  # `make docs` builds the site, too, and fails for a link to a page that is not there


class Page(HTMLParser):
    """What a page links to, what it loads, and what can be linked to in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := found.get(key))}
        if tag == "a" and found.get("href"):
            self.links.append(str(found["href"]))
        source = found.get("src") or (found.get("href") if tag == "link" else None)
        if source:
            self.loads.append(source)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return {path: Page(path) for path in sorted(folder.rglob("*.html")) if path.name != "404.html"}


def test_every_link_of_the_site_leads_to_a_page_and_a_place_in_it(site: dict[Path, Page]) -> None:
    broken = []
    for path, page in site.items():
        for link in [*page.links, *page.loads]:
            target = urlsplit(link)
            if target.scheme or target.netloc:
                continue
            file = (path.parent / unquote(target.path)).resolve() if target.path else path
            anchor = unquote(target.fragment)
            is_there = file.is_file() and (not anchor or file not in site or anchor in site[file].anchors)
            if not is_there:
                broken.append(f"{path.name}: {link}")
    assert broken == []


def test_the_site_loads_nothing_from_elsewhere(site: dict[Path, Page]) -> None:
    assert {link for page in site.values() for link in page.loads if urlsplit(link).netloc} == set()


def test_every_public_name_is_in_the_reference(site: dict[Path, Page]) -> None:
    (reference,) = (page for path, page in site.items() if path.name == "api.html")
    anchors = reference.anchors
    assert {name for name in tablepuppet.__all__ if f"tablepuppet.{name}" not in anchors} == set()
    assert "tablepuppet.Federation.train" in anchors


def test_every_page_of_the_documentation_is_on_the_site(site: dict[Path, Page]) -> None:
    names = {path.name for path in site}
    pages = {page.stem for page in (ROOT / "docs").rglob("*.md")} | {"CHANGELOG", "CONTRIBUTING", "SECURITY"}
    pages |= {notebook.stem for notebook in (ROOT / "docs" / "notebooks").glob("*.ipynb")}
    assert {f"{page}.html" for page in pages - {"README"}} - names == set()
