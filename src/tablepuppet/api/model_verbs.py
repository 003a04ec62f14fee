"""A federation's verbs for a trained model: predictions, recommendations, metrics, importance, drift.

In: a model as users give it (a result, a loaded model or its folder), and a query with its features. Out: the answers
of train.py, here or at a coordinator; or the options of a job that starts with a model's weights.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa
from sqlglot import exp

from tablepuppet import train as story
from tablepuppet.algorithms.registry import DEFAULT, own_model
from tablepuppet.api.recommend import best, candidates
from tablepuppet.calls import check_calls
from tablepuppet.errors import JobError, ModelError
from tablepuppet.job import Job, make_job
from tablepuppet.models.modules import Builder, offer
from tablepuppet.output_files import check_place
from tablepuppet.prediction.cache import Predictor
from tablepuppet.prediction.model import Model
from tablepuppet.prediction.predict import as_keys, at_threshold, check_file, write
from tablepuppet.prediction.saved import load
from tablepuppet.prediction.split_record import RowsWanted
from tablepuppet.progress import show_progress
from tablepuppet.protocol.columns import NumberEncoder
from tablepuppet.sql.parsing import syntax_tree
from tablepuppet.training.evaluate import Comparison, Evaluation
from tablepuppet.training.inspection import Drift, Inspection
from tablepuppet.training.result import Result

if TYPE_CHECKING:
    import pandas as pd


@check_calls
class ModelVerbs:
    """The verbs of a federation that take a trained model; subclasses carry the questions to the owners."""

    _predict: Callable[..., pa.Table]  # a model's predictions on a query's rows
    _ask: Callable[..., Any]  # answers of train.py without training: a profile, metrics, a comparison …

    def _offer_modules(self, model: Model, builder: Builder | None, head: Any) -> AbstractContextManager[None]:
        """While inside, owners and the server know the model's own torch modules, as they were given or trained."""
        own_head = model.head_module if head is None else head
        name = "" if model.head is None else model.head.spec.module
        return offer((model.spec.module, builder or model.builder), (name, own_head))

    def _ask_about(
        self, question: story.Question, model: Model, query: str | None, privacy: Any = None, **options: Any
    ) -> Any:
        given: dict[str, Any] = {"options": options} if options else {}  # drift has none
        return self._ask(question, model=model, job=labelled_job(model, query, privacy), **given)

    def predict(
        self,
        model: Model | Result,
        query: str | None = None,
        *,
        key: str | Sequence[str] | None = None,
        keys: Sequence[Any] | None = None,
        missing: Literal["error", "zero"] = "error",
        threshold: float | None = None,
        to: str | Path | None = None,
        module: Builder | None = None,
        head: Any = None,
        max_joined_rows: int | None = None,
        split: bool = False,
        progress: bool | None = None,
    ) -> pa.Table:
        """Predicts the joined rows of a query; returns an Arrow table with one row for each (docs/prediction.md).

        The table has the key, `prediction` and its probability.

        - `model`: a result, or what `tp.load` returns; `query`: one with the same features; None: the model's own.
        - `key`: columns of the label's table that name a row; None: those that it is joined on.
        - `keys`: predict only the rows with these values of the key.
        - `missing`: "error", or "zero": the mean contribution stands in for an owner that is away, and the column
          `assumed` lists the tables.
        - `threshold`: the probability from which a row is predicted as the second class (`result.threshold()`).
        - `to`: also write the answer to a .parquet or .csv file.
        - `module`: the builder of a saved model's own torch modules; `head`: its own torch head.
        - `max_joined_rows`: refuse a larger join.
        - `split`: add the column `split`: whether a row was for training, validation or the test.
        - `progress`: as in `train`.

        >>> federation.predict(model, key="order_id", keys=[17]).column_names
        ['client', 'order_id', 'prediction', 'probability']
        """
        chosen = model_of(model)
        if to is not None:
            check_place(check_file(to), "predictions")
        names = (key,) if isinstance(key, str) else key
        if names is not None and (not isinstance(names, Sequence) or len(set(map(str, names))) < len(names)):
            raise JobError('key names columns of the label\'s table, each once, as in key="order_id"')
        with show_progress("predicting", progress), self._offer_modules(chosen, module, head):
            table = self._predict(
                chosen,
                chosen.query if query is None else query,
                key=names,
                only=None if keys is None else as_keys(keys),
                missing=missing,
                max_joined_rows=max_joined_rows,
                split=split,
            )
        if threshold is not None:
            table = at_threshold(chosen, table, threshold)
        if to is not None:
            write(table, to)
        return table

    def recommend(
        self,
        model: Model | Result,
        *,
        user: Any,
        n: int = 10,
        by: str | None = None,
        met: bool = False,
        head: Any = None,
    ) -> pa.Table:
        """The items with the highest predictions for a user: an Arrow table of keys and predictions, best first.

        It works for a model over a label's table that joins users with items, and asks owners for a prediction
        (docs/heads.md).

        - `model`: a result or a model; `user`: the key that joins the label's table with the user's.
        - `n`: how many items; `by`: the alias of the user's table; None: the first in the query.
        - `met`: keep items that the user has met in the label's table.
        - `head`: the torch head of a saved model.
        """
        if n < 1:
            raise JobError("n must be at least 1")
        chosen = model_of(model)
        (query, key), (met_query, met_key) = candidates(chosen, user, by)
        found = self.predict(chosen, query, key=key, head=head, progress=False)
        if not found.num_rows:
            raise JobError(
                "no row of the user's table has this key, or there is no item; see `by` for which table it is"
            )
        known = None if met else self.predict(chosen, met_query, key=met_key, head=head, progress=False)
        return best(found, key, known, met_key, n)

    def predictor(
        self, model: Model | Result, query: str | None = None, *, key: str | Sequence[str], **options: Any
    ) -> Predictor:
        """Predicts all rows now and answers single requests by key from memory; `refresh()` predicts again.

        `model`, `query`, `key` and `options` are those of `predict`.

        >>> federation.predictor(model, key="order_id")(17).num_rows
        1
        """
        names = (key,) if isinstance(key, str) else tuple(key)
        return Predictor(lambda: self.predict(model, query, key=names, **options), names)

    def evaluate(
        self,
        model: Model | Result,
        query: str | None = None,
        *,
        rows: RowsWanted = "test",
        module: Builder | None = None,
        head: Any = None,
        privacy: Any = None,
    ) -> Evaluation:
        """A model's metrics on labelled rows; a mapping, whose `.rows` states which rows were measured.

        - `model`: a result or a model; `query`: one with the same features; None: the model's own.
        - `rows`: "test", rows that the model was not trained on; "train"; or "all" (docs/validation.md).
        - `module`, `head`: as in `predict`.
        - `privacy`: {"analyst": {"epsilon": …}} where a table has an analyst budget (docs/analyst-budgets.md).

        >>> print(federation.evaluate(model).rows)
        19 rows that the model was not trained on
        """
        chosen = model_of(model)
        with self._offer_modules(chosen, module, head):
            return cast(Evaluation, self._ask_about("evaluate", chosen, query, privacy, rows=rows))

    def compare(
        self,
        first: Model | Result,
        second: Model | Result,
        query: str | None = None,
        *,
        rows: RowsWanted = "test",
        privacy: Any = None,
    ) -> Comparison:
        """Compares two models on the same labelled rows; has `.difference`, `.standard_error`, `.is_worse` and `.rows`.

        - `first`, `second`: results or models; `query`: None for the second one's.
        - `rows`: as in `evaluate`; by default rows that neither was trained on. `privacy`: as there.

        >>> federation.compare(model, model).is_worse
        False
        """
        old, new = model_of(first), model_of(second)
        given = {"model": old, "other": new, "job": labelled_job(new, query, privacy), "options": {"rows": rows}}
        return cast(Comparison, self._ask("compare", **given))

    def importance(
        self,
        model: Model | Result,
        query: str | None = None,
        *,
        by: Literal["feature", "table"] = "feature",
        repeats: int = 3,
        seed: int = 0,
        rows: RowsWanted = "test",
    ) -> "pd.DataFrame":
        """Permutation importance: how much the mean loss rises when a feature or a table is shuffled.

        Returns a data frame. Owners score their rows once more for each feature and repetition; tables and features of
        boosted trees need no more than `evaluate` (docs/prediction.md#importance).

        - `model`: a result or a model; `query`: None for its own.
        - `by`: "feature" or "table"; `repeats`: how often each is shuffled; `seed`: of the shuffling.
        - `rows`: as in `evaluate`.

        >>> list(federation.importance(model, by="table").columns)
        ['table', 'importance', 'std']
        """
        options = {"by": by, "repeats": repeats, "seed": seed, "rows": rows}
        return cast(Inspection, self._ask_about("importance", model_of(model), query, **options)).frame()

    def partial_dependence(
        self,
        model: Model | Result,
        query: str | None = None,
        feature: str = "",
        *,
        values: Sequence[Any] | None = None,
        points: int = 11,
        rows: RowsWanted = "test",
    ) -> "pd.DataFrame":
        """Partial dependence: the mean prediction if `feature` has the same value in all rows; a data frame.

        The feature's owner scores its rows once per value; boosted trees need no more than `evaluate`. Rows need no
        label (docs/prediction.md#partial-dependence).

        - `model`: a result or a model; `query`: None for its own.
        - `values`: None for up to `points` values that the model knows of.
        - `rows`: as in `evaluate`.

        >>> federation.partial_dependence(model, feature="i.kind")["value"].tolist()
        ['book', 'shoe']
        """
        if query and not feature and len(query.split()) == 1:  # the feature, as the second argument
            return self.partial_dependence(model, feature=query, values=values, points=points, rows=rows)
        named = None if values is None else list(values)
        options = {"feature": feature, "values": named, "points": points, "rows": rows}
        return cast(Inspection, self._ask_about("partial_dependence", model_of(model), query, **options)).frame()

    def drift(self, model: Model | Result, query: str | None = None, *, privacy: Any = None) -> Drift:
        """Compares a query's rows with the training rows: means, spreads, categories, matched rows.

        `.found()` lists what exceeds its limits. `model`: a result or a model; `query`: None for its own; `privacy`: as
        in `evaluate`.

        >>> federation.drift(model).found()
        []
        """
        return cast("Drift", self._ask_about("drift", model_of(model), query, privacy))


def labelled_job(model: Model, query: str | None, privacy: Any = None) -> Job:
    """The labelled rows of a query, by default of the model's own, with its features as it was trained on them.

    `privacy`: further requests besides the keys that the model was trained with.
    """
    numbers = [e for block in model.blocks for e in block.encoders if isinstance(e, NumberEncoder)]
    is_plain = bool(numbers) and all((e.scale == 1.0).all() and not e.mean.any() for e in numbers)
    given: dict[str, Any] = {"test_fraction": 0.0, "loss": "cross_entropy" if model.classes else "squared"}
    given["standardize"] = not is_plain
    if "keys" in model.metadata:
        given["privacy"] = model.metadata["keys"]
    if privacy is not None:
        given["privacy"] = {**given.get("privacy", {}), **dict(privacy)}
    weight = model.metadata.get("weight")
    if weight is not None and (query is None or _selects(query, weight)):
        given["weight"] = weight  # an item of the query may be that, and no feature
    given["exposure"] = model.metadata.get("exposure")
    text = model.query if query is None else query
    return make_job(text, label=model.label, model="linear", algorithm=DEFAULT, given=given)


def _selects(query: str, name: str) -> bool:
    """Whether an item of a query has this name."""
    found = syntax_tree(query)
    assert isinstance(found, exp.Query)
    return name.rpartition(".")[2].lower() in {item.alias_or_name.lower() for item in found.selects}


def model_of(model: Model | Result) -> Model:
    chosen = model.model if isinstance(model, Result) else model
    if not isinstance(chosen, Model):
        raise ModelError(f"this needs a Result or a loaded model, not a {type(model).__name__}; see tp.load(path)")
    return chosen


def with_start(options: dict[str, Any]) -> dict[str, Any]:
    """Options that hold a model to start with in the form that a job takes."""
    given = options.get("warm_start")
    if given is None:
        return options
    model = model_of(load(given) if isinstance(given, str | Path) else given)
    own = own_model(model.spec)
    if own is not None:
        return {**options, "warm_start": own.continue_from(model)}
    return {**options, "warm_start": None, "start": model.weights()}
