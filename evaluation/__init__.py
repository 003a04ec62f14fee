"""The paper's evaluation, re-run in the open: `python -m evaluation --help`."""
