"""python -m benchmarks CASE…: time, bytes and memory of every algorithm, beside pooling the tables.

python -m benchmarks star many --rows 5000000 --algorithm admm --algorithm sklearn
python -m benchmarks movielens --data ml1m --out figures.json
python -m benchmarks --network 10
python -m benchmarks --torch
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from benchmarks import epochs as epoch_figures
from benchmarks import processes as process_figures
from benchmarks.cases import SYNTHETIC, Trial, make_case, make_files
from benchmarks.figures import HEADINGS, Beginning, Figures, cells
from benchmarks.measure import FITS, check_room, measure
from benchmarks.processes import Overhead, measure_apart, measure_network
from tablepuppet.algorithms.registry import OF_SUMS
from tablepuppet.cli.screen import JsonOption, Screen, table
from tablepuppet.errors import JobError, TablePuppetError
from tablepuppet.output_files import check_place, write_whole

_MODELS = ("linear", "logistic")
_FEDERATED = tuple(a.name for a in OF_SUMS)
_ALGORITHMS = (*_FEDERATED, *FITS)
_STEP_HEADINGS = ("server step", "step s", "copy s", "× copy", "cores")

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode="rich", add_completion=False)


@app.command()
def benchmark(
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

    --network starts a server and so many clients on this machine and runs one job over them and in one process by
    turns. --processes trains each case once over such processes and shows the server's own bytes and CPU time per
    joined row. --torch compares epochs of linear models and networks with a plain torch loop, by CPU time.
    """
    _check_choices(model, algorithm or [])
    if out is not None:
        check_place(out, "the figures")
    screen, beginning = Screen(as_json), Beginning()
    figures: Any
    if network is not None:
        figures = _show_network(screen, network)
    elif torch:
        if cases or algorithm:
            raise JobError("--torch has tables and algorithms of its own; leave out cases and --algorithm, or --torch")
        figures = _show_epochs(screen, rows or epoch_figures.ROWS)
    else:
        chosen, sizes = algorithm or (_FEDERATED if processes else _ALGORITHMS), rows or [1_000_000]
        trials = [
            Trial(case, size, data, name, model, epochs)
            for case in cases or list(SYNTHETIC)
            for size in (sizes if case in SYNTHETIC else sizes[:1])
            for name in chosen
        ]
        figures = _show_processes(screen, trials) if processes else _show_trials(screen, trials)
    screen.show_json(lambda: figures)
    if out is not None:
        _write_figures(out, beginning, figures)


def _check_choices(model: str, algorithms: Sequence[str]) -> None:
    if model not in _MODELS:
        raise JobError(f"unknown model {model!r}; choose one of {', '.join(_MODELS)}")
    for name in algorithms:
        if name not in _ALGORITHMS:
            raise JobError(f"unknown algorithm {name!r}; choose one of {', '.join(_ALGORITHMS)}")


def _show_network(screen: Screen, clients: int) -> dict[str, Any]:
    """Milliseconds that processes and TLS add to a round."""
    with screen.progress(f"a server and {clients} clients"):
        found = measure_network(clients)
    screen.show(_overhead_table(found))
    return asdict(found) | {"added": found.added, "median": found.median}


def _show_epochs(screen: Screen, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Epochs beside those of a torch loop."""
    found = []
    for size in sizes:
        with screen.progress(f"{size:,} rows beside torch"):
            found += epoch_figures.measure_epochs(size)
    show_figures(screen, epoch_figures.HEADINGS, [epoch_figures.cells(f) for f in found], keys=4)
    return [asdict(f) for f in found]


def _show_processes(screen: Screen, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """What the server takes for itself."""
    if pooled := [trial.algorithm for trial in trials if trial.algorithm in FITS]:
        raise JobError(f"{pooled[0]} pools the tables and has no server; leave it out, or leave --processes out")
    _make_all_files(screen, trials)
    found = []
    for trial in trials:
        with screen.progress(f"{trial.case}: {trial.algorithm}"):
            found.append(measure_apart(trial))
    show_figures(screen, process_figures.HEADINGS, [process_figures.cells(f) for f in found], keys=2)
    return [asdict(f) for f in found]


def _show_trials(screen: Screen, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Algorithms and baselines, each in a process of its own."""
    for trial in trials:
        check_room(trial)
    _make_all_files(screen, trials)
    found = []
    for trial in trials:
        with screen.progress(f"{trial.case}: {trial.algorithm}"):
            found.append(measure(trial))
    show_figures(screen, HEADINGS, [cells(f) for f in found], keys=2)
    if steps := _step_rows(found):
        screen.show("")
        show_figures(screen, _STEP_HEADINGS, steps)
    return [asdict(f) for f in found]


def show_figures(screen: Screen, headings: Sequence[str], rows: Sequence[Sequence[str]], *, keys: int = 1) -> None:
    """One table, or, on a terminal too narrow for it, several below each other, each led by the first `keys`
    columns."""
    widths = [2 + max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    rest = list(range(keys, len(headings)))
    while rest:
        shown = [*range(keys), rest.pop(0)]
        while rest and sum(widths[i] for i in (*shown, rest[0])) <= screen.out.width + 2:
            shown.append(rest.pop(0))
        made = table(*(headings[i] for i in shown), rows=([row[i] for i in shown] for row in rows))
        for column in made.columns[:keys]:
            column.justify = "left"
        screen.show(made, *([""] if rest else []))


def _make_all_files(screen: Screen, trials: Sequence[Trial]) -> None:
    """Generates data that is read from files, once, before anything is measured."""
    for case, folder in dict.fromkeys((trial.case, trial.folder) for trial in trials):
        if (making := make_files(case, folder)) is not None:
            with screen.progress(making):
                make_case(case, 0, folder)


def _write_figures(out: Path, beginning: Beginning, figures: Any) -> None:
    """Figures with where they come from, as the pages of docs/ show them."""
    words = [word for word in sys.argv[1:] if not word.startswith("--data=")]
    for name in ("--out", "--data"):
        if name in words:
            del words[words.index(name) : words.index(name) + 2]
    command = shlex.join(["python", "-m", "benchmarks", *words])
    document = {"command": command, "provenance": asdict(beginning.provenance()), "figures": figures}
    text = json.dumps(document, indent=2) + "\n"
    write_whole(out, lambda file: file.write_text(text, encoding="utf-8"), "the figures")


def _overhead_table(found: Overhead) -> Table:
    """Milliseconds a round."""
    table = Table(box=None, pad_edge=False, title=f"{found.clients} clients, {found.rounds} rounds a run")
    for heading in ("run", "in process ms", "over the network ms", "added ms"):
        table.add_column(heading, justify="right")
    for run, row in enumerate(zip(found.in_process, found.over_network, found.added, strict=True), 1):
        table.add_row(str(run), *(f"{value:.2f}" for value in row))
    table.add_row("median", "", "", f"{found.median:.2f}")
    return table


def _step_rows(found: list[Figures]) -> list[list[str]]:
    """The server step by itself."""
    return [
        [f.case, f"{f.step:.4f}", f"{f.limit:.4f}", f"{f.step / f.limit:.1f}", f"{f.cores:.1f}"]
        for f in found
        if f.step is not None and f.cores is not None
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the command line asks for; 2 where the input is wrong."""
    try:
        app(None if arguments is None else list(arguments), prog_name="python -m benchmarks")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except TablePuppetError as error:
        Screen(wants_json=False).error(type(error).__name__, str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
