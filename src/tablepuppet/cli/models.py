"""Commands that take a saved model: predict, evaluate, export, importance, dependence, compare and drift.

compare and drift are for cron: is the new model worse, are the rows still those it was trained on? Both end with code 3
if it is worse or the rows have drifted, so that a script can retrain, or keep the old model.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
import typer
from msgspec import to_builtins

from tablepuppet.api import Federation
from tablepuppet.cli.screen import Screen, argument, option, table
from tablepuppet.cli.train import FederationOption, JobArgument, JobFile, read_job
from tablepuppet.errors import ModelError
from tablepuppet.output_files import write_whole
from tablepuppet.prediction.model import Model
from tablepuppet.prediction.saved import load
from tablepuppet.report.recording import dependence_of

_SHOWN = 10
_BASELINE = "baseline: the majority class, or the mean, of these rows"

ModelArgument = Annotated[Path, argument("MODEL", "A folder that result.save() wrote.")]
KeyOption = Annotated[
    list[str] | None, option("--key COLUMN", "A column of the label's table that names a row; may be repeated.")
]
MissingOption = Annotated[
    str, option("--missing", '"error", or "zero": predict with the mean of an owner that is away.')
]
SplitOption = Annotated[bool, option("--split", "Add a column: was the row for training, validation or the test?")]


@contextmanager
def _open(
    screen: Screen, doing: str, model: Path, job: Path, federation: Path | None
) -> Iterator[tuple[Model, JobFile, Federation]]:
    """A saved model, a job and its federation, while a command works with them."""
    loaded, asked = load(model), read_job(job, needs_label=False)
    with screen.progress(doing), asked.open_federation(federation) as tables:
        yield loaded, asked, tables


def predict(
    screen: Screen,
    model: ModelArgument,
    job: JobArgument,
    federation: FederationOption = None,
    to: Annotated[Path | None, option("--to FILE", "Write all predictions to a .parquet or .csv file.")] = None,
    key: KeyOption = None,
    missing: MissingOption = "error",
    split: SplitOption = False,
) -> None:
    """Predict the rows of a job's query with a saved model.

    [bold]Example:[/bold] tablepuppet predict model/ returns.toml --key order_id --to predictions.parquet
    """
    with _open(screen, "predicting", model, job, federation) as (loaded, asked, tables):
        options: dict[str, Any] = {"key": key, "missing": missing, "to": to, "split": split}
        answer = tables.predict(loaded, asked.query, **options, progress=False)
    away = (answer.schema.metadata or {}).get(b"tablepuppet.missing", b"").decode()
    first = answer.slice(0, _SHOWN)
    rows = (row.values() for row in first.to_pylist())
    more = answer.num_rows - first.num_rows
    screen.show(
        table(*answer.column_names, title=f"{answer.num_rows:,} predictions", rows=rows),
        *([f"… and {more:,} more"] if more else []),
        *([f"without {away}: the mean contribution stands in, see the column assumed"] if away else []),
        *([f"written to {to}"] if to is not None else []),
    )
    found = {"rows": answer.num_rows, "missing": away.split(", ") if away else []}
    if to is not None:
        screen.show_json({**found, "file": str(to)})
    elif screen.wants_json:
        screen.show_json({**found, "predictions": _plain(answer).to_pylist()})


WantedRows = Literal["test", "train", "all"]
RowsOption = Annotated[
    WantedRows | None, option("--rows", "Which rows: test (no model was trained on them; the default), train or all.")
]


def evaluate(
    screen: Screen, model: ModelArgument, job: JobArgument, federation: FederationOption = None, rows: RowsOption = None
) -> None:
    """Measure a saved model on labelled rows of a job's query, by default those that it was not trained on.

    [bold]Example:[/bold] tablepuppet evaluate model/ this_month.toml --json
    """
    with _open(screen, "measuring", model, job, federation) as (loaded, asked, tables):
        found = tables.evaluate(loaded, asked.query, rows=rows or asked.rows, privacy=asked.analyst)
    rows_of = ((name, value, found.baseline.get(name, "")) for name, value in found.items())
    screen.show(table("metric", "value", "baseline", title=f"{model} on {found.rows}", rows=rows_of), _BASELINE)
    screen.show_json(found.to_dict())


def _plain(answer: pa.Table) -> pa.Table:
    """Dates, times and decimals as text, for JSON has none."""
    for i, field in enumerate(answer.schema):
        if pa.types.is_temporal(field.type) or pa.types.is_decimal(field.type):
            answer = answer.set_column(i, field.name, answer.column(i).cast(pa.string()))
    return answer


BlockOption = Annotated[
    str | None, option("--block NAME", "The block to export, by its alias or table; not needed for one.")
]
TableOption = Annotated[str | None, option("--table NAME", "SQL: the owner's own name of its table, if it differs.")]
DialectOption = Annotated[str, option("--dialect", "SQL: duckdb, postgres, sqlite, mysql, snowflake or bigquery.")]


def export(
    screen: Screen,
    model: ModelArgument,
    kind: Annotated[Literal["sql", "onnx", "lightgbm"], argument("sql|onnx|lightgbm", "The format.")],
    block: BlockOption = None,
    to: Annotated[Path | None, option("--to FILE", "Write to this file (SQL: else it is shown).")] = None,
    table: TableOption = None,
    dialect: DialectOption = "duckdb",
    column: Annotated[list[str] | None, option("--column NAME", "SQL: a column to show too; may be repeated.")] = None,
) -> None:
    """Export a block of a saved model: what it adds to the score of each of its owner's rows; or all boosted trees.

    [bold]Example:[/bold] tablepuppet export model/ sql --block items --dialect postgres
    """
    loaded = load(model)
    codes: dict[str, Any] = {}
    if kind == "sql":
        text = loaded.to_sql(block, table=table, dialect=dialect, columns=column or ())
        if to is None:
            screen.show_json({"sql": text})
            if not screen.wants_json:
                print(text)  # for a database to read: no wrapping, no colours
            return
        write_whole(to, lambda file: file.write_text(f"{text}\n", encoding="utf-8"), "SQL", ModelError)
    elif to is None:
        raise ModelError(f"name the file to write: --to {'items.onnx' if kind == 'onnx' else 'trees.txt'}")
    elif kind == "onnx":
        loaded.to_onnx(to, block)
    else:
        codes = {"categories": loaded.save_lightgbm(to)}
    screen.show(f"Wrote {to}.")
    screen.show_json({"file": str(to), **codes})


def importance(
    screen: Screen,
    model: ModelArgument,
    job: JobArgument,
    federation: FederationOption = None,
    by: Annotated[Literal["feature", "table"], option("--by", "What is shuffled: feature or table.")] = "feature",
    repeats: Annotated[int, option("--repeats", "How often each is shuffled.")] = 3,
    rows: RowsOption = None,
) -> None:
    """Show how much the mean loss rises when a feature, or a table, is shuffled among its rows.

    [bold]Example:[/bold] tablepuppet importance model/ returns.toml --by table
    """
    with _open(screen, "shuffling", model, job, federation) as (loaded, asked, tables):
        found = tables.importance(loaded, asked.query, by=by, repeats=repeats, rows=rows or asked.rows)
    title = f"how much the mean loss rises, on {found.attrs['about']}"
    screen.show(table(*found.columns, title=title, rows=found.itertuples(index=False)))
    about = {name: found.attrs[name] for name in ("rows", "which_rows")}
    screen.show_json({"importance": found.to_dict("records"), **about})


def dependence(
    screen: Screen,
    model: ModelArgument,
    job: JobArgument,
    feature: Annotated[list[str] | None, option("--feature NAME", "A feature of the model; may be repeated.")] = None,
    federation: FederationOption = None,
    points: Annotated[int, option("--points", "How many values of a feature, at most.")] = 11,
    rows: RowsOption = None,
) -> None:
    """Show the mean prediction if a feature has the same value in all rows (partial dependence).

    [bold]Example:[/bold] tablepuppet dependence model/ returns.toml --feature i.price --json > price.json
    [dim]tablepuppet report run.json --dependence price.json[/dim] draws the curves.
    """
    with _open(screen, "asking", model, job, federation) as (loaded, asked, tables):
        if not feature:
            known = ", ".join(name for block in loaded.blocks for name in block.features)
            raise ModelError(f"name a feature: --feature NAME; the model has {known}")
        given: dict[str, Any] = {"points": points, "rows": rows or asked.rows}
        found = {name: tables.partial_dependence(loaded, asked.query, name, **given) for name in feature}
    for name, curve in found.items():
        title = f"{name}, on {curve.attrs['about']}"
        screen.show(table(*curve.columns, title=title, rows=curve.itertuples(index=False)))
    screen.show_json({"dependence": to_builtins(dependence_of(found))})  # each curve names its rows


FOUND = 3  # exit code

BetterOption = Annotated[bool, option("--better", "End with code 3 unless the second model is better, beyond chance.")]


def compare(
    screen: Screen,
    model: ModelArgument,
    new: Annotated[Path, argument("NEW", "The folder of the model to compare with it.")],
    job: JobArgument,
    federation: FederationOption = None,
    rows: RowsOption = None,
    better: BetterOption = False,
) -> None:
    """Compare two saved models on labelled rows of a job's query, by default those that neither was trained on.

    Code 3: the second is worse, beyond chance; with --better, it is not better.

    [bold]Example:[/bold] tablepuppet compare model/ new/ returns.toml --better && mv new model
    """
    with _open(screen, "comparing", model, job, federation) as (first, asked, tables):
        found = tables.compare(first, load(new), asked.query, rows=rows or asked.rows, privacy=asked.analyst)
    compared = found.table.itertuples(index=False)
    screen.show(table(*found.table.columns, title=str(found.rows), rows=compared), _BASELINE, str(found))
    screen.show_json(found.to_dict())
    if found.is_worse or (better and not found.is_better):
        raise typer.Exit(FOUND)


def drift(
    screen: Screen,
    model: ModelArgument,
    job: JobArgument,
    federation: FederationOption = None,
    shift: Annotated[float, option("--shift", "How many standard deviations a mean may move.")] = 0.25,
    spread: Annotated[float, option("--spread", "By which factor a standard deviation may change.")] = 2.0,
    matched: Annotated[float, option("--matched", "By which share the matched rows may change.")] = 0.05,
) -> None:
    """Compare the rows of a job's query with those that a model was trained on; code 3: they have drifted.

    [bold]Example:[/bold] tablepuppet drift model/ returns.toml || tablepuppet train returns.toml --warm-start model/
    """
    with _open(screen, "comparing the rows", model, job, federation) as (loaded, asked, tables):
        found = tables.drift(loaded, asked.query, privacy=asked.analyst)
    said = found.found(shift=shift, spread=spread, matched=matched)
    screen.show(*(said or ["The rows are like those that the model was trained on."]))
    screen.show_json({"drifted": bool(said), "found": said, **found.to_dict()})
    if said:
        raise typer.Exit(FOUND)
