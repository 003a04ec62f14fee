"""What every test shares: repeatable examples, databases, and no silent skips in continuous integration."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
from hypothesis import settings
from tests.mysql import mysql
from tests.postgres import postgres

__all__ = ["mysql", "postgres"]

# No deadline: no test of ours asserts wall-clock time. `make test` takes quick, `make nightly` thorough, and
# HYPOTHESIS_PROFILE=explore looks for new counter-examples.
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=20)
settings.register_profile("thorough", deadline=None, derandomize=True, max_examples=100)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# What a machine of continuous integration may lack: a kernel module, rights, and data that may not be passed on.
_MAY_SKIP = ("netem", "need root", "TABLEPUPPET_TEST_MOVIELENS")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With CI=true, a test that is skipped for want of a database, a browser or a library fails."""
    report = yield
    is_skip = report.skipped and not hasattr(report, "wasxfail")
    if is_skip and os.environ.get("CI") == "true" and not any(word in str(report.longrepr) for word in _MAY_SKIP):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, which continuous integration does not allow: {report.longrepr}"
    return report
