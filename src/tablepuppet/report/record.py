"""RunRecord: a training run as plain data, for reports, files and other programs.

In: a Result. Out: a frozen record that JSON holds in full, and back. The report is rendered from
records alone, so a run that was saved yesterday and one that has just ended look the same.
"""

from __future__ import annotations

import math
import platform
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from tablepuppet.errors import ModelError
from tablepuppet.tables.features import encoded_width

if TYPE_CHECKING:
    from tablepuppet.engine.result import EpochRecord, Result
    from tablepuppet.prediction.model import BlockModel
    from tablepuppet.transport.meter import Account

LIBRARIES = ("numpy", "scipy", "pandas", "pyarrow", "duckdb", "sqlglot")


class _Plain(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Data only; numbers that are not finite are None."""


class RelationRecord(_Plain, frozen=True):
    """One alias of the FROM clause, and how its rows met the others."""

    alias: str
    table: str
    clients: int
    rows: int
    matched: int
    max_fan_out: int
    mean_fan_out: float | None
    is_outer: bool


class PartRecord(_Plain, frozen=True):
    """One client's share of a block."""

    client: str
    train_rows: int
    test_rows: int


class BlockRecord(_Plain, frozen=True):
    """One position of the join that contributes features."""

    name: str
    table: str
    features: list[str]
    width: int  # encoded columns, d_i
    rows: int  # training rows of the table, n_i
    max_multiplicity: int
    parts: list[PartRecord]


class InsightRecord(_Plain, frozen=True):
    """What one party saw."""

    party: str
    learns: list[str]


class ExposureRecord(_Plain, frozen=True):
    """How many numbers the server may have seen that depend on one row, against the row's encoded columns."""

    block: str
    numbers: int
    width: int


class ReleaseRecord(_Plain, frozen=True):
    """One claim of the privacy ledger: what was spent about a table's rows, towards whom."""

    what: str
    table: str
    observer: str
    epsilon: float | None
    delta: float
    claim: str  # in words, with unit, sampling and cap


class DataRecord(_Plain, frozen=True):
    """What was trained on."""

    relations: list[RelationRecord]
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


class Coefficients(_Plain, frozen=True):
    """Columns of the coefficient table; `scaled` are the weights of the encoded columns."""

    table: list[str]
    feature: list[str]
    class_: list[str | float | bool | None]
    weight: list[float | None]
    scaled: list[float | None]


class AccountRecord(_Plain, frozen=True):
    """What passed in one phase."""

    rounds: int
    bytes_up: int
    bytes_down: int
    payload_up: int
    payload_down: int
    slowest_bytes: int
    by_message: dict[str, int]
    by_client: dict[str, int]


class TrafficRecord(_Plain, frozen=True):
    """What passed in all phases."""

    training: AccountRecord
    setup: AccountRecord
    evaluation: AccountRecord


class RunRecord(_Plain, frozen=True, kw_only=True):
    """One run, in full."""

    format: Literal["tablepuppet-run/1"] = "tablepuppet-run/1"
    name: str
    created: str  # UTC, ISO 8601
    job: dict[str, Any]
    data: DataRecord
    objective: float | None
    metrics: dict[str, dict[str, float | None]]
    history: list[Epoch]
    coefficients: Coefficients | None
    intercept: list[float | None]  # on the original scale for linear models, else what is added to the scores
    traffic: TrafficRecord
    explanation: str  # the plan, with what was counted beside what was estimated
    insights: list[InsightRecord]
    exposures: list[ExposureRecord]
    ledger: list[ReleaseRecord] = []
    environment: dict[str, str]


def record_of(result: Result, name: str | None = None) -> RunRecord:
    """A result as plain data."""
    job = result.plan.job
    is_linear = job.spec.is_linear
    intercept = np.atleast_1d(np.asarray(result.intercept if is_linear else result.encoded_intercept, dtype=float))
    counted = replace(
        result.plan,
        job=msgspec.structs.replace(job, epochs=max(1, len(result.history))),
        widths=tuple(_width(block) for block in result.blocks),
    )
    return RunRecord(
        name=name or job.algorithm,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        job=msgspec.json.decode(msgspec.json.encode(job)),
        data=_data(result),
        objective=_finite(result.objective),
        metrics=_metrics(result.metrics),
        history=_history(result),
        coefficients=_coefficients(result) if is_linear else None,
        intercept=[_finite(value) for value in intercept],
        traffic=TrafficRecord(
            training=_account(result.traffic),
            setup=_account(result.traffic.setup),
            evaluation=_account(result.traffic.evaluation),
        ),
        explanation=result.explain(),
        insights=[InsightRecord(party=i.party, learns=list(i.learns)) for i in counted.insights],
        exposures=[ExposureRecord(block=e.block, numbers=e.numbers, width=e.width) for e in counted.exposures],
        ledger=[
            ReleaseRecord(
                what=release.what,
                table=release.table,
                observer=release.observer,
                epsilon=_finite(release.spent()),
                delta=release.delta,
                claim=release.line(),
            )
            for release in result.privacy.releases
        ],
        environment=_environment(),
    )


def to_json(record: RunRecord) -> str:
    """The record as JSON text, indented for people and diffs."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1).decode()


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
        raise ModelError(f"cannot read run {path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise ModelError(
            f"{path} is not a run that this version reads: {error}; write it with Result.to_json"
        ) from None


def _finite(value: float) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _metrics(metrics: dict[str, dict[str, float]]) -> dict[str, dict[str, float | None]]:
    return {side: {name: _finite(value) for name, value in of.items()} for side, of in metrics.items()}


def _data(result: Result) -> DataRecord:
    mapping = result.plan.mapping
    relations = [
        RelationRecord(
            alias=fit.alias,
            table=fit.table,
            clients=fit.clients,
            rows=fit.rows,
            matched=fit.matched,
            max_fan_out=fit.max_fan_out,
            mean_fan_out=_finite(fit.mean_fan_out),
            is_outer=fit.is_outer,
        )
        for fit in mapping.fits
    ]
    blocks = [
        BlockRecord(
            name=model.name,
            table=model.table,
            features=list(model.features),
            width=_width(model),
            rows=mapping.train.indices[number].rows,
            max_multiplicity=int(mapping.multiplicity[number].max(initial=0)),
            parts=[
                PartRecord(client=part.client, train_rows=len(part.train_rows), test_rows=len(part.test_rows))
                for part in mapping.parts_of(number)
            ],
        )
        for number, model in enumerate(result.blocks)
    ]
    return DataRecord(
        relations=relations,
        blocks=blocks,
        train_rows=mapping.train.rows,
        test_rows=mapping.test.rows,
        validation_rows=mapping.validation.rows,
        outputs=result.plan.loss.outputs,
    )


def _width(block: BlockModel) -> int:
    """d_i: encoded columns."""
    return sum(encoded_width(encoder) for encoder in block.encoders)


def _history(result: Result) -> list[Epoch]:
    slowest = np.concatenate([[0], np.cumsum([r.slowest for r in result.traffic.each_round], dtype=np.int64)])

    def epoch(record: EpochRecord) -> Epoch:
        return Epoch(
            epoch=record.epoch,
            objective=_finite(record.objective),
            metrics=_metrics(record.metrics),
            rounds=record.rounds,
            bytes=record.bytes,
            slowest_bytes=int(slowest[record.rounds]),
            seconds=record.seconds,
            residuals={name: _finite(value) for name, value in record.residuals.items()},
        )

    return [epoch(record) for record in result.history]


def _coefficients(result: Result) -> Coefficients:
    frame = result.coefficients()
    scaled: list[float | None] = []
    for block in result.blocks:  # the order of Result.coefficients
        for k in range(block.theta.shape[1]):
            scaled += [_finite(value) for value in block.theta[:, k]]
            scaled += [None] * block.is_outer
    return Coefficients(
        table=frame["table"].tolist(),
        feature=frame["feature"].tolist(),
        class_=frame["class_"].tolist(),
        weight=[_finite(value) for value in frame["weight"]],
        scaled=scaled,
    )


def _account(account: Account) -> AccountRecord:
    return AccountRecord(
        rounds=account.rounds,
        bytes_up=account.bytes_up,
        bytes_down=account.bytes_down,
        payload_up=account.payload_up,
        payload_down=account.payload_down,
        slowest_bytes=sum(r.slowest for r in account.each_round),
        by_message=dict(account.by_message),
        by_client=dict(account.by_client),
    )


def _environment() -> dict[str, str]:
    return {
        "tablepuppet": str(import_module("tablepuppet").__version__),  # by name: the package imports this module
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}",
        **{name: version(name) for name in LIBRARIES},
    }
