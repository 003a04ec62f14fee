"""The accountant says what dp-accounting says, and noise is the least that keeps within ε."""

from __future__ import annotations

import math

import dp_accounting
import msgspec
import pytest
from dp_accounting import rdp

from tablepuppet.errors import PrivacyError
from tablepuppet.privacy.accounting import (
    Mechanism,
    composed_epsilon,
    composed_noise,
    gaussian_event,
    gaussian_noise,
    participation,
    replacement_epsilon,
)
from tablepuppet.privacy.ledger import Ledger, Release, check_budget


def release(**given: object) -> Release:
    plain = {"what": "features", "table": "users", "observer": "outsider", "mechanism": "noisy gradients", "noise": 1.0}
    return Release(**(plain | {"steps": 1000, "rate": 0.01, "sampling": "poisson", "delta": 1e-5} | given))  # type: ignore[arg-type]


def test_the_figures_of_the_documentation_hold() -> None:
    assert composed_epsilon((Mechanism(1.0, 1000, 0.01),), 1e-5) == pytest.approx(1.828, abs=1e-3)
    accountant = rdp.RdpAccountant()
    accountant.compose(gaussian_event(Mechanism(1.0, 1000, 0.01)))
    assert accountant.get_epsilon(1e-5) == pytest.approx(2.101, abs=1e-3)
    assert gaussian_noise(1.0, 1e-5, 1000, 0.01) == pytest.approx(1.416, abs=3e-3)


def test_noise_keeps_within_epsilon_and_less_noise_does_not() -> None:
    noise = gaussian_noise(2.0, 1e-5, 100, 0.1)
    assert composed_epsilon((Mechanism(noise, 100, 0.1),), 1e-5) <= 2.0
    assert composed_epsilon((Mechanism(0.99 * noise, 100, 0.1),), 1e-5) > 2.0


def test_epsilon_of_a_release_is_that_of_its_event_at_the_probability_of_taking_part() -> None:
    accountant = dp_accounting.pld.PLDAccountant()
    event = dp_accounting.PoissonSampledDpEvent(1 - 0.99**20, dp_accounting.GaussianDpEvent(1.0))
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, 50))
    assert release(cap=20, steps=50).spent() == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)
    assert release(cap=20, steps=50).spent() > release(cap=1, steps=50).spent()


def test_any_other_row_in_a_rows_place_moves_sums_twice_as_far() -> None:
    twice = composed_epsilon((Mechanism(1.5, 4),), 1e-5)
    assert replacement_epsilon((Mechanism(3.0, 4),), 1e-5) == pytest.approx(twice)


def test_of_sampled_sums_one_row_leaves_and_another_comes() -> None:
    """Both steps are (ε, δ₀)-DP, together (2ε, (1 + e^ε) δ₀)."""
    steps, delta = (Mechanism(1.0, 10, 0.1),), 1e-5
    single = 0.5 * replacement_epsilon(steps, delta)
    assert composed_epsilon(steps, delta / (1.0 + math.exp(single))) == pytest.approx(single, rel=5e-3)
    assert composed_epsilon(steps, delta) < 0.95 * single


def test_a_row_takes_part_with_the_probability_that_any_of_its_joined_rows_is_drawn() -> None:
    assert participation(0.01, 1) == pytest.approx(0.01)
    assert participation(0.5, 3) == pytest.approx(0.875)


def test_a_row_that_takes_part_twice_pays_twice() -> None:
    both = Ledger((release(steps=300), release(steps=700)))
    assert both.epsilon("features", "users", "outsider") == pytest.approx(release().spent(), rel=1e-3)
    assert "all tables' parameters: ε = 1.8" in both.lines()[-1]
    with pytest.raises(PrivacyError, match=r"would spend ε = 1\.8"):
        check_budget(both, None, 1.5)
    noise = composed_noise(1.0, 1e-5, (Mechanism(1.0, 50, 0.1), Mechanism(1.0, 50, 0.4)))
    assert composed_epsilon((Mechanism(noise, 50, 0.1), Mechanism(noise, 50, 0.4)), 1e-5) <= 1.0
    assert composed_epsilon((Mechanism(noise, 50, 0.1), Mechanism(noise, 50, 0.4)), 1e-5) > 0.98
    assert noise > gaussian_noise(1.0, 1e-5, 50, 0.4)


def test_fixed_batches_refuse_amplified_accounting() -> None:
    with pytest.raises(PrivacyError, match="only Poisson sampling amplifies"):
        release(sampling="none")
    assert release(sampling="known").spent() == pytest.approx(composed_epsilon((Mechanism(1.0, 1000, 1.0),), 1e-5))


def test_a_claim_names_unit_observer_delta_sampling_and_cap() -> None:
    line = release(cap=20, multiplicity=20).line()
    for word in ("base row of users", "at most 20 joined rows", "outsiders", "δ = 1e-05", "Poisson sampling at 0.01"):
        assert word in line


def test_the_ledger_survives_being_saved() -> None:
    ledger = Ledger((release(), Release(what="label", table="r", observer="everyone", mechanism="m", epsilon=3.0)))
    saved = ledger.to_dict()["releases"]
    assert [row.pop("spent") for row in saved] == [pytest.approx(1.828, abs=1e-3), 3.0]
    assert msgspec.convert({"releases": saved}, Ledger) == ledger


def test_half_of_the_steps_cost_less_and_labels_are_spent_at_once() -> None:
    ledger = Ledger((release(), Release(what="label", table="users", observer="everyone", mechanism="m", epsilon=3.0)))
    half = ledger.after(0.5)
    assert 0 < half.epsilon("features", "users", "outsider") < ledger.epsilon("features", "users", "outsider")
    assert half.epsilon("label", "users", "server") == 3.0


@pytest.mark.parametrize(("share", "steps"), [(0.0, 0), (0.1, 1), (0.25, 1), (0.5, 2), (0.51, 3), (0.75, 3), (1.0, 4)])
def test_a_step_of_which_a_part_was_taken_is_spent(share: float, steps: int) -> None:
    [taken] = Ledger((release(steps=4),)).after(share).releases
    assert taken.steps == steps


def test_a_budget_that_is_overdrawn_is_refused_with_both_figures() -> None:
    with pytest.raises(PrivacyError, match=r"budget of features is ε = 1, and users would spend ε = 1\.82"):
        check_budget(Ledger((release(),)), None, 1.0)
    check_budget(Ledger((release(),)), None, 2.0)


def test_releases_of_several_kinds_cost_all_of_them_at_the_smallest_delta() -> None:
    noisy = (release(rate=1.0, sampling="none", steps=4), release(rate=1.0, sampling="none", steps=5, delta=1e-7))
    both = composed_epsilon((Mechanism(1.0, 9),), 1e-7)
    assert Ledger(noisy).epsilon("features", "users", "outsider") == pytest.approx(both)
    assert Ledger((*noisy, release(epsilon=2.0))).epsilon("features", "users", "outsider") == pytest.approx(both + 2.0)
