"""An owner's policy holds whatever the server asks; a refusal names the client and the rule, and no value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.prediction.shop import QUERY, tables

import tablepuppet as tp
from tablepuppet.errors import JobError, PolicyError
from tablepuppet.owner.policy import LabelRules, Policy, TableRules, read_policy
from tablepuppet.owner.scans import ScanUse
from tablepuppet.privacy.analyst import AnalystBudget
from tablepuppet.privacy.ledger import TableBudget
from tablepuppet.privacy.options import FeaturePrivacy, LabelPrivacy
from tablepuppet.protocol.contract import Contract, Moments, ScanTerms

TEXT = QUERY.format(label="returned")
ORDERS = """
    [tables.orders]
    features = ["quantity", "channel"]
    keys = ["item_id", "card_id"]
    labels = ["returned"]
"""


def shop(folder: Path, client: str, text: str) -> tp.Federation:
    file = folder / "policy.toml"
    file.write_text(text, encoding="utf-8")
    given = tables()
    items = given["items"]
    return tp.Federation({**given, "items": [items[:15], items[15:]]}, policies={client: file})


def refusal(folder: Path, client: str, text: str, query: str = TEXT, **options: Any) -> str:
    with shop(folder, client, text) as federation, pytest.raises(PolicyError) as refused:
        federation.train(query, label="returned", **options)
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_what_a_policy_allows_is_done(tmp_path: Path) -> None:
    with shop(tmp_path, "orders", ORDERS) as federation:
        result = federation.train(TEXT, label="returned")
        assert federation.predict(result).num_rows > 0


Case = tuple[str, str, dict[str, Any], str, str]  # client, policy, options; what is said, the rule
REFUSED: dict[str, Case] = {
    "a feature that is not listed": (
        "orders",
        ORDERS.replace('"channel"', ""),
        {},
        "column channel may not be read",
        "tables.orders",
    ),
    "a key as a feature": (
        "orders",
        ORDERS.replace(', "channel"', "").replace('"card_id"]', '"card_id", "channel"]'),
        {},
        "column channel may not be a feature",
        "tables.orders.features",
    ),
    "a feature as the label": (
        "orders",
        ORDERS.replace('"channel"', '"channel", "returned"').replace('["returned"]', "[]"),
        {},
        "column returned may not be the label",
        "tables.orders.labels",
    ),
    "a feature as a key": (
        "orders",
        ORDERS.replace('"channel"', '"channel", "card_id"').replace(', "card_id"]\n    labels', "]\n    labels"),
        {},
        "column card_id may not be a join key",
        "tables.orders.keys",
    ),
    "too few rows": ("cards", "minimum_rows = 1000", {}, "at least 1,000 distinct rows", "minimum_rows"),
    "labels that stay": ("orders", "[labels]\nleave = false", {}, "labels do not leave", "labels.leave"),
    "labels as they are": (
        "orders",
        "[labels]\nepsilon = 2",
        {},
        "labels leave only randomised, with ε of at most 2",
        "labels.epsilon",
    ),
    "weights as they are": (
        "orders",
        "[labels]\nepsilon = 2",
        {"weight": "quantity", "privacy": {"label": {"epsilon": 2.0}}},
        "labels leave only randomised, and weights cannot",
        "labels.epsilon",
    ),
    "second moments": (
        "items[1]",
        "second_moments = false",
        {"algorithm": "newton"},
        "exact second moments do not leave",
        "second_moments",
    ),
    "parameters of a split table": (
        "items[1]",
        "release_parameters = false",
        {},
        "trained parameters do not leave this owner, and table items has several owners",
        "release_parameters",
    ),
    "plain keys": (
        "cards",
        "keys_in_plain = false",
        {"privacy": {"keys": "plain"}},
        "join keys leave this owner as tokens only",
        "keys_in_plain",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=list(REFUSED))
def test_what_it_forbids_is_refused_in_one_sentence(
    tmp_path: Path, case: tuple[str, str, dict[str, Any], str, str]
) -> None:
    client, text, options, why, rule = case
    message = refusal(tmp_path, client, text, **options)
    assert message.startswith(f"client {client}: its policy refuses the request: {why}")
    assert message.endswith(f"(rule {rule})")


def test_a_filter_on_another_column_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, "orders", ORDERS, f"{TEXT} WHERE o.spent > 5")
    assert "column spent may not be filtered by (rule tables.orders.filters)" in message
    message = refusal(tmp_path, "orders", f'{ORDERS}    filters = ["channel"]', f"{TEXT} WHERE o.quantity > 5")
    assert "column quantity may not be filtered by" in message
    message = refusal(tmp_path, "orders", ORDERS, f"{TEXT} WHERE o.spent IS NOT NULL")
    assert "column spent may not be read" in message


def test_an_expression_uses_every_column_in_it(tmp_path: Path) -> None:
    query = TEXT.replace("o.channel", "o.quantity + o.spent AS odd")
    assert "column spent may not be read" in refusal(tmp_path, "orders", ORDERS, query)


def test_consensus_and_gradients_need_no_second_moments(tmp_path: Path) -> None:
    with shop(tmp_path, "items", "second_moments = false") as federation:
        federation.train(TEXT, label="returned", algorithm="admm", epochs=2)


def test_predictions_and_their_keys_can_be_refused(tmp_path: Path) -> None:
    with shop(tmp_path, "orders", "") as federation:
        result = federation.train(TEXT, label="returned")
    for rule in ("predictions", "identifiers"):
        with (
            shop(tmp_path, "orders", f"{rule} = false") as federation,
            pytest.raises(PolicyError, match=f"rule {rule}"),
        ):
            federation.predict(result)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("minimum_row = 5", "did you mean .minimum_rows"),
        ("minimum_rows = 'many'", "Expected `int`"),
        ("[labels]\neps = 1", "unknown field"),
        ("minimum_rows = ", "not valid TOML"),
    ],
)
def test_a_policy_that_cannot_be_understood_opens_nothing(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(PolicyError, match=why):
        shop(tmp_path, "orders", text)


def test_a_missing_policy_file_or_client_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot be read; without it, nothing is answered"):
        tp.Federation(tables(), policies={"orders": tmp_path / "none.toml"})
    with pytest.raises(JobError, match="policies name 'order', which is not a client"):
        tp.Federation(tables(), policies={"order": tmp_path / "none.toml"})


@pytest.mark.parametrize(
    ("rule", "place"),
    [
        ("minimum_rows = -50", "minimum_rows"),
        ("max_splits = -1", "max_splits"),
        ("[labels]\nepsilon = 0", "labels.epsilon"),
        ("[budget.t]\ndelta = 2", "delta"),
    ],
)
def test_a_rule_that_would_protect_nothing_is_refused(rule: str, place: str, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(rule)
    with pytest.raises(PolicyError, match=rf"cannot be used: Expected .*{place}"):
        read_policy(tmp_path / "policy.toml")


def test_what_an_owner_is_silent_about_is_not_granted() -> None:
    use = ScanUse("orders", (frozenset({"id"}),), frozenset())
    for policy in (Policy(), Policy(tables={"orders": TableRules(features=("id",))})):
        assert policy.merges == ""
        assert not any(policy.find_granted("orders", role) for role in ("cutoffs", "pairs", "filters"))
        assert not policy.find_pairs(use)
        told = ScanTerms(0, "orders", (), None, moments=(Moments("orders", "id", "results", ("b",), column=0),))
        with pytest.raises(PolicyError, match=r"tables\.orders\.cutoffs"):
            policy.check_cutoffs(use, told)


def test_a_table_that_is_named_without_columns_is_closed_and_one_whose_keys_alone_are_named_is_open() -> None:
    assert Policy().rules_of("t") is None
    for names in ({"row_key": "id"}, {"subject": "id"}, {"subject": "id", "rows_per_subject": 3}):
        assert Policy(tables={"t": TableRules(**names)}).rules_of("t") is None
    for rules in (TableRules(), TableRules(row_key="id", features=("x",)), TableRules(subject="id", filters=())):
        found = Policy(tables={"t": rules}).rules_of("t")
        assert found == rules
        assert not any(found.allowed(role) for role in ("keys", "labels", "filters", "texts", "cutoffs", "pairs"))
    keys = TableRules(keys=("K",), cutoffs=("T",))
    assert keys.allowed("filters") == {"k"}
    granted = [Policy(tables={"t": replace(keys, filters=f)}).find_granted("t", "filters") for f in (None, ("Z",), ())]
    assert granted == [set(), {"z"}, set()]  # keys may be filtered by, and are granted for nothing else
    assert keys.allowed("keys") == {"k", "t"}
    assert replace(keys, filters=("Z",)).allowed("filters") == {"z"}


def scan(**given: Any) -> ScanTerms:
    return ScanTerms(0, "t", (), None, **given)


def asks(**given: Any) -> Contract:
    return Contract(purpose="train", asker="ann", label="y", scans=(), blocks=(), **given)


SHARED = FeaturePrivacy(epsilon=1.0)
OWN = FeaturePrivacy(epsilon=1.0, shared_noise=False)
KEYS = Policy(tables={"t": TableRules(keys=("id",), pairs=("id",), cutoffs=("day",))})
PAID = Policy(budget={"t": TableBudget(features=1.0)})
OPEN = Policy(budget={"t": TableBudget(features=1.0)}, predictions=True)
PLAIN = ScanUse("t", (frozenset(), frozenset({"id"}), frozenset({"day"})), frozenset())
MOVED = Moments("t", "day", "h", ("b",), column=2)
# A check, where it passes, where it is refused, and the rule that it then names.
BORDERS: list[tuple[str, list[tuple[Policy, tuple[Any, ...]]], list[tuple[Policy, tuple[Any, ...]]], str]] = [
    (
        "check_merging",
        [
            (Policy(), (scan(), PLAIN)),
            (Policy(merge_groups=True), (scan(merges="sums"), PLAIN)),
            (Policy(merge_groups="extremes"), (scan(merges="sums"), PLAIN)),
            (Policy(merge_groups="extremes"), (scan(merges="extremes"), PLAIN)),
        ],
        [
            (Policy(), (scan(merges="sums"), PLAIN)),
            (Policy(), (scan(merges="extremes"), PLAIN)),
            (Policy(merge_groups=True), (scan(merges="extremes"), PLAIN)),
        ],
        "merge_groups",
    ),
    (
        "check_merging",
        [(Policy(merge_groups=True, minimum_clients=3), (scan(merges="sums", clients=3), PLAIN))],
        [(Policy(merge_groups=True, minimum_clients=3), (scan(merges="sums", clients=2), PLAIN))],
        "minimum_clients",
    ),
    (
        "check_merging",
        [(Policy(merge_groups=True, budget={"t": TableBudget(label=1.0)}), (scan(merges="sums"), PLAIN))],
        [(Policy(merge_groups=True, budget={"t": TableBudget(features=1.0)}), (scan(merges="sums"), PLAIN))],
        "budget.t.features",
    ),
    (
        "check_cutoffs",
        [(KEYS, (PLAIN, scan(moments=(replace(MOVED, keys=(1,)),))))],
        [
            (KEYS, (PLAIN, scan(moments=(replace(MOVED, keys=(2,)),)))),
            (KEYS, (PLAIN, scan(moments=(replace(MOVED, keys=(1, 2)),)))),
        ],
        "tables.t.pairs",
    ),
    (
        "check_label_privacy",
        [
            (Policy(), (None,)),
            (Policy(labels=LabelRules(epsilon=2.0)), (LabelPrivacy(epsilon=2.0),)),
            (Policy(labels=LabelRules(epsilon=2.0)), (LabelPrivacy(epsilon=1.0),)),
        ],
        [
            (Policy(labels=LabelRules(epsilon=2.0)), (None,)),
            (Policy(labels=LabelRules(epsilon=2.0)), (LabelPrivacy(epsilon=2.01),)),
        ],
        "labels.epsilon",
    ),
    (
        "check_label_privacy",
        [(Policy(), (LabelPrivacy(epsilon=2.0),))],
        [(Policy(labels=LabelRules(leave=False)), (LabelPrivacy(epsilon=0.01),))],
        "labels.leave",
    ),
    ("check_weights", [(Policy(), ())], [(Policy(labels=LabelRules(leave=False)), ())], "labels.leave"),
    (
        "check_keys",
        [(Policy(keys_need_dh=True), (asks(keys="dh"),)), (Policy(), (asks(keys="sha256"),))],
        [(Policy(keys_need_dh=True), (asks(keys=mode),)) for mode in ("hmac", "sha256", "plain")],
        "keys_need_dh",
    ),
    (
        "check_keys",
        [(Policy(max_blinded_keys=10), (asks(keys="dh", most_keys=10),))],
        [
            (Policy(max_blinded_keys=10), (asks(keys="dh", most_keys=11),)),
            (Policy(max_blinded_keys=0), (asks(keys="dh", most_keys=1),)),
        ],
        "max_blinded_keys",
    ),
    (
        "check_identifiers",
        [
            (Policy(), ()),
            (Policy(keys_in_plain=False), ()),
            (Policy(minimum_rows=2), ()),
            (Policy(keys_in_plain=False, minimum_rows=2, identifiers=True), ()),
        ],
        [(Policy(keys_in_plain=False, minimum_rows=2), ()), (Policy(identifiers=False), ())],
        "identifiers",
    ),
    (
        "check_noise",
        [
            (Policy(own_noise=True), (asks(), 3)),
            (Policy(own_noise=True), (asks(feature_privacy=SHARED), 2)),
            (Policy(own_noise=True), (asks(feature_privacy=OWN), 3)),
            (Policy(), (asks(feature_privacy=SHARED), 3)),
        ],
        [(Policy(own_noise=True), (asks(feature_privacy=SHARED), 3))],
        "own_noise",
    ),
    ("check_masked", [(Policy(minimum_clients=3), (3,))], [(Policy(minimum_clients=3), (2,))], "minimum_clients"),
    (
        "check_moments_of",
        [
            (Policy(second_moments=False), (True, "newton", 1)),
            (Policy(second_moments=False), (False, "sgd", 2)),
            (Policy(), (True, "newton", 2)),
        ],
        [(Policy(second_moments=False), (True, "newton", 2))],
        "second_moments",
    ),
    (
        "check_scores",
        [
            (OPEN, ("predict", "t")),
            (PAID, ("predict", "u")),
            (PAID, ("evaluate", "u")),
            (Policy(budget={"t": TableBudget(label=1.0)}), ("evaluate", "t")),
        ],
        [(PAID, ("predict", "t")), (PAID, ("evaluate", "t")), (OPEN, ("evaluate", "t"))],
        "budget.t.features",
    ),
    (
        "check_split_limit",
        [
            (Policy(), (True, None)),
            (Policy(allow_reconstruction=False), (False, None)),
            (Policy(allow_reconstruction=False), (True, 9)),
            (Policy(allow_reconstruction=False, max_splits=9), (True, None)),
        ],
        [(Policy(allow_reconstruction=False), (True, None))],
        "allow_reconstruction",
    ),
]


@pytest.mark.parametrize("case", range(len(BORDERS)))
def test_every_rule_has_its_border_where_its_documentation_has_it(case: int) -> None:
    check, passes, refused, rule = BORDERS[case]
    for policy, given in passes:
        getattr(policy, check)(*given)
    for policy, given in refused:
        with pytest.raises(PolicyError, match=rf"\(rule {rule}\)$"):
            getattr(policy, check)(*given)


def test_models_are_applied_where_predictions_say_so() -> None:
    cases: list[tuple[Any, bool, bool]] = [(None, True, True), (True, True, True), ("held", False, True)]
    for predictions, sent, held in [*cases, (False, False, False)]:
        policy = Policy(predictions=predictions)
        for is_held, is_allowed in ((False, sent), (True, held)):
            if is_allowed:
                policy.check_applied(is_held=is_held)
                continue
            with pytest.raises(PolicyError, match="rule predictions"):
                policy.check_applied(is_held=is_held)


def test_values_are_hidden_by_each_rule_that_hides_some() -> None:
    budget = TableBudget(analyst=AnalystBudget(epsilon=1.0))
    assert not Policy().hides_values_of("t")
    for given in ({"minimum_rows": 2}, {"labels": LabelRules(leave=False)}, {"labels": LabelRules(epsilon=1.0)}):
        assert Policy(**given).hides_values_of("t")
    assert [Policy(budget={"t": budget}).hides_values_of(table) for table in "tu"] == [True, False]
    assert [Policy(minimum_rows=20, minimum_difference=n).difference for n in (None, 0, 7)] == [20, 0, 7]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_rules_of_every_table_behind_a_subquery_hold(place: int) -> None:
    def use(**named: Any) -> ScanUse:
        bases = [ScanUse(f"t{n}", *((frozenset[str](),), frozenset[str]())) for n in range(3)]
        bases[place] = replace(bases[place], **named)
        return replace(bases[0], others=tuple(bases[1:]))

    policy, read = (
        Policy(tables={f"t{place}": TableRules(features=("x",), keys=("k",))}),
        {"columns": (frozenset("z"),)},
    )
    policy.check_scan(use(columns=(frozenset("x"),), filter=frozenset("k"), compared=frozenset("k")))
    for named in (read, {"filter": frozenset("z")}, {"compared": frozenset("x")}):
        with pytest.raises(PolicyError, match=rf"rule tables\.t{place}"):
            policy.check_scan(use(**named))
    policy.check_columns(use(columns=(frozenset("x"),)), [0], "features")
    for name, role in (("x", "keys"), ("k", "features"), ("x", "labels"), ("x", "filters")):
        with pytest.raises(PolicyError, match=rf"rule tables\.t{place}\.{role}"):
            policy.check_columns(use(columns=(frozenset(name),)), [0], role)
    pairs = Policy(tables={f"t{place}": TableRules(pairs=("k",))})
    assert not pairs.find_pairs(use(columns=(frozenset("z"),)))
    with pytest.raises(PolicyError, match=rf"tables\.t{place}\.subject"):
        Policy(tables={f"t{place}": TableRules(subject="id")}).check_subjects(use(), "SELECT 1")
