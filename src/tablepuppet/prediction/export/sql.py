"""to_sql: a block of a model → a SELECT that its owner runs, for the block's contribution to every row's score.

In: a model, the name of a block, the dialect of the owner's database. Out: text. Features are computed as in the
query, encoded and weighted in one expression for each output:

    SELECT "id", 0.5 * (COALESCE("f1", 3.2) - 3.2) / 1.7 + CASE … END AS "contribution" FROM (SELECT …) AS "t"

The sum over the blocks, and the model's `encoded_intercept`, is the score.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import sqlglot
from sqlglot import exp

from tablepuppet.arrays import Array
from tablepuppet.errors import ModelError
from tablepuppet.prediction.export import Layer, block_named, layers_of
from tablepuppet.prediction.model import BlockModel, Model
from tablepuppet.protocol.columns import CategoryEncoder, Encoder, NumberEncoder
from tablepuppet.sources.encoding import encoded_width

DIALECTS: Final = ("duckdb", "postgres", "sqlite", "mysql", "snowflake", "bigquery")
_ACTIVATIONS: Final = {
    "relu": "CASE WHEN {x} > 0 THEN {x} ELSE 0 END",
    "tanh": "1 - 2 / (EXP(2 * {x}) + 1)",
    "sigmoid": "1 / (1 + EXP(-{x}))",
    "silu": "{x} / (1 + EXP(-{x}))",
    "elu": "CASE WHEN {x} > 0 THEN {x} ELSE EXP({x}) - 1 END",
}


def to_sql(
    model: Model,
    block: str | None = None,
    *,
    table: str | None = None,
    dialect: str = "duckdb",
    columns: Sequence[str] = (),
    use: int = 0,
) -> str:
    """The text; `table` is the owner's name for its table, `use` selects one of several uses of it."""
    if dialect not in DIALECTS:
        raise ModelError(f"dialect {dialect!r} is not known; take {', '.join(DIALECTS)}")
    number = block_named(model, block, "SQL")
    if model.spec.kind == "mlp" and model.spec.activation not in _ACTIVATIONS:
        raise ModelError(f"{model.spec.activation} has no SQL form; export the block to ONNX instead")
    chosen = model.blocks[number]
    if not 0 <= use < len(chosen.uses):
        raise ModelError(f"block {chosen.name} is used {len(chosen.uses)} times in the query; use counts from 0")
    kinds, carried = _read_of(model, chosen, use)
    carried = list(dict.fromkeys([*columns, *carried]))
    text = _features(chosen, use, kinds, carried, table)
    names = [f"f{k}" for k in range(len(chosen.features))]
    first, *rest = layers_of(model, number)
    values = [_weigh(chosen.encoders, names, first, k) for k in range(len(first.constant))]
    for layer in rest:
        text, values = _next_layer(text, carried, values, first.activation, layer)
        first = layer
    outputs = ["contribution"] if len(values) == 1 else [f"contribution_{k}" for k in range(len(values))]
    items = [*map(_quote_name, carried), *(f"{v} AS {_quote_name(n)}" for v, n in zip(values, outputs, strict=True))]
    whole = sqlglot.parse_one(f"SELECT {', '.join(items)} FROM ({text}) AS t", read="duckdb")
    return _adapt(whole, dialect).sql(dialect, identify=True, pretty=True)


def _read_of(model: Model, block: BlockModel, use: int) -> tuple[list[str], list[str]]:
    """The kind of each feature, and the columns of the table that the query used: keys, features, filters."""
    expressions = block.uses[use][: len(block.features)]
    for read in model.tables:
        kinds = dict(zip(read.expressions, (column.kind for column in read.columns), strict=True))
        if read.table == block.table and all(expression in kinds for expression in expressions):
            return [kinds[expression] for expression in expressions], list(read.names)
    raise ModelError(f"the model does not say what it read of table {block.table}; train it again with this version")


def _features(block: BlockModel, use: int, kinds: Sequence[str], carried: Sequence[str], table: str | None) -> str:
    """SELECT carried columns and features f0, f1, … FROM the table, or from the query that stands for it."""
    expressions = block.uses[use]
    query = next((e.removeprefix("FROM ") for e in expressions[len(kinds) :]), None)
    source = f"({query})" if query is not None else _quote_name(table or block.table)
    values = [_number_or_text(expression, kind) for expression, kind in zip(expressions, kinds, strict=False)]
    features = [f"{value} AS f{k}" for k, value in enumerate(values)]
    return f"SELECT {', '.join([*map(_quote_name, carried), *features])} FROM {source} AS s"


def _number_or_text(expression: str, kind: str) -> str:
    """A feature as the encoders take it: a DOUBLE, NULL if missing, or a text."""
    if kind in ("date", "timestamp"):
        return f"EXTRACT(EPOCH FROM {expression}) / 86400"
    if kind == "boolean":
        return f"CASE WHEN {expression} THEN 1 WHEN NOT ({expression}) THEN 0 END"
    if kind == "float":
        return f"CASE WHEN ISNAN({expression}) THEN NULL ELSE {expression} END"
    if kind in ("string", "vector"):
        return expression
    return f"CAST({expression} AS {'TEXT' if kind == 'uuid' else 'DOUBLE'})"


def _weigh(encoders: Sequence[Encoder], names: Sequence[str], layer: Layer, output: int) -> str:
    """Σ over encoded columns of weight × value, and the layer's constant."""
    terms = [_literal(layer.constant[output])]
    start = 0
    for encoder, name in zip(encoders, names, strict=True):
        stop = start + encoded_width(encoder)
        terms += _terms(encoder, name, layer.weights[start:stop, output])
        start = stop
    return " + ".join(terms)


def _terms(encoder: Encoder, name: str, weights: Array) -> list[str]:
    if isinstance(encoder, NumberEncoder):
        size = encoder.mean.size
        parts = [name] if size == 1 else [f"{name}[{k + 1}]" for k in range(size)]
        slopes = np.divide(weights[:size], encoder.scale, out=np.zeros(size), where=encoder.scale > 0)
        terms = [
            f"{_literal(slope)} * (COALESCE({part}, {_literal(fill)}) - {_literal(mean)})"
            for part, slope, fill, mean in zip(parts, slopes, encoder.fill, encoder.mean, strict=True)
            if slope
        ]
        if encoder.has_missing:
            terms.append(f"CASE WHEN {name} IS NULL THEN {_literal(weights[size])} ELSE 0 END")
        return terms
    assert isinstance(encoder, CategoryEncoder)  # block_named refuses ids
    known = len(encoder.categories)
    missing = weights[known] if encoder.has_missing else 0.0
    other = weights[-1] if encoder.has_other else 0.0
    cases = "".join(
        f" WHEN {name} = {exp.Literal.string(category).sql('duckdb')} THEN {_literal(weight)}"
        for category, weight in zip(encoder.categories, weights, strict=False)
    )
    return [f"CASE WHEN {name} IS NULL THEN {_literal(missing)}{cases} ELSE {_literal(other)} END"]


def _next_layer(
    text: str, carried: Sequence[str], values: Sequence[str], activation: str, layer: Layer
) -> tuple[str, list[str]]:
    """The query below a layer of a network, and the layer's outputs over it."""
    below = ", ".join([*map(_quote_name, carried), *(f"{value} AS h{k}" for k, value in enumerate(values))])
    text = f"SELECT {below} FROM ({text}) AS t"
    active = [_ACTIVATIONS[activation].format(x=f"h{k}") for k in range(len(values))]
    passed = ", ".join([*map(_quote_name, carried), *(f"{value} AS a{k}" for k, value in enumerate(active))])
    text = f"SELECT {passed} FROM ({text}) AS t"
    outputs = [
        " + ".join(
            [_literal(layer.constant[k]), *(f"{_literal(w)} * a{i}" for i, w in enumerate(layer.weights[:, k]) if w)]
        )
        for k in range(len(layer.constant))
    ]
    return text, outputs


def _literal(value: float) -> str:
    """A DOUBLE that reads back to the same bits."""
    text = repr(float(value))
    text = text if "e" in text else f"{text}e0"
    return f"({text})" if value < 0 else text


def _quote_name(name: str) -> str:
    return exp.Identifier(this=name, quoted=True).sql("duckdb")


def _adapt(whole: exp.Expr, dialect: str) -> exp.Expr:
    """Adapts the nodes that sqlglot does not: NaN where a database has none, parts of moments in SQLite and MySQL."""

    def swap(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.IsNan) and dialect != "duckdb":
            nan = exp.EQ(this=node.this, expression=exp.cast(exp.Literal.string("NaN"), "double"))
            return nan if dialect in ("postgres", "snowflake", "bigquery") else exp.false()
        if isinstance(node, exp.Extract) and node.name.upper() == "EPOCH" and dialect in _EPOCHS:
            return sqlglot.parse_one(_EPOCHS[dialect].format(x=node.expression.sql(dialect)), read=dialect)
        if dialect == "sqlite" and isinstance(node, (exp.Extract, *_OF_MOMENTS)):
            part = node.name if isinstance(node, exp.Extract) else node.key
            moment = node.expression if isinstance(node, exp.Extract) else node.this
            return _sqlite_part(part.lower(), moment.sql("sqlite"))
        return node

    return whole.transform(swap)


_EPOCHS: Final = {
    "sqlite": "(JULIANDAY({x}) - 2440587.5) * 86400",
    "mysql": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {x}) / 1000000",
}
_OF_MOMENTS: Final = (
    *(exp.Year, exp.Quarter, exp.Month, exp.Day, exp.Hour, exp.Minute, exp.Second),
    *(exp.DayOfWeek, exp.DayOfYear),
)
_PARTS: Final = {
    **{"year": "%Y", "month": "%m", "day": "%d", "hour": "%H", "minute": "%M", "second": "%S"},
    **{"dow": "%w", "dayofweek": "%w", "doy": "%j", "dayofyear": "%j", "quarter": "%m"},
}


def _sqlite_part(part: str, moment: str) -> exp.Expr:
    """A part of a moment in SQLite, which has strftime only."""
    if part not in _PARTS:
        raise ModelError(f"SQLite cannot compute the {part} of a moment; export for another dialect")
    written = f"CAST(STRFTIME('{_PARTS[part]}', {moment}) AS INTEGER)"
    return sqlglot.parse_one(f"({written} + 2) / 3" if part == "quarter" else written, read="sqlite")
