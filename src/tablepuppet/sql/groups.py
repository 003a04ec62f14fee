"""Groups over a table that several clients share: the columns that divide a query's rows, and how to verify that no
group spans clients.

In: a query that each client of a shared table runs over its own rows. Out: the output columns by which its groups,
windows, DISTINCT and joins divide all rows. Suppose that rows equal in one of them all lie with one client. Then the
clients' answers, concatenated, are the query over all rows. Each such column has a *witness*: a query for the column's
values before HAVING, QUALIFY or an outer WHERE can drop one. Clients send the witness's values as key tokens, and
join/keys.py sees whether two clients share one.

Names of WITH are replaced by their queries (sql/parsing.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from sqlglot import exp

from tablepuppet.protocol.columns import Merges
from tablepuppet.sources.grouped_queries import UnmergeableError, grouped_by, grouped_select, named_items, split_groups
from tablepuppet.sources.guard import AGGREGATES
from tablepuppet.sources.history_queries import CUTOFFS, is_cutoffs, reads_cutoffs
from tablepuppet.sources.syntax import conjuncts_of, relations_of

Partitions = Mapping[str, Sequence[str]]  # table → the columns that it is partitioned by, both in lower case
Witnesses = tuple[exp.Select, ...]  # each a query of one column
Divided = Mapping[str, Witnesses]  # by output column, in lower case; empty: the rows of several clients are needed
_Place = tuple[str, str]  # alias and column, in lower case
WITNESS = "key"  # the column of a witness


class GroupColumn(NamedTuple):
    """A column whose values must each lie with one client, and the query for all of them."""

    name: str  # in lower case
    witness: str


def group_columns(query: exp.Query, partitions: Partitions | None = None) -> tuple[GroupColumn, ...] | None:
    """The columns that divide a query over a shared table; one must not span clients. None: it reads row by row."""
    query = _without_cutoffs(query)
    divided = _Reader(partitions or {}).read_query(query)
    if divided is None:
        return None
    return tuple(GroupColumn(name, _text(witnesses)) for name, witnesses in sorted(divided.items()))


def mergeable(query: exp.Query, partitions: Partitions) -> tuple[Merges, str]:
    """How to merge a query's groups that lie with several clients; or the part that prevents it."""
    try:
        split = split_groups(query)
        select, _ = grouped_select(_without_cutoffs(query))
    except UnmergeableError as error:
        return "", str(error)
    reader = _Reader(partitions)
    sources = relations_of(select)
    is_by_row = all(reader.read_source(source) is None for source in sources)
    if not is_by_row or (len(sources) > 1 and not reader.read_join(select)):
        return "", "groups of what looks at several rows itself"
    return ("extremes" if split.has_extremes else "sums"), ""


def _without_cutoffs(query: exp.Query) -> exp.Query:
    """The query as it divides rows among clients. All clients have the same cutoffs (sql/history.py), and the latest
    row of a key is one of the key's own rows."""
    if not reads_cutoffs(query):
        return query
    found = query.copy()
    for select in [found, *found.find_all(exp.Select)]:
        joins = [join for join in select.args.get("joins") or () if not is_cutoffs(join.this)]
        latest = next((join for join in joins if join.method == "ASOF"), None)
        if isinstance(select, exp.Select) and latest is not None:
            equal = [(e.left, e.right) for e in conjuncts_of(latest.args.get("on")) if isinstance(e, exp.EQ)]
            keys = [side for sides in equal if all(isinstance(s, exp.Column) for s in sides) for side in sides]
            own = [key for key in keys if key.text("table").lower() == latest.this.alias_or_name.lower()]
            number = exp.Window(this=exp.RowNumber(), partition_by=[key.copy() for key in own])
            select.set("from_", exp.From(this=latest.this.copy()))
            select.set("qualify", exp.Qualify(this=exp.EQ(this=number, expression=exp.Literal.number(1))))
            joins = []
        select.set("joins", joins or None)
    for column in list(found.find_all(exp.Column)):
        if column.table == CUTOFFS and (column.arg_key == "partition_by" or isinstance(column.parent, exp.Group)):
            column.pop()
    return found


def _text(witnesses: Witnesses) -> str:
    """The distinct values of all witnesses."""
    rows: exp.Query = witnesses[0]
    for witness in dict.fromkeys(witnesses[1:]):
        rows = exp.union(rows, witness, distinct=False)
    whole = exp.select(exp.to_identifier(WITNESS, quoted=True)).distinct().from_(rows.subquery("witnesses"))
    return whole.sql("duckdb", identify=True, comments=False)


class _Reader(msgspec.Struct, frozen=True):
    """Reads queries from the inside out."""

    partitions: Partitions

    def read_query(self, query: exp.Expr) -> Divided | None:
        """The columns that divide a query's rows; None: it reads one row at a time."""
        if not isinstance(query, exp.Select) or query.args.get("from_") is None or any(inner_queries(query)):
            return {}
        divisions = _divisions(query)
        places = self.read_join(query) if query.args.get("joins") else self._places(query, divisions)
        if places is None:
            return None
        for columns in divisions:
            kept = {_find(column, places) for column in columns}
            places = {place: witnesses for place, witnesses in places.items() if place in kept}
        return _outputs(query, places)

    def _places(self, select: exp.Select, divisions: Sequence[Sequence[exp.Column]]) -> dict[_Place, Witnesses] | None:
        """The same of a single source, before the SELECT's own divisions."""
        source = select.args["from_"].this
        below, alias = self.read_source(source), source.alias_or_name.lower()
        if below is not None:
            return {(alias, name): witnesses for name, witnesses in below.items()}
        if not divisions:
            return None
        rows = exp.select("*")
        for clause in ("from_", "where"):
            rows.set(clause, part.copy() if (part := select.args.get(clause)) is not None else None)
        return {(alias, c.name.lower()): (_witness(rows, c),) for columns in divisions for c in columns}

    def read_source(self, source: exp.Expr) -> Divided | None:
        """The columns that divide a table or query in FROM; None: nothing divides it."""
        if any(value for key, value in source.args.items() if key not in ("this", "alias")):
            return {}
        query, renamed = source.this, source.args.get("alias")
        if isinstance(source, exp.Table):
            return None
        if not isinstance(source, exp.Subquery):
            return {}
        divided = self.read_query(query)
        if divided is None or renamed is None or not renamed.columns:
            return divided
        names = query.named_selects
        if "*" in names:
            return {}
        pairs = zip([name.lower() for name in names], renamed.columns, strict=False)
        return {new.name.lower(): divided[old] for old, new in pairs if old in divided}

    def read_join(self, select: exp.Select) -> dict[_Place, Witnesses]:
        """The columns that all tables of a join are divided by, if each is joined to one before it on such a column.

        A joined table may lie with other clients: the witnesses of all tables count.
        """
        first = select.args["from_"].this
        known = {first.alias_or_name.lower(): self._whole(first)}
        families: list[list[_Place]] = [[(alias, name)] for alias, whole in known.items() for name in whole]
        missing: set[str] = set()  # aliases whose columns are NULL in some rows
        for join in select.args["joins"]:
            alias = join.this.alias_or_name.lower()
            if join.side in ("RIGHT", "FULL") or join.method or alias in known:
                return {}
            known[alias] = self._whole(join.this)
            if join.side == "LEFT":
                missing.add(alias)
            pairs = [(left, right) for left, right in _equalities(join, alias, known) if right[1] in known[alias]]
            families = [
                [*family, *own]
                for family in families
                if (own := [right for left, right in pairs if left in family and left[0] not in missing])
            ]
        return {
            (alias, name): tuple(w for a, n in family for w in known[a][n])
            for family in families
            for alias, name in family
            if alias not in missing
        }

    def _whole(self, source: exp.Expr) -> Divided:
        """The columns of a table, or of a query, whose values each lie with one client."""
        divided = self.read_source(source)
        if divided is not None:
            return divided
        rows = exp.select("*").from_(source.copy())
        return {name: (_witness(rows, exp.column(name, quoted=True)),) for name in self._partitioned_by(source)}

    def _partitioned_by(self, source: exp.Expr) -> list[str]:
        """The columns that a table, or a query that goes row by row, is partitioned by."""
        alias = source.args.get("alias")
        if alias is not None and alias.columns:
            return []
        if isinstance(source, exp.Table):
            return list(self.partitions.get(source.name.lower(), ()))
        below = source.this.args["from_"].this
        names = {(below.alias_or_name.lower(), name): () for name in self._partitioned_by(below)}
        return list(_outputs(source.this, names))


def inner_queries(query: exp.Expr) -> Iterator[exp.Query]:
    """The queries that stand elsewhere than in FROM or WITH: in an item, in a condition."""
    for inner in query.find_all(exp.Query):
        outer: exp.Expr = inner
        while isinstance(outer.parent, exp.Subquery):
            outer = outer.parent
        is_source = isinstance(outer.parent, exp.From | exp.Join | exp.CTE | exp.SetOperation | None)
        if inner is not query and not (is_source and outer.arg_key != "on"):
            yield inner


def _witness(rows: exp.Select, column: exp.Column) -> exp.Select:
    return rows.select(exp.alias_(column.copy(), WITNESS, quoted=True), append=False)


def _find(column: exp.Column, places: Mapping[_Place, Witnesses]) -> _Place | None:
    """The column that a name means; where two tables have it, the name includes its table."""
    name, table = column.name.lower(), column.table.lower()
    return next((place for place in places if place[1] == name and table in ("", place[0])), None)


def _equalities(join: exp.Join, alias: str, known: Mapping[str, Divided]) -> Iterator[tuple[_Place, _Place]]:
    """The pairs that a join compares: a column of a table before it, and one of its own."""
    for named in join.args.get("using") or ():
        name = named.name.lower()
        yield from (((other, name), (alias, name)) for other in known if other != alias)
    for equality in conjuncts_of(join.args.get("on")):
        sides = [equality.left.unnest(), equality.right.unnest()] if isinstance(equality, exp.EQ) else []
        if sides and all(isinstance(side, exp.Column) for side in sides):
            left, right = ((side.text("table").lower(), side.name.lower()) for side in sides)
            yield from (pair for pair in ((left, right), (right, left)) if pair[1][0] == alias)


def _divisions(select: exp.Select) -> list[list[exp.Column]]:
    """The plain columns by which each clause of a SELECT divides its rows."""
    found: list[Sequence[exp.Expr]] = []
    if select.args.get("limit") or select.args.get("offset"):
        found.append(())
    group = select.args.get("group")
    if group is not None:
        several = group.find(exp.Rollup, exp.Cube, exp.GroupingSets)
        found.append(() if several else grouped_by(select, group))
    own = [window for window in select.find_all(exp.Window) if window.find_ancestor(exp.Select) is select]
    named = {window.name.lower(): window for window in select.args.get("windows") or ()}
    for window in own:
        meant = named.get(window.alias.lower(), window) if window.alias else window
        found.append(meant.args.get("partition_by") or ())
    if group is None and (select.args.get("having") or has_aggregate(select)):
        found.append(())  # one group of all rows
    distinct = select.args.get("distinct")
    if distinct is not None:
        on = distinct.args.get("on")
        found.append(on.expressions if on is not None else select.expressions)
    given = named_items(select)
    return [[c for e in columns if isinstance(c := e.unalias(), exp.Column) and _is_own(c, given)] for columns in found]


def _is_own(column: exp.Column, given: Mapping[str, exp.Expr]) -> bool:
    """Whether a name is surely a column of FROM, and not a name that SELECT gives to something else."""
    value = given.get(column.name.lower(), column)
    return not isinstance(column.this, exp.Star) and (
        bool(column.table) or (isinstance(value, exp.Column) and value.name.lower() == column.name.lower())
    )


def has_aggregate(select: exp.Select) -> bool:
    own = (node for node in select.find_all(*AGGREGATES) if node.find_ancestor(exp.Select) is select)
    return any(node.find_ancestor(exp.Window, exp.Select) is select for node in own)


def find_constant_exists(query: exp.Select) -> str | None:
    """Why EXISTS over this query is the same whatever rows there are, or may be; None: it is not."""
    if limit := query.args.get("limit"):
        count = limit.args.get("expression") or limit.args.get("count")  # of LIMIT, of FETCH FIRST
        if count == exp.Literal.number(0):
            return "LIMIT 0 leaves no row, so that this EXISTS is never true; leave LIMIT out"
        if not (isinstance(count, exp.Literal) and count.is_int) or " PERCENT" in limit.sql():
            return "in EXISTS one row is enough, and this LIMIT is no plain number of rows; leave it out"
    if query.args.get("group") is None and has_aggregate(query):
        return (
            "an aggregate without GROUP BY gives one row whatever there is, so that this EXISTS is always true; "
            "write EXISTS (SELECT 1 FROM …), or leave the condition out"
        )
    return None


def _outputs(select: exp.Select, places: Mapping[_Place, Witnesses]) -> dict[str, Witnesses]:
    """The names of these columns in the SELECT list; of two outputs with one name, the first has it."""
    first = select.args["from_"].this.alias_or_name.lower()
    found: dict[str, Witnesses] = {}
    taken: set[str] = set()
    for item in select.expressions:
        value = item.unalias()
        star = value.this if isinstance(value, exp.Column) else value
        if isinstance(star, exp.Star):
            of = value.table.lower() if isinstance(value, exp.Column) else first
            gone = {c.name.lower() for c in star.args.get("except_") or ()}
            shown = {name: w for (alias, name), w in places.items() if alias == of and name not in gone}
            found |= {name: w for name, w in shown.items() if name not in taken}
            taken |= shown.keys()
            continue
        name = item.alias_or_name.lower()
        place = _find(value, places) if isinstance(value, exp.Column) else None
        if place is not None and name not in taken:
            found[name] = places[place]
        taken.add(name)
    return found
