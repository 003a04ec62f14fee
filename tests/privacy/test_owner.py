"""An owner's account over all jobs: budgets hold, repetition is free, and a server that asks for more gets nothing."""

from __future__ import annotations

import itertools
import secrets
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace
from tests.privacy.test_runs import BOUNDS, QUERY, Tap, tables

import tablepuppet as tp
from tablepuppet.algorithms.sgd.rounds import SgdUpdate
from tablepuppet.client import Client
from tablepuppet.errors import PolicyError
from tablepuppet.exchanges.labels import Labels
from tablepuppet.exchanges.parts import Evaluate, Release
from tablepuppet.exchanges.prediction import ScoreRows
from tablepuppet.exchanges.proposal import ProposeContract
from tablepuppet.exchanges.registry import REQUESTS, RESPONSES
from tablepuppet.exchanges.schema import CloseJob, DescribeTable, OpenScan
from tablepuppet.models.spec import ModelSpec
from tablepuppet.owner.owner_files import own_secret
from tablepuppet.owner.owner_log import OwnerLog
from tablepuppet.owner.policy import LabelRules, Policy, TableRules
from tablepuppet.owner.releases import Releases, bound_reach
from tablepuppet.owner.scans import ScanUse
from tablepuppet.owner.tables import ClientTables
from tablepuppet.privacy.accounting import Mechanism, gaussian_noise
from tablepuppet.privacy.analyst import AnalystBudget
from tablepuppet.privacy.ledger import Account, Spending, TableBudget
from tablepuppet.privacy.options import FeaturePrivacy, LabelPrivacy
from tablepuppet.protocol.base import Failure, Predictions
from tablepuppet.protocol.codec import decode, encode
from tablepuppet.protocol.columns import NumberEncoder
from tablepuppet.protocol.contract import BlockTerms, Column, Contract, ScanTerms, Training, fingerprint
from tablepuppet.sources.source import open_source

FEATURES = {"epsilon": 2.0, "cap": 5, "bounds": BOUNDS}


def federation(**rules: Any) -> tp.Federation:
    return tp.Federation(tables(), policies={"users": Policy(**rules), "rides": Policy(**rules)})


def train(owners: tp.Federation, seed: int = 0, **privacy: Any) -> tp.Result:
    given: dict[str, Any] = {"allow_reconstruction": True} | privacy
    return owners.train(
        QUERY, label="late", model="logistic", algorithm="sgd", batch_size=None, epochs=2, seed=seed, privacy=given
    )


def test_labels_cost_once_however_often_they_are_asked_for() -> None:
    budget = {"rides": TableBudget(label=3.0)}
    with federation(budget=budget) as owners:
        train(owners, label={"epsilon": 2.0})
        train(owners, seed=1, label={"epsilon": 2.0})
        account = owners._clients["rides"].log.account
        assert account.spent("rides", "label") == 2.0
        with pytest.raises(PolicyError, match=r"ε = 3 over all jobs, of which 2 is spent.*rule budget\.rides\.label"):
            train(owners, label={"epsilon": 1.5})
        train(owners, label={"epsilon": 0.5})
        with pytest.raises(PolicyError, match="without noise"):
            train(owners)


def test_features_add_up_over_jobs_until_the_budget_is_spent() -> None:
    budget = {"users": TableBudget(features=3.5)}
    with federation(budget=budget) as owners:
        train(owners, features=FEATURES)
        first = owners._clients["users"].log.account.spent("users", "features", 1e-5)
        assert first == pytest.approx(2.0, rel=0.02)
        train(owners, features=FEATURES)
        second = owners._clients["users"].log.account.spent("users", "features", 1e-5)
        assert first < second < 2 * first
        with pytest.raises(PolicyError, match=r"budget of features of users is ε = 3\.5 over all jobs"):
            train(owners, features=FEATURES)
        with pytest.raises(PolicyError, match="without noise"):
            train(owners)


def test_no_budget_is_exceeded_by_a_hundredth() -> None:
    budget = TableBudget(label=1.0, features=1.0, analyst=AnalystBudget(epsilon=1.0))
    log, noise = OwnerLog(), gaussian_noise(1.0, 1e-5, 1, 1.0)

    def spend(what: Any, name: str, **given: Any) -> None:
        log.spend(Spending(table="t", what=what, name=name, asker="ann", period="2026", **given), budget=budget)

    spend("label", "first", epsilon=0.6)
    for what, little, enough in (
        ("label", {"epsilon": 0.41}, {"epsilon": 0.4}),
        ("features", {"noise": 0.99 * noise, "steps": 1}, {"noise": noise, "steps": 1}),
        ("analyst", {"noise": 0.99 * noise, "steps": 1}, {"noise": noise, "steps": 1}),
    ):
        with pytest.raises(PolicyError, match=rf"budget\.t\.{what}"):
            spend(what, "too much", **little)
        spend(what, "enough", **enough)
    releases = Releases(Policy(labels=LabelRules(epsilon=1.0)))
    releases.charge_label("t", ("t.y",), 0.6, "first")
    with pytest.raises(PolicyError, match=r"labels\.epsilon"):
        releases.charge_label("t", ("t.x", "t.y"), 0.41, "of two columns")


def test_noise_is_charged_where_the_rows_that_it_covers_are_bounded() -> None:
    one = ScanUse("t", (), frozenset(), stability=3)
    assert bound_reach(one) == 3
    for use in (replace(one, stability=None), replace(one, others=(one,))):
        with pytest.raises(PolicyError, match="any number of its rows"):
            bound_reach(use)
        with pytest.raises(PolicyError, match="any number of its rows"):
            Releases(Policy()).charge_whole_model("job", use, (Mechanism(1.0, 5),))
    releases = Releases(Policy())
    releases.charge_whole_model("job", one, (Mechanism(1.0, 5),))
    with pytest.raises(PolicyError, match="counts what a row of one table costs in two ways"):
        releases.charge_whole_model("job", one, (Mechanism(1.0, 4),))


def test_a_model_of_which_a_part_was_paid_for_is_paid_for() -> None:
    budget, log = TableBudget(features=1.0), OwnerLog()
    some, more = (Spending(table="t", what="features", name=name, noise=8.0, steps=1) for name in ("a", "b"))
    log.spend(some, budget=budget)
    log.spend(some, budget=budget)  # the same again
    with pytest.raises(PolicyError, match=r"budget\.t\.features"):
        log.spend(some, msgspec.structs.replace(more, noise=1.0), budget=budget)
    log.spend(some, more, budget=budget)
    assert log.account.spendings == (some, more)


def test_numbers_of_a_row_add_up_over_all_columns_that_they_may_be_made_of() -> None:
    told: list[tuple[Any, str, int, tuple[str, ...]]] = [
        ("scores", "a", 1, ("t.x",)), ("predictions", "b", 4, ("t.x", "t.y")), ("scores", "c", 16, ()),
        ("predictions", "b", 2, ("t.x", "t.y")), ("scores", "a", 1, ("t.x",)),
    ]  # fmt: skip
    account = Account()
    for what, name, count, columns in told:
        account = account.plus(Spending(table="t", what=what, name=name, numbers=count, columns=columns))
    asked: dict[tuple[str, ...], int] = {("t.x",): 21, ("t.y",): 20, ("t.z",): 16, (): 21, ("t.y", "t.z"): 20}
    assert {columns: account.shown("t", columns) for columns in asked} == asked
    assert account.shown("t", ("t.x",), but="b") == 17
    assert account.shown("u", ("t.x",)) == 0
    labels = [("p", 0.5, ("t.y",)), ("q", 0.25, ("t.y", "t.z")), ("r", 0.125, ())]
    for name, epsilon, columns in labels:
        account = account.plus(Spending(table="t", what="label", name=name, epsilon=epsilon, columns=columns))
    assert [account.told_of_labels("t", [c]) for c in ("t.x", "t.y", "t.z")] == [0.125, 0.875, 0.375]


def test_a_job_under_the_name_of_one_that_is_over_pays_for_itself() -> None:
    releases, use = Releases(Policy()), ScanUse("t", (), frozenset())
    for _ in range(2):
        for part in range(2):  # of one job: one release
            assert releases.charge_whole_model("job", use, (Mechanism(1.0, 5),)), part
        releases.close_job("job")
    assert len(releases.log.account.spendings) == 2


def check_contract(policy: Policy, use: ScanUse, *roles: Any, told: tuple[str, ...] = (), **given: Any) -> None:
    """Judges training on a scan that has an expression for each of some roles; labels of `told` left under noise."""
    releases = Releases(policy)
    if told:
        releases.charge_label("t", told, 0.1, "told")
    scan = ScanTerms(0, use.table, tuple(Column("x", (role,)) for role in roles), None)
    agreed: dict[str, Any] = {"asker": "ann", "label": "y", "scans": (scan,), "blocks": (), "training": TRAINING}
    releases.check_contract(Contract(**({"purpose": "train"} | agreed | given)), {0: use})


TRAINING = msgspec.convert(
    {"algorithm": {}, "model": {}, "epochs": 1, "batch_size": None, "l2": 0.0, "has_weights": False, "releases": True},
    Training,
)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_plain_values_of_every_table_behind_a_subquery_stay_where_one_has_a_budget(place: int) -> None:
    bases = [ScanUse(table, (frozenset(),) * 2, frozenset()) for table in "abc"]
    use, table = replace(bases[0], others=tuple(bases[1:])), "abc"[place]
    labels, features = (Policy(budget={table: b}) for b in (TableBudget(label=9.0), TableBudget(features=9.0)))
    noisy: dict[str, Any] = {"label_privacy": LabelPrivacy(epsilon=1.0), "feature_privacy": FeaturePrivacy(epsilon=1.0)}
    refused: list[tuple[Policy, str, str]] = [
        (labels, "label", "train"), (labels, "label", "explain"), (labels, "label", "evaluate"),
        (features, "feature", "train"), (features, "feature", "explain"),
    ]  # fmt: skip
    for policy, role, purpose in refused:
        with pytest.raises(PolicyError, match=rf"without noise.*budget\.{table}\."):
            check_contract(policy, use, role, "key", purpose=purpose)
        check_contract(policy, use, role, "key", purpose=purpose, **noisy)
    with pytest.raises(PolicyError, match="without noise"):
        Releases(features).charge_whole_model("job", use, ())
    check_contract(labels, use, "feature", "key")
    check_contract(features, use, "label", "key")
    check_contract(features, use, "feature", "key", training=None)
    check_contract(labels, use, "label", "key", purpose="predict")


def test_a_column_that_left_as_noisy_labels_plays_no_other_role_unless_its_owner_names_roles() -> None:
    none, y = frozenset[str](), frozenset({"Y"})
    limited = (Policy(labels=LabelRules(epsilon=1.0)), Policy(budget={"t": TableBudget(label=1.0)}))
    named = replace(limited[0], tables={"t": TableRules(features=("y",))})
    label = ScanUse("t", (y, none), none)
    ways = [
        (replace(label, columns=(none, y)), role)
        for role in ("feature", "key", "weight", "split", "identifier", "cutoff", "label")
    ]
    ways += [(replace(label, filter=y), "key"), (replace(label, grouping=y), "key")]
    for use, role in ways:
        for place in (use, ScanUse("u", (none, none), none, others=(use,))):
            if role == "label":
                check_contract(limited[0], place, "label", role, told=("t.y",), label_privacy=LabelPrivacy(epsilon=0.1))
                continue
            for policy in limited:
                with pytest.raises(PolicyError, match=r"column y left under noise|column Y left under noise"):
                    check_contract(policy, place, "label", role, told=("t.y",), purpose="predict")
                check_contract(policy, place, "label", role, told=("t.z",), purpose="predict")
            for policy in (Policy(), named):
                check_contract(policy, place, "label", role, told=("t.y",), purpose="predict")


@pytest.mark.parametrize("noisy", [{"features": FEATURES}, {"predictions": {"mode": "local", "epsilon": 4.0}}], ids=str)
def test_a_server_does_not_train_more_models_than_the_account_counts(noisy: dict[str, Any]) -> None:
    """Each would have noise of its own, and they would average."""
    with federation() as owners:
        tap = Tap(owners)
        train(owners, **noisy)
        client, opened = owners._clients["users"], [m for m in tap.asked(OpenScan) if m.table == "users"]
        [honest] = [m for m in tap.asked(ProposeContract) if "users" in m.contract.tables]
        changes: list[dict[str, Any]] = [{"fits": 5}, {"others": (honest.contract.training,)}]
        for number, change in enumerate(changes):
            for message in opened:
                client.answer(msgspec.structs.replace(message, job=f"job {number}"))
            contract = msgspec.structs.replace(honest.contract, **change)
            with pytest.raises(PolicyError, match="several models, and noise on features is counted for one"):
                client.answer(ProposeContract(job=f"job {number}", contract=contract))


def test_an_account_outlives_its_process_and_is_never_half_written(tmp_path: Path) -> None:
    spending = Spending(table="t", what="label", name="a", epsilon=1.0)
    OwnerLog(tmp_path / "log.jsonl").spend(spending)
    again = OwnerLog(tmp_path / "log.jsonl")
    assert again.account == Account((spending,))
    with pytest.raises(PolicyError, match="of which 1 is spent"):
        again.spend(msgspec.structs.replace(spending, name="b"), budget=TableBudget(label=1.5))
    assert OwnerLog(tmp_path / "log.jsonl").account == Account((spending,))
    (tmp_path / "log.jsonl").write_bytes(b"{\n")
    with pytest.raises(PolicyError, match="cannot be read"):
        OwnerLog(tmp_path / "log.jsonl")
    assert own_secret(tmp_path / "secret") == own_secret(tmp_path / "secret")
    assert (tmp_path / "secret").stat().st_mode & 0o077 == 0


def test_labels_get_the_noise_they_had_after_a_restart() -> None:
    seen = []
    for _ in range(2):
        with tp.Federation(tables(), key=b"k" * 32) as owners:
            tap = Tap(owners)
            train(owners, label={"epsilon": 1.0})
            answers = [decode(f, RESPONSES) for f in tap.up]
            seen.append(next(a.values for a in answers if isinstance(a, Labels)))
    assert np.array_equal(seen[0], seen[1])


def test_more_noisy_gradients_than_the_ledger_counts_are_refused() -> None:
    with federation() as owners:
        tap = Tap(owners)
        train(owners, features=FEATURES)
        requests = [decode(f, REQUESTS) for f in tap.down]
        client = owners._clients["users"]
        for request in requests:
            is_own = not isinstance(request, SgdUpdate | Evaluate | Release | CloseJob | DescribeTable)
            if is_own and getattr(request, "table", "users") == "users":
                decode(client.handle(encode(request)), RESPONSES)
        update = next(r for r in requests if isinstance(r, SgdUpdate) and r.signal is not None and len(r.signal) <= 30)
        answers = [decode(client.handle(encode(update)), RESPONSES) for _ in range(3)]
    assert [type(a) for a in answers] == [Predictions, Predictions, Failure]
    assert "covers 2 noisy gradients" in answers[2].message


def scoring_client(policy: Policy) -> Client:
    table = pa.table({name: [0.0, 2.0**-40, 1.0] for name in "abc"})  # 40 bits each
    return Client("owner", ClientTables({"t": open_source(table, "t")}), policy)


def ask(client: Client, theta: list[float]) -> Any:
    """Applies a model under a contract of its own."""
    plain = NumberEncoder(mean=np.zeros(1), scale=np.ones(1), fill=np.zeros(1), has_missing=False)
    job, texts = secrets.token_hex(8), ['"a"', '"b"', '"c"']
    name = fingerprint([plain] * 3, np.array(theta)[:, None], ModelSpec(kind="linear"), 1)
    scan = ScanTerms(0, "t", tuple(Column(text, ("feature",)) for text in texts), None)
    block = BlockTerms("t", 0, (0, 1, 2), model=name)
    contract = Contract(purpose="predict", asker="server", label="y", scans=(scan,), blocks=(block,))
    client.answer(OpenScan(job=job, scan=0, table="t", columns=texts))
    client.answer(ProposeContract(job=job, contract=contract))
    request = ScoreRows(
        job=job,
        scan=0,
        columns=[0, 1, 2],
        rows=np.arange(3),
        encoders=[plain, plain, plain],
        theta=np.array(theta)[:, None],
        model=ModelSpec(kind="linear"),
        name="t",
        outputs=1,
    )
    return client.answer(request)


def test_a_server_that_asks_with_unit_vectors_does_not_read_the_features() -> None:
    client = scoring_client(Policy())
    ask(client, [1.0, 0.0, 0.0])
    ask(client, [1.0, 0.0, 0.0])  # the same model again tells nothing new
    with pytest.raises(
        PolicyError, match=r"2 exact numbers of each row.*128 bits.*rule allow_reconstruction"
    ) as refused:
        ask(client, [0.0, 0.0, 1.0])
    assert "\n" not in str(refused.value)
    careful = scoring_client(Policy(allow_reconstruction=False))
    ask(careful, [1.0, 0.0, 0.0])
    trusting = scoring_client(Policy(allow_reconstruction=True))
    for k in range(3):
        ask(trusting, np.eye(3)[k].tolist())


def test_an_owner_can_end_training_before_predictions_give_its_rows_away() -> None:
    with federation(allow_reconstruction=False) as owners, pytest.raises(PolicyError, match="allow_reconstruction"):
        owners.train(QUERY, label="late", model="logistic", algorithm="newton", epochs=20)


def test_the_papers_hashes_are_warned_of() -> None:
    with federation() as owners, pytest.warns(tp.errors.PrivacyWarning, match="hides no key"):
        train(owners, keys="sha256")


def test_a_table_joined_with_itself_pays_for_both_places() -> None:
    edges = pa.table(
        {"k": [0, 1, 2, 3] * 20, "n": [1, 2, 3, 0] * 20, "x": np.linspace(-1, 1, 80), "y": [True, False] * 40}
    )
    query = "SELECT a.x, b.x AS x2, a.y FROM e a JOIN e b ON a.n = b.k"
    given = {
        "features": {"epsilon": 1.0, "cap": 3, "clip": 10.0, "bounds": {"x": (-1, 1), "x2": (-1, 1)}},
        "allow_reconstruction": True,
    }
    with tp.Federation({"e": edges}) as owners:
        plan = owners.explain(query, label="y", algorithm="sgd", epochs=3, batch_size=None, privacy=given)
    outsider = [r for r in plan.ledger.releases if r.observer == "outsider"]
    assert len(outsider) == 1  # a batch is one for both places, and so is the figure
    assert outsider[0].multiplicity == 6
    assert plan.ledger.epsilon("features", "e", "outsider") == pytest.approx(1.0, rel=5e-3)
    model, noise = plan.private.noise.model, plan.private.noise.deviations
    assert model is not None
    [counted] = model.mechanisms("e", noise)
    for here, there in itertools.product(range(4), repeat=2):  # joined rows of a batch that a row is in, at each place
        through = [there * model.across(0), here * model.across(1)]  # the other place's signal
        own = [clip * bool(rows) for clip, rows in zip(model.clips, (here, there), strict=True)]
        assert counted.moved(here + there) >= np.linalg.norm((np.array(own) + through) / noise) or not here + there


def test_leaves_of_a_table_joined_with_itself_have_noise_for_both_places() -> None:
    edges = pa.table({"k": np.arange(40) % 4, "n": np.arange(1, 41) % 4, "x": np.linspace(-1, 1, 40)})
    edges = edges.append_column("y", pa.array(np.arange(40) % 2 == 0))
    given = {"features": {"epsilon": 1.0, "cap": 3, "bounds": {"x": (-1, 1), "x2": (-1, 1)}}}
    trees: dict[str, Any] = {"model": "boosted", "splits": "random", "trees": 2, "depth": 2}
    with tp.Federation({"e": edges}) as owners:
        query = "SELECT a.x, b.x AS x2, a.y FROM e a JOIN e b ON a.n = b.k"
        plan = owners.explain(query, label="y", **trees, privacy=given | {"allow_reconstruction": True})
    [release] = plan.ledger.releases
    assert release.multiplicity == 6
    assert release.spent() == pytest.approx(1.0, rel=5e-3)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("algorithm", "mode"), [("sgd", "trusted"), ("admm", "trusted"), ("sgd", "local")])
def test_an_account_comes_to_what_the_ledger_says(algorithm: str, mode: str) -> None:
    chance = np.random.default_rng(0)
    users = pa.table({"k": np.arange(20), "x": chance.uniform(-1, 1, 20)})
    rides = pa.table({"k": chance.integers(0, 20, 200), "z": chance.uniform(-1, 1, 200), "y": chance.random(200) < 0.5})
    given: dict[str, Any] = {
        "features": {"epsilon": 1.0, "cap": 8, "bounds": {"x": (-1, 1), "z": (-1, 1)}},
        "allow_reconstruction": True,
    }
    if mode == "local":
        given |= {"predictions": {"mode": "local", "epsilon": 4.0}}
    with tp.Federation({"users": users, "rides": rides}) as owners:
        query = "SELECT u.x, r.z, r.y FROM rides r JOIN users u ON r.k = u.k"
        result = owners.train(query, label="y", algorithm=algorithm, epochs=3, batch_size=50, privacy=given)
        for table in ("users", "rides"):
            account = owners._clients[table].releases.log.account
            told = result.privacy.epsilon("features", table, "outsider")
            assert account.spent(table, "features", 1e-5) == pytest.approx(told, rel=1e-6)
            shown = result.privacy.epsilon("predictions", table, "server")
            assert account.spent(table, "noisy predictions", 1e-5) == pytest.approx(shown, rel=1e-6)
            assert (shown > 0) == (mode == "local")
    assert any(line.startswith("all that leaves") for line in result.privacy.lines()) == (mode == "local")
