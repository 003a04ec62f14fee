"""tablepuppet export MODEL: a saved model's block as SQL or ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from tablepuppet.cli.predict import ModelArgument
from tablepuppet.errors import ModelError
from tablepuppet.prediction.saved import load
from tablepuppet.writing import write_whole

BlockOption = Annotated[
    str | None, typer.Option("--block", metavar="NAME", help="The block to export; not needed where there is one.")
]
ToFile = Annotated[
    Path | None, typer.Option("--to", metavar="FILE", help="Write to this file (SQL: else it is shown).")
]
TableOption = Annotated[
    str | None, typer.Option("--table", metavar="NAME", help="SQL: what the owner calls its table, if not as we do.")
]
DialectOption = Annotated[
    str, typer.Option("--dialect", help="SQL: duckdb, postgres, sqlite, mysql, snowflake or bigquery.")
]
ColumnOption = Annotated[
    list[str] | None, typer.Option("--column", metavar="NAME", help="SQL: a column to show too; may be repeated.")
]


def export(
    model: ModelArgument,
    kind: Annotated[Literal["sql", "onnx"], typer.Argument(metavar="sql|onnx", help="What to make of it.")],
    block: BlockOption = None,
    to: ToFile = None,
    table: TableOption = None,
    dialect: DialectOption = "duckdb",
    column: ColumnOption = None,
) -> None:
    """Export a block of a saved model: what it adds to the score of each of its owner's rows.

    [bold]Example:[/bold] tablepuppet export model/ sql --block items --dialect postgres
    """
    loaded = load(model)
    if kind == "onnx":
        if to is None:
            raise ModelError("name the file to write: --to items.onnx")
        loaded.to_onnx(to, block)
        return
    text = loaded.to_sql(block, table=table, dialect=dialect, columns=column or ())
    if to is None:
        print(text)
    else:
        write_whole(to, lambda file: file.write_text(f"{text}\n", encoding="utf-8"), "SQL", ModelError)
