"""Model: all that predictions need, and nothing of the rows that it was trained on.

In: a finished run. Out: a model to save, load and predict with: the query with its label, and for each block the
encoders and parameters. Also the weights of a linear model on the original scale of its features. An encoded column is
(x − mean) / scale, so the weight of x is θ / scale, and the intercept absorbs −θ · mean / scale.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting.messages import SplitRule, Tree
from tablepuppet.algorithms.registry import own_model, require_ability
from tablepuppet.arrays import Array
from tablepuppet.calls import check_calls
from tablepuppet.errors import ModelError
from tablepuppet.formatting import fragment, table
from tablepuppet.join.mapping import Class
from tablepuppet.models.heads.base import HeadModel
from tablepuppet.models.losses import LabelFacts, Loss, loss_named, usual_loss
from tablepuppet.models.modules import Builder
from tablepuppet.models.spec import ModelSpec
from tablepuppet.output_files import as_path, write_whole
from tablepuppet.protocol.columns import Absent, ColumnInfo, Encoder, NumberEncoder
from tablepuppet.sources.encoding import encoded_names, encoded_width, start_weights
from tablepuppet.sql.bound import Block

if TYPE_CHECKING:
    import pandas as pd

    from tablepuppet.prediction.export.pooled import PooledModel


class BlockModel(msgspec.Struct, frozen=True, eq=False):
    """A block's trained parameters and how its features are encoded."""

    name: str
    table: str
    features: tuple[str, ...]
    encoders: tuple[Encoder, ...]
    theta: Array  # NaN where the block's owners hold it
    is_outer: bool  # some joined rows have no row here
    mean: Array  # Σ_j h_i(p_i(j)) / N over the joined training rows: stands in for a missing owner
    uses: tuple[tuple[str, ...], ...] = ()  # the features as SQL over the table's columns; one for each use of it
    is_held: bool = False  # by its owners
    splits: tuple[SplitRule, ...] = ()  # of boosted trees; none where they are held
    absent: tuple[Absent, ...] = ()  # the value of each feature where a LEFT JOIN finds no row

    def __repr__(self) -> str:
        return f"BlockModel({self.name} of {self.table}: {', '.join(self.features) or 'no feature'})"

    @classmethod
    def of(cls, block: Block, **given: Any) -> "BlockModel":
        absent = tuple(column.absent for column in block.columns)
        return cls(name=block.name, table=block.table, features=block.features, absent=absent, **given)

    @property
    def width(self) -> int:
        """d_i: encoded columns."""
        return sum(map(encoded_width, self.encoders))

    @property
    def is_lacking(self) -> bool:
        """Whether some joined rows have no value, not even NULL, in some feature."""
        return self.is_outer and (not self.absent or None in self.absent)


class TableUse(msgspec.Struct, frozen=True):
    """The query's use of one table: each expression, as the model's query has it, with its type."""

    table: str
    expressions: tuple[str, ...]
    columns: tuple[ColumnInfo, ...]
    names: tuple[str, ...]  # the table's own columns in them and in the filter
    fingerprint: str = ""  # which earlier releases ask for in a file


@check_calls
class ModelContent(msgspec.Struct, frozen=True, eq=False, dict=True):
    """What a model and the result that has it are asked for alike."""

    @property
    def model(self) -> "Model":
        """The model, to be saved, or given to `federation.predict`."""
        raise NotImplementedError

    @property
    def intercept(self) -> float | Array:
        """The intercept on the original scale: one number, or one per class for softmax.

        Features of a block whose weights are withheld count from their means, not from zero.
        """
        model = self.model
        _need_linear(model, "intercept on the original scale")
        total = model.encoded_intercept.copy()
        for block in model.blocks:
            if not block.is_held:
                total -= (_original_scale(block.encoders)[1] * _is_everywhere(block)) @ block.theta
        return float(total[0]) if len(total) == 1 else total

    def coefficients(self) -> "pd.DataFrame":
        """Weights on the original scale: a data frame of table, feature, class_ and weight.

        A block of a LEFT JOIN has one more row, `alias IS NOT NULL`: the effect of a partner. Weights that stay
        with their owner are NaN (`model.parts` lists where they are).

        >>> result.coefficients()["feature"].tolist()
        ['o.quantity', 'i.price', 'i.kind=book', 'i.kind=shoe']
        """
        import pandas as pd  # here, not above: most runs never need it, and it takes 40 MB and a third of a second

        model, frames = self.model, []
        _need_linear(model, "coefficients on the original scale")
        for block in model.blocks:
            labels, weights = _weights(block, model.outputs)
            frames += [
                pd.DataFrame({"table": block.table, "feature": labels, "class_": name, "weight": weights[:, k]})
                for k, name in enumerate(_outputs(model.classes, model.outputs))
            ]
        return pd.concat(frames, ignore_index=True)

    def importance(self) -> "pd.DataFrame":
        """How far each feature moves the score, the farthest first: a data frame of table, feature and importance.

        Linear models: the standard deviation of the feature's contribution, with all categories counted alike (with
        standardize=False: the effect of one unit of a number). NaN if the weights stay with their owner. Boosted trees:
        the gain of all splits of the feature, and in one more column their number.

        >>> len(result.importance())
        3
        """
        model = self.model
        own = own_model(model.spec)
        if own is not None:
            return own.importance(model)
        import pandas as pd

        _need_linear(model, "importance that follows from its parameters")
        rows = [
            (block.table, feature, spread)
            for block in model.blocks
            for feature, spread in zip(block.features, _spreads(block), strict=True)
        ]
        frame = pd.DataFrame(rows, columns=["table", "feature", "importance"])
        return frame.sort_values("importance", ascending=False, kind="stable", ignore_index=True)

    def save(self, path: str | Path) -> None:
        """Writes the model to the folder `path`: JSON and Arrow, a folder for each block (docs/prediction.md).

        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> result.save(folder)
        >>> tp.load(folder).label
        'returned'
        """
        from tablepuppet.prediction.saved import save

        save(self.model, path)


@check_calls
class Model(ModelContent, frozen=True):
    """A trained model over a query's result: `result.model`, or what `tp.load` returns.

    >>> model.kind, model.label, model.parts
    ('logistic', 'returned', {'o': 'here', 'i': 'here'})
    """

    kind: str  # linear, logistic, softmax …: the meaning of the sum of the blocks' contributions
    query: str
    label: str
    label_aliases: tuple[str, ...]  # of each branch: the alias that the label comes from
    classes: tuple[Class, ...]  # none: the label is a number
    encoded_intercept: Array
    blocks: tuple[BlockModel, ...]
    tables: tuple[TableUse, ...]
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    spec: ModelSpec = msgspec.field(default_factory=ModelSpec)  # how a block's model is built
    builder: Builder | None = None  # of the user's own torch modules; never saved
    id: str = ""  # under which owners hold their parts; "": not saved yet, and nobody does
    head: HeadModel | None = None  # how the blocks' contributions become scores; None: their sum
    head_module: Any = None  # of a head of the user's own; never saved
    loss_name: str = ""  # "": the usual one for such labels
    loss_options: dict[str, float] = msgspec.field(default_factory=dict)

    trees: tuple[tuple[Tree, ...], ...] = ()  # of a boosted model: one for each output, again and again

    @property
    def model(self) -> "Model":
        return self

    @property
    def loss(self) -> Loss:
        """The loss: it defines the scores' meaning and the model's metrics."""
        kind = loss_named(self.loss_name) if self.loss_name else usual_loss(self.outputs * len(self.classes))
        return kind.of(LabelFacts(len(self.classes)), **self.loss_options)

    @property
    def outputs(self) -> int:
        """Scores per joined row: one, or one per class for softmax."""
        return len(self.encoded_intercept)

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.outputs,) * len(self.blocks) if self.head is None else self.head.spec.widths

    @property
    def parts(self) -> dict[str, str]:
        """Where each block's parameters are: "here", or with the owners of which table."""
        return {b.name: f"with the owners of {b.table}" if b.is_held else "here" for b in self.blocks}

    def weights(self) -> dict[str, dict[str, list[float]]]:
        """Weights for `warm_start`, on the original scale, by feature and its unit: "" a number, "=toys" a category, "
        IS NULL" …

        >>> sorted(model.weights()["i.kind"])
        ['=book', '=shoe']
        """
        _need_linear(self, "weights to begin with")
        held = [block.name for block in self.blocks if block.is_held]
        if held:
            raise ModelError(
                f"the parameters of {', '.join(held)} stay with their owners, and training cannot begin with them"
            )
        pairs = ((block.features, start_weights(block.encoders, block.theta)) for block in self.blocks)
        return {name: units for features, own in pairs for name, units in zip(features, own, strict=True)}

    def to_sql(
        self,
        block: str | None = None,
        *,
        table: str | None = None,
        dialect: str = "duckdb",
        columns: Sequence[str] = (),
        use: int = 0,
    ) -> str:
        """A SELECT that a block's owner runs: the block's contribution to the score of each of its rows.

        It works for linear models and for networks without modules of your own. A row's score is the sum over the
        blocks and `encoded_intercept`; a row that an outer join does not find adds 0.

        - `block`: its alias or table; not needed for one block.
        - `table`: the owner's own name of its table; `columns`: columns to show too.
        - `dialect`: duckdb, postgres, sqlite, mysql, snowflake or bigquery.
        - `use`: which of several uses of the table in the query.

        >>> model.to_sql("i", columns=["item_id"]).startswith("SELECT")
        True
        """
        from tablepuppet.prediction.export.sql import to_sql

        return to_sql(self, block, table=table, dialect=dialect, columns=columns, use=use)

    def to_onnx(self, path: str | Path, block: str | None = None) -> None:
        """Writes a block's contribution to the score as an ONNX graph to `path`.

        Its inputs are the block's features, by name.

        `block`: its alias or table. It needs the extra `onnx`.
        """
        from tablepuppet.prediction.export.onnx import to_onnx

        graph = to_onnx(self, block).SerializeToString()
        target = as_path(path, "an ONNX graph", ModelError)
        write_whole(target, lambda file: file.write_bytes(graph), "an ONNX graph", ModelError)

    def tree_text(self, number: int, output: int = 0) -> str:
        """One of a boosted model's trees in words, as far as its splits are known here; `number`: which tree; `output`:
        of which class.

        >>> trees = federation.train(query, label="returned", algorithm=tp.Boosting(trees=2))
        >>> trees.model.tree_text(0).partition(" (gain")[0]
        'o.quantity > 1.5?'
        """
        from tablepuppet.algorithms.boosting.prediction import tree_text

        return tree_text(self, number, output)

    def save_lightgbm(self, path: str | Path) -> dict[str, dict[str, int] | None]:
        """Writes boosted trees as LightGBM's text to `path`; returns the codes of each feature's strings, None for
        numbers.

        Rows have the features in the order of the answer. A missing number is NaN, a missing string 0, and a string
        without a code is one more than the last.
        """
        from tablepuppet.prediction.export.lightgbm import to_lightgbm

        text, codes = to_lightgbm(self)
        target = as_path(path, "LightGBM's trees", ModelError)
        write_whole(target, lambda file: file.write_text(text, encoding="utf-8"), "LightGBM's trees", ModelError)
        return codes

    def to_sklearn(self) -> "PooledModel":
        """A fitted scikit-learn estimator over a data frame with the features by name, for whoever has all rows.

        >>> model.to_sklearn().classes_.tolist()
        [False, True]
        """
        from tablepuppet.prediction.export.pooled import pooled_model

        return pooled_model(self)

    def _repr_html_(self) -> str:
        where = self.parts
        rows = [[b.name, b.table, ", ".join(b.features), where[b.name]] for b in self.blocks]
        return fragment(repr(self), table(["block", "table", "features", "parameters"], rows, text_columns=4))

    def __repr__(self) -> str:
        features = sum(len(block.features) for block in self.blocks)
        tables = ", ".join(dict.fromkeys(block.table for block in self.blocks))
        held = [block.name for block in self.blocks if block.is_held]
        where = f"; with their owners: {', '.join(held)}" if held else ""
        return f"Model({self.kind} for {self.label!r}: {features} features of {tables}{where})"


def mean_contribution(per_row: Array, multiplicity: NDArray[np.int64], joined_rows: int) -> Array:
    """Σ G h / N: a block's mean contribution over joined rows (a row that an outer join lacks adds nothing)."""
    return np.asarray(multiplicity.astype(np.float64) @ per_row / max(1, joined_rows), np.float64)


def _weights(block: BlockModel, outputs: int) -> tuple[list[str], Array]:
    """The names of a block's encoded columns and their weights on the original scale."""
    if block.is_held and not block.encoders:  # its owner's folder is not here: names of columns are not known either
        return list(block.features), np.full((len(block.features), outputs), np.nan)
    scale, shift = _original_scale(block.encoders)
    labels, weights = encoded_names(block.features, block.encoders), block.theta * scale[:, None]
    if block.is_lacking:
        labels = [*labels, f"{block.name} IS NOT NULL"]
        weights = np.vstack([weights, -((shift * ~_is_everywhere(block)) @ block.theta)])
    return labels, weights


def _is_everywhere(block: BlockModel) -> NDArray[np.bool_]:
    """Per encoded column: whether all joined rows have it, those too that a LEFT JOIN found no row for."""
    absent = block.absent or (None,) * len(block.encoders)
    widths = [encoded_width(encoder) for encoder in block.encoders]
    return np.repeat([not block.is_outer or value is not None for value in absent], widths).astype(np.bool_)


def _spreads(block: BlockModel) -> list[float]:
    """The standard deviation of each feature's contribution, its categories counted alike; NaN where θ is withheld."""
    if block.is_held:
        return [np.nan] * len(block.features)
    ends = np.cumsum([encoded_width(encoder) for encoder in block.encoders])
    centred = block.theta - block.theta.mean(axis=1, keepdims=True) if block.theta.shape[1] > 1 else block.theta
    parts = np.split(centred, ends[:-1])
    return [
        float(np.sqrt((part**2 if isinstance(encoder, NumberEncoder) or not len(part) else part.var(axis=0)).sum()))
        for encoder, part in zip(block.encoders, parts, strict=True)
    ]


def _need_linear(model: Model, what: str) -> None:
    require_ability(model.spec, "coefficients", what)
    if model.head is not None:
        raise ModelError(f"a model with a {model.head.spec.kind} head has no {what}; its tables act together")
    if not model.spec.is_linear:
        raise ModelError(
            f"a neural model has no {what}; result.module(block) gives a block's trained network, encoded_intercept "
            "what is added to the sum of their scores"
        )


def _outputs(classes: Sequence[Class], outputs: int) -> list[Class | None]:
    """The class that each column of θ speaks of: of two classes, the second."""
    if not classes:
        return [None]
    return [classes[1]] if outputs == 1 else list(classes)


def _original_scale(encoders: tuple[Encoder, ...]) -> tuple[Array, Array]:
    """Per encoded column: the factor of its weight, and mean/scale, which the intercept absorbs."""
    scale: list[Array] = [np.zeros(0)]
    shift: list[Array] = [np.zeros(0)]
    for encoder in encoders:
        plain = encoded_width(encoder)  # columns that are as they were
        if isinstance(encoder, NumberEncoder):
            inverse = np.divide(1.0, encoder.scale, out=np.zeros_like(encoder.scale), where=encoder.scale != 0)
            scale.append(inverse)
            shift.append(encoder.mean * inverse)
            plain -= len(inverse)
        scale.append(np.ones(plain))
        shift.append(np.zeros(plain))
    return np.concatenate(scale), np.concatenate(shift)
