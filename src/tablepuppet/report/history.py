"""The history of a run as a flat table: for CSV and JSON files, and for the loggers people already use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tablepuppet.errors import JobError
from tablepuppet.writing import as_path, write_whole

if TYPE_CHECKING:
    import pandas as pd

    from tablepuppet.engine.result import EpochRecord


def figures(record: EpochRecord) -> dict[str, float]:
    """The figures of one epoch under flat names: objective, test_accuracy, rounds, residual_primal, …"""
    return {
        "objective": record.objective,
        **{f"{side}_{name}": value for side, of in record.metrics.items() for name, value in of.items()},
        "rounds": float(record.rounds),
        "bytes": float(record.bytes),
        "seconds": record.seconds,
        **{f"residual_{name}": value for name, value in record.residuals.items()},
    }


def history_frame(history: Sequence[EpochRecord]) -> pd.DataFrame:
    """One row per epoch."""
    import pandas as pd  # here, not above: most runs never need it, and it takes 40 MB and a third of a second

    frame = pd.DataFrame([{"epoch": record.epoch, **figures(record)} for record in history])
    return frame.astype({"rounds": "int64", "bytes": "int64"})


def write_history(history: Sequence[EpochRecord], path: str | Path) -> None:
    """Writes the history as CSV or JSON, by the file's ending."""
    target = as_path(path, "the history")
    frame = history_frame(history)
    if target.suffix not in (".csv", ".json"):
        raise JobError(f"the history is written as .csv or .json, not as {target.suffix or 'a file without ending'}")

    def write(file: Path) -> None:
        if target.suffix == ".csv":
            frame.to_csv(file, index=False)
        else:
            frame.to_json(file, orient="records", indent=1, double_precision=15)

    write_whole(target, write, "the history")
