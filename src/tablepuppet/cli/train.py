"""tablepuppet explain, train and search JOB: a job's plan, its model, or its best settings.

JOB is a TOML file whose keys carry the names of the Python arguments:

    query = "SELECT …"             # or query_file = "query.sql"
    label = "returned"
    model = "logistic"
    algorithm = "newton"           # or a table: [algorithm] name = "admm", rho = 0.5
    federation = "federation.toml" # or a table: [tables]

read_job: the file's path → a JobFile: the query, the arguments of Federation.train, where the tables are. Relative
paths are relative to the file that names them.
"""

import json
import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from tablepuppet.algorithms.registry import BY_NAME, DEFAULT
from tablepuppet.api import Federation
from tablepuppet.api.history import history as write_history
from tablepuppet.api.owners import federation_from_toml, read_toml
from tablepuppet.api.search import search as search_settings
from tablepuppet.cli.screen import Screen, argument, option, table
from tablepuppet.errors import JobError, hint, unreadable
from tablepuppet.formatting import plural, seconds, size
from tablepuppet.job import ARGUMENTS, loss_options
from tablepuppet.memory import fix_thresholds
from tablepuppet.output_files import check_place
from tablepuppet.prediction.saved import check_target
from tablepuppet.report.recording import record_of
from tablepuppet.training.result import Result, metric_rows

JobArgument = Annotated[Path, argument("JOB", "A job file (TOML).")]
FederationOption = Annotated[Path | None, option("--federation FILE", "A federation file (TOML); overrides JOB.")]

_OF_THE_FILE = ("query_file", "federation", "tables", "owners", "partitioned_by", "privacy", "rows")
_OF_A_JOB = (*(name for name in ARGUMENTS if name not in ("options", "loss_options")), "split", "gap")
_OF_ALGORITHMS = tuple({name for a in BY_NAME.values() for name in a.options.__struct_fields__})


class JobFile(msgspec.Struct, frozen=True):
    """A job as a file describes it; Federation.train checks the arguments."""

    path: Path
    query: str
    arguments: dict[str, Any]
    federation: Path | None
    tables: dict[str, Any] | None  # [tables], with [owners] and [partitioned_by]
    rows: Any = "test"  # that models are measured on

    @property
    def analyst(self) -> dict[str, Any] | None:
        """The privacy under which models are measured where a table has an analyst budget."""
        asked = self.arguments.get("privacy")
        return {"analyst": asked["analyst"]} if isinstance(asked, dict) and "analyst" in asked else None

    def open_federation(self, instead: Path | None = None) -> Federation:
        fix_thresholds()  # the process is a command's own
        if instead is not None:
            return Federation.from_toml(instead)
        if self.federation is not None:
            return Federation.from_toml(self.federation)
        if self.tables is None:
            raise JobError(f'{self.path} names no tables; add [tables], federation = "…", or give --federation FILE')
        return Federation(**federation_from_toml(self.path, self.tables))


def read_job(path: Path, *, needs_label: bool = True) -> JobFile:
    """Reads a job file; any mistake in it is one clear error. A saved model knows its label itself."""
    given = read_toml(path)
    _check_names(path, given)
    query = _query(path, given)
    if needs_label and "label" not in given:
        raise JobError(f'{path} names no label; add label = "…", the name of a column in the SELECT list')
    federation = given.pop("federation", None)
    sections: dict[str, Any] = {
        name: given.pop(name) for name in ("tables", "owners", "partitioned_by") if name in given
    }
    tables = sections.get("tables")
    if federation is not None and sections:
        raise JobError(f"{path} has both federation and [{next(iter(sections))}]; keep one of them")
    if federation is not None and not isinstance(federation, str):
        raise JobError(f"{path}: federation must be the path of a federation file, not {_kind(federation)}")
    if tables is not None and not isinstance(tables, dict):
        raise JobError(f"{path}: tables must be a section, [tables], not {_kind(tables)}")
    place, rows = None if federation is None else path.parent / federation, given.pop("rows", "test")
    return JobFile(path, query, given | _algorithm(path, given), place, sections or None, rows)


def _check_names(path: Path, given: dict[str, Any]) -> None:
    known = {*_OF_THE_FILE, *_OF_A_JOB, *_OF_ALGORITHMS, *loss_options()}
    for name in given:
        if name not in known:
            near = hint(name, sorted(known), "a job", shown=(*_OF_A_JOB, *_OF_THE_FILE))
            raise JobError(f"{path}: unknown key {name!r}; {near}")


def _query(path: Path, given: dict[str, Any]) -> str:
    """The query's text, from the file itself or from the one it names; removed from `given`."""
    text, name = given.pop("query", None), given.pop("query_file", None)
    if (text is None) == (name is None):
        found = "no query" if text is None else "both query and query_file"
        raise JobError(f'{path} has {found}; give one of query = """SELECT …""" and query_file = "query.sql"')
    if name is None:
        if not isinstance(text, str):
            raise JobError(f"{path}: query must be SQL text, not {_kind(text)}")
        return text
    if not isinstance(name, str):
        raise JobError(f"{path}: query_file must be a path, not {_kind(name)}")
    try:
        return (path.parent / name).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a path with a null byte
        raise JobError(f"the query file: {unreadable(path.parent / name, error)}") from None


def _algorithm(path: Path, given: dict[str, Any]) -> dict[str, Any]:
    """[algorithm] name = …, rho = … as the arguments algorithm=…, rho=…"""
    section = given.get("algorithm")
    if not isinstance(section, dict):
        return {}
    if not isinstance(section.get("name"), str):
        raise JobError(f'{path}: [algorithm] needs a name, one of {", ".join(BY_NAME)}: name = "{DEFAULT}"')
    twice = sorted((set(section) - {"name"}) & set(given))
    if twice:
        raise JobError(f"{path}: {twice[0]} is given twice, in [algorithm] and outside; keep one of them")
    return {"algorithm": section["name"], **{k: v for k, v in section.items() if k != "name"}}


def _kind(value: Any) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "a section"}
    return kinds.get(type(value), type(value).__name__)


ResumeOption = Annotated[bool, option("--resume", "Resume an interrupted run of this job (needs a running server).")]
SaveOption = Annotated[Path | None, option("--save DIR", "Save the trained model here.")]
ReportOption = Annotated[Path | None, option("--report FILE", "Write an HTML report here.")]
WalkOption = Annotated[str | None, option("--walk", "materialised, factorised or drawn joined rows; overrides JOB.")]
StartOption = Annotated[
    Path | None, option("--warm-start MODEL", "Begin with a saved linear model, or add trees to it.")
]


def train(
    screen: Screen,
    job: JobArgument,
    federation: FederationOption = None,
    save: SaveOption = None,
    report: ReportOption = None,
    explain: Annotated[bool, option("--explain", "Also show the plan, estimated and counted.")] = False,
    resume: ResumeOption = False,
    engine: Annotated[str | None, option("--engine", "Where joined rows lie: local or ray; overrides JOB.")] = None,
    walk: WalkOption = None,
    start: StartOption = None,
) -> None:
    """Train a job's model on tables that stay with their owners.

    [bold]Example:[/bold] tablepuppet train returns.toml --save model/ --report returns.html

    A job file:

    [dim]query = "SELECT o.quantity, i.price, o.returned FROM orders o JOIN items i ON o.item_id = i.item_id"[/dim]

    [dim]label = "returned"[/dim]

    [dim]algorithm = "newton"[/dim]

    [dim]tables.orders = ["store_eu.parquet", "store_us.parquet"][/dim]

    [dim]tables.items = "items.csv"[/dim]
    """
    asked = read_job(job)
    if save is not None:
        check_target(check_place(save, "the model", is_folder=True))
    if report is not None:
        check_place(report, "the report")
    instead = {"engine": engine, "walk": walk, "warm_start": start}
    arguments = asked.arguments | {name: value for name, value in instead.items() if value is not None}
    with screen.progress(f"training {asked.path.stem}") as on_round, asked.open_federation(federation) as tables:
        result = tables.train(asked.query, **arguments, on_round=on_round, progress=False, resume=resume)
    show_result(screen, result, save, report, result.explain() if explain else "")


def show_result(
    screen: Screen, result: Result, save: Path | None = None, report: Path | None = None, plan: str = ""
) -> None:
    """Shows metrics on every side of the split and the cost of training; writes the model and the report."""
    if save is not None:  # before anything is shown: standard output may fail, and the model must not be lost with it
        result.save(save)
    if plan:
        screen.show(plan, "")
    head, *rows = metric_rows(result.sides)
    job, traffic = result.plan.job, result.traffic
    spent = table("", "epochs", "objective", "rounds", "bytes", "US-UK", "US-US", title="What it took")
    spent.add_row(
        job.algorithm,
        result.epochs,
        "" if math.isnan(result.objective) else f"{result.objective:.6g}",
        f"{traffic.rounds:,}",
        size(traffic.bytes),
        *(seconds(traffic.seconds(name)) for name in ("us-uk", "us-us")),
    )
    if rows:
        screen.show(table(*head, title="How good it is", rows=rows), "")
    screen.show(spent, *(f"Note: {note}" for note in result.remarks))
    if save is not None:
        screen.show(f"Model: {save}")
    if report is not None:
        screen.show(f"Report: {result.report(report)}")
    if screen.wants_json:
        screen.show_json(msgspec.to_builtins(record_of(result)))


ProbeOption = Annotated[bool, option("--probe", "Train a sum of tables first; estimate what other models would gain.")]
SuggestOption = Annotated[
    bool, option("--suggest-history", "Only print the query with features of the tables' histories.")
]


def explain(
    screen: Screen,
    job: JobArgument,
    federation: FederationOption = None,
    profile: Annotated[bool, option("--profile", "Only show how keys match: orphans, duplicates, NULL keys.")] = False,
    probe: ProbeOption = False,
    suggest: SuggestOption = False,
) -> None:
    """Show the plan of a job: operators, rows, rounds, bytes, seconds, memory, and who learns what.

    Nothing is trained, except with --probe.

    [bold]Example:[/bold] tablepuppet explain returns.toml
    """
    asked = read_job(job, needs_label=not profile)
    if profile:
        with screen.progress("counting the keys"), asked.open_federation(federation) as tables:
            given = asked.arguments
            found = tables.profile(asked.query, label=given.get("label"), privacy=given.get("privacy"))
        screen.show(str(found))
        screen.show_json(found.to_dict())
        return
    if suggest:
        with asked.open_federation(federation) as tables:
            text = tables.suggest_history(asked.query, label=asked.arguments["label"])
        screen.show(text)
        screen.show_json({"query": text})
        return
    with screen.progress("joining the keys"), asked.open_federation(federation) as tables:
        arguments = asked.arguments | ({"probe": True} if probe else {})
        plan = tables.explain(asked.query, **arguments, progress=False)
    screen.show(str(plan))
    screen.show_json(json.loads(plan.to_json()))


WindowOption = Annotated[list[str] | None, option("--window SPAN", 'How far back: "90 days", or all. May be repeated.')]


def history(
    screen: Screen,
    names: Annotated[list[str], argument("TABLE.TIME [COLUMN | COLUMN:category]…", "A table, its time, its columns.")],
    key: Annotated[list[str], option("--key COLUMN", "Equal in both tables; may be repeated.")],
    at: Annotated[str, option("--at ALIAS.COLUMN", "The moment, in the query's table.")],
    window: WindowOption = None,
) -> None:
    """Write the SQL of a history: features of a table's rows before a moment.

    [bold]Example:[/bold] tablepuppet history results.date points status:category --key driver_id --at t.ts
    """
    table, dot, time = names[0].rpartition(".")
    if not dot:
        raise JobError(f"write the table and its time, as in results.date, and not {names[0]!r}")
    given = [name.rpartition(":") if name.endswith(":category") else (name, "", "") for name in names[1:]]
    text = write_history(
        table,
        key=key,
        time=time,
        at=at,
        windows=[None if span == "all" else span for span in window or ("90 days", "1 year", "all")],
        columns=[name for name, colon, _ in given if not colon],
        categories=[name for name, colon, _ in given if colon],
    )
    screen.show(text)
    screen.show_json({"join": text})


TryOption = Annotated[
    list[str] | None, option("--try NAME=V,V…", "Values of an option; repeat it to try all combinations.")
]


def search(
    screen: Screen,
    job: JobArgument,
    given: TryOption = None,
    folds: Annotated[int, option("--folds", "How many folds.")] = 5,
    metric: Annotated[str, option("--metric NAME", "The metric that decides: loss, auc, rmse, …")] = "loss",
    samples: Annotated[int | None, option("--samples", "Draw this many settings instead of trying all.")] = None,
    group: Annotated[str | None, option("--group COLUMN", "Rows with the same value stay in one fold.")] = None,
    time: Annotated[str | None, option("--time COLUMN", "Folds follow its order.")] = None,
    federation: FederationOption = None,
) -> None:
    """Cross-validate a job, or compare settings of it; the best comes first.

    [bold]Example:[/bold] tablepuppet search returns.toml --try l2=0.001,0.01,0.1 --try l1=0,0.001 --metric auc
    """
    asked = read_job(job)
    grid = read_grid(given or ())
    arguments = {name: value for name, value in asked.arguments.items() if name not in grid}
    chosen: dict[str, Any] = {"folds": folds, "metric": metric, "samples": samples, "group": group, "time": time}
    with screen.progress(f"searching {asked.path.stem}"), asked.open_federation(federation) as tables:
        found = search_settings(tables, asked.query, grid or [{}], **arguments, **chosen)
    names = list(grid)
    metrics = [name for name in found.table.columns if f"{name}_std" in found.table.columns]
    rows = [
        [*(str(row[name]) for name in names), *(f"{row[m]:.4g} ± {row[f'{m}_std']:.2g}" for m in metrics)]
        for row in found.table.to_dict("records")
    ]
    title = f"{plural(len(found.settings), 'setting')} on {plural(folds, 'fold')}, mean ± spread"
    shown = table(*names, *metrics, title=title, rows=rows)
    best = ", ".join(f"{name} = {json.dumps(value)}" for name, value in found.best.items())
    screen.show(shown, *([f"Best by {metric}: {best}. Write it into {asked.path.name} and train."] if best else []))
    screen.show_json(
        {
            "metric": metric,
            "best": found.best,
            "settings": found.table.to_dict("records"),
            "folds": found.folds.to_dict("records"),
        }
    )


def read_grid(given: Sequence[str]) -> dict[str, list[Any]]:
    """NAME=V,V as the values of each name, written as in a job file; a word needs no quotes.

    >>> read_grid(["l2=0.1,1", "activation=relu,tanh"])
    {'l2': [0.1, 1], 'activation': ['relu', 'tanh']}
    """
    grid: dict[str, list[Any]] = {}
    for text in given:
        name, sign, values = text.partition("=")
        if not sign or not name.strip() or not values.strip():
            raise JobError(f"--try takes a name and its values, as in --try l2=0.01,0.1, and not {text!r}")
        try:
            listed = tomllib.loads(f"v = [{values}]")["v"]
        except tomllib.TOMLDecodeError:
            listed = [value.strip() for value in values.split(",")]
        grid.setdefault(name.strip(), []).extend(listed)
    return grid
