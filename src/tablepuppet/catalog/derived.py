"""owned_query: a subquery of FROM → the text that the owner of its tables runs, or why nobody can.

Every table of a subquery must lie with the same client. A table that several clients share can be read row by row at
each of them; what looks at several rows at once (groups, windows, DISTINCT, LIMIT, joins) would miss the others' rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from tablepuppet.catalog.refusals import refuse
from tablepuppet.query.derived import base_tables
from tablepuppet.query.scope import matches
from tablepuppet.query.ucq import Ucq
from tablepuppet.suggest import did_you_mean
from tablepuppet.tables.allowed import AGGREGATES

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


def owned_query(ucq: Ucq, query: exp.Query, tables: Mapping[str, tuple[str, ...]]) -> tuple[str, str]:
    """The first table of a derived query, and the query's text with every table as its owner calls it."""
    own = query.copy()
    bases = base_tables(own)
    names = [find_table(ucq, base.this, tables) for base in bases]
    first = names[0]
    for base, name in zip(bases, names, strict=True):
        if tables[name] != tables[first]:
            is_condition = base.find_ancestor(exp.In, exp.Exists) is not None
            advice = (
                f"Join the keys instead: JOIN (SELECT DISTINCT key FROM {name}) t ON t.key = …"
                if is_condition
                else "Join the two in the main query, each summed up in a subquery of its own where that is needed; "
                "if one owner holds both, say so to the federation (owners=)"
            )
            owners = f"{', '.join(tables[first])}; {', '.join(tables[name])}"
            message = f"this subquery reads {first} and {name}, which lie with different owners ({owners}). {advice}"
            raise refuse(ucq, message, base)
    if len(tables[first]) > 1:
        _check_rowwise(ucq, query, first, tables[first])
    for base, name in zip(bases, names, strict=True):
        if base.args.get("alias") is None:
            base.set("alias", exp.TableAlias(this=base.this.copy()))
        base.set("this", exp.Identifier(this=name, quoted=True))
    return first, own.sql("duckdb", identify=True, comments=False)


def _check_rowwise(ucq: Ucq, query: exp.Query, table: str, clients: tuple[str, ...]) -> None:
    """Each client of a shared table sees its own rows only."""
    selects = list(query.find_all(exp.Select))
    found = query.find(*_OVER_ROWS, *AGGREGATES) or (selects[1] if _nests_in_conditions(query) else None)
    if found is not None:
        raise refuse(
            ucq,
            f"the rows of {table} lie with {len(clients)} clients, and each would compute this over its own rows only. "
            "Let one of them offer the summed-up table, or select the column itself",
            found,
        )


def _nests_in_conditions(query: exp.Query) -> bool:
    """Whether a condition looks rows up: x IN (SELECT …), EXISTS, a scalar subquery."""
    return any(
        select.find_ancestor(exp.In, exp.Exists, exp.Where, exp.Having) is not None
        for select in query.find_all(exp.Select)
        if select is not query
    )
