"""Tables in files, here or elsewhere: Parquet (one file, a folder or a glob), CSV, JSON lines, Arrow IPC.

In: a path. Out: a Source. Several files are one table, in the order of their sorted paths.
Parquet is read where it lies. CSV and JSON are read once, in full, so that their types fit all rows.

In: a URL of a file, or of a folder of Parquet files: s3://, gs://, abfs:// and hdfs:// through Arrow's file systems,
https:// and http://. Out: a Source over copies in a private temporary folder, which vanish with it. Each job lists the
store's files and fetches changed ones again. Credentials come the store's own way (AWS_ACCESS_KEY_ID, a profile, a
role), or placeholders in the URL (databases.py); none is ever printed.
"""

import base64
import glob
import hashlib
import shutil
import ssl
import tempfile
import urllib.error
import urllib.request
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from tablepuppet.errors import SourceError
from tablepuppet.sources import duckdb_source
from tablepuppet.sources.memory import check_names, open_memory
from tablepuppet.sources.source import FileSource, Source, redact

_PARQUET = (".parquet", ".parq", ".pq")
_CSV = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
_JSON = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
_SEPARATORS = (",", ";", "\t", "|")
_IPC = (".feather", ".arrow", ".ipc")


def open_path(path: str, name: str) -> Source:
    def find() -> list[str]:
        try:
            return _find(path, name)
        except OSError as error:
            why = f"cannot be looked at ({error.strerror}); check its rights"
            raise SourceError(f"table {name}: {path} {why}") from None

    return FileSource(name, find, lambda files: open_files(path, files, name))


def open_files(path: str, files: list[str], name: str) -> Source:
    """Opens files that are one table, by their ending; `path` is the user's name for them."""
    if all(file.lower().endswith(_PARQUET) for file in files):
        return _open_parquet(files, name)
    if all(file.lower().endswith(_CSV) for file in files):
        return _open_csv(files, name)
    if all(file.lower().endswith(_JSON) for file in files):
        opened = duckdb_source.from_files(name, "read_json", files, "format='newline_delimited', sample_size=-1")
        check_names([column.name for column in opened.describe()], name)
        return opened
    if len(files) == 1 and files[0].lower().endswith(_IPC):
        return open_memory(_read_ipc(files[0], name), name)
    raise SourceError(
        f"table {name}: {path} is not of a known kind; give Parquet ({', '.join(_PARQUET)}), "
        f"CSV ({', '.join(_CSV)}), JSON lines ({', '.join(_JSON)}) or one Arrow file ({', '.join(_IPC)}), by its ending"
    )


def _find(path: str, name: str) -> list[str]:
    here = Path(path).expanduser()
    if here.is_file():
        return [str(here.resolve())]
    if here.is_dir():
        found = [str(file.resolve()) for file in here.rglob("*") if file.is_file() and is_data(file.relative_to(here))]
        why = f"the folder {path} holds no Parquet file; name a file or a glob"
    elif glob.has_magic(path):
        found = [str(Path(file).resolve()) for file in glob.glob(str(here), recursive=True) if Path(file).is_file()]
        why = f"no file matches {path}; check the pattern"
    else:
        where = "" if here.is_absolute() else f" (looked in {Path.cwd()})"
        found, why = [], f"there is no file {path}{where}; check the path"
    if not found:
        raise SourceError(f"table {name}: {why}")
    return sorted(found)


def is_data(file: PurePath) -> bool:
    """A Parquet file, and not one that a writer left unfinished, such as _temporary/part.parquet."""
    hidden = any(part.startswith((".", "_")) for part in file.parts)
    return not hidden and file.name.lower().endswith(_PARQUET)


def _open_parquet(files: list[str], name: str) -> Source:
    try:
        check_names(pq.read_schema(files[0]).names, name)
    except (pa.ArrowException, OSError) as error:
        raise SourceError(
            f"table {name}: {files[0]} is not a readable Parquet file ({type(error).__name__}); write it again"
        ) from None
    return duckdb_source.from_files(name, "read_parquet", files, stays=True)


def _open_csv(files: list[str], name: str) -> Source:
    if not any(Path(file).stat().st_size for file in files):
        raise SourceError(f"table {name}: {files[0]} is empty; a CSV file needs a line of column names")
    header = duckdb_source.csv_header(name, files[0])
    check_names(header, name)
    # skip=0: without it DuckDB drops leading lines until the rest looks like a table.
    opened = duckdb_source.from_files(name, "read_csv", files, "header=true, skip=0, sample_size=-1")
    # Where lines differ in length, DuckDB may take each for one long field.
    if len(opened.describe()) != len(header) or (len(header) == 1 and any(mark in header[0] for mark in _SEPARATORS)):
        opened.close()
        raise SourceError(
            f"table {name}: the lines of {files[0]} do not all have as many fields as the first, which names the "
            "columns; mend the file"
        )
    return opened


def _read_ipc(file: str, name: str) -> pa.Table:
    try:
        mapped = pa.memory_map(file)
        try:
            return pa.ipc.open_file(mapped).read_all()
        except pa.ArrowInvalid:  # the streaming format goes by the same names
            mapped.seek(0)
            return pa.ipc.open_stream(mapped).read_all()
    except (pa.ArrowException, OSError) as error:
        raise SourceError(
            f"table {name}: {file} is not a readable Arrow file ({type(error).__name__}); write it again"
        ) from None


WEB: Final = ("http", "https")
STORES: Final = ("abfs", "gcs", "gs", "hdfs", "s3")
_SECONDS = 60  # without an answer
_ONLY_GET = (403, 405, 501)  # answers to HEAD of servers that may answer GET


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the store: its name there, a text that changes with its content, and how to fetch it."""

    name: str
    version: str
    fetch: Callable[[Path], None]
    partitions: tuple[str, ...] = ()  # folders that are columns, as in year=2024


def open_remote(url: str, shown: str, name: str) -> Source:
    """Opens a URL; `shown` is the one that messages may show."""
    folder = Path(tempfile.mkdtemp(prefix="tablepuppet-"))
    listed = _web_file if url.partition("://")[0].lower() in WEB else _stored_files

    def find() -> list[str]:
        try:
            return [_copy_file(file, folder) for file in sorted(listed(url), key=lambda file: file.name)]
        except (OSError, HTTPException, pa.ArrowException) as error:
            where, what = redact(shown), "check the address, the rights and the network"
            if _is_untrusted(error):
                what = "name the file of the authority that signed it in SSL_CERT_FILE"
            why = f"{where} cannot be fetched ({_reason(error)}); {what}"
            raise SourceError(f"table {name}: {why}") from None

    try:
        opened = RemoteSource(name, find, lambda files: open_files(redact(shown), files, name))
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


def _copy_file(file: _File, folder: Path) -> str:
    place = hashlib.sha256(f"{file.name}\0{file.version}".encode()).hexdigest()
    target = folder.joinpath(place, *file.partitions, PurePosixPath(file.name).name)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{target.name}")
        file.fetch(unfinished)
        unfinished.rename(target)
    return str(target)


def _web_file(url: str) -> list[_File]:
    try:
        with _send_request(url, "HEAD") as answer:
            headers = answer.headers
    except urllib.error.HTTPError as error:
        if error.code not in _ONLY_GET:
            raise
        error.close()
        with _send_request(url, "GET") as answer:  # such as a signed address: its body is not read yet
            headers = answer.headers
    version = [headers.get(name, "") for name in ("ETag", "Last-Modified", "Content-Length")]

    def fetch(target: Path) -> None:
        with _send_request(url, "GET") as body, target.open("wb") as out:
            shutil.copyfileobj(body, out, 1 << 20)
            length = body.headers.get("Content-Length")
            if length is not None and int(length) != out.tell():
                raise ConnectionError("the file ends before its length")

    return [_File(redact(url), " ".join(version), fetch)]


def _send_request(url: str, method: str) -> Any:
    """The answer to a request; user and password of the URL go to its own host, and to none that it redirects to."""
    parts = urlsplit(url)
    user, has_user, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(urlunsplit(parts._replace(netloc=host)), method=method)
    if has_user:
        code = base64.b64encode(unquote(user).encode()).decode("ascii")
        request.add_unredirected_header("Authorization", f"Basic {code}")
    return urllib.request.urlopen(request, timeout=_SECONDS, context=ssl.create_default_context())


def _stored_files(url: str) -> list[_File]:
    store, path = pa.fs.FileSystem.from_uri(url)
    info = store.get_file_info(path)
    if info.type == pa.fs.FileType.File:
        found = [info]
    else:
        below = store.get_file_info(pa.fs.FileSelector(path, recursive=True, allow_not_found=True))
        found = [i for i in below if i.is_file and is_data(PurePosixPath(i.path).relative_to(path))]
        if not found:
            raise FileNotFoundError("there is no such file, and no Parquet file below")

    def fetch(source: str, target: Path) -> None:
        with store.open_input_stream(source) as body, target.open("wb") as out:
            shutil.copyfileobj(body, out, 1 << 20)

    def partitions(file: str) -> tuple[str, ...]:
        return tuple(p for p in PurePosixPath(file).parent.parts[len(PurePosixPath(path).parts) :] if "=" in p)

    return [_File(i.path, f"{i.size} {i.mtime_ns}", partial(fetch, i.path), partitions(i.path)) for i in found]


def _is_untrusted(error: Exception) -> bool:
    return isinstance(error, urllib.error.URLError) and isinstance(error.reason, ssl.SSLCertVerificationError)


def _reason(error: Exception) -> str:
    """The error in our own words: a store's may hold a request with its signature."""
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"the server answers {error.code}"
    if _is_untrusted(error):
        return "its certificate is not trusted"
    if isinstance(error, urllib.error.URLError | TimeoutError):
        return "the server does not answer"
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    return "the store refuses, or is not there"
