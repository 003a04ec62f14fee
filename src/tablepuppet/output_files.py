"""Files that are whole or not there: written next to their target, then renamed.

In: a path and a function that writes a file. Out: the file, or an error of the kind asked for and nothing on the disk.
`check_place` checks the folder first, so that hours of training do not end at a folder that does not exist.
"""

import os
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tablepuppet.errors import JobError, TablePuppetError

_EXAMPLES = {
    "the model": "model/",
    "tp.load": "model/",
    "predictions": "predictions.parquet",
    "a policy": "policy.toml",
    "a federation": "federation.toml",
}


def as_path(given: object, what: str, error: type[TablePuppetError] = JobError) -> Path:
    """A path that a user gave, with ~ expanded."""
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        kind = (
            "an empty text" if isinstance(given, str) else "nothing" if given is None else f"a {type(given).__name__}"
        )
        raise error(f"{what} needs a path, for example {_EXAMPLES.get(what, 'out.html')!r}; {kind} was given")
    return Path(os.fsdecode(given)).expanduser()


def write_whole(
    target: Path, write: Callable[[Path], object], what: str, error: type[TablePuppetError] = JobError
) -> None:
    """Lets `write` fill a file in the target's folder, and moves it to the target."""
    place = target.resolve()  # a link stays a link
    is_ordinary = place.is_file() or not place.exists()  # a pipe or a device is written to, never replaced
    unfinished = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    try:
        write(unfinished if is_ordinary else place)
        if is_ordinary:
            os.replace(unfinished, place)
    except OSError as failed:
        raise error(f"cannot write {what} to {target}: {reason(failed)}; choose another place") from None
    finally:
        unfinished.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """The file is the old one or the new one, whatever happens; by default only its owner can ever read it."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(unfinished, "xb", opener=partial(os.open, mode=mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def check_place(given: object, what: str, *, is_folder: bool = False) -> Path:
    """The path, if something can be written there: to be asked before work that takes long."""
    target = as_path(given, what)
    if target.is_dir() and not is_folder:
        raise JobError(f"cannot write {what} to {target}: it is a folder; name a file in it")
    if target.is_file() and is_folder:
        raise JobError(f"cannot write {what} to {target}: it is a file; name a folder")
    parent = target.parent
    while is_folder and not parent.exists() and parent != parent.parent:  # folders above a folder are made
        parent = parent.parent
    if not parent.is_dir():
        raise JobError(f"cannot write {what} to {target}: there is no folder {parent}; make it first")
    trial = parent / f".{secrets.token_hex(8)}"
    try:
        trial.touch()
        trial.unlink()
    except OSError as failed:
        raise JobError(f"cannot write {what} to {target}: {reason(failed)}; choose another place") from None
    return target


def reason(error: OSError) -> str:
    """Why the system refuses, in its words."""
    return os.strerror(error.errno) if error.errno else type(error).__name__
