"""Total expressions: an expression over protected columns has an answer for every row, and never an error.

An expression that fails for one row reveals that row, whatever its message: 1 / (salary − 5,000) asks whether anybody
earns that. In a protected table such a row is NULL instead. DuckDB's TRY gives NULL where a cast, an arithmetic
operation or a function fails. Numbers on which later checks would fail, infinite or too large to square, become NULL
too.

In: a source, or a query over sources. Out: a source that answers like it, and the query with its expressions in TRY.
TRY takes no aggregate, window or subquery. Sums and means are of doubles, which do not overflow, and expressions over
such parts are tried in a function of their values. DuckDB converts what is compared or used as a condition by itself,
outside of TRY; only columns of one type are compared without. Any other failure gives the same refusal, whatever its
reason (client.py).
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp, parse_one

from tablepuppet.errors import PolicyError, SourceError
from tablepuppet.protocol.bounds import LARGEST
from tablepuppet.sources.columns import STRING_KINDS, arrow_of, in_one_piece, is_vector, numpy_of
from tablepuppet.sources.guard import AGGREGATES, CLOCK_PARTS, part_of
from tablepuppet.sources.history_queries import has_cutoff
from tablepuppet.sources.source import Source
from tablepuppet.sources.syntax import conjuncts_of

_PLAIN = re.compile(r'\(*"(?:[^"]|"")*"\)*|[^"]*')  # one column, or none
_LEAVES = (exp.Column, exp.Literal, exp.Boolean, exp.Null, exp.Subquery, exp.Query, exp.Try)
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
Types = Callable[[str], Sequence[tuple[str, str]]]  # of the columns of a query
_AGGREGATES: tuple[type[exp.Expr], ...] = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls, *AGGREGATES)
_OF_MOMENTS: tuple[type[exp.Expr], ...] = (
    *(exp.Extract, exp.DateDiff, exp.Week, exp.WeekOfYear, exp.DayOfWeek, exp.DayOfWeekIso, exp.DayOfYear),
    exp.Anonymous,
)
_PARTS: tuple[type[exp.Expr], ...] = (*_AGGREGATES, exp.Window, exp.Query, exp.SubqueryPredicate)
_WHOLE = re.compile(r"\d{1,18}")  # a number that each type of number can be compared with
_WIDENED = re.compile(r"(TINY|SMALL|BIG)INT|INTEGER|FLOAT|DOUBLE|DECIMAL\((\d|1[0-8]),\d+\)")
_GROUP = "tablepuppet group"
_MOST = "1e60"  # whose fourth power is a number


class InfallibleSource:
    """A source that never answers with an error about a row."""

    def __init__(self, source: Source) -> None:
        self._source, self.describe, self.describe_scan = source, source.describe, source.describe_scan
        self.stamp, self.close = source.stamp, source.close

    def read(self, expressions: Sequence[str], filter: str | None) -> pa.Table:
        chosen = filter
        if filter is not None:  # each condition by itself: the database may still evaluate those that cannot fail
            kinds = {info.name.lower(): info.kind for info in self._source.describe()}
            conditions = conjuncts_of(_cast_moments(filter))
            chosen = " AND ".join(
                f"({text})" if _cannot_fail(c, kinds) else f"TRY_CAST(TRY({text}) AS BOOLEAN)"
                for c, text in ((c, c.sql("duckdb", identify=True)) for c in conditions)
            )
        tried = (
            e if _PLAIN.fullmatch(e) else f"TRY({_cast_moments(e).sql('duckdb', identify=True)})" for e in expressions
        )
        rows = self._source.read(list(tried), chosen)
        for number, field in enumerate(rows.schema):
            if pa.types.is_floating(field.type) or is_vector(field.type):
                rows = rows.set_column(number, field.name, _without_large(rows.column(number)))
        return rows


def _without_large(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of numbers, or of lists of them, with NULL for those that cannot be squared."""
    if pa.types.is_floating(column.type):
        return pc.if_else(pc.greater(pc.abs(column), LARGEST), pa.scalar(None, column.type), column)
    lengths = numpy_of(pc.cast(pc.list_value_length(column), pa.int64()))
    entries = in_one_piece(_without_large(pc.list_flatten(column)))
    offsets = arrow_of(np.append(0, np.cumsum(lengths)))
    return pa.chunked_array([pa.LargeListArray.from_arrays(offsets, entries, mask=in_one_piece(column.is_null()))])


def _cast_moments(text: str) -> exp.Expr:
    """An expression whose dates are dates: DuckDB fails on the week of a time of day, or of an interval, in a way that
    TRY lets pass."""
    tree = parse_one(text, dialect="duckdb")
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
    kind = kinds.get(node.this.name.lower())
    if node.expression.is_string:
        return kind in STRING_KINDS
    is_whole = _WHOLE.fullmatch(node.expression.name) is not None
    return kind == "float" or (is_whole and kind in ("integer", "decimal", "boolean"))


def make_infallible(query: str, types: Types = lambda _: ()) -> str:
    """A query in which no expression over a row fails.

    >>> make_infallible('SELECT "k", SUM(CAST("s" AS INT)) AS "n" FROM "t" WHERE 1 / "x" > 2 GROUP BY "k"')
    'SELECT "k", SUM(TRY_CAST(TRY(CAST("s" AS INT)) AS DOUBLE)) AS "n" FROM "t" WHERE TRY(1 / "x" > 2) GROUP BY "k"'
    """
    tree = _cast_moments(query)
    for node in list(tree.find_all(exp.Where, exp.Having, exp.Qualify, exp.Join)):
        _convert_truths(node.args.get("on" if isinstance(node, exp.Join) else "this"))
    _wrap(tree)
    _try_pairs(tree, types)
    return tree.sql("duckdb", identify=True, comments=False)


def _convert_truths(node: exp.Expr | None) -> None:
    if isinstance(node, exp.Connector | exp.Not | exp.Paren):
        for part in list(node.iter_expressions()):
            _convert_truths(part)
    elif node is not None and not isinstance(node, exp.Predicate | exp.Boolean | exp.Null):
        node.replace(exp.TryCast(this=node.copy(), to=exp.DataType.build("BOOLEAN")))


def _is_pair(node: exp.Expr) -> bool:
    return isinstance(node, exp.EQ) and isinstance(node.this, exp.Column) and isinstance(node.expression, exp.Column)


def _is_branch(node: exp.Expr) -> bool:
    return isinstance(node, exp.If) and isinstance(node.parent, exp.Case)


def _try_pairs(tree: exp.Expr, types: Types) -> None:
    """Columns that may be of two types are compared in TRY, where no join finds them by their hashes."""
    found: dict[str, set[str]] = {}
    for part in tree.find_all(exp.Table, exp.Select, exp.SetOperation) if tree.find(exp.EQ, exp.Join) else ():
        try:
            outputs = types(_write_alone(part))
        except SourceError:  # it names columns of a query around it
            outputs = [(a.alias_or_name.lower(), "") for a in part.find_all(exp.Alias)]
        for name, kind in outputs:
            found.setdefault(name, set()).add(kind)
    for name in (name.name.lower() for a in tree.find_all(exp.TableAlias) for name in a.columns):
        found.setdefault(name, set()).add("")
    for node in list(tree.find_all(exp.EQ)):
        if _is_pair(node) and not _are_alike(*(found.get(side.name.lower(), {""}) for side in node.iter_expressions())):
            node.replace(exp.Try(this=node.copy()))
    for join in tree.find_all(exp.Join):
        using = [found.get(name.name.lower(), {""}) for name in join.args.get("using") or ()]
        if join.method == "NATURAL" or not all(map(_are_alike, using)):
            raise PolicyError("USING and NATURAL may compare columns of two types here; write ON a.x = b.x")


def _are_alike(*kinds: Collection[str]) -> bool:
    """Whether values of these types are converted to one of them without failing; "": it is not known."""
    found = {kind for some in kinds for kind in some}
    return "" not in found and (len(found) == 1 or all(map(_WIDENED.fullmatch, found)))


def check_unions(query: str, types: Types) -> str:
    """The query, if no UNION or its like converts columns in a way that may fail."""
    for node in parse_one(query, dialect="duckdb").find_all(exp.SetOperation):
        both = (enumerate(types(_write_alone(side))) for side in (node.this, node.expression))
        one, two = ({name if node.args.get("by_name") else i: kind for i, (name, kind) in side} for side in both)
        for pair in ((one[key], two[key]) for key in one if key in two):
            if '"NULL"' not in pair and not _are_alike(pair):
                raise PolicyError(f"a UNION has columns of {' and '.join(pair)}; CAST them to one type")
    return query


def _write_alone(node: exp.Expr) -> str:
    """A part of a query as a query by itself, with the names that WITH gives around it."""
    text = f"{'FROM ' * isinstance(node, exp.Table)}{node.sql('duckdb', identify=True)}"
    while (outer := node.parent) is not None:
        named = outer if isinstance(outer, exp.With) else outer.args.get("with_")
        known = named.expressions if named is not None and named is not node else []
        for part in reversed(known[: node.index if named is outer else None]):  # inside of WITH: those before it
            text = f"WITH {part.sql('duckdb', identify=True)} SELECT * FROM ({text})"
        node = outer
    return text


def _wrap(node: exp.Expr) -> None:
    for child in list(node.iter_expressions()):
        if _is_row_wise(child):
            child.replace(exp.Try(this=child.copy()))
        elif (
            isinstance(child, exp.Condition)
            and not isinstance(child, (*_LEAVES, *_PARTS, exp.AggFunc, exp.Connector, exp.Not, exp.Paren, exp.In))
            and not _is_branch(child)
            and not isinstance(child.args.get("expression"), exp.Any | exp.All)
            and child.find(*_PARTS, exp.AggFunc) is not None
        ):  # computed from them, and could fail
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
    is_small = exp.Abs(this=number) < exp.Literal.number(_MOST)
    return number if isinstance(aggregate, exp.Avg) else exp.Case().when(is_small, number.copy())


def _try_groups(node: exp.Expr) -> exp.Expr:
    """list_transform([{'a0': sum(x)}], lambda g: TRY(1 / g['a0']))[1]"""
    whole, values = exp.Tuple(expressions=[node.copy()]), list[str]()
    for part in [part for part in whole.find_all(*_PARTS) if part.find_ancestor(*_PARTS) is None]:
        _wrap(part)
        values.append(f"'a{len(values)}': {part.sql('duckdb', identify=True)}")
        part.replace(parse_one(f"\"{_GROUP}\"['a{len(values) - 1}']", dialect="duckdb"))
    tried = whole.expressions[0].sql("duckdb", identify=True)
    text = f'list_transform([{{{", ".join(values)}}}], lambda "{_GROUP}": TRY({tried}))[1]'
    return parse_one(text, dialect="duckdb")


def _is_row_wise(node: exp.Expr) -> bool:
    """Whether an expression is computed for each row by itself, from columns, and could fail."""
    if not isinstance(node, exp.Condition) or isinstance(node, _LEAVES) or _is_pair(node) or _is_branch(node):
        return False
    if isinstance(node, exp.And) and node.find_ancestor(exp.Join):
        return False  # each condition by itself, for pairs of keys are found by their hashes
    is_cut = isinstance(node, _COMPARISONS) and isinstance(node.find_ancestor(exp.Join, exp.Select), exp.Join)
    if is_cut and has_cutoff(node):
        return False  # each side by itself, for periods of a history are found by their order
    return node.find(exp.Column) is not None and node.find(exp.AggFunc, exp.Window, exp.Query) is None
