"""Writes tables of the code into the pages of docs/: python -m tools.reference_in_pages [--check].

In: the exchanges, errors, commands, options of algorithms and limits that the package declares. Out: between the marks
of a page

    <!-- reference: messages -->
    <!-- end of reference -->

the table of that name. With --check nothing is written, and the exit code is 1 if a page differs from the code.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

import typer
from tools.pages import rewrite_pages

from tablepuppet import errors
from tablepuppet.algorithms.registry import ALGORITHMS
from tablepuppet.cli.main import make_app
from tablepuppet.exchanges.base import ALL_PURPOSES, Exchange
from tablepuppet.exchanges.registry import EXCHANGES
from tablepuppet.protocol.base import Failure, Message, marked_fields

_MARKED = re.compile(r"<!-- reference: (?P<name>[\w ]+) -->\n.*?<!-- end of reference -->\n", re.DOTALL)
_SUBJECTS = {
    "exchanges.schema": "Names, types, contracts",
    "exchanges.proposal": "Names, types, contracts",
    "exchanges.groups": "Groups that several clients share",
    "exchanges.history": "Histories",
    "exchanges.keys": "Keys",
    "exchanges.labels": "Labels",
    "exchanges.features": "Features",
    "exchanges.parts": "A model's parts: encoding, evaluation, release",
    "exchanges.start": "The start of training",
    "exchanges.prediction": "Prediction",
    "algorithms.boosting.messages": "Boosted trees",
}
_ROUNDS = "Rounds of training"
# What a user may meet: where the number stands, its unit, and what to do about it.
_LIMITS = (
    ("characters of a query", "sql.parsing", "MAX_CHARACTERS", "move parts into views of the owners"),
    ("nested levels of a query", "sql.parsing", "MAX_DEPTH", "move parts into views of the owners"),
    ("characters of one text in an owner's expression", "sources.guard", "MAX_LITERAL", "store it as a column"),
    ("joined rows that are counted exactly", "join.walk_choice", "MAX_COUNTED", "add a WHERE, or join on more keys"),
    ("drawn joined rows per side", "join.walk_choice", "MAX_DRAWN", "set `max_joined_rows`"),
    ("frequencies of a factorised logistic loss", "join.factorised.series", "MAX_FREQUENCIES", "raise `l2`"),
    ("distinct cutoffs of a history", "exchanges.history", "MOST_CUTOFFS", "round the moments: `date_trunc`"),
    ("rows of a history", "owner.query_guard", "MOST_HISTORY_ROWS", "round the moments, shorten the window"),
    ("classes of a text label", "owner.labels", "MAX_STRING_CLASSES", "group rare classes with CASE"),
    ("classes of a numeric label", "owner.labels", "MAX_NUMBER_CLASSES", "train a regression"),
    ("columns of a table in one query", "protocol.base", "MOST_COLUMNS", "select fewer"),
    ("categories of a column", "protocol.base", "MOST_CATEGORIES", "set `max_categories`, or `ids`"),
    ("characters of a name or category", "protocol.base", "LONGEST_TEXT", "shorten it in SQL: `left(text, 100)`"),
    ("clients of a federation", "protocol.base", "MOST_CLIENTS", ""),
    ("bytes of one message's arrays", "protocol.codec", "LARGEST", "use smaller batches or `wire=`"),
    ("absolute value of a label, weight or prediction", "protocol.bounds", "LARGEST", "scale the column"),
    ("columns of a dense second-moment matrix", "models.linear", "GRAM_LIMIT", "set `max_categories`"),
    ("sets of rows that jobs read of one table", "owner.row_sets", "MOST_SETS", "an owner approves further jobs"),
    ("seconds of one reading of a table", "sources.duckdb_source", "MOST_SECONDS", "add a WHERE, or offer a view"),
    ("seconds that a reading keeps a database busy", "sources.duckdb_source", "MOST_HELD", "as above"),
    ("values of a partial dependence", "training.inspection", "_MAX_VALUES", "give fewer `values`"),
)


def write_messages() -> list[str]:
    """Every request by subject: what it asks for, when, and what it and its answer disclose to whom."""
    lines = []
    by_subject: dict[str, list[Exchange]] = {}
    for exchange in EXCHANGES.values():
        home = exchange.request.__module__.removeprefix("tablepuppet.")
        by_subject.setdefault(_SUBJECTS.get(home, _ROUNDS), []).append(exchange)
    for subject in dict.fromkeys([*_SUBJECTS.values(), _ROUNDS]):
        lines += ["", f"### {subject}", ""]
        rows = [_describe_exchange(exchange) for exchange in by_subject[subject]]
        lines += _table(("request", "the client learns", "answer", "the server learns", "for"), rows)
    return lines[1:]


def _describe_exchange(exchange: Exchange) -> tuple[str, ...]:
    text = _first_sentence(exchange.request).partition("→")[0].strip()
    answers = [kind for kind in exchange.answers if kind is not Failure]
    return (
        f"`{exchange.request.__name__}`: {text}",
        _list_disclosures([exchange.request]),
        ", ".join(f"`{kind.__name__}`" for kind in answers),
        _list_disclosures(answers),
        _list_purposes(exchange),
    )


def _list_disclosures(kinds: Iterable[type[Message]]) -> str:
    marks = [mark for kind in kinds for mark in marked_fields(kind).values()]
    found = {f"{mark.what}{' (per row)' if mark.is_per_row else ''}": None for mark in marks}
    return ", ".join(found) or "–"


def _list_purposes(exchange: Exchange) -> str:
    if not exchange.purposes:
        return "before a contract"
    return "every purpose" if exchange.purposes == ALL_PURPOSES else ", ".join(sorted(exchange.purposes))


def write_errors() -> list[str]:
    """Every class of errors, its meaning, and the exit code of a command that ends with it."""
    rows = []
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.TablePuppetError) and kind.__module__ == errors.__name__:
            parent = "" if kind is errors.TablePuppetError else f"`{kind.__mro__[1].__name__}`"
            code = "1" if issubclass(kind, errors.TrainingError | errors.TransportError) else "2"
            rows.append((f"`{name}`", parent, inspect.getdoc(kind) or "", code))
    return _table(("class", "is a", "meaning", "exit code"), rows)


def write_commands() -> list[str]:
    """Every command with its arguments and options."""
    lines = []
    group: Any = typer.main.get_command(make_app())
    for name, command in _walk_commands(group):
        summary, _, rest = (command.help or "").partition("\n\n")
        example = re.search(r"\[bold\]Example:\[/bold\] ([^\n]+)", rest)
        lines += ["", f"### tablepuppet {name}", "", " ".join(summary.split()), ""]
        lines += ["```sh", example[1], "```", ""] if example else []
        rows = [_describe_parameter(one) for one in command.params if "--help" not in one.opts]
        lines += _table(("argument", "default", "meaning"), rows) if rows else []
    return lines[1:]


def _walk_commands(group: Any, before: str = "") -> Iterable[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _walk_commands(command, f"{before}{name} ")
        else:
            yield before + name, command


def _describe_parameter(one: Any) -> tuple[str, ...]:
    is_flag = one.param_type_name == "option" and getattr(one, "is_flag", False)
    value = "" if is_flag or not one.metavar or one.param_type_name == "argument" else f" {one.metavar}"
    name = one.metavar or one.name.upper() if one.param_type_name == "argument" else one.opts[0] + value
    default = "required" if one.required else "" if is_flag or one.default in (None, ()) else f"`{one.default}`"
    return f"`{name}`", default, one.help or ""


def write_algorithm_options() -> list[str]:
    """The options of every algorithm with their defaults."""
    rows = []
    for algorithm in ALGORITHMS:
        names = algorithm.options.__struct_fields__
        defaults = algorithm.options.__struct_defaults__
        options = [f"`{name}` ({_show(value)})" for name, value in zip(names, defaults, strict=True)]
        rows.append((f"`{algorithm.name}`", f"`tp.{algorithm.options.__name__}`", ", ".join(options)))
    return _table(("algorithm", "class", "options and defaults"), rows)


def write_limits() -> list[str]:
    """Numbers at which TablePuppet refuses, as the code has them."""
    rows = []
    for what, module, name, advice in _LIMITS:
        value = getattr(import_module(f"tablepuppet.{module}"), name)
        shown = f"{value:g}" if value >= 1e20 else f"{int(value):,}"
        rows.append((what, shown, advice))
    return _table(("at most", "limit", "beyond that"), rows)


def _show(value: Any) -> str:
    return "–" if value is None or not isinstance(value, str | float | int) else f"{value}"


def _first_sentence(kind: type) -> str:
    text = " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())
    return re.sub(r" \([\w/]+\.py\)", "", text)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]


WRITERS = {
    "messages": write_messages,
    "errors": write_errors,
    "commands": write_commands,
    "algorithm options": write_algorithm_options,
    "limits": write_limits,
}


def with_reference(text: str) -> str:
    """A page with the tables that its marks name."""

    def write(found: re.Match[str]) -> str:
        name = found["name"]
        return "\n".join([f"<!-- reference: {name} -->", *WRITERS[name](), "<!-- end of reference -->"]) + "\n"

    return _MARKED.sub(write, text)


if __name__ == "__main__":
    sys.exit(rewrite_pages(with_reference, sys.argv[1:], "other tables than the code has"))
