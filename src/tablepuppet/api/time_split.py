"""split="time": the latest rows are for the test, and rows shortly before them are left out.

In: a query, its label and the columns of the label's table. Out: the query in which that table carries the moment
from which on rows are for the test, and the condition `test_where`. The label's owner computes that moment, and nobody
else learns it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sqlglot import exp

from tablepuppet.api.history import Column, Schemas, find_label_table, find_moment, parse_window
from tablepuppet.errors import JobError
from tablepuppet.sources.cutoffs import BEGINS
from tablepuppet.sources.syntax import conditions_of
from tablepuppet.sql.parsing import syntax_tree


def split_by_time(
    query: str, label: str, options: Mapping[str, Any], schemas: Schemas, owners: Mapping[str, Sequence[str]]
) -> tuple[str, dict[str, Any]]:
    """The query, and the options of a job with `test_where` instead of `split` and `gap`."""
    kept = {name: value for name, value in options.items() if name not in ("split", "gap")}
    split, gap = options.get("split"), options.get("gap")
    if split is None:
        raise JobError(
            "gap leaves out rows shortly before a test of the latest rows, and rows are split by other means; "
            'add split="time", or a column as in split="t.ts"'
        )
    tree, share = syntax_tree(query), kept.get("test_fraction", 0.15)
    if not isinstance(tree, exp.Select):
        raise JobError('split="time" takes one SELECT; use test_where for a UNION ALL')
    is_named = isinstance(split, str) and (split == "time" or "." in split)
    if not is_named or kept.get("test_where") is not None or not 0 < share < 1:
        raise JobError('split is "time" or a column as in "t.ts", with a test_fraction, and without test_where')
    at = None if split == "time" else split
    base = find_label_table(tree, label, schemas, at)
    named = next(name for name in schemas if name.lower() == base.name.lower())
    if len(owners[named]) > 1:
        raise JobError(
            f"split by time orders all rows of {named}, and several owners hold them; use test_where with a time of "
            "your own"
        )
    moment = find_moment(base, schemas[named], at)
    alias = base.alias_or_name
    inside = _take_conditions(tree, alias)
    named_too = [moment.name, *(value for value in kept.values() if isinstance(value, str))]
    begins = exp.to_identifier(BEGINS, quoted=True)
    quantile = exp.Anonymous(this="quantile_disc", expressions=[moment.copy(), exp.Literal.number(repr(1 - share))])
    items = [
        exp.column(exp.to_identifier(name, quoted=True), alias)
        for name in _read_columns(tree, named_too, schemas[named])
    ]
    derived = exp.select(*items, exp.alias_(exp.Window(this=quantile), begins)).from_(base.copy())
    derived = derived.where(*inside, copy=False) if inside else derived
    if gap is not None:
        start = exp.column(begins.copy(), alias)
        before = exp.Sub(this=start.copy(), expression=exp.maybe_parse(parse_window(gap), dialect="duckdb"))
        outside = exp.or_(moment.copy() >= start, moment.copy() < before)
        tree.where(exp.Paren(this=outside), copy=False)
    base.replace(exp.Subquery(this=derived, alias=exp.TableAlias(this=exp.to_identifier(alias))))
    bare = moment.args["this"].sql("duckdb")
    return tree.sql("duckdb"), {**kept, "test_where": f'{bare} >= "{BEGINS}"', "test_fraction": 0.0}


def _take_conditions(tree: exp.Select, alias: str) -> list[exp.Expr]:
    """The conditions of WHERE on one table, taken out of it: the test is a share of the remaining rows."""
    conditions = conditions_of(tree)

    def is_own(condition: exp.Expr) -> bool:
        columns = list(condition.find_all(exp.Column))
        return all(c.table.lower() == alias.lower() for c in columns) and condition.find(exp.Query) is None

    others = [c for c in conditions if not is_own(c)]
    tree.set("where", exp.Where(this=exp.and_(*others, copy=False)) if others else None)
    return [c.copy() for c in conditions if is_own(c)]


def _read_columns(tree: exp.Select, texts: Sequence[str], columns: Sequence[Column]) -> list[str]:
    """The columns of a table that a query and some other texts (a weight, a condition) may name."""
    has_star = any(not isinstance(star.parent, exp.Count) for star in tree.find_all(exp.Star))
    names = {c.name.lower() for c in tree.find_all(exp.Column)}
    names |= {i.name.lower() for join in tree.find_all(exp.Join) for i in join.args.get("using") or ()}
    names |= {word.lower() for text in texts for word in (text, *re.findall(r"\w+", text))}
    return [c.name for c in columns if has_star or c.name.lower() in names]
