"""Features of a table's history, written as SQL: `tp.history` for one table, `federation.suggest_history` for all.

In: which table, by which key and time, until which moment. Out: text that a person reads, edits and trains on:

    LEFT JOIN LATERAL (
      SELECT count(*) AS n, avg(past.points) AS points_mean, …
      FROM results past WHERE past.driver_id = t.driver_id AND past.date < t.ts
    ) results_history ON true

sql/history.py describes how such a query is federated; docs/history.md lists its disclosures.

split="time": the latest rows are for the test, and rows shortly before them are left out. In: a query, its label and
the columns of the label's table. Out: the query in which that table carries the moment from which on rows are for the
test, and the condition `test_where`. The label's owner computes that moment, and nobody else learns it.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlglot import TokenType, exp, parse_one, tokenize
from sqlglot.errors import SqlglotError

from tablepuppet.calls import check_calls
from tablepuppet.errors import JobError, did_you_mean
from tablepuppet.sources.history_queries import BEGINS
from tablepuppet.sources.syntax import conditions_of, relations_of
from tablepuppet.sql.parsing import syntax_tree

Windows = Sequence[str | None]
WINDOWS: Windows = ("90 days", "1 year", None)
_UNITS = {"hour": ("h", 1 / 24), "day": ("d", 1), "week": ("w", 7), "month": ("mo", 30.4), "year": ("y", 365.2)}
_WINDOW = re.compile(r"\s*([1-9]\d{0,5})\s*(hour|day|week|month|year)s?\s*")
_NUMBERS = ("integer", "float", "decimal")
_TIMES = ("date", "timestamp")
_IDENTIFIER = re.compile(r"(?i:(^|.*_)(id|key|code|no|number|num|uuid))|.*[a-z](Id|ID|Key|Code)")
_KEY_END = re.compile(r"(?i:_?(id|key|code|no|number|num|uuid))$")
_AFTER_FROM = (TokenType.WHERE, TokenType.GROUP_BY, TokenType.ORDER_BY, TokenType.LIMIT, TokenType.SEMICOLON)


class Column(NamedTuple):
    name: str
    kind: str
    may_be_feature: bool = True


Schemas = Mapping[str, Sequence[Column]]


@check_calls
def history(
    table: str,
    *,
    key: str | Sequence[str] | Mapping[str, str],
    time: str,
    at: str,
    windows: str | Windows = WINDOWS,
    columns: str | Sequence[str] = (),
    categories: str | Sequence[str] = (),
    name: str | None = None,
) -> str:
    """A LATERAL join that summarises the rows of `table` about a key before a moment; its features are `name.*`.

    `key`: a column that both tables have, several, or {column of the history: column of the other table}.
    `time`: the history's time; `at`: the moment, as in "t.ts": only rows before it count.
    `windows`: how far back, as in "90 days" or "1 year"; None: all rows before the moment.
    `columns`: numbers, for how many are known, their mean, least, greatest, spread, trend by the day, and last value.
    `categories`: for their number and the most frequent one.
    The number of rows and the days since the last are always there.

    >>> print(history("results", key="driver_id", time="date", at="t.ts", windows=["90 days"]))
    LEFT JOIN LATERAL (
      SELECT
        count(*) AS n_90d,
        date_diff('day', max(past.date), t.ts) AS days_since
      FROM results past
      WHERE past.driver_id = t.driver_id AND past.date < t.ts AND past.date >= t.ts - INTERVAL 90 DAY
    ) results_history ON true
    """
    keys = {key: key} if isinstance(key, str) else dict(key) if isinstance(key, Mapping) else {k: k for k in key}
    numbers, texts = ((given,) if isinstance(given, str) else tuple(given) for given in (columns, categories))
    if not (keys and all(isinstance(name, str) and name for name in (table, time, *keys, *numbers, *texts))):
        raise JobError("a history names its table, one key or more, its time and its columns, each as text")
    asked = _History(table, keys, time, _parse_moment(at), numbers, texts, _sort_windows(windows))
    return asked.join(name or f"{table}_history")


class _History(msgspec.Struct, frozen=True):
    """One table's rows before a moment of another."""

    table: str
    keys: Mapping[str, str]  # its column → the other table's
    time: str
    moment: exp.Column
    numbers: tuple[str, ...]
    categories: tuple[str, ...]
    windows: tuple[tuple[str, str], ...]  # the end of a feature's name, and how far back; the longest first

    @property
    def features(self) -> dict[str, str]:
        """Their names and definitions."""
        found: dict[str, str] = {}
        at, time = self.moment.sql("duckdb"), _past(self.time)
        for number, (end, back) in enumerate(self.windows):
            within = f" FILTER (WHERE {time} >= {at} - {back})" if number else ""
            found[f"n{end}"] = f"count(*){within}"
            for name in self.numbers:
                column = _past(name)
                found |= {
                    f"{name}_n{end}": f"count({column}){within}",
                    f"{name}_mean{end}": f"avg({column}){within}",
                    f"{name}_min{end}": f"min({column}){within}",
                    f"{name}_max{end}": f"max({column}){within}",
                    f"{name}_spread{end}": f"stddev({column}){within}",
                    f"{name}_trend{end}": f"regr_slope({column}, date_diff('day', {at}, {time})){within}",
                }
            for name in self.categories:
                found[f"{name}_distinct{end}"] = f"count(DISTINCT {_past(name)}){within}"
                found[f"{name}_mode{end}"] = f"mode({_past(name)}){within}"
        found["days_since"] = f"date_diff('day', max({time}), {at})"
        return found | {f"{name}_last": f"arg_max({_past(name)}, {time})" for name in self.numbers}

    def join(self, name: str, is_kept: Callable[[str], bool] = lambda feature: True) -> str:
        """LEFT JOIN LATERAL (…) name ON true."""
        at, back = self.moment.sql("duckdb"), self.windows[0][1]
        other = exp.Identifier.sql(self.moment.args["table"], "duckdb")
        conditions = [f"{_past(own)} = {other}.{_quote(theirs)}" for own, theirs in self.keys.items()]
        conditions += [f"{_past(self.time)} < {at}", *([f"{_past(self.time)} >= {at} - {back}"] if back else [])]
        items = [f"{value} AS {_quote(feature)}" for feature, value in self.features.items() if is_kept(feature)]
        return (
            "LEFT JOIN LATERAL (\n  SELECT\n    " + ",\n    ".join(items) + f"\n  FROM {_quote(self.table)} past\n"
            f"  WHERE {' AND '.join(conditions)}\n) {_quote(name)} ON true"
        )


def _quote(name: str) -> str:
    return exp.to_identifier(name, quoted=re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) is None).sql("duckdb")


def _past(column: str) -> str:
    return f"past.{_quote(column)}"


def _parse_moment(at: str) -> exp.Column:
    try:
        found = parse_one(at, dialect="duckdb")
    except (SqlglotError, TypeError):
        found = None
    if not isinstance(found, exp.Column) or not found.table:
        raise JobError(f'at must be a column of the query\'s table with its alias, as in "t.ts", and not {at!r}')
    return found


def _parse_window(window: Any) -> str:
    """How far back, as an interval of SQL."""
    parts = _WINDOW.fullmatch(window) if isinstance(window, str) else None
    if parts is None:
        raise JobError(f'a span of time is written as "90 days", "4 weeks" or "1 year", not {window!r}')
    return f"INTERVAL {parts[1]} {parts[2].upper()}"


def _sort_windows(windows: str | Windows) -> tuple[tuple[str, str], ...]:
    """The longest first; the end of a feature's name is "" for all rows, and "_90d" for 90 days."""
    found: dict[str, tuple[float, str]] = {}
    for window in (windows,) if isinstance(windows, str) else windows:
        if window is None:
            found[""] = (float("inf"), "")
            continue
        interval = _parse_window(window)
        _, number, unit = interval.lower().split()
        letters, days = _UNITS[unit]
        found[f"_{number}{letters}"] = (int(number) * days, interval)
    if not found:
        raise JobError('windows must name at least one, as in windows=["90 days", None]')
    return tuple((end, back) for end, (_, back) in sorted(found.items(), key=lambda item: -item[1][0]))


class Suggestion(msgspec.Struct, frozen=True):
    """Histories that a federation has for a query."""

    query: str
    histories: Mapping[str, _History]  # by the names that they get

    def text(self, importance: Mapping[str, float] | None = None) -> str:
        """The query with them; where the importance of its features is known, with those that earned their place."""

        def is_kept(name: str, feature: str) -> bool:
            return importance is None or importance.get(f"{name}.{feature}", 0.0) > 0

        items, joins = [], []
        for name, history in self.histories.items():
            kept = [feature for feature in history.features if is_kept(name, feature)]
            items += [f"{_quote(name)}.{_quote(feature)}" for feature in kept]
            joins += [history.join(name, set(kept).__contains__)] if kept else []
        before, after = _places(self.query)
        listed = "".join(f",\n  {item}" for item in items)
        text = self.query.rstrip().rstrip(";")
        parts = (text[:before].rstrip() + listed, text[before:after].rstrip(), *joins, text[after:].strip())
        return "\n".join(part for part in parts if part)


def _places(query: str) -> tuple[int, int]:
    """Where a query's FROM begins, and where its joins end."""
    depth, start = 0, None
    for token in tokenize(query, dialect="duckdb"):
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        if depth == 0 and token.token_type is TokenType.FROM and start is None:
            start = token.start
        elif depth == 0 and start is not None and token.token_type in _AFTER_FROM:
            return start, token.start
    assert start is not None, "a SELECT without FROM has no table of a label"
    return start, len(query)


class Wanted(NamedTuple):
    """Which histories are asked for."""

    at: str | None  # the moment; None: the only time of the label's table
    tables: Collection[str] | None  # of these, also of the label's own; None: of all others
    windows: Windows


def suggest(query: str, label: str, schemas: Schemas, asked: Wanted) -> Suggestion:
    """Histories of every table that has times, and a key of the label's table."""
    at, tables, windows = asked
    tree = syntax_tree(query)
    if not isinstance(tree, exp.Select):
        raise JobError("histories are suggested for one SELECT; write those of a UNION ALL by tp.history")
    named = {name.lower(): name for name in schemas}
    for table in tables or ():
        if table.lower() not in named:
            raise JobError(f"the federation has no table {table!r}. {did_you_mean(table, list(schemas))}")
    base = _find_label_table(tree, label, schemas, at)
    own = schemas[named[base.name.lower()]]
    moment = _find_moment(base, own, at)
    joined = _joined_columns(tree, base.alias_or_name)
    joined_too = {node.name.lower() for node in relations_of(tree)}
    wanted = set(named) - joined_too if tables is None else {t.lower() for t in tables}
    taken = {node.alias_or_name.lower() for node in tree.find_all(exp.Table, exp.Subquery)}
    found: dict[str, _History] = {}
    for table in sorted(wanted):
        columns = schemas[named[table]]
        if not any(column.kind in _TIMES and column.may_be_feature for column in columns):
            continue
        for key in _shared_keys(columns, own, joined):
            if tables is None and _has_one_row(table, key):
                continue
            name = f"{table}_by_{key}".lower()
            while name in taken:
                name += "_"
            taken.add(name)
            found[name] = _history_of(named[table], columns, key, moment, windows)
    if not found:
        raise JobError(
            f"no table has a time and a key that {base.name} has too; write the history by tp.history(table, key=…, "
            "time=…, at=…)"
        )
    return Suggestion(query, found)


def _find_label_table(tree: exp.Select, label: str, schemas: Schemas, at: str | None) -> exp.Table:
    """The table of the FROM clause whose rows carry the label, or that `at` names."""
    item = next((item for item in tree.expressions if item.alias_or_name.lower() == label.lower()), None)
    alias = _parse_moment(at).table if at is not None else ""
    if not alias and item is not None:
        alias = next((c.table for c in item.find_all(exp.Column) if c.table), "")
    known = {name.lower(): {c.name.lower() for c in columns} for name, columns in schemas.items()}
    for node in relations_of(tree):
        if isinstance(node, exp.Table) and node.name.lower() in known:
            holds = label.lower() in known[node.name.lower()]
            if node.alias_or_name.lower() == alias.lower() or (not alias and holds):
                return node
    found = f"the table of the label {label!r} is no table of the FROM clause" if label else "no label is named"
    raise JobError(f'{found}; give label="returned", a column of the SELECT list, or at=, its moment, as in t.ts')


def _find_moment(
    base: exp.Table, columns: Sequence[Column], at: str | None, kinds: Sequence[str] = _TIMES
) -> exp.Column:
    """The column that `at` names, of one of these kinds, or the only time of a table."""
    if at is not None:
        moment, names = _parse_moment(at), [column.name for column in columns]
        if moment.name.lower() not in map(str.lower, names):
            raise JobError(f"{base.name} has no column {moment.name}. {did_you_mean(moment.name, names)}")
        kind = next(column.kind for column in columns if column.name.lower() == moment.name.lower())
        if kind not in kinds:
            times = [column.name for column in columns if column.kind in kinds]
            raise JobError(f"{at} is {kind}, and no moment; {did_you_mean(moment.name, times)}")
        return moment
    times = [column.name for column in columns if column.kind in _TIMES]
    if len(times) != 1:
        found = f"has {' and '.join(times)}" if times else "has no date or time"
        at = f"{base.alias_or_name}.ts"
        raise JobError(f'the moments of {base.name}: it {found}; name a column: at="{at}" or, to split, split="{at}"')
    return exp.column(_quote(times[0]), base.alias_or_name)


def _joined_columns(tree: exp.Select, alias: str) -> set[str]:
    """The columns of a table that the query joins it by, in lower case."""
    joins = tree.args.get("joins") or ()
    using = {i.name.lower() for join in joins for i in join.args.get("using") or ()}
    ons = [join.args["on"] for join in joins if join.args.get("on") is not None]
    equal = [c for on in ons for e in on.find_all(exp.EQ) for c in e.find_all(exp.Column)]
    return using | {c.name.lower() for c in equal if c.table.lower() == alias.lower()}


def _shared_keys(columns: Sequence[Column], own: Sequence[Column], joined: set[str]) -> list[str]:
    """Columns that the label's table has too, and that are named like keys or joined by."""
    kinds = {column.name.lower(): column.kind for column in own}
    named = [c for c in columns if c.name.lower() in joined or _IDENTIFIER.fullmatch(c.name) is not None]
    keys = [c for c in named if c.kind in ("integer", "string", "uuid")]
    return [c.name for c in keys if kinds.get(c.name.lower()) == c.kind]


def _has_one_row(table: str, key: str) -> bool:
    """Whether a table is named after a key, as drivers after driver_id: its rows have no history, and name their keys.

    >>> _has_one_row("drivers", "driverId"), _has_one_row("results", "driverId")
    (True, False)
    """
    stem, name = (re.sub(r"[^a-z]", "", text.lower()) for text in (re.sub(_KEY_END, "", key), table))
    return stem != "" and name in (stem, f"{stem}s", f"{stem}es", f"{stem[:-1]}ies")


def _history_of(table: str, columns: Sequence[Column], key: str, moment: exp.Column, windows: Windows) -> _History:
    times = [column.name for column in columns if column.kind in _TIMES and column.may_be_feature]
    time = next((t for t in times if t.lower() == moment.name.lower()), times[0])
    usable = [c for c in columns if c.may_be_feature and c.name != key and _IDENTIFIER.fullmatch(c.name) is None]
    numbers = tuple(c.name for c in usable if c.kind in _NUMBERS)
    categories = tuple(c.name for c in usable if c.kind in ("string", "boolean"))
    return _History(table, {key: key}, time, moment, numbers, categories, _sort_windows(windows))


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
    base = _find_label_table(tree, label, schemas, at)
    named = next(name for name in schemas if name.lower() == base.name.lower())
    if len(owners[named]) > 1:
        raise JobError(
            f"split by time orders all rows of {named}, and several owners hold them; use test_where with a time of "
            "your own"
        )
    moment = _find_moment(base, schemas[named], at, (*_TIMES, *_NUMBERS, "string"))
    alias = base.alias_or_name
    inside = _take_conditions(tree, alias)
    named_too = [moment.name, *(value for value in kept.values() if isinstance(value, str))]
    begins = exp.to_identifier(BEGINS, quoted=True)
    quantile = exp.Anonymous(this="quantile_disc", expressions=[moment.copy(), exp.Literal.number(repr(1 - share))])
    read = _read_columns(tree, named_too, schemas[named])
    items = [exp.column(exp.to_identifier(name, quoted=True), alias) for name in read]
    derived = exp.select(*items, exp.alias_(exp.Window(this=quantile), begins)).from_(base.copy())
    derived = derived.where(*inside, copy=False) if inside else derived
    if gap is not None:
        start = exp.column(begins.copy(), alias)
        before = exp.Sub(this=start.copy(), expression=exp.maybe_parse(_parse_window(gap), dialect="duckdb"))
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
