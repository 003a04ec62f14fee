"""pooled_model: a model → an estimator of scikit-learn over pooled rows.

In: a frame with a column for each feature, called as in the query ("o.quantity"). Out: predictions, as
`federation.predict` gives them for the same joined rows. It is trained already: `fit` changes nothing, so that
pipelines and model inspection can hold it. A row that a LEFT JOIN did not find has nulls in all features of its table,
except those that have a value there, as COALESCE(x, 0) has.
"""

from typing import Any, Self

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import ModelError, did_you_mean
from tablepuppet.models.heads.kinds import trained_head
from tablepuppet.prediction.export import block_named, layers_of
from tablepuppet.prediction.model import Model
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.sources.columns import STRING_KINDS, column_info, numbers, strings
from tablepuppet.sources.encoding import encode

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
except ImportError:
    raise ModelError("to_sklearn needs scikit-learn: pip install scikit-learn") from None

_ACTIVATIONS: dict[str, Any] = {
    "": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
}


class PooledModel(BaseEstimator):  # type: ignore[misc]
    """The shared part of all models: scores of a frame."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        return np.array([name for block in self.model.blocks for name in block.features], object)

    @property
    def n_features_in_(self) -> int:
        return len(self.feature_names_in_)

    def __sklearn_is_fitted__(self) -> bool:  # or scikit-learn's inspection would refuse it
        return True

    def fit(self, X: Any = None, y: Any = None) -> Self:  # noqa: N803
        return self

    def decision_function(self, X: Any) -> Array:  # noqa: N803
        """The scores: one for each row, or one for each row and class."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """In the label's own type."""
        found = self.model.loss.predict(self._scores(X))
        return np.array(self.model.classes)[found.astype(int)] if self.model.classes else found

    def _scores(self, frame: Any) -> Array:
        table = frame if isinstance(frame, pa.Table) else pa.Table.from_pandas(frame, preserve_index=False)
        h = [self._contribution(table, number) for number in range(len(self.model.blocks))]
        trained = trained_head(self.model.head)
        if trained is None:
            return np.asarray(sum(h) + self.model.encoded_intercept)
        return np.asarray(trained.head.combine(trained.own, h) + self.model.encoded_intercept)

    def _contribution(self, table: pa.Table, number: int) -> Array:
        block = self.model.blocks[number]
        for name in block.features:
            if name not in table.column_names:
                raise ModelError(f"the frame has no column {name!r}. {did_you_mean(name, table.column_names)}")
        columns = [table.column(name) for name in block.features]
        infos = [column_info(n, c.type, size=_size(c)) for n, c in zip(block.features, columns, strict=True)]
        absent = block.absent or (None,) * len(columns)
        infos = [replace(info, absent=value) for info, value in zip(infos, absent, strict=True)]
        rows = np.arange(table.num_rows)
        if block.is_outer:
            rows[np.all([_is_absent(*own) for own in zip(columns, infos, strict=True)], axis=0)] = -1
        features, (first, *rest) = encode(columns, infos, rows, block.encoders), layers_of(self.model, number)
        value = features.dot(first.weights) + first.constant
        for before, layer in zip([first, *rest], rest, strict=False):
            value = _ACTIVATIONS[before.activation](value) @ layer.weights + layer.constant
        value[(rows < 0) & all(own is None for own in absent)] = 0.0
        return np.asarray(value)


class PooledClassifier(ClassifierMixin, PooledModel):  # type: ignore[misc]
    @property
    def classes_(self) -> NDArray[Any]:
        return np.array(self.model.classes)

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        found = self.model.loss.probabilities(self._scores(X))
        assert found is not None
        return found


class PooledRegressor(RegressorMixin, PooledModel):  # type: ignore[misc]
    """A number for each row."""


def pooled_model(model: Model) -> PooledModel:
    for block in model.blocks:
        block_named(model, block.name, "scikit-learn")
    if model.spec.kind == "mlp" and model.spec.activation not in _ACTIVATIONS:
        raise ModelError(f"{model.spec.activation} is not there in NumPy; export the blocks to ONNX instead")
    return PooledClassifier(model) if model.classes else PooledRegressor(model)


def _is_absent(column: pa.ChunkedArray, info: ColumnInfo) -> NDArray[np.bool_]:
    """Which rows have the column's value for a row that a LEFT JOIN did not find."""
    if info.absent is None or info.absent is True:
        return np.asarray(column.is_null().to_numpy(), np.bool_)
    if info.kind in STRING_KINDS:
        distinct, codes = strings(column)
        return np.append(np.array([text == info.absent for text in distinct.to_pylist()], np.bool_), False)[codes]
    return np.asarray((numbers(column, info) == np.array(info.absent)).all(axis=1))


def _size(column: pa.ChunkedArray) -> int | None:
    """The length of a column's vectors, if it has any."""
    first = next((value for value in column.slice(0, 1).to_pylist() if isinstance(value, list)), None)
    return None if first is None else len(first)
