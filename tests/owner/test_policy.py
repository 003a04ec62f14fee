"""An owner's policy holds whatever the server asks; a refusal names the client and the rule, and no value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.prediction.shop import QUERY, tables

import tablepuppet as tp
from tablepuppet.errors import JobError, PolicyError
from tablepuppet.owner.policy import Policy, TableRules, read_policy
from tablepuppet.owner.scans import ScanUse
from tablepuppet.protocol.contract import Moments, ScanTerms

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
        assert not any(policy.find_granted("orders", role) for role in ("cutoffs", "pairs"))
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
    assert keys.allowed("keys") == {"k", "t"}
    assert replace(keys, filters=("Z",)).allowed("filters") == {"z"}
