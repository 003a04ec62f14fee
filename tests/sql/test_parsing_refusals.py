"""Every refusal says what is wrong, where, and what to write instead; parsing_refusals.txt shows them all."""

from __future__ import annotations

from pathlib import Path

from tests.goldens import check_refusals

from tablepuppet.sql import parse


def test_refusals_read_as_in_the_golden_file() -> None:
    check_refusals(Path(__file__).with_name("parsing_refusals.txt"), parse)
