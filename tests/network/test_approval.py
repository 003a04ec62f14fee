"""A job waits for a person at an owner, says for whom, holds nothing meanwhile, and goes on by itself once approved."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.network.parties import QUERY, Parties, assert_same, in_process, running, tables

import tablepuppet as tp
from tablepuppet.api.connected import ConnectedFederation
from tablepuppet.errors import PolicyError
from tablepuppet.owner.owner_files import Approvals
from tablepuppet.owner.owner_log import read_head, read_log, verify
from tablepuppet.protocol.evidence import public_text, read_asker_key


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parties]:
    """Store-eu has no policy: it asks a person about every contract."""
    with running(tmp_path_factory.mktemp("federation"), tables()) as started:
        settings = started.folder / "store-eu.toml"
        settings.write_text(settings.read_text().replace('policy = "open.toml"\n', ""))
        started.restart("store-eu")
        started.await_clients()
        yield started


def state(parties: Parties) -> Path:
    return parties.folder / "state" / "store-eu"


def command(parties: Parties, *words: str) -> str:
    given = [sys.executable, "-m", "tablepuppet", *words, "--client", str(parties.folder / "store-eu.toml")]
    done = subprocess.run(given, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def await_run(parties: Parties, run: str, *wanted: str) -> dict[str, Any]:
    found = parties.await_status(lambda s: any(r["run"] == run and r["state"] in wanted for r in s["runs"]))
    return next(dict(r) for r in found["runs"] if r["run"] == run)


def approve_asker(parties: Parties) -> None:
    """Store-eu's owner approves everything on the columns of QUERY, unless an earlier test did."""
    parties.await_clients()
    run = parties.connect().submit(QUERY, label="y", algorithm="newton", epochs=5)
    if await_run(parties, run, "waiting", "finished")["state"] == "waiting":
        approvals = Approvals(state(parties))
        contract = next(c for c in approvals.waiting() if c.training is not None and c.training.epochs == 5)
        approvals.decide(contract.hash, is_approved=True, scope="asker", days=1)
    parties.connect().wait(run)


def test_a_waiting_job_goes_on_by_itself_after_approval_and_a_restart_of_the_server(parties: Parties) -> None:
    federation = parties.connect()
    run = federation.submit(QUERY, label="y", algorithm="newton")
    message = await_run(parties, run, "waiting")["message"]
    assert "the owner of store-eu (contract " in message
    assert "Nothing was read" in message
    assert not [e for e in read_log(state(parties) / "log.jsonl") if e.event in ("agreed", "disclosed")]
    parties.restart("server")
    parties.await_clients()
    await_run(parties, run, "waiting")
    name = message.partition("(contract ")[2][:16]
    assert f"Contract {name}" in command(parties, "contracts")
    command(parties, "approve", name, "--for", "once")
    result = parties.connect().wait(run)
    with in_process(tables()) as local:
        assert_same(result, local.train(QUERY, label="y", algorithm="newton"))
    entries = read_log(state(parties) / "log.jsonl")
    events = [e.event for e in entries if e.job == run]
    assert events == ["proposed", "waiting", "agreed", "disclosed"]  # however often it was looked at
    assert verify(state(parties) / "log.jsonl")[0].size == len(entries)
    assert verify(state(parties) / "decisions.jsonl")[0].size == 1


def test_a_job_that_a_person_denies_ends_and_does_not_say_why(parties: Parties) -> None:
    run = parties.connect().submit(QUERY, label="y", algorithm="newton", epochs=7)
    await_run(parties, run, "waiting")
    (contract,) = Approvals(state(parties)).waiting()
    Approvals(state(parties)).decide(contract.hash, is_approved=False)
    with pytest.raises(PolicyError, match="a person looked at the contract and denied it"):
        parties.connect().wait(run)


def test_a_waiting_job_holds_up_no_other_and_can_be_cancelled(parties: Parties) -> None:
    federation = parties.connect()
    run = federation.submit(QUERY, label="y", algorithm="newton", epochs=6)
    await_run(parties, run, "waiting")
    with pytest.raises(tp.TablePuppetError, match="no table"):
        federation.explain("SELECT a.x, a.y FROM nothing a", label="y")  # another run is worked on meanwhile
    federation.cancel(run)
    await_run(parties, run, "cancelled")


def test_an_approval_for_an_asker_covers_other_options_on_the_same_columns(parties: Parties) -> None:
    approve_asker(parties)
    parties.connect().train(QUERY, label="y", algorithm="newton", epochs=4)


def test_a_log_that_was_deleted_with_its_head_is_noticed_by_the_server_and_accepted_by_a_person(
    parties: Parties,
) -> None:
    approve_asker(parties)
    log, head = state(parties) / "log.jsonl", parties.folder / "certs" / "store-eu.head"
    parties.kill("store-eu")
    kept = read_head(head)
    assert "continues its first" in command(parties, "log", "verify", "--expect", kept.root)
    for lost in ([log], [log, head]):  # the client notices by itself; without its head, by the server's word
        for path in lost:
            path.unlink()
        parties.start("store-eu")
        parties.processes["store-eu"].join(180)
        assert parties.processes["store-eu"].exitcode == 2
        assert "does not continue the one of" in (parties.folder / "store-eu.log").read_text()
        assert "Accepted: " in command(parties, "log", "accept")
        parties.restart("store-eu")
        parties.await_clients()
        parties.connect().train(QUERY, label="y", algorithm="newton", epochs=4)  # a person approved it before
        parties.kill("store-eu")
    events = [entry.event for entry in read_log(log)]
    assert events[0] == "accepted"
    assert "witnessed" in events  # the heads of the other owners' logs
    parties.start("store-eu")


def test_an_owner_that_names_its_askers_agrees_to_what_they_sign_and_to_nothing_else(parties: Parties) -> None:
    approve_asker(parties)
    key = parties.folder / "certs" / "analyst.key"
    (parties.folder / "askers.toml").write_text(
        f'keys_in_plain = false\naskers = {{ analyst = "{public_text(read_asker_key(key))}" }}\n'
    )
    settings = parties.folder / "store-us.toml"
    settings.write_text(settings.read_text().replace("open.toml", "askers.toml"))
    parties.restart("store-us")
    parties.await_clients()
    job: dict[str, Any] = {"label": "y", "algorithm": "newton", "epochs": 4}
    with pytest.raises(PolicyError, match=r"client store-us: .* the contract is not signed"):
        parties.connect().train(QUERY, **job)
    signing = ConnectedFederation(parties.federation, asker_key=key)
    result = signing.train(QUERY, **job)
    assert signing.wait(signing.submit(QUERY, **job)).objective == result.objective
