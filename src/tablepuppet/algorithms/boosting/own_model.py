"""Boosted trees in the rooms that plan, train, evaluate and predict (algorithms/own_model.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tablepuppet.algorithms.boosting import inspection, plan, prediction
from tablepuppet.algorithms.shape import Shape
from tablepuppet.arrays import Array
from tablepuppet.owner.part_store import check_splits


class TreesModel:
    """Trees whose splits ask the tables in turn."""

    exposure_title = "Exposure: bits that the server may be told of one row, against all that its bins have"
    unmatched = "stay, all their values there missing"

    def run(self, prepared: Any, link: Any, job_id: str, on_round: Any) -> Any:
        from tablepuppet.algorithms.boosting.engine import run_boosting  # here: it loads the compiler of kernels

        return run_boosting(prepared, link, job_id, on_round)

    def check_exposure(self, shape: Shape, job: Any) -> None:
        plan.check_tree_exposure(shape, job)

    def advise(self, shape: Shape, options: Any) -> Any:
        return plan.advise_trees(shape, options)

    def insights(self, mapping: Any, shape: Shape, job: Any) -> list[Any]:
        return list(plan.tree_insights(mapping, shape, job))

    def exposures(self, shape: Shape, options: Any) -> list[Any]:
        return list(plan.tree_exposures(shape, options))

    def disclosures(self, mapping: Any, shape: Shape, job: Any) -> dict[Any, int]:
        return dict(plan.tree_disclosures(mapping, shape, job))

    def fingerprints(self, model: Any) -> dict[str, str]:
        return prediction.grown(model).names

    def ask_rows(self, model: Any, parts: Sequence[Any], sizes: Sequence[int], link: Any, job: str) -> list[Any]:
        return list(prediction.ask_bits(model, parts, sizes, link, job))

    def check_columns(self, block: Any, columns: Sequence[Any]) -> None:
        check_splits(block.features, columns, block.splits)

    def scores(self, model: Any, told: Sequence[Any], numbers: Sequence[Any], rows: int) -> Array:
        return prediction.tree_scores(model, told, numbers, rows)

    def importance(self, model: Any) -> Any:
        return inspection.tree_importance(model)

    def set_feature(self, model: Any, block: int, told: Any, feature: int, value: Any) -> Any:
        return inspection.set_feature(model, block, told, feature, value)

    def shuffle_feature(self, model: Any, block: int, told: Any, feature: int | None, rng: Any) -> Any:
        return inspection.shuffle_feature(model, block, told, feature, rng)

    def usual_values(self, model: Any, block: int, feature: int, points: int) -> Sequence[Any]:
        return inspection.usual_values(model, block, feature, points)


OWN_MODEL = TreesModel()
