"""tablepuppet report RUN…: one HTML page of one run, or of several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tablepuppet.cli.screen import JsonOption, Screen
from tablepuppet.errors import JobError
from tablepuppet.formatting import size
from tablepuppet.output_files import check_place, write_whole
from tablepuppet.report import model_card, read_dependence, read_record, write_report
from tablepuppet.transport.meter import Network

RunsArgument = Annotated[
    list[Path],
    typer.Argument(metavar="RUN…", help="Run records (JSON), as train --json writes them.", show_default=False),
]
OutOption = Annotated[
    Path, typer.Option("--out", "-o", metavar="FILE", help="The HTML file to write; .md: a model card.")
]

NetworkOption = Annotated[
    list[str] | None,
    typer.Option(
        "--network",
        metavar="NAME=MS,GBIT",
        help="Show times on a network of your own, too: office=20,0.1 (repeatable).",
    ),
]


DependenceOption = Annotated[
    Path | None,
    typer.Option("--dependence", metavar="FILE", help="Draw the first run's curves that dependence --json wrote."),
]


def report(
    runs: RunsArgument,
    out: OutOption = Path("report.html"),
    network: NetworkOption = None,
    dependence: DependenceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write one self-contained HTML page that shows runs: metrics, convergence, coefficients, traffic, privacy.

    [bold]Example:[/bold] tablepuppet report newton.json admm.json --network office=20,0.1 --out compare.html

    A run record comes from [dim]tablepuppet train returns.toml --json > newton.json[/dim], or from
    [dim]result.to_json()[/dim].
    """
    screen = Screen(as_json)
    check_place(out, "the report")
    networks = dict(map(_network, network or []))
    records = [msgspec.structs.replace(read_record(path), name=path.stem) for path in runs]
    if dependence is not None:
        records[0] = msgspec.structs.replace(records[0], dependence=read_dependence(dependence))
    if out.suffix.lower() == ".md":
        cards = "\n".join(map(model_card, records))
        write_whole(out, lambda file: file.write_text(cards, encoding="utf-8"), "the model card")
        written = out
    else:
        written = write_report(out, records, networks)
    screen.show(f"Wrote {written} ({size(written.stat().st_size)}).")
    screen.show_json(lambda: {"report": str(written), "runs": [record.name for record in records]})


def _network(text: str) -> tuple[str, Network]:
    """NAME=MS,GBIT: milliseconds a round trip and gigabits per second.

    >>> _network("office=20,0.1")
    ('office', Network(latency=0.02, bandwidth=0.1))
    """
    name, _, figures = text.partition("=")
    try:
        milliseconds, gigabits = map(float, figures.split(","))
    except ValueError:
        raise JobError(
            f"--network {text!r} is not NAME=MS,GBIT; write milliseconds a round trip and Gbit/s, as in office=20,0.1"
        ) from None
    if not name:
        raise JobError(f"--network {text!r} has no name; write one before the =, as in office=20,0.1")
    return name, Network(milliseconds / 1000, gigabits)
