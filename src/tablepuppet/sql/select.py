"""read_select: one SELECT of the syntax tree → Conjunctive, or a refusal with a replacement.

read_from: its FROM clause → one Source for each table, in the order of the text.
"""

from typing import Final

from msgspec.structs import replace
from sqlglot import Token, TokenType, exp

from tablepuppet.errors import QueryError
from tablepuppet.sources.syntax import conditions_of, conjuncts_of
from tablepuppet.sql import ucq
from tablepuppet.sql.grammar import SAMPLE, At, check_clauses, check_nodes, refusal, start_of, word_before, words
from tablepuppet.sql.joins import join_tree
from tablepuppet.sql.ucq import Conjunctive, Item, Scope, Source, Star

_NESTED = (
    "a LEFT JOIN around or inside parentheses is not supported; write joins one after the other, each with its own ON"
)
_READ_OF_JOIN = frozenset({"this", "on", "using", "side", "kind"})
_KINDS: Final = {
    "RIGHT": (
        "RIGHT JOIN is read between the first two tables of FROM only, with the columns listed; begin FROM with the "
        "table whose rows are all kept, and write LEFT JOIN for the others"
    ),
    "FULL": (
        "FULL JOIN is not supported, because rows without a label cannot be trained on. Begin FROM with the table that "
        "holds the label and write LEFT JOIN"
    ),
    "SEMI": "this SEMI JOIN cannot be read; write WHERE EXISTS (SELECT 1 FROM b WHERE b.key = a.key)",
    "ANTI": "this ANTI JOIN cannot be read; write WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.key = a.key)",
    "NATURAL": "NATURAL JOIN is not supported, because owners may add columns; name the keys: JOIN … USING (key)",
    "ASOF": (
        "ASOF JOIN is not supported, because tables can only be joined on equal keys. Write JOIN … ON with =, as in "
        "date_trunc('month', a.day) = date_trunc('month', b.day), or join each key's last row: JOIN (SELECT * FROM b "
        "QUALIFY row_number() OVER (PARTITION BY key ORDER BY day DESC) = 1) b ON b.key = a.key"
    ),
    "POSITIONAL": "POSITIONAL JOIN is not supported, because rows have no order; join on a key",
}
_JOIN_WORDS = frozenset({*(kind.lower() for kind in _KINDS), "left", "outer", "inner", "cross", "join", "lateral"})


def read_from(text: str, select: exp.Select) -> list[Source]:
    """The tables, and how each is joined to those before it."""
    first, inner = _open_parentheses(select.args["from_"].this)
    joins = [*inner, *(select.args.get("joins") or ())]
    found = [Source(*_table(text, first))]
    tree = 0
    for join in joins:
        before = _join_words(text, start_of(join.this))
        at: At = before[0].start if before else join
        has_star = any(isinstance(item, exp.Star) for item in select.expressions)  # columns in the order of FROM
        if join.side == "RIGHT" and len(found) == 1 and not has_star:
            join.set("side", "LEFT")
            _check_kind(text, join, at)
            kept = _source(text, join, tree)
            found = [
                replace(kept, join="inner", on=(), using=()),
                replace(found[0], join="left", on=kept.on, using=kept.using),
            ]
            continue
        _check_kind(text, join, at)
        if before and before[-1].token_type == TokenType.COMMA:
            tree += 1
        found += _inside(text, join, tree) or [_source(text, join, tree)]
    return found


def _open_parentheses(node: exp.Expr) -> tuple[exp.Expr, list[exp.Join]]:
    """The first table of (b JOIN c ON …), and the joins that follow it there; anything else as it is."""
    table = node.this if isinstance(node, exp.Subquery) and not node.alias else node
    inner = table.args.get("joins") if isinstance(table, exp.Table | exp.Subquery) else None
    if not inner:
        return node, []
    bare = table.copy()
    bare.set("joins", None)
    return bare, list(inner)


def _inside(text: str, join: exp.Join, tree: int) -> list[Source]:
    """The tables of JOIN (b JOIN c ON …) ON …, whose last condition holds once all of them are there."""
    table, inner = _open_parentheses(join.this)
    if not inner or any(j.side or j.args.get("using") for j in (join, *inner)):
        return []
    found = [Source(*_table(text, table), tree=tree)]
    for each in inner:
        _check_kind(text, each, each)
        found.append(_source(text, each, tree))
    outer = _source(text, exp.Join(this=table, on=join.args.get("on")), tree)
    return [*found[:-1], replace(found[-1], on=(*found[-1].on, *outer.on))]


def _source(text: str, join: exp.Join, tree: int) -> Source:
    on = tuple(conjuncts_of(join.args.get("on")))
    for condition in on:
        check_nodes(text, condition)
    using = tuple(_using(text, node) for node in join.args.get("using") or ())
    table, alias, derived = _table(text, join.this)
    return Source(table, alias, derived, "left" if join.side == "LEFT" else "inner", on, using, tree)


def _using(text: str, node: exp.Expr) -> exp.Identifier:
    """A column name of USING."""
    name = node.this if isinstance(node, exp.Column) and not node.args.get("table") else node
    if isinstance(name, exp.Identifier):
        return name
    raise refusal(text, "USING takes bare column names, as in USING (id); for anything else write ON", node)


def _check_kind(text: str, join: exp.Join, at: At) -> None:
    """Only INNER, LEFT [OUTER] and CROSS JOIN, and the comma."""
    for word in (join.method, join.side, join.kind):
        if word in _KINDS:
            raise refusal(text, _KINDS[word], at)
    plain = join.kind in ("", "INNER", "OUTER", "CROSS") and join.side in ("", "LEFT")
    if not plain or any(value for key, value in join.args.items() if key not in _READ_OF_JOIN):
        raise refusal(text, "this kind of join is not supported; write JOIN or LEFT JOIN with ON or USING", at)


def _join_words(text: str, table_start: int | None) -> list[Token]:
    """The words just before a table that join it: LEFT OUTER JOIN, or a comma."""
    found: list[Token] = []
    for word in reversed([w for w in words(text) if table_start is not None and w.start < table_start]):
        if word.token_type == TokenType.COMMA and not found:
            return [word]
        if word.text.lower() in _JOIN_WORDS:
            found.insert(0, word)
        elif word.token_type != TokenType.L_PAREN:
            break
    return found


def _table(text: str, node: exp.Expr) -> tuple[exp.Identifier, exp.Identifier, exp.Query | None]:
    """A table's name, its alias, and the query that stands for it, if it is one."""
    if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Query):
        return _subquery(text, node)
    if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
        raise _not_a_table(text, node)
    if node.args.get("db") is not None:
        raise refusal(
            text,
            "a table has one name, as the federation calls it, without a schema or a database before it. "
            "Give those in the federation's source, not in the query",
            node,
        )
    extra = next((key for key, value in node.args.items() if value and key not in ("this", "alias")), None)
    if extra == "joins":
        raise refusal(text, _NESTED, node)
    if extra == "sample":
        raise refusal(text, SAMPLE, node)
    if extra is not None:
        raise refusal(text, "only an alias may follow the name of a table in FROM; remove the rest", node)
    alias = node.args.get("alias")
    if alias is None:
        return node.this, node.this, None
    if alias.args.get("columns") or not isinstance(alias.this, exp.Identifier):
        raise refusal(text, "an alias cannot rename columns; rename them with AS in the SELECT list", alias)
    return node.this, alias.this, None


def _subquery(text: str, node: exp.Subquery) -> tuple[exp.Identifier, exp.Identifier, exp.Query]:
    alias = node.args.get("alias")
    at = word_before(text, node, TokenType.SELECT)
    if alias is None or not isinstance(alias.this, exp.Identifier):
        raise refusal(text, "a subquery in FROM needs a name; write (SELECT …) AS t", at)
    if alias.args.get("columns"):
        raise refusal(text, "an alias cannot rename columns; rename them with AS inside the subquery", alias)
    if node.args.get("sample"):
        raise refusal(text, SAMPLE, at)
    query = ucq.derive(text, node.this)
    return ucq.base_tables(query)[0].this, alias.this, query


def _not_a_table(text: str, node: exp.Expr) -> QueryError:
    at: At = node
    if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table):
        message = _NESTED
    elif isinstance(node, exp.Lateral):
        message = (
            "LATERAL is not supported; join a subquery that has a row for each key: "
            "LEFT JOIN (SELECT key, sum(x) AS x FROM b GROUP BY key) b ON b.key = a.key, or, for the last row of each, "
            "JOIN (SELECT * FROM b QUALIFY row_number() OVER (PARTITION BY key ORDER BY day DESC) = 1) b ON b.key = "
            "a.key"
        )
        at = word_before(text, node, TokenType.LATERAL)
    elif node.find(exp.Pivot):
        message = (
            "PIVOT is not supported; write a subquery with an aggregate for each value: "
            "(SELECT key, avg(x) FILTER (WHERE kind = 'a') AS a FROM t GROUP BY key) t"
        )
    elif isinstance(node, exp.Values) or node.find(exp.Values):
        message = (
            "a list of VALUES lies with no owner; write it as an item of the table that it would be joined to, "
            "CASE t.x WHEN 1 THEN 'low' WHEN 2 THEN 'high' END AS level, with WHERE t.x IN (1, 2) where only listed "
            "rows are to stay; or add it to the federation as a table"
        )
    else:
        message = "FROM takes names of the federation's tables; give a file or a function to the federation as a source"
    return refusal(text, message, at)


def read_select(text: str, select: exp.Select, *, is_branch: bool = False) -> Conjunctive:
    """A SELECT as a conjunctive query; all that can be checked without a schema is checked.

    `is_branch`: of a UNION ALL, in which a constant may mark a row's branch.
    """
    check_clauses(text, select, frozenset({"expressions", "from_", "joins", "where"}))
    if select.args.get("from_") is None:
        raise refusal(text, "this SELECT has no FROM clause; name the tables that hold the columns", select)
    if not select.expressions:
        raise refusal(text, "the SELECT list is empty; name the feature columns and the label", select)
    select = _without_semi_joins(select)
    items = [_item(node, text) for node in select.expressions]
    sources = tuple(read_from(text, select))
    kept = []
    for conjunct in conditions_of(select):
        if ucq.has_subquery(conjunct):
            sources = ucq.add_condition(text, sources, conjunct)
        else:
            check_nodes(text, conjunct)
            kept.append(conjunct)
    for k, item in enumerate(items):
        if isinstance(item, Item):
            if ucq.has_subquery(item.expression):
                sources, items[k] = ucq.add_item(text, sources, item, k + 1)
            else:
                check_nodes(text, item.expression)
    query = Conjunctive(tuple(items), sources, tuple(kept))
    _check_tables(text, query, is_branch)
    return query


def _without_semi_joins(select: exp.Select) -> exp.Select:
    """a SEMI JOIN b ON … as WHERE EXISTS (SELECT 1 FROM b WHERE …), and ANTI JOIN as NOT EXISTS."""
    joins: list[exp.Join] = select.args.get("joins") or []
    tests = [
        join for join in joins if join.kind in ("SEMI", "ANTI") and (join.args.get("on") or join.args.get("using"))
    ]
    if not tests or (any(join.args.get("using") for join in tests) and joins[0] is not tests[0]):
        return select
    changed = select.copy()
    changed.set("joins", [join.copy() for join in joins if join not in tests])
    for join in tests:
        first, own = (exp.to_identifier(node.alias_or_name) for node in (select.args["from_"].this, join.this))
        names = (node.this if isinstance(node, exp.Column) else node for node in join.args.get("using") or ())
        equal = (exp.column(name, first).eq(exp.column(name, own)) for name in names)
        on = [join.args["on"].copy()] if join.args.get("on") else []
        test: exp.Expr = exp.Exists(this=exp.select("1").from_(join.this.copy()).where(*on, *equal))
        changed = changed.where(exp.Not(this=test) if join.kind == "ANTI" else test)
    return changed


def one_table(scope: Scope, expression: exp.Expr, *, is_branch: bool = False) -> int:
    """The table that a SELECT item is over; there must be exactly one. A constant of a UNION ALL is the first's."""
    relations = scope.relations(expression)
    if not relations and is_branch:
        return 0
    if not relations:
        raise scope.refuse(
            "this item names no column. A constant tells no row from another, as feature, label or condition: remove "
            "it, or name a column",
            expression,
        )
    if len(relations) > 1:
        columns = ", ".join(dict.fromkeys(f"{c.table}.{c.name}" for c in expression.find_all(exp.Column)))
        raise scope.refuse(
            f"this item mixes columns of {scope.names(relations)}, and no row of one table goes to the owner of "
            f"another. Select the columns as items of their own ({columns}): a model weighs and adds them "
            "up, which makes every sum and difference, the time between two dates among them. A product or a ratio is "
            'not a sum: boosted trees (model="boosted") and heads (head="factor", head="mlp") learn such things '
            "from the columns themselves, and with items ln(x) and ln(y) a model can learn its logarithm. An owner "
            "of both tables computes it in a subquery: JOIN (SELECT a.key, a.x / b.y AS z FROM a JOIN b ON …) t ON …",
            expression,
        )
    return relations[0]


def _item(node: exp.Expr, text: str) -> Item | Star:
    star = node.this if isinstance(node, exp.Column) else node
    if isinstance(star, exp.Star):
        excluded = star.args.get("except_") or ()
        if any(value for key, value in star.args.items() if key != "except_"):
            raise refusal(text, "REPLACE and RENAME are not supported after *; list the columns", node)
        return Star(node.args.get("table"), node, tuple(c.this if isinstance(c, exp.Column) else c for c in excluded))
    return Item(node.unalias().unnest(), node.args["alias"] if isinstance(node, exp.Alias) else None)


def _check_tables(text: str, query: Conjunctive, is_branch: bool) -> None:
    """Checks ownership as far as the text alone allows: only for columns that name their table."""
    scope = Scope(text, query.sources)
    for item in query.items:
        if isinstance(item, Star):
            if item.alias is not None:
                scope.relation(item.alias)
        elif ucq.is_resolved(item.expression):
            one_table(scope, item.expression, is_branch=is_branch)
    conditions = [*(c for source in query.sources for c in source.on), *query.where]
    if all(map(ucq.is_resolved, conditions)) and not any(source.using for source in query.sources):
        join_tree(scope, query.sources, query.where)
