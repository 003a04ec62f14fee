"""What every algorithm in the list declares, held to the same rules; and the table of them in the documentation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tablepuppet.algorithms.algorithm import Algorithm
from tablepuppet.algorithms.options import AlgorithmOptions
from tablepuppet.algorithms.registry import ALGORITHMS, BY_NAME, FEDERATED, Options, algorithm_of, options_of
from tablepuppet.algorithms.shape import BlockShape, FanOutHistogram, PartShape, Shape
from tablepuppet.errors import JobError
from tablepuppet.exchanges.base import TRAINING
from tablepuppet.exchanges.registry import EXCHANGES
from tablepuppet.job import make_job
from tablepuppet.job.checks import check_job
from tablepuppet.privacy.options import FeaturePrivacy

PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"


def shape(clients: int = 1, *, is_linear: bool = True) -> Shape:
    """A fact table of 6,000 rows and a table of 300 that each occurs 20 times."""

    def block(name: str, rows: int, width: int, times: int) -> BlockShape:
        own = rows // clients
        parts = tuple(
            PartShape(f"{name}[{k}]", own, own // 10, own * times, FanOutHistogram((times,), (own,)))
            for k in range(clients)
        )
        return BlockShape(name, name, width, width, 0, width, width, times == 1, 0, parts, outputs=1)

    blocks = (block("orders", 6000, 8, 1), block("items", 300, 5, 20))
    return Shape(6000, 600, 0, 1, blocks, is_linear, curvature_varies=True, has_widths=True, epochs=4)


def models(algorithm: Algorithm[Any]) -> Iterator[bool]:
    yield not algorithm.own_model
    if not algorithm.requires_linear and not algorithm.own_model:
        yield False


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a.name)
class TestEveryAlgorithm:
    def test_is_found_by_its_name_and_by_its_options(self, algorithm: Algorithm[Any]) -> None:
        options = options_of(algorithm.name, {})
        assert isinstance(options, AlgorithmOptions)
        assert BY_NAME[algorithm.name] is algorithm_of(options) is algorithm
        assert msgspec.to_builtins(options)["type"] == algorithm.name
        with pytest.raises(JobError, match="has no option"):
            options_of(algorithm.name, {"no such option": 1})

    def test_has_updates_that_are_steps_and_figures_that_can_be_added(self, algorithm: Algorithm[Any]) -> None:
        assert all(EXCHANGES[kind].purposes == TRAINING for kind in algorithm.requests)
        assert all(isinstance(value, float) for value in msgspec.structs.astuple(algorithm.figures()))
        assert isinstance(algorithm.public_figures(3), algorithm.figures)

    def test_has_its_halves_if_it_trains_in_rounds(self, algorithm: Algorithm[Any]) -> None:
        has = [getattr(type(algorithm), half) is not getattr(Algorithm, half) for half in ("server", "start", "step")]
        assert has == [not algorithm.is_pooled and not algorithm.own_model] * 3

    @pytest.mark.parametrize("clients", [1, 3])
    def test_says_what_it_costs(self, algorithm: Algorithm[Any], clients: int) -> None:
        for is_linear in models(algorithm):
            of, options = shape(clients, is_linear=is_linear), algorithm.options()
            first = algorithm.traffic(of, options, 0, 500)
            assert all(wave.times > 0 and wave.messages > 0 and wave.slowest >= 0 for wave in first)
            assert sum(wave.up for wave in first) > 0
            assert algorithm.server_memory(of, options) > 0 <= algorithm.state_memory(of, options)
            assert all(algorithm.client_memory(of, options, block, part) > 0 for block, part in of.parts)

    def test_has_a_private_form_or_says_why_not(self, algorithm: Algorithm[Any]) -> None:
        options = algorithm.options()
        why = algorithm.why_not_private(options)
        if why is not None:
            assert len(why.split()) > 4
            return
        form = algorithm.private_form(options, FeaturePrivacy(epsilon=1.0), is_linear=True, blocks=2)
        assert form.local_steps >= 1 <= form.inner_rounds
        assert form.curvature > 0

    def test_forms_the_documented_row(self, algorithm: Algorithm[Any]) -> None:
        assert row(algorithm) in PAGE.read_text(encoding="utf-8").splitlines()


def row(algorithm: Algorithm[Any]) -> str:
    """A line of the table in docs/algorithms.md."""
    trains = algorithm.own_model or ("linear" if algorithm.requires_linear else "linear, neural")
    if "sum" not in algorithm.heads:
        trains += f" under {' and '.join(algorithm.heads)} heads"
    private = "yes" if algorithm.why_not_private(algorithm.options()) is None else "no"
    names = f"`{algorithm.name}`" + (f", `vfl-{algorithm.name}`" if f"vfl-{algorithm.name}" in BY_NAME else "")
    most, headed = algorithm.network_epochs, algorithm.head_epochs
    longer = f", networks {most // 3} to {most}, network heads {headed}" if most else ""
    return f"| {names} | {algorithm.summary} | {trains} | {private} | {algorithm.epochs}{longer} |"


@pytest.mark.parametrize("name", BY_NAME)
def test_options_lead_back_to_the_algorithm_that_they_were_made_for(name: str) -> None:
    options = msgspec.json.decode(msgspec.json.encode(options_of(name, {})), type=Options)
    assert options == options_of(name, {})
    assert options.name == algorithm_of(options).name == name
    assert algorithm_of(options) is BY_NAME[name]
    assert algorithm_of(options).is_expanded == name.startswith("vfl-")


def test_a_job_with_the_options_of_another_algorithm_is_refused() -> None:
    job = make_job("SELECT …", label="y", model="linear", algorithm="vfl-sgd", given={})
    check_job(job)
    with pytest.raises(JobError, match='algorithm="vfl-sgd" was given the options of "sgd"'):
        check_job(job.replace(options=options_of("sgd", {})))


def test_the_default_is_listed_first_and_baselines_come_last() -> None:
    assert next(iter(BY_NAME)) == FEDERATED[0].name == ALGORITHMS[0].name
    assert BY_NAME[[*BY_NAME][-1]].is_pooled
