"""Histories: the names in their queries, and queries over them as their owner writes them anew.

A history is a table that a query reads until a moment (sql/history.py). The moments are rows of the table CUTOFFS,
which has one column and which only the history's owner ever fills.

In: a query that reads cutoffs, as the guard wrote it. Out: other queries over the same tables: for some pairs of key
and cutoff, and to count rows first. Keys of a query are outputs of it. Each stands in the table of cutoffs too, where a
cutoff is about one key.
"""

from collections.abc import Sequence
from typing import Final

from sqlglot import exp, parse_one

PREFIX: Final = "tablepuppet "  # of names that no user writes
CUTOFFS: Final = "tablepuppet cutoffs"  # the table
CUTOFF: Final = "at"  # its column
BEGINS: Final = "test begins"  # an output: the moment from which on rows are for the test (api/history.py)
KEY: Final = "tablepuppet key"  # an output: the key whose history a row is, before its number
KEYS: Final = "tablepuppet keys"  # a table inside a query: the different keys of a history
AT: Final = "tablepuppet at"  # an output: the cutoff that a row is about
BEHIND: Final = "tablepuppet rows"  # an output: how many rows of the history each of its values is made of, at least
FOUND: Final = "tablepuppet found"  # an output: the query always gives a row, and where it has none here, NULLs
AT_ONCE: Final = "tablepuppet at, once"  # the same, where no two rows of the cutoffs' table may have one key and cutoff
OF_ONE_ROW = (  # aggregates whose value is that of one row
    *(exp.Min, exp.Max, exp.Median, exp.Quantile, exp.PercentileCont, exp.PercentileDisc, exp.Mode),
    *(exp.First, exp.Last, exp.AnyValue, exp.ArgMax, exp.ArgMin),
)


def name_for_people(expression: str) -> str:
    """A column of a history by its meaning, and any other as it is written."""
    bare = expression.strip('"')
    return "moment" if bare in (AT, AT_ONCE) else "key" if bare.startswith(f"{KEY} ") else expression


def is_plain_column(expression: str) -> bool:
    """Whether an expression is a name in quotes, and nothing else."""
    return len(expression) > 2 and expression.count('"') == 2 and expression[0] == expression[-1] == '"'


def is_cutoffs(node: exp.Expr) -> bool:
    return isinstance(node, exp.Table) and node.name == CUTOFFS


def has_cutoff(node: exp.Expr) -> bool:
    return any(column.table == CUTOFFS for column in node.find_all(exp.Column))


def reads_cutoffs(query: exp.Expr) -> bool:
    return any(is_cutoffs(table) for table in query.find_all(exp.Table))


def pair_keys(text: str, keys: Sequence[str]) -> str:
    """The query for the pairs of key and cutoff that are in the table of cutoffs, and for no others."""
    tree = parse_one(text, dialect="duckdb")
    select = _reader(tree)
    join = next(join for join in select.args["joins"] if is_cutoffs(join.this))
    equal = [exp.column(f"{KEY} {k}", CUTOFFS, quoted=True).eq(_find_output(select, key)) for k, key in enumerate(keys)]
    bounds = join.args.get("on")
    join.set("on", exp.and_(*equal, *([] if bounds is None else [bounds.copy()]), copy=False))
    join.set("kind", None)
    return tree.sql("duckdb")


def list_keys(text: str, keys: Sequence[str]) -> str:
    """The different keys of the history, whatever the cutoffs."""
    select = _reader(parse_one(text, dialect="duckdb"))
    items = [exp.alias_(_find_output(select, key), f"{KEY} {k}", quoted=True) for k, key in enumerate(keys)]
    return _rows(select, items, with_cutoffs=False).distinct().sql("duckdb")


def count_keys(text: str) -> str | None:
    """How many keys have a row for each cutoff, at most; None: rows are not grouped by key."""
    select = _reader(parse_one(text, dialect="duckdb"))
    window, group = select.find(exp.Window), select.args.get("group")
    by = group.expressions if group is not None else window.args["partition_by"] if window is not None else None
    if by is None:
        return None
    keys = [key.copy() for key in by if not has_cutoff(key)]
    if not keys:
        return "SELECT 1 AS n"
    return f"SELECT count(*) AS n FROM ({_rows(select, keys, with_cutoffs=False).distinct().sql('duckdb')})"


def count_rows(text: str, most: int) -> str:
    """How many rows of the history lie before a cutoff, over all cutoffs, before they are grouped; up to `most`."""
    select = _reader(parse_one(text, dialect="duckdb"))
    rows = _rows(select, [exp.Literal.number(1)], with_cutoffs=True)
    return f"SELECT count(*) AS n FROM ({rows.limit(most).sql('duckdb')})"


def add_rows_behind(text: str) -> str | None:
    """The query with how many rows each of its values is made of, at least; None: its rows are not groups."""
    tree = parse_one(text, dialect="duckdb")
    select = _reader(tree)
    if select is not tree or select.args.get("group") is None:
        return None
    groups = [node for node in select.find_all(exp.Group, exp.Distinct) if not isinstance(node.parent, exp.AggFunc)]
    is_of_one = select.find(*OF_ONE_ROW) is not None or len(groups) > 1
    filters = {node.expression.sql("duckdb") for node in select.find_all(exp.Filter)}
    counts = ["1"] if is_of_one else ["count(*)", *(f"count(*) FILTER ({where})" for where in sorted(filters))]
    return select.select(exp.alias_(f"greatest(1, least({', '.join(counts)}))", BEHIND, quoted=True)).sql("duckdb")


def list_times(query: exp.Expr) -> exp.Select:
    """The columns of the history that are compared with cutoffs, as dates where cast to them: a date stays midnight."""
    select = _reader(query)
    compared = [node for kind in (exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Between) for node in select.find_all(kind)]
    columns = [column for node in filter(has_cutoff, compared) for column in node.find_all(exp.Column)]
    own = [
        c.parent if isinstance(c.parent, exp.Cast) and c.parent.is_type("date") else c
        for c in columns
        if c.table != CUTOFFS
    ]
    times = dict.fromkeys(column.sql("duckdb") for column in own)
    found = exp.select(*(f'{time} AS "time {number}"' for number, time in enumerate(times)), dialect="duckdb")
    latest = [join for join in select.args["joins"] if join.method == "ASOF"]
    return found.from_(latest[0].this.copy()) if latest else _rows(select, found.expressions, with_cutoffs=False)


def _reader(tree: exp.Expr) -> exp.Select:
    found = next(node for node in tree.find_all(exp.Table) if is_cutoffs(node)).find_ancestor(exp.Select)
    assert found is not None
    return found


def _rows(select: exp.Select, items: Sequence[exp.Expr], *, with_cutoffs: bool) -> exp.Select:
    """Some expressions over the rows that a SELECT reads; a latest row stands for each of its key and cutoff."""
    joins = [j.copy() for j in select.args.get("joins") or () if j.method != "ASOF"]
    found = exp.Select(expressions=list(items), from_=select.args["from_"].copy())
    found.set("joins", [j for j in joins if with_cutoffs or not is_cutoffs(j.this)] or None)
    if select.args.get("where") is not None and len(joins) == len(select.args.get("joins") or ()):
        found.set("where", select.args["where"].copy())
    return found


def _find_output(select: exp.Select, name: str) -> exp.Expr:
    """What an output is made of, where it is a column that a * stands for too."""
    if select.args["from_"].this.alias_or_name == KEYS:
        return exp.column(name, KEYS, quoted=True)
    for item in select.expressions:
        if item.alias_or_name.lower() == name.lower() and not item.is_star:
            bare: exp.Expr = item.unalias()
            return bare.copy()
    table = next(item.table for item in select.expressions if item.is_star and item.table)
    return exp.column(name, table, quoted=True)
