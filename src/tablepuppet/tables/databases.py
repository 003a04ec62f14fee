"""Tables in databases: a URL's scheme says who opens it.

In: a SourceSpec whose URL names a database. Out: a Source. A database is one entry of
OPENERS; its module is imported only when a source needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tablepuppet.errors import SourceError
from tablepuppet.tables.source import Source, SourceSpec, redacted

Opener = Callable[[SourceSpec, str], Source]

OPENERS: Mapping[str, Opener] = {}


def is_database_url(url: str) -> bool:
    """Whether this is scheme://…; a path is not."""
    return "://" in url


def open_database(spec: SourceSpec, name: str) -> Source:
    """Opens a table of a database."""
    scheme = spec.url.partition("://")[0].lower()
    if scheme not in OPENERS:
        known = ", ".join(sorted(OPENERS)) or "none"
        raise SourceError(
            f"table {name}: {redacted(spec.url)} has the scheme {scheme!r}, which no reader knows "
            f"(known: {known}); give a file or a DataFrame, or check the URL"
        )
    if spec.table is None:
        raise SourceError(
            f"table {name}: {redacted(spec.url)} needs the name of a table there: tp.source(url, table=…)"
        )
    return OPENERS[scheme](spec, name)
