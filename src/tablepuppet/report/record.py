"""RunRecord: a training run as plain data, for reports, files and other programs.

JSON holds a record in full, and gives it back. The report is rendered from records alone, so a saved run and one that
has just ended (recording.py) look the same.
"""

from pathlib import Path
from typing import Any, Literal

import msgspec

from tablepuppet.errors import ModelError, unreadable
from tablepuppet.join.mapping import RelationStats
from tablepuppet.plan.knowledge import Exposure, Insight
from tablepuppet.protocol.evidence import TreeHead


class _Plain(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Data only; numbers that are not finite are None."""


class PartRecord(_Plain, frozen=True):
    """One client's share of a block."""

    client: str
    train_rows: int
    test_rows: int  # held out: for the test, or for validation


class BlockRecord(_Plain, frozen=True):
    """One position of the join that contributes features."""

    name: str
    table: str
    features: list[str]
    width: int  # encoded columns, d_i
    rows: int  # training rows of the table, n_i
    max_multiplicity: int
    parts: list[PartRecord]


class ReleaseRecord(_Plain, frozen=True):
    """One claim of the privacy ledger: the spending on a table's rows, towards an observer."""

    what: str
    table: str
    observer: str
    epsilon: float | None
    delta: float
    claim: str  # in words, with unit, sampling and cap


class DataRecord(_Plain, frozen=True):
    relations: list[RelationStats]
    blocks: list[BlockRecord]
    train_rows: int
    test_rows: int
    outputs: int  # d_c
    validation_rows: int = 0


class Epoch(_Plain, frozen=True):
    """The state after one epoch; counts are running totals of the training rounds."""

    epoch: int
    objective: float | None
    metrics: dict[str, dict[str, float | None]]
    rounds: int
    bytes: int
    slowest_bytes: int  # Σ over rounds of the bytes on the slowest path
    seconds: float
    residuals: dict[str, float | None]


class NumbersRecord(_Plain, frozen=True):
    """Predictions of a number for one side's rows, counted."""

    centres: list[float]  # of the cells, along either side
    cells: list[list[int]]  # rows by label (down) and prediction (across)
    residual: list[float]
    rows: list[int]


class CurvesRecord(_Plain, frozen=True):
    """Predictions for one side's rows, counted; the columns of curves, where there are two classes."""

    classes: list[str | int | float | bool]
    confusion: list[list[int]]  # of each class (down), predicted to be of each (across)
    calibration: dict[str, list[float]] = {}  # predicted, observed, rows
    precision_recall: dict[str, list[float]] = {}  # threshold, precision, recall, f1, predicted
    numbers: NumbersRecord | None = None


class DependenceRecord(_Plain, frozen=True):
    """A model's mean prediction if a feature has the same value in all rows."""

    feature: str
    values: list[float | str | None]  # None: missing
    means: dict[str, list[float]]  # prediction, probability, or probability_<class>: one for each value
    about: str = ""  # over which rows


class Coefficients(_Plain, frozen=True):
    """Columns of the coefficient table; `scaled` are the weights of the encoded columns."""

    table: list[str]
    feature: list[str]
    class_: list[str | int | float | bool | None]
    weight: list[float | None]
    scaled: list[float | None]


class AccountRecord(_Plain, frozen=True):
    rounds: int
    bytes_up: int
    bytes_down: int
    payload_up: int
    payload_down: int
    slowest_bytes: int
    by_message: dict[str, int]
    by_client: dict[str, int]


class TrafficRecord(_Plain, frozen=True):
    training: AccountRecord
    setup: AccountRecord
    evaluation: AccountRecord


class MeasuredRecord(_Plain, frozen=True):
    """Drawn joined rows that the metrics of a side are of."""

    rows: int
    of: int
    standard_errors: dict[str, float]


class RunRecord(_Plain, frozen=True, kw_only=True):
    format: Literal["tablepuppet-run/1"] = "tablepuppet-run/1"
    name: str
    created: str  # UTC, ISO 8601
    job: dict[str, Any]
    data: DataRecord
    objective: float | None
    metrics: dict[str, dict[str, float | None]]
    baseline: dict[str, float | None] = {}  # of a constant, on test rows, or on training rows without any
    baseline_name: str = "constant"  # majority class, mean
    history: list[Epoch]
    epoch: int = 0  # whose parameters the model has; 0 in older records: the last one's
    converged: bool | None = None  # None: an older record, without it
    notes: list[str] = []  # problems, and how to proceed
    measured: dict[str, MeasuredRecord] = {}  # by side, where metrics are not of all rows
    coefficients: Coefficients | None
    # table, feature, and of trees: Σ gain, splits; of a linear model: how far it moves the score, None
    importance: list[tuple[str, str, float | None, float | None]] = []
    trees: list[str] = []  # the first of them, in words
    curves: dict[str, CurvesRecord] = {}  # by side
    dependence: list[DependenceRecord] = []  # of requested features
    intercept: list[float | None]  # on the original scale for linear models, else added to the scores
    traffic: TrafficRecord
    explanation: str  # the plan, with the run's counts next to the estimates
    insights: list[Insight]
    exposures: list[Exposure]
    ledger: list[ReleaseRecord] = []
    heads: dict[str, TreeHead] = {}  # of owners' logs, with their agreement: `tablepuppet log verify --expect` has them
    environment: dict[str, str]


def to_json(record: RunRecord) -> str:
    return msgspec.json.format(msgspec.json.encode(record), indent=1).decode()


def read_dependence(path: str | Path) -> list[DependenceRecord]:
    """The curves in a file that `tablepuppet dependence --json` wrote."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=dict[str, list[DependenceRecord]])["dependence"]
    except OSError as error:
        raise ModelError(unreadable(path, error)) from None
    except (msgspec.MsgspecError, KeyError) as error:
        raise ModelError(f"{path} holds no curves: {error}; write it with tablepuppet dependence --json") from None


def read_record(path: str | Path) -> RunRecord:
    """A record from a file that `Result.to_json` or `tablepuppet train --json` wrote."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=RunRecord)
    except IsADirectoryError:
        raise ModelError(
            f"{path} is a folder, and a report is made from run records; name the files, as in {path}/*.json (a saved "
            "model keeps no history: write its run with Result.to_json, or with tablepuppet train --json)"
        ) from None
    except OSError as error:
        raise ModelError(unreadable(path, error)) from None
    except msgspec.MsgspecError as error:
        raise ModelError(
            f"{path} is not a run that this version reads: {error}; write it with Result.to_json"
        ) from None
