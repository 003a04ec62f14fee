"""DuckDB without its progress bar, which would be written to standard output.

In a Jupyter kernel without ipywidgets the bar is off, and DuckDB refuses every change of the setting, also to `false`:
it is set only where it is on.
"""

from __future__ import annotations

import duckdb


def silence(connection: duckdb.DuckDBPyConnection) -> None:
    """Switches the progress bar off."""
    [[is_on]] = connection.execute("SELECT current_setting('enable_progress_bar')").fetchall()
    if is_on:
        connection.execute("SET enable_progress_bar = false")
