"""JOB: a TOML file whose keys carry the names of the Python arguments.

    query = "SELECT …"             # or query_file = "query.sql"
    label = "returned"
    model = "logistic"
    algorithm = "newton"           # or a table: [algorithm] name = "admm", rho = 0.5
    federation = "federation.toml" # or a table: [tables]

In: the file's path. Out: a JobFile: the query, the arguments of Federation.train, where the tables are.
Relative paths are relative to the file that names them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec

from tablepuppet.algorithms.registry import BY_NAME, DEFAULT
from tablepuppet.api import Federation
from tablepuppet.api.owners import federation_from_toml, read_toml
from tablepuppet.cli.screen import argument, option
from tablepuppet.errors import JobError, hint, unreadable
from tablepuppet.job import ARGUMENTS, loss_options
from tablepuppet.memory import fix_thresholds

JobArgument = Annotated[Path, argument("JOB", "A job file (TOML).")]
FederationOption = Annotated[Path | None, option("--federation FILE", "A federation file (TOML); overrides JOB.")]

_OF_THE_FILE = ("query_file", "federation", "tables", "owners", "partitioned_by", "privacy", "rows")
_OF_A_JOB = (*(name for name in ARGUMENTS if name not in ("options", "loss_options")), "split", "gap")
_OF_ALGORITHMS = tuple({name for a in BY_NAME.values() for name in a.options.__struct_fields__})


class JobFile(msgspec.Struct, frozen=True):
    """A job as a file describes it; Federation.train checks the arguments."""

    path: Path
    query: str
    arguments: dict[str, Any]
    federation: Path | None
    tables: dict[str, Any] | None  # [tables], with [owners] and [partitioned_by]
    rows: Any = "test"  # that models are measured on

    @property
    def analyst(self) -> dict[str, Any] | None:
        """The privacy under which models are measured where a table has an analyst budget."""
        asked = self.arguments.get("privacy")
        return {"analyst": asked["analyst"]} if isinstance(asked, dict) and "analyst" in asked else None

    def open_federation(self, instead: Path | None = None) -> Federation:
        fix_thresholds()  # the process is a command's own
        if instead is not None:
            return Federation.from_toml(instead)
        if self.federation is not None:
            return Federation.from_toml(self.federation)
        if self.tables is None:
            raise JobError(f'{self.path} names no tables; add [tables], federation = "…", or give --federation FILE')
        return Federation(**federation_from_toml(self.path, self.tables))


def read_job(path: Path, *, needs_label: bool = True) -> JobFile:
    """Reads a job file; any mistake in it is one clear error. A saved model knows its label itself."""
    given = read_toml(path)
    _check_names(path, given)
    query = _query(path, given)
    if needs_label and "label" not in given:
        raise JobError(f'{path} names no label; add label = "…", the name of a column in the SELECT list')
    federation = given.pop("federation", None)
    sections: dict[str, Any] = {
        name: given.pop(name) for name in ("tables", "owners", "partitioned_by") if name in given
    }
    tables = sections.get("tables")
    if federation is not None and sections:
        raise JobError(f"{path} has both federation and [{next(iter(sections))}]; keep one of them")
    if federation is not None and not isinstance(federation, str):
        raise JobError(f"{path}: federation must be the path of a federation file, not {_kind(federation)}")
    if tables is not None and not isinstance(tables, dict):
        raise JobError(f"{path}: tables must be a section, [tables], not {_kind(tables)}")
    place, rows = None if federation is None else path.parent / federation, given.pop("rows", "test")
    return JobFile(path, query, given | _algorithm(path, given), place, sections or None, rows)


def _check_names(path: Path, given: dict[str, Any]) -> None:
    known = {*_OF_THE_FILE, *_OF_A_JOB, *_OF_ALGORITHMS, *loss_options()}
    for name in given:
        if name not in known:
            near = hint(name, sorted(known), "a job", shown=(*_OF_A_JOB, *_OF_THE_FILE))
            raise JobError(f"{path}: unknown key {name!r}; {near}")


def _query(path: Path, given: dict[str, Any]) -> str:
    """The query's text, from the file itself or from the one it names; removed from `given`."""
    text, name = given.pop("query", None), given.pop("query_file", None)
    if (text is None) == (name is None):
        found = "no query" if text is None else "both query and query_file"
        raise JobError(f'{path} has {found}; give one of query = """SELECT …""" and query_file = "query.sql"')
    if name is None:
        if not isinstance(text, str):
            raise JobError(f"{path}: query must be SQL text, not {_kind(text)}")
        return text
    if not isinstance(name, str):
        raise JobError(f"{path}: query_file must be a path, not {_kind(name)}")
    try:
        return (path.parent / name).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a path with a null byte
        raise JobError(f"the query file: {unreadable(path.parent / name, error)}") from None


def _algorithm(path: Path, given: dict[str, Any]) -> dict[str, Any]:
    """[algorithm] name = …, rho = … as the arguments algorithm=…, rho=…"""
    section = given.get("algorithm")
    if not isinstance(section, dict):
        return {}
    if not isinstance(section.get("name"), str):
        raise JobError(f'{path}: [algorithm] needs a name, one of {", ".join(BY_NAME)}: name = "{DEFAULT}"')
    twice = sorted((set(section) - {"name"}) & set(given))
    if twice:
        raise JobError(f"{path}: {twice[0]} is given twice, in [algorithm] and outside; keep one of them")
    return {"algorithm": section["name"], **{k: v for k, v in section.items() if k != "name"}}


def _kind(value: Any) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "a section"}
    return kinds.get(type(value), type(value).__name__)
