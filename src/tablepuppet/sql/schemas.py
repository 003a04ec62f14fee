"""describe: the tables that a query names → their columns, as every owner spells them. One round.

A table's clients must offer the same columns for whatever the query uses. Upper and lower case may differ from client
to client: the first client's spelling stands for the column everywhere, and `spelling` gives each client its own back.
For any other difference (a column that some lack, a type or nullability), an error lists all differences at once.
Owners can then mend their tables in one go.

owned_query: a subquery of FROM → the text that the owner of its tables runs, or why nobody can.
Every table of a subquery must lie with the same client. Each client of a shared table can read it row by row. Groups,
windows, DISTINCT, LIMIT and joins read several rows at once, and would miss the other clients' rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast, get_args

from sqlglot import exp

from tablepuppet.errors import QueryError, did_you_mean
from tablepuppet.exchanges.schema import DescribeTable, TableSchema
from tablepuppet.protocol.columns import ColumnInfo, CutoffType, Merges
from tablepuppet.sources.guard import AGGREGATES
from tablepuppet.sources.history_queries import AT, AT_ONCE, CUTOFF, list_times, reads_cutoffs
from tablepuppet.sql.bound import merged_column, partitions_of, type_name
from tablepuppet.sql.groups import GroupColumn, group_columns, inner_queries, mergeable
from tablepuppet.sql.ucq import Conjunctive, Source, Tables, Ucq, as_table, base_tables, matches
from tablepuppet.transport.link import Link

_SHOWN = 12  # differences that an error lists


def _by_client(having: Mapping[str, ColumnInfo], what: Callable[[ColumnInfo], str]) -> str:
    groups: dict[str, list[str]] = {}
    for client, info in having.items():
        groups.setdefault(what(info), []).append(client)
    return " and ".join(f"{kind} at {_list_clients(clients)}" for kind, clients in groups.items())


def _list_clients(clients: Sequence[str]) -> str:
    return ", ".join(clients) if len(clients) <= 4 else f"{', '.join(clients[:3])} and {len(clients) - 3} others"


_OVER_ROWS = (exp.Group, exp.Window, exp.Distinct, exp.Limit, exp.Offset, exp.SetOperation, exp.Join, exp.Having)


def find_table(ucq: Ucq, name: exp.Identifier, tables: Tables) -> str:
    known = list(tables)
    found = matches(name, known)
    if len(found) != 1:
        many = f"{' and '.join(known[k] for k in found)} differ only in case; quote the one you mean"
        hint = many if found else did_you_mean(name.name, known)
        raise ucq.refuse(f"the federation has no table {name.name}. {hint}", name)
    table = known[found[0]]
    if not tables[table]:
        raise ucq.refuse(f"no client holds the table {table}; add one to the federation", name)
    return table


def owned_query(ucq: Ucq, query: exp.Query, tables: Tables) -> "TableShape":
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
            raise ucq.refuse(message, base)
        if base.args.get("alias") is None:
            base.set("alias", exp.TableAlias(this=base.this.copy()))
        base.set("this", exp.Identifier(this=name, quoted=True))
    read = TableShape(first, tables[first], query=own.sql("duckdb", identify=True, comments=False))
    if len(tables[first]) == 1:
        return read
    partitions = {name.lower(): by for name, by in partitions_of(tables).items()}
    groups = group_columns(own, partitions)
    if groups is None:
        return read
    merging, why_not = mergeable(own, partitions)
    if not groups and not merging:
        raise _over_rows(ucq, query, first, tables)
    return replace(read, groups=groups, merges=merging, unmerged=why_not)


def _over_rows(ucq: Ucq, query: exp.Query, table: str, tables: Tables, unmerged: str = "") -> QueryError:
    """Why clients that share a table cannot compute a query each by itself."""
    over = next(inner_queries(query), None) or query.find(*_OVER_ROWS, *AGGREGATES) or query
    joined = (
        "Join tables here on columns that the federation says they are partitioned by ([partitioned_by] in its "
        f'file, or partitioned_by={{"{table}": ["key"]}}). '
        if isinstance(over, exp.Join)
        else "A subquery in a condition or an item would need the rows of all of them. "
        if isinstance(over, exp.Query)
        else ""
    )
    return ucq.refuse(
        f"the rows of {table} lie with {len(tables[table])} clients, and each would compute this over its own rows "
        f"only. {joined}{unmerged}Group by a key of the join, each value of which lies with one client; or let one of "
        "them offer the summed-up table, or select the column itself",
        over,
    )


@dataclass(frozen=True)
class TableShape:
    """A table, or a query over tables that the same clients hold: its columns, as each client describes them."""

    name: str
    clients: tuple[str, ...]
    infos: Mapping[str, Mapping[str, ColumnInfo]] = field(default_factory=dict, compare=False)  # of each client
    withholding: tuple[str, ...] = ()  # clients that keep the parameters trained on their rows
    query: str | None = None  # over one owner's tables, `name` among them; its rows replace a table's
    groups: tuple[GroupColumn, ...] | None = None  # of such a query: one's values must not span clients
    merges: Merges = ""  # such groups are merged over the clients
    unmerged: str = ""  # why they are not
    cutoffs: CutoffType = ""  # of a history: the type of the moments until which it is read
    times: frozenset[str] = frozenset()  # of a history: the kinds of its times that are compared with them

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(column for own in self.infos.values() for column in own))

    @cached_property
    def spelling(self) -> dict[str, dict[str, str]]:
        """Each client's own name for each column."""
        return {client: {column: info.name for column, info in own.items()} for client, own in self.infos.items()}

    def differences(self) -> str:
        """A sentence that lists everything in which the clients differ; nothing where it is one thing, which an error
        has already named."""
        found = []
        for column in self.columns:
            having = {client: own[column] for client, own in self.infos.items() if column in own}
            lacking = self.lacking(column)
            if lacking:
                found.append(f"{column} is missing at {_list_clients(lacking)}")
            if len(having) > 1 and merged_column(column, having) is None:
                found.append(f"{column} is {_by_client(having, type_name)}")
            if len({info.nullable for info in having.values()}) > 1:
                found.append(f"{column} is {_by_client(having, lambda i: 'nullable' if i.nullable else 'NOT NULL')}")
        if len(found) < 2:
            return ""
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        return f" All differences between the clients of {self.name}: {'; '.join(found[:_SHOWN])}{more}."

    def lacking(self, column: str) -> list[str]:
        """The clients that do not have a column that others have."""
        return [client for client in self.clients if column not in self.infos[client]]


Origin = tuple[exp.Identifier, exp.Query | None]  # a source of FROM


def ask_schemas(names: Sequence[str], tables: Tables, link: Link) -> dict[str, TableSchema]:
    """The schema of each of these tables, from its first client: one round."""
    asked = [(tables[name][0], DescribeTable(table=name)) for name in names]
    return dict(zip(names, link.ask_each(asked), strict=True))


def describe(ucq: Ucq, tables: Tables, link: Link) -> dict[Origin, TableShape]:
    """The shape of everything that the query's FROM clauses name."""
    named: dict[Origin, TableShape] = {}
    histories = _ask_cutoffs(ucq, tables, link)
    sources = [source for branch in ucq.branches for source in branch.sources]
    for source in sources:
        if source.derived is None:
            table = find_table(ucq, source.table, tables)
            named[source.origin] = TableShape(table, tables[table])
        else:
            read = owned_query(ucq, source.derived, tables)
            cutoffs, times = histories.get(source.origin, ("", frozenset()))
            named[source.origin] = replace(read, cutoffs=cutoffs, times=times)
    used = list(dict.fromkeys(named.values()))
    asked = [dict.fromkeys(s.clients, DescribeTable(table=s.name, query=s.query, cutoffs=s.cutoffs)) for s in used]
    answers: dict[TableShape, dict[str, TableSchema]] = dict(zip(used, link.ask_groups(asked), strict=True))
    closed: dict[TableShape, list[str]] = {shape: [] for shape in used}
    for shape, given in answers.items():
        opening = ("sums", "extremes") if shape.merges == "sums" else (shape.merges,)  # what clients may allow for it
        closed[shape] += [c for c, answer in given.items() if shape.merges and answer.merges not in opening]
    for source in sources:
        read = named[source.origin]
        if source.derived is not None and read.groups == () and closed[read]:
            said = _why_unmerged(read, closed[read])
            raise _over_rows(ucq, source.derived, read.name, tables, f"{said[0].upper()}{said[1:]}. ")
    shapes = {
        shape: replace(
            shape,
            infos=_match_columns({client: answer.columns for client, answer in given.items()}),
            withholding=tuple(client for client, answer in given.items() if answer.withholds),
            merges="" if closed[shape] else shape.merges,
            unmerged=_why_unmerged(shape, closed[shape]),
        )
        for shape, given in answers.items()
    }
    return {origin: shapes[read] for origin, read in named.items()}


def _ask_cutoffs(ucq: Ucq, tables: Tables, link: Link) -> dict[Origin, tuple[CutoffType, frozenset[str]]]:
    """The type of each history's cutoffs, from their owners, and the kinds of its times. One round, where there are
    any."""
    asked: list[tuple[Origin, exp.Expr]] = []
    requests: list[tuple[str, DescribeTable]] = []
    times: dict[Origin, tuple[str, DescribeTable]] = {}
    for branch in ucq.branches:
        for source in branch.sources:
            if source.derived is None or not reads_cutoffs(source.derived):
                continue
            moment, giver = _moment_of(ucq, branch, source)
            query = exp.select(exp.alias_(moment.copy(), CUTOFF, quoted=True)).from_(as_table(giver))
            read = owned_query(ucq, query, tables)
            requests += [(client, DescribeTable(table=read.name, query=read.query)) for client in read.clients]
            asked += [(source.origin, moment)] * len(read.clients)
            read = owned_query(ucq, list_times(source.derived), tables)
            times[source.origin] = read.clients[0], DescribeTable(table=read.name, query=read.query)
    found: dict[Origin, CutoffType] = {}
    answers: list[TableSchema] = link.ask_each([*requests, *times.values()]) if requests else []
    kinds = [frozenset(column.kind for column in answer.columns) for answer in answers[len(requests) :]]
    for (origin, moment), (client, _), answer in zip(asked, requests, answers[: len(requests)], strict=True):
        kind = answer.columns[0].detail if answer.columns else ""
        if kind not in get_args(CutoffType) or found.get(origin, kind) != kind:
            raise ucq.refuse(
                f"rows of two owners are compared by < and > only until a date or a time, the same at all owners, and "
                f"{moment.sql('duckdb')} is {kind or 'of no type'} at {client}; join them by =, or name a column of "
                "that type",
                moment,
            )
        found[origin] = cast("CutoffType", kind)
    return {origin: (found[origin], kind) for origin, kind in zip(times, kinds, strict=True)}


def _moment_of(ucq: Ucq, branch: Conjunctive, source: Source) -> tuple[exp.Expr, Source]:
    """The cutoffs of a history as an expression of the main query, and the table that they come from."""
    for condition in source.on:
        sides = (condition.this, condition.expression) if isinstance(condition, exp.EQ) else ()
        for own, other in (sides, sides[::-1]) if sides else ():
            if isinstance(own, exp.Column) and own.name in (AT, AT_ONCE):
                alias = next(column.table.lower() for column in other.find_all(exp.Column))
                return other, next(s for s in branch.sources if s.alias.name.lower() == alias)
    raise ucq.refuse(
        f"the history {source.alias.name} is joined without its moment; join it on key and moment", source.alias
    )


def _why_unmerged(read: TableShape, closed: Sequence[str]) -> str:
    """Why groups are not merged, and what would help."""
    if read.unmerged:
        can = "(count, sum, avg, stddev, min, max and what is made of them can)"
        return f"{read.unmerged} cannot be merged over clients {can}"
    if not closed:
        return ""
    word = 'merge_groups = "extremes"' if read.merges == "extremes" else "merge_groups = true"
    return f"they are merged where the policy of every client says {word}, and that of {_list_clients(closed)} does not"


def _match_columns(columns: Mapping[str, list[ColumnInfo]]) -> dict[str, dict[str, ColumnInfo]]:
    """The columns that each client has, by the spelling of the first client that has them."""
    common: dict[str, list[str]] = {}  # spellings, by the name in lower case
    infos: dict[str, dict[str, ColumnInfo]] = {}
    for client, given in columns.items():
        infos[client] = {}
        for info in given:
            spelled = common.setdefault(info.name.lower(), [])
            same = [info.name] if info.name in spelled else spelled
            column = same[0] if len(same) == 1 and same[0] not in infos[client] else info.name
            spelled += [] if column in spelled else [column]
            infos[client][column] = info
    return infos
