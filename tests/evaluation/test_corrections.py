"""The corrections of the paper hold on the data that the evaluation makes."""

from __future__ import annotations

from evaluation.corrections import copies, divergence, leak


def test_the_printed_update_diverges_where_the_sharing_form_converges() -> None:
    last = {row[0]: row[-1] for row in divergence(rows=4000, seed=0).rows}
    assert last["published, ρ = 0.2"] == "stopped: diverges" or float(last["published, ρ = 0.2"]) > 1e3
    assert float(last["sharing, ρ = 0.2"]) < 1e-2
    assert float(last["sharing, our defaults"]) < 1e-6


def test_as_many_predictions_as_columns_solve_for_a_row() -> None:
    errors = {int(n): float(e) for n, e in leak(seed=0, columns=52).rows}
    assert errors[51] > 1e-2
    assert errors[60] < 1e-8


def test_noise_per_copy_averages_out() -> None:
    rows = copies(seed=0).rows
    fresh = {int(n): float(f.rstrip("%")) for n, f, _ in rows}
    once = {int(n): float(o.rstrip("%")) for n, _, o in rows}
    assert fresh[6] > 99
    assert once[6] < 95
