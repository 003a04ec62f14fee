"""join_owners: subqueries that read several owners' tables → joins of the main query that mean the same.

In: a Ucq and who holds which table. Out: the same query, in which every subquery reads one owner's tables, or a refusal
that says how to rewrite it. Two rewritings, each exact:

    FROM (SELECT a.x, b.y AS z FROM a JOIN b ON … WHERE …) t …    →    FROM a JOIN b ON … …      t.x is a.x, t.z is b.y
    … WHERE a.k IN (SELECT k FROM b WHERE …)                      →    … JOIN (SELECT DISTINCT k FROM b WHERE …) s
    … WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND …)              ON s.k = a.k

NOT IN and NOT EXISTS become an anti-join on the same keys. IN and EXISTS become a semi-join where several clients hold
the keys. Groups, windows and the like over several owners' rows cannot be rewritten.
"""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace
from sqlglot import exp

from tablepuppet.errors import QueryError
from tablepuppet.sources.syntax import conditions_of, unused_name, without
from tablepuppet.sql import ucq as ucqs
from tablepuppet.sql.groups import find_constant_exists
from tablepuppet.sql.inlining import inline_source, inner_join, map_expressions
from tablepuppet.sql.parsing import parse, syntax_tree, unqualified_columns
from tablepuppet.sql.schemas import ask_schemas, find_table
from tablepuppet.sql.ucq import Conjunctive, JoinKind, Source, Star, Tables, Ucq, base_tables, matches
from tablepuppet.transport.link import Link


def read_query(text: str, tables: Tables, link: Link) -> Ucq:
    """Reads a text as joins of owners' tables; failing that, as a query that one owner runs as a whole.

    It takes one round, only where columns of a subquery do not name their table.
    """
    try:
        return parse(text, _columns(text, tables, link), tables)
    except QueryError:
        whole = at_one_owner(text, tables)
        if whole is None:
            raise
        return whole


def _columns(text: str, tables: Tables, link: Link) -> dict[str, list[str]] | None:
    """The columns of the tables that a text names; None where it needs none."""
    try:
        tree = syntax_tree(text)
    except QueryError:
        return None
    if not unqualified_columns(tree):
        return None
    known = list(tables)
    named = [matches(base.this, known) for base in base_tables(tree)]
    asked = dict.fromkeys(known[found[0]] for found in named if len(found) == 1 and tables[known[found[0]]])
    described = ask_schemas(list(asked), tables, link) if asked else {}
    return {table.lower(): [c.name for c in schema.columns] for table, schema in described.items()} or None


def at_one_owner(text: str, tables: Tables) -> Ucq | None:
    """SELECT * FROM (text), where one client has all tables that the text reads: groups, windows, LIMIT and all."""
    try:
        query = syntax_tree(text)
        derived = ucqs.derive(text, query)
    except QueryError:
        return None
    known = {name.lower(): clients for name, clients in tables.items()}
    held = {known.get(base.name.lower(), ()) for base in base_tables(derived)}
    if len(held) != 1 or len(held.pop()) != 1:
        return None
    star = Star(None, exp.Star())
    source = Source(base_tables(derived)[0].this, exp.to_identifier("query"), derived)
    return Ucq(text, (Conjunctive((star,), (source,), ()),))


def join_owners(ucq: Ucq, tables: Tables) -> Ucq:
    """The query with every subquery at one owner, as far as joins can express it."""
    return replace(ucq, branches=tuple(_Branch(ucq, tables).rewrite(branch) for branch in ucq.branches))


class _Branch(msgspec.Struct, frozen=True):
    ucq: Ucq
    tables: Tables

    def rewrite(self, branch: Conjunctive) -> Conjunctive:
        """One rewriting after the other, until no subquery spans owners or nothing can be done about it."""
        only = branch.sources[0].derived if len(branch.sources) == 1 else None
        if only is not None and self._spans(only):
            branch = _of_one(branch)
        while True:
            for at, source in enumerate(branch.sources):
                if source.derived is not None and self._spans(source.derived):
                    changed = self._with_keys(branch, at) or self._inline_join(branch, at)
                    if changed is not None:
                        branch = changed
                        break
                    self._check_items(source, unused_name("t", [s.alias.name for s in branch.sources], ""))
            else:
                return branch

    def _spans(self, query: exp.Expr) -> bool:
        return len({self._owners(base) for base in base_tables(query)}) > 1

    def _owners(self, table: exp.Table) -> tuple[str, ...]:
        return self.tables[find_table(self.ucq, table.this, self.tables)]

    def _abroad(self, node: exp.Expr, own: tuple[str, ...]) -> list[exp.Table]:
        """The tables of other owners that an expression looks rows up in."""
        return [base for base in base_tables(node) if self._owners(base) != own]

    def _with_keys(self, branch: Conjunctive, at: int) -> Conjunctive | None:
        """A table read under conditions on other owners' keys, joined to those keys instead."""
        table, conditions = _read_under(branch.sources[at])
        own = self._owners(exp.Table(this=table.table))
        abroad = [condition for condition in conditions if self._abroad(condition, own)]
        if not abroad:
            return None
        kept = [table]
        for condition in conditions:
            if condition not in abroad:
                kept = [*ucqs.add_condition(self.ucq.text, kept, condition)]
        sources = [*branch.sources[:at], *kept, *branch.sources[at + 1 :]]
        where = list(branch.where)
        for condition in abroad:
            kind, test = _test(condition)
            found = self._keys(test)
            if found is None or (kind == "not in" and len(found[0]) > 1):
                raise self._refusal(table, condition, self._abroad(condition, own)[0])
            outer, keys = found
            derived = ucqs.derive(self.ucq.text, keys)
            if any(len(self._owners(base)) > 1 for base in base_tables(derived)):
                kind = "semi" if kind == "inner" else kind
                derived.set("distinct", None)  # a key that two clients have keeps, or leaves out, the same rows
            taken = [source.alias.name for source in sources]
            name = exp.Identifier(this=unused_name(f"keys of {base_tables(derived)[0].name}", taken, " "), quoted=True)
            tree = max(source.tree for source in sources) + 1
            columns = [exp.column(exp.to_identifier(key, quoted=True), name) for key in keys.named_selects]
            equal = [exp.EQ(this=v.copy(), expression=key) for v, key in zip(outer, columns, strict=True)]
            on = () if kind == "inner" else tuple(equal)
            where += equal if kind == "inner" else ()
            sources.append(Source(base_tables(derived)[0].this, name, derived, join=kind, on=on, tree=tree))
        return replace(branch, sources=tuple(sources), where=tuple(where))

    def _keys(self, test: exp.Expr) -> tuple[list[exp.Expr], exp.Select] | None:
        """The expressions that IN or EXISTS looks up, and the query for the keys to find them among; None: no keys."""
        if isinstance(test, exp.In) and isinstance(test.args.get("query"), exp.Expr):
            query = test.args["query"].unnest()
            subject = test.this.unnest()
            outer = list(subject.expressions) if isinstance(subject, exp.Tuple) else [subject]
            is_plain = isinstance(query, exp.Select | exp.SetOperation) and not _outer_columns(query)
            if is_plain and len(query.named_selects) == len(outer):
                rows = query.copy()
                _name_items(rows)
                keys = [exp.column(exp.to_identifier(name, quoted=True), "q") for name in rows.named_selects]
                return outer, exp.select(*keys).distinct().from_(rows.subquery("q"))
        elif isinstance(test, exp.Exists) and isinstance(test.this, exp.Select):
            if constant := find_constant_exists(test.this):
                raise self.ucq.refuse(constant, base_tables(test.this)[0])
            return _split_exists(test.this)
        return None

    def _refusal(self, table: Source, condition: exp.Expr, inner: exp.Table) -> QueryError:
        written = inner.this.sql("duckdb")
        begin = f"this condition on {table.alias.name} looks rows up in {inner.name}, which lies with another owner"
        name = unused_name("t", [table.alias.name], "")
        keys = f"JOIN (SELECT DISTINCT key FROM {written} WHERE …) {name} ON {name}.key = {table.alias.name}.key"
        if isinstance(condition, exp.Not):
            return self.ucq.refuse(
                f"{begin}, and rows without a match are found by equal keys only: WHERE NOT EXISTS (SELECT 1 FROM "
                f"{written} {name} WHERE {name}.key = {table.alias.name}.key AND …), every other condition there about "
                f"{name} alone",
                inner,
            )
        return self.ucq.refuse(f"{begin}. Join its keys instead: {keys}", inner)

    def _check_items(self, source: Source, name: str) -> None:
        """Refuses an item that looks up another owner's rows, and suggests the equivalent join, called `name`."""
        own = self._owners(exp.Table(this=source.table))
        assert source.derived is not None
        for item in source.derived.selects:
            for test in item.find_all(exp.Exists, exp.In):
                self._check_test(test, own, name)
            scalar = item.find(exp.Subquery)
            abroad = [] if scalar is None else self._abroad(scalar, own)
            if abroad and isinstance(scalar, exp.Subquery):
                raise self.ucq.refuse(
                    f"this item looks rows up in {abroad[0].name}, which lies with another owner. "
                    f"Join them instead: LEFT JOIN (SELECT key, avg(x) AS x FROM … GROUP BY key) {name} ON "
                    f"{name}.key = …, and select {name}.x",
                    abroad[0],
                )

    def _check_test(self, test: exp.Expr, own: tuple[str, ...], name: str) -> None:
        """Whether a row has a match with another owner is joined as 1 or NULL."""
        inner = test.this if isinstance(test, exp.Exists) else test.args.get("query")
        abroad = [] if inner is None else self._abroad(inner, own)
        if inner is None or not abroad:
            return
        if self._spans(inner):
            raise self.ucq.refuse(
                f"this item looks rows up in tables of several owners ({', '.join(b.name for b in abroad)}). Join "
                "them one after the other in the main query, and let the last say that it is there: LEFT JOIN b ON "
                f"b.key = … LEFT JOIN (SELECT DISTINCT key, 'yes' AS found FROM c WHERE …) {name} ON {name}.key = "
                f"b.key, and select {name}.found",
                abroad[0],
            )
        found = _split_exists(inner) if isinstance(inner, exp.Select) else None
        if isinstance(test, exp.In) and isinstance(inner, exp.Subquery) and len(inner.this.selects) == 1:
            found = [test.this], inner.this.copy().distinct()
        join = f"LEFT JOIN (SELECT DISTINCT key, 'yes' AS found FROM …) {name} ON {name}.key = …"
        if found is not None:
            join = _as_join(*found, exp.alias_(exp.Literal.string("yes"), "found"), name)
        raise self.ucq.refuse(
            f"this item looks rows up in {abroad[0].name}, which lies with another owner. Join them instead: "
            f"{join}, and select {name}.found, which is missing where there is no match",
            abroad[0],
        )

    def _inline_join(self, branch: Conjunctive, at: int) -> Conjunctive | None:
        """The tables and conditions of a plain join in the place of the subquery that joins them."""
        inner = inner_join(self.ucq.text, branch, at)
        if inner is None:
            return None
        if len(inner.sources) == 1 and inner.sources[0].derived is not None and self._spans(inner.sources[0].derived):
            return None  # a single table under a condition that no join can express
        return inline_source(branch, at, inner)


def _test(condition: exp.Expr) -> tuple[JoinKind, exp.Expr]:
    """How the keys of IN or EXISTS are joined, and that IN or EXISTS: x = ANY (…) is IN, x <> ALL (…) is NOT IN."""
    kind: JoinKind = "inner"
    while isinstance(condition, exp.Not | exp.Paren):
        if isinstance(condition, exp.Not):
            kind = "anti" if kind == "inner" else "inner"
        condition = condition.this
    for compared, word in ((exp.EQ, exp.Any), (exp.NEQ, exp.All)):
        if isinstance(condition, compared) and isinstance(condition.expression, word):
            if word is exp.All:
                kind = "anti" if kind == "inner" else "inner"
            rows = exp.Subquery(this=condition.expression.this.unnest())
            condition = exp.In(this=condition.this.copy(), query=rows)
    return "not in" if kind == "anti" and isinstance(condition, exp.In) else kind, condition


def _of_one(branch: Conjunctive) -> Conjunctive:
    """A query over one source, with every column and * of that source by name."""
    alias = branch.sources[0].alias

    def qualify(expression: exp.Expr) -> exp.Expr:
        for column in expression.find_all(exp.Column):
            if column.args.get("table") is None:
                column.set("table", alias.copy())
        return expression

    found = map_expressions(branch, lambda expression: qualify(expression.copy()))
    items = (replace(i, alias=i.alias or alias.copy()) if isinstance(i, Star) else i for i in found.items)
    return replace(found, items=tuple(items))


def _read_under(source: Source) -> tuple[Source, list[exp.Expr]]:
    """The table below SELECT * FROM table WHERE condition, as sql/ucq.py nests them; and all the conditions."""
    conditions: list[exp.Expr] = []
    while isinstance(source.derived, exp.Select):
        query, given = source.derived, {key for key, value in source.derived.args.items() if value}
        is_star = len(query.expressions) == 1 and type(query.expressions[0]) is exp.Star
        is_narrowing = is_star and "where" in given <= {"kind", "expressions", "from_", "where"}
        if not is_narrowing or query.args["where"].find(exp.Query, exp.Exists) is None:
            break
        below = query.args["from_"].this
        inner = below.this if isinstance(below, exp.Subquery) else None
        table = base_tables(inner)[0].this if inner is not None else below.this
        conditions.insert(0, query.args["where"].this)
        source = replace(source, table=table, derived=inner)
    return source, conditions


def _split_exists(query: exp.Select) -> tuple[list[exp.Expr], exp.Select] | None:
    """The outer sides of an EXISTS's equalities, and the query for its own sides; None if it does more than compare."""
    outer, inner, rest = [], [], []
    for conjunct in conditions_of(query):
        sides = [conjunct.left, conjunct.right] if isinstance(conjunct, exp.EQ) else []
        abroad = [side for side in sides if _outer_columns(query, side)]
        if len(abroad) == 1 and len(_outer_columns(query, abroad[0])) == len(list(abroad[0].find_all(exp.Column))):
            outer.append(abroad[0])
            inner.append(sides[1 - sides.index(abroad[0])])
        elif _outer_columns(query, conjunct):
            return None
        else:
            rest.append(conjunct)
    if not outer or any(query.args.get(clause) for clause in ("group", "having", "offset", "qualify")):
        return None
    limit = query.args.get("limit")
    count = limit.expression if isinstance(limit, exp.Limit) else None
    if limit is not None and not (isinstance(count, exp.Literal) and count.name.isdigit() and int(count.name) > 0):
        return None
    kept = without(query.copy(), "limit", "order", "distinct")
    kept.set("expressions", [side.copy() for side in inner])
    kept.set("where", exp.Where(this=exp.and_(*(r.copy() for r in rest))) if rest else None)
    _name_items(kept)
    return outer, kept.distinct()


def _as_join(outer: Sequence[exp.Expr], rows: exp.Select, value: exp.Expr, name: str) -> str:
    """The LEFT JOIN of keys, which `outer` is compared with, and of a value, as text."""
    keys = [key.unalias().copy() for key in rows.expressions]
    rows.set("expressions", [*keys, value])
    columns = [key.name if isinstance(key, exp.Column) else "…" for key in keys]
    equal = " AND ".join(f"{name}.{own} = {side.sql('duckdb')}" for own, side in zip(columns, outer, strict=True))
    return f"LEFT JOIN ({rows.sql('duckdb')}) {name} ON {equal}"


def _outer_columns(query: exp.Expr, expression: exp.Expr | None = None) -> list[exp.Column]:
    """The columns that name a table outside of the query."""
    local = [source.alias_or_name for source in query.find_all(exp.Table, exp.Subquery)]
    return [
        column
        for column in (expression or query).find_all(exp.Column)
        if column.args.get("table") is not None and not matches(column.args["table"], local)
    ]


def _name_items(query: exp.Query) -> None:
    """Gives each item a name of its own, in place: the name that it has, which ORDER BY may use, or its text."""
    first: exp.Expr = query
    while isinstance(first, exp.SetOperation | exp.Subquery):
        first = first.this
    items: list[exp.Expr] = []
    for item in first.expressions:
        is_named = isinstance(item, exp.Alias | exp.Column)
        known = [named.alias for named in items]
        name = unused_name(item.alias_or_name if is_named else item.sql("duckdb"), known)
        items.append(exp.alias_(item.unalias().copy(), exp.to_identifier(name, quoted=True)))
    first.set("expressions", items)
