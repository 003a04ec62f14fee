"""What an owner's policy says of every request, and of a contract as a whole, before anything is answered.

In: a policy, a request, and what the open scans of its job read. Out: nothing, or PolicyError. A request whose stage
has no decision here is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from tablepuppet import protocol as m
from tablepuppet.algorithms.boosting import messages as trees
from tablepuppet.client.policy import Policy, TableRules, refused_by
from tablepuppet.errors import PolicyError
from tablepuppet.protocol.contract import ScanTerms
from tablepuppet.tables.store import ScanUse

Use = Callable[[str, int], ScanUse]  # of a job's open scan


def decide(policy: Policy, request: Any, use: Use) -> None:
    """Refuses a request that breaks a rule, or that no rule decides on; `use` says what an open scan reads."""
    decision = DECISIONS.get(getattr(type(request), "stage", None))
    if decision is None:
        raise refused_by("none", f"no rule decides whether a {type(request).__name__} may be answered")
    decision(policy, request, use)


def _schema(policy: Policy, request: Any, use: Use) -> None:
    """Names and types of columns are what a query is written from; no value is among them."""


def _scan(policy: Policy, request: Any, use: Use) -> None:
    """`check_scan` decides once its expressions are read; until then no row is."""


def _contract(policy: Policy, request: m.ProposeContract, use: Use) -> None:
    """All that a job will ask for is judged before anything is read."""
    contract = request.contract
    for scan in contract.scans:
        used = use(request.job, scan.scan)
        for role in ("key", "feature", "label", "weight", "split", "identifier"):
            policy.check_columns(used, scan.numbers(role), _RULE_OF[role])
        _check_protected(contract, scan, used, policy.tables.get(scan.table))
        if contract.purpose == "predict" and policy.hides_values_of(scan.table):
            asked = used.compared | _read_by(scan, used, "split")
            _check_shown(scan, used, policy.tables.get(scan.table), asked)
        if scan.numbers("label"):
            policy.check_label_privacy(contract.label_privacy)
            if scan.query is not None and contract.label_privacy is not None:
                raise refused_by(
                    "labels",
                    f"a subquery makes rows of its own, and each way to write it would draw the labels of "
                    f"{scan.table} anew; under label privacy take the label from the table itself",
                )
        if scan.numbers("weight"):
            policy.check_weights()
        policy.check_merging(scan)
        if scan.numbers("key"):
            policy.check_keys(contract)
        if scan.numbers("identifier"):
            policy.check_identifiers()
    clients = {scan.scan: scan.clients for scan in contract.scans}
    tables = {scan.scan: scan.table for scan in contract.scans}
    widths = {scan.scan: len(scan.columns) for scan in contract.scans}
    for block in contract.blocks:
        if block.scan not in widths or not all(0 <= column < widths[block.scan] for column in block.columns):
            raise PolicyError("the contract names a block of expressions that it does not have")
        if contract.training is not None:
            policy.check_noise(contract, clients[block.scan])
            policy.check_masked(clients[block.scan] if block.is_masked else 1)
            training = contract.training
            policy.check_split_limit(bool(training.most_splits), training.algorithm.get("max_splits"))
            policy.check_moments_of(training.sends_second_moments, training.name, clients[block.scan])
            if block.start or block.model:  # what they predict is seen before anything is learned here
                policy.check_applied(is_held=False)
        elif contract.purpose in ("predict", "evaluate"):
            policy.check_applied(is_held=not block.model)
            if block.columns:
                policy.check_scores(contract.purpose, tables[block.scan])


def _of_a_job(policy: Policy, request: Any, use: Use) -> None:
    """What a part that was opened and started under the rules below goes on with; how often, its owner counts."""


def _keys(policy: Policy, request: m.SendKeys, use: Use) -> None:
    _columns(policy, request, use, request.columns, "keys")
    if request.columns and request.tokens == "plain":
        policy.rule(policy.keys_in_plain, "keys_in_plain", "join keys leave this owner as tokens only")


def _groups(policy: Policy, request: m.SendGroups | m.SumGroups | m.HoldGroups, use: Use) -> None:
    policy.rule(policy.merges != "", "merge_groups", "groups are not merged with those of other owners")


def _classes(policy: Policy, request: m.DescribeLabels, use: Use) -> None:
    _columns(policy, request, use, [request.column], "labels")
    policy.rule(policy.labels.leave, "labels.leave", "labels do not leave this owner")


def _ids(policy: Policy, request: m.FindIds, use: Use) -> None:
    _columns(policy, request, use, request.columns, "features")


def _part(policy: Policy, request: m.OpenPart, use: Use) -> None:
    _columns(policy, request, use, request.columns, "features")
    _minimum(policy, request, use)
    if not request.wants_key:
        policy.check_masked(1)


def _statistics(policy: Policy, request: m.SumStatistics, use: Use) -> None:
    policy.check_masked(len({peer.client for peer in request.peers}))


def _second_moments(policy: Policy, request: m.MultiplyGram, use: Use) -> None:
    policy.check_second_moments("a product with the second moments of features")


def _parameters(policy: Policy, request: m.Release | trees.ReleaseSplits, use: Use) -> None:
    policy.check_release("they are kept here")


def _pool(policy: Policy, request: m.RevealFeatures, use: Use) -> None:
    policy.check_release("a model that is fitted at the server is known there")


def _score(policy: Policy, request: m.ScoreRows | trees.AskRows, use: Use) -> None:
    _columns(policy, request, use, request.columns, "features")
    policy.check_applied(is_held=False)


def _score_own(policy: Policy, request: m.ScoreOwnRows | trees.AskOwnRows, use: Use) -> None:
    _columns(policy, request, use, request.columns, "features")
    policy.check_applied(is_held=True)


def _identify(policy: Policy, request: m.SendIdentifiers, use: Use) -> None:
    _columns(policy, request, use, request.columns, "keys")
    policy.check_identifiers()


def _columns(policy: Policy, request: Any, use: Use, columns: Collection[int], role: str) -> None:
    policy.check_columns(use(request.job, request.scan), columns, role)


def _labels(policy: Policy, request: m.SendLabels, use: Use) -> None:
    _columns(policy, request, use, [request.column], "labels")
    _sides(policy, request, use)
    policy.check_label_privacy(request.privacy)


def _sides(policy: Policy, request: m.SendLabels | m.SendSides, use: Use) -> None:
    split = [c for c in (request.test_column, request.validation_column) if c is not None]
    _columns(policy, request, use, split, "filters")


def _weights(policy: Policy, request: m.SendWeights, use: Use) -> None:
    """A weight is a value of a row that leaves, as a label does; and there is no randomised form of it."""
    _columns(policy, request, use, [request.column], "labels")
    policy.check_weights()


def _minimum(policy: Policy, request: m.OpenPart, use: Use) -> None:
    rows = request.train_rows
    count = use(request.job, request.scan).rows() if rows is None else distinct_rows(rows)
    if count < policy.minimum_rows:
        raise refused_by(
            "minimum_rows",
            f"at least {policy.minimum_rows:,} distinct rows must take part, and fewer do; filter fewer rows out",
        )


def _training(policy: Policy, request: m.StartPart[Any], use: Use) -> None:
    policy.check_masked(max(1, len({peer.client for peer in request.peers})))
    options = request.algorithm
    if request.clients > 1:
        policy.check_release("the owners of a table agree on them through the server")
    policy.check_moments_of(options.sends_second_moments, options.name, request.clients)


def _sketch(policy: Policy, request: trees.SketchFeatures, use: Use) -> None:
    policy.check_masked(1)
    policy.check_release("the owners of a table agree on bins through the server")


def _trees(policy: Policy, request: trees.StartTrees, use: Use) -> None:
    policy.check_masked(max(1, len({peer.client for peer in request.peers})))
    policy.check_split_limit(True, request.algorithm.max_splits)


def distinct_rows(rows: m.RowNumbers) -> int:
    """How many different rows; −1 is none. A server sends them ascending, and need not be believed."""
    found = rows if int(rows.min(initial=0)) >= 0 else rows[rows >= 0]
    return len(found) if bool((found[1:] > found[:-1]).all()) else len(np.unique(found))


_RULE_OF: dict[Any, str] = {
    "key": "keys",
    "feature": "features",
    "label": "labels",
    "weight": "labels",
    "split": "filters",
    "identifier": "keys",
}


def _check_protected(contract: m.Contract, scan: ScanTerms, used: ScanUse, rules: TableRules | None) -> None:
    """What leaves under noise must not leave by another way: a filter, a split or a weight would count it exactly."""
    granted = frozenset() if rules is None or rules.filters is None else rules.allowed("filters")
    others = {
        "a filter": used.compared - granted,
        "the split": _read_by(scan, used, "split") - granted,
        "a weight": _read_by(scan, used, "weight"),
    }
    if contract.label_privacy is not None:
        also = {"a feature": _read_by(scan, used, "feature"), "a join key": _read_by(scan, used, "key")}
        _refuse_ways(_read_by(scan, used, "label"), others | also, "labels", used.table)


def _check_shown(scan: ScanTerms, used: ScanUse, rules: TableRules | None, asked: Collection[str]) -> None:
    """Scores are of rows that one knows by their keys: a condition on other columns would tell these of each row."""
    granted = frozenset() if rules is None or rules.filters is None else rules.allowed("filters")
    known = _read_by(scan, used, "key") | _read_by(scan, used, "identifier") | granted
    for column in sorted(asked):
        if column.lower() not in known:
            raise refused_by(
                f"tables.{used.table}.filters",
                "which rows a model is applied to, and which are shown as test rows, may depend on their keys, and not "
                f"on column {column}, whose values the choice would tell; predict all rows, without split, or ask the "
                "owner to grant it as a filter",
            )


def _read_by(scan: ScanTerms, used: ScanUse, role: Any) -> frozenset[str]:
    """The columns behind the expressions of a role, in lower case."""
    return frozenset(name.lower() for number in scan.numbers(role) for name in used.columns[number])


def _refuse_ways(protected: frozenset[str], ways: dict[str, frozenset[str]], what: str, table: str) -> None:
    for way, columns in ways.items():
        both = sorted(protected & {name.lower() for name in columns})
        if both:
            raise refused_by(
                f"tables.{table}.filters",
                f"{what} leave under noise only, and column {both[0]} is also {way}, which would tell of it exactly; "
                "leave that out, or ask the owner to grant it",
            )


# By stage of a request: what decides. A stage that is not here is refused.
DECISIONS: dict[m.Stage | None, Callable[[Policy, Any, Use], None]] = {
    "schema": _schema,
    "scan": _scan,
    "propose": _contract,
    "groups": _groups,
    "sum groups": _groups,
    "hold groups": _groups,
    "count": _of_a_job,
    "keys": _keys,
    "blind": _of_a_job,
    "classes": _classes,
    "labels": _labels,
    "weights": _weights,
    "find ids": _ids,
    "part": _part,
    "summed statistics": _statistics,
    "encode": _of_a_job,
    "start": _training,
    "sketch": _sketch,
    "start trees": _trees,
    "check trees": _of_a_job,
    "figure": _of_a_job,
    "second moments": _second_moments,
    "seal": _of_a_job,
    "step": _of_a_job,
    "combine": _of_a_job,
    "settle": _of_a_job,
    "evaluate": _of_a_job,
    "keep": _of_a_job,
    "release": _parameters,
    "hold": _of_a_job,
    "pool": _pool,
    "score": _score,
    "score own": _score_own,
    "identify": _identify,
    "sides": _sides,
    "close": _of_a_job,
}
