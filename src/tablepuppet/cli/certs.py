"""tablepuppet certs: a small certificate authority for one federation."""

import os
import secrets
from pathlib import Path
from typing import Annotated

from tablepuppet.cli.screen import Screen, argument, option, table
from tablepuppet.errors import JobError
from tablepuppet.protocol.evidence import new_asker_key, public_text, read_asker_key
from tablepuppet.transport import certs as authority

FolderOption = Annotated[Path, option("--folder DIR", "Where the authority lives.")]
NameArgument = Annotated[str, argument("NAME", "The party's name, as in the federation file.")]
DaysOption = Annotated[int, option("--days", "How long the certificate is valid.", min=1, max=36_500)]
_FOLDER = Path("certs")


def init(screen: Screen, folder: FolderOption = _FOLDER, days: DaysOption = 3650) -> None:
    """Create an authority: ca.pem for everybody, ca.key for nobody else.

    [bold]Example:[/bold] tablepuppet certs init
    """
    authority.create_authority(folder, days)
    _finish(screen, folder / "ca.pem", "Keep ca.key offline: whoever has it can join under any name.")


def server(
    screen: Screen,
    hosts: Annotated[list[str], argument("HOST…", "Names and addresses that clients dial.")],
    name: Annotated[str, option("--name", "The file's name.")] = "server",
    folder: FolderOption = _FOLDER,
    days: DaysOption = 365,
) -> None:
    """Issue the server's certificate.

    [bold]Example:[/bold] tablepuppet certs server coordinator.example.org 10.0.0.5
    """
    _finish(screen, authority.issue(folder, name, "server", hosts, days), "For the server alone, with its key.")


def party(
    screen: Screen,
    names: Annotated[list[str], argument("NAME…", "Names of clients or users.")],
    folder: FolderOption = _FOLDER,
    days: DaysOption = 365,
) -> None:
    """Issue certificates for clients and users.

    [bold]Example:[/bold] tablepuppet certs party store-eu store-us analyst
    """
    for name in names:
        _finish(screen, authority.issue(folder, name, days=days), f"Give it to {name} with its key and ca.pem.")


def asker(
    screen: Screen, key: Annotated[Path, argument("KEY", "A private key in PEM form; made where there is none.")]
) -> None:
    """Print an asker's public key, as an owner's policy names it; make the key where there is none.

    [bold]Example:[/bold] tablepuppet certs asker ann.key
    """
    if not key.exists():
        _write_secret(key, new_asker_key().decode("ascii"))
    public = public_text(read_asker_key(key))
    screen.show(f'{key}: keep it to yourself. Owners write in their policies: askers = {{ {key.stem} = "{public}" }}')
    screen.show_json({"key": str(key), "public": public})


def renew(screen: Screen, name: NameArgument, folder: FolderOption = _FOLDER, days: DaysOption = 365) -> None:
    """Issue a new key and certificate with the names of the old one.

    [bold]Example:[/bold] tablepuppet certs renew store-eu
    """
    _finish(screen, authority.renew(folder, name, days), "The old one stays valid; revoke it first if its key leaked.")


def revoke(screen: Screen, name: NameArgument, folder: FolderOption = _FOLDER) -> None:
    """Add a party's certificate to revoked.txt, which the server reads at every connection.

    [bold]Example:[/bold] tablepuppet certs revoke store-eu
    """
    serial = authority.revoke(folder, name)
    _finish(screen, folder / "revoked.txt", f"It now lists {name} ({serial:x}). Copy it to the server.")


def secret(
    screen: Screen, path: Annotated[Path, argument("FILE", "The file to write.")] = Path("clients.secret")
) -> None:
    """Make the secret that all clients share and the server never has: it keys the tokens of join keys.

    [bold]Example:[/bold] tablepuppet certs secret clients.secret
    """
    _write_secret(path, secrets.token_hex(32))
    _finish(screen, path, "Give it to every client over a safe channel, never to the server.")


def request(screen: Screen, name: NameArgument, folder: FolderOption = _FOLDER) -> None:
    """Make a key of your own and a request to sign it: the key never leaves, and nobody else knows it.

    [bold]Example:[/bold] tablepuppet certs request store-eu
    """
    _finish(screen, authority.request_certificate(folder, name), f"Send it to the authority; {name}.key stays here.")


def sign(
    screen: Screen,
    asked: Annotated[Path, argument("REQUEST", "A party's NAME.csr.")],
    folder: FolderOption = _FOLDER,
    days: DaysOption = 365,
) -> None:
    """Sign a party's request: its certificate, without ever having its key.

    [bold]Example:[/bold] tablepuppet certs sign store-eu.csr
    """
    _finish(screen, authority.sign_request(folder, asked, days), "Send it back with ca.pem; both are public.")


def share(
    screen: Screen,
    secret: Annotated[Path, argument("FILE", "The clients' secret, as `certs secret` made it.")],
    recipients: Annotated[list[Path], argument("CERTIFICATE…", "Other clients' NAME.pem.")],
    name: Annotated[str, option("--as NAME", "Your own name.")],
    folder: FolderOption = _FOLDER,
) -> None:
    """Seal the clients' secret for the others: whoever carries the files, the administrator included, cannot read it.

    [bold]Example:[/bold] tablepuppet certs share clients.secret certs/store-us.pem certs/supplier.pem --as store-eu
    """
    own, key, ca = folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem"
    content = authority.read_file(secret, "the secret").strip()
    for recipient in recipients:
        target = secret.with_name(f"{recipient.stem}.sealed")
        authority.write_file(target, authority.seal(content, own, key, recipient, ca), 0o644)
        _finish(screen, target, f"For {recipient.stem} alone, by any channel.")


def open_secret(
    screen: Screen,
    sealed: Annotated[Path, argument("FILE", "The sealed file that you were sent.")],
    sender: Annotated[Path, argument("CERTIFICATE", "The sender's NAME.pem.")],
    name: Annotated[str, option("--as NAME", "Your own name.")],
    to: Annotated[Path, option("--to FILE", "Where the secret is written.")] = Path("clients.secret"),
    folder: FolderOption = _FOLDER,
) -> None:
    """Open the clients' secret that another client sealed for you.

    [bold]Example:[/bold] tablepuppet certs open supplier.sealed certs/store-eu.pem --as supplier
    """
    content = authority.read_file(sealed, "the sealed secret")
    own, key, ca = folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem"
    _write_secret(to, authority.open_sealed(content, own, key, sender, ca).decode("ascii"))
    _finish(screen, to, "Never give it to the server.")


def list_certificates(screen: Screen, folder: FolderOption = _FOLDER) -> None:
    """Show the certificates of a folder, until when they are valid, and which are revoked.

    [bold]Example:[/bold] tablepuppet certs list
    """
    if not folder.is_dir():
        raise JobError(f"there is no folder {folder}; `tablepuppet certs init` makes an authority in it")
    listed = folder / "revoked.txt"
    revoked = authority.read_revoked(listed) if listed.exists() else frozenset()
    found = {p.stem: authority.read_certificate(p) for p in sorted(folder.glob("*.pem"))}
    rows = [
        {"name": n, "valid_until": c.not_valid_after_utc.date().isoformat(), "revoked": c.serial_number in revoked}
        for n, c in found.items()
    ]
    shown = table("name", "valid until", "", title=str(folder))
    for row in rows:
        shown.add_row(str(row["name"]), str(row["valid_until"]), "revoked" if row["revoked"] else "")
    screen.show(shown)
    screen.show_json({"certificates": rows})


def _write_secret(path: Path, content: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise JobError(f"cannot write {path}: {error.strerror}") from None
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(content + "\n")


def _finish(screen: Screen, path: Path, advice: str) -> None:
    screen.show(f"Wrote {path}. {advice}")
    screen.show_json({"written": str(path)})
