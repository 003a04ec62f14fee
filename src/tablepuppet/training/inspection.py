"""What a feature does in a model: partial dependence (one value in every row) and permutation importance (shuffled).

Partial dependence. In: what a model says of joined rows, a feature and some values. Out: a row for each value: the mean
prediction, or the mean probability of each class. Who holds a part of the model keeps it so: values of the server's
choice would tell its parameters.

Permutation importance. Out: a row for every feature (or table): the rise of the mean loss where it is shuffled among
its rows, and its spread over repetitions. A table is shuffled here, by moving what it says from row to row, which asks
its owner for nothing more.

A feature is set or shuffled at its owners, who score their rows anew: each time one more number of every row leaves,
and a shuffled order is not told. A feature of boosted trees whose splits are known is set or shuffled here, by its
bits, which asks for nothing more than an evaluation does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from tablepuppet.algorithms.registry import own_model
from tablepuppet.arrays import Array
from tablepuppet.errors import JobError, ModelError, did_you_mean
from tablepuppet.exchanges.prediction import Scores
from tablepuppet.prediction.model import Model
from tablepuppet.prediction.predict import score_request
from tablepuppet.protocol.columns import CategoryEncoder, NumberEncoder
from tablepuppet.training.evaluate import Scored
from tablepuppet.training.measured_rows import MeasuredRows

if TYPE_CHECKING:
    import pandas as pd

Value = float | str | None  # None: missing
_MOST = 100  # values


@dataclass(frozen=True, slots=True)
class Varied:
    """A feature of a model, by its place, and the values that it is set to."""

    name: str
    block: int
    feature: int
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Inspection:
    """A table, row by row, and the joined rows that it is about."""

    table: list[dict[str, Any]]
    rows: MeasuredRows

    def frame(self) -> pd.DataFrame:
        """The table; its `attrs` say which rows it is about."""
        import pandas as pd  # not to be loaded with every run

        frame = pd.DataFrame(self.table)
        frame.attrs |= {**self.rows.to_dict(), "about": str(self.rows)}
        return frame


def vary_feature(model: Model, feature: str, values: Sequence[Any] | None, points: int) -> Varied:
    """The feature of that name, with or without its alias; values: by default some that the model knows of."""
    places = {name: (b, f) for b, block in enumerate(model.blocks) for f, name in enumerate(block.features)}
    wanted = str(feature).lower()
    found = [n for n in places if n.lower() == wanted] or [n for n in places if n.lower().split(".", 1)[-1] == wanted]
    if len(found) != 1:
        named = f"are {len(found)} features" if found else "is no feature"
        raise ModelError(f"there {named} {feature} in the model. {did_you_mean(str(feature), list(places))}")
    block, place = places[found[0]]
    if model.blocks[block].is_held:
        raise ModelError(
            f"the owners of {model.blocks[block].table} hold their part of the model, and values of your choice would "
            "tell its parameters; choose a feature of another table"
        )
    if values is None and not 2 <= points <= _MOST:
        raise JobError(f"points must be from 2 to {_MOST}")
    chosen = _usual(model, block, place, points) if values is None else [_plain(value) for value in values]
    if not 1 <= len(chosen) <= _MOST:
        raise JobError(f"values must be 1 to {_MOST} numbers or texts")
    return Varied(found[0], block, place, tuple(chosen))


def partial_dependence(scored: Scored, given: Varied) -> list[dict[str, Any]]:
    """Columns value, and prediction, probability (of the second class), or probability_<class>."""
    model = scored.model
    found: list[dict[str, Any]] = []
    for value in given.values:
        changed = list(scored.blocks)
        changed[given.block] = _set(scored, given, value)
        found.append({"value": value, **_mean(model, scored.scores(changed))})
    return found


def _mean(model: Model, scores: Array) -> dict[str, float]:
    probabilities = model.loss.probabilities(scores)
    if probabilities is None or not model.classes:
        return {"prediction": float(np.mean(model.loss.predict(scores)))}
    if model.outputs == 1:
        return {"probability": float(probabilities[:, 1].mean())}
    means = probabilities.mean(axis=0)
    return {f"probability_{c}": float(mean) for c, mean in zip(_names(model), means, strict=True)}


def _names(model: Model) -> list[str]:
    return cast("list[str]", pa.array(model.classes).cast(pa.string()).to_pylist())


def _set(scored: Scored, given: Varied, value: Value) -> Array:
    """What a block says once a feature of it has one value in all rows."""
    own = own_model(scored.model.spec)
    if own is not None:
        return own.set_feature(scored.model, given.block, scored.blocks[given.block], given.feature, value)
    return _score_again(scored, given.block, fixed=given.feature, value=value)


def _score_again(scored: Scored, block: int, **change: Any) -> Array:
    """What a block's owners say of its rows with one feature changed."""
    union, parts, own = scored.union, scored.union.blocks[block], scored.blocks[block].copy()
    requests = [(p, score_request(scored.model, p, p.train_rows, union.job, **change)) for p in parts]
    answers = union.exchange(requests, "evaluation")
    for part in parts:
        own[part.train] = cast("Scores", answers[part.number][0]).values
    return own


def _usual(model: Model, block: int, feature: int, points: int) -> Sequence[Value]:
    """Of a number: from two deviations below its mean to two above, or between the borders of trees; of a text: the
    categories that the model knows."""
    held = model.blocks[block]
    name = held.features[feature]
    own = own_model(model.spec)
    if own is not None:
        if values := own.usual_values(model, block, feature, points):
            return values
    elif isinstance(encoder := held.encoders[feature], CategoryEncoder) and encoder.categories:
        return encoder.categories[:points]
    elif isinstance(encoder, NumberEncoder) and len(encoder.mean) == 1 and encoder.scale[0] > 0:
        middle, width = float(encoder.fill[0]), float(encoder.scale[0])
        if encoder.mean.any() or width != 1.0:  # else numbers were left as they are
            return [float(v) for v in np.linspace(middle - 2 * width, middle + 2 * width, points)]
    raise JobError(f"the model does not say which values {name} has; name some: values=[…]")


def _plain(value: Any) -> Value:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | int | float | np.number | np.bool_) and np.isfinite(value):
        return float(value)
    raise JobError("values are finite numbers, texts or None; a date is a number, of days since 1970-01-01")


def permutation_importance(scored: Scored, *, by: str, repeats: int, seed: int) -> list[dict[str, Any]]:
    """Columns table, feature (by="feature"), importance, std; the most important first."""
    base = scored.measure().loss
    rng = np.random.default_rng(seed)
    found: list[dict[str, Any]] = []
    for block, feature, name in _units(scored, by):
        losses = []
        for _ in range(repeats):
            changed = list(scored.blocks)
            changed[block] = _shuffle(scored, block, feature, rng)
            losses.append(scored.measure(changed).loss - base)
        own = {"table": scored.model.blocks[block].table, **({} if name is None else {"feature": name})}
        found.append(own | {"importance": float(np.mean(losses)), "std": float(np.std(losses))})
    return sorted(found, key=lambda row: -row["importance"])


def _units(scored: Scored, by: str) -> Iterator[tuple[int, int | None, str | None]]:
    for number, block in enumerate(scored.model.blocks):
        if by == "table":
            yield number, None, None
        else:
            yield from ((number, place, name) for place, name in enumerate(block.features))


def _shuffle(scored: Scored, block: int, feature: int | None, rng: np.random.Generator) -> Array:
    """What a block says once a feature of it, or all of them, are shuffled."""
    said, own = scored.blocks[block], own_model(scored.model.spec)
    if own is not None:
        return own.shuffle_feature(scored.model, block, said, feature, rng)
    if feature is None:
        return said[rng.permutation(len(said))]
    return _score_again(scored, block, shuffled=[feature])
