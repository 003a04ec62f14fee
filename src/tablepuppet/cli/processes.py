"""A federation's processes (serve, join), its runs (status, submit, wait, resume, cancel), and an owner's decisions
(contracts, approve, deny, log)."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from tablepuppet.api.connected import ConnectedFederation
from tablepuppet.api.owners import tables_from_toml
from tablepuppet.cli.screen import Screen, argument, option, table
from tablepuppet.cli.train import JobArgument, ReportOption, ResumeOption, SaveOption, read_job, show_result
from tablepuppet.errors import PolicyError
from tablepuppet.formatting import plural, printable
from tablepuppet.network import processes
from tablepuppet.network.processes import configure
from tablepuppet.network.serve import Server
from tablepuppet.network.settings import ClientSettings, read_client, read_federation
from tablepuppet.owner.owner_files import Approvals
from tablepuppet.owner.owner_log import OwnerLog, read_head, read_log, read_proof, write_proof
from tablepuppet.owner.owner_log import verify as verify_log
from tablepuppet.owner.tables import ClientTables
from tablepuppet.sources.source import open_source

FederationArgument = Annotated[Path, argument("FEDERATION", "A federation file with a \\[server] section (TOML).")]
RunArgument = Annotated[str, argument("RUN", "The run's name, as `tablepuppet status` shows it.")]
ContractArgument = Annotated[str, argument("CONTRACT", "The contract's name, or its first eight digits or more.")]
FederationOption = Annotated[Path, option("--federation FILE", "The federation file.")]
WithOption = Annotated[list[Path] | None, option("--with CLIENT", "A client file to join from this process too.")]
LevelOption = Annotated[
    Literal["debug", "info", "warning", "error"], option("--log-level", "Log this level and above.")
]
StyleOption = Annotated[Literal["text", "json"], option("--log-format", "Text, or a JSON object a line.")]
InsecureOption = Annotated[
    bool, option("--insecure", "Allow an address without TLS (grpc+tcp://), on this machine only.")
]


_FEDERATION, _CLIENT = Path("federation.toml"), Path("client.toml")
_FILES = ("log.jsonl", "decisions.jsonl")  # an owner's logs: the client's own, and people's decisions


def serve(
    screen: Screen,
    federation: FederationArgument = _FEDERATION,
    with_clients: WithOption = None,
    insecure: InsecureOption = False,
    level: LevelOption = "info",
    style: StyleOption = "text",
) -> None:
    """Run the coordinator of a federation until it is stopped (Ctrl-C, SIGTERM).

    [bold]Example:[/bold] tablepuppet serve federation.toml
    """
    configure(level, style)
    settings = read_federation(federation)
    _check_security(settings.is_insecure, insecure, federation)

    def ready(server: Server) -> None:
        health = None if server.monitor is None else server.monitor.port
        screen.show(f"Listening on {settings.server.address}; clients: {', '.join(settings.clients)}.")
        screen.show_json({"address": settings.server.address, "port": server.port, "health_port": health})

    processes.serve(settings, [read_client(path) for path in with_clients or []], open_tables, ready)


def join(
    screen: Screen,
    client: Annotated[Path, argument("CLIENT", "A client file (TOML).")] = _CLIENT,
    insecure: InsecureOption = False,
    level: LevelOption = "info",
    style: StyleOption = "text",
) -> None:
    """Join a federation as a client: dial out and answer for its own tables until it is stopped (Ctrl-C, SIGTERM).

    [bold]Example:[/bold] tablepuppet join client.toml
    """
    configure(level, style)
    settings = read_client(client)
    _check_security(settings.server.startswith("grpc+tcp://"), insecure, client)
    processes.join(settings, open_tables)
    screen.show_json({"client": settings.name, "state": "stopped"})


def status(screen: Screen, federation: FederationArgument = _FEDERATION) -> None:
    """Show which clients are connected to a running server, and its runs.

    [bold]Example:[/bold] tablepuppet status federation.toml
    """
    found = ConnectedFederation(federation).status()
    notes = {name: note or "connected" for name, note in found["connected"].items()}
    notes |= {name: f"away for {seconds:.0f} s" for name, seconds in found["away"].items()}
    clients = [(name, note, f"{found['waited'][name]:.1f} s") for name, note in notes.items()]
    runs = [(r["run"], r["kind"], r["state"], f"{r['round']}/{r['rounds']}", _detail(r)) for r in found["runs"]]
    screen.show(table("client", "is", "waited for", title="Clients", rows=clients), "")
    screen.show(table("run", "kind", "state", "round", "", title="Runs", rows=runs))
    screen.show_json(found)


def resume(screen: Screen, run: RunArgument, federation: FederationOption = _FEDERATION) -> None:
    """Continue an interrupted run from its last step.

    [bold]Example:[/bold] tablepuppet resume 0b2675b6aca85709 --federation federation.toml
    """
    ConnectedFederation(federation).resume(run)
    screen.show(f"Run {run} goes on; `tablepuppet wait {run}` gives its result.")
    screen.show_json({"run": run, "state": "queued"})


def cancel(screen: Screen, run: RunArgument, federation: FederationOption = _FEDERATION) -> None:
    """Stop a run at its next step and drop its checkpoints.

    [bold]Example:[/bold] tablepuppet cancel 0b2675b6aca85709 --federation federation.toml
    """
    ConnectedFederation(federation).cancel(run)
    screen.show(f"Run {run} stops at its next step.")
    screen.show_json({"run": run, "state": "cancelled"})


def submit(
    screen: Screen,
    job: JobArgument,
    federation: FederationOption = _FEDERATION,
    share: Annotated[list[str] | None, option("--share USER", "A user who may see the result too.")] = None,
    resume: ResumeOption = False,
) -> None:
    """Submit a job to a running server without waiting: it is trained when its turn comes.

    [bold]Example:[/bold] tablepuppet submit returns.toml --federation federation.toml
    """
    asked = read_job(job)
    run = ConnectedFederation(federation).submit(asked.query, **asked.arguments, share=share or (), resume=resume)
    screen.show(f"Run {run} is queued; `tablepuppet wait {run}` shows its result.")
    screen.show_json({"run": run})


def wait(
    screen: Screen,
    run: RunArgument,
    federation: FederationOption = _FEDERATION,
    save: SaveOption = None,
    report: ReportOption = None,
) -> None:
    """Wait for a submitted run and show its result; Ctrl-C ends the waiting, not the run.

    [bold]Example:[/bold] tablepuppet wait 0b2675b6aca85709 --save model/
    """
    with screen.progress(f"run {run}") as on_round:
        result = ConnectedFederation(federation).wait(run, on_round=on_round)
    show_result(screen, result, save, report)


def open_tables(settings: ClientSettings) -> ClientTables:
    named = tables_from_toml(settings.tables, settings.folder)
    return ClientTables({name: open_source(sources[0], name) for name, sources in named.items()})


def _check_security(is_insecure: bool, is_allowed: bool, path: Path) -> None:
    if is_insecure and not is_allowed:
        raise typer.BadParameter(f"{path} names an address without TLS; give --insecure if that is meant")


def _detail(run: dict[str, Any]) -> str:
    away = ", ".join(f"{client} ({seconds:.0f} s left)" for client, seconds in run["waiting"].items())
    first = str(run["message"]).partition("\n")[0]  # a caret stands nowhere in a table
    return f"waits for {away}" if away else printable(first)


ClientOption = Annotated[Path, option("--client FILE", "The owner's client file.")]
ScopeOption = Annotated[
    Literal["once", "contract", "asker"],
    option("--for", "One job; every job with this contract; or this asker with these columns and noise."),
]


def contracts(screen: Screen, client: ClientOption = _CLIENT) -> None:
    """Show the contracts that wait for a decision, in full.

    [bold]Example:[/bold] tablepuppet contracts --client client.toml
    """
    approvals = Approvals(read_client(client).state_folder)
    waiting = approvals.waiting()
    for contract in waiting:
        notes = [f"  look: {note}" for note in approvals.notes(contract)]
        lines = [f"  {printable(line)}" for line in contract.lines()]
        screen.show(f"Contract {contract.hash[:16]}", *lines, *notes, "")
    if not waiting:
        screen.show("No contract waits for a decision.")
    screen.show_json([msgspec.to_builtins(c) | {"hash": c.hash, "notes": approvals.notes(c)} for c in waiting])


def approve(
    screen: Screen,
    contract: ContractArgument,
    client: ClientOption = _CLIENT,
    scope: ScopeOption = "contract",
    days: Annotated[int | None, option("--days", "How long it lasts; at most as long as the contract.")] = None,
) -> None:
    """Approve a contract that waits; the job then continues.

    [bold]Example:[/bold] tablepuppet approve 1f0c93ab --client client.toml --for once
    """
    _decide(screen, contract, client, scope, days, is_approved=True)


def deny(screen: Screen, contract: ContractArgument, client: ClientOption = _CLIENT) -> None:
    """Deny a contract; jobs with it are refused until the decision expires.

    [bold]Example:[/bold] tablepuppet deny 1f0c93ab --client client.toml
    """
    _decide(screen, contract, client, "contract", None, is_approved=False)


def _decide(
    screen: Screen,
    name: str,
    client: Path,
    scope: Literal["once", "contract", "asker"],
    days: int | None,
    *,
    is_approved: bool,
) -> None:
    approvals = Approvals(read_client(client).state_folder)
    contract = approvals.find(name)
    decision = approvals.decide(name, is_approved=is_approved, scope=scope, days=days)
    word = "approved" if is_approved else "denied"
    screen.show(f"Contract {contract.hash[:16]} is {word} until {decision.until}.")
    screen.show_json({"contract": contract.hash, "decision": word, "scope": scope, "until": decision.until})


def show(screen: Screen, client: ClientOption = _CLIENT) -> None:
    """Show every line of the log.

    [bold]Example:[/bold] tablepuppet log show --client client.toml
    """
    folder = read_client(client).state_folder
    found = [entry for name in _FILES if (folder / name).exists() for entry in read_log(folder / name)]
    entries = sorted(found, key=lambda entry: entry.time)
    rows = [
        (e.number, e.time, e.event, e.job, e.contract[:16], ", ".join(f"{k}: {v}" for k, v in e.detail.items()))
        for e in entries
    ]
    screen.show(table("number", "time", "event", "job", "contract", "detail", title="Log", rows=rows))
    screen.show_json([msgspec.to_builtins(entry) for entry in entries])


def verify(
    screen: Screen,
    log: Annotated[Path | None, argument("LOG", "A log; without it, those of the client.")] = None,
    client: ClientOption = _CLIENT,
    expect: Annotated[str, option("--expect HEAD", "A head that somebody kept: sixteen digits or more.")] = "",
    prove: Annotated[Path | None, option("--prove FILE", "Write a proof that the log continues that head.")] = None,
    proof: Annotated[Path | None, option("--proof FILE", "Verify such a proof instead of a log.")] = None,
) -> None:
    """Check that no line of the log was changed, removed or put in between, and that it continues a head that was kept.

    [bold]Example:[/bold] tablepuppet log verify --client client.toml --expect 9f0c93ab2c5de1f7
    """
    if expect and not re.fullmatch(r"[0-9a-f]{16,64}", expect):
        raise typer.BadParameter("a head is sixteen to sixty-four hexadecimal digits, as a result or a log has it")
    if (prove or proof) and not expect:
        raise typer.BadParameter("a proof is about a head that somebody kept; name it with --expect")
    if proof is not None:
        shown = read_proof(proof, expect)
        screen.show(
            f"A log of {plural(shown.second.size, 'line')} with the head {shown.second.root} continues that of "
            f"{plural(shown.first.size, 'line')} with the head {shown.first.root[:16]}."
        )
        screen.show_json(msgspec.to_builtins(shown))
        return
    folder = Path() if log is not None else read_client(client).state_folder
    files = [log] if log is not None else [folder / name for name in _FILES if (folder / name).exists()]
    found = {path.name: verify_log(path, expect if path == files[0] else "") for path in files}
    for name, (head, kept) in found.items():
        screen.show(f"{name}: {plural(head.size, 'line')}, each follows from those before; the head is {head.root}.")
        if kept is not None:
            screen.show(f"{name} continues its first {plural(kept.size, 'line')}, with the head {kept.root[:16]}.")
            if prove is not None:
                write_proof(files[0], kept, prove)
    if expect and not files:
        raise PolicyError(f"there is no log in {folder}, and a head of one was kept: it was deleted; restore it")
    if not files:
        screen.show("There is no log yet.")
    screen.show_json(
        {
            name: {"lines": head.size, "last": head.root, "expected": None if kept is None else kept.size}
            for name, (head, kept) in found.items()
        }
    )


def accept(screen: Screen, client: ClientOption = _CLIENT) -> None:
    """Accept that a log was lost or replaced: the client starts again, and the log says who accepted what.

    [bold]Example:[/bold] tablepuppet log accept --client client.toml
    """
    settings = read_client(client)
    kept = read_head(settings.head_path)
    path = settings.state_folder / "log.jsonl"
    found = OwnerLog(path)
    before = found.head
    is_whole = found.follows(kept)
    found.accept(kept)
    OwnerLog(path, anchor=settings.head_path)
    if is_whole:
        screen.show(
            f"The log continues the head in {settings.head_path}. Accepted: row sets that it names may be lost."
        )
    else:
        screen.show(
            f"Accepted: {kept.size:,} lines with the head {kept.root[:16]} are lost, with what they say was spent; the "
            f"log goes on from {before.size:,} lines."
        )
    screen.show_json({"kept": msgspec.to_builtins(kept), "found": msgspec.to_builtins(before)})
