"""Every refusal says what is wrong, where, and what to write instead; refusals.txt shows them all."""

from __future__ import annotations

from pathlib import Path

from tests.goldens import check_refusals

from tablepuppet.query import parse


def test_refusals_read_as_in_the_golden_file() -> None:
    check_refusals(Path(__file__).with_name("refusals.txt"), parse)
