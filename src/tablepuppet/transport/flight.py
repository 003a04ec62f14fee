"""Arrow Flight: how parties reach the server, and how each knows the other.

Clients and users dial out and open one exchange; parcels then pass both ways (connections.py). With TLS
both sides show certificates of the federation's authority. Flight shows the server only the first
alternative name of a certificate, so the handshake also asks for a signature by the key of that very
certificate. A revoked one is known by its serial number even when its successor has the same name.
Without TLS (`insecure`) names are believed, and both ends must be on this machine.
"""

import ipaddress
import logging
import os
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from tablepuppet import __version__
from tablepuppet.errors import DisconnectedError, JobError, TablePuppetError, TransportError
from tablepuppet.formatting import printable
from tablepuppet.threads import call_after
from tablepuppet.transport import certs
from tablepuppet.transport import envelopes as e
from tablepuppet.transport.connections import Guest, RevokedList, Stream, Watch, first_line
from tablepuppet.transport.envelopes import LIMIT, Assembler, Envelope, Room, client_protocol

log = logging.getLogger(__name__)
_STREAMS: dict[str, int] = {"client": 8, "user": 32}  # connections that one party may hold at a time
TOO_MANY = "too many connections of one party"
_HELLO_LIMIT = 1 << 16
_GREETING = 20.0  # seconds that a server may take to answer one


class Identity(msgspec.Struct, frozen=True):
    """A party's certificate, its key, and the authority that it trusts: PEM files."""

    authority: Path
    certificate: Path
    key: Path

    def check(self) -> None:
        """Fails where the three do not match each other."""
        certs.check_own(self.authority, self.certificate, self.key)
        certs.warn_of_loose(self.key)

    def read(self) -> tuple[bytes, ...]:
        files = {"the authority": self.authority, "the certificate": self.certificate, "the key": self.key}
        return tuple(certs.read_file(path, what) for what, path in files.items())


class Party(msgspec.Struct, frozen=True):
    """Who dials; without an identity its name is believed."""

    name: str
    role: e.Role
    identity: Identity | None


class ListenerSettings(msgspec.Struct, frozen=True):
    """Who may come in, and what happens with those who do."""

    roles: dict[str, e.Role]  # by party name
    welcome: Callable[[], e.Welcome]
    serve: Callable[[str, e.Role, Stream], None]
    types: Any  # the envelopes that they may send
    limit: int = LIMIT
    revoked: Path | None = None
    room: Room | None = None  # for all that is on its way in
    protocols: Mapping[e.Role, str] = msgspec.field(
        default_factory=lambda: dict.fromkeys(("client", "user"), client_protocol())
    )


class Listener(flight.FlightServerBase):  # type: ignore[misc]
    """The server's end: checks who is there, then hands the stream over."""

    def __init__(self, location: str, settings: ListenerSettings, identity: Identity | None) -> None:
        self._settings = settings
        self._authority: bytes | None = None
        self._open: Counter[str] = Counter()  # connections of each party
        self._lock = threading.Lock()
        if identity is None:
            if not is_loopback(urlsplit(location).hostname or ""):
                raise JobError(f"without TLS the server listens on this machine only, not on {location}")
            options: dict[str, Any] = {}
        else:
            self._authority, certificate, key = identity.read()
            options = {
                "tls_certificates": [(certificate, key)],
                "verify_client": True,
                "root_certificates": self._authority,
            }
        try:
            super().__init__(location, **options)
        except (pa.ArrowException, OSError) as error:
            reason = _why_taken(location) or first_line(error)
            raise TransportError(f"cannot listen on {location}: {reason}; choose another port or address") from None
        listed = settings.revoked if self._authority is not None else None
        self._revoked = None if listed is None else RevokedList(listed)
        self._watch = Watch(self.port, self._revoked)

    def shutdown(self) -> None:
        self._watch.end()
        super().shutdown()

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """One connection, from its first word to its end."""
        stream = Stream(reader, writer, Assembler(self._settings.types, _HELLO_LIMIT, self._settings.room))
        seen = context.peer_identity().decode("utf-8", "replace") if self._authority is not None else ""
        who = f"{seen or 'somebody'} at {context.peer()}"
        slot = seen or context.peer()
        most = _STREAMS.get(self._settings.roles.get(seen, "client"), 1)
        with self._lock:
            is_full = self._open[slot] >= most
            self._open[slot] += not is_full
        if is_full:
            log.warning("refused %s: %d connections are enough", who, most)
            raise flight.FlightUnavailableError(TOO_MANY)
        guest = self._watch.enter(who, context.peer())
        try:
            self._attend(stream, seen, who, guest)
        finally:
            stream.end()
            self._watch.leave(guest)
            with self._lock:
                self._open -= Counter((slot,))  # which keeps no zero

    def _attend(self, stream: Stream, seen: str, who: str, guest: Guest) -> None:
        """From greeting to goodbye; whatever is wrong, no traceback and no path leaves."""
        try:
            name, role = self._greet(stream, seen, guest)
            self._settings.serve(name, role, stream)
        except DisconnectedError:
            log.info("%s is gone", who if guest.is_greeted else f"{who} left without a word, and")
        except Exception as error:
            reason = str(error)
            if isinstance(error, TablePuppetError):
                log.warning("%s %s: %s", "closed the connection of" if guest.is_greeted else "refused", who, error)
            else:  # a bug must neither stop the service nor reveal details
                log.exception("the connection of %s failed", who)
                reason = f"internal error ({type(error).__name__}); see the server's log"
            last: Envelope = e.Goodbye(reason=reason) if guest.is_greeted else e.Refused(reason=reason)
            with suppress(DisconnectedError):  # the other side may not have waited
                stream.send(last)

    def _greet(self, stream: Stream, seen: str, guest: Guest) -> tuple[str, e.Role]:
        nonce = secrets.token_bytes(32)
        stream.send(e.Challenge(protocol=e.PROTOCOL, version=__version__, nonce=nonce))
        hello, frames = stream.receive()
        if not isinstance(hello, e.Hello) or frames:
            raise TransportError("the first word must be a greeting")
        if hello.protocol != e.PROTOCOL:
            raise TransportError(
                f"protocol {hello.protocol} (version {hello.version[:20]}) does not fit ours, {e.PROTOCOL} "
                f"(version {__version__}); install the same version at both ends"
            )
        if self._authority is not None:
            certificate = certs.verify(self._authority, hello.certificate, nonce, hello.signature)
            if not seen or certs.party_name(certificate) != seen or hello.name != seen:
                raise TransportError("the name and the certificate do not belong together")
            self._check_revoked(certificate.serial_number)
            guest.serial = certificate.serial_number
        role = self._settings.roles.get(hello.name)
        if role is None or role != hello.role:
            raise TransportError(f"the federation knows no {hello.role} {hello.name[:64]!r}")
        ours = self._settings.protocols[role]
        if hello.schemas != ours:
            raise TransportError(
                f"the messages of {hello.name} (protocol {printable(hello.schemas[:30]) or hello.protocol}, version "
                f"{printable(hello.version[:20])}) are not those of the server (protocol {ours}, "
                f"version {__version__}); install the same release of TablePuppet at both ends"
            )
        stream.allow(self._settings.limit)
        stream.send(self._settings.welcome())
        guest.is_greeted = True
        return hello.name, role

    def _check_revoked(self, serial: int) -> None:
        if self._revoked is None:
            return
        try:
            revoked = self._revoked.read()
        except JobError as error:  # its path is the server's own affair
            log.error("%s", error)
            raise TransportError("the server cannot tell which certificates were revoked; try later") from None
        if serial in revoked:
            raise TransportError("the certificate was revoked; ask for a new one")

    def _refuse(self, *asked: Any) -> Any:
        raise flight.FlightUnauthorizedError("parties of a federation open an exchange, and nothing else")

    list_flights = get_flight_info = get_schema = do_get = do_put = do_action = list_actions = _refuse


class Connection:
    """A party's end: one dialled exchange, greeted and welcomed."""

    def __init__(self, address: str, party: Party, types: Any, protocol: str | None = None) -> None:
        self._protocol = protocol or client_protocol()
        options: dict[str, Any] = {}
        key = certificate = b""
        if party.identity is None:
            if not is_loopback(urlsplit(address).hostname or ""):
                raise JobError(f"without TLS a server is reached on this machine only, not at {address}")
        else:
            authority, certificate, key = party.identity.read()
            options = {"tls_root_certs": authority, "cert_chain": certificate, "private_key": key}
        # keepalive notices a dead peer even on an idle connection
        keepalive = [("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 20_000)]
        self._client = flight.FlightClient(address, generic_options=keepalive, **options)
        try:
            self._writer, reader = self._client.do_exchange(flight.FlightDescriptor.for_command(party.role.encode()))
        except (pa.ArrowException, OSError) as error:
            self._client.close()
            raise DisconnectedError(
                f"no server answers at {address} ({first_line(error)}); see that `tablepuppet serve` runs there"
            ) from None
        self.stream = Stream(reader, self._writer, Assembler(types, _HELLO_LIMIT), reader.cancel)
        try:
            with call_after(_GREETING, self.stream.cancel):
                self.welcome = self._greet(party, certificate, key)
        except BaseException:
            self.close()
            raise

    def _greet(self, party: Party, certificate: bytes, key: bytes) -> e.Welcome:
        challenge, _ = self.stream.receive()
        if isinstance(challenge, e.Challenge) and challenge.protocol != e.PROTOCOL:
            raise TransportError(
                f"the server speaks protocol {challenge.protocol} (version {challenge.version[:20]}), we speak "
                f"{e.PROTOCOL} (version {__version__}); install the same version at both ends"
            )
        if not isinstance(challenge, e.Challenge):
            raise TransportError("the server's first word is not a challenge")
        self.stream.send(
            e.Hello(
                protocol=e.PROTOCOL,
                version=__version__,
                schemas=self._protocol,
                name=party.name,
                role=party.role,
                certificate=certificate,
                signature=certs.sign(key, challenge.nonce) if key else b"",
            )
        )
        answer, _ = self.stream.receive()
        if isinstance(answer, e.Refused):
            raise TransportError(f"the server refuses {party.name}: {printable(answer.reason[:1000])}")
        if not isinstance(answer, e.Welcome):
            raise TransportError("the server does not answer a greeting")
        return answer

    def close(self) -> None:
        self.stream.cancel()
        try:
            self._writer.close()
        except (pa.ArrowException, OSError) as error:
            log.debug("closed: %s", first_line(error))
        self._client.close()


def is_loopback(host: str) -> bool:
    """Whether a host is this machine.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(a).is_loopback for a in found)


def _why_taken(location: str) -> str | None:
    """What the system answers to who would listen there: gRPC keeps it to itself."""
    parts = urlsplit(location)
    try:
        socket.create_server((parts.hostname or "", parts.port or 0)).close()
    except OSError as error:
        return os.strerror(error.errno or 0)
    return None
