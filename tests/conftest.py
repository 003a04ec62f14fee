"""What every test shares: hypothesis draws the same examples on every machine, whatever its speed."""

from __future__ import annotations

import os

from hypothesis import settings
from tests.mysql import mysql
from tests.postgres import postgres

__all__ = ["mysql", "postgres"]

# No deadline: no test of ours asserts wall-clock time. HYPOTHESIS_PROFILE=explore looks for new counter-examples.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
