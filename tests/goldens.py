"""Golden files of refused queries: readable text, each query followed by the whole message that it gets.

    SELECT … the query, on one or several lines
    => the message, on one or several lines
    (a blank line)

`UPDATE_GOLDENS=1 pytest …` writes the messages anew; read the difference before you commit it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tablepuppet.errors import QueryError


def check_refusals(path: Path, ask: Callable[[str], object]) -> None:
    """Every query of the file is refused by `ask` with exactly the message of the file."""
    before = path.read_text(encoding="utf-8")
    parts = [part.split("\n=> ")[0] for part in before.strip("\n").split("\n\n")]
    after = "\n\n".join(part if part.startswith("#") else f"{part}\n=> {_message(ask, part)}" for part in parts) + "\n"
    if os.environ.get("UPDATE_GOLDENS"):
        path.write_text(after, encoding="utf-8")
    else:
        assert after == before


def _message(ask: Callable[[str], object], query: str) -> str:
    try:
        ask(query)
    except QueryError as error:
        return str(error)
    return "accepted"
