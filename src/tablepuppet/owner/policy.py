"""Policy: the data that an owner lets leave, whatever the server asks (docs/policy.md lists all rules).

    minimum_rows = 50            # fewer distinct rows of a table never take part, and no WHERE separates fewer
    [labels]
    epsilon = 2.0                # labels leave only randomised, with at most this ε of a column over all jobs
    [tables.orders]              # a table that is named here may be used for this and nothing else
    features = ["quantity", "hour"]

In: such a file's rules (`read_policy`). Out: a Policy, whose checks pass or raise PolicyError: one sentence
that names the rule. A contract is judged by them, and every request by its contract (exchanges/proposal.py).
"""

import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tablepuppet.errors import PolicyError, hint
from tablepuppet.owner.scans import ScanUse
from tablepuppet.privacy.ledger import TableBudget
from tablepuppet.privacy.options import LabelPrivacy
from tablepuppet.protocol.base import MOST_CHANGED
from tablepuppet.protocol.columns import Merges
from tablepuppet.protocol.contract import Contract, ScanTerms
from tablepuppet.protocol.evidence import Signature, check_signature, read_public

AtLeastOne = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]


class LabelRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whether labels may leave, and how private they must be."""

    leave: bool = True
    epsilon: Annotated[float, Meta(gt=0)] | None = None  # None: as they are


class TableRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The permitted uses of one table's columns."""

    features: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    filters: tuple[str, ...] | None = None  # columns that a WHERE may read; None: the keys
    texts: tuple[str, ...] = ()  # features that name nearly every row, and may leave as names of categories
    cutoffs: tuple[str, ...] = ()  # times that owners of histories may learn
    pairs: tuple[str, ...] = ()  # keys that may go with these times, or come with another owner's
    row_key: str | None = None  # identifies a row in all jobs; None: all its columns
    subject: str | None = None  # whom a row is about: minimum sizes count them, and noise protects all rows of one
    rows_per_subject: Annotated[int, Meta(ge=1, le=MOST_CHANGED)] | None = (
        None  # that train under noise on features; further rows do not
    )

    @property
    def restricts(self) -> bool:
        """Whether it restricts the roles of columns; rules that only name a key let every column play every role."""
        names = TableRules(row_key=self.row_key, subject=self.subject, rows_per_subject=self.rows_per_subject)
        return names == TableRules() or self != names

    def allowed(self, role: str) -> frozenset[str]:
        """The columns that may play a role, in lower case."""
        named = {"features": self.features, "keys": (*self.keys, *self.cutoffs), "labels": self.labels}
        names = {**named, "texts": self.texts, "cutoffs": self.cutoffs, "pairs": self.pairs}.get(role)
        if names is None:
            names = self.keys if self.filters is None else self.filters
        return frozenset(name.lower() for name in names)


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An owner's rules. Without a file everything that the messages allow is allowed."""

    ask: bool = False  # whether a person approves every contract (owner/owner_files.py)
    minimum_rows: AtLeastOne = 1  # fewer distinct rows never take part, and no WHERE separates fewer
    minimum_difference: NotNegative | None = None  # rows by which two agreed sets differ, or not at all; None: as above
    minimum_clients: AtLeastOne = 1  # over which statistics, gradients and parameters leave in masked sums only
    keys_in_plain: bool = True
    keys_need_dh: bool = False  # whether keys leave only such as one leaking client does not open
    max_blinded_keys: NotNegative | None = None  # of other owners, in a job: so many guesses a server has
    second_moments: bool = True  # whether an exact TᵀT of a table with several owners leaves
    merge_groups: bool | Literal["extremes"] = False  # with groups of other owners; "extremes": minima and maxima too
    release_parameters: bool = True  # False: they stay here, and this owner predicts with them
    predictions: bool | Literal["held"] | None = None  # None: unless the features have a budget
    identifiers: bool | None = None  # None: unless keys stay hidden and rows come in numbers (the two rules above)
    allow_reconstruction: bool | None = None  # None: training as the job chooses; scores of few models, but in process
    max_splits: NotNegative | None = None  # distinct ones that boosted trees may ask of a table; no column whole
    own_noise: bool = False  # this owner's noise on gradients is enough by itself, and no share of all clients'
    labels: LabelRules = LabelRules()
    askers: dict[str, str] = {}  # who may ask, and the public key that signs its contracts; none: anyone admitted
    budget: dict[str, TableBudget] = {}
    tables: dict[str, TableRules] = {}

    @property
    def difference(self) -> int:
        """Fewer rows than this must not be all that two jobs differ by."""
        return self.minimum_rows if self.minimum_difference is None else self.minimum_difference

    def rules_of(self, table: str) -> TableRules | None:
        """The permitted uses of a table's columns; None: everything."""
        rules = self.tables.get(table)
        return rules if rules is not None and rules.restricts else None

    def find_granted(self, table: str, role: str) -> frozenset[str]:
        """The columns that the owner names for a role, in lower case; none where it is silent."""
        rules = self.rules_of(table)
        is_silent = rules is None or (role == "filters" and rules.filters is None)
        return frozenset() if rules is None or is_silent else rules.allowed(role)

    @property
    def row_keys(self) -> dict[str, str]:
        return {table: rules.row_key for table, rules in self.tables.items() if rules.row_key is not None}

    @property
    def subjects(self) -> dict[str, str]:
        """By table: the column that identifies a row's subject."""
        return {table: rules.subject for table, rules in self.tables.items() if rules.subject is not None}

    def rows_per_subject(self, table: str) -> int:
        """How many rows of one subject train under noise on features, at most."""
        return (self.tables[table].rows_per_subject or 1) if table in self.subjects else 1

    def check_subjects(self, use: ScanUse, query: str | None) -> None:
        """Refuses a query's derived rows of a table whose subjects are protected: such rows name no subject."""
        for base in (use, *use.others) if query is not None else ():
            self.rule(
                base.table not in self.subjects,
                f"tables.{base.table}.subject",
                f"a subquery makes rows of its own of {base.table}, which do not say whom they are about; read the "
                "table itself, or ask its owner for a view with one row for each",
            )

    @property
    def merges(self) -> Merges:
        return "extremes" if self.merge_groups == "extremes" else "sums" if self.merge_groups else ""

    def check_asker(self, contract: Contract, signature: Signature | None) -> None:
        """Refuses a contract without the signature of a person whom the owner names."""
        if self.askers:
            self.rule(contract.asker in self.askers, "askers", f"{contract.asker!r} is none of its askers")
            why = check_signature(contract, signature, self.askers[contract.asker])
            self.rule(not why, f"askers.{contract.asker}", why)

    def check_merging(self, scan: ScanTerms, use: ScanUse) -> None:
        """Refuses to merge groups with another owner of the table, unless the policy allows it."""
        self.rule(
            scan.merges in ("", "sums", self.merges) and (not scan.merges or self.merges != ""),
            "merge_groups",
            f"{'least and greatest values' if scan.merges == 'extremes' else 'sums'} of groups of {scan.table} are not "
            "merged with those of its other owners",
        )
        if scan.merges:
            self.check_masked(scan.clients)
            for base in use.bases:
                budget = self.budget.get(base.table)
                self.rule(
                    budget is None or budget.features is None,
                    f"budget.{base.table}.features",
                    f"features of {base.table} leave under noise only, and sums of groups would leave as they are",
                )

    def check_scan(self, use: ScanUse) -> None:
        """Refuses a scan that reads or filters by a column without any permitted use, before anything is read."""
        for other in use.others:
            self.check_scan(other)
        rules = self.rules_of(use.table)
        if rules is None:
            return
        somehow = rules.allowed("features") | rules.allowed("keys") | rules.allowed("labels")
        for columns in use.columns:
            _refuse_others(columns, somehow, f"tables.{use.table}", "be read")
        filters, closed = rules.allowed("filters"), self.find_closed(use)
        _refuse_others(use.compared - closed, filters, f"tables.{use.table}.filters", "be filtered by")
        _refuse_others(use.filter - closed, somehow | filters, f"tables.{use.table}", "be read")
        if self.limits_labels(use.table):  # whether there is one leaves under noise, too
            others = rules.allowed("features") | rules.allowed("keys") | filters
            _refuse_others(use.filter, others, f"tables.{use.table}.filters", "be filtered by")

    def find_closed(self, use: ScanUse) -> frozenset[str]:
        """Columns that no filter may read, and a query names for nothing that is asked for; of protected tables, where
        expressions are refused for their values, those in none."""
        rules = self.rules_of(use.table)
        if rules is None:
            return frozenset()
        looked_into = use.computed if self.hides_values_of(use.table) else frozenset()
        return frozenset(c for c in use.idle if c.lower() not in rules.allowed("filters") | looked_into)

    def check_columns(self, scan: ScanUse, columns: Collection[int], role: str) -> None:
        for base in scan.bases:
            rules = self.rules_of(base.table)
            if rules is None:
                continue
            for column in columns:
                _refuse_others(base.columns[column], rules.allowed(role), f"tables.{base.table}.{role}", _AS[role])

    def check_cutoffs(self, use: ScanUse, scan: ScanTerms) -> None:
        """Refuses to disclose moments to another owner, unless this owner grants them."""
        granted_keys = self.find_pairs(use)
        for moments in scan.moments:
            self.rule(
                granted_keys.issuperset(moments.keys),
                f"tables.{scan.table}.pairs",
                "cutoffs would go with the keys that they are about; its owner can allow that with pairs, the names of "
                f"these keys, under [tables.{scan.table}]",
            )
            for base in use.bases if moments.column >= 0 else ():
                for column in sorted(base.columns[moments.column]):
                    self.rule(
                        column.lower() in self.find_granted(base.table, "cutoffs"),
                        f"tables.{base.table}.cutoffs",
                        f"the distinct values of {column} would be told to the owner of {moments.history}; its owner "
                        f'can allow that with cutoffs = ["{column}"] under [tables.{base.table}]',
                    )

    def find_pairs(self, use: ScanUse) -> frozenset[int]:
        """The expressions of a scan that may go with moments: of keys that this owner grants as pairs."""

        def grants(base: ScanUse, number: int) -> bool:
            return self.find_granted(base.table, "pairs").issuperset(column.lower() for column in base.columns[number])

        named = {n for base in use.bases for n, columns in enumerate(base.columns) if columns}
        return frozenset(number for number in named if all(grants(base, number) for base in use.bases))

    def check_label_privacy(self, given: LabelPrivacy | None) -> None:
        self.rule(self.labels.leave, "labels.leave", "labels do not leave this owner")
        limit = self.labels.epsilon
        if limit is not None and (given is None or given.epsilon > limit):
            found = "the job asks for them as they are" if given is None else f"the job has ε = {given.epsilon:g}"
            raise refused_by(
                "labels.epsilon",
                f"labels leave only randomised, with ε of at most {limit:g}, and {found}; "
                f'train with privacy={{"label": {{"epsilon": {limit:g}}}}}',
            )

    def check_weights(self) -> None:
        self.rule(self.labels.leave, "labels.leave", "neither labels nor weights leave this owner")
        why = "labels leave only randomised, and weights cannot; train without weight"
        self.rule(self.labels.epsilon is None, "labels.epsilon", why)

    def check_keys(self, contract: Contract) -> None:
        if contract.keys == "plain":
            self.rule(self.keys_in_plain, "keys_in_plain", "join keys leave this owner as tokens only")
        self.rule(
            contract.keys == "dh" or not self.keys_need_dh,
            "keys_need_dh",
            f"join keys leave this owner blinded by all their owners only, and were asked for as {contract.keys}; "
            'use privacy={"keys": "dh"}',
        )
        if contract.keys == "dh" and self.max_blinded_keys is not None:
            self.rule(
                contract.most_keys <= self.max_blinded_keys,
                "max_blinded_keys",
                f"at most {self.max_blinded_keys:,} keys of others are blinded in a job, and it asks for "
                f'{contract.most_keys:,}; use privacy={{"keys": "dh", "max_keys": {self.max_blinded_keys}}}',
            )

    def check_identifiers(self) -> None:
        allowed = self.identifiers
        if allowed is None:
            allowed = self.keys_in_plain or self.minimum_rows == 1
        self.rule(allowed, "identifiers", "key values are not shown beside predictions; predict with key=[]")

    def check_noise(self, contract: Contract, clients: int) -> None:
        noise = contract.feature_privacy
        self.rule(
            noise is None or not noise.shared_noise or clients < 3 or not self.own_noise,
            "own_noise",
            "this owner adds all of the noise itself, for others might not; train with "
            'privacy={"features": {"shared_noise": false, …}}',
        )

    def check_masked(self, clients: int) -> None:
        self.rule(
            clients >= self.minimum_clients,
            "minimum_clients",
            f"what is learnt from this owner's rows leaves only in masked sums over at least "
            f"{self.minimum_clients} clients of a table, and here they would be {clients}",
        )

    def check_moments_of(self, are_sent: bool, name: str, clients: int) -> None:
        if clients > 1 and are_sent:
            self.check_second_moments(f'algorithm="{name}" sums them over the owners of a table')

    def check_second_moments(self, why: str) -> None:
        why = f"exact second moments do not leave this owner ({why}); use an algorithm that sends none"
        self.rule(self.second_moments, "second_moments", why)

    def check_release(self, why: str) -> None:
        why = f"trained parameters do not leave this owner, and {why}"
        self.rule(self.release_parameters, "release_parameters", why)

    def check_applied(self, *, is_held: bool) -> None:
        allowed = self.predictions in (None, True) or (is_held and self.predictions == "held")
        self.rule(allowed, "predictions", _PREDICTIONS.get(self.predictions, ""))

    def check_scores(self, purpose: str, table: str) -> None:
        """Scores are computed from exact features, whatever noise a model was trained with."""
        budget = self.budget.get(table)
        if budget is None or budget.features is None:
            return
        what, way_out = "scores", "its owner can allow that with predictions = true"
        if purpose == "evaluate":
            what, way_out = "metrics", "measure the model on rows of your own"
        self.rule(
            purpose != "evaluate" and self.predictions is not None,
            f"budget.{table}.features",
            f"features of {table} leave under noise only, and {what} would be computed from them as they are; "
            f"{way_out}",
        )

    def check_split_limit(self, are_trees: bool, most: int | None) -> None:
        self.rule(
            not are_trees or self.allow_reconstruction is not False or most is not None or self.max_splits is not None,
            "allow_reconstruction",
            "boosted trees ask bits of every row, and many of them tell its features; train with max_splits",
        )

    def hides_values_of(self, table: str) -> bool:
        """Whether single values of a table are hidden: a condition's answer for a row is one."""
        return self.minimum_rows > 1 or not self.labels.leave or self.labels.epsilon is not None or table in self.budget

    def limits_labels(self, table: str) -> bool:
        """Whether labels of a table leave under noise only."""
        budget = self.budget.get(table)
        return self.labels.epsilon is not None or (budget is not None and budget.label is not None)

    def rule(self, holds: bool, rule: str, why: str) -> None:
        if not holds:
            raise refused_by(rule, why)


_AS = {
    "features": "be a feature",
    "keys": "be a join key",
    "labels": "be the label or a weight",
    "filters": "be filtered by",
}
_PREDICTIONS: dict[bool | str | None, str] = {
    False: "models are not applied to this owner's rows",
    "held": "only models whose part this owner holds are applied to its rows",
}


def _refuse_others(columns: Collection[str], allowed: Collection[str], rule: str, use: str) -> None:
    for column in sorted(columns):
        if column.lower() not in allowed:
            raise refused_by(rule, f"column {column} may not {use}")


def refused_by(rule: str, why: str) -> PolicyError:
    return PolicyError(f"its policy refuses the request: {why} (rule {rule})")


def read_policy(path: str | Path) -> Policy:
    """The policy in a TOML file; a rule that is not known is an error, for it would protect nothing."""
    try:
        content = tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError):
        raise PolicyError(f"the policy file {path} cannot be read; without it, nothing is answered") from None
    except tomllib.TOMLDecodeError as error:
        raise PolicyError(f"the policy file {path} is not valid TOML: {error}") from None
    try:
        policy = msgspec.convert(content, Policy, strict=True)
        for public in policy.askers.values():
            read_public(public)
        return policy
    except msgspec.ValidationError as error:
        unknown = str(error).replace("`", "").partition(" unknown field ")[2]
        near = f"; {hint(unknown, Policy.__struct_fields__)}" if unknown and " " not in unknown else ""
        raise PolicyError(f"the policy file {path} cannot be used: {error}{near}") from None
