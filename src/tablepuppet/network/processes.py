"""The two processes of a federation, as commands start them, until a signal stops them; and their logs.

A log has one line an event, as text for people or as JSON for machines; never a row's value.

Failed TLS handshakes are events too. gRPC refuses a peer without a certificate, or with one of another authority,
before our code runs. It only writes a line of its own to the standard error of the process. In: such
lines. Out: warnings in our log, in its format and at its level. All other lines there pass unchanged.
"""

import json
import logging
import os
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr
from typing import IO, Literal

from tablepuppet.client import Client
from tablepuppet.formatting import printable
from tablepuppet.memory import fix_thresholds
from tablepuppet.network.member import IdempotentClient, Member
from tablepuppet.network.run_store import RunStore, remove_earlier_checkpoints
from tablepuppet.network.serve import Server
from tablepuppet.network.settings import ClientSettings, FederationSettings
from tablepuppet.owner.owner_files import Approvals, own_secret
from tablepuppet.owner.owner_log import OwnerLog
from tablepuppet.owner.part_store import PartStore
from tablepuppet.owner.policy import Policy, read_policy
from tablepuppet.owner.row_sets import RowSets
from tablepuppet.owner.tables import ClientTables
from tablepuppet.threads import one_blas_thread

Style = Literal["text", "json"]


class TextLines(logging.Formatter):
    """One line an event: text of a peer cannot begin another, nor move a cursor. Tracebacks follow as they are."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = printable(record.message)
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": printable(record.getMessage(), keep="\n"),
        }
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=False)


class RateLimitFilter(logging.Filter):
    """Limits the lines that strangers cause, per kind and minute: the log of a flood does not fill the disk."""

    def __init__(self, most: int = 60, seconds: float = 60.0) -> None:
        super().__init__()
        self._most, self._seconds = most, seconds
        self._seen: dict[str, tuple[float, int]] = {}  # by kind: since when, and how many
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(("tablepuppet.transport.", __name__)):
            return True
        kind, now = str(record.msg), time.monotonic()
        with self._lock:
            since, count = self._seen.get(kind, (now, 0))
            if now - since < self._seconds:
                self._seen[kind] = (since, count + 1)
                return count < self._most
            self._seen[kind] = (now, 1)
        if count > self._most:
            record.msg = f"{record.msg} (and {count - self._most} lines like this one that are not shown)"
        return True


def configure(level: str, style: Style) -> None:
    """Sends tablepuppet's log to standard error."""
    handler = logging.StreamHandler()
    handler.addFilter(RateLimitFilter())
    text = TextLines("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%S%z")
    handler.setFormatter(JsonLines() if style == "json" else text)
    root = logging.getLogger("tablepuppet")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False


_STANDARD_ERROR = 2
_FAILED = re.compile(rb"ssl_transport_security\S*\] Handshake failed with error (?:.*SSL routines:\w*:)?(.*)")


@contextmanager
def logged_handshakes() -> Iterator[None]:
    """While inside, lines about failed handshakes become warnings."""
    try:
        original = os.dup(_STANDARD_ERROR)
    except OSError:  # it was closed before we came
        yield
        return
    reading, writing = os.pipe()
    lines, target = os.fdopen(reading, "rb"), os.fdopen(original, "w", buffering=1, errors="backslashreplace")
    reader = threading.Thread(target=_pass_on, args=(lines, target), name="stderr", daemon=True)
    with redirect_stderr(target), _logging_to(target):  # Python's own words take no part: a full pipe must not stop it
        os.dup2(writing, _STANDARD_ERROR)
        os.close(writing)
        reader.start()
        try:
            yield
        finally:
            os.dup2(original, _STANDARD_ERROR)  # the pipe has no writer any more, and the reader comes to its end
            reader.join(timeout=5)
    if not reader.is_alive():  # unless a child of ours still writes to it
        target.close()


@contextmanager
def _logging_to(target: IO[str]) -> Iterator[None]:
    """Writes our log to this file instead of standard error."""
    handlers = [h for h in logging.getLogger("tablepuppet").handlers if isinstance(h, logging.StreamHandler)]
    before = [(handler, handler.setStream(target)) for handler in handlers if handler.stream is sys.__stderr__]
    try:
        yield
    finally:
        for handler, stream in before:
            handler.setStream(stream)


def reason(line: bytes) -> str | None:
    """The reason of a failed handshake, if a line reports one.

    >>> reason(b"I0000 ssl_transport_security.cc:2158] Handshake failed with error SSL_ERROR_SSL: error:0A0000C7:SSL "
    ...        b"routines::peer did not return a certificate\\n")
    'peer did not return a certificate'
    """
    found = _FAILED.search(line)
    return None if found is None else found[1].decode("ascii", "replace").strip()


def _pass_on(lines: IO[bytes], target: IO[str]) -> None:
    with lines:
        for line in lines:
            why = reason(line)
            if why is None:
                target.write(line.decode("utf-8", "replace"))
            else:
                log.warning("refused somebody: the TLS handshake failed (%s)", why)


log = logging.getLogger(__name__)
# Of an owner who wrote none: a person approves every contract.
_CAREFUL = Policy(keys_in_plain=False, identifiers=True, ask=True)
_DESCRIPTORS = 65_536
OpenTables = Callable[[ClientSettings], ClientTables]


def serve(
    settings: FederationSettings,
    clients: Sequence[ClientSettings],
    open_tables: OpenTables,
    on_ready: Callable[[Server], None],
) -> None:
    """Runs the coordinator, and clients of the same organisation in the same process, until a signal comes."""
    os.umask(0o077)  # whatever is written holds somebody's data
    _raise_descriptor_limit()
    fix_thresholds()  # before threads have heaps of their own, which keep what messages took
    identity = settings.server_identity()
    if identity is not None:
        identity.check()
    with _until_signal() as stop, logged_handshakes(), ExitStack() as closing:
        server = Server(settings)
        closing.callback(server.close)
        server.coordinator.prepare()
        on_ready(server)
        _run_members([closing.enter_context(_open_member(client, open_tables)) for client in clients], stop)


def _raise_descriptor_limit() -> None:
    """Lets this process have as many descriptors as the system allows it: strangers at the door take some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def join(settings: ClientSettings, open_tables: OpenTables) -> None:
    """Runs one client until a signal comes; a refusal by the server is an error."""
    os.umask(0o077)
    fix_thresholds()
    with _open_member(settings, open_tables) as member, _until_signal() as stop:
        _run_members([member], stop)


def _run_members(members: Sequence[Member], stop: threading.Event) -> None:
    """Runs clients until they shall stop; an error of one of them, such as a refusal by the server, ends them all."""
    errors = []

    def run(member: Member) -> None:
        try:
            with one_blas_thread:
                member.run()
        except Exception as error:
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=run, args=(member,), name="client", daemon=True) for member in members]
    for thread in threads:
        thread.start()
    stop.wait()
    for member in members:
        member.stop()
    for thread in threads:
        thread.join(timeout=5)
    for error in errors:
        raise error


@contextmanager
def _open_member(settings: ClientSettings, open_tables: OpenTables) -> Iterator[Member]:
    """A client that has not dialled yet; its tables and its state are closed in the end."""
    identity = settings.identity()
    if identity is not None:
        identity.check()
    tables = open_tables(settings)
    policy = _CAREFUL if settings.policy is None else read_policy(settings.path(settings.policy))
    _warn_of_silence(settings, policy)
    folder = settings.state_folder
    store = RunStore(folder)  # before whatever else lies there: no other process has it
    remove_earlier_checkpoints(folder)
    owner_log = OwnerLog(folder / "log.jsonl", anchor=settings.head_path)
    owner_log.read_earlier_account(folder / "account.json")
    client = Client(
        settings.name,
        tables,
        policy,
        key=settings.shared_secret(),
        secret=own_secret(folder / "secret"),
        log=owner_log,
        approvals=Approvals(folder),
        row_sets=RowSets(folder / "row_sets.sqlite"),
        part_store=PartStore(settings.path(settings.models or f"models/{settings.name}")),
    )
    try:
        yield Member(settings.name, settings.server, identity, IdempotentClient(client, store))
    finally:
        tables.shutdown()
        store.close()


def _warn_of_silence(settings: ClientSettings, policy: Policy) -> None:
    """Warns of tables without rules: a server gets any of their columns that it asks for as its label."""
    for table in sorted(set(settings.tables) - set(policy.tables)):
        log.warning(
            "no rule of %s speaks of table %s: the server may ask for any of its columns, and one that it calls its "
            "label leaves as it is. Name the columns that may be used under [tables.%s] in %s",
            settings.name,
            table,
            table,
            settings.policy or "a policy file",
        )


@contextmanager
def _until_signal() -> Iterator[threading.Event]:
    stop = threading.Event()
    before = {s: signal.signal(s, lambda *_: stop.set()) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
