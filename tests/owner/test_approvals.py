"""A person's decision covers what the person looked at, for so long and so many jobs as was said, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tablepuppet.owner import owner_files
from tablepuppet.owner.owner_files import Approvals
from tablepuppet.privacy.options import FeaturePrivacy, LabelPrivacy
from tablepuppet.protocol.contract import Column, Contract, ScanTerms

SCAN = ScanTerms(0, "orders", (Column('"x"', ("feature",)),), None)
CONTRACT = Contract(purpose="train", asker="ann", label="y", scans=(SCAN,), blocks=(), days=5)
START = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture(params=["in memory", "in a folder"])
def approvals(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Approvals:
    set_clock(monkeypatch)
    found = Approvals(tmp_path if request.param == "in a folder" else None)
    found.wait(CONTRACT, ["few rows"])
    return found


def set_clock(monkeypatch: pytest.MonkeyPatch, **since: float) -> None:
    monkeypatch.setattr(owner_files, "read_clock", lambda: START + timedelta(**since))


def decide(approvals: Approvals, contract: Contract = CONTRACT, **given: Any) -> None:
    approvals.decide(contract.hash[:12], **({"is_approved": True} | given))


@pytest.mark.parametrize(("asked", "lasts"), [(None, 5), (2, 2), (90, 5)])
def test_a_decision_ends_with_its_days_and_with_those_of_its_contract(
    approvals: Approvals, monkeypatch: pytest.MonkeyPatch, asked: int | None, lasts: int
) -> None:
    decide(approvals, days=asked)
    assert not approvals.waiting()
    set_clock(monkeypatch, days=lasts - 0.1)
    assert approvals.decision(CONTRACT, "a") is not None
    set_clock(monkeypatch, days=lasts + 0.1)
    assert approvals.decision(CONTRACT, "a") is None
    assert approvals.waiting() == [CONTRACT]


def test_an_approval_covers_the_warnings_that_were_seen_and_a_denial_covers_all(approvals: Approvals) -> None:
    decide(approvals)
    assert approvals.decision(CONTRACT, "a", ["few rows"]) is not None
    assert approvals.decision(CONTRACT, "a") is not None
    assert approvals.decision(CONTRACT, "a", ["few rows", "one row"]) is None
    approvals.wait(CONTRACT, ["few rows", "one row"])
    assert approvals.waiting() == [CONTRACT]
    decide(approvals, is_approved=False)
    for notes in ([], ["few rows"], ["few rows", "two rows"]):  # the earlier decision gave way
        found = approvals.decision(CONTRACT, "a", notes)
        assert found is not None
        assert not found.is_approved
    assert not approvals.waiting()


def test_an_approval_for_once_is_for_one_job_until_that_is_over(approvals: Approvals) -> None:
    decide(approvals, scope="once")
    approvals.finish("c")
    assert approvals.decision(CONTRACT, "a") is not None
    assert approvals.decision(CONTRACT, "a") is not None  # the same job, resumed
    assert approvals.decision(CONTRACT, "b") is None
    approvals.finish("a")
    assert approvals.decision(CONTRACT, "a") is None
    assert approvals.decision(CONTRACT, "b") is None


def test_a_contract_is_approved_by_itself_and_an_asker_for_all_on_the_same_columns(approvals: Approvals) -> None:
    other = replace(CONTRACT, seed=7)
    decide(approvals)
    assert approvals.decision(other, "a") is None
    decide(approvals, scope="asker")
    assert approvals.decision(other, "a") is not None
    more = replace(SCAN, columns=(*SCAN.columns, Column('"z"', ("feature",))))
    changes: list[dict[str, Any]] = [
        {"asker": "bob"},
        {"readers": ("bob",)},
        {"purpose": "evaluate"},
        {"scans": (more,)},
        {"scans": (replace(SCAN, filter='"x" > 3'),)},
        {"label_privacy": LabelPrivacy(epsilon=1.0)},
        {"feature_privacy": FeaturePrivacy(epsilon=1.0)},
        {"keys": "plain"},
        {"allow_reconstruction": True},
    ]
    for changed in changes:
        assert approvals.decision(replace(CONTRACT, **changed), "a") is None, changed
