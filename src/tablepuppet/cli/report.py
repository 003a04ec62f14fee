"""tablepuppet report RUN… and demo: one HTML page of one run, or of several side by side.

The demo makes its own runs: sixteen airlines and three other owners train one model, by each algorithm.
"""

from pathlib import Path
from typing import Annotated, Any

import msgspec
from rich.table import Table

from tablepuppet.algorithms.registry import ALGORITHMS, DEFAULT
from tablepuppet.cli.screen import Screen, argument, option, table
from tablepuppet.demo import LABEL, QUERY, open_flights
from tablepuppet.errors import JobError
from tablepuppet.formatting import size
from tablepuppet.output_files import check_place, write_whole
from tablepuppet.report.page import model_card, write_report
from tablepuppet.report.record import read_dependence, read_record
from tablepuppet.training.result import Result
from tablepuppet.transport.meter import Network

NetworkOption = Annotated[
    list[str] | None,
    option("--network NAME=MS,GBIT", "Also show times on your own network: office=20,0.1 (ms, Gbit/s; repeatable)."),
]
DependenceOption = Annotated[
    Path | None, option("--dependence FILE", "Draw the first run's curves that dependence --json wrote.")
]


def report(
    screen: Screen,
    runs: Annotated[list[Path], argument("RUN…", "Run records (JSON), as train --json writes them.")],
    out: Annotated[Path, option("--out -o FILE", "The HTML file to write; .md: a model card.")] = Path("report.html"),
    network: NetworkOption = None,
    dependence: DependenceOption = None,
) -> None:
    """Write one self-contained HTML page that shows runs: metrics, convergence, coefficients, traffic, privacy.

    [bold]Example:[/bold] tablepuppet report newton.json admm.json --network office=20,0.1 --out compare.html

    A run record comes from [dim]tablepuppet train returns.toml --json > newton.json[/dim], or from
    [dim]result.to_json()[/dim].
    """
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
    screen.show_json({"report": str(written), "runs": [record.name for record in records]})


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


ReportOption = Annotated[Path, option("--report FILE", "The HTML report to write.")]
FlightsOption = Annotated[int | None, option("--flights N", "Use about this many flights; default: all.", min=1_000)]
_POOLED = next(a.name for a in ALGORITHMS if a.is_pooled)
# Pooled first; without those for other models, and for penalties that the demo does not have.
_NAMES = tuple(
    a.name for a in reversed(ALGORITHMS) if "sum" in a.heads and not a.own_model and not a.supports_nonsmooth
)


_BOOSTED = "boosted trees"
_TREES = 5  # for every epoch of the others

_INTRODUCTION = """\
19 owners, nothing pooled: 16 airlines keep flights and labels; weather, planes and airports have an owner each.
{train:,} joined rows for training and {test:,} for the test, which exist as row numbers only.
Who learns what, and what each algorithm costs, is in the report; tablepuppet explain JOB shows it for a job of yours.
"""
_CONCLUSION = """\
All models but the trees minimise the same function; gap: the objective's distance to that of pooled training.
US-UK, US-US: what all messages would take on these networks; here all owners are in one process.
Pooling is faster here: it takes one exchange, and the joined rows fit into memory. It is not where a row joins many
others, for the pooled table repeats it each time, and where tables must not be pooled at all (docs/performance.md).

Report: {report}

Now with your data: three lines in Python,
  import tablepuppet as tp
  federation = tp.Federation({{"orders": ["eu.parquet", "us.parquet"], "items": "items.csv"}})
  print(federation.train("SELECT o.qty, i.price, o.late FROM orders o JOIN items i USING (item_id)", label="late"))
"""


def demo(
    screen: Screen,
    report: ReportOption = Path("tablepuppet-demo.html"),
    epochs: Annotated[int, option("--epochs N", "Epochs of every algorithm, at most.", min=1)] = 10,
    flights: FlightsOption = None,
) -> None:
    """Predict late arrivals from New York's flights of 2013: nineteen owners, nothing pooled.

    Sixteen airlines keep their flights and labels; weather, aircraft and airports have owners of their own.
    Trains by every algorithm and grows boosted trees, and compares them with training on the pooled join.

    [bold]Example:[/bold] tablepuppet demo --report demo.html
    """
    check_place(report, "the report")
    with screen.progress("reading flights"):
        federation = open_flights(flights)
    jobs: dict[str, dict[str, Any]] = {
        name: {"model": "logistic", "algorithm": name, "epochs": epochs} for name in _NAMES
    }
    jobs[_BOOSTED] = {"model": "boosted", "trees": _TREES * epochs}
    results: dict[str, Result] = {}
    with federation:
        for name, given in jobs.items():
            with screen.progress(f"training {name}") as on_round:
                results[name] = federation.train(QUERY, label=LABEL, **given, on_round=on_round, progress=False)
            if len(results) == 1:
                mapping = results[name].plan.mapping
                screen.show(QUERY, _INTRODUCTION.format(train=mapping.train_rows, test=mapping.test_rows))
    written = results[DEFAULT].report(report, beside=[result for name, result in results.items() if name != DEFAULT])
    screen.show(comparison(results), "", _CONCLUSION.format(report=written).rstrip())
    screen.show_json(
        {
            "runs": [_summarise(name, results) for name in results],
            "baseline": results[DEFAULT].baseline,
            "report": str(written),
        }
    )


def comparison(results: dict[str, Result]) -> Table:
    """The algorithms side by side, below the majority class."""
    made = table("", "accuracy", "AUC", "gap", "epochs", "rounds", "MB", "US-UK", "US-US", title="Late arrivals")
    alone = results[DEFAULT].baseline
    made.add_row("majority class", f"{alone['accuracy']:.2%}", f"{alone['auc']:.4f}", *["–"] * 6)
    for name, result in results.items():
        run = _summarise(name, results)
        made.add_row(
            name,
            f"{run['accuracy']:.2%}",
            f"{run['auc']:.4f}",
            "–" if run["gap"] is None else f"{run['gap']:.0e}",
            result.epochs,
            f"{run['rounds']:,}",
            f"{run['bytes'] / 1e6:.1f}",
            *(f"{seconds:.1f} s" for seconds in run["seconds"].values()),
        )
    return made


def _summarise(name: str, results: dict[str, Result]) -> dict[str, Any]:
    result, best = results[name], results[_POOLED].objective
    return {
        "algorithm": name,
        "accuracy": result.metrics["test"]["accuracy"],
        "auc": result.metrics["test"]["auc"],
        "objective": result.objective,
        "gap": None if name in (_POOLED, _BOOSTED) else abs(result.objective - best) / best,
        "epochs": len(result.history),
        "rounds": result.traffic.rounds,
        "bytes": result.traffic.bytes,
        "seconds": {network: result.traffic.seconds(network) for network in ("us-uk", "us-us")},
    }
