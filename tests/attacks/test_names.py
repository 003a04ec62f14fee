"""Names of categories: those that few rows hold stay at their owner, and so do texts that name the rows themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace
from tests.privacy.test_runs import Tap
from tests.privacy.white_box import run_both

import tablepuppet as tp
from tablepuppet.algorithms.boosting import messages as trees
from tablepuppet.algorithms.boosting.tree_checks import CategoryBins
from tablepuppet.errors import PolicyError
from tablepuppet.exchanges.features import FeatureStatistics
from tablepuppet.exchanges.parts import EncodeFeatures, Release
from tablepuppet.owner.policy import Policy, TableRules
from tablepuppet.protocol.columns import CategoryEncoder

ROWS = 400
RARE = "the only one of her kind"


def people(seed: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    cities = random.choice(["north", "south"], ROWS).astype(object)
    cities[7] = RARE
    cities[8:12] = "a handful"
    texts = [f"{RARE}, review number {k} of {random.integers(1 << 40)}" for k in range(ROWS)]
    columns: dict[str, Any] = {"id": np.arange(ROWS), "x": random.normal(size=ROWS), "city": cities, "review": texts}
    return pa.table(columns | {"y": random.integers(0, 2, ROWS)})


def sent(owners: tp.Federation, query: str, **options: Any) -> bytes:
    """Everything that left owners in a run."""
    tap = Tap(owners)
    owners.train(query, label="y", **(options or {"epochs": 2}))
    return b"".join(bytes(buffer) for frame in tap.up for buffer in (frame.header, *frame.buffers))


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("algorithm", [None, tp.Boosting(trees=3, min_child_weight=5)])
def test_a_name_that_few_rows_hold_does_not_leave(parts: int, algorithm: Any) -> None:
    tables: dict[str, Any] = {"people": [people(k) for k in range(parts)] if parts > 1 else people()}
    given = {} if algorithm is None else {"algorithm": algorithm}
    query = "SELECT p.x, p.city, p.y FROM people p"
    with tp.Federation(tables) as owners:
        assert RARE.encode() in sent(owners, query, **given) or algorithm is not None
    with tp.Federation(tables, policies={"people": Policy(minimum_rows=20)}) as owners:
        found = sent(owners, query, **given)
    assert RARE.encode() not in found
    assert b"a handful" not in found


def test_rows_with_a_cut_name_are_other_rows_in_training_and_prediction() -> None:
    with tp.Federation({"people": people()}, policies={"people": Policy(minimum_rows=20)}) as owners:
        result = owners.train("SELECT p.x, p.city, p.y FROM people p", label="y", epochs=2)
        (_, city) = result.model.blocks[0].encoders
        assert city.categories == ["north", "south"]  # type: ignore[union-attr]
        assert not city.has_other  # type: ignore[union-attr]  # a column for five rows would tell of these
        assert owners.predict(result, key="id").num_rows == ROWS
    cities = [f"town {k}" if k < 30 else name for k, name in enumerate(people()["city"].to_pylist())]
    more = people().set_column(2, "city", pa.array(cities))
    with tp.Federation({"people": more}, policies={"people": Policy(minimum_rows=20)}) as owners:
        result = owners.train("SELECT p.x, p.city, p.y FROM people p", label="y", epochs=2, test_fraction=0.0)
        (_, city) = result.model.blocks[0].encoders
        assert city.categories == ["north", "south"]  # type: ignore[union-attr]
        assert city.has_other  # type: ignore[union-attr]
        assert owners.evaluate(result, rows="all")["log_loss"] == result.metrics["train"]["log_loss"]


@pytest.mark.parametrize("verb", ["train", "explain"])
def test_text_that_names_rows_is_refused_with_what_to_do_instead(verb: str) -> None:
    query = "SELECT p.x, p.review, p.y FROM people p"
    with tp.Federation({"people": people()}, policies={"people": Policy(keys_in_plain=False)}) as owners:
        with pytest.raises(PolicyError, match=r"groups of them.*tp\.embed.*rule texts") as refused:
            getattr(owners, verb)(query, label="y")
        assert RARE not in str(refused.value)
        owners.train("SELECT p.x, left(p.review, 3) AS begins, p.y FROM people p", label="y", epochs=2)
    rules = TableRules(features=("x", "review"), keys=("id",), labels=("y",), texts=("review",))
    with tp.Federation({"people": people()}, policies={"people": Policy(tables={"people": rules})}) as owners:
        assert RARE.encode() in sent(owners, query)


def test_a_policy_file_grants_texts(tmp_path: Path) -> None:
    rules = '[tables.people]\nfeatures = ["x", "review"]\nkeys = ["id"]\nlabels = ["y"]\ntexts = ["review"]\n'
    (tmp_path / "policy.toml").write_text(rules)
    with tp.Federation({"people": people()}, policies={"people": tmp_path / "policy.toml"}) as owners:
        owners.explain("SELECT p.x, p.review, p.y FROM people p", label="y")


@pytest.mark.parametrize(("least", "rows"), [(1, 1), (20, 0)])
def test_a_server_that_guesses_a_name_gets_no_column_for_the_few_who_hold_it(least: int, rows: int) -> None:
    """It puts the name among the encoder's categories, and would read those rows off the name's parameter."""
    with tp.Federation({"people": people()}, policies={"people": Policy(minimum_rows=least)}) as owners:
        client = owners._clients["people"]
        inner = client.answer
        found: list[int] = []

        def answer(message: Any) -> Any:
            if isinstance(message, Release):
                encoded = client.parts[message.job, message.part].train
                assert encoded is not None
                found.append(int(np.count_nonzero(encoded.codes[0] == 1)))
            if not isinstance(message, EncodeFeatures):
                return inner(message)
            number, city = message.encoders
            assert isinstance(city, CategoryEncoder)
            names = ["north", RARE, *(f"nobody {k}" for k in range(2, len(city.categories)))]
            return inner(replace(message, encoders=[number, replace(city, categories=names)]))

        client.answer = answer  # type: ignore[method-assign]
        owners.train("SELECT p.x, p.city, p.y FROM people p", label="y", epochs=2)
    assert found == [rows]


@pytest.mark.parametrize(("least", "rows"), [(1, 1), (20, 0)])
def test_trees_over_several_owners_put_no_guessed_name_in_a_bin(least: int, rows: int) -> None:
    """A server adds the name to the bins that owners agree on through it, and to the splits that it asks rows later."""
    query = "SELECT p.x, p.city, p.y FROM people p"
    halves = {"people": [people(0), people(1)]}
    with tp.Federation(halves, policies={"people": Policy(minimum_rows=least)}) as owners:
        found: list[int] = []

        def meddle(client: Any) -> None:
            inner = client.answer

            def answer(message: Any) -> Any:
                if not isinstance(message, trees.StartTrees):
                    return inner(message)
                assert message.bins is not None
                number, city = message.bins
                assert isinstance(city, CategoryBins)
                names = city.categories if RARE in city.categories else [*city.categories[1:], RARE]
                started = inner(replace(message, bins=[number, CategoryBins(names, city.has_other)]))
                codes = client.parts[message.job, message.part].trees.train
                found.append(int(np.count_nonzero(codes[:-1, 1] == names.index(RARE) + 1)))
                return started

            client.answer = answer

        for client in owners._clients.values():
            meddle(client)
        honest = owners.train(query, label="y", algorithm=tp.Boosting(trees=2, min_child_weight=5), test_fraction=0.0)
        assert found == [rows] * 2
        (block,) = honest.model.blocks
        guess = trees.SplitRule(1, 0, False, None, [RARE], False, False, [])
        invented = replace(honest.model, blocks=(replace(block, splits=(guess,) * len(block.splits)),))
        ones = owners.predict(invented, key="id")
        odds = np.asarray(ones["probability"])
        assert len(np.unique(odds)) == (2 if least == 1 else 1)  # whose row is told apart


def test_names_that_one_owner_has_often_and_another_rarely_are_others_there_in_training_and_prediction() -> None:
    query = "SELECT p.x, p.city, p.y FROM people p"
    second = people(1)
    cities = second["city"].to_pylist()
    cities[100:200] = ["a handful"] * 100  # four rows of the first owner's have it
    tables = {"people": [people(0), second.set_column(2, "city", pa.array(cities))]}
    with tp.Federation(tables, policies={"people": Policy(minimum_rows=20)}) as owners:
        result = owners.train(query, label="y", algorithm=tp.Boosting(trees=3, min_child_weight=5), test_fraction=0.0)
        shown = result.metrics["train"]
        assert (
            owners.evaluate(result, rows="all")["log_loss"] == shown["log_loss"]
        )  # rows are scored as they were trained on


def test_text_that_names_rows_is_no_label() -> None:
    owned = people()
    names = pa.array([f"{k} lives somewhere" for k in range(ROWS)])
    held = {"people": owned.append_column("letter", names)}
    with tp.Federation(held, policies={"people": Policy(minimum_rows=2)}) as owners:
        for verb in (owners.train, owners.explain):
            with pytest.raises(PolicyError, match=r"letter., and as a label.*texts"):
                verb("SELECT p.x, p.letter FROM people p", label="letter", model="softmax")


NOISE: dict[str, Any] = {
    "features": {"epsilon": 1.0, "cap": 20, "bounds": {"x": (-4, 4)}},
    "allow_reconstruction": True,
}
PRIVATE: tuple[dict[str, Any], ...] = (
    {"model": "logistic", "algorithm": "sgd", "epochs": 1},
    {"model": "boosted", "trees": 2, "depth": 2, "splits": "random", "min_child_weight": 5},
)


def named(table: pa.Table, names: list[str | None]) -> pa.Table:
    return table.set_column(table.column_names.index("city"), "city", pa.array(names))


def towns(city: str) -> pa.Table:
    """Rows 5 to 9 are in the harbour, which five have to be, and so are others that no job selects; row 7 moves."""
    names: list[str | None] = ["hill"] * ROWS
    names[5:10], names[100:115], names[200:206] = ["harbour"] * 5, ["harbour"] * 15, ["island"] * 6
    names[7] = city
    return people().set_column(2, "city", pa.array(names))


@pytest.mark.parametrize("given", PRIVATE, ids=lambda g: g["model"])
@pytest.mark.parametrize(("least", "city"), [(1, "island"), (5, "harbour")])
@pytest.mark.parametrize("parts", [1, 3])
def test_under_noise_names_are_the_tables_and_no_selected_row_decides_on_them(
    given: dict[str, Any], least: int, city: str, parts: int
) -> None:
    def run(city: str) -> Any:
        whole = towns(city)
        slices = [whole.take(list(range(k, ROWS, parts))) for k in range(parts)]
        with tp.Federation({"people": slices}, policies={"people": Policy(minimum_rows=least)}) as owners:
            query = "SELECT p.x, p.city, p.y FROM people p WHERE p.id < 100"
            result = owners.train(query, label="y", test_fraction=0.0, privacy=NOISE, **given)
            [block] = result.model.blocks
            return [*block.encoders, *block.splits], block.theta.tolist(), str(result.trees)

    told, distance = run_both((lambda: run(city), lambda: run("hill")))
    assert told[0] == told[1]
    assert distance < 10


def test_under_noise_no_name_is_counted_nor_are_the_rows_without_one() -> None:
    def shown(unnamed: int, rare: int) -> list[Any]:
        names = [None] * unnamed + ["island"] * rare + ["hill"] * (ROWS - unnamed - rare)
        with tp.Federation({"people": named(people(), names)}) as owners:
            client, found = owners._clients["people"], list[Any]()
            inner = client.answer

            def answer(message: Any) -> Any:
                told = inner(message)
                found.extend(told.columns[1:] if isinstance(told, FeatureStatistics) else ())
                return told

            client.answer = answer  # type: ignore[method-assign]
            owners.train("SELECT p.x, p.city, p.y FROM people p", label="y", privacy=NOISE, **PRIVATE[0])
        return [(column.categories, column.weights.tolist(), column.missing) for column in found]

    assert shown(10, 20) == shown(40, 60) == [(["hill", "island"], [1.0, 1.0], 1.0)]


def test_under_noise_names_of_several_columns_and_of_subqueries_do_not_leave() -> None:
    given: dict[str, Any] = {"label": "y", "privacy": NOISE, "model": "logistic", "algorithm": "sgd", "epochs": 1}
    tables = {"people": people().append_column("street", pa.array([f"street {k % 9}" for k in range(ROWS)]))}
    with tp.Federation(tables) as owners:
        for feature, source in (
            ("CASE WHEN p.street = 'street 7' THEN p.city ELSE '' END AS c", "people p"),
            ("p.city", "(SELECT id, x, city, y FROM people WHERE id = 7) p"),
            ("p.city", "(SELECT id, max(x) AS x, min(city) AS city, max(y) AS y FROM people GROUP BY id) p"),
        ):
            with pytest.raises(PolicyError, match="would tell of single rows"):
                owners.train(f"SELECT p.x, {feature}, q.y FROM {source} JOIN people q ON p.id = q.id", **given)
