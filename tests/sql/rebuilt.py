"""A BoundQuery back as SQL, for DuckDB to run: what the scans read, joined as the branches say."""

from __future__ import annotations

from tests.sql.owners import quoted

from tablepuppet.sql import BoundQuery
from tablepuppet.sql.bound import Branch, KeyPair


def rebuilt(query: BoundQuery, names: list[str]) -> str:
    """SQL made from nothing but the BoundQuery, whose columns are in the order of `names`."""
    return " UNION ALL ".join(_branch(query, b, names) for b in range(len(query.branches)))


def _branch(query: BoundQuery, number: int, names: list[str]) -> str:
    branch = query.branches[number]
    columns = {query.label: f"r{branch.label_relation}.e{branch.label_place.label}"}
    for block in query.blocks:
        member = block.members[number]
        for feature, column in zip(block.features, member.columns, strict=True):
            columns[feature.split(".", 1)[1]] = f"r{member.relation}.e{column}"
    assert sorted(columns) == sorted(names)
    parts = [_scan(query, branch, 0)]
    for join in branch.joins:
        assert join.on
        on = " AND ".join(map(_equality, join.on))
        parts.append(f"{join.kind.upper()} JOIN {_scan(query, branch, join.relation)} ON {on}")
    return f"SELECT {', '.join(columns[name] for name in names)} FROM {' '.join(parts)}"


def _scan(query: BoundQuery, branch: Branch, relation: int) -> str:
    scan = query.scans[branch.relations[relation].scan]
    columns = ", ".join(f"{e} AS e{k}" for k, e in enumerate(scan.expressions))
    where = f" WHERE {scan.filter}" if scan.filter else ""
    return f"(SELECT {columns} FROM {quoted(scan.table)}{where}) r{relation}"


def _equality(pair: KeyPair) -> str:
    return f"r{pair.left}.e{pair.left_column} = r{pair.right}.e{pair.right_column}"
