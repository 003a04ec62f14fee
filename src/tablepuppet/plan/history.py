"""Histories in a plan: how many rows they make, who learns the cutoffs, and where a feature may see the future.

In: a summary of the mapping. Out: lines for explain, an Insight per owner of a history, and notes on leaks.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp, parse_one

from tablepuppet.formatting import plural
from tablepuppet.job import Job
from tablepuppet.join.mapping import MappingSummary
from tablepuppet.plan.knowledge import Insight
from tablepuppet.sources.cutoffs import CUTOFFS

_EARLIER = (exp.LT, exp.LTE)  # and turned round:
_LATER = (exp.GT, exp.GTE)


def describe_histories(mapping: MappingSummary) -> list[str]:
    """A line for each history: its cutoffs, and the resulting number of rows."""
    aliases = {r.scan: r.alias for branch in mapping.bound.branches for r in branch.relations}
    rows = {fit.alias: fit.rows for fit in mapping.fits}
    return [
        f"{aliases[scan]}: {mapping.bound.scans[scan].table} until {plural(count, 'cutoff')}, the distinct values of "
        f"{_moments(mapping, scan)}: {plural(rows[aliases[scan]], 'row')}, at most one for each key and cutoff"
        for scan, count in mapping.cutoffs.items()
    ]


def history_insights(mapping: MappingSummary) -> list[Insight]:
    """The insights of the owner of a history."""
    return [
        Insight(
            f"client {client} (history of {mapping.bound.scans[scan].table})",
            (f"{plural(count, 'cutoff')}: the distinct values of {_moments(mapping, scan)}, and not whose they are",),
        )
        for scan, count in mapping.cutoffs.items()
        for client in mapping.bound.scans[scan].clients
    ]


def _moments(mapping: MappingSummary, scan: int) -> str:
    scans = mapping.bound.scans
    return " and of ".join(f"{scans[s].table}'s {scans[s].expressions[c]}" for s, c in mapping.bound.moments[scan])


def find_leaks(mapping: MappingSummary, job: Job) -> Iterator[str]:
    """Reasons why the measured quality may exceed that of later predictions."""
    bound = mapping.bound
    labels = {branch.relations[branch.label_relation].scan for branch in bound.branches}
    own = {bound.scans[scan].table for scan in labels}
    for scan in mapping.cutoffs:
        table, query = bound.scans[scan].table, bound.scans[scan].query
        if scan in labels or query is None:
            continue
        bounds = list(_upper_bounds(parse_one(query, dialect="duckdb")))
        if not bounds:
            yield (
                f"the history of {table} reaches past the moment of {_moments(mapping, scan)}: features may hold what "
                "is not known when a row is predicted; compare its time with < and the moment"
            )
        elif table in own and exp.LTE in bounds:
            yield (
                f"the history of {table}, the label's own table, counts the row itself, for times are compared with "
                "<=; write <, or the features hold the label"
            )
    is_drawn = job.split.test_where is None and job.split.test_fraction > 0 and job.search is None
    if mapping.cutoffs and is_drawn:
        yield (
            "rows are split at random, so that test rows may lie before training rows whose histories hold them; "
            'split="time" keeps the latest rows for the test'
        )


def _upper_bounds(query: exp.Expr) -> Iterator[type[exp.Expr]]:
    """How times of a history are kept below the cutoff: < or <=."""
    for condition in query.find_all(*_EARLIER, *_LATER, exp.Between):
        if condition.find_ancestor(exp.Filter) is not None:
            continue
        if isinstance(condition, exp.Between):
            if _is_cutoff(condition.args["high"]):
                yield exp.LTE
            continue
        is_turned = isinstance(condition, _LATER)
        late = condition.this if is_turned else condition.expression
        early = condition.expression if is_turned else condition.this
        if _is_cutoff(late) and not _names_cutoff(early):
            yield exp.LTE if isinstance(condition, exp.LTE | exp.GTE) else exp.LT


def _is_cutoff(node: exp.Expr) -> bool:
    """Whether an expression is the cutoff, or before it."""
    bare = node.unnest()
    if isinstance(bare, exp.Sub):
        bare = bare.this.unnest()
    while isinstance(bare, exp.Cast):
        bare = bare.this
    return isinstance(bare, exp.Column) and bare.table == CUTOFFS


def _names_cutoff(node: exp.Expr) -> bool:
    return any(column.table == CUTOFFS for column in node.find_all(exp.Column))
