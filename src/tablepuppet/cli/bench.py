"""tablepuppet bench: time, bytes and memory of every algorithm, beside pooling the tables."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from tablepuppet.algorithms.registry import OF_SUMS
from tablepuppet.bench import epochs as epoch_figures
from tablepuppet.bench import processes as apart_figures
from tablepuppet.bench.cases import SYNTHETIC, make_case, make_files
from tablepuppet.bench.figures import HEADINGS, Beginning, Figures, cells
from tablepuppet.bench.measure import FITS, check_room, measure
from tablepuppet.bench.processes import Apart, Overhead, measure_apart, measure_network
from tablepuppet.cli.screen import JsonOption, Screen
from tablepuppet.errors import JobError
from tablepuppet.output_files import check_place, write_whole

_MODELS = ("linear", "logistic")
_OURS = tuple(a.name for a in OF_SUMS)
_ALGORITHMS = (*_OURS, *FITS)


def bench(
    cases: Annotated[list[str] | None, typer.Argument(help="star, chain, many, tpch-SCALE, movielens")] = None,
    rows: Annotated[
        list[int] | None, typer.Option(min=1000, help="Joined rows of the synthetic cases, 1000000; repeatable.")
    ] = None,
    algorithm: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(_ALGORITHMS)}; repeatable.")] = None,
    model: Annotated[str, typer.Option(help="linear or logistic")] = "logistic",
    epochs: Annotated[int, typer.Option(min=2, help="At most; second-order algorithms stop at the optimum.")] = 10,
    network: Annotated[
        int | None,
        typer.Option(min=2, max=100, metavar="CLIENTS", help="What processes and TLS add to a round instead."),
    ] = None,
    processes: Annotated[
        bool, typer.Option("--processes", help="The server's own memory, with its clients in other processes, instead.")
    ] = False,
    torch: Annotated[
        bool, typer.Option("--torch", help="Epochs beside those of a torch loop over the materialised join, instead.")
    ] = False,
    data: Annotated[Path | None, typer.Option(help="MovieLens' folder, or where TPC-H is kept.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the figures as JSON.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure mapping, epochs, server and client steps, bytes and peak memory.

    Each measurement runs in a process of its own. sklearn (lbfgs), sklearn-newton (newton-cholesky) and torch (L-BFGS)
    materialise the join first: their "mapping" is that, and their "epoch" the whole fit.

    With --network, a server and so many clients are started on this machine, and one job runs over them and in one
    process by turns. With --processes, server and clients are processes of their own, too, and each case is trained
    once: the table shows bytes and CPU nanoseconds per joined row, the server's apart. With --torch, epochs of linear
    models and networks are compared with a plain torch loop, by CPU time, on generated tables of few rows.

    [bold]Example:[/bold] tablepuppet bench star many --rows 5000000 --algorithm admm --algorithm sklearn
    """
    if model not in _MODELS:
        raise JobError(f"unknown model {model!r}; choose one of {', '.join(_MODELS)}")
    for name in algorithm or ():
        if name not in _ALGORITHMS:
            raise JobError(f"unknown algorithm {name!r}; choose one of {', '.join(_ALGORITHMS)}")
    if out is not None:
        check_place(out, "the figures")
    screen, beginning = Screen(as_json), Beginning()
    if network is not None:
        with screen.progress(f"a server and {network} clients"):
            overhead = measure_network(network)
        screen.show(_overhead(overhead))
        _finish(screen, out, beginning, asdict(overhead) | {"added": overhead.added, "median": overhead.median})
        return
    if torch and (cases or algorithm):
        raise JobError("--torch has tables and algorithms of its own; leave out cases and --algorithm, or --torch")
    if torch:
        epochs_found = []
        for size in rows or epoch_figures.ROWS:
            with screen.progress(f"{size:,} rows beside torch"):
                epochs_found += epoch_figures.measure_epochs(size)
        screen.show_figures(epoch_figures.HEADINGS, [epoch_figures.cells(f) for f in epochs_found], keys=4)
        _finish(screen, out, beginning, [asdict(f) for f in epochs_found])
        return
    if processes and (pooled := [name for name in algorithm or () if name in FITS]):
        raise JobError(f"{pooled[0]} pools the tables and has no server; leave it out, or leave --processes out")
    chosen = algorithm or (_OURS if processes else _ALGORITHMS)
    sizes = rows or [1_000_000]
    asked = [
        (case, size, name)
        for case in cases or list(SYNTHETIC)
        for size in (sizes if case in SYNTHETIC else sizes[:1])
        for name in chosen
    ]
    for case, _, name in () if processes else asked:
        check_room(case, name)
    for case in dict.fromkeys(case for case, _, _ in asked):
        if (making := make_files(case, data)) is not None:
            with screen.progress(making):
                make_case(case, 0, data)
    if processes:
        apart: list[Apart] = []
        for case, size, name in asked:
            with screen.progress(f"{case}: {name}"):
                apart.append(measure_apart(case, size, data, name, model, epochs))
        screen.show_figures(apart_figures.HEADINGS, [apart_figures.cells(figures) for figures in apart], keys=2)
        _finish(screen, out, beginning, [asdict(figures) for figures in apart])
        return
    found: list[Figures] = []
    for case, size, name in asked:
        with screen.progress(f"{case}: {name}"):
            found.append(measure(case, size, data, name, model, epochs))
    screen.show_figures(HEADINGS, [cells(figures) for figures in found], keys=2)
    if steps := _steps(found):
        screen.show("")
        screen.show_figures(_STEP_FIGURES, steps)
    _finish(screen, out, beginning, [asdict(figures) for figures in found])


def _finish(screen: Screen, out: Path | None, beginning: Beginning, figures: Any) -> None:
    """Figures on the screen; in the file with where they come from, which the pages of docs/ show them with."""
    screen.show_json(lambda: figures)
    if out is None:
        return
    words = [word for word in sys.argv[1:] if not word.startswith("--data=")]
    for name in ("--out", "--data"):
        if name in words:
            del words[words.index(name) : words.index(name) + 2]
    command = shlex.join(["tablepuppet", *words])
    document = {"command": command, "provenance": asdict(beginning.provenance()), "figures": figures}
    text = json.dumps(document, indent=2) + "\n"
    write_whole(out, lambda file: file.write_text(text, encoding="utf-8"), "the figures")


def _overhead(found: Overhead) -> Table:
    """Milliseconds a round."""
    table = Table(box=None, pad_edge=False, title=f"{found.clients} clients, {found.rounds} rounds a run")
    for heading in ("run", "in process ms", "over the network ms", "added ms"):
        table.add_column(heading, justify="right")
    for run, row in enumerate(zip(found.in_process, found.over_network, found.added, strict=True), 1):
        table.add_row(str(run), *(f"{value:.2f}" for value in row))
    table.add_row("median", "", "", f"{found.median:.2f}")
    return table


_STEP_FIGURES = ("server step", "step s", "copy s", "× copy", "cores")


def _steps(found: list[Figures]) -> list[list[str]]:
    """The server step by itself."""
    return [
        [f.case, f"{f.step:.4f}", f"{f.limit:.4f}", f"{f.step / f.limit:.1f}", f"{f.cores:.1f}"]
        for f in found
        if f.step is not None and f.cores is not None
    ]
