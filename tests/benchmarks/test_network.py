"""What a network adds to a round is measured over real processes."""

from __future__ import annotations

import pytest
from benchmarks.processes import Overhead, measure_network


def test_what_is_added_is_the_difference_of_runs_that_took_turns() -> None:
    found = Overhead(3, 100, in_process=(1.0, 2.0, 1.0), over_network=(3.0, 5.0, 2.5), is_same_model=True)
    assert found.added == (2.0, 3.0, 1.5)
    assert found.median == 2.0


@pytest.mark.slow
def test_a_job_over_processes_gives_the_model_of_one_process() -> None:
    found = measure_network(clients=3, epochs=1, repeats=1)
    assert found.is_same_model
    assert found.rounds > 20
    assert len(found.added) == 1
    assert min(*found.in_process, *found.over_network) > 0
