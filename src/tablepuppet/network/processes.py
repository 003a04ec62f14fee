"""The two processes of a federation, as commands start them: both run until a signal stops them."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tablepuppet.client.client import Client
from tablepuppet.client.policy import Policy, read_policy
from tablepuppet.errors import TablePuppetError
from tablepuppet.memory import fix_thresholds
from tablepuppet.network.idempotent_client import IdempotentClient
from tablepuppet.network.join import Member
from tablepuppet.network.logs import logged_handshakes
from tablepuppet.network.records import lock_folder
from tablepuppet.network.run_process import prepare
from tablepuppet.network.serve import Server
from tablepuppet.network.settings import ClientSettings, FederationSettings
from tablepuppet.tables.account_file import AccountFile, own_secret
from tablepuppet.tables.approvals import Approvals
from tablepuppet.tables.owner_log import OwnerLog
from tablepuppet.tables.part_store import PartStore
from tablepuppet.tables.row_sets import RowSets
from tablepuppet.tables.store import ClientTables
from tablepuppet.threads import one_blas_thread

log = logging.getLogger(__name__)
_CAREFUL = Policy(
    keys_in_plain=False, identifiers=True, ask=True
)  # of an owner who wrote none: a person approves every contract
OpenTables = Callable[[ClientSettings], ClientTables]


def serve(
    settings: FederationSettings,
    clients: Sequence[ClientSettings],
    open_tables: OpenTables,
    on_ready: Callable[[Server], None],
) -> None:
    """Runs the coordinator, and clients of the same organisation beside it, until a signal comes."""
    os.umask(0o077)  # whatever is written holds somebody's data
    fix_thresholds()  # before threads have heaps of their own, which keep what messages took
    prepare()  # the processes of runs are forked from one that has loaded everything
    identity = settings.server_identity()
    if identity is not None:
        identity.check()
    with _until_signal() as stop, logged_handshakes():
        server = Server(settings)
        on_ready(server)
        members = [_member(client, open_tables) for client in clients]
        threads = [threading.Thread(target=_watched, args=(m, stop), name="client", daemon=True) for m, _ in members]
        for thread in threads:
            thread.start()
        try:
            stop.wait()
        finally:
            for member, tables in members:
                member.stop()
                tables.shutdown()
            server.close()


def join(settings: ClientSettings, open_tables: OpenTables) -> None:
    """Runs one client until a signal comes; a refusal by the server is an error."""
    os.umask(0o077)
    fix_thresholds()
    member, tables = _member(settings, open_tables)
    with _until_signal() as stop:

        def leave() -> None:
            stop.wait()
            member.stop()

        watcher = threading.Thread(target=leave, name="stop", daemon=True)
        watcher.start()
        try:
            with one_blas_thread:
                member.run()
        finally:
            stop.set()
            watcher.join(timeout=5)
            tables.shutdown()


def _member(settings: ClientSettings, open_tables: OpenTables) -> tuple[Member, ClientTables]:
    identity = settings.identity()
    if identity is not None:
        identity.check()
    tables = open_tables(settings)
    policy = _CAREFUL if settings.policy is None else read_policy(settings.path(settings.policy))
    _warn_of_silence(settings, policy)
    folder = _locked(settings.state_folder)
    client = Client(
        settings.name,
        tables,
        policy,
        key=settings.shared_secret(),
        secret=own_secret(folder / "secret"),
        account=AccountFile(folder / "account.json"),
        log=OwnerLog(folder / "log.jsonl"),
        approvals=Approvals(folder),
        row_sets=RowSets(folder / "row_sets.sqlite"),
        part_store=PartStore(settings.models_folder),
    )
    member: Member

    def note(text: str) -> None:
        member.note = text

    keeper = IdempotentClient(client, folder, note)
    member = Member(settings.name, settings.server, identity, keeper)
    return member, tables


def _warn_of_silence(settings: ClientSettings, policy: Policy) -> None:
    """Says which tables no rule speaks of: whatever column of them a server asks for as its label, it gets."""
    for table in sorted(set(settings.tables) - set(policy.tables)):
        log.warning(
            "no rule of %s speaks of table %s: the server may ask for any of its columns, and one that it calls its "
            "label leaves as it is. Name the columns that may be used under [tables.%s] in %s",
            settings.name,
            table,
            table,
            settings.policy or "a policy file",
        )


def _locked(folder: Path) -> Path:
    """The folder, held by this process until it ends."""
    _LOCKS.append(lock_folder(folder))
    return folder


_LOCKS: list[Any] = []  # held until the process ends


def _watched(member: Member, stop: threading.Event) -> None:
    try:
        with one_blas_thread:
            member.run()
    except TablePuppetError as error:
        log.error("%s", error)
        stop.set()


@contextmanager
def _until_signal() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set."""
    stop = threading.Event()
    before = {s: signal.signal(s, lambda *_: stop.set()) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
