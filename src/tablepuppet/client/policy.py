"""Policy: what an owner lets leave, whatever the server asks.

    minimum_rows = 50            # fewer distinct rows of a table than this never take part, nor are told apart by WHERE
    minimum_difference = 50      # jobs are about the same rows, or about rows that differ by so many
    keys_in_plain = false        # join keys leave as tokens only
    keys_need_dh = true          # …and only such as one leaking client does not open (privacy.md, Join keys)
    max_blinded_keys = 100000    # of other owners, in a job: so many guesses a server has that another client helps
    second_moments = false       # no exact TᵀT: newton and admm(union="exact") on a partitioned table are refused
    minimum_clients = 3          # statistics, gradients, parameters leave only in masked sums over so many clients
    release_parameters = true    # false: trained parameters stay here, and I predict with them
    predictions = true           # a trained model may be applied to my rows, by default unless their features have a
                                 # budget; "held": only one whose part I hold
    identifiers = true           # key values may be shown beside predictions; by default not under the first two rules
    own_noise = true             # what I add to gradients is enough by itself, and no share of all clients' noise
    max_splits = 50              # boosted trees may ask at most so many distinct splits of every row of a table
    allow_reconstruction = false # no more predictions of a row, in training or after, than leave its features unknown

    [labels]
    leave = true                 # false: no label leaves at all
    epsilon = 2.0                # …and only randomised, with at most this ε

    [budget.orders]              # what all jobs together may spend of a table; it leaves under noise only
    label = 6.0                  # ε of labels
    features = 4.0               # ε of features towards outsiders
    delta = 1e-5

    [tables.orders]              # a table that is named here may be used for this and nothing else
    features = ["quantity", "hour"]
    keys = ["item_id", "card_id"]
    labels = ["returned"]
    filters = ["quantity"]       # columns whose values a WHERE may look at; by default the keys
    texts = ["comment"]          # features that name nearly every row, and may leave as names of categories

In: such a file's rules (`read_policy`), then every request before it is answered. Out: nothing, or
PolicyError: one sentence that names the rule.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from tablepuppet import protocol as m
from tablepuppet.algorithms.boosting import messages as trees
from tablepuppet.errors import PolicyError
from tablepuppet.privacy.ledger import TableBudget
from tablepuppet.privacy.options import LabelPrivacy
from tablepuppet.protocol.contract import ScanTerms
from tablepuppet.tables.store import ScanUse


class LabelRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whether labels may leave, and how private they must be."""

    leave: bool = True
    epsilon: float | None = None  # None: as they are


class TableRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the columns of one table may be used for."""

    features: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    filters: tuple[str, ...] | None = None
    texts: tuple[str, ...] = ()

    def allowed(self, role: str) -> frozenset[str]:
        """The columns that may play a role, in lower case."""
        names = {"features": self.features, "keys": self.keys, "labels": self.labels, "texts": self.texts}.get(role)
        if names is None:
            names = self.keys if self.filters is None else self.filters
        return frozenset(name.lower() for name in names)


Use = Callable[[str, int], ScanUse]  # of a job's open scan


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An owner's rules. Without a file everything that the messages allow is allowed."""

    ask: bool = False  # whether a person approves every contract (tables/approvals.py)
    minimum_rows: int = 1
    minimum_difference: int | None = None  # rows by which two agreed sets of rows differ, or not at all; None: as above
    minimum_clients: int = 1
    keys_in_plain: bool = True
    keys_need_dh: bool = False
    max_blinded_keys: int | None = None
    second_moments: bool = True
    release_parameters: bool = True
    predictions: bool | Literal["held"] | None = None  # None: unless the features have a budget
    identifiers: bool | None = None  # None: unless keys stay hidden and rows come in numbers (the two rules above)
    allow_reconstruction: bool | None = None  # None: training as the job says; scores of few models, but in process
    max_splits: int | None = None
    own_noise: bool = False
    labels: LabelRules = LabelRules()
    budget: dict[str, TableBudget] = {}
    tables: dict[str, TableRules] = {}

    @property
    def difference(self) -> int:
        """Fewer rows than this must not be all that two jobs differ by."""
        return self.minimum_rows if self.minimum_difference is None else self.minimum_difference

    def check(self, request: Any, use: Use) -> None:
        """Refuses a request that breaks a rule, or that no rule decides on; `use` says what an open scan reads."""
        decide = DECISIONS.get(getattr(type(request), "stage", None))
        if decide is None:
            raise _refused("none", f"no rule decides whether a {type(request).__name__} may be answered")
        decide(self, request, use)

    def check_scan(self, use: ScanUse) -> None:
        """Refuses a scan that reads or filters by a column without any permitted use, before anything is read."""
        for other in use.others:
            self.check_scan(other)
        rules = self.tables.get(use.table)
        if rules is None:
            return
        somehow = rules.allowed("features") | rules.allowed("keys") | rules.allowed("labels")
        for columns in use.columns:
            _refuse_others(columns, somehow, f"tables.{use.table}", "be read")
        filters = rules.allowed("filters")
        _refuse_others(use.compared, filters, f"tables.{use.table}.filters", "be filtered by")
        _refuse_others(use.filter, somehow | filters, f"tables.{use.table}", "be read")

    def _schema(self, request: Any, use: Use) -> None:
        """Names and types of columns are what a query is written from; no value is among them."""

    def _scan(self, request: Any, use: Use) -> None:
        """`check_scan` decides once its expressions are read; until then no row is."""

    def _contract(self, request: m.ProposeContract, use: Use) -> None:
        """All that a job will ask for is judged before anything is read."""
        contract = request.contract
        for scan in contract.scans:
            used = use(request.job, scan.scan)
            for role in ("key", "feature", "label", "weight", "split", "identifier"):
                self._columns_of(used, scan.numbers(role), _RULE_OF[role])
            _check_protected(contract, scan, used, self.tables.get(scan.table))
            if contract.purpose == "predict" and self.minimum_rows > 1:
                _check_shown(scan, used, self.tables.get(scan.table), used.compared)
            if contract.purpose == "predict" and self._hides_values_of(scan.table):
                _check_shown(scan, used, self.tables.get(scan.table), _read_by(scan, used, "split"))
            if scan.numbers("label"):
                self._label_terms(contract.label_privacy)
                if scan.query is not None and contract.label_privacy is not None:
                    raise _refused(
                        "labels",
                        f"a subquery makes rows of its own, and each way to write it would draw the labels of "
                        f"{scan.table} anew; under label privacy take the label from the table itself",
                    )
            if scan.numbers("weight"):
                self._weight_terms()
            if scan.numbers("key"):
                self._key_terms(contract)
            if scan.numbers("identifier"):
                self._identifiers()
        clients = {scan.scan: scan.clients for scan in contract.scans}
        tables = {scan.scan: scan.table for scan in contract.scans}
        for block in contract.blocks:
            if contract.training is not None:
                self._noise_terms(contract, clients[block.scan])
                self._masked(clients[block.scan] if block.is_masked else 1)
                training = contract.training
                self._few_splits(bool(training.most_splits), training.algorithm.get("max_splits"))
                self._moments_of(training.sends_second_moments, training.name, clients[block.scan])
                if block.start or block.model:  # what they predict is seen before anything is learned here
                    self._applied(is_held=False)
            elif contract.purpose in ("predict", "evaluate"):
                self._applied(is_held=not block.model)
                if block.columns:
                    self._score_terms(contract.purpose, tables[block.scan])

    def _hides_values_of(self, table: str) -> bool:
        """Whether single values of a table are more than its owner tells: a condition's answer for a row is one."""
        return self.minimum_rows > 1 or not self.labels.leave or self.labels.epsilon is not None or table in self.budget

    def _noise_terms(self, contract: m.Contract, clients: int) -> None:
        noise = contract.feature_privacy
        self._rule(
            noise is None or not noise.shared_noise or clients < 3 or not self.own_noise,
            "own_noise",
            "this owner adds all of the noise itself, for others might not; train with "
            'privacy={"features": {"shared_noise": false, …}}',
        )

    def _key_terms(self, contract: m.Contract) -> None:
        if contract.keys == "plain":
            self._rule(self.keys_in_plain, "keys_in_plain", "join keys leave this owner as tokens only")
        self._rule(
            contract.keys == "dh" or not self.keys_need_dh,
            "keys_need_dh",
            f"join keys leave this owner blinded by all their owners only, and were asked for as {contract.keys}; "
            'use privacy={"keys": "dh"}',
        )
        if contract.keys == "dh" and self.max_blinded_keys is not None:
            self._rule(
                contract.most_keys <= self.max_blinded_keys,
                "max_blinded_keys",
                f"at most {self.max_blinded_keys:,} keys of others are blinded in a job, and it asks for "
                f'{contract.most_keys:,}; use privacy={{"keys": "dh", "max_keys": {self.max_blinded_keys}}}',
            )

    def _of_a_job(self, request: Any, use: Use) -> None:
        """What a part that was opened and started under the rules below goes on with; how often, its owner counts."""

    def _keys(self, request: m.SendKeys, use: Use) -> None:
        self._columns(request, use, request.columns, "keys")
        if request.columns and request.tokens == "plain":
            self._rule(self.keys_in_plain, "keys_in_plain", "join keys leave this owner as tokens only")

    def _classes(self, request: m.DescribeLabels, use: Use) -> None:
        self._columns(request, use, [request.column], "labels")
        self._rule(self.labels.leave, "labels.leave", "labels do not leave this owner")

    def _ids(self, request: m.FindIds, use: Use) -> None:
        self._columns(request, use, request.columns, "features")

    def _part(self, request: m.OpenPart, use: Use) -> None:
        self._columns(request, use, request.columns, "features")
        self._minimum(request, use)
        if not request.wants_key:
            self._masked(1)

    def _statistics(self, request: m.SumStatistics, use: Use) -> None:
        self._masked(len({peer.client for peer in request.peers}))

    def _second_moments(self, request: m.MultiplyGram, use: Use) -> None:
        self._moments("a product with the second moments of features")

    def _parameters(self, request: m.Release | trees.ReleaseSplits, use: Use) -> None:
        self._release("they are kept here")

    def _pool(self, request: m.RevealFeatures, use: Use) -> None:
        self._release("a model that is fitted at the server is known there")

    def _score(self, request: m.ScoreRows | trees.AskRows, use: Use) -> None:
        self._columns(request, use, request.columns, "features")
        self._applied(is_held=False)

    def _score_own(self, request: m.ScoreOwnRows | trees.AskOwnRows, use: Use) -> None:
        self._columns(request, use, request.columns, "features")
        self._applied(is_held=True)

    def _applied(self, *, is_held: bool) -> None:
        allowed = self.predictions in (None, True) or (is_held and self.predictions == "held")
        self._rule(allowed, "predictions", _PREDICTIONS[self.predictions])

    def _score_terms(self, purpose: str, table: str) -> None:
        """Scores are computed from exact features, whatever noise a model was trained with."""
        budget = self.budget.get(table)
        if budget is None or budget.features is None:
            return
        if purpose == "evaluate":
            raise _refused(
                f"budget.{table}.features",
                f"features of {table} leave under noise only, and metrics would be computed from them as they are; "
                "measure the model on rows of your own",
            )
        if self.predictions is None:
            raise _refused(
                f"budget.{table}.features",
                f"features of {table} leave under noise only, and scores would be computed from them as they are; its "
                "owner can allow that with predictions = true",
            )

    def _identify(self, request: m.SendIdentifiers, use: Use) -> None:
        self._columns(request, use, request.columns, "keys")
        self._identifiers()

    def _identifiers(self) -> None:
        allowed = self.identifiers
        if allowed is None:
            allowed = self.keys_in_plain or self.minimum_rows == 1
        self._rule(allowed, "identifiers", "key values are not shown beside predictions; predict with key=[]")

    def _columns(self, request: Any, use: Use, columns: Collection[int], role: str) -> None:
        self._columns_of(use(request.job, request.scan), columns, role)

    def _columns_of(self, scan: ScanUse, columns: Collection[int], role: str) -> None:
        for base in (scan, *scan.others):
            rules = self.tables.get(base.table)
            if rules is None:
                continue
            for column in columns:
                _refuse_others(base.columns[column], rules.allowed(role), f"tables.{base.table}.{role}", _AS[role])

    def _labels(self, request: m.SendLabels, use: Use) -> None:
        self._columns(request, use, [request.column], "labels")
        self._sides(request, use)
        self._label_terms(request.privacy)

    def _sides(self, request: m.SendLabels | m.SendSides, use: Use) -> None:
        split = [c for c in (request.test_column, request.validation_column) if c is not None]
        self._columns(request, use, split, "filters")

    def _label_terms(self, given: LabelPrivacy | None) -> None:
        self._rule(self.labels.leave, "labels.leave", "labels do not leave this owner")
        limit = self.labels.epsilon
        if limit is not None and (given is None or given.epsilon > limit):
            found = "the job asks for them as they are" if given is None else f"the job has ε = {given.epsilon:g}"
            raise _refused(
                "labels.epsilon",
                f"labels leave only randomised, with ε of at most {limit:g}, and {found}; "
                f'train with privacy={{"label": {{"epsilon": {limit:g}}}}}',
            )

    def _weights(self, request: m.SendWeights, use: Use) -> None:
        """A weight is a value of a row that leaves, as a label does; and there is no randomised form of it."""
        self._columns(request, use, [request.column], "labels")
        self._weight_terms()

    def _weight_terms(self) -> None:
        self._rule(self.labels.leave, "labels.leave", "neither labels nor weights leave this owner")
        if self.labels.epsilon is not None:
            raise _refused("labels.epsilon", "labels leave only randomised, and weights cannot; train without weight")

    def _minimum(self, request: m.OpenPart, use: Use) -> None:
        rows = request.train_rows
        count = use(request.job, request.scan).rows() if rows is None else distinct_rows(rows)
        if count < self.minimum_rows:
            raise _refused(
                "minimum_rows",
                f"at least {self.minimum_rows:,} distinct rows must take part, and fewer do; filter fewer rows out",
            )

    def _training(self, request: m.StartPart[Any], use: Use) -> None:
        self._masked(max(1, len({peer.client for peer in request.peers})))
        options = request.algorithm
        if request.clients > 1:
            self._release("the owners of a table agree on them through the server")
        self._moments_of(options.sends_second_moments, options.name, request.clients)

    def _moments_of(self, are_sent: bool, name: str, clients: int) -> None:
        if clients > 1 and are_sent:
            self._moments(f'algorithm="{name}" sums them over the owners of a table')

    def _sketch(self, request: trees.SketchFeatures, use: Use) -> None:
        self._masked(1)
        self._release("the owners of a table agree on bins through the server")

    def _trees(self, request: trees.StartTrees, use: Use) -> None:
        self._masked(max(1, len({peer.client for peer in request.peers})))
        self._few_splits(True, request.algorithm.max_splits)

    def _few_splits(self, are_trees: bool, most: int | None) -> None:
        self._rule(
            not are_trees or self.allow_reconstruction is not False or most is not None or self.max_splits is not None,
            "allow_reconstruction",
            "boosted trees ask bits of every row, and many of them tell its features; train with max_splits",
        )

    def _masked(self, clients: int) -> None:
        if clients < self.minimum_clients:
            raise _refused(
                "minimum_clients",
                f"what is learnt from this owner's rows leaves only in masked sums over at least "
                f"{self.minimum_clients} clients of a table, and here they would be {clients}",
            )

    def _moments(self, why: str) -> None:
        self._rule(
            self.second_moments,
            "second_moments",
            f"exact second moments do not leave this owner ({why}); use an algorithm that sends none",
        )

    def _release(self, why: str) -> None:
        self._rule(
            self.release_parameters, "release_parameters", f"trained parameters do not leave this owner, and {why}"
        )

    def check_exposure(self, numbers: int, enough: int, what: str) -> None:
        """Refuses exact numbers of a row that would be enough to know its features."""
        if numbers >= enough:
            raise _refused(
                "allow_reconstruction",
                f"{what} would show {numbers:,} exact numbers of each row, over all jobs, and {enough:,} may be enough "
                "to reconstruct it",
            )

    def _rule(self, holds: bool, rule: str, why: str) -> None:
        if not holds:
            raise _refused(rule, why)


def distinct_rows(rows: m.RowNumbers) -> int:
    """How many different rows; −1 is none. A server sends them ascending, and need not be believed."""
    found = rows if int(rows.min(initial=0)) >= 0 else rows[rows >= 0]
    return len(found) if bool((found[1:] > found[:-1]).all()) else len(np.unique(found))


# By stage of a request: what decides. A stage that is not here is refused.
DECISIONS: dict[m.Stage | None, Callable[[Policy, Any, Use], None]] = {
    "schema": Policy._schema,
    "scan": Policy._scan,
    "propose": Policy._contract,
    "count": Policy._of_a_job,
    "keys": Policy._keys,
    "blind": Policy._of_a_job,
    "classes": Policy._classes,
    "labels": Policy._labels,
    "weights": Policy._weights,
    "find ids": Policy._ids,
    "part": Policy._part,
    "summed statistics": Policy._statistics,
    "encode": Policy._of_a_job,
    "start": Policy._training,
    "sketch": Policy._sketch,
    "start trees": Policy._trees,
    "check trees": Policy._of_a_job,
    "figure": Policy._of_a_job,
    "second moments": Policy._second_moments,
    "seal": Policy._of_a_job,
    "step": Policy._of_a_job,
    "combine": Policy._of_a_job,
    "settle": Policy._of_a_job,
    "evaluate": Policy._of_a_job,
    "keep": Policy._of_a_job,
    "release": Policy._parameters,
    "hold": Policy._of_a_job,
    "pool": Policy._pool,
    "score": Policy._score,
    "score own": Policy._score_own,
    "identify": Policy._identify,
    "sides": Policy._sides,
    "close": Policy._of_a_job,
}

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
            raise _refused(
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
            raise _refused(
                f"tables.{table}.filters",
                f"{what} leave under noise only, and column {both[0]} is also {way}, which would tell of it exactly; "
                "leave that out, or ask the owner to grant it",
            )


_AS = {
    "features": "be a feature",
    "keys": "be a join key",
    "labels": "be the label or a weight",
    "filters": "be filtered by",
}
_PREDICTIONS: dict[bool | str | None, str] = {
    None: "",
    True: "",
    False: "models are not applied to this owner's rows",
    "held": "only models whose part this owner holds are applied to its rows",
}


def _refuse_others(columns: Collection[str], allowed: Collection[str], rule: str, use: str) -> None:
    for column in sorted(columns):
        if column.lower() not in allowed:
            raise _refused(rule, f"column {column} may not {use}")


def _refused(rule: str, why: str) -> PolicyError:
    return PolicyError(f"its policy refuses the request: {why} (rule {rule})")


def read_policy(path: str | Path) -> Policy:
    """The policy in a TOML file; a rule that is not known is an error, for it would protect nothing."""
    try:
        content = tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        raise PolicyError(f"the policy file {path} cannot be read; without it, nothing is answered") from None
    except tomllib.TOMLDecodeError as error:
        raise PolicyError(f"the policy file {path} is not valid TOML: {error}") from None
    try:
        return msgspec.convert(content, Policy, strict=True)
    except msgspec.ValidationError as error:
        raise PolicyError(f"the policy file {path} cannot be used: {error}") from None
