"""An algorithm's own model (`Algorithm.own_model`), and the functions that replace those of the other packages.

A model whose score is no sum, or head, of table scores has rounds, a plan and predictions of its own. The packages ask
`registry.own_model` for them and find None for all other models. `registry.require_ability` refuses whatever such a
model cannot do, so no package names an algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from tablepuppet.algorithms.shape import Shape
from tablepuppet.arrays import Array
from tablepuppet.models.losses import Loss
from tablepuppet.privacy.ledger import Release

Ability = Literal["coefficients", "drift", "export", "module"]


class OwnNoise(msgspec.Struct, frozen=True):
    """How the noise on a whole model keeps feature privacy; such a run is not cut short."""

    rounds: int  # releases of a run
    releases: Sequence[Release]  # of the model to outsiders
    form: Any  # for the algorithm's own use


class Root(msgspec.Struct, frozen=True):
    """The first split of a tree."""

    block: int
    feature: int
    now: tuple[float, float]  # the weight of joined rows on its left and right
    then: tuple[float, float]  # the same of training rows, as the model has it


class OwnModel(msgspec.Struct, frozen=True):
    """Types of later rooms are not named here: each function has those of the one whose place it takes."""

    exposure_title: str  # of the list of a row's facts that the server may see
    unmatched: str  # the values of a row without a partner in a LEFT JOIN
    refusals: Mapping[Ability, str]  # messages about abilities that it lacks; {what}: the form that users asked for
    run: Callable[[Any, Any, str, Any], Any]  # training/run.py: a job that is prepared, link, job's name, callback
    continue_from: Callable[[Any], Any]  # of a model or its folder: the state from which a job continues it

    # plan/: of the shape of a job, and the job or its options
    check_exposure: Callable[[Shape, Any], None]  # refuses a private job that lets the server reconstruct rows
    advise: Callable[[Shape, Any], Any]
    insights: Callable[[Any, Shape, Any], list[Any]]  # who learns what
    exposures: Callable[[Shape, Any], list[Any]]  # facts about a row that the server may see
    plan_noise: Callable[[Any, Any, Loss, float, float], OwnNoise]  # of a job, its mapping, a typical slope and weight

    # prediction/
    fingerprints: Callable[[Any], dict[str, str]]  # of a model: of its part for each block, by name
    ask_rows: Callable[[Any, Sequence[Any], Sequence[int], Any, str], list[Any]]  # owners' answers, by block
    check_columns: Callable[[Any, Sequence[Any]], None]  # refuses other types than those a block was trained on
    scores: Callable[[Any, Sequence[Any], Sequence[Any], int], Array]  # of joined rows, from the owners' answers
    importance: Callable[[Any], Any]  # how far each feature moves the score, as a data frame
    root_sums: Callable[[Any, Sequence[Any], Sequence[Any], int], list[Root]]  # of the same rows as their scores

    # training/inspection.py: answers of a block's owners once a feature is changed
    set_feature: Callable[[Any, int, Any, int, Any], Any]  # one value in all rows
    shuffle_feature: Callable[[Any, int, Any, int | None, Any], Any]  # a feature, or the block, among rows
    usual_values: Callable[[Any, int, int, int], Sequence[Any]]  # of a feature; none: the model knows none
