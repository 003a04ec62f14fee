"""tablepuppet approve, deny, contracts, log: what a person at the owner's side decides and looks up, in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from tablepuppet.cli.screen import JsonOption, Screen, table
from tablepuppet.network.settings import read_client
from tablepuppet.protocol.contract import Contract, ScanTerms
from tablepuppet.tables.approvals import Approvals, Decision
from tablepuppet.tables.owner_log import Entry, read_log
from tablepuppet.tables.owner_log import verify as verify_log

_ROLES = {
    "key": "join key",
    "feature": "feature",
    "label": "label",
    "weight": "weight",
    "split": "which rows are test or validation rows",
    "identifier": "shown beside predictions",
}


def contract_lines(contract: Contract) -> Iterator[str]:
    """Who asks for what, what leaves how often, and under which noise."""
    yield f"{contract.asker} asks to {contract.purpose}; label {contract.label}"
    for scan in contract.scans:
        yield from _scan(scan)
    training = contract.training
    if training is not None:
        name, kind = training.name, training.model.kind
        kept = "leave" if training.releases else "stay here"
        yield f"{name}, {kind} model, {training.epochs} epochs; trained parameters {kept}"
    noise = {
        "labels": contract.label_privacy,
        "features": contract.feature_privacy,
        "predictions": contract.prediction_privacy if contract.prediction_privacy.mode == "local" else None,
    }
    for what, given in noise.items():
        yield f"{what}: no noise" if given is None else f"{what}: under noise, {given}"
    for told in contract.disclosures:
        how = (
            "once for each joined row of a row, in every epoch" if told.times is None else f"at most {told.times} times"
        )
        yield f"{told.what} of {told.table} to the {told.to if told.to == 'server' else 'owner'}: {how}"
    yield f"an approval lasts at most {contract.days} days"


def _scan(scan: ScanTerms) -> Iterator[str]:
    where = "all rows" if scan.filter is None else f"rows where {scan.filter}"
    yield f"table {scan.table}, {where}:"
    for column in scan.columns:
        yield f"  {column.expression}: {', '.join(_ROLES[role] for role in column.roles) or 'no use'}"


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
        screen.show(f"Contract {contract.hash[:16]}", *[f"  {line}" for line in contract_lines(contract)], *notes, "")
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
