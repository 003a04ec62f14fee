"""Tutorials and how-to pages do what they show: their files, commands and Python run in the order of the page.

A fence with a title is a file that the reader writes; a titled `sh` block is a terminal of its own, which stays open.
Blocks of a how-to page find the tables, the job and the model that docs/how-to/README.md makes.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from tests.ports import free_port
from typer.core import TyperGroup

from tablepuppet.cli.main import make_app

DOCS = Path(__file__).parents[1] / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("[a-z]*.md"))
HOW_TO = sorted((DOCS / "how-to").glob("[a-z]*.md"))
PROCESSES = {"one-machine", "three-organisations", "data-owner"}
HEAVY = {
    "analyst-budget",
    "choose-a-model",
    "compare-models",
    "export-a-model",
    "feature-privacy",
    "hide-join-keys",
    "join-any-size",
    "recommend-items",
    "tune",
    "use-history",
}
_FENCE = re.compile(r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<code>.*?)^```', re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """One fenced block of a page."""

    language: str
    title: str | None
    code: str


def read_blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(f["language"], f["title"], f["code"]) for f in _FENCE.finditer(text)]


class Reader:
    """Somebody who follows pages in one folder, with ports that nobody else on this machine has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "page"}
        self.terminals: list[subprocess.Popen[bytes]] = []
        self.started: list[subprocess.Popen[bytes]] = []
        self.ports = {port: str(free_port()) for port in ("8470", "8471")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = os.environ | {"PATH": path, "OPENBLAS_NUM_THREADS": "1"}

    def follow(self, blocks: list[Block]) -> None:
        for block in blocks:
            code = re.sub(r"\b847[01]\b", lambda found: self.ports[found.group()], block.code)
            if block.language == "sh":
                self._type(code, in_background=block.title is not None)
            elif block.title is not None:
                file = self.folder / block.title
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(code, encoding="utf-8")
            elif block.language == "python":
                exec(compile(code, "page", "exec"), self.names)

    def _type(self, code: str, in_background: bool) -> None:
        output = self.folder / f"output-{len(list(self.folder.glob('output-*')))}"
        line = ["bash", "-euo", "pipefail", "-c", f"exec {code}" if in_background else code]
        with output.open("wb") as file:
            process = subprocess.Popen(
                line, cwd=self.folder, env=self.environment, stdout=file, stderr=file, start_new_session=True
            )
        self.started.append(process)
        if in_background:
            self.terminals.append(process)
            while not output.stat().st_size and process.poll() is None:
                time.sleep(0.1)  # until it says that it is there
        else:
            assert process.wait(300) == 0, f"{code}\n{output.read_text(encoding='utf-8')}"

    def leave(self) -> list[int]:
        """Presses Ctrl-C in every terminal; their exit codes."""
        for process in self.terminals:
            process.terminate()
        return [process.wait(60) for process in self.terminals]


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    found = Reader(tmp_path)
    try:
        yield found
    finally:
        for process in found.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs_from_top_to_bottom(page: Path, reader: Reader) -> None:
    reader.follow(read_blocks(page))
    assert set(reader.leave()) <= {0}
    assert bool(reader.terminals) == (page.stem in PROCESSES)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """A reader who has followed the how-to pages' first page: tables, a job, a model."""
    found = Reader(tmp_path_factory.mktemp("how-to"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(found.folder)
        found.follow([block for block in read_blocks(DOCS / "how-to" / "README.md") if block.language != "sh"])
    return found


def with_language(pages: list[Path], language: str) -> list[Path]:
    return [page for page in pages if any(block.language == language for block in read_blocks(page))]


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=[pytest.mark.slow] if p.stem in HEAVY else []) for p in with_language(HOW_TO, "python")],
    ids=lambda path: path.stem,
)
def test_the_python_of_a_how_to_page_runs(page: Path, prepared: Reader, reader: Reader) -> None:
    shutil.copytree(prepared.folder, reader.folder, dirs_exist_ok=True)
    reader.names |= prepared.names
    reader.follow([block for block in read_blocks(page) if block.language != "sh"])


@pytest.mark.slow
@pytest.mark.parametrize("page", with_language(HOW_TO, "sh"), ids=lambda path: path.stem)
def test_the_commands_of_a_how_to_page_run(page: Path, prepared: Reader, reader: Reader) -> None:
    shutil.copytree(prepared.folder, reader.folder, dirs_exist_ok=True)
    reader.follow([block for block in read_blocks(page) if block.language != "python" or block.title])


@functools.cache
def whole_command() -> Any:
    """`tablepuppet` with all its commands and options."""
    return typer.main.get_command(make_app())


def lines_of_commands(page: Path) -> Iterator[list[str]]:
    """Each `tablepuppet …` of the page's shell blocks as words."""
    for block in read_blocks(page):
        if block.language in ("sh", "bash"):
            code = re.sub(r"\s#.*$", "", block.code.replace("\\\n", " "), flags=re.MULTILINE)
            line = r"(?:^|[(!]|&&|\|\||until|exec) *tablepuppet +([^|;&>)\"\n]*)"
            yield from (found.split() for found in re.findall(line, code, re.MULTILINE))


@pytest.mark.parametrize(
    "page", sorted([*DOCS.glob("*.md"), *TUTORIALS, *HOW_TO]), ids=lambda page: str(page.relative_to(DOCS))
)
def test_every_command_of_a_page_has_the_options_that_it_shows(page: Path) -> None:
    unknown = []
    for words in lines_of_commands(page):
        command: Any = whole_command()
        rest = list(words)
        while isinstance(command, TyperGroup) and rest and rest[0] in command.commands:
            command = command.commands[rest.pop(0)]
        known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        named = [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]
        if isinstance(command, TyperGroup) and not named:
            unknown.append(" ".join(words))
        unknown += [f"{' '.join(words)}: {name}" for name in named if name not in {*known, "--help", "-h"}]
    assert unknown == []
