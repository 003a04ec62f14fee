"""tablepuppet approve, deny, contracts, log: what a person at the owner's side decides and looks up, in words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from tablepuppet.cli.screen import JsonOption, Screen, table
from tablepuppet.formatting import printable
from tablepuppet.network.settings import read_client
from tablepuppet.owner.owner_files import Approvals, Decision, Entry, read_log
from tablepuppet.owner.owner_files import verify as verify_log

ContractArgument = Annotated[
    str, typer.Argument(metavar="CONTRACT", help="The contract's name, or its first eight digits or more.")
]
ClientOption = Annotated[Path, typer.Option("--client", metavar="FILE", help="The owner's client file.")]
ScopeOption = Annotated[
    Literal["once", "contract", "asker"],
    typer.Option("--for", help="One job; every job with this contract; or this asker with these columns and noise."),
]
DaysOption = Annotated[int | None, typer.Option("--days", help="How long it lasts; at most as long as the contract.")]


def contracts(client: ClientOption = Path("client.toml"), as_json: JsonOption = False) -> None:
    """Show the contracts that wait for a decision, in full.

    [bold]Example:[/bold] tablepuppet contracts --client client.toml
    """
    screen = Screen(as_json)
    approvals = Approvals(read_client(client).state_folder)
    waiting = approvals.waiting()
    for contract in waiting:
        notes = [f"  look: {note}" for note in approvals.notes(contract)]
        lines = [f"  {printable(line)}" for line in contract.lines()]
        screen.show(f"Contract {contract.hash[:16]}", *lines, *notes, "")
    if not waiting:
        screen.show("No contract waits for a decision.")
    screen.show_json(lambda: [msgspec.to_builtins(c) | {"hash": c.hash, "notes": approvals.notes(c)} for c in waiting])


def approve(
    contract: ContractArgument,
    client: ClientOption = Path("client.toml"),
    scope: ScopeOption = "contract",
    days: DaysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Approve a contract that waits; the job goes on by itself.

    [bold]Example:[/bold] tablepuppet approve 1f0c93ab --client client.toml --for once
    """
    _decide(contract, client, scope, days, as_json, is_approved=True)


def deny(contract: ContractArgument, client: ClientOption = Path("client.toml"), as_json: JsonOption = False) -> None:
    """Deny a contract; jobs with it are refused until the decision expires.

    [bold]Example:[/bold] tablepuppet deny 1f0c93ab --client client.toml
    """
    _decide(contract, client, "contract", None, as_json, is_approved=False)


def _decide(
    name: str,
    client: Path,
    scope: Literal["once", "contract", "asker"],
    days: int | None,
    as_json: bool,
    *,
    is_approved: bool,
) -> None:
    screen, folder = Screen(as_json), read_client(client).state_folder
    approvals = Approvals(folder)
    contract = approvals.find(name)
    decision: Decision = approvals.decide(name, is_approved=is_approved, scope=scope, days=days)
    word = "approved" if is_approved else "denied"
    screen.show(f"Contract {contract.hash[:16]} is {word} until {decision.until}.")
    screen.show_json(lambda: {"contract": contract.hash, "decision": word, "scope": scope, "until": decision.until})


log_app = typer.Typer(name="log", help="The owner's log: proposals, decisions, disclosures and refusals.")


@log_app.command("show")
def show(client: ClientOption = Path("client.toml"), as_json: JsonOption = False) -> None:
    """Show every line of the log.

    [bold]Example:[/bold] tablepuppet log show --client client.toml
    """
    screen = Screen(as_json)
    entries = _entries(client)
    lines = table("number", "time", "event", "job", "contract", "detail", title="Log")
    for entry in entries:
        detail = ", ".join(f"{name}: {value}" for name, value in entry.detail.items())
        lines.add_row(str(entry.number), entry.time, entry.event, entry.job, entry.contract[:16], detail)
    screen.show(lines)
    screen.show_json(lambda: [msgspec.to_builtins(entry) for entry in entries])


@log_app.command("verify")
def verify(client: ClientOption = Path("client.toml"), as_json: JsonOption = False) -> None:
    """Check that no line of the log was changed, removed or put in between.

    [bold]Example:[/bold] tablepuppet log verify --client client.toml
    """
    screen, folder = Screen(as_json), read_client(client).state_folder
    counts = {name: verify_log(folder / name) for name in _FILES if (folder / name).exists()}
    last = {name: read_log(folder / name)[-1].hash for name, lines in counts.items() if lines}
    for name, lines in counts.items():
        screen.show(
            f"{name}: {lines:,} lines, each follows from the one before; the last is {last.get(name, '–')[:16]}."
        )
    if not counts:
        screen.show("There is no log yet.")
    screen.show_json(lambda: {name: {"lines": lines, "last": last.get(name)} for name, lines in counts.items()})


_FILES = ("log.jsonl", "decisions.jsonl")  # the client's own, and what people decided beside it


def _entries(client: Path) -> list[Entry]:
    folder = read_client(client).state_folder
    found = [entry for name in _FILES if (folder / name).exists() for entry in read_log(folder / name)]
    return sorted(found, key=lambda entry: entry.time)
