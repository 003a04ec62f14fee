"""Heads over tables equal one torch model on the materialised join, batch for batch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.algorithms.neural_join import JOINS, federation
from tests.models.heads.head_join import SEED, BesideSum, Oracle, trained
from tests.plan.disclosure import expect_disclosures

import tablepuppet as tp
from tablepuppet.algorithms.base import Problem
from tablepuppet.models.heads.base import HeadSpec, TrainedHead
from tablepuppet.models.heads.kinds import make_head

torch = pytest.importorskip("torch")

OPTIMIZERS: dict[str, tuple[dict[str, Any], Any]] = {
    "sgd": ({"optimizer": "sgd"}, lambda p: torch.optim.SGD(p, lr=0.05)),
    "momentum": ({"optimizer": "sgd", "momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    "adam": ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p, lr=0.05)),
    "adamw": (
        {"optimizer": "adamw", "weight_decay": 0.1},
        lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.1),
    ),
}


def perceptron(width: int, outputs: int, hidden: int = 6) -> Any:
    """The documented initial values: drawn under torch.manual_seed(seed + 2²⁰)."""
    with torch.random.fork_rng():
        torch.manual_seed(SEED + 2**20)
        return torch.nn.Sequential(torch.nn.Linear(width, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, outputs))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("join", ["one-to-many", "many-to-many", "left"])
def test_a_factor_head_is_the_factor_model_of_the_join(join: str, clients: int) -> None:
    result, joined = trained(join, "number", clients, head="factor", rank=3, optimizer="adam", shrinkage=0.1)
    Oracle(result, joined).train(OPTIMIZERS["adam"][1]).agrees(result)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimiser_takes_the_steps_of_torch(name: str) -> None:
    options, optimizer = OPTIMIZERS[name]
    result, joined = trained("many-to-many", "number", head="factor", rank=2, **options)
    Oracle(result, joined).train(optimizer).agrees(result)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("label", ["flag", "class"])
def test_classes_have_factors_of_their_own(label: str) -> None:
    result, joined = trained("many-to-many", label, 3, head="factor", rank=2, optimizer="adam")
    Oracle(result, joined).train(OPTIMIZERS["adam"][1]).agrees(result)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("join", ["one-to-many", "many-to-many"])
def test_a_network_head_is_the_network_over_the_join(join: str, clients: int) -> None:
    given: dict[str, Any] = {"head": "mlp", "widths": 4, "head_hidden": (6,), "activation": "tanh", "dtype": "float64"}
    result, joined = trained(join, "number", clients, optimizer="adam", **given)
    oracle = Oracle(result, joined, perceptron(4 * len(result.blocks), 1))
    oracle.train(OPTIMIZERS["adam"][1]).agrees(result)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("label", "clients"), [("number", 1), ("class", 3)])
def test_at_defaults_a_network_stands_beside_the_sum_as_torch_has_it_on_the_join(label: str, clients: int) -> None:
    options: dict[str, Any] = {"learning_rate": None, "batch_size": None, "epochs": 3, "dtype": "float64"}
    result, joined = trained("many-to-many", label, clients, head="mlp", **options)
    assert result.head is not None
    spec = result.head.spec
    with torch.random.fork_rng():
        torch.manual_seed(SEED + 2**20)
        sizes = (sum(spec.widths) - len(spec.widths) * spec.outputs, 64, 32, spec.outputs)
        layers = [torch.nn.Linear(a, b) for a, b in pairwise(sizes)]
    head = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])
    BesideSum(result, joined, head).descend().agrees(result)
    with federation() as owner:
        query = JOINS["many-to-many"].format(y=label)
        said = owner.train(query, label=label, head="mlp", algorithm="sgd", l2=1e-4, epochs=1)
    assert said.head is not None
    assert (spec.sum_weight > 0, said.head.spec.sum_weight) == (True, 0.0)


@pytest.mark.parametrize(
    ("rows", "columns", "share"), [(500, 7, 1.0), (1_000, 7, 0.5), (9_000, 7, 0.25), (9_000, 900, 0.5)]
)
def test_a_network_beside_the_sum_is_kept_small_where_rows_are_few_for_it(
    rows: int, columns: int, share: float
) -> None:
    spec = HeadSpec(kind="mlp", outputs=1, widths=(3, 3), sum_weight=2.0)
    head = make_head(spec)
    joined: Any = SimpleNamespace(rows=rows)
    loss: Any = None
    problem = Problem(
        loss,
        [0.6, 0.6],
        joined,
        (5, 5),
        (),
        (),
        epochs=1,
        batch_size=None,
        seed=0,
        sum_l2=0.2,
        widths=(columns - 2, 2),
        head=TrainedHead(head, head.initial()),
    )
    np.testing.assert_allclose(problem.by_output(1), [0.2, 0.2 + 0.4 * share, 0.2 + 0.4 * share], rtol=1e-12)
    for rows in range(1, 501):  # what was agreed on is never exceeded, by no digit
        few = replace(problem, joined=SimpleNamespace(rows=rows), sum_l2=1e-4, l2=1e-4 + 60 / rows)
        assert max(few.by_output(1)) == few.ridges[1]


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "gelu"])
def test_the_way_back_through_a_perceptron_is_that_of_autograd(activation: Any) -> None:
    spec = HeadSpec(
        kind="mlp", outputs=2, widths=(3, 4), hidden=(5, 6), activation=activation, dtype="float64", sum_weight=2.0
    )
    head, random = make_head(spec, seed=1), np.random.default_rng(1)
    own, h = head.initial(), [random.standard_normal((7, k)) for k in spec.widths]
    residual = random.standard_normal((7, 2))
    scores, pull_back = head.differentiate(own, h)
    np.testing.assert_array_equal(scores, head.combine(own, h))
    signals, slope = pull_back(residual)
    for values, signal in ((h[0], signals[0]), (h[1], signals[1]), (own, slope)):
        for place in np.ndindex(values.shape):
            before, step = values[place], 1e-6
            ends = []
            for moved in (before + step, before - step):
                values[place] = moved
                ends.append(float((residual * head.combine(own, h)).sum()))
            values[place] = before
            np.testing.assert_allclose((ends[0] - ends[1]) / (2 * step), signal[place], rtol=1e-5, atol=1e-7)


def test_a_head_may_be_a_torch_module_with_widths_for_each_table() -> None:
    module = perceptron(5, 4)
    before = [p.clone() for p in module.parameters()]
    given: dict[str, Any] = {"head": module, "widths": (2, 3), "dtype": "float64"}
    result, joined = trained("one-to-many", "class", optimizer="adam", **given)
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    Oracle(result, joined, module).train(OPTIMIZERS["adam"][1]).agrees(result)


def test_at_defaults_factors_are_shrunk_by_the_rows_and_the_noise_and_else_as_the_user_says() -> None:
    given: dict[str, Any] = {"head": "factor", "rank": 2, "learning_rate": None}
    usual, _ = trained("many-to-many", "number", **given)
    said, _ = trained("many-to-many", "number", l2=1e-8, **given)
    assert usual.head is not None
    assert said.head is not None
    assert (usual.plan.job.model.l2_by_rows > 0, usual.head.spec.shrinkage) == (True, None)
    assert (said.plan.job.model.l2_by_rows, said.head.spec.shrinkage) == (0.0, 0.05)
    assert "/ joined rows" in str(usual.plan)


def test_so_it_is_with_whole_batches() -> None:
    result, joined = trained("many-to-many", "number", head="factor", rank=2, optimizer="adam", batch_size=None)
    Oracle(result, joined).train(OPTIMIZERS["adam"][1]).agrees(result)


def test_network_blocks_learn_under_a_factor_head() -> None:
    query = JOINS["many-to-many"].format(y="number")
    given: dict[str, Any] = {"label": "number", "model": "mlp", "algorithm": "sgd", "dtype": "float64", "epochs": 2}
    with federation() as one, federation(3) as three:
        a = one.train(query, head="factor", rank=3, batch_size=None, **given)
        b = three.train(query, head="factor", rank=3, batch_size=None, **given)
    for left, right in zip(a.blocks, b.blocks, strict=True):
        np.testing.assert_allclose(left.theta, right.theta, rtol=0, atol=1e-9)
    assert a.history[-1].objective < a.history[0].objective


@pytest.mark.one_in(2)
@pytest.mark.parametrize("head", ["factor", "mlp"])
def test_predictions_saved_models_and_evaluation_are_those_of_training(head: str, tmp_path: Any) -> None:
    query = JOINS["left"].format(y="flag")
    with federation(2) as owner:
        result = owner.train(query, label="flag", algorithm="sgd", head=head, epochs=2, test_fraction=0.0)
        result.save(tmp_path / "model")
        found = owner.predict(tp.load(tmp_path / "model"), key="o.item").column("probability").to_numpy()
        metrics = owner.evaluate(tp.load(tmp_path / "model"), rows="all")
        np.testing.assert_array_equal(found, owner.predict(result, key="o.item").column("probability").to_numpy())
    assert metrics["log_loss"] == pytest.approx(result.metrics["train"]["log_loss"], abs=1e-12)
    assert result.explain()
    assert result.report(tmp_path / "page.html").exists()
    with pytest.raises(tp.TablePuppetError, match="tables act together"):
        result.coefficients()


def test_a_saved_head_of_ones_own_is_given_again(tmp_path: Any) -> None:
    query = JOINS["one-to-many"].format(y="number")
    module = torch.nn.Linear(4, 1)
    with federation() as owner:
        result = owner.train(query, label="number", algorithm="sgd", head=module, widths=2, epochs=1)
        result.save(tmp_path / "model")
        model = tp.load(tmp_path / "model")
        first = owner.predict(result).column("prediction")
        assert owner.predict(model, head=module).column("prediction") == first
        with pytest.raises(tp.TablePuppetError, match="stays in the process"):
            owner.predict(model)


def test_early_stopping_restores_the_heads_own_parameters_too() -> None:
    query = JOINS["one-to-many"].format(y="number")
    with federation() as owner:
        given: dict[str, Any] = {"validation_fraction": 0.3, "patience": 2, "learning_rate": 0.3, "epochs": 12}
        result = owner.train(query, label="number", algorithm="sgd", head="mlp", optimizer="adam", **given)
    assert result.epoch < len(result.history)
    best = min(result.history, key=lambda r: r.metrics["validation"]["loss"])
    assert result.metrics["validation"]["loss"] == pytest.approx(best.metrics["validation"]["loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"head": "factors"}, "did you mean 'factor'"),
        ({"head": 3}, "unknown head a int"),
        ({"rank": 4}, 'rank belongs to head="factor"'),
        ({"head": "factor", "widths": 4}, "widths belongs to"),
        ({"head": "factor", "rank": 0}, "rank must be at least 1"),
        ({"head": "mlp", "widths": (1, 2, 3)}, "widths has 3 numbers, and the join has 2 tables"),
        ({"head": "factor", "algorithm": "newton"}, "trains sums of table scores only"),
        ({"head": "factor", "algorithm": "admm"}, "trains sums of table scores only"),
        ({"head": "factor", "optimizer": "sgd"}, "bound on the curvature"),
        ({"head": "factor", "privacy": {"features": {"epsilon": 1.0}}}, "not bounded"),
    ],
)
def test_what_heads_cannot_do_is_said(given: dict[str, Any], sentence: str) -> None:
    query = JOINS["one-to-many"].format(y="number")
    with federation() as owner, pytest.raises(tp.TablePuppetError, match=sentence):
        owner.train(query, label="number", **{"algorithm": "sgd"} | given)


def test_explain_knows_the_bytes_of_wider_blocks() -> None:
    query = JOINS["many-to-many"].format(y="number")
    with federation() as owner:
        result = owner.train(query, label="number", algorithm="sgd", head="factor", rank=8, epochs=3, batch_size=None)
        of_the_sum = owner.explain(query, label="number", algorithm="sgd", epochs=3, batch_size=None)
    planned = result.plan.cost("sgd", 3)
    assert planned.rounds == result.traffic.rounds
    assert planned.bytes == pytest.approx(result.traffic.bytes, rel=0.05)
    assert result.traffic.all_told == expect_disclosures(result.plan, len(result.history))
    # Blocks under a head begin at random numbers, which are told; rows of orders are held out or trained with.
    assert [e.numbers for e in of_the_sum.exposures] == [4, 7, 7]
    assert [e.numbers for e in result.plan.exposures] == [9 * 4, 9 * 8, 9 * 8]


def test_shards_that_pass_a_network_head_in_threads_do_not_meet_in_its_module() -> None:
    head = make_head(HeadSpec(kind="mlp", widths=(3, 3), hidden=(8,), dtype="float64"), seed=1)
    random = np.random.default_rng(2)
    vectors = [random.normal(size=head.initial().shape) for _ in range(40)]
    h = [random.normal(size=(50, 3)) for _ in range(2)]
    alone = [head.combine(own, h) for own in vectors]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            together = list(pool.map(lambda own: head.combine(own, h), vectors))
            assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


def test_a_head_computes_in_one_thread_however_many_torch_has() -> None:
    seen: list[int] = []
    module = torch.nn.Linear(4, 1)
    module.register_forward_pre_hook(lambda *_: seen.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        trained("one-to-many", "number", head=module, widths=2, epochs=1, optimizer="adam")
    finally:
        torch.set_num_threads(before)
    assert len(seen) > 3
    assert set(seen[1:]) == {1}  # the first call only asks for its shape
