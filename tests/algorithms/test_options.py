"""Options explain themselves: an unknown name or a wrong value is answered with what there is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.job import make_job

MISTAKES: dict[str, Callable[[], Any]] = {
    "tp.Sgd has no option 'lr'; did you mean 'learning_rate'?": lambda: tp.Sgd(lr=1),  # type: ignore[call-arg]
    "tp.Admm has no option 'varient'; did you mean 'variant'?": lambda: tp.Admm(varient=1),  # type: ignore[call-arg]
    "tp.Newton has no option 'rho'; it has memory, tolerance": lambda: tp.Newton(rho=1),  # type: ignore[call-arg]
    "tp.Sgd takes options by name: learning_rate": lambda: tp.Sgd(0.1),
    "optimizer must be one of sgd, adam, adamw, not 'adma'": lambda: tp.Sgd(optimizer="adma"),  # type: ignore[arg-type]
    "union must be one of consensus, exact, not None": lambda: tp.Admm(union=None),  # type: ignore[arg-type]
    "learning_rate: expected float": lambda: tp.Sgd(learning_rate="fast"),  # type: ignore[arg-type]
    "learning_rate must be above 0": lambda: tp.Sgd(learning_rate=-1.0),
}


@pytest.mark.parametrize(
    ("name", "meant"), [("lr", "learning_rate"), ("max_iter", "epochs"), ("random_state", "seed"), ("alpha", "l2")]
)
def test_an_option_under_another_librarys_name_is_suggested_and_all_are_named(name: str, meant: str) -> None:
    given: dict[str, Any] = {name: 0.1}
    with (
        tp.Federation({"t": pa.table({"x": [1.0, 2.0], "y": [1.0, 2.0]})}) as owner,
        pytest.raises(tp.TablePuppetError) as refused,
    ):
        owner.train("SELECT x, y FROM t", label="y", algorithm="sgd", **given)
    message = str(refused.value)
    assert f"algorithm sgd has no option {name!r}; did you mean {meant!r}?" in message
    assert "It has learning_rate, optimizer, momentum" in message
    assert "max_categories" in message


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_answered_with_what_there_is(message: str) -> None:
    with pytest.raises(tp.TablePuppetError) as refused:
        MISTAKES[message]()
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"algorithm": "sgd", "optimizer": "adma"}, "optimizer must be one of sgd, adam, adamw, not 'adma'"),
        ({"model": "mlp", "algorithm": "sgd", "activation": "rely"}, "activation must be one of relu, tanh"),
        ({"wire": "float16"}, "wire must be one of float64, float32"),
    ],
)
def test_so_it_is_in_a_job(given: dict[str, Any], message: str) -> None:
    table = pa.table({"x": [1.0, 2.0], "y": [1.0, 2.0]})
    with tp.Federation({"t": table}) as federation, pytest.raises(tp.TablePuppetError) as refused:
        federation.train("SELECT t.x, t.y FROM t", label="y", **given)
    assert message in str(refused.value)


def test_options_are_copied_and_shown_without_their_defaults() -> None:
    options = tp.Admm(rho=0.5)
    assert copy.deepcopy(options) == options
    assert repr(options) == "Admm(rho=0.5)"


def test_networks_take_1200_steps_where_the_user_leaves_epochs_open() -> None:
    def epochs(rows: int, model: str = "mlp", **given: Any) -> int:
        return make_job("SELECT 1", label="y", model=model, algorithm="sgd", given=given).over(rows).epochs

    assert [epochs(rows) for rows in (500, 400_000, 614_400, 2_000_000)] == [30, 30, 20, 10]
    assert epochs(2_000_000, batch_size=None) == 30
    assert epochs(500, epochs=7) == 7
    assert epochs(500, model="linear") == 10
