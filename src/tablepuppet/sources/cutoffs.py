"""Names in queries over a history: the table of cutoffs, and the columns by which its rows are joined.

A history is a table that a query reads until a moment (sql/history.py). The moments are rows of the
table CUTOFFS, which has one column and which only the history's owner ever fills.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

PREFIX: Final = "tablepuppet "  # of names that no user writes
CUTOFFS: Final = "tablepuppet cutoffs"  # the table
CUTOFF: Final = "at"  # its column
BEGINS: Final = "test begins"  # an output: the moment from which on rows are for the test (api/time_split.py)
KEY: Final = "tablepuppet key"  # an output: the key whose history a row is, before its number
KEYS: Final = "tablepuppet keys"  # a table inside a query: the different keys of a history
AT: Final = "tablepuppet at"  # an output: the cutoff that a row is about
FOUND: Final = "tablepuppet found"  # an output: the query always gives a row, and where it has none here, NULLs
AT_ONCE: Final = "tablepuppet at, once"  # the same, where no two rows of the cutoffs' table may have one key and cutoff


def name_for_people(expression: str) -> str:
    """A column of a history by its meaning, and any other as it is written.

    >>> name_for_people('"tablepuppet key 0"'), name_for_people('"item"')
    ('key', '"item"')
    """
    bare = expression.strip('"')
    return "moment" if bare in (AT, AT_ONCE) else "key" if bare.startswith(f"{KEY} ") else expression


def is_plain_column(expression: str) -> bool:
    """Whether an expression is a name in quotes, and nothing else.

    >>> is_plain_column('"item"'), is_plain_column('lower("item")')
    (True, False)
    """
    return len(expression) > 2 and expression.count('"') == 2 and expression[0] == expression[-1] == '"'


def is_cutoffs(node: exp.Expr) -> bool:
    """Whether a table in FROM is that of cutoffs."""
    return isinstance(node, exp.Table) and node.name == CUTOFFS


def reads_cutoffs(query: exp.Expr) -> bool:
    return any(is_cutoffs(table) for table in query.find_all(exp.Table))
