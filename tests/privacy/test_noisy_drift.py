"""Drift under an analyst budget: rows on both sides of the first splits of noisy trees, then and now."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from tests.privacy.test_analyst import QUERY, SEEN, TREES, asks, federation, tables, watched, with_budget

import tablepuppet as tp
from tablepuppet.errors import PolicyError, PrivacyError
from tablepuppet.privacy.accounting import gaussian_noise

__all__ = ["watched"]
MOVED = QUERY.replace("o.q,", "o.q + 1.5 AS q,")


def train(owners: tp.Federation, query: str = QUERY, label: str = "y", **options: Any) -> tp.Result:
    given = TREES | {"trees": 40, "test_fraction": 0.0, "privacy": asks(10.0)} | options
    return owners.train(query, label=label, **given)


@pytest.mark.parametrize("label", ["y", "z"])
def test_a_feature_that_moved_is_found_and_others_are_not(label: str) -> None:
    query, moved = (text.replace("o.y", f"o.{label}") for text in (QUERY, MOVED))
    with federation(tables(rows=8000), policies=with_budget(40.0)) as owners:
        result = train(owners, query, label)
        assert owners.drift(result, privacy=asks(4.0)).found() == []
        found = owners.drift(result, moved, privacy=asks(4.0))
        assert {f.feature: abs(f.moved) > 0.1 for f in found.features} == {"o.q": True, "i.price": False}
        again = owners.drift(result, moved, privacy=asks(4.0))
        assert found.features[0].moved != again.features[0].moved  # noise of its own in every answer
        (said,) = found.found()
        assert said.startswith("o.q: ")
        assert said.endswith("of rows went up past a border")


def test_drift_is_charged_and_compares_trees_alone() -> None:
    with federation(tables(rows=3000), policies=with_budget(12.0)) as owners:
        result = train(owners)
        owners.drift(result, privacy=asks(1.0))
        spent = [s.noise for s in owners._clients["orders"].log.account.spendings if s.what == "analyst"]
        assert spent[1:] == [pytest.approx(gaussian_noise(1.0, 1e-5, 1, 1.0))]
        with pytest.raises(PolicyError, match=r"the job takes ε = (9|8\.99)"):
            owners.drift(result, privacy=asks(9.0))
    with tp.Federation(tables()) as open_:
        linear = open_.train(QUERY, label="y", model="logistic")
    with federation() as owners, pytest.raises(PrivacyError, match="compares trees"):
        owners.drift(linear, privacy=asks(1.0))


def test_a_leaf_without_a_number_does_not_tell_whether_a_row_is_in_it(watched: None) -> None:
    with federation(policies=with_budget(90.0)) as owners:
        model = train(owners, privacy=asks(40.0)).model
        (tree,) = model.trees[0]
        broken = msgspec.structs.replace(tree, value=[float("nan")] * len(tree.value))
        made_up = msgspec.structs.replace(model, trees=((broken,), *model.trees[1:]))
        owners.drift(made_up, privacy=asks(40.0))
    assert np.isfinite(SEEN[-1][1]).all()


@pytest.mark.parametrize("label", ["y", "z"])
def test_one_row_moves_what_drift_reads_by_less_than_its_noise_is_for(watched: None, label: str) -> None:
    query, given = QUERY.replace("o.y", f"o.{label}"), tables()
    with federation(given, policies=with_budget(90.0)) as owners:
        result = train(owners, query, label, privacy=asks(40.0))
    SEEN.clear()
    for rows in (given["orders"], pa.concat_tables([given["orders"][:7], given["orders"][8:]])):
        with federation(given | {"orders": rows}, policies=with_budget(90.0)) as owners:
            owners.drift(result, privacy=asks(40.0))
    (_, ours, deviation), (_, theirs, _) = SEEN
    moved = float(np.linalg.norm(ours - theirs)) / (deviation / gaussian_noise(40.0, 1e-5, 1, 1.0))
    assert 0.0 < moved <= 1.0 + 1e-9
