"""Histories in a plan: how many rows they make, who learns the cutoffs, and where a feature may see the future.

In: a summary of the mapping. Out: lines for explain, an Insight per owner of a history, and notes on leaks.
"""

from collections.abc import Iterator

from sqlglot import exp, parse_one

from tablepuppet.formatting import plural
from tablepuppet.job import Job
from tablepuppet.join.mapping import MappingSummary
from tablepuppet.plan.knowledge import Insight
from tablepuppet.sources.history_queries import BEGINS, has_cutoff
from tablepuppet.sources.syntax import conjuncts_of

_EARLIER = (exp.LT, exp.LTE)  # and turned round:
_LATER = (exp.GT, exp.GTE)


def describe_histories(mapping: MappingSummary) -> list[str]:
    """A line for each history: its cutoffs, and the resulting number of rows."""
    aliases = {r.scan: r.alias for branch in mapping.bound.branches for r in branch.relations}
    rows = {fit.alias: fit.rows for fit in mapping.fits}
    return [
        f"{aliases[scan]}: {mapping.bound.scans[scan].table} until {_cutoffs(mapping, scan)}: "
        f"{plural(rows[aliases[scan]], 'row')}"
        for scan in mapping.cutoffs
    ]


def history_insights(mapping: MappingSummary) -> list[Insight]:
    return [
        Insight(f"client {client} (history of {mapping.bound.scans[scan].table})", (_cutoffs(mapping, scan),))
        for scan in mapping.cutoffs
        for client in mapping.bound.scans[scan].clients
    ]


def _cutoffs(mapping: MappingSummary, scan: int) -> str:
    """The values that a history's owner receives."""
    count, scans, paired = mapping.cutoffs[scan], mapping.bound.scans, mapping.bound.pairs
    keys = {scans[s].expressions[key] for (own, (s, _)), by in paired.items() if own == scan for _, key in by}
    if keys:
        return f"{plural(count, 'pair')} of a key, {' and '.join(sorted(keys))}, and {_moments(mapping, scan)}"
    return f"{plural(count, 'cutoff')}, the distinct values of {_moments(mapping, scan)} and not whose they are"


def _moments(mapping: MappingSummary, scan: int) -> str:
    scans = mapping.bound.scans
    return " and of ".join(f"{scans[s].table}'s {scans[s].expressions[c]}" for s, c in mapping.bound.moments[scan])


def find_leaks(mapping: MappingSummary, job: Job) -> Iterator[str]:
    """Reasons why the measured quality may exceed that of later predictions."""
    bound = mapping.bound
    places = [branch.label_place for branch in bound.branches]
    labels = {place.scan for place in places}
    own = {bound.scans[scan].table for scan in labels}
    named = {name for p in places for name in _names_in(bound.scans[p.scan].expressions[p.label])}
    for scan in mapping.cutoffs:
        table, query = bound.scans[scan].table, bound.scans[scan].query
        if query is None:
            continue
        bounds = list(_upper_bounds(parse_one(query, dialect="duckdb")))
        if "date" in bound.scans[scan].times and bound.scans[scan].cutoffs != "DATE":
            yield (
                f"dates of {table} are compared with moments that may have a time of day: a date is its midnight, so "
                "that the whole day of the moment counts as before it; cast the moment, as in CAST(t.ts AS DATE)"
            )
        elif (
            "timestamp" in bound.scans[scan].times
            and bound.scans[scan].cutoffs == "DATE"
            and (exp.LTE, False) in bounds
        ):
            yield (
                f"times of {table} are compared by <= with moments that are dates: a date is its midnight, so that "
                "nothing later on that day counts; cast the history's time, as in CAST(r.ts AS DATE)"
            )
        moment = f"the moment of {_moments(mapping, scan)}"
        if scan in labels:
            if bounds:
                yield (
                    f"the label is read from {table} before {moment}, so that histories of the same rows hold it; a "
                    "label lies after the moment: compare its time with >="
                )
        elif not bounds:
            yield (
                f"the history of {table} reaches past {moment}: features may hold what is not known when a row is "
                "predicted; compare its time with < and the moment"
            )
        elif table in own and (exp.LTE, False) in bounds:
            yield (
                f"the history of {table}, the label's own table, counts the row itself, for times are compared with "
                "<=; write <, or the features hold the label"
            )
        elif table in own and named & _names_in(query) and not any(is_moved for _, is_moved in bounds):
            yield (
                f"the history of {table} holds earlier labels up to {moment}; if a label is known only some days after "
                "its own row's time, end the history as many days before the moment, as in t.ts - INTERVAL 30 DAY"
            )
    if mapping.cutoffs and job.search is None and not _tests_later(mapping, job):
        yield (
            "test rows may lie before training rows whose histories hold them, for the moment does not decide which "
            'rows are for the test; split="time" keeps the latest rows for it'
        )


def _tests_later(mapping: MappingSummary, job: Job) -> bool:
    """Whether there is no test, or its rows are those from some moment on."""
    condition = job.split.test_where
    if condition is None:
        return job.split.test_fraction == 0
    if BEGINS in condition and any(b.label_place.scan in mapping.cutoffs for b in mapping.bound.branches):
        return True  # rows of a history that carry the label have a time of their own
    scans = mapping.bound.scans
    moments = {n for p in mapping.bound.moments.values() for s, c in p for n in _names_in(scans[s].expressions[c])}
    for part in conjuncts_of(parse_one(condition, dialect="duckdb")):
        later = part.expression if isinstance(part, _EARLIER) else part.this
        is_bound = isinstance(part, (*_EARLIER, *_LATER, exp.Between))
        if is_bound and moments & {column.name.lower() for column in later.find_all(exp.Column)}:
            return True
    return False


def _names_in(text: str) -> set[str]:
    return {column.name.lower() for column in parse_one(text, dialect="duckdb").find_all(exp.Column)}


def _upper_bounds(query: exp.Expr) -> Iterator[tuple[type[exp.Expr], bool]]:
    """How times of a history are kept below the cutoff: < or <=; and whether below an earlier time than that."""
    for condition in query.find_all(*_EARLIER, *_LATER, exp.Between):
        if condition.find_ancestor(exp.Filter, exp.Or, exp.Not, exp.Case, exp.If) is not None:  # not for all rows
            continue
        is_turned = isinstance(condition, _LATER)
        early, late = (condition.this, condition.args.get("high") or condition.expression)[:: -1 if is_turned else 1]
        if _is_time(early, is_latest=True) and not has_cutoff(early) and _is_time(late) and has_cutoff(late):
            kind = exp.LT if isinstance(condition, exp.LT | exp.GT) else exp.LTE
            yield kind, late.find(exp.Sub) is not None


def _is_time(node: exp.Expr, *, is_latest: bool = False) -> bool:
    """Whether an expression is a column or earlier than it; `is_latest`: or later."""
    bare = node.unnest()
    if isinstance(bare, exp.Add if is_latest else exp.Sub):
        bare = bare.this.unnest()
    while isinstance(bare, exp.Cast) and not (is_latest and bare.is_type("date")):
        bare = bare.this
    return isinstance(bare, exp.Column)
