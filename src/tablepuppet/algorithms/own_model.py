"""What an algorithm with a model of its own (`Algorithm.own_model`) answers in place of the other rooms.

A model whose score is no sum, or head, of table scores has rounds, a plan and predictions of its own. The rooms ask
`registry.own_model` for them and find None for all other models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tablepuppet.algorithms.shape import Shape
from tablepuppet.arrays import Array


class OwnModel(Protocol):
    """Types of later rooms are not named here: each method has that of the function whose place it takes."""

    exposure_title: str  # of what the server may see of a row
    unmatched: str  # what LEFT JOIN leaves of a row without a partner

    def run(self, prepared: Any, link: Any, job_id: str, on_round: Any) -> Any:
        """Trains the model (training/run.py)."""

    def check_exposure(self, shape: Shape, job: Any) -> None:
        """Refuses a private job that lets the server reconstruct rows (plan/knowledge.py)."""

    def advise(self, shape: Shape, options: Any) -> Any:
        """Advice (plan/costs.py)."""

    def insights(self, mapping: Any, shape: Shape, job: Any) -> list[Any]:
        """Who learns what (plan/knowledge.py)."""

    def exposures(self, shape: Shape, options: Any) -> list[Any]:
        """What the server may see of a row (plan/knowledge.py)."""

    def disclosures(self, mapping: Any, shape: Shape, job: Any) -> dict[Any, int]:
        """What a run discloses to whom (plan/disclosure.py)."""

    def fingerprints(self, model: Any) -> dict[str, str]:
        """What is applied to each block, by name (prediction/predict.py)."""

    def ask_rows(self, model: Any, parts: Sequence[Any], sizes: Sequence[int], link: Any, job: str) -> list[Any]:
        """What owners say of their rows, by block (prediction/predict.py)."""

    def check_columns(self, block: Any, columns: Sequence[Any]) -> None:
        """Refuses columns of other types than those a block was trained on (prediction/predict.py)."""

    def scores(self, model: Any, told: Sequence[Any], numbers: Sequence[Any], rows: int) -> Array:
        """The score of every joined row, from what owners said (prediction/predict.py)."""

    def importance(self, model: Any) -> Any:
        """How far each feature moves the score, as a data frame (prediction/model.py)."""

    def set_feature(self, model: Any, block: int, told: Array, feature: int, value: Any) -> Array:
        """What owners of a block say once a feature has one value in all rows (training/inspection.py)."""

    def shuffle_feature(self, model: Any, block: int, told: Array, feature: int | None, rng: Any) -> Array:
        """The same once a feature, or the block, is shuffled among rows (training/inspection.py)."""

    def usual_values(self, model: Any, block: int, feature: int, points: int) -> Sequence[Any]:
        """Values at which to look at a feature; none: the model knows none (training/inspection.py)."""
