"""What every test shares: repeatable examples, databases, tiers, and no silent skips in continuous integration."""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.mysql import mysql
from tests.postgres import postgres

__all__ = ["mysql", "postgres"]

# No deadline: no test of ours asserts wall-clock time. `make test` takes quick, `make nightly` thorough, and
# HYPOTHESIS_PROFILE=explore looks for new counter-examples.
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=10)
settings.register_profile("thorough", deadline=None, derandomize=True, max_examples=100)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# What a machine of continuous integration may lack: a kernel module, rights, and data that may not be passed on.
_MAY_SKIP = ("netem", "need root", "TABLEPUPPET_TEST_MOVIELENS")

_recorded = [0.0]  # CPU seconds of this process until the last phase that was recorded


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a family that is marked `one_in(n)`, the first of every n cases is quick, and the others are slow."""
    places: Counter[str] = Counter()
    for item in items:
        if family := item.get_closest_marker("one_in"):
            name = item.nodeid.partition("[")[0]
            if places[name] % family.args[0]:
                item.add_marker("slow")
            places[name] += 1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With CI=true, a test that is skipped for want of a database, a browser or a library fails."""
    _record_times(item, call.when)
    report = yield
    is_skip = report.skipped and not hasattr(report, "wasxfail")
    if is_skip and os.environ.get("CI") == "true" and not any(word in str(report.longrepr) for word in _MAY_SKIP):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, which continuous integration does not allow: {report.longrepr}"
    return report


def _record_times(item: pytest.Item, phase: str) -> None:
    """With TABLEPUPPET_TEST_TIMES=file, appends a phase's CPU seconds: its own, and those of processes that ended."""
    if file := os.environ.get("TABLEPUPPET_TEST_TIMES"):
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        now = time.process_time() + children.ru_utime + children.ru_stime
        with Path(file).open("a", encoding="utf-8") as times:
            times.write(f"{now - _recorded[0]:.3f} {phase} {item.nodeid}\n")
        _recorded[0] = now
