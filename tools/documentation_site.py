"""Hooks of the documentation site (mkdocs.yml): pages from the repository's root, notebooks as pages, and their links.

Pages are written for whoever reads them in the repository: links are relative paths there. On the site docs/README.md
is the first page, and stands for the repository's README.md too. CONTRIBUTING.md and its like lie next to the chapters.
A link to a file that the site does not have becomes its text.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# The repository's pages outside docs/, and what they are called on the site.
OUTSIDE = {
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
}
_LINK = re.compile(r"(?P<bang>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lists every decision in the navigation."""
    records = [f"decisions/{file.name}" for file in sorted((ROOT / "docs/decisions").glob("0*.md"))]
    for section in config.nav or []:
        for pages in section.values():
            for place, page in enumerate(pages if isinstance(pages, list) else []):
                if page == {"Decisions": "decisions/"}:
                    pages[place] = {"Decisions": ["decisions/README.md", *records]}
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the pages that do not lie in docs/ as Markdown."""
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for notebook in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        page = f"notebooks/{notebook.stem}.md"
        files.append(File.generated(config, page, content=notebook_page(notebook)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Makes links of the repository links of the site; code is left alone."""
    home = {name: source for source, name in OUTSIDE.items()}.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    known = {file.src_uri for file in files}
    if home == "docs/README.md":
        page.meta["hide"] = ["navigation"]  # its tabs and tables are enough
    parts, last = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_relinked(markdown[last : fence.start()], home, page.file.src_uri, known), fence.group()]
        last = fence.end()
    return "".join([*parts, _relinked(markdown[last:], home, page.file.src_uri, known)])


def _relinked(text: str, home: str, page: str, known: set[str]) -> str:
    """`text` of the repository's file `home` with links as the site's `page` needs them."""

    def link(found: re.Match[str]) -> str:
        path, mark, anchor = found["target"].partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return found.group()
        meant = posixpath.normpath(posixpath.join(posixpath.dirname(home), path))
        target = OUTSIDE.get(meant, meant.removeprefix("docs/"))
        if target.endswith(".ipynb"):
            target = target.removesuffix(".ipynb") + ".md"
        if target in known:
            return (
                f"{found['bang']}[{found['text']}]({posixpath.relpath(target, posixpath.dirname(page))}{mark}{anchor})"
            )
        if (ROOT / meant).exists():
            return found["text"]
        return found.group()  # which the strict build refuses

    return _LINK.sub(link, text)


def notebook_page(notebook: Path) -> str:
    """A notebook's text and code as one page, with a line that says where to get it."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    shown = []
    for cell in cells:
        source = "".join(cell["source"]).strip()
        shown.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    note = f"*This is `docs/notebooks/{notebook.name}`: open it in Jupyter to run it and to see what it shows.*"
    return "\n\n".join([shown[0], note, *shown[1:]]) + "\n"
