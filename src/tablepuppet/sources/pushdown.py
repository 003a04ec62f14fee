"""Push-down: which part of a scan the owner's database computes, and which the client itself.

In: guarded expressions and a filter in DuckDB's dialect, and the table's columns. Out: the SELECT that the database
runs, in its own dialect, and the remaining work over its answer.

An expression must mean the same wherever a table lies. So only conjuncts of the filter and expressions that `family`
accepts are pushed down. The client's own DuckDB computes the rest over the columns that it needs. Databases differ in
ln(0), integer division, casts, LIKE with escapes, upper case of ß and more.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from sqlglot import exp, parse_one

from tablepuppet.sources.duckdb_source import quote_name
from tablepuppet.sources.syntax import conjuncts_of

Family = Literal["number", "text", "boolean", "date", "timestamp"]
FETCHED: Final = "tablepuppet:"  # the name of a computed column, before its number


class OwnerColumn(msgspec.Struct, frozen=True):
    """A column as its owner's database has it."""

    name: str
    type: str  # in DuckDB, where the client computes
    family: Family | None = None  # None: never computed with in the database
    fetch: str | None = None  # how the database is asked for it, {} being its name; None: by name
    nullable: bool = True


class Dialect(msgspec.Struct, frozen=True):
    """The operations that a database computes as DuckDB does."""

    name: str  # sqlglot's
    families: frozenset[Family]
    nodes: frozenset[type[exp.Expr]]
    computes: bool = True  # whether expressions are pushed down too, or filters alone


_LOGIC: Final[frozenset[type[exp.Expr]]] = frozenset({exp.And, exp.Or, exp.Not, exp.Paren, exp.Is, exp.In, exp.Between})
_ORDER: Final[frozenset[type[exp.Expr]]] = frozenset({exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE})
_CHOICE: Final[frozenset[type[exp.Expr]]] = frozenset({exp.Case, exp.Coalesce})
ARITHMETIC: Final[frozenset[type[exp.Expr]]] = frozenset({exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Abs})
COMMON: Final = _LOGIC | _ORDER | _CHOICE | ARITHMETIC
_PARTS: Final = frozenset({"YEAR", "MONTH", "DAY", "HOUR", "MINUTE"})
# How a text that is compared with a date or a time must be written to be read alike everywhere.
_DAY: Final = r"\d{4}-\d{2}-\d{2}"
_WRITTEN: Final[dict[Family, re.Pattern[str]]] = {
    "date": re.compile(_DAY),
    "timestamp": re.compile(_DAY + r"( \d{2}:\d{2}:\d{2}(\.\d{1,6})?)?"),
}


class PushDown(msgspec.Struct, frozen=True):
    """One scan, divided."""

    select: str  # for the database
    fetched: tuple[OwnerColumn | None, ...]  # its columns; None: an expression
    inner: tuple[str, ...]  # DuckDB's expressions over the fetched columns: `expression AS name`
    columns: tuple[str, ...]  # c0, c1, … over those
    filter: str | None  # the rest of the filter
    used: tuple[OwnerColumn, ...]  # all columns that take part, in the filter too


def push_down(
    relation: str, expressions: Sequence[str], filter: str | None, columns: Sequence[OwnerColumn], dialect: Dialect
) -> PushDown:
    """Divides a scan between the owner's database and the client's DuckDB."""
    known = {column.name.lower(): column for column in columns}
    trees = [parse_one(e, dialect="duckdb") for e in expressions]
    conjuncts = [] if filter is None else list(conjuncts_of(parse_one(filter, dialect="duckdb")))
    pushed = [c for c in conjuncts if family(c, known, dialect) == "boolean"]
    kept = [c for c in conjuncts if not any(c is p for p in pushed)]
    asked: list[tuple[str, OwnerColumn | None]] = []
    inner: list[str] = []
    outer: list[str] = []
    local: list[exp.Expr] = list(kept)
    for tree, text in zip(trees, expressions, strict=True):
        if dialect.computes and not isinstance(tree, exp.Column) and family(tree, known, dialect) is not None:
            inner.append(_fetched_name(len(asked)))
            outer.append(_fetched_name(len(asked)))
            asked.append((_render(tree, dialect), None))
        else:
            local.append(tree)
            outer.append(f"({text})")
    for column in _columns(local, known):
        own = exp.to_identifier(column.name, quoted=True).sql(dialect.name)
        inner.append(f"CAST({_fetched_name(len(asked))} AS {column.type}) AS {quote_name(column.name)}")
        asked.append((own if column.fetch is None else column.fetch.format(own), column))
    if not asked:
        asked, inner = [("1", None)], [_fetched_name(0)]
    marks = [exp.to_identifier(f"{FETCHED}{k}", quoted=True).sql(dialect.name) for k in range(len(asked))]
    select = f"SELECT {', '.join(f'{e} AS {m}' for (e, _), m in zip(asked, marks, strict=True))} FROM {relation}"
    if pushed:
        select += f" WHERE {' AND '.join(f'({_render(c, dialect)})' for c in pushed)}"
    return PushDown(
        select=select,
        fetched=tuple(column for _, column in asked),
        inner=tuple(inner),
        columns=tuple(outer),
        filter=" AND ".join(f"({c.sql('duckdb', identify=True)})" for c in kept) or None,
        used=tuple(_columns([*trees, *conjuncts], known)),
    )


def _columns(trees: Sequence[exp.Expr], known: Mapping[str, OwnerColumn]) -> list[OwnerColumn]:
    names = dict.fromkeys(column.name.lower() for tree in trees for column in tree.find_all(exp.Column))
    return [known[name] for name in names]


def _fetched_name(number: int) -> str:
    return f'"{FETCHED}{number}"'


def family(node: exp.Expr, known: Mapping[str, OwnerColumn], dialect: Dialect) -> Family | None:
    """The family of an expression that the database computes exactly as DuckDB does; None if it may differ."""
    kind = type(node)
    if kind is exp.Column:
        found = known[node.name.lower()].family
        return found if found in dialect.families else None
    if kind is exp.Literal:
        if not node.is_string:
            return "number"
        # A setting of the database decides how a backslash in quotes is read (standard_conforming_strings, sql_mode).
        return "text" if "\\" not in node.name and node.name.isprintable() else None
    if kind is exp.Boolean:
        return "boolean"
    if kind is exp.Cast:
        return _cast(node, known, dialect)
    if kind is exp.Extract and exp.Extract in dialect.nodes:
        inside = family(node.expression, known, dialect)
        return "number" if inside in ("date", "timestamp") and node.name.upper() in _PARTS else None
    if kind is exp.Like and exp.Like in dialect.nodes:
        pattern = node.expression
        is_plain = isinstance(pattern, exp.Literal) and "\\" not in pattern.name
        return "boolean" if is_plain and family(node.this, known, dialect) == "text" else None
    if kind not in dialect.nodes:
        return None
    if kind is exp.Is:
        inside = family(node.this, known, dialect)
        is_null = isinstance(node.expression, exp.Null) and inside is not None
        is_truth = isinstance(node.expression, exp.Boolean) and inside == "boolean"
        return "boolean" if is_null or is_truth else None
    if kind is exp.Case:
        return _case(node, known, dialect)
    if kind is exp.Div and not (node.expression.is_number and float(node.expression.name) != 0):
        return None  # x / 0 is infinity here and an error there
    children = [family(child, known, dialect) for child in node.iter_expressions()]
    if kind is exp.Paren:
        return children[0]
    if kind in (exp.And, exp.Or, exp.Not):
        return "boolean" if set(children) == {"boolean"} else None
    if kind in ARITHMETIC:
        return "number" if set(children) == {"number"} else None
    shared = _common_family(children, list(node.iter_expressions()))
    if shared is None or kind is exp.Coalesce:
        return shared
    # Which text comes first is a matter of collation; whether two are equal is not.
    is_ordered = kind not in (exp.EQ, exp.NEQ, exp.In)
    return None if is_ordered and shared in ("text", "boolean") else "boolean"


def _common_family(children: Sequence[Family | None], nodes: Sequence[exp.Expr]) -> Family | None:
    """The one family of all; a text literal compared with a date or time is read as one."""
    families = {f for f, n in zip(children, nodes, strict=True) if f != "text" or not isinstance(n, exp.Literal)}
    if len(families) == 1 and families <= {"date", "timestamp"}:
        found = families.pop()
        texts = [n.name for n in nodes if isinstance(n, exp.Literal) and n.is_string]
        return found if found and all(_WRITTEN[found].fullmatch(text) for text in texts) else None
    families = set(children)
    return families.pop() if len(families) == 1 else None


def _cast(node: exp.Expr, known: Mapping[str, OwnerColumn], dialect: Dialect) -> Family | None:
    """DATE '…' and TIMESTAMP '…' literals, and numbers as DOUBLE."""
    target = node.args["to"].this
    if isinstance(node.this, exp.Literal) and node.this.is_string:
        literals: dict[Any, Family] = {exp.DataType.Type.DATE: "date", exp.DataType.Type.TIMESTAMP: "timestamp"}
        found = literals.get(target)
        is_plain = found is not None and _WRITTEN[found].fullmatch(node.this.name)
        return found if is_plain and found in dialect.families else None
    is_double = target is exp.DataType.Type.DOUBLE and family(node.this, known, dialect) == "number"
    return "number" if is_double else None


def _case(node: exp.Expr, known: Mapping[str, OwnerColumn], dialect: Dialect) -> Family | None:
    if node.this is not None:
        return None
    branches = node.args["ifs"]
    if any(family(branch.this, known, dialect) != "boolean" for branch in branches):
        return None
    values = [branch.args["true"] for branch in branches]
    if node.args.get("default") is not None:
        values.append(node.args["default"])
    families = {family(v, known, dialect) for v in values if not isinstance(v, exp.Null)}
    return families.pop() if len(families) == 1 else None


def _render(node: exp.Expr, dialect: Dialect) -> str:
    return node.sql(dialect.name, identify=True, comments=False)
