"""drift: how the rows of a query differ from those that a model was trained on.

In: the statistics of the query's features as training would agree on them, and how its tables meet; the encoders and
the profile that a model keeps of its training. Out: Drift. Nothing is trained or scored: owners tell what they tell
for an explanation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tablepuppet.algorithms.registry import own_model
from tablepuppet.errors import ModelError
from tablepuppet.join.mapping import MappingSummary
from tablepuppet.prediction.model import Model
from tablepuppet.protocol.columns import CategoryEncoder, Encoder, IdEncoder, NumberEncoder

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class FeatureDrift:
    """One feature: numbers in standard deviations of training, categories by how many are new."""

    table: str
    feature: str
    shift: float = 0.0  # of the mean, in training's standard deviations
    spread: float = 1.0  # standard deviation now over then
    new_categories: int = 0
    lost_categories: int = 0
    is_newly_missing: bool = False  # there are NULLs, and in training there were none


@dataclass(frozen=True, slots=True)
class JoinDrift:
    """One table of the join: which share of its rows find partners."""

    alias: str
    table: str
    rows: int
    rows_then: int
    matched: float
    matched_then: float


@dataclass(frozen=True, slots=True)
class Drift:
    """All features and tables; `found` says in sentences what is beyond the limits."""

    features: tuple[FeatureDrift, ...]
    joins: tuple[JoinDrift, ...]

    def found(self, *, shift: float = 0.25, spread: float = 2.0, matched: float = 0.05) -> list[str]:
        """What has drifted: a mean by so many standard deviations, a spread by a factor, matches by a share of rows."""
        said = []
        for f in self.features:
            if abs(f.shift) > shift:
                said.append(f"{f.feature}: its mean moved by {f.shift:+.2g} standard deviations")
            if not 1 / spread <= f.spread <= spread:
                said.append(f"{f.feature}: its spread is {f.spread:.2g} times what it was")
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
    def table(self) -> pd.DataFrame:
        """A row for every feature."""
        import pandas as pd

        return pd.DataFrame([asdict(f) for f in self.features])

    def to_dict(self) -> dict[str, Any]:
        return {"features": [asdict(f) for f in self.features], "joins": [asdict(j) for j in self.joins]}

    def _repr_html_(self) -> str:
        return str(self.table.to_html(index=False, float_format="%.4g"))

    def __str__(self) -> str:
        return "\n".join(self.found()) or "The rows are like those that the model was trained on."


def measure_drift(model: Model, encoders: Sequence[Sequence[Encoder]], mapping: MappingSummary) -> Drift:
    """The model's encoders beside those that its query would get now."""
    if own_model(model.spec) is not None:
        raise ModelError(
            "boosted trees keep no mean or spread of their features to compare with; drift looks at linear and neural "
            "models, and evaluate measures trees on new rows"
        )
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
        return FeatureDrift(
            table,
            name,
            new_categories=0 if then.has_other else len(new),
            lost_categories=len(lost),
            is_newly_missing=missing,
        )
    if not isinstance(then, NumberEncoder) or not isinstance(now, NumberEncoder) or then.mean.size != now.mean.size:
        raise ModelError(f"{name} is of another type than in training; use the model's query")
    scale = np.where(then.scale > 0, then.scale, 1.0)
    moved = (now.fill - then.fill) / scale
    largest = int(np.argmax(np.abs(moved)))
    ratios = np.where(then.scale > 0, now.scale / scale, 1.0)
    widest = int(np.argmax(np.abs(np.log(np.maximum(ratios, 1e-12)))))
    return FeatureDrift(table, name, float(moved[largest]), float(ratios[widest]), is_newly_missing=missing)
