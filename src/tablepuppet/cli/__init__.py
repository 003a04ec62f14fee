"""The command line: one file per command, put together in app.py."""
