"""resolve: one conjunctive query and the owners' schemas → the same query with every name resolved.

Every column then names its table's alias and is spelt as its owner spells it; stars are columns; USING is a key
equality; each item belongs to one table.
"""

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace
from sqlglot import exp

from tablepuppet.errors import QueryError, did_you_mean, nearest
from tablepuppet.sources.history_queries import PREFIX
from tablepuppet.sql.bound import format_expression
from tablepuppet.sql.joins import JoinTree, join_tree
from tablepuppet.sql.schemas import Origin, TableShape
from tablepuppet.sql.select import one_table
from tablepuppet.sql.ucq import Conjunctive, Item, Scope, Source, Star, Ucq, matches


class Output(msgspec.Struct, frozen=True):
    """One column of the query's result: an expression over one table."""

    relation: int
    expression: exp.Expr
    name: str  # as the result calls it: the column, the name after AS, or the text of the expression
    at: exp.Expr


class ResolvedBranch(msgspec.Struct, frozen=True):
    """One conjunctive query, whose relations are those of its FROM clause, in that order."""

    aliases: tuple[str, ...]
    shapes: tuple[TableShape, ...]
    outputs: tuple[Output, ...]
    tree: JoinTree


def resolve(ucq: Ucq, branch: Conjunctive, shapes: Mapping[Origin, TableShape]) -> ResolvedBranch:
    names = _Names(ucq, branch, shapes)
    sources = tuple(names.source(k) for k in range(len(branch.sources)))
    where = [names.expression(e) for e in branch.where]
    outputs = [output for item in branch.items for output in names.outputs(item)]
    tree = join_tree(names.scope, sources, where)
    for output in outputs:
        if output.relation in tree.absent:
            alias = names.scope.aliases[output.relation]
            raise ucq.refuse(
                f"rows with a match in {alias} are left out, so that {alias} has no value in any joined row; leave its "
                "columns out of the SELECT",
                output.at,
            )
    return ResolvedBranch(tuple(names.scope.aliases), names.shapes, tuple(outputs), tree)


class _Names:
    def __init__(self, ucq: Ucq, branch: Conjunctive, shapes: Mapping[Origin, TableShape]) -> None:
        self.ucq = ucq
        self.branch = branch
        self.scope = Scope(ucq.text, branch.sources)
        self.shapes = tuple(shapes[s.origin] for s in branch.sources)
        self._merged: set[tuple[int, str]] = set()  # columns that USING made one with a column before them

    def source(self, position: int) -> Source:
        """A source with its ON resolved and its USING written as key equalities."""
        source = self.branch.sources[position]
        visible = range(position + 1)
        on = [self.expression(e, visible) for e in source.on]
        for name in source.using:
            before = [k for k in range(position) if self.branch.sources[k].tree == source.tree]
            right = self._column(position, name)
            found = self._holders(name, before)
            if len(found) > 1:
                alias, first = self.scope.aliases[position], self.scope.aliases[found[0]]
                raise self.ucq.refuse(
                    f"{name.name} is a column of {self.scope.names(found)}, so that USING is ambiguous; "
                    f"write ON, for example ON {first}.{name.name} = {alias}.{name.name}",
                    name,
                )
            on.append(exp.EQ(this=self._find_column(name, before), expression=right))
            self._merged.add((position, right.name))
        return replace(source, on=tuple(on), using=())

    def outputs(self, item: Item | Star) -> list[Output]:
        if isinstance(item, Item):
            expression = self.expression(item.expression)
            relation = one_table(self.scope, expression, is_branch=len(self.ucq.branches) > 1)
            own = expression.name if isinstance(expression, exp.Column) else format_expression(expression)
            name = own if item.name is None else item.name.name
            return [Output(relation, expression, name, item.expression)]
        relations = range(len(self.shapes)) if item.alias is None else [self.scope.relation(item.alias)]
        return [
            Output(r, self._make_column(r, column), column, item.node)
            for r in relations
            for column in self._star(r, item)
            if item.alias is not None or (r, column) not in self._merged
        ]

    def _star(self, relation: int, item: Star) -> tuple[str, ...]:
        """All columns of a table but the excluded ones, which its clients must agree on."""
        shape = self.shapes[relation]
        excluded = {shape.columns[k] for name in item.excluded for k in matches(name, shape.columns)}
        for name in item.excluded:
            if item.alias is not None and not matches(name, shape.columns):
                hint = did_you_mean(name.name, shape.columns)
                raise self.ucq.refuse(f"{item.alias.name} has no column {name.name} to exclude. {hint}", name)
        shown = (column for column in shape.columns if not column.startswith(PREFIX))
        columns = tuple(column for column in shown if column not in excluded)
        for column in columns:
            if shape.lacking(column):
                raise self._lacks(shape, column, item.node, "List the columns instead of *")
        return columns

    def expression(self, node: exp.Expr, visible: range | None = None) -> exp.Expr:
        """The same expression with every column resolved."""
        relations = visible if visible is not None else range(len(self.shapes))

        def column(part: exp.Expr) -> exp.Expr:
            if not isinstance(part, exp.Column):
                return part
            alias = part.args.get("table")
            if alias is None:
                return self._find_column(part.this, list(relations))
            return self._column(self.scope.relation(alias), part.this, alias)

        return node.transform(column)

    def _holders(self, name: exp.Identifier, relations: list[int]) -> list[int]:
        """The tables, of these, that have a column of that name which USING has not made one with another."""
        return [
            r
            for r in relations
            if any((r, self.shapes[r].columns[k]) not in self._merged for k in matches(name, self.shapes[r].columns))
        ]

    def _find_column(self, name: exp.Identifier, relations: list[int]) -> exp.Column:
        found = self._holders(name, relations)
        if len(found) > 1:
            choices = " or ".join(f"{self.scope.aliases[r]}.{name.name}" for r in found)
            raise self.ucq.refuse(f"{name.name} is a column of several tables; write {choices}", name)
        if found:
            return self._column(found[0], name)
        known = list(dict.fromkeys(column for r in relations for column in self.shapes[r].columns))
        selected = [i.name.name for i in self.branch.items if isinstance(i, Item) and i.name is not None]
        if matches(name, selected):
            hint = f"{name.name} is only a name that SELECT gives: repeat its expression here."
        elif matches(name, self.scope.aliases):
            hint = f"{name.name} is a table: write {name.name}.* for all its columns."
        elif (name.quoted or name.name[0] in "‘’“”") and nearest(name.name, known) is None:
            hint = "Is it a text? Texts stand in single quotes: 'a'."
        else:
            hint = did_you_mean(name.name, known)
        where = self.scope.names(relations) if relations else "the tables before it"
        raise self.ucq.refuse(f"no column of {where} is called {name.name}. {hint}", name)

    def _column(self, relation: int, name: exp.Identifier, written: exp.Identifier | None = None) -> exp.Column:
        shape = self.shapes[relation]
        found = matches(name, shape.columns)
        alias = self.scope.aliases[relation]
        if not found:
            spaced = next((c for c in shape.columns if c.startswith(f"{name.name} ") and not name.quoted), None)
            hint = did_you_mean(name.name, shape.columns) if spaced is None else f'Did you mean {alias}."{spaced}"?'
            table = f"{alias} (table {shape.name})" if alias != shape.name else alias
            raise self.ucq.refuse(f"{table} has no column {name.name}. {hint}", name)
        if len(found) > 1:
            choices = " or ".join(f'{alias}."{shape.columns[k]}"' for k in found)
            raise self.ucq.refuse(f"columns of {alias} differ from {name.name} in case only; write {choices}", name)
        column = shape.columns[found[0]]
        if shape.lacking(column):
            raise self._lacks(shape, column, name, "Choose a column that all of them have")
        return self._make_column(relation, column, name, written)

    def _make_column(self, relation: int, column: str, *written: exp.Identifier | None) -> exp.Column:
        """alias.column, both exact; its place in the text is that of the name and the alias as written."""
        found = exp.column(column, self.scope.aliases[relation], quoted=True)
        for part, old in zip((found.this, found.args["table"]), written, strict=False):
            if old is not None:
                part.meta.update(old.meta)
        return found

    def _lacks(self, shape: TableShape, column: str, at: exp.Expr, advice: str) -> QueryError:
        lacking = shape.lacking(column)
        having = [c for c in shape.clients if c not in lacking]
        who = f"with it: {', '.join(having)}; without: {', '.join(lacking)}"
        what = f"not all clients of table {shape.name} have the column {column} ({who}). {advice}.{shape.differences()}"
        return self.ucq.refuse(what.rstrip("."), at)
