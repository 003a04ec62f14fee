"""tablepuppet report RUN…: one HTML page of one run, or of several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tablepuppet.cli.screen import JsonOption, Screen
from tablepuppet.report import read_record, write_report
from tablepuppet.writing import check_place

RunsArgument = Annotated[
    list[Path],
    typer.Argument(metavar="RUN…", help="Run records (JSON), as train --json writes them.", show_default=False),
]
OutOption = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The HTML file to write.")]


def report(runs: RunsArgument, out: OutOption = Path("report.html"), as_json: JsonOption = False) -> None:
    """Write one self-contained HTML page that shows runs: metrics, convergence, coefficients, traffic, privacy.

    [bold]Example:[/bold] tablepuppet report newton.json admm.json --out compare.html

    A run record comes from [dim]tablepuppet train returns.toml --json > newton.json[/dim], or from
    [dim]result.to_json()[/dim].
    """
    screen = Screen(as_json)
    check_place(out, "the report")
    records = [msgspec.structs.replace(read_record(path), name=path.stem) for path in runs]
    written = write_report(out, records)
    screen.show(f"Wrote {written} ({written.stat().st_size / 1e6:.2f} MB).")
    screen.show_json(lambda: {"report": str(written), "runs": [record.name for record in records]})
