"""Total expressions: an expression over protected columns has an answer for every row, and never an error.

An expression that fails for one row reveals that row, whatever its message: 1 / (salary − 5,000) asks whether anybody
earns that. In a protected table such a row is NULL instead. DuckDB's TRY gives NULL where a cast, an arithmetic
operation or a function fails. Numbers on which later checks would fail, infinite or too large to square, become NULL
too.

In: a source, or a query over sources. Out: a source that answers like it, and the query with its expressions in TRY.
TRY takes no aggregate. Sums and means are of doubles, which do not overflow, and expressions over aggregates are tried
in a function of their values. Any other failure gives the same refusal, whatever its reason (client.py).
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp, parse_one

from tablepuppet.protocol.bounds import LARGEST
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.sources.columns import NUMBER_KINDS, STRING_KINDS, arrow_of, in_one_piece, is_vector, numpy_of
from tablepuppet.sources.guard import AGGREGATES, CLOCK_PARTS, part_of
from tablepuppet.sources.history_queries import has_cutoff
from tablepuppet.sources.source import Source
from tablepuppet.sources.syntax import conjuncts_of

_PLAIN = re.compile(r'\(*"(?:[^"]|"")*"\)*|[^"]*')  # one column, or none
_LEAVES = (exp.Column, exp.Literal, exp.Boolean, exp.Null, exp.Subquery, exp.Query)
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
_AGGREGATES: tuple[type[exp.Expr], ...] = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls, *AGGREGATES)
_OF_MOMENTS: tuple[type[exp.Expr], ...] = (
    *(exp.Extract, exp.DateDiff, exp.Week, exp.WeekOfYear, exp.DayOfWeek, exp.DayOfWeekIso, exp.DayOfYear),
    exp.Anonymous,
)
_GROUP = "tablepuppet group"
_MOST = "1e60"  # whose fourth power is a number


class InfallibleSource:
    """A source that never answers with an error about a row."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def describe(self) -> list[ColumnInfo]:
        return self._source.describe()

    def describe_scan(self, expressions: Sequence[str], filter: str | None) -> list[ColumnInfo]:
        return self._source.describe_scan(expressions, filter)

    def read(self, expressions: Sequence[str], filter: str | None) -> pa.Table:
        chosen = filter
        if filter is not None:  # each condition by itself: the database may still evaluate those that cannot fail
            kinds = {info.name.lower(): info.kind for info in self._source.describe()}
            conditions = conjuncts_of(_cast_moments(parse_one(filter, dialect="duckdb")))
            chosen = " AND ".join(
                f"{'' if _cannot_fail(c, kinds) else 'TRY'}({c.sql('duckdb', identify=True)})" for c in conditions
            )
        rows = self._source.read([e if _PLAIN.fullmatch(e) else f"TRY({_with_dates(e)})" for e in expressions], chosen)
        for number, field in enumerate(rows.schema):
            if pa.types.is_floating(field.type) or is_vector(field.type):
                rows = rows.set_column(number, field.name, _without_large(rows.column(number)))
        return rows

    def stamp(self) -> str | None:
        return self._source.stamp()

    def close(self) -> None:
        self._source.close()


def _without_large(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of numbers, or of lists of them, with NULL for those that cannot be squared."""
    if pa.types.is_floating(column.type):
        return pc.if_else(pc.greater(pc.abs(column), LARGEST), pa.scalar(None, column.type), column)
    lengths = numpy_of(pc.cast(pc.list_value_length(column), pa.int64()))
    entries = in_one_piece(_without_large(pc.list_flatten(column)))
    missing = in_one_piece(column.is_null())
    offsets = arrow_of(np.append(0, np.cumsum(lengths)))
    return pa.chunked_array([pa.LargeListArray.from_arrays(offsets, entries, mask=missing)])


def _with_dates(expression: str) -> str:
    tree = parse_one(expression, dialect="duckdb")
    return _cast_moments(tree).sql("duckdb", identify=True) if tree.find(*_OF_MOMENTS) is not None else expression


def _cast_moments(tree: exp.Expr) -> exp.Expr:
    """An expression whose dates are dates: DuckDB fails on the week of a time of day, or of an interval, in a way that
    TRY lets pass."""
    for node in list(tree.find_all(*_OF_MOMENTS)):
        part = part_of(node)
        if isinstance(node, exp.Anonymous) and part is None and node.name.lower() != "yearweek":
            continue
        if part in CLOCK_PARTS or isinstance(node, exp.TimestampTrunc | exp.DateTrunc):
            continue
        for value in [v for v in node.iter_expressions() if not isinstance(v, exp.Var | exp.Literal)]:
            value.replace(exp.cast(value.copy(), "TIMESTAMP"))
    return tree


def _cannot_fail(node: exp.Expr, kinds: Mapping[str, str]) -> bool:
    """Whether a condition compares a column with a constant of its own kind, or asks whether there is a value."""
    node = node.unnest()
    if isinstance(node, exp.Not):
        return _cannot_fail(node.this, kinds)
    if isinstance(node, exp.Is):
        return isinstance(node.this, exp.Column) and isinstance(node.expression, exp.Null)
    is_compared = isinstance(node, _COMPARISONS) and isinstance(node.this, exp.Column)
    if not is_compared or not isinstance(node.expression, exp.Literal):
        return False
    fitting = STRING_KINDS if node.expression.is_string else NUMBER_KINDS - {"vector", "date", "timestamp"}
    return kinds.get(node.this.name.lower()) in fitting


def make_infallible(query: str) -> str:
    """A query in which no expression over a row fails.

    >>> make_infallible('SELECT "k", SUM(CAST("s" AS INT)) AS "n" FROM "t" WHERE 1 / "x" > 2 GROUP BY "k"')
    'SELECT "k", SUM(TRY_CAST(TRY(CAST("s" AS INT)) AS DOUBLE)) AS "n" FROM "t" WHERE TRY(1 / "x" > 2) GROUP BY "k"'
    """
    tree = _cast_moments(parse_one(query, dialect="duckdb"))
    _wrap(tree)
    return tree.sql("duckdb", identify=True, comments=False)


def _wrap(node: exp.Expr) -> None:
    for child in list(node.iter_expressions()):
        if _is_row_wise(child):
            child.replace(exp.Try(this=child.copy()))
        elif (
            isinstance(child, exp.Condition)
            and not isinstance(child, (*_LEAVES, *_AGGREGATES, exp.AggFunc))
            and child.find(exp.AggFunc) is not None
            and child.find(exp.Window, exp.Query) is None
        ):  # computed from aggregates, and could fail
            child.replace(_try_groups(child))
        else:
            _wrap(child)
    if isinstance(node, exp.Sum | exp.Avg | exp.Skewness | exp.Kurtosis):
        value = node.this.expressions[0] if isinstance(node.this, exp.Distinct) else node.this
        value.replace(_double(value, node))


def _double(value: exp.Expr, aggregate: exp.Expr) -> exp.Expr:
    """A value as a double that an aggregate cannot fail on; of a time, DuckDB refuses it before it reads a row."""
    if isinstance(aggregate, exp.Sum):
        return exp.TryCast(this=value.copy(), to=exp.DataType.build("DOUBLE"))
    number = exp.Paren(this=value.copy()) + exp.cast(exp.Literal.number(0), "DOUBLE")
    if isinstance(aggregate, exp.Avg):
        return number
    return exp.Case().when(exp.Abs(this=number) < exp.Literal.number(_MOST), number.copy())


def _try_groups(node: exp.Expr) -> exp.Expr:
    """list_transform([{'a0': sum(x)}], lambda g: TRY(1 / g['a0']))[1]"""
    whole, values = exp.Tuple(expressions=[node.copy()]), list[str]()
    for part in list(whole.find_all(*_AGGREGATES)):
        if part.find_ancestor(*_AGGREGATES) is None:
            _wrap(part)
            values.append(f"'a{len(values)}': {part.sql('duckdb', identify=True)}")
            part.replace(parse_one(f"\"{_GROUP}\"['a{len(values) - 1}']", dialect="duckdb"))
    tried = whole.expressions[0].sql("duckdb", identify=True)
    text = f'list_transform([{{{", ".join(values)}}}], lambda "{_GROUP}": TRY({tried}))[1]'
    return parse_one(text, dialect="duckdb")


def _is_row_wise(node: exp.Expr) -> bool:
    """Whether an expression is computed for each row by itself, from columns, and could fail."""
    if not isinstance(node, exp.Condition) or isinstance(node, _LEAVES):
        return False
    if isinstance(node, exp.EQ) and all(isinstance(node.args.get(side), exp.Column) for side in ("this", "expression")):
        return False  # a pair of keys
    if isinstance(node, exp.If) and isinstance(node.parent, exp.Case):
        return False  # a branch, and no expression
    is_joined = isinstance(node.parent, exp.Join) or (isinstance(node, exp.And) and node.find_ancestor(exp.Join))
    if is_joined and isinstance(node, exp.And):
        return False  # each condition by itself, for pairs of keys are found by their hashes
    is_cut = isinstance(node, _COMPARISONS) and isinstance(node.find_ancestor(exp.Join, exp.Select), exp.Join)
    if is_cut and has_cutoff(node):
        return False  # each side by itself, for periods of a history are found by their order
    return node.find(exp.Column) is not None and node.find(exp.AggFunc, exp.Window, exp.Query) is None
