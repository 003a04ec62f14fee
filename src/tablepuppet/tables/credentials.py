"""Credentials: a database URL with placeholders → the URL to connect with, never printed.

`${NAME}` stands for an environment variable, `${file:/run/secrets/shop}` for the content of a file; what they hold is
percent-encoded, so that a password may contain any character. A URL without placeholders is left as it is.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote

from tablepuppet.errors import SourceError

_PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")


def expanded(url: str, table: str) -> str:
    """The URL with its placeholders filled in.

    >>> os.environ["SHOP_PASSWORD"] = "p@ss"
    >>> expanded("postgresql://ann:${SHOP_PASSWORD}@db.example.org/shop", "items")
    'postgresql://ann:p%40ss@db.example.org/shop'
    """
    return _PLACEHOLDER.sub(lambda found: quote(_value(found[1], table), safe=""), url)


def _value(name: str, table: str) -> str:
    if name.startswith("file:"):
        path = Path(name.removeprefix("file:")).expanduser()
        try:
            return path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise SourceError(f"table {table}: the file {path} with a credential cannot be read") from None
    if name not in os.environ:
        raise SourceError(f"table {table}: its URL needs the environment variable {name}, which is not set")
    return os.environ[name]
