"""A search by real processes over mutual TLS: the figures of one process, under one contract."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from tests.network.parties import QUERY, in_process, running, tables

import tablepuppet as tp


def test_a_search_over_the_network_finds_what_one_process_finds(tmp_path: Path) -> None:
    settings = {"l2": [1e-3, 1.0]}
    with running(tmp_path, tables()) as parties:
        network = tp.search(parties.connect(), QUERY, settings, label="y", folds=3)
    with in_process(tables()) as federation:
        local = tp.search(federation, QUERY, settings, label="y", folds=3)
    assert network.best == local.best
    pd.testing.assert_frame_equal(network.folds, local.folds, check_exact=True)
