"""Federation file and client file: the settings of a process.

In: TOML. Out: frozen, checked settings; paths are relative to the file that names them.
"""

from pathlib import Path
from typing import Annotated, Any

import msgspec

from tablepuppet.errors import JobError, unreadable
from tablepuppet.sql.bound import Holders
from tablepuppet.transport.certs import warn_of_loose
from tablepuppet.transport.envelopes import LIMIT
from tablepuppet.transport.flight import Identity

NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class ServerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[server]` of a federation file: where it is, who it is, how patient it is."""

    address: str  # where parties reach it: grpc+tls://host:port
    listen: str | None = None  # where it listens, if that differs
    health: str | None = "127.0.0.1:8471"  # health and metrics over HTTP; "" for none
    authority: str = "certs/ca.pem"
    certificate: str = "certs/server.pem"
    key: str = "certs/server.key"
    revoked: str = "certs/revoked.txt"
    state: str = "state/server"  # runs and their journals
    wait: NotNegative = 600.0  # seconds that a run waits for a client that is away
    turn: NotNegative = 30.0  # seconds that a run waits for a client before other runs have their turn
    share: NotNegative = 300.0  # seconds that a run works before other users' runs have their turn
    heartbeat: Annotated[float, msgspec.Meta(ge=0.01, le=3600)] = 5.0
    limit: Annotated[int, msgspec.Meta(gt=0)] = LIMIT  # bytes of one message; less where the memory is small
    memory: Annotated[int, msgspec.Meta(gt=0)] | None = None  # bytes of a run; None: 70 % of the machine's
    compute: NotNegative = 3600.0  # seconds that a run may compute between two questions, or a client before it answers


class UserSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[user]`: who submits jobs, where that is not the server itself."""

    name: str
    certificate: str
    key: str
    asker_key: str | None = None  # the private key that signs contracts, for owners whose policies name askers


class _InFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings in a file of a folder."""

    folder: Path = Path()

    def path(self, name: str) -> Path:
        return self.folder / name


class FederationSettings(_InFile, frozen=True):
    """A federation file for processes: the server, and who owns which table.

    `owners` maps each table to one client or a list of clients, in the order of their rows.
    """

    server: ServerSettings
    owners: dict[str, str | list[str]]
    partitioned_by: dict[str, list[str]] = {}  # table → columns whose values each lie with one of its clients
    users: list[str] = []
    administrators: list[str] = []  # users who see and stop everybody's runs
    user: UserSettings | None = None

    @property
    def tables(self) -> dict[str, tuple[str, ...]]:
        named = {t: (o,) if isinstance(o, str) else tuple(o) for t, o in self.owners.items()}
        return {t: Holders(o, self.partitioned_by.get(t, ())) for t, o in named.items()}

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(c for owners in self.tables.values() for c in owners))

    @property
    def is_insecure(self) -> bool:
        return self.server.address.startswith("grpc+tcp://")

    def server_identity(self) -> Identity | None:
        if self.is_insecure:
            return None
        return self._identity(self.server)

    def user_identity(self) -> tuple[str, Identity | None]:
        """Who submits jobs from here: `[user]`, or any name of `users` without TLS."""
        if self.user is None:
            if self.is_insecure and self.users:
                return self.users[0], None
            raise JobError("to submit jobs, a federation file needs a [user] section: name, certificate, key")
        return self.user.name, None if self.is_insecure else self._identity(self.user)

    def _identity(self, of: ServerSettings | UserSettings) -> Identity:
        return Identity(self.path(self.server.authority), self.path(of.certificate), self.path(of.key))


class ClientSettings(_InFile, frozen=True):
    """A client file: who it is, where the server is, and its own tables."""

    name: str
    server: str
    tables: dict[str, Any]
    authority: str = "certs/ca.pem"
    certificate: str | None = None  # certs/NAME.pem
    key: str | None = None  # certs/NAME.key
    state: str | None = None  # state/NAME: checkpoints, log, secret
    head: str | None = None  # certs/NAME.head: the head of its log, best where writers of `state` may not write
    policy: str | None = None  # the file with the owner's own rules
    models: str | None = None  # models/NAME: the parts of models that it holds
    secret: str | None = None  # the file with the key that clients share and the server never has

    def identity(self) -> Identity | None:
        if self.server.startswith("grpc+tcp://"):
            return None
        return Identity(
            self.path(self.authority),
            self.path(self.certificate or f"certs/{self.name}.pem"),
            self.path(self.key or f"certs/{self.name}.key"),
        )

    def shared_secret(self) -> bytes | None:
        if self.secret is None:
            return None
        try:
            found = self.path(self.secret).read_bytes().strip()
        except OSError as error:
            raise JobError(f"the clients' secret: {unreadable(self.path(self.secret), error)}") from None
        warn_of_loose(self.path(self.secret))
        if len(found) < 32:
            raise JobError(f"{self.path(self.secret)} is too short for a secret; `tablepuppet certs secret` makes one")
        return found

    @property
    def head_path(self) -> Path:
        """The file of the head of the owner's log: next to the client's key; without TLS, next to its settings."""
        beside = f"certs/{self.name}.head" if self.key is None else str(Path(self.key).with_suffix(".head"))
        return self.path(self.head or (f"{self.name}.head" if self.server.startswith("grpc+tcp://") else beside))

    @property
    def state_folder(self) -> Path:
        return self.path(self.state or f"state/{self.name}")


def read_federation(path: str | Path) -> FederationSettings:
    settings: FederationSettings = _read(path, FederationSettings)
    _check_address(settings.server.address, path)
    if not settings.owners or not all(settings.tables.values()):
        raise JobError(f"{path}: [owners] must name at least one client for each table")
    for table, owners in settings.tables.items():
        if len(set(owners)) < len(owners):
            raise JobError(f"{path}: table {table!r} names one client twice")
    unknown = set(settings.partitioned_by) - set(settings.owners)
    if unknown:
        raise JobError(f"{path}: [partitioned_by] names {min(unknown)!r}, which [owners] does not; add it there too")
    twice = set(settings.users) & set(settings.clients)
    if twice:
        raise JobError(f"{path}: {min(twice)!r} is both a client and a user; give the user a name of its own")
    strangers = set(settings.administrators) - set(settings.users)
    if strangers:
        raise JobError(f"{path}: administrator {min(strangers)!r} is not among `users`; add the name there too")
    return settings


def read_client(path: str | Path) -> ClientSettings:
    settings: ClientSettings = _read(path, ClientSettings)
    _check_address(settings.server, path)
    return settings


def _read(path: str | Path, kind: Any) -> Any:
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        given = msgspec.toml.decode(text)
        if isinstance(given, dict) and "folder" in given:
            raise msgspec.ValidationError("Object contains unknown field `folder`")
        settings = msgspec.convert(given, kind, strict=True)
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(unreadable(path, error)) from None
    except msgspec.MsgspecError as error:
        known = ", ".join(name for name in kind.__struct_encode_fields__ if name != "folder")
        title = "federation" if kind is FederationSettings else "client"
        raise JobError(f"{path} cannot be read: {error}; a {title} file has {known}") from None
    return msgspec.structs.replace(settings, folder=Path(path).parent)


def _check_address(address: str, path: str | Path) -> None:
    if not address.startswith(("grpc+tls://", "grpc+tcp://")):
        raise JobError(f"{path}: a server's address is grpc+tls://host:port, not {address!r}")
