"""evaluate: how good a model is on the labelled rows of a query, without learning from them.

In: a model and a plan over the query. Each client receives the encoders and parameters of its block, as for a
prediction, and answers with h of its rows. The labels come as they do in training. Out: metrics.

compare: two models on the same rows, side by side, and how sure one can be that one is better. Joined rows that share a
row of the label's table are no witnesses of their own: the standard error counts them as one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import asdict

from tablepuppet.algorithms.registry import own_model
from tablepuppet.arrays import Array
from tablepuppet.errors import ModelError
from tablepuppet.formatting import fragment, number, table
from tablepuppet.join.joined_rows import Joined
from tablepuppet.join.mapping import TableMapping, rows_here
from tablepuppet.models.heads.base import apply_head
from tablepuppet.models.heads.kinds import trained_head
from tablepuppet.models.metrics import Moment
from tablepuppet.plan.prepare import Prepared, check_labels
from tablepuppet.prediction.model import Model
from tablepuppet.prediction.predict import ask_blocks, joined_scores
from tablepuppet.prediction.split_record import MeasuredRows
from tablepuppet.training import metrics as measuring
from tablepuppet.training.convergence import seen_labels
from tablepuppet.training.metrics import Criterion, Measured, Metrics, NoisyMeasure
from tablepuppet.training.server import UnionOperator
from tablepuppet.transport.link import Link

if TYPE_CHECKING:
    import pandas as pd


class Scored(msgspec.Struct, frozen=True, eq=False):
    """A model's contributions to a query's joined rows, before they are summed: h of each block's rows, or bits."""

    model: Model
    rows: Joined
    blocks: list[Array]  # by row of each block; of trees: bits, by split and row
    union: UnionOperator

    def measure(self, blocks: Sequence[Array] | None = None, noisy: NoisyMeasure | None = None) -> Measured:
        """The model's quality; `blocks`: replace its own contributions; `noisy`: as an analyst sees it."""
        model, given = self.model, self.blocks if blocks is None else blocks
        criterion = Criterion(model.loss, Moment.FINISHED, noisy=noisy)
        if own_model(model.spec) is not None or noisy is not None:
            return measuring.measure_scores(rows_here(self.rows).with_weights(None), self.scores(given), criterion)
        rows = apply_head(self.rows, trained_head(model.head))
        return measuring.measure(rows, given, model.encoded_intercept, criterion)

    def measure_constant(self) -> Metrics:
        """How good the majority class, or the mean, of these rows would be."""
        loss, rows = self.model.loss, rows_here(self.rows)
        constant = loss.best_constant(*seen_labels(rows, rows.weights))
        return measuring.measure_constant(rows, constant, Criterion(loss, Moment.HELD_OUT))

    def scores(self, blocks: Sequence[Array] | None = None) -> Array:
        return joined_scores(self.model, rows_here(self.rows), self.blocks if blocks is None else blocks)


def score_labelled(model: Model, prepared: Prepared, link: Link, job_id: str) -> Scored:
    """Asks every client for the model's contributions to its rows, and adds the labels."""
    mapping = prepared.mapping
    found = tuple((block.name, block.features) for block in mapping.bound.blocks)
    if found != tuple((block.name, block.features) for block in model.blocks):
        raise ModelError(
            "the query does not select the features that the model was trained on; use the model's query, and compare "
            "models of the same features"
        )
    check_labels(model.loss, mapping)
    return score_rows(model, _in_classes_of(model, mapping), UnionOperator(link, job_id, mapping, model.widths))


def score_rows(model: Model, rows: Joined, union: UnionOperator) -> Scored:
    """Asks every client for the model's contributions to its rows."""
    parts = [(part, part.train_rows, part.train) for part in union.parts]
    blocks = ask_blocks(model, parts, [index.rows for index in rows.indices], union.link, union.job)
    return Scored(model, rows, blocks, union)


def _in_classes_of(model: Model, mapping: TableMapping) -> Joined:
    """The joined rows with their labels numbered as the model numbers classes."""
    classes = mapping.label.classes
    if classes == model.classes:
        return mapping.train
    unknown = len(set(classes) - set(model.classes))
    if unknown:
        raise ModelError(f"the query's label has {unknown} classes that the model does not know; retrain with them")
    number = np.array([model.classes.index(c) for c in classes], np.float64)
    return mapping.train.with_labels(number[mapping.train.labels.astype(np.intp)])


@dataclass(frozen=True, eq=False)
class Evaluation(Mapping[str, float]):
    """A model's metrics by name, and the rows that they are of."""

    metrics: Metrics
    rows: MeasuredRows
    baseline: Metrics = field(default_factory=dict)  # of the majority class, or the mean, of these rows

    def __getitem__(self, name: str) -> float:
        return self.metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)

    def to_dict(self) -> dict[str, Any]:
        return {"metrics": dict(self.metrics), "baseline": dict(self.baseline), **self.rows.to_dict()}

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:.4g}" for name, value in self.items() if value == value) + f"; {self.rows}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = [[name, number(value, 5), number(self.baseline.get(name), 5)] for name, value in self.items()]
        return fragment(str(self.rows), table(["metric", "value", "baseline"], rows))


_UPPER_QUANTILE = 0.975  # the quantile at the upper end of a 95 % interval
_NEGLIGIBLE_SHARE = 1e-4  # of the mean loss: a smaller difference is none, however sure


class Comparison(msgspec.Struct, frozen=True):
    """Two models on the same rows; `difference`: the mean loss of the second less that of the first."""

    first: Metrics
    second: Metrics
    rows: MeasuredRows
    difference: float
    standard_error: float
    margin: float  # up to which a difference may be chance, or is too small to matter; 0: there is none in any row
    baseline: Metrics = msgspec.field(default_factory=dict)  # of the majority class, or the mean, of these rows

    @property
    def is_worse(self) -> bool:
        """Whether the second model is worse, beyond chance."""
        return self.difference > self.margin

    @property
    def is_better(self) -> bool:
        return self.difference < -self.margin

    @property
    def table(self) -> "pd.DataFrame":
        import pandas as pd

        names = list(dict.fromkeys([*self.first, *self.second]))
        nan = float("nan")
        first, second, alone = ([side.get(n, nan) for n in names] for side in (self.first, self.second, self.baseline))
        differences = [b - a for a, b in zip(first, second, strict=True)]
        return pd.DataFrame(dict(zip(_HEAD, (names, first, second, differences, alone), strict=True)))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | self.rows.to_dict() | {"is_worse": self.is_worse, "is_better": self.is_better}

    def _repr_html_(self) -> str:
        rows = [[name, *(number(value, 5) for value in row)] for name, *row in self.table.itertuples(index=False)]
        return fragment(str(self), table(_HEAD, rows))

    def __str__(self) -> str:
        if self.margin == 0.0:
            return f"The two models are equal: they predict the same for {self.rows}."
        verdict = "better" if self.is_better else "worse" if self.is_worse else "neither better nor worse"
        return (
            f"The second model is {verdict}: its mean loss differs by {self.difference:+.4g} "
            f"± {self.margin:.2g} on {self.rows}."
        )

    __repr__ = __str__


_HEAD = ["metric", "first", "second", "difference", "baseline"]


def check_comparable(first: Model, second: Model) -> None:
    """Two models predict the same label, and lose by the same loss."""
    labels = [model.label.rpartition(".")[2] for model in (first, second)]
    if labels[0].lower() != labels[1].lower():
        raise ModelError(f"the models predict {' and '.join(labels)}; compare models of the same label")
    if type(first.loss) is not type(second.loss):
        raise ModelError(
            f"the models lose by {first.loss.name} and {second.loss.name}, and their rows cannot be compared one by "
            "one; compare models of the same loss, or the metrics of evaluate"
        )


def compare(first: Scored, second: Scored, measured: MeasuredRows) -> Comparison:
    """The same rows in the same order, seen by two models."""
    rows, others = rows_here(first.rows), rows_here(second.rows)
    if rows.rows != others.rows:
        raise ModelError("the tables changed between the two models; compare them again")
    loss, labels = first.model.loss, rows.joined_labels()
    before, after = loss.value(first.scores(), labels), loss.value(second.scores(), others.joined_labels())
    gained = after - before
    mean = float(gained.mean())
    index = rows.label_index.numbers(rows.rows)
    witnesses = np.bincount(index, gained - mean, minlength=1)
    error = float(np.sqrt(np.square(witnesses).sum())) / rows.rows
    least = _NEGLIGIBLE_SHARE * abs(float(before.mean())) if gained.any() else 0.0
    margin = max(likely_error(error, len(np.unique(index))), least)
    metrics = (first.measure().metrics, second.measure().metrics)
    return Comparison(*metrics, measured, mean, error, margin, first.measure_constant())


def likely_error(standard_error: float, witnesses: int) -> float:
    """Half of a 95 % interval: Student's t for this many witnesses.

    >>> round(likely_error(1.0, 1_000_000), 2), round(likely_error(1.0, 10), 2), likely_error(1.0, 1)
    (1.96, 2.26, inf)
    """
    from scipy.special import stdtrit  # not to be loaded with every run

    return float(stdtrit(witnesses - 1, _UPPER_QUANTILE)) * standard_error if witnesses > 1 else float("inf")
