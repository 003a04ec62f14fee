"""Prediction: a trained model's share of rows, and the columns that name them."""

from __future__ import annotations

from typing import ClassVar

import pyarrow as pa

from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.models.spec import ModelSpec
from tablepuppet.protocol.base import Message, Stage, Telling, Tells
from tablepuppet.protocol.features import Encoder


class ScoreRows(Message, frozen=True):
    """Encode these rows of a scan like this and predict them with θ. → Scores"""

    stage: ClassVar[Stage] = "score"
    tells: ClassVar[Telling] = (Tells("theta", "model"),)
    job: str
    scan: int
    columns: list[int]
    rows: RowNumbers
    encoders: list[Encoder]
    theta: Array
    model: ModelSpec
    name: str  # the block's
    outputs: int  # d_c


class ScoreOwnRows(Message, frozen=True):
    """Predict these rows of a scan with the part of a model that you hold. → Scores"""

    stage: ClassVar[Stage] = "score own"
    tells: ClassVar[Telling] = ()
    job: str
    scan: int
    columns: list[int]
    rows: RowNumbers
    model: str
    name: str  # the block's


class Scores(Message, frozen=True):
    tells: ClassVar[Telling] = (Tells("values", "scores", is_per_row=True),)
    values: Array  # h of the rows asked for


class SendIdentifiers(Message, frozen=True):
    """Send the columns that name the rows of a scan in the answer to a prediction. → Identifiers"""

    stage: ClassVar[Stage] = "identify"
    tells: ClassVar[Telling] = ()
    job: str
    scan: int
    columns: list[int]


class Identifiers(Message, frozen=True):
    tells: ClassVar[Telling] = (Tells("columns", "identifiers"),)
    columns: pa.Table
