"""Recommend: a model's predictions for one user and every item, the best first.

In: a model over a query whose label's table joins a user's table with an item's (with further tables on either side).
Out: a query in which that user meets every item, and one of the items that the user has met. Both go to `predict`,
under the owners' rules for it; owners are asked for nothing else. Also here: the quality of recommended orders.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from numpy.typing import ArrayLike
from sqlglot import exp

from tablepuppet.errors import JobError
from tablepuppet.prediction.model import Model
from tablepuppet.sources.syntax import conditions_of, conjuncts_of, relations_of

_INSTEAD = "; ask predict with a query of your own, in which the rows are that you want scores of"


Asked = tuple[str, str]  # a query, and the key of the item in it


def candidates(model: Model, user: Any, by: str | None = None) -> tuple[Asked, Asked]:
    """A query in which the user meets every item, and one of those that they have met.

    `by`: the alias of the user's table, by default the first but the label's.
    """
    if len(model.classes) > 2:
        raise JobError(
            f"items are ranked by a number or by a probability, and a label of several classes is neither{_INSTEAD}"
        )
    tree = sqlglot.parse_one(model.query, dialect="duckdb")
    if not isinstance(tree, exp.Select) or tree.args.get("with_") is not None or len(model.label_aliases) != 1:
        raise JobError(f"items are recommended by a model over one SELECT without WITH{_INSTEAD}")
    return _Join(tree, model, by).candidates(user)


class _Join:
    """A model's query around the table that held the label."""

    def __init__(self, tree: exp.Select, model: Model, by: str | None) -> None:
        self._tree, self._model, self._base = tree, model, model.label_aliases[0]
        joins = tree.args.get("joins") or []
        self._tables = {node.alias_or_name: node for node in relations_of(tree)}
        self._left = {j.this.alias_or_name for j in joins if j.side == "LEFT"}
        on = [term for join in joins for term in conjuncts_of(join.args.get("on"))]
        self._terms = [*on, *conditions_of(tree)]
        own = [b for b in model.blocks if b.name == self._base]
        if own:
            raise JobError(
                f"the model has features of {own[0].table}, which held the label: {', '.join(own[0].features)}; a user "
                f"and an item that never met have none{_INSTEAD}"
            )
        others = [alias for alias in self._tables if alias != self._base and self._key(alias) is not None]
        if by is not None and by not in others:
            raise JobError(f"by must be the alias of a table that {self._base} is joined with: {', '.join(others)}")
        if len(others) != 2:
            raise JobError(
                f"a recommendation needs a user's table and an item's, each joined with {self._base} by one column of "
                f"its own, and there are {len(others)} such tables{_INSTEAD}"
            )
        self._user = by or others[0]
        self._item = next(alias for alias in others if alias != self._user)

    def _key(self, alias: str) -> tuple[exp.Column, exp.Column] | None:
        """The column by which a table meets the label's, and that one's; None: there is not just one."""
        pairs = [
            p for p in map(_equality, self._terms) if p is not None and {p[0].table, p[1].table} == {alias, self._base}
        ]
        if len(pairs) != 1:
            return None
        left, right = pairs[0]
        return (left, right) if left.table == alias else (right, left)

    def candidates(self, user: Any) -> tuple[Asked, Asked]:
        keys = {alias: self._key(alias) for alias in (self._user, self._item)}
        (own, met_user), (item, met_item) = (k for k in keys.values() if k is not None)
        value = exp.convert(user.item() if isinstance(user, np.generic) else user)
        query = exp.select(*self._features()).from_(self._tables[self._item].copy())
        everyone = exp.EQ(this=_is_null(item), expression=_is_null(own))  # of keys that are there: all meet all
        placed = [self._base, self._item]
        query, placed = self._join_reachable(query, placed)
        query = query.join(self._tables[self._user].copy(), on=everyone)
        query, placed = self._join_reachable(query, [*placed, self._user])
        missing = [alias for alias in self._tables if alias not in placed]
        if missing:
            raise JobError(f"table {missing[0]} is joined with neither the user nor the item{_INSTEAD}")
        for term in self._terms:
            if _equality(term) is None and self._base not in _tables_of(term):
                query = query.where(term.copy())
        query = query.where(own.copy().eq(value.copy()))
        met = self._tree.copy().where(met_user.copy().eq(value))
        return (query.sql(dialect="duckdb"), item.name), (met.sql(dialect="duckdb"), met_item.name)

    def _join_reachable(self, query: exp.Select, placed: list[str]) -> tuple[exp.Select, list[str]]:
        """Joins the tables that are reached from those that are there, but for the label's."""
        while True:
            for alias in [a for a in self._tables if a not in (*placed, self._user, self._item)]:
                own = [t for t in self._terms if _equality(t) is not None and alias in _tables_of(t)]
                on = [t for t in own if _tables_of(t) - {alias} <= set(placed) - {self._base}]
                if on:
                    side = "LEFT" if alias in self._left else None
                    query = query.join(self._tables[alias].copy(), on=exp.and_(*(t.copy() for t in on)), join_type=side)
                    placed = [*placed, alias]
                    break
            else:
                return query, placed

    def _features(self) -> Iterator[exp.Expr]:
        """The model's features as its query selects them."""
        items = {item.alias_or_name.lower(): item for item in self._tree.expressions if not item.is_star}
        for block in self._model.blocks:
            for feature in block.features:
                alias, _, name = feature.partition(".")
                item = items.get(name.lower())
                if item is None or _tables_of(item) - {alias}:
                    item = exp.alias_(exp.column(name, table=alias, quoted=True), name, quoted=True)
                yield item.copy()


def _equality(term: exp.Expr) -> tuple[exp.Column, exp.Column] | None:
    if not isinstance(term, exp.EQ):
        return None
    left, right = term.this.unnest(), term.expression.unnest()
    are_columns = isinstance(left, exp.Column) and isinstance(right, exp.Column)
    return (left, right) if are_columns and left.table and right.table and left.table != right.table else None


def _is_null(column: exp.Column) -> exp.Expr:
    return exp.paren(exp.Is(this=column.copy(), expression=exp.Null()))


def _tables_of(term: exp.Expr) -> set[str]:
    return {column.table for column in term.find_all(exp.Column)}


def best(table: pa.Table, key: str, met: pa.Table | None, met_key: str, n: int) -> pa.Table:
    """The n best rows, without items that were met; ties by the order of the item's table."""
    if met is not None and met.num_rows:
        is_met = pc.is_in(table[key], value_set=pc.cast(met[met_key], table[key].type).combine_chunks())
        table = table.filter(pc.invert(is_met))
    by = "probability" if "probability" in table.column_names else "prediction"
    order = np.argsort(-table[by].to_numpy(), kind="stable")[:n]
    return table.take(pa.array(order))


def ranking_metrics(users: ArrayLike, scores: ArrayLike, relevant: ArrayLike, n: int = 10) -> dict[str, float]:
    """Ranking quality of the `n` best-scored rows of each user: `hit_rate` and `ndcg`, means over users with relevant
    rows.

    - `users`, `scores`: the user and the score of each row; ties keep their order.
    - `relevant`: 1 or true for rows that should come first, or a gain for each.

    >>> ranking_metrics(["a", "a", "b", "b"], [0.9, 0.1, 0.2, 0.8], [1, 0, 1, 0], n=1)
    {'hit_rate': 0.5, 'ndcg': 0.5}
    """
    _, who = np.unique(np.asarray(users), return_inverse=True)
    score, gain = np.asarray(scores, np.float64), np.asarray(relevant, np.float64)
    if not len(who) == len(score) == len(gain) or n < 1 or not len(who):
        raise JobError("users, scores and relevant must be of one length, with a row at least, and n at least 1")
    count = int(who.max()) + 1
    found = _gains(who, score, gain, n, count)
    ideal = _gains(who, gain, gain, n, count)
    has = ideal > 0
    if not has.any():
        raise JobError("no row is relevant, and a ranking of none cannot be judged")
    return {"hit_rate": float((found[has] > 0).mean()), "ndcg": float((found[has] / ideal[has]).mean())}


def _gains(who: Any, score: Any, gain: Any, n: int, count: int) -> Any:
    """Σ gain / log2(rank + 1) over the n best rows of each user."""
    order = np.lexsort((-score, who))
    first = np.searchsorted(who[order], np.arange(count))
    rank = np.arange(len(order)) - first[who[order]]
    counts = rank < n
    worth = gain[order][counts] / np.log2(rank[counts] + 2.0)
    return np.bincount(who[order][counts], worth, minlength=count)
