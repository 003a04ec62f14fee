"""Singling out: whether an expression, a condition or a query reveals a few rows alone.

In: expressions that the guard wrote, over the columns of some rows. Out: whether one of them reveals few of these. A
mean over thousands of rows is one row's value if the expression is 0 for all others. Arithmetic can select that row
as well as CASE does: `pow(0, abs(id - 7)) * delay`. No list of functions finds all such texts, so the rows are tested:

- values: how many rows lie apart from the median, by their share of all distance from it;
- interaction: in how many rows two columns act on each other. One column and the rest are shuffled, each alone and
  both: f(a, b) − f(a', b) − f(a, b') + f(a', b'). This is 0 where the effect of one does not depend on the other,
  whatever else the expression adds.

Shares count as rows do: (Σ|d|)² / Σd² of the distances d is 1 where one row holds all, n where n rows hold the same.

Conditions: each comparison by itself, over the columns of one table, and the rows that it holds for. A WHERE, CASE
or split made of comparisons picks whole groups, and so never fewer rows than the smallest group has.

For a query over an owner's tables: its expressions and conditions over one table's rows. PolicyError where a query
chooses rows by their order or number: single rows would then leave through any aggregate. A history compares times with
cutoffs: they cut a table's rows into periods, and two of its sums differ by whole periods.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from sqlglot import exp, parse_one

from tablepuppet.arrays import Array
from tablepuppet.errors import PolicyError, SourceError
from tablepuppet.sources import duckdb_source
from tablepuppet.sources.columns import NUMBER_KINDS, numbers, numpy_of
from tablepuppet.sources.guard import columns_of
from tablepuppet.sources.history_queries import CUTOFFS, OF_ONE_ROW, has_cutoff, reads_cutoffs
from tablepuppet.sources.source import Source

_ROUNDING = 64 * float(np.finfo(np.float64).eps)
_RATIO = 10  # of a small table, so many times fewer rows are few
_DRAWS = 6  # a column of two values is seen to act with a chance of 1 to 4,096 not to be
_SPREAD = 2.0  # a row that is shuffled acts where it was and where it comes to be
_MAX_VALUE = 1e150  # whose square is a float
_SHUFFLED = "tablepuppet:"  # before the name of a column
_CHOOSERS = (exp.Limit, exp.Offset, exp.Window, exp.Except, exp.Intersect, exp.Exists, exp.Any, exp.All)
_POLYNOMIAL = (exp.Add, exp.Sub, exp.Mul, exp.Neg, exp.Paren, exp.Literal, exp.Column, exp.Identifier)
_DAYS = (exp.DateDiff, exp.Column, exp.Identifier, exp.Literal, exp.Var, exp.Cast, exp.DataType)


def singles_out(source: Source, expressions: Sequence[str], filter: str | None, least: int) -> bool:
    """Whether one of some expressions reveals fewer than `least` of the rows for which a filter holds."""
    computed = [text for text in dict.fromkeys(expressions) if is_computed(text)]
    if not computed:
        return False
    names = sorted({name for text in computed for name in columns_of(text)})
    rows = source.read([duckdb_source.quote_name(name) for name in names], filter).rename_columns(names)
    few = min(least, rows.num_rows / _RATIO)
    try:
        values = _compute(rows, computed)
        if any(0 < _holders(np.abs(v - np.median(v))) < few for held in values for v in held.T):
            return True
        return any(0 < held < _SPREAD * few for held in _acting_on_each_other(rows, computed, values))
    except SourceError:  # the expression fails on shuffled values: nothing was seen
        return True


def is_computed(sql: str) -> bool:
    """Whether an expression is more than a column or a constant as they are."""
    tree = parse_one(sql, dialect="duckdb").unnest()
    return not isinstance(tree, exp.Column) and tree.find(exp.Column) is not None


def _acting_on_each_other(rows: pa.Table, texts: Sequence[str], own: Sequence[Array]) -> Iterator[float]:
    """For each expression and each of its columns: in how many rows it and the others act on each other."""
    several = [(text, sorted(columns_of(text)), given) for text, given in zip(texts, own, strict=True)]
    several = [one for one in several if len(one[1]) > 1]
    apart = [np.zeros((len(names), *given.shape)) for _, names, given in several]
    for _ in range(_DRAWS if several else 0):
        order = pa.array(np.random.default_rng().permutation(rows.num_rows))
        both = rows
        for name in rows.column_names:
            both = both.append_column(_SHUFFLED + name, rows.column(name).take(order))
        for (text, names, given), found in zip(several, apart, strict=True):
            forms = [_with(text, {*names})]
            for name in names:
                forms += [_with(text, {name}), _with(text, {*names} - {name})]
            together, *pairs = _compute(both, forms)
            for place in range(len(names)):
                four = np.stack([given, -pairs[2 * place], -pairs[2 * place + 1], together])
                distance = np.abs(four.sum(axis=0))
                found[place] += np.where(distance > _ROUNDING * np.abs(four).max(axis=0), distance, 0.0)
    yield from (_holders(held) for found in apart for by_column in found for held in by_column.T)


def _compute(rows: pa.Table, texts: Sequence[str]) -> list[Array]:
    """The values of expressions, each (rows, k + 1): values, 0 where there is none, and whether there is one."""
    with closing(duckdb_source.from_arrow("rows", rows)) as source:
        kinds = [info.kind in NUMBER_KINDS for info in source.describe_scan(texts, None)]
        asked = [
            text if is_number else f"md5_number_lower(CAST({text} AS VARCHAR))::DOUBLE"  # texts are equal or not
            for text, is_number in zip(texts, kinds, strict=True)
        ]
        infos = source.describe_scan(asked, None)
        found = [numbers(c, info) for c, info in zip(source.read(asked, None).columns, infos, strict=True)]
    missing = [np.asarray(np.isnan(values).any(axis=1)) for values in found]
    filled = [np.where(m[:, None], 0.0, values) for m, values in zip(missing, found, strict=True)]
    return [np.column_stack([np.clip(f, -_MAX_VALUE, _MAX_VALUE), m]) for f, m in zip(filled, missing, strict=True)]


def _with(text: str, names: set[str]) -> str:
    """The expression over shuffled values of some columns."""
    lower = {name.lower(): name for name in names}
    tree = parse_one(text, dialect="duckdb")
    for column in list(tree.find_all(exp.Column)):
        if column.name.lower() in lower:
            column.this.replace(exp.to_identifier(_SHUFFLED + lower[column.name.lower()], quoted=True))
    return tree.sql("duckdb", identify=True)


def _holders(distances: Array) -> float:
    """How many rows hold all distance."""
    largest = distances.max(initial=0.0)
    if largest == 0:
        return 0.0
    shares = distances / largest
    return float(shares.sum() ** 2 / (shares * shares).sum())


def expressions_of_query(sql: str, tables: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The computed expressions in a query over an owner's tables, by table."""
    tree = parse_one(sql, dialect="duckdb")
    for node in tree.walk():
        _check_choice(node)
    found: dict[str, list[str]] = {table: [] for table in tables}
    for node in _expressions(tree):
        places = _places(node, tree, tables)
        is_of_moment = all(column.table == CUTOFFS for column in node.find_all(exp.Column))
        if is_of_moment or (has_cutoff(node) and all(isinstance(part, _DAYS) for part in node.walk())):
            continue  # the same for all rows, or the days between a time and the moment
        if not places and not all(isinstance(part, _POLYNOMIAL) for part in node.walk()):  # which pick no row
            raise unclear("an expression that is not of the columns of one table by their own names")
        for table in places:
            found[table].append(_drop_qualifiers(node).sql("duckdb", identify=True))
    return found


def _places(node: exp.Expr, tree: exp.Expr, tables: Mapping[str, Sequence[str]]) -> list[str]:
    """The tables that have all columns of an expression, under one alias and by their own names."""
    columns = list(node.find_all(exp.Column))
    names = {column.name.lower() for column in columns}
    if len({column.table.lower() for column in columns}) > 1 or names & _find_shadowed_names(tree):
        return []
    return [table for table, own in tables.items() if names <= {column.lower() for column in own}]


def joins_of_query(sql: str, tables: Mapping[str, Sequence[str]]) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """The columns of an owner's tables that a query wants to be equal, in pairs, each with its table."""
    tree = parse_one(sql, dialect="duckdb")
    own = {name.lower(): name for name in tables}
    named = {t.alias_or_name.lower(): own[t.name.lower()] for t in tree.find_all(exp.Table) if t.name.lower() in own}
    found = []
    for node in tree.find_all(exp.EQ):
        sides = [side for side in (node.this, node.expression) if isinstance(side, exp.Column)]
        places = [(named.get(side.table.lower(), ""), side.name) for side in sides]
        if len(places) == 2 and all(column in tables.get(table, ()) for table, column in places):
            found.append((places[0], places[1]))
    return found


def few_match(left: pa.ChunkedArray, right: pa.ChunkedArray, least: int) -> bool:
    """Whether fewer than `least` rows of one of two columns find an equal one in the other."""
    kind = pa.large_string()
    ours, theirs = pc.cast(left, kind), pc.cast(right, kind)
    pairs = ((ours, theirs), (theirs, ours))
    return any((pc.sum(pc.is_in(a, value_set=b, skip_nulls=True)).as_py() or 0) < least for a, b in pairs)


def _find_shadowed_names(tree: exp.Expr) -> set[str]:
    """Names that a query gives to something else than a column of that name, and that it may read again."""
    if sum(1 for _ in tree.find_all(exp.Select)) == 1:
        return set()
    given = [(a.alias.lower(), a.this) for a in tree.find_all(exp.Alias)]
    return {name for name, value in given if not isinstance(value, exp.Column) or value.name.lower() != name}


def _drop_qualifiers(node: exp.Expr) -> exp.Expr:
    return node.copy().transform(lambda n: exp.column(n.this.copy()) if isinstance(n, exp.Column) else n)


def _is_latest(node: exp.Expr) -> bool:
    """Whether a history takes the first rows of each key and cutoff, of which base rows are counted."""
    qualify, inside = node.find_ancestor(exp.Qualify), node.find_ancestor(exp.Select)
    is_whole = inside is not None and inside.parent is None and reads_cutoffs(inside)
    return qualify is not None and is_whole and isinstance(node, exp.Window) and isinstance(node.this, exp.RowNumber)


def _check_choice(node: exp.Expr) -> None:
    """Refuses what picks single rows out: by their order, by a number of rows, or as the one value of a query."""
    if isinstance(node, _CHOOSERS) and not _is_latest(node):
        raise unclear("a window" if isinstance(node, exp.Window) else node.key.upper())
    if isinstance(node, exp.Distinct) and node.args.get("on") is not None:
        raise unclear("DISTINCT ON")
    if isinstance(node, exp.Query) and isinstance(node.parent, exp.In):
        raise unclear("IN (SELECT …)")
    is_value = isinstance(node, exp.Subquery) and not isinstance(node.parent, exp.From | exp.Join | exp.SetOperation)
    if is_value and node.parent is not None:
        raise unclear("a query in place of a value")
    if isinstance(node, OF_ONE_ROW):
        inside = node.find_ancestor(exp.Select)
        is_grouped = inside is not None and inside.args.get("group") is not None and inside.parent_select is None
        if not is_grouped:
            raise unclear(f"{node.sql_name().lower()} without groups of its own")


def _expressions(tree: exp.Expr) -> Iterator[exp.Expr]:
    """The largest expressions over columns that hold no aggregate, and are more than a column."""
    stack: list[exp.Expr] = [tree]
    while stack:
        node = stack.pop()
        is_value = isinstance(node, exp.Condition) and not isinstance(node, exp.Query | exp.Predicate | exp.Connector)
        if not is_value or node.find(exp.AggFunc, exp.Query) is not None or _is_latest(node):
            stack.extend(node.iter_expressions())
        elif not isinstance(node.unnest(), exp.Column) and node.find(exp.Column) is not None:
            yield node


def unclear(what: str) -> PolicyError:
    """The note on a query whose rows nobody can count."""
    return PolicyError(
        f"its policy refuses the request: the owner cannot tell how few rows {what} picks inside a subquery; compare "
        "columns of its tables with constants, or ask the owner to approve (rule minimum_rows)"
    )


_SPLITTERS = (exp.And, exp.Or, exp.Not, exp.Paren)
_TRUTHS = (exp.Predicate, exp.StartsWith, exp.EndsWith, exp.Contains, exp.IsNan, exp.IsInf)


class Condition(msgspec.Struct, frozen=True):
    """One comparison: its text, and whether it is of one column or of two as they are."""

    text: str
    is_plain: bool


def conditions_of(sql: str, *, is_predicate: bool) -> list[Condition]:
    """The comparisons in an expression; `x IS NULL` is none, for it reads no value.

    >>> [c.text for c in conditions_of('"a" > 3 AND NOT ("b" = 1 OR "c" IS NULL)', is_predicate=True)]
    ['"a" > 3', '"b" = 1']
    >>> [c.text for c in conditions_of('CASE "id" WHEN 7 THEN "pay" END', is_predicate=False)]
    ['"id" = 7']
    """
    tree = parse_one(sql, dialect="duckdb")
    found = [*(_leaves(tree) if is_predicate else ()), *_inside(tree)]
    return list(dict.fromkeys(_condition(node) for node in found if not _is_null_test(node)))


def conditions_of_query(sql: str, tables: Mapping[str, Sequence[str]]) -> dict[str, list[Condition]]:
    """The comparisons in a query over an owner's tables, by the table whose columns they read."""
    tree = parse_one(sql, dialect="duckdb")
    found: dict[str, list[Condition]] = {table: [] for table in tables}
    for node in _inside(tree):
        columns = list(node.find_all(exp.Column))
        if not columns or _is_null_test(node) or _compares_tables(node) or _is_cut(node):
            continue
        if node.find(exp.AggFunc, exp.Window, exp.Query) is not None:
            if isinstance(node, exp.LTE) and _is_latest(node.this):
                continue
            if all(isinstance(c.find_ancestor(exp.AggFunc), exp.Count) for c in columns):
                continue  # how many rows a group has
            raise unclear("a comparison of an aggregate or of another query's rows")
        places = _places(node, tree, tables)
        if not places:
            raise unclear("a comparison that is not of the columns of one table by their own names")
        condition = _condition(_drop_qualifiers(node))
        for table in places:  # several may have a column of that name
            found[table] += [condition] if condition not in found[table] else []
    return found


class Cut(msgspec.Struct, frozen=True):
    """Times of one table, compared with moments."""

    time: str
    moment: str  # over cutoffs
    is_last: bool  # whether rows at the moment itself belong to those before it


def _is_cut(node: exp.Expr) -> bool:
    is_comparison = isinstance(node, (exp.LT, exp.LTE, exp.GT, exp.GTE, exp.EQ, exp.Between))
    return is_comparison and has_cutoff(node) and not isinstance(node.this, exp.Window)


def cuts_of_query(sql: str, tables: Mapping[str, Sequence[str]]) -> dict[str, list[Cut]]:
    """The comparisons of a history with its moments, by the table whose times they read."""
    tree = parse_one(sql, dialect="duckdb")
    found: dict[str, list[Cut]] = {table: [] for table in tables}
    for node in (part for whole in filter(_is_cut, tree.walk()) for part in _comparisons(whole)):
        time, moment = node.this, node.expression
        if has_cutoff(time):
            time, moment = moment, time
        places = _places(time, tree, tables) if time.find(exp.AggFunc, exp.Window, exp.Query) is None else []
        texts = [_drop_qualifiers(part).sql("duckdb", identify=True) for part in (time, moment)]
        if not places or len(columns_of(texts[0])) != 1 or any(c.table != CUTOFFS for c in moment.find_all(exp.Column)):
            raise unclear("a comparison of the moment with something else than one column")
        last = (exp.LTE, exp.GT) if time is node.this else (exp.GTE, exp.LT)
        ends = {True, False} if isinstance(node, exp.EQ) else {isinstance(node, last)}
        for table in places:
            found[table] += [Cut(texts[0], texts[1], end) for end in ends]
    return found


def _comparisons(node: exp.Expr) -> list[exp.Expr]:
    """BETWEEN as its two comparisons."""
    if not isinstance(node, exp.Between):
        return [node]
    low, high = node.args["low"], node.args["high"]
    return [exp.GTE(this=node.this, expression=low), exp.LTE(this=node.this, expression=high)]


def periods(source: Source, moments: Source, cuts: Sequence[Cut]) -> list[NDArray[np.int64]]:
    """The period of each row, in the order of time, by each time that is compared; rows without one are in the last."""
    found = []
    for time in dict.fromkeys(cut.time for cut in cuts):
        own = _microseconds(source.read([time], None).column(0))
        numbers = np.zeros(len(own), np.int64)
        for is_last in (False, True):
            texts = [cut.moment for cut in cuts if (cut.time, cut.is_last) == (time, is_last)]
            columns = moments.read(texts, None).columns[: len(texts)]
            ends = np.unique(np.concatenate([np.zeros(0, np.int64), *map(_microseconds, columns)]))
            numbers += np.searchsorted(ends, own, "left") if is_last else np.searchsorted(ends, own, "right")
        found.append(numbers)
    return found


def _microseconds(column: pa.ChunkedArray) -> NDArray[np.int64]:
    if not (pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)):
        raise unclear("a comparison of the moment with what is no date or time")
    kind = pa.timestamp("us", getattr(column.type, "tz", None))
    whole = pc.cast(pc.cast(column, kind, safe=False), pa.int64())
    return np.asarray(numpy_of(pc.fill_null(whole, np.iinfo(np.int64).max)), np.int64)


def _leaves(node: exp.Expr) -> Iterator[exp.Expr]:
    if isinstance(node, _SPLITTERS):
        for child in node.iter_expressions():
            yield from _leaves(child)
    elif not isinstance(node, exp.Boolean):
        yield node


def _inside(tree: exp.Expr) -> Iterator[exp.Expr]:
    """Every comparison, also those in CASE and in arguments of functions."""
    for node in tree.walk():
        if isinstance(node, exp.Where | exp.Having | exp.Qualify):
            yield from _leaves(node.this)
        elif isinstance(node, exp.Case):
            for branch in node.args.get("ifs", ()):
                value = node.args.get("this")
                yield from [exp.EQ(this=value.copy(), expression=branch.this.copy())] if value else _leaves(branch.this)
        elif isinstance(node, exp.If) and not isinstance(node.parent, exp.Case):
            yield from _leaves(node.this)
        elif isinstance(node, exp.Nullif):
            yield exp.EQ(this=node.this.copy(), expression=node.expression.copy())
        elif isinstance(node, _TRUTHS) and not isinstance(node, exp.SubqueryPredicate):
            yield node


def _condition(node: exp.Expr) -> Condition:
    columns = {column.name for column in node.find_all(exp.Column)}
    two = isinstance(node, exp.Binary) and all(isinstance(side, exp.Column) for side in (node.this, node.expression))
    return Condition(node.sql("duckdb", identify=True), two or len(columns) < 2)


def _is_null_test(node: exp.Expr) -> bool:
    return isinstance(node, exp.Is) and isinstance(node.this, exp.Column) and isinstance(node.expression, exp.Null)


def _compares_tables(node: exp.Expr) -> bool:
    """Whether it is the `a.x = b.y` of a join."""
    sides = [side for side in (node.args.get("this"), node.args.get("expression")) if isinstance(side, exp.Column)]
    return isinstance(node, exp.EQ) and len(sides) == 2 and sides[0].table != sides[1].table
