"""Whether the compiler of kernels (numba, the extra `fast`) is there, and for how many joined rows it is loaded.

Without it NumPy does the same work over joined rows of any number, more slowly where they are many.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

COMPILED_FROM = 1 << 22  # joined rows from which compiled kernels are worth loading

TREES_HINT = "pip install 'tablepuppet[fast]', at the server and at owners: compiled loops grow the same trees faster"
HINT = "pip install 'tablepuppet[fast]' compiles the loops over so many joined rows: shorter epochs, in long runs"


@cache
def is_installed() -> bool:
    """Whether kernels can be compiled here."""
    return find_spec("numba") is not None


def wins(joined_rows: int, *, is_dear: bool = False) -> bool:
    """Whether compiled loops over so many joined rows win back the third of a second and 100 MB of their loading.

    `is_dear`: losses whose proximal maps iterate, or with several exponentials a row, for which they win much sooner.
    """
    return joined_rows >= COMPILED_FROM >> 4 * is_dear
