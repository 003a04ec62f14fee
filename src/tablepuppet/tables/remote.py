"""Files that lie elsewhere: s3://, gs://, abfs:// and hdfs:// through Arrow's file systems, https:// and http://.

In: a URL of a file, or of a folder of Parquet files. Out: a Source over copies in a private temporary folder, which
vanish with it. Each job asks what the store has; what changed there is fetched again. Credentials are the store's own
way (AWS_ACCESS_KEY_ID, a profile, a role), or placeholders in the URL (databases.py); none is ever printed.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import urllib.error
import urllib.request
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import pyarrow as pa
import pyarrow.fs

from tablepuppet.errors import SourceError
from tablepuppet.tables.files import is_data, open_files
from tablepuppet.tables.source import FileSource, Source, redacted

WEB: Final = ("http", "https")
STORES: Final = ("abfs", "gcs", "gs", "hdfs", "s3")
_SECONDS = 60  # without an answer


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the store: its name there, a text that changes with its content, and how to fetch it."""

    name: str
    version: str
    fetch: Callable[[Path], None]


def open_remote(url: str, shown: str, name: str) -> Source:
    """Opens a URL; `shown` is the one that messages may show."""
    folder = Path(tempfile.mkdtemp(prefix="tablepuppet-"))
    listed = _web_file if url.partition("://")[0].lower() in WEB else _stored_files

    def find() -> list[str]:
        try:
            return [_copied(file, folder) for file in sorted(listed(url), key=lambda file: file.name)]
        except (OSError, pa.ArrowException) as error:
            why = (
                f"{redacted(shown)} cannot be fetched ({_reason(error)}); check the address, the rights and the network"
            )
            raise SourceError(f"table {name}: {why}") from None

    try:
        opened = RemoteSource(name, find, lambda files: open_files(redacted(shown), files, name))
    except SourceError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    opened.remove_copies = weakref.finalize(opened, shutil.rmtree, folder, ignore_errors=True)
    return opened


class RemoteSource(FileSource):
    """A table in copies of files, which go when it is closed, or when the process ends."""

    remove_copies: Callable[[], object]

    def close(self) -> None:
        super().close()
        self.remove_copies()


def _copied(file: _File, folder: Path) -> str:
    """The copy of a file, fetched unless it is there already."""
    place = hashlib.sha256(f"{file.name}\0{file.version}".encode()).hexdigest()
    target = folder / place / PurePosixPath(file.name).name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{target.name}")
        file.fetch(unfinished)
        unfinished.rename(target)
    return str(target)


def _web_file(url: str) -> list[_File]:
    with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=_SECONDS) as answer:
        told = [answer.headers.get(name, "") for name in ("ETag", "Last-Modified", "Content-Length")]

    def fetch(target: Path) -> None:
        with urllib.request.urlopen(url, timeout=_SECONDS) as body, target.open("wb") as out:
            shutil.copyfileobj(body, out, 1 << 20)

    return [_File(redacted(url), " ".join(told), fetch)]


def _stored_files(url: str) -> list[_File]:
    """A file, or all Parquet files below a folder."""
    store, path = pa.fs.FileSystem.from_uri(url)
    info = store.get_file_info(path)
    if info.type == pa.fs.FileType.File:
        found = [info]
    else:
        below = store.get_file_info(pa.fs.FileSelector(path, recursive=True, allow_not_found=True))
        found = [i for i in below if i.is_file and is_data(PurePosixPath(i.path).relative_to(path))]
        if not found:
            raise FileNotFoundError("there is no such file, and no Parquet file below")

    def fetch(source: str) -> Callable[[Path], None]:
        def copy(target: Path) -> None:
            with store.open_input_stream(source) as body, target.open("wb") as out:
                shutil.copyfileobj(body, out, 1 << 20)

        return copy

    return [_File(i.path, f"{i.size} {i.mtime_ns}", fetch(i.path)) for i in found]


def _reason(error: Exception) -> str:
    """In words of ours: a store's own may hold a request with its signature."""
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code}"
    if isinstance(error, urllib.error.URLError | TimeoutError):
        return "the server does not answer"
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    return "the store refuses, or is not there"
