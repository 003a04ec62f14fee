"""The effect of a feature in a model, and the drift of a query's rows from those that the model was trained on.

Partial dependence sets a feature to one value in every row. Out: a row for each value: the mean prediction, or the mean
probability of each class. A feature whose owner holds its part of the model is refused: chosen values would reveal the
part's parameters.

Permutation importance shuffles a feature, or a table. Out: the rise of the mean loss, in the units of the metric that
scikit-learn has for it, and its spread over repetitions. A table, or a feature of boosted trees whose splits are known,
is shuffled here among joined rows, without another request to its owner.

Otherwise owners set or shuffle a feature and score their rows anew: each time one more number of every row leaves. They
keep the shuffled order to themselves.

Drift compares the statistics of the query's features, as training would agree on them, with the encoders that a model
keeps. It compares the tables' matches with the model's profile. Nothing is trained or scored.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import asdict, replace

from tablepuppet.algorithms.registry import own_model, require_ability
from tablepuppet.arrays import Array
from tablepuppet.errors import JobError, ModelError, did_you_mean
from tablepuppet.join.mapping import MappingSummary, rows_here
from tablepuppet.join.row_index import RowIndex
from tablepuppet.prediction.model import Model
from tablepuppet.prediction.predict import class_names, score_request
from tablepuppet.prediction.split_record import MeasuredRows
from tablepuppet.protocol.columns import CategoryEncoder, Encoder, IdEncoder, NumberEncoder
from tablepuppet.training.evaluate import Scored
from tablepuppet.training.metrics import Measured

if TYPE_CHECKING:
    import pandas as pd


Value = float | str | None  # None: missing
_MAX_VALUES = 100  # values


class Varied(msgspec.Struct, frozen=True):
    """A feature of a model, by its place, and the values that it is set to."""

    name: str
    block: int
    feature: int
    values: tuple[Value, ...]


class Inspection(msgspec.Struct, frozen=True):
    """A table, row by row, and the joined rows that it is about."""

    table: list[dict[str, Any]]
    rows: MeasuredRows

    def frame(self) -> "pd.DataFrame":
        """The table; its `attrs` name the rows that it is about."""
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
        wrong = f"there {named} {feature} in the model" if feature else 'name a feature, as in feature="i.price"'
        raise ModelError(f"{wrong}. {did_you_mean(str(feature), list(places))}")
    block, place = places[found[0]]
    if model.blocks[block].is_held:
        raise ModelError(
            f"the owners of {model.blocks[block].table} hold their part of the model, and values of your choice would "
            "tell its parameters; choose a feature of another table"
        )
    if values is None and not 2 <= points <= _MAX_VALUES:
        raise JobError(f"points must be from 2 to {_MAX_VALUES}")
    chosen = _usual(model, block, place, points) if values is None else [_plain(value) for value in values]
    encoder = None if own_model(model.spec) is not None else model.blocks[block].encoders[place]
    if isinstance(encoder, NumberEncoder) and any(isinstance(value, str) for value in chosen):
        raise JobError(f"{found[0]} is a number; give numbers, or None, as its values")
    if isinstance(encoder, CategoryEncoder):
        others = [value for value in chosen if value is not None and value not in encoder.categories]
        if others and not (encoder.has_other and all(isinstance(value, str) for value in others)):
            known = did_you_mean(str(others[0]), [str(name) for name in encoder.categories])
            raise JobError(f"{found[0]} has no category {others[0]!r} in the model. {known}")
    if not 1 <= len(chosen) <= _MAX_VALUES:
        raise JobError(f"values must be 1 to {_MAX_VALUES} numbers or texts")
    return Varied(found[0], block, place, tuple(chosen))


def partial_dependence(scored: Scored, given: Varied) -> list[dict[str, Any]]:
    """Columns value, and prediction, probability (of the second class), or probability_<class>."""
    model, own, found = scored.model, own_model(scored.model.spec), []
    for value in given.values:
        changed = list(scored.blocks)
        if own is None:
            changed[given.block] = _score_again(scored, given.block, fixed=given.feature, value=value)
        else:
            changed[given.block] = own.set_feature(model, given.block, changed[given.block], given.feature, value)
        found.append({"value": value, **_mean(model, scored.scores(changed))})
    return found


def _mean(model: Model, scores: Array) -> dict[str, float]:
    probabilities = model.loss.probabilities(scores)
    if probabilities is None or not model.classes:
        return {"prediction": float(np.mean(model.loss.predict(scores)))}
    if model.outputs == 1:
        return {"probability": float(probabilities[:, 1].mean())}
    means = probabilities.mean(axis=0)
    return {f"probability_{c}": float(mean) for c, mean in zip(class_names(model.classes), means, strict=True)}


def _score_again(scored: Scored, block: int, **change: Any) -> Array:
    """The contributions of a block's rows, from its owners, with one feature changed."""
    union, parts, own = scored.union, scored.union.blocks[block], scored.blocks[block].copy()
    requests = [(p.client, score_request(scored.model, p, p.train_rows, union.job, **change)) for p in parts]
    for part, answer in zip(parts, union.link.ask_each(requests, "evaluation"), strict=True):
        own[part.train] = answer.values
    return own


def _usual(model: Model, block: int, feature: int, points: int) -> Sequence[Value]:
    """Of a number: from two deviations below its mean to two above, or between the borders of trees. Of a text: the
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
    loss, unweighted = scored.model.loss, rows_here(scored.rows).with_weights(None)
    scored = replace(scored, rows=unweighted)
    unit = 2.0 if loss.is_quadratic else next((m.of_loss for m in loss.metrics if m.of_loss), 1.0)
    base = scored.measure().loss
    rng = np.random.default_rng(seed)
    found: list[dict[str, Any]] = []
    for number, block in enumerate(scored.model.blocks):
        for place in range(len(block.features)) if by == "feature" else (None,):
            losses = [unit * (_shuffle(scored, number, place, rng).loss - base) for _ in range(repeats)]
            own = {"table": block.table, **({} if place is None else {"feature": block.features[place]})}
            found.append(own | {"importance": float(np.mean(losses)), "std": float(np.std(losses))})
    return sorted(found, key=lambda row: -row["importance"])


def _shuffle(scored: Scored, block: int, feature: int | None, rng: np.random.Generator) -> Measured:
    """The model's quality once a feature of a block, or all of them, are shuffled."""
    own = own_model(scored.model.spec)
    if own is None and feature is not None:
        changed = list(scored.blocks)
        changed[block] = _score_again(scored, block, shuffled=[feature])
        return scored.measure(changed)
    rows = rows_here(scored.rows)
    index = rows.indices[block]
    moved = RowIndex.of(index.numbers(rows.rows)[rng.permutation(rows.rows)], index.rows)
    if own is not None and feature is not None:
        parted, indices = own.part_feature(scored.model, block, feature), (*rows.indices, moved)
        return replace(scored, model=parted, rows=replace(rows, indices=indices)).measure(
            [*scored.blocks, scored.blocks[block]]
        )
    indices = (*rows.indices[:block], moved, *rows.indices[block + 1 :])
    return replace(scored, rows=replace(rows, indices=indices, state={})).measure()


class FeatureDrift(msgspec.Struct, frozen=True):
    """One feature: numbers in standard deviations of training, categories by how many are new."""

    table: str
    feature: str
    shift: float = 0.0  # of the mean, in training's standard deviations
    spread: float = 1.0  # standard deviation now over then
    new_categories: int = 0
    lost_categories: int = 0
    is_newly_missing: bool = False  # there are NULLs, and in training there were none
    moved: float = 0.0  # of noisy trees: the share of rows that went up beyond a border, more than noise may be


class JoinDrift(msgspec.Struct, frozen=True):
    """One table of the join: which share of its rows find partners."""

    alias: str
    table: str
    rows: int
    rows_then: int
    matched: float
    matched_then: float


class Drift(msgspec.Struct, frozen=True):
    """All features and tables; `found` describes in sentences those beyond the limits."""

    features: tuple[FeatureDrift, ...]
    joins: tuple[JoinDrift, ...]

    def found(self, *, shift: float = 0.25, spread: float = 2.0, matched: float = 0.05) -> list[str]:
        """All drift: a mean by so many standard deviations, a spread by a factor, matches and sides of borders by a
        share of rows."""
        said = []
        for f in self.features:
            if abs(f.shift) > shift:
                said.append(f"{f.feature}: its mean moved by {f.shift:+.2g} standard deviations")
            if not 1 / spread <= f.spread <= spread:
                said.append(f"{f.feature}: its spread is {f.spread:.2g} times what it was")
            if abs(f.moved) > matched:
                said.append(
                    f"{f.feature}: {abs(f.moved):.1%} of rows went {'up' if f.moved > 0 else 'down'} past a border"
                )
            if f.new_categories:
                said.append(f"{f.feature}: {f.new_categories:,} categories are new")
            if f.is_newly_missing:
                said.append(f"{f.feature}: values are missing, and none were in training")
        for j in self.joins:
            if abs(j.matched - j.matched_then) > matched:
                said.append(
                    f"{j.alias} ({j.table}): {j.matched:.1%} of its rows find partners, {j.matched_then:.1%} then"
                )
        return said

    @property
    def table(self) -> "pd.DataFrame":
        import pandas as pd

        return pd.DataFrame([asdict(f) for f in self.features])

    def to_dict(self) -> dict[str, Any]:
        return {"features": [asdict(f) for f in self.features], "joins": [asdict(j) for j in self.joins]}

    def _repr_html_(self) -> str:
        return str(self.table.to_html(index=False, float_format="%.4g"))

    def __str__(self) -> str:
        return "\n".join(self.found()) or "The rows are like those that the model was trained on."

    __repr__ = __str__


def measure_drift(model: Model, encoders: Sequence[Sequence[Encoder]], mapping: MappingSummary) -> Drift:
    """The model's encoders compared with those that its query would get now."""
    require_ability(model.spec, "drift")
    then = {(b.name, f): (b.table, e) for b in model.blocks for f, e in zip(b.features, b.encoders, strict=False)}
    features = []
    for block, own in zip(mapping.bound.blocks, encoders, strict=True):
        for name, now in zip(block.features, own, strict=True):
            known = then.get((block.name, name))
            if known is None:
                raise ModelError(
                    f"the model has no feature {name}, or its owner keeps how it is encoded; use its query"
                )
            features.append(_feature(known[0], name, known[1], now))
    before = {p["alias"]: p for p in model.metadata.get("joins", ())}
    joins = []
    for fit in mapping.fits:
        rows, matched = (before.get(fit.alias, {}).get(key) for key in ("rows", "matched"))
        if rows is not None and matched is not None:
            shares = (fit.matched / max(1, fit.rows), matched / max(1, rows))
            joins.append(JoinDrift(fit.alias, fit.table, fit.rows, int(rows), *shares))
    return Drift(tuple(features), tuple(joins))


def _feature(table: str, name: str, then: Encoder, now: Encoder) -> FeatureDrift:
    missing = now.has_missing and not then.has_missing
    if isinstance(then, IdEncoder) or isinstance(now, IdEncoder):  # whose ids they are stays with their owner
        return FeatureDrift(table, name, is_newly_missing=missing)
    if isinstance(then, CategoryEncoder) and isinstance(now, CategoryEncoder):
        new, lost = set(now.categories) - set(then.categories), set(then.categories) - set(now.categories)
        seen = 0 if then.has_other else len(new)
        return FeatureDrift(table, name, new_categories=seen, lost_categories=len(lost), is_newly_missing=missing)
    if not isinstance(then, NumberEncoder) or not isinstance(now, NumberEncoder) or then.mean.size != now.mean.size:
        raise ModelError(f"{name} is of another type than in training; use the model's query")
    scale = np.where(then.scale > 0, then.scale, 1.0)
    moved = (now.fill - then.fill) / scale
    largest = int(np.argmax(np.abs(moved)))
    ratios = np.where(then.scale > 0, now.scale / scale, 1.0)
    widest = int(np.argmax(np.abs(np.log(np.maximum(ratios, 1e-12)))))
    return FeatureDrift(table, name, float(moved[largest]), float(ratios[widest]), is_newly_missing=missing)
