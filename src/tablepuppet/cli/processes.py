"""tablepuppet serve, join, status, cancel, resume: the processes of a federation, and a look at them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tablepuppet.api import ConnectedFederation
from tablepuppet.api.owners import tables_from_toml
from tablepuppet.cli.screen import JsonOption, Screen, table
from tablepuppet.formatting import printable
from tablepuppet.network import processes
from tablepuppet.network.processes import configure
from tablepuppet.network.serve import Server
from tablepuppet.network.settings import ClientSettings, read_client, read_federation
from tablepuppet.owner.store import ClientTables
from tablepuppet.sources.source import open_source

FederationArgument = Annotated[
    Path, typer.Argument(metavar="FEDERATION", help="A federation file with a \\[server] section (TOML).")
]
ClientArgument = Annotated[Path, typer.Argument(metavar="CLIENT", help="A client file (TOML).")]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's name, as `tablepuppet status` shows it.")]
FederationOption = Annotated[Path, typer.Option("--federation", metavar="FILE", help="The federation file.")]
WithOption = Annotated[
    list[Path] | None, typer.Option("--with", metavar="CLIENT", help="A client file to join from this process too.")
]
LevelOption = Annotated[
    Literal["debug", "info", "warning", "error"],
    typer.Option("--log-level", help="Log this level and above."),
]
StyleOption = Annotated[Literal["text", "json"], typer.Option("--log-format", help="Text, or a JSON object a line.")]
InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="Allow an address without TLS (grpc+tcp://), on this machine only.")
]


def serve(
    federation: FederationArgument = Path("federation.toml"),
    with_clients: WithOption = None,
    insecure: InsecureOption = False,
    level: LevelOption = "info",
    style: StyleOption = "text",
    as_json: JsonOption = False,
) -> None:
    """Run the coordinator of a federation until it is stopped (Ctrl-C, SIGTERM).

    [bold]Example:[/bold] tablepuppet serve federation.toml
    """
    configure(level, style)
    screen = Screen(as_json)
    settings = read_federation(federation)
    _check_security(settings.is_insecure, insecure, federation)

    def ready(server: Server) -> None:
        health = None if server.monitor is None else server.monitor.port
        screen.show(f"Listening on {settings.server.address}; clients: {', '.join(settings.clients)}.")
        screen.show_json(lambda: {"address": settings.server.address, "port": server.port, "health_port": health})

    processes.serve(settings, [read_client(path) for path in with_clients or []], open_tables, ready)


def join(
    client: ClientArgument = Path("client.toml"),
    insecure: InsecureOption = False,
    level: LevelOption = "info",
    style: StyleOption = "text",
    as_json: JsonOption = False,
) -> None:
    """Join a federation as a client: dial out and answer for its own tables until it is stopped (Ctrl-C, SIGTERM).

    [bold]Example:[/bold] tablepuppet join client.toml
    """
    configure(level, style)
    settings = read_client(client)
    _check_security(settings.server.startswith("grpc+tcp://"), insecure, client)
    processes.join(settings, open_tables)
    Screen(as_json).show_json(lambda: {"client": settings.name, "state": "stopped"})


def status(federation: FederationArgument = Path("federation.toml"), as_json: JsonOption = False) -> None:
    """Show which clients are connected to a running server, and its runs.

    [bold]Example:[/bold] tablepuppet status federation.toml
    """
    screen = Screen(as_json)
    found = ConnectedFederation(federation).status()
    clients = table("client", "is", "waited for", title="Clients")
    for name, note in found["connected"].items():
        clients.add_row(name, note or "connected", f"{found['waited'][name]:.1f} s")
    for name, seconds in found["away"].items():
        clients.add_row(name, f"away for {seconds:.0f} s", f"{found['waited'][name]:.1f} s")
    runs = table("run", "kind", "state", "round", "", title="Runs")
    for run in found["runs"]:
        runs.add_row(run["run"], run["kind"], run["state"], f"{run['round']}/{run['rounds']}", _detail(run))
    screen.show(clients, "", runs)
    screen.show_json(lambda: found)


def resume(
    run: RunArgument, federation: FederationOption = Path("federation.toml"), as_json: JsonOption = False
) -> None:
    """Go on with an interrupted run where it was.

    [bold]Example:[/bold] tablepuppet resume 0b2675b6aca85709 --federation federation.toml
    """
    screen = Screen(as_json)
    ConnectedFederation(federation).resume(run)
    screen.show(f"Run {run} goes on; `tablepuppet wait {run}` gives its result.")
    screen.show_json(lambda: {"run": run, "state": "queued"})


def cancel(
    run: RunArgument, federation: FederationOption = Path("federation.toml"), as_json: JsonOption = False
) -> None:
    """Stop a run at its next step and drop its checkpoints.

    [bold]Example:[/bold] tablepuppet cancel 0b2675b6aca85709 --federation federation.toml
    """
    screen = Screen(as_json)
    ConnectedFederation(federation).cancel(run)
    screen.show(f"Run {run} stops at its next step.")
    screen.show_json(lambda: {"run": run, "state": "cancelled"})


def open_tables(settings: ClientSettings) -> ClientTables:
    """A client's sources, as its file names them."""
    named = tables_from_toml(settings.tables, settings.folder)
    return ClientTables({name: open_source(sources[0], name) for name, sources in named.items()})


def _check_security(is_insecure: bool, is_allowed: bool, path: Path) -> None:
    if is_insecure and not is_allowed:
        raise typer.BadParameter(f"{path} names an address without TLS; give --insecure if that is meant")


def _detail(run: dict[str, Any]) -> str:
    away = ", ".join(f"{client} ({seconds:.0f} s left)" for client, seconds in run["waiting"].items())
    return f"waits for {away}" if away else printable(str(run["message"]), keep="\n")
