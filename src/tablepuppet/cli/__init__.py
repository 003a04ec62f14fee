"""The command line: one file per command, put together in main.py."""
