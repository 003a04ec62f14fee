"""RelationalClassifier, RelationalRegressor: training in scikit-learn's manner.

    tp.RelationalClassifier(algorithm="admm").fit(federation, query, label="returned").score(federation, query)

In: a federation and a query in place of X and y. They keep scikit-learn's conventions: parameters are the constructor's
arguments, `fit` returns self, learned attributes end in an underscore, use before `fit` raises NotFittedError. They
work with its `clone` and `is_classifier`, without needing scikit-learn.
"""

import inspect
from html import escape
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.algorithms.registry import BY_NAME
from tablepuppet.api import Federation
from tablepuppet.calls import check_calls
from tablepuppet.errors import JobError, ModelError, TablePuppetError
from tablepuppet.job import ARGUMENTS, loss_options
from tablepuppet.prediction.split_record import RowsWanted
from tablepuppet.training.result import Result

_OF_ALGORITHMS = {name for a in BY_NAME.values() for name in a.options.__struct_fields__}
_OPTIONS = {*ARGUMENTS, *_OF_ALGORITHMS, *loss_options()} - {"query", "label", "options", "loss_options", "module"}

_FROM_FIT = ("result_", "classes_", "feature_names_in_")  # by `fit`


class NotFittedError(TablePuppetError, ValueError, AttributeError):
    """An estimator was used before `fit`; also a ValueError and an AttributeError, as scikit-learn's is."""


class ParameterError(JobError, ValueError):
    """An estimator has no such parameter; also a ValueError, as scikit-learn's is."""


@check_calls
class _RelationalEstimator:
    """The shared part of both estimators. Options of a job are parameters too, once they are given."""

    _estimator_type: ClassVar[str]
    _loss: ClassVar[str]
    _metric: ClassVar[str]

    def __init__(
        self,
        model: Any = "auto",
        algorithm: Any = None,
        *,
        test_fraction: float = 0.0,
        progress: bool | None = None,
        **options: Any,
    ) -> None:
        self.model = model
        self.algorithm = algorithm
        self.test_fraction = test_fraction
        self.progress = progress
        vars(self).update(options)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All parameters, including options of the algorithm and the model; `deep` has no effect."""
        return {name: value for name, value in vars(self).items() if name not in _FROM_FIT}

    def set_params(self, **given: Any) -> Self:
        """Sets parameters by name: the constructor's own, and any option of a job or of an algorithm."""
        known = self.get_params().keys() | _OPTIONS
        for name in given:
            if name not in known:
                raise ParameterError(
                    f"Invalid parameter {name!r} for estimator {self!r}. Valid parameters are: {sorted(known)!r}."
                )
        vars(self).update(given)
        return self

    def fit(
        self, federation: Federation, query: str = "", label: str = "", *, weight: str | None = None, **others: Any
    ) -> Self:
        """Trains on the query's result; returns the estimator itself.

        - `federation`, `query`, `label`: as in `Federation.train`. `test_fraction` of the label's rows are kept out, by
          default none.
        - `weight`: a column of the label's table, or an expression over it; scikit-learn's sample_weight.

        >>> estimator = tp.RelationalClassifier().fit(federation, query, label="returned")
        >>> estimator.classes_.tolist()
        [False, True]
        """
        if others:
            hint = ': give weight="column"' if "sample_weight" in others else ""
            raise JobError(f"fit takes a federation, a query, label and weight, not {min(others)!r}{hint}")
        if not isinstance(query, str) or not query:
            raise JobError('fit needs the query: fit(federation, "SELECT …", label="y")')
        given = self.get_params()
        if weight is not None:
            given["weight"] = weight
        if given["model"] in ("auto", "linear", "mlp") or callable(given["model"]):
            given.setdefault("loss", self._loss)
        result = federation.train(query, label=label, **given)
        if bool(result.classes) != (self._estimator_type == "classifier"):
            what = "classes" if result.classes else "a number"
            raise JobError(
                f"model={given['model']!r} predicts {what}, and a {self._estimator_type} does not; name another"
            )
        self.result_ = result
        self.classes_ = np.array(self.result_.classes)
        self.feature_names_in_ = np.array([f for block in self.result_.blocks for f in block.features], object)
        return self

    def predict(self, federation: Federation, query: str | None = None) -> NDArray[Any]:
        """One prediction per joined row of `query` in `federation`, by default that of `fit`, in the labels' order.

        >>> estimator = tp.RelationalClassifier().fit(federation, query, label="returned")
        >>> estimator.predict(federation).shape
        (120,)
        """
        return np.asarray(self._predict_table(federation, query)["prediction"].to_numpy())

    def score(self, federation: Federation, query: str | None = None, *, rows: RowsWanted = "test") -> float:
        """The accuracy of a classifier, R² of a regressor; `federation`, `query` and `rows`: as in
        `Federation.evaluate`.

        >>> estimator = tp.RelationalClassifier().fit(federation, query, label="returned")
        >>> estimator.score(federation, rows="train") > 0.5
        True
        >>> estimator = tp.RelationalRegressor().fit(federation, query, label="quantity")
        >>> estimator.score(federation, rows="all") < 1.0
        True
        """
        return federation.evaluate(self._require_result(), query, rows=rows)[self._metric]

    def save(self, path: str | Path) -> None:
        """Writes the trained model to the folder `path`, which `tp.load` reads: JSON and Arrow, no pickle."""
        self._require_result().save(path)

    def __sklearn_tags__(self) -> Any:
        """The tags for scikit-learn's `is_classifier`, `is_regressor` and its displays."""
        from sklearn.utils import ClassifierTags, RegressorTags, Tags, TargetTags  # only scikit-learn asks

        is_classifier = self._estimator_type == "classifier"
        return Tags(
            estimator_type=self._estimator_type,
            target_tags=TargetTags(required=False),  # the label is a column of the query, and no y
            classifier_tags=ClassifierTags() if is_classifier else None,
            regressor_tags=None if is_classifier else RegressorTags(),
            requires_fit=True,
        )

    def _predict_table(self, federation: Federation, query: str | None) -> pa.Table:
        return federation.predict(self._require_result(), query, progress=self.progress)

    def _require_result(self) -> Result:
        if not hasattr(self, "result_"):
            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet. Call 'fit' with appropriate arguments before "
                "using this estimator."
            )
        return self.result_

    def __repr__(self) -> str:
        defaults = {p.name: p.default for p in inspect.signature(type(self).__init__).parameters.values()}
        changed = {k: v for k, v in self.get_params().items() if k not in defaults or v != defaults[k]}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in changed.items())})"

    def _repr_html_(self) -> str:
        fitted = self.result_._repr_html_() if hasattr(self, "result_") else ""
        return f"<pre>{escape(repr(self))}</pre>{fitted}"


@check_calls
class RelationalClassifier(_RelationalEstimator):
    """A classifier over a query's result: logistic for two classes, softmax for more, linear or neural.

    It takes the options of `Federation.train`: `model`, `algorithm`, `l2`, `test_fraction`, `validation_fraction`,
    `patience`, `class_weight`, `standardize`, `seed`, `epochs`, `batch_size`, `progress` and those of docs/options.md.

    >>> RelationalClassifier(algorithm="admm", rho=0.5)
    RelationalClassifier(algorithm='admm', rho=0.5)
    >>> RelationalClassifier().set_params(l2=0.1).get_params()["l2"]
    0.1
    """

    _estimator_type = "classifier"
    _loss = "cross_entropy"
    _metric = "accuracy"

    def predict_proba(self, federation: Federation, query: str | None = None) -> NDArray[np.float64]:
        """The probability of each class, in the order of `classes_`, for the rows of `query` in `federation`.

        >>> tp.RelationalClassifier().fit(federation, query, label="returned").predict_proba(federation).shape
        (120, 2)
        """
        table = self._predict_table(federation, query)
        if "probability" in table.column_names:
            second = table["probability"].to_numpy()
            return np.column_stack([1.0 - second, second])
        named = [name for name in table.column_names if name.startswith("probability_")]
        if not named:
            raise ModelError(
                f'model="{self._require_result().plan.job.model.name}" predicts classes without probabilities'
            )
        return np.column_stack([table[name].to_numpy() for name in named])


class RelationalRegressor(_RelationalEstimator):
    """A regressor over a query's result: squared loss, linear or neural.

    It takes the options of `RelationalClassifier`.

    >>> RelationalRegressor(model="mlp", algorithm="sgd", hidden=(32,))
    RelationalRegressor(model='mlp', algorithm='sgd', hidden=(32,))
    """

    _estimator_type = "regressor"
    _loss = "squared"
    _metric = "r2"
