"""describe: the tables that a query names → their columns, as every owner spells them. One round.

A table's clients must offer the same columns for whatever the query uses. Upper and lower case may differ from client
to client: the first client's spelling stands for the column everywhere, and `spelling` gives each client its own back.
Where they differ, an error lists all differences at once (a column that some lack, a type or nullability that differs),
so that owners can mend their tables in one go.

owned_query: a subquery of FROM → the text that the owner of its tables runs, or why nobody can.
Every table of a subquery must lie with the same client. A table that several clients share can be read row by row at
each of them; what looks at several rows at once (groups, windows, DISTINCT, LIMIT, joins) would miss the others' rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from sqlglot import exp

from tablepuppet.catalog.bound import partitions_of, refuse
from tablepuppet.catalog.types import merged_column, type_name
from tablepuppet.errors import QueryError, TransportError, did_you_mean
from tablepuppet.exchanges.schema import DescribeTable, TableSchema
from tablepuppet.protocol.base import Message
from tablepuppet.protocol.columns import ColumnInfo, Merges
from tablepuppet.query.derived import base_tables
from tablepuppet.query.ucq import Ucq, matches
from tablepuppet.tables.grouped_queries import UnmergeableError, grouped_select, split_groups
from tablepuppet.tables.guard import AGGREGATES
from tablepuppet.transport.link import Link

_SHOWN = 12

Columns = Mapping[str, ColumnInfo]  # common name → what one client has


def differences(columns: Sequence[str], by_client: Mapping[str, Columns]) -> list[str]:
    """One clause for each way in which the clients differ."""
    found = []
    for column in columns:
        having = {client: own[column] for client, own in by_client.items() if column in own}
        lacking = [client for client in by_client if client not in having]
        if lacking:
            found.append(f"{column} is missing at {_named(lacking)}")
        if len(having) > 1 and merged_column(column, having) is None:
            found.append(f"{column} is {_grouped(having, type_name)}")
        if len({info.nullable for info in having.values()}) > 1:
            found.append(f"{column} is {_grouped(having, lambda i: 'nullable' if i.nullable else 'NOT NULL')}")
    return found


def all_differences(table: str, columns: Sequence[str], by_client: Mapping[str, Columns]) -> str:
    """A sentence that lists every difference, or nothing where an error has already named the only one."""
    found = differences(columns, by_client)
    if len(found) < 2:
        return ""
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f" All differences between the clients of {table}: {'; '.join(found[:_SHOWN])}{more}."


def _grouped(having: Columns, what: Callable[[ColumnInfo], str]) -> str:
    groups: dict[str, list[str]] = {}
    for client, info in having.items():
        groups.setdefault(what(info), []).append(client)
    return " and ".join(f"{kind} at {_named(clients)}" for kind, clients in groups.items())


def _named(clients: Sequence[str]) -> str:
    return ", ".join(clients) if len(clients) <= 4 else f"{', '.join(clients[:3])} and {len(clients) - 3} others"


_OVER_ROWS = (exp.Group, exp.Window, exp.Distinct, exp.Limit, exp.Offset, exp.SetOperation, exp.Join, exp.Having)


def find_table(ucq: Ucq, name: exp.Identifier, tables: Mapping[str, tuple[str, ...]]) -> str:
    """The table of the federation that a name means."""
    known = list(tables)
    found = matches(name, known)
    if len(found) != 1:
        many = f"{' and '.join(known[k] for k in found)} differ only in case; quote the one you mean"
        hint = many if found else did_you_mean(name.name, known)
        raise refuse(ucq, f"the federation has no table {name.name}. {hint}", name)
    table = known[found[0]]
    if not tables[table]:
        raise refuse(ucq, f"no client holds the table {table}; add one to the federation", name)
    return table


def owned_query(ucq: Ucq, query: exp.Query, tables: Mapping[str, tuple[str, ...]]) -> _Read:
    """The first table of a derived query, the query's text with every table as its owner calls it, and its groups."""
    own = query.copy()
    bases = base_tables(own)
    names = [find_table(ucq, base.this, tables) for base in bases]
    first = names[0]
    for base, name in zip(bases, names, strict=True):
        if tables[name] != tables[first]:
            test = base.find_ancestor(exp.In, exp.Exists)
            advice = (
                f"Which rows of {first} are summed up would follow from {name}, and nobody has both: leave the "
                f"condition out of the subquery; or read {first} row by row in the main query, and join the keys "
                f"there: JOIN (SELECT DISTINCT key FROM {name} WHERE …) t ON t.key = …; if one owner holds both, say "
                "so to the federation (owners=)"
                if test is not None
                else "Join the two in the main query, each summed up in a subquery of its own where that is needed; "
                "if one owner holds both, say so to the federation (owners=)"
            )
            owners = f"{', '.join(tables[first])}; {', '.join(tables[name])}"
            message = f"this subquery reads {first} and {name}, which lie with different owners ({owners}). {advice}"
            raise refuse(ucq, message, base)
    read = _groups(ucq, query, first, tables) if len(tables[first]) > 1 else _Read(first, None)
    for base, name in zip(bases, names, strict=True):
        if base.args.get("alias") is None:
            base.set("alias", exp.TableAlias(this=base.this.copy()))
        base.set("this", exp.Identifier(this=name, quoted=True))
    return read._replace(query=own.sql("duckdb", identify=True, comments=False))


def _groups(ucq: Ucq, query: exp.Query, table: str, tables: Mapping[str, tuple[str, ...]]) -> _Read:
    """Columns whose values must each lie with one client of a shared table, or how groups that do not are merged."""
    partitions = {name.lower(): by for name, by in partitions_of(tables).items()}
    found = group_columns(query, partitions)
    if found is None:
        return _Read(table, None)
    merging, why_not = mergeable(query, partitions)
    if not found and not merging:
        raise _over_rows(ucq, query, table, tables)
    return _Read(table, None, tuple(sorted(found)), merging, why_not)


def _over_rows(
    ucq: Ucq, query: exp.Query, table: str, tables: Mapping[str, tuple[str, ...]], unmerged: str = ""
) -> QueryError:
    """Why clients that share a table cannot compute a query each by itself."""
    over = query.find(*_OVER_ROWS, *AGGREGATES) or query
    joined = (
        "Join tables here on columns that the federation says they are partitioned by ([partitioned_by] in its "
        f'file, or partitioned_by={{"{table}": ["key"]}}). '
        if isinstance(over, exp.Join)
        else ""
    )
    return refuse(
        ucq,
        f"the rows of {table} lie with {len(tables[table])} clients, and each would compute this over its own rows "
        f"only. {joined}{unmerged}Group by a key of the join, each value of which lies with one client; or let one of "
        "them offer the summed-up table, or select the column itself",
        over,
    )


def mergeable(query: exp.Query, partitions: Partitions) -> tuple[Merges, str]:
    """What of a query's groups must be merged where they lie with several clients; or what in it is in the way."""
    try:
        split = split_groups(query)
        select, ctes, _ = grouped_select(query)
    except UnmergeableError as error:
        return "", str(error)
    below = _of_source(select.args["from_"].this, ctes, partitions)
    if select.args.get("joins") and below is None and not _joined(select, ctes, partitions):
        below = _NOTHING
    if below is not None:
        return "", "groups of what looks at several rows itself"
    return ("extremes" if split.has_extremes else "sums"), ""


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table: its clients, its columns, and each client's spelling of them (column → spelling)."""

    name: str
    clients: tuple[str, ...]
    columns: tuple[str, ...]
    spelling: Mapping[str, Mapping[str, str]]
    infos: Mapping[str, Mapping[str, ColumnInfo]]  # what each client says of them
    withholding: tuple[str, ...] = ()  # clients that keep the parameters trained on their rows
    query: str | None = None  # over one owner's tables, `name` among them, whose rows are meant instead of a table's
    groups: tuple[str, ...] | None = None  # of such a query: columns of which a value must lie with one client
    merges: Merges = ""  # such groups are merged over the clients
    unmerged: str = ""  # why they are not

    def differences(self) -> str:
        """A sentence about everything in which the clients differ, where it is more than one thing."""
        return all_differences(self.name, self.columns, self.infos)

    def lacking(self, column: str) -> list[str]:
        """The clients that do not have a column that others have."""
        return [client for client in self.clients if column not in self.spelling[client]]


Origin = tuple[exp.Identifier, exp.Query | None]  # what a source of FROM names


class _Read(NamedTuple):
    """What an origin is in the federation: a table, or a query over tables that the same clients hold."""

    table: str
    query: str | None
    groups: tuple[str, ...] | None = None  # see TableShape
    merging: Merges = ""  # what must be merged where groups lie with several clients; "": they cannot be
    why_not: str = ""


def describe(ucq: Ucq, tables: Mapping[str, tuple[str, ...]], link: Link) -> dict[Origin, TableShape]:
    """The shape of everything that the query's FROM clauses name."""
    named: dict[Origin, _Read] = {}
    for branch in ucq.branches:
        for source in branch.sources:
            if source.derived is None:
                named[source.origin] = _Read(find_table(ucq, source.table, tables), None)
            else:
                named[source.origin] = owned_query(ucq, source.derived, tables)
    used = list(dict.fromkeys(named.values()))
    asked: dict[str, list[_Read]] = {}
    for read in used:
        for client in tables[read.table]:
            asked.setdefault(client, []).append(read)
    requests: dict[str, list[Message]] = {
        client: [DescribeTable(table=read.table, query=read.query) for read in reads] for client, reads in asked.items()
    }
    answers = link.ask(requests)
    columns: dict[tuple[_Read, str], list[ColumnInfo]] = {}
    withholding: dict[_Read, list[str]] = {}
    closed: dict[_Read, list[str]] = {}
    for client, reads in asked.items():
        for read, answer in zip(reads, answers[client], strict=True):
            if not isinstance(answer, TableSchema):
                raise TransportError(
                    f"client {client} did not describe its table {read.table}; install the same version everywhere"
                )
            columns[read, client] = answer.columns
            if answer.withholds:
                withholding.setdefault(read, []).append(client)
            if read.merging not in ("", answer.merges) and (read.merging, answer.merges) != ("sums", "extremes"):
                closed.setdefault(read, []).append(client)
    for branch in ucq.branches:
        for source in branch.sources:
            read = named[source.origin]
            if source.derived is not None and read.groups == () and read in closed:
                said = _unmerged(read, closed[read])
                raise _over_rows(ucq, source.derived, read.table, tables, f"{said[0].upper()}{said[1:]}. ")
    shapes = {
        read: replace(
            _shape(read.table, tables[read.table], {c: columns[read, c] for c in tables[read.table]}),
            withholding=tuple(withholding.get(read, ())),
            query=read.query,
            groups=read.groups,
            merges="" if read in closed else read.merging,
            unmerged=_unmerged(read, closed.get(read, ())),
        )
        for read in used
    }
    return {origin: shapes[read] for origin, read in named.items()}


def _unmerged(read: _Read, closed: Sequence[str]) -> str:
    """Why groups are not merged, and what would help."""
    if read.why_not:
        return (
            f"{read.why_not} cannot be merged over clients (count, sum, avg, stddev, min, max and what is made of them "
            "can)"
        )
    if not closed:
        return ""
    word = 'merge_groups = "extremes"' if read.merging == "extremes" else "merge_groups = true"
    return f"they are merged where the policy of every client says {word}, and that of {_named(closed)} does not"


def _shape(table: str, clients: tuple[str, ...], columns: Mapping[str, list[ColumnInfo]]) -> TableShape:
    """Brings the clients' spellings of each column together."""
    common: list[str] = []
    spelling: dict[str, dict[str, str]] = {}
    for client in clients:
        spelling[client] = {}
        for name in (info.name for info in columns[client]):
            same = matches(exp.to_identifier(name, quoted=False), common)
            column = common[same[0]] if len(same) == 1 and common[same[0]] not in spelling[client] else name
            if column not in common:
                common.append(column)
            spelling[client][column] = name
    infos = {
        client: dict(zip(spelling[client], columns[client], strict=True)) for client in clients
    }  # in the order in which the client lists them
    return TableShape(table, clients, tuple(common), spelling, infos)


Names = frozenset[str]  # in lower case
_NOTHING: Names = frozenset()


Partitions = Mapping[str, Sequence[str]]  # table → the columns that it is partitioned by, both in lower case


def group_columns(query: exp.Query, partitions: Partitions | None = None) -> Names | None:
    """A subquery over a table that several clients share → columns whose values must not be shared.

    If rows of equal value in one of them all lie with one client, the subquery over all rows is what its clients
    compute, put together: the columns by which every GROUP BY, window and DISTINCT divides. The query must join on such
    a column; the mapping then sees whether a value lies with two clients (mapping/keys). None: the subquery looks at
    one row at a time, and nothing must hold. No column at all: it needs rows of several clients whatever they hold.

    Tables may be joined on columns that they are partitioned by: rows that meet then lie with one client.
    """
    clause = query.args.get("with_")
    ctes = {cte.alias.lower(): cte.this for cte in clause.expressions} if clause is not None else {}
    return _of_query(query, ctes, partitions or {})


def _of_query(query: exp.Expr, ctes: Mapping[str, exp.Expr], partitions: Partitions) -> Names | None:
    if not isinstance(query, exp.Select) or query.args.get("from_") is None:
        return _NOTHING
    where = query.args.get("where")
    if where is not None and where.find(exp.Query):
        return _NOTHING
    below = _of_source(query.args["from_"].this, ctes, partitions)
    if query.args.get("joins"):
        below = _joined(query, ctes, partitions)
    for divided in _divisions(query):
        below = divided if below is None else below & divided
    return below if below is None else _shown(query, below)


def _of_source(source: exp.Expr, ctes: Mapping[str, exp.Expr], partitions: Partitions) -> Names | None:
    """What must hold below; None for a table, of which any column may be asked."""
    if isinstance(source, exp.Subquery):
        return _of_query(source.this, ctes, partitions)
    if isinstance(source, exp.Table) and source.name.lower() in ctes:
        return _of_query(ctes[source.name.lower()], ctes, partitions)
    return None if isinstance(source, exp.Table) else _NOTHING


def _joined(select: exp.Select, ctes: Mapping[str, exp.Expr], partitions: Partitions) -> Names:
    """The columns that all tables of a join are partitioned by, if every table is joined to one before it on them."""
    first, *joins = [select.args["from_"].this, *(join.this for join in select.args["joins"])]
    known = {_called(first): _whole_by(first, ctes, partitions)}
    for join, source in zip(select.args["joins"], joins, strict=True):
        own, alias = _whole_by(source, ctes, partitions), _called(source)
        if join.side in ("RIGHT", "FULL") or join.method:
            return _NOTHING
        shared = {i.name.lower() for i in join.args.get("using") or ()} & own
        shared &= frozenset[str]().union(*known.values())
        on = join.args.get("on")
        for equality in on.find_all(exp.EQ) if on is not None and not on.find(exp.Or, exp.Not, exp.Case) else ():
            sides = [equality.left, equality.right]
            if all(isinstance(side, exp.Column) for side in sides):
                ours = [c.name.lower() for c in sides if c.table.lower() == alias]
                theirs = [c.name.lower() for c in sides if c.name.lower() in known.get(c.table.lower(), _NOTHING)]
                shared |= {name for name in ours if name in own and theirs}
        if not shared:
            return _NOTHING
        known[alias] = own
    return frozenset[str]().union(*known.values())


def _called(source: exp.Expr) -> str:
    return source.alias_or_name.lower()


def _whole_by(source: exp.Expr, ctes: Mapping[str, exp.Expr], partitions: Partitions) -> Names:
    """The columns of a table, or of a query over one, whose values each lie with one client."""
    if isinstance(source, exp.Table) and source.name.lower() not in ctes:
        return frozenset(partitions.get(source.name.lower(), ()))
    query = source.this if isinstance(source, exp.Subquery) else ctes.get(source.name.lower())
    if not isinstance(query, exp.Select):
        return _NOTHING
    divided = _of_query(query, ctes, partitions)
    base = query.args["from_"].this if divided is None and query.args.get("from_") else None
    return _shown(query, _whole_by(base, ctes, partitions)) if base is not None else divided or _NOTHING


def _divisions(select: exp.Select) -> list[Names]:
    """The columns by which each clause of a SELECT divides its rows."""
    found = []
    if select.args.get("limit") or select.args.get("offset"):
        found.append(_NOTHING)
    group = select.args.get("group")
    if group is not None:
        found.append(_plain_columns(_group_expressions(select, group)))
    own = [node for node in select.find_all(*AGGREGATES, exp.Window) if node.find_ancestor(exp.Select) is select]
    windows = [node for node in own if isinstance(node, exp.Window)]
    named = {w.name.lower(): w for w in select.args.get("windows") or ()}
    for window in windows:
        meant = named.get(window.alias.lower(), window) if window.alias else window
        found.append(_plain_columns(meant.args.get("partition_by") or []))
    if group is None and any(not _is_windowed(node) for node in own):
        found.append(_NOTHING)  # one group of all rows
    distinct = select.args.get("distinct")
    if distinct is not None:
        on = distinct.args.get("on")
        found.append(_plain_columns(on.expressions if on is not None else select.expressions))
    return found


def _is_windowed(node: exp.Expr) -> bool:
    return isinstance(node, exp.Window) or node.find_ancestor(exp.Window) is not None


def _group_expressions(select: exp.Select, group: exp.Group) -> list[exp.Expr]:
    """What GROUP BY names: expressions, positions in the SELECT list, or ALL of it that is no aggregate."""
    if group.args.get("all"):
        return [item for item in select.expressions if not item.find(*AGGREGATES)]
    by_number = {str(k + 1): item for k, item in enumerate(select.expressions)}
    return [by_number.get(e.name, e) if isinstance(e, exp.Literal) else e for e in group.expressions]


def _plain_columns(expressions: list[exp.Expr]) -> Names:
    return frozenset(e.unalias().name.lower() for e in expressions if isinstance(e.unalias(), exp.Column))


def _shown(select: exp.Select, below: Names) -> Names:
    """The names that columns below have in the SELECT list."""
    shown: set[str] = set()
    for item in select.expressions:
        value = item.unalias()
        if isinstance(value, exp.Star) or (isinstance(value, exp.Column) and isinstance(value.this, exp.Star)):
            shown |= below
        elif isinstance(value, exp.Column) and value.name.lower() in below:
            shown.add(item.alias_or_name.lower())
    return frozenset(shown)
