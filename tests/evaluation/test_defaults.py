"""Networks and linear models at the defaults of sgd: never worse than a constant, and near the same networks tuned."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from evaluation.defaults import Case, figures, generated

CASES = list(generated())


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_defaults_are_within_a_tenth_of_tuned_networks(case: Case) -> None:
    network, tuned, linear = figures(case)
    assert network > 0.9 * tuned
    assert linear > 0.0
