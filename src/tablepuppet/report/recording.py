"""A run, recorded: Result → RunRecord (record.py), and its history as a flat table for CSV, JSON and loggers.

Numbers that are not finite become None.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from tablepuppet.errors import JobError
from tablepuppet.output_files import as_path, write_whole
from tablepuppet.report import record as r

if TYPE_CHECKING:
    import pandas as pd

    from tablepuppet.training.curves import Curves
    from tablepuppet.training.result import EpochRecord, Result
    from tablepuppet.transport.meter import Account


_Record = TypeVar("_Record", bound=msgspec.Struct)

LIBRARIES = ("numpy", "scipy", "pandas", "pyarrow", "duckdb", "sqlglot")

_POINTS = 100  # of a curve
_TREES = 20  # that a record has in words


def records_of(first: Result, beside: object) -> list[r.RunRecord]:
    """A result and those to show next to it, as plain data."""
    others = [beside] if isinstance(beside, type(first)) else beside
    if not isinstance(others, Sequence) or not all(isinstance(other, type(first)) for other in others):
        raise JobError("beside takes a list of results, as train returns them: beside=[other]")
    return [record_of(result) for result in (first, *others)]


def record_of(result: Result) -> r.RunRecord:
    job = result.plan.job
    is_linear = job.model.is_convex
    intercept = np.atleast_1d(np.asarray(result.intercept if is_linear else result.encoded_intercept, dtype=float))
    counted = replace(
        result.plan,
        job=job.replace(epochs=max(1, len(result.history))),
        widths=tuple(block.width for block in result.blocks),
    )
    slowest = np.concatenate([[0], np.cumsum([one.slowest for one in result.traffic.each_round], dtype=np.int64)])
    pairs = [(number, output) for number, group in enumerate(result.trees) for output in range(len(group))]
    record = r.RunRecord(
        name=job.algorithm,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        job=job.arguments(),
        data=_data(result),
        objective=result.objective,
        metrics={side: {**of} for side, of in result.metrics.items()},
        baseline={**result.baseline},
        baseline_name=result.baseline_name,
        history=[_copy_fields(r.Epoch, one, slowest_bytes=int(slowest[one.rounds])) for one in result.history],
        epoch=result.epoch,
        converged=result.converged,
        notes=result.remarks,
        measured={side: _copy_fields(r.MeasuredRecord, on) for side, on in result.measured.items()},
        coefficients=_coefficients(result) if is_linear else None,
        importance=[
            (table, feature, moves, splits[0] if splits else None)
            for table, feature, moves, *splits in result.importance().itertuples(index=False)
        ]
        if is_linear or result.trees
        else [],
        trees=[result.model.tree_text(*pair) for pair in pairs[:_TREES]],
        curves={side: curves_record(curves) for side, curves in result.curves.items()},
        intercept=intercept.tolist(),
        traffic=r.TrafficRecord(
            training=_account(result.traffic),
            setup=_account(result.traffic.setup),
            evaluation=_account(result.traffic.evaluation),
        ),
        explanation=result.explain(),
        insights=counted.insights,
        exposures=counted.exposures,
        ledger=[
            _copy_fields(r.ReleaseRecord, release, epsilon=release.spent(), claim=release.line())
            for release in result.privacy.releases
        ],
        heads=result.heads,
        environment={
            "tablepuppet": str(import_module("tablepuppet").__version__),  # by name: the package imports this module
            "python": f"{platform.python_implementation()} {platform.python_version()}",
            "system": f"{platform.system()} {platform.machine()}",
            **{name: version(name) for name in LIBRARIES},
        },
    )
    return msgspec.json.decode(msgspec.json.encode(record), type=r.RunRecord)  # which writes null for NaN and infinity


def dependence_of(curves: Mapping[str, pd.DataFrame]) -> list[r.DependenceRecord]:
    """The answers of Federation.partial_dependence, by feature, as plain data."""
    for feature, frame in curves.items():
        if "value" not in getattr(frame, "columns", ()):
            raise JobError(f"dependence of {feature!r} is no curve; ask federation.partial_dependence for one")
    return [
        r.DependenceRecord(
            feature=feature,
            values=[None if value != value else value for value in frame["value"].tolist()],
            means={name: frame[name].astype(float).tolist() for name in frame.columns if name != "value"},
            about=frame.attrs.get("about", ""),
        )
        for feature, frame in curves.items()
    ]


def _copy_fields(kind: type[_Record], source: object, **others: Any) -> _Record:
    """A record whose fields are attributes of the same names, but for the others."""
    rest = (name for name in kind.__struct_fields__ if name not in others)
    return kind(**others, **{name: getattr(source, name) for name in rest})


def _data(result: Result) -> r.DataRecord:
    mapping = result.plan.mapping
    blocks = [
        r.BlockRecord(
            name=model.name,
            table=model.table,
            features=list(model.features),
            width=model.width,
            rows=mapping.blocks[number].rows,
            max_multiplicity=mapping.blocks[number].most,
            parts=[_copy_fields(r.PartRecord, part) for part in mapping.parts_of(number)],
        )
        for number, model in enumerate(result.blocks)
    ]
    outputs = result.plan.loss.outputs
    return _copy_fields(r.DataRecord, mapping, relations=list(mapping.fits), blocks=blocks, outputs=outputs)


def _coefficients(result: Result) -> r.Coefficients:
    frame = result.coefficients()
    scaled: list[float | None] = []
    for block in result.blocks:  # the order of Result.coefficients
        for k in range(block.theta.shape[1]):
            scaled += block.theta[:, k].tolist()
            scaled += [None] * block.is_lacking
    return r.Coefficients(scaled=scaled, **frame.to_dict("list"))


def curves_record(curves: Curves) -> r.CurvesRecord:
    """A side's curves as plain data, with fewer points."""
    if (numbers := curves.numbers) is not None:
        counted = r.NumbersRecord(
            centres=numbers.labels.centres.tolist(),
            cells=numbers.cells.astype(int).tolist(),
            residual=numbers.errors.centres.tolist(),
            rows=numbers.residuals.astype(int).tolist(),
        )
        return r.CurvesRecord(classes=[], confusion=[], numbers=counted)
    found = r.CurvesRecord(classes=list(curves.classes), confusion=curves.confusion.astype(int).tolist())
    if curves.thresholds is None:
        return found
    points = curves.precision_recall()
    points = points.iloc[np.unique(np.linspace(0, len(points) - 1, min(_POINTS, len(points))).astype(int))]
    return msgspec.structs.replace(
        found,
        calibration=curves.calibration_curve().astype(float).to_dict("list"),
        precision_recall=points.to_dict("list"),
    )


def _account(account: Account) -> r.AccountRecord:
    return _copy_fields(r.AccountRecord, account, slowest_bytes=sum(one.slowest for one in account.each_round))


def figures(record: EpochRecord) -> dict[str, float]:
    """The metrics of one epoch under flat names: objective, test_accuracy, rounds, residual_primal, …"""
    return {
        "objective": record.objective,
        **{f"{side}_{name}": value for side, of in record.metrics.items() for name, value in of.items()},
        "rounds": float(record.rounds),
        "bytes": float(record.bytes),
        "seconds": record.seconds,
        **{f"residual_{name}": value for name, value in record.residuals.items()},
    }


def history_frame(history: Sequence[EpochRecord]) -> pd.DataFrame:
    import pandas as pd  # here, not above: most runs never need it, and it takes 40 MB and a third of a second

    frame = pd.DataFrame([{"epoch": record.epoch, **figures(record)} for record in history])
    return frame.astype({"rounds": "int64", "bytes": "int64"})


def write_history(history: Sequence[EpochRecord], path: str | Path) -> None:
    """Writes the history as CSV or JSON, by the file's ending."""
    target = as_path(path, "the history")
    frame = history_frame(history)
    if target.suffix not in (".csv", ".json"):
        raise JobError(f"the history is written as .csv or .json, not as {target.suffix or 'a file without ending'}")

    in_json = {"orient": "records", "indent": 1, "double_precision": 15}
    text = frame.to_csv(index=False) if target.suffix == ".csv" else frame.to_json(**in_json)
    write_whole(target, lambda file: file.write_text(text, encoding="utf-8"), "the history")
