"""A contract is proposed once a job's scans are open: the owner agrees, refuses by a rule, or asks a person.

Nothing is read before. All that a job will ask for is judged here, before its first row leaves.
"""

import hashlib
import hmac
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tablepuppet.algorithms.registry import Options
from tablepuppet.errors import PolicyError
from tablepuppet.exchanges.base import BEFORE_CONTRACT, Rules
from tablepuppet.owner import analyst_budget, row_rules
from tablepuppet.owner.enforcement import JobUnderContract, breach
from tablepuppet.owner.policy import Policy, refused_by
from tablepuppet.owner.releases import reads
from tablepuppet.owner.scans import ScanUse
from tablepuppet.owner.state import ClientState
from tablepuppet.privacy.ledger import Spending
from tablepuppet.protocol.base import Message
from tablepuppet.protocol.bounds import Known, require
from tablepuppet.protocol.contract import Contract, Role, ScanTerms
from tablepuppet.protocol.evidence import Signature, TreeHead
from tablepuppet.sources.columns import STRING_KINDS
from tablepuppet.sources.guard import is_one_column

Uses = Mapping[int, ScanUse]  # by scan


class ProposeContract(Message, frozen=True):
    """Will you keep to this? Nothing is read before you agree. → Agreement"""

    job: str
    contract: Contract
    signature: Signature | None = None  # of the asker, not of the server


class Agreement(Message, frozen=True):
    """Agreed, or waiting for a person; a refusal is a Failure that names the rule."""

    contract: str  # its hash
    is_agreed: bool
    waits_for: Annotated[str, Meta(max_length=1000)] = ""  # who decides, where a person does
    least_rows: int = 1  # metrics shown to the asker distinguish no fewer
    figures_key: bytes = b""  # by which these are rounded, the same in all jobs
    analyst_left: float | None = None  # ε that the asker has left of an analyst budget; None: there is none
    head: TreeHead | None = None  # of the owner's log on its disk: its keeper notices a log that was cut


def _judge(policy: Policy, request: ProposeContract, uses: Uses) -> None:
    """All that a job will ask for is judged before anything is read; later requests are held to the contract alone."""
    contract = request.contract
    policy.check_asker(contract, request.signature)
    if contract.training is not None and contract.purpose not in ("train", "explain"):
        raise PolicyError(f"the contract is to {contract.purpose}, and has terms of training that do not belong to it")
    if contract.is_noisy and (contract.fits > 1 or contract.others):
        raise PolicyError("the contract trains several models, and noise on features is counted for one")
    analyst_budget.check_shown(policy, contract, uses)
    noisy, labels = (_read_of_tables(contract, uses, role) for role in ("feature", "label"))
    for scan in contract.scans:
        used = uses[scan.scan]
        for role, rule in _RULES_OF_ROLES.items():
            policy.check_columns(used, scan.numbers(role), rule)
        policy.check_subjects(used, scan.query)
        _check_reach(contract, scan, used, policy)
        for base in used.bases:
            _check_protected(contract, scan, base, policy, (noisy[base.table], labels[base.table]))
            if contract.purpose == "predict" and policy.hides_values_of(base.table):
                asked = base.compared | base.grouping | _read_by(scan, base, "split")
                _check_shown(scan, base, policy.find_granted(base.table, "filters"), asked)
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
        policy.check_merging(scan, used)
        if scan.numbers("key"):
            policy.check_keys(contract)
        if scan.numbers("identifier"):
            policy.check_identifiers()
    for side in contract.sides:
        table = next((scan.table for scan in contract.scans if scan.scan == side.scan), "")
        policy.rule(
            side.is_keyed or not policy.hides_values_of(table),
            "minimum_rows",
            "the model's rows were split by an earlier release, by a function that everybody knows; train it again",
        )
    _judge_blocks(policy, contract, uses)


def _judge_blocks(policy: Policy, contract: Contract, uses: Uses) -> None:
    clients = {scan.scan: scan.clients for scan in contract.scans}
    offered = {scan.scan: scan.numbers("feature") for scan in contract.scans}
    for block in contract.blocks:
        if not set(block.columns) <= set(offered.get(block.scan, ())):
            raise PolicyError("the contract names a block of expressions that are no features of it")
        if contract.training is not None:
            policy.check_noise(contract, clients[block.scan])
            policy.check_masked(clients[block.scan] if block.is_masked else 1)
            training = contract.training
            policy.check_split_limit(bool(training.most_splits), training.algorithm.get("max_splits"))
            policy.check_moments_of(training.sends_second_moments, training.name, clients[block.scan])
            if block.start or block.model:  # their predictions leave before anything is learned here
                policy.check_applied(is_held=False)
        elif contract.purpose in ("predict", "evaluate"):
            policy.check_applied(is_held=not block.model)
            if block.columns:
                for base in uses[block.scan].bases:
                    policy.check_scores(contract.purpose, base.table)


_RULES_OF_ROLES: dict[Role, str] = {
    "key": "keys",
    "feature": "features",
    "label": "labels",
    "weight": "labels",
    "split": "filters",
    "identifier": "keys",
}


def _check_reach(contract: Contract, scan: ScanTerms, used: ScanUse, policy: Policy) -> None:
    """Noise on features is for one row or subject of a table, with all rows that it changes: these need a bound."""
    least = scan.clients * policy.rows_per_subject(scan.table) if scan.table in policy.subjects else 0
    if contract.is_noisy and scan.query is None and (scan.stability.get(scan.table) or 0) < least:
        raise PolicyError("the contract counts fewer rows of one subject than its owner lets train")
    for base in used.bases if scan.query is not None else ():
        stated = scan.stability.get(base.table, 0)
        if stated is not None and (base.stability is None or stated < base.stability):
            raise PolicyError("the contract counts fewer rows of a query than one row of its tables changes")
    if contract.training is None or not contract.is_noisy or not scan.numbers("feature"):
        return
    if len(used.bases) > 1:
        raise refused_by(
            "stability",
            f"noise on features is sized for the rows of one table, and the subquery over {used.table} reads "
            f"{len(used.bases)}; join the tables outside the subquery",
        )
    if used.stability is None:
        raise refused_by(
            "stability",
            f"one row of {used.table} may change any number of the subquery's rows, and no noise covers that; use "
            "columns, WHERE and GROUP BY, without windows, LIMIT, DISTINCT ON, and joins inside",
        )


def _read_of_tables(contract: Contract, uses: Uses, role: Role) -> dict[str, frozenset[str]]:
    """By table: the columns behind the expressions of a role, in all scans: a self-join reads a table twice."""
    found: dict[str, frozenset[str]] = {}
    for scan in contract.scans:
        for base in uses[scan.scan].bases:
            found[base.table] = found.get(base.table, frozenset()) | _read_by(scan, base, role)
    return found


def _check_protected(
    contract: Contract, scan: ScanTerms, used: ScanUse, policy: Policy, protected: tuple[frozenset[str], frozenset[str]]
) -> None:
    """Values that leave under noise must not leave otherwise: a filter, split or weight would count them exactly.
    `protected`: the columns behind features and labels of the table."""
    granted, is_open = policy.find_granted(used.table, "filters"), policy.rules_of(used.table) is None
    keys, (features, labels) = _read_by(scan, used, "key"), protected
    computed = _find_computed_keys(scan, used)
    grouped = frozenset(name.lower() for name in used.grouping) - keys
    others = {
        "a filter": frozenset(name.lower() for name in used.compared) - granted,
        "the split": _read_by(scan, used, "split") - granted,
        "a weight": _read_by(scan, used, "weight"),
    }
    if contract.label_privacy is not None:
        also = {"a feature": features, "a join key": keys, "what rows are grouped by": grouped - granted}
        also |= {"a filter": frozenset(name.lower() for name in used.filter) - granted}  # NULL is a label, too
        _refuse_ways(labels, others | also, "labels", used.table)
    budget = policy.budget.get(used.table)
    if budget is not None and budget.features is not None:  # whatever the job makes of its columns
        computed = computed if is_open else frozenset()  # else the owner names the columns of keys
        features = others["a filter"] | others["the split"] | others["a weight"] | grouped | computed
    elif contract.training is None or contract.feature_privacy is None or contract.analyst is not None:
        return
    elif scan.query is not None:  # which may compute a key of one column
        computed |= keys & features
    public = {way: columns - (keys - computed) for way, columns in others.items()}
    also = {"what rows are grouped by": grouped - granted, "part of a computed join key": computed - granted}
    also |= {"the label": labels}
    _refuse_ways(features, public | also, "features", used.table)


def _find_computed_keys(scan: ScanTerms, used: ScanUse) -> frozenset[str]:
    """The columns behind keys that are not one column as it is: which rows join would tell of their values."""
    found = set[str]()
    for number in scan.numbers("key"):
        is_plain = is_one_column(scan.columns[number].expression)
        if not is_plain or len(used.columns[number]) > 1:
            found |= {name.lower() for name in used.columns[number]}
    return frozenset(found)


def _check_shown(scan: ScanTerms, used: ScanUse, granted: frozenset[str], asked: Collection[str]) -> None:
    """Scores belong to rows with known keys: a condition on another column would reveal that column of each row."""
    known = _read_by(scan, used, "key") | _read_by(scan, used, "identifier") | granted
    for column in sorted(asked):
        if column.lower() not in known:
            raise refused_by(
                f"tables.{used.table}.filters",
                "which rows a model is applied to, and which are shown as test rows, may depend on their keys, and not "
                f"on column {column}, whose values the choice would tell; predict all rows, without split, or ask the "
                "owner to grant it as a filter",
            )


def _read_by(scan: ScanTerms, used: ScanUse, role: Role) -> frozenset[str]:
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


def _enforce_proposal(job: JobUnderContract, request: ProposeContract) -> None:
    """A job has one contract, over the scans that were opened for it and no others."""
    contract = request.contract
    if job.contract not in (None, contract):
        raise breach("the job has a contract already, and this is another one")
    if contract.training is not None:
        _check_options(contract.training.algorithm)
    terms = {scan.scan: scan for scan in contract.scans}
    if set(terms) != set(job.opened) or len(terms) < len(contract.scans):
        raise breach("it does not name the scans that were opened")
    for number, opened in job.opened.items():
        scan = terms[number]
        texts = [column.expression for column in scan.columns]
        if bool(opened.cutoffs) != any(moments.column < 0 for moments in scan.moments):
            raise breach("it does not name the moments until which a history is read")
        found = (opened.table, opened.columns, opened.filter, opened.query)
        if (scan.table, texts, scan.filter, scan.query) != found:
            raise breach("it does not name the expressions and filters that were opened")


def _check_options(given: Mapping[str, Any]) -> None:
    with suppress(msgspec.ValidationError):
        if set(msgspec.to_builtins(msgspec.convert(given, Options))) == set(given):
            return
    raise breach("it names other options than an algorithm has")


def _check_agreement(request: ProposeContract, answer: Agreement, known: Known) -> None:
    require(answer.contract == request.contract.hash, "contract", "names another one than was proposed")
    known.contracts[request.job] = request.contract


@Rules(BEFORE_CONTRACT, enforce=_enforce_proposal, check_answer=_check_agreement, leaves_state=True)
def _propose(own: ClientState, request: ProposeContract) -> Agreement:
    """After the policy, budgets remain, and a person's approval where the owner wants one."""
    contract, name = request.contract, request.contract.hash
    scans = {scan.scan: own.tables.scan(request.job, scan.scan) for scan in contract.scans}
    uses = {number: scan.use() for number, scan in scans.items()}
    _judge(own.policy, request, uses)
    for scan in contract.scans:
        read = scans[scan.scan]
        if read.subject is not None:  # some of whose rows may lie with the table's other clients
            most = own.policy.rows_per_subject(scan.table)
            read.subject_rows = scan.clients * most
            read.most_of_subject = most if contract.analyst is not None else None
        if contract.label_privacy is not None and scan.numbers("label"):
            read.is_identified = True
        if row_rules.applies(own) or scan.table in own.policy.subjects:
            read.is_keyed = True
    if own.releases.is_restoring:
        earlier = own.approvals.decision(contract, request.job)
        own.contracts.agree(request.job, contract, is_excused=earlier is not None and bool(earlier.notes))
        return _agree(own, contract)
    earlier_notes = own.waiting.get((request.job, name))
    if earlier_notes is not None and own.approvals.decision(contract, request.job, earlier_notes) is None:  # still open
        return _wait(own, name)
    if earlier_notes is None:
        # The signature is evidence that this person asked for this contract.
        signed = {} if request.signature is None else {"signature": msgspec.to_builtins(request.signature)}
        asked = {"asker": contract.asker, "purpose": contract.purpose, **signed}
        own.log.write("proposed", request.job, name, asked)
    own.releases.check_contract(contract, uses)
    readable = _without_histories(contract)
    counted = _without_budgeted(own, readable, uses)
    sets, notes = row_rules.review(own, request.job, counted) if row_rules.is_on(own) else ([], [])
    if not own.may_reveal or own.policy != Policy():  # in one process, an owner without a policy allows everything
        row_rules.check_texts(own, request.job, readable)
        for scan in contract.scans:
            own.policy.check_cutoffs(uses[scan.scan], scan)
    _check_names(own, request.job, readable)
    row_rules.check_subjects(own, request.job, readable)
    _first_prediction(own, request.job, contract)
    decision = own.approvals.decision(contract, request.job, tuple(notes)) if notes or own.policy.ask else None
    if decision is not None and not decision.is_approved:
        raise PolicyError("a person looked at the contract and denied it")
    if decision is None and (notes or own.policy.ask):
        own.approvals.wait(contract, tuple(notes))
        if not own.policy.ask:
            raise row_rules.few_rows(notes[0])
        if earlier_notes is None:
            own.log.write("waiting", request.job, name, {"notes": notes})
        own.waiting[request.job, name] = tuple(notes)
        return _wait(own, name)
    own.waiting.pop((request.job, name), None)
    left = analyst_budget.charge(own.policy, own.log, contract, uses)
    own.row_sets.keep(sets)
    own.contracts.agree(request.job, contract, is_excused=decision is not None and bool(decision.notes))
    rows = {f"{rows.kind} of {rows.table}": own.name_rows(rows.sketch.name) for rows in sets}
    own.log.write("agreed", request.job, name, {"tables": list(contract.tables), **({"rows": rows} if rows else {})})
    return msgspec.structs.replace(_agree(own, contract), analyst_left=left)


def _check_names(own: ClientState, job: str, contract: Contract) -> None:
    """Under noise on features, names of categories are public: none is made of numbers, which are not."""
    is_private = contract.training is not None and contract.feature_privacy is not None
    for scan in contract.scans if is_private else ():
        opened = own.tables.scan(job, scan.scan)
        for number in scan.numbers("feature"):
            if opened.columns[number].kind not in STRING_KINDS:
                continue
            bases = opened.use().bases
            for base in bases:
                names = {i.name.lower() for i in own.tables.describe(base.table)[0] if i.kind in STRING_KINDS}
                names |= own.policy.find_granted(base.table, "texts")
                if any(name.lower() not in names for name in base.columns[number]):
                    raise refused_by(
                        "values",
                        f"{opened.columns[number].name} makes names of numbers of {base.table}, and names leave as "
                        "they are; use the number itself, whose noise covers it, or ask the owner to grant it as texts",
                    )
            behind = [(base.table, name.lower()) for base in bases for name in base.columns[number]]
            is_granted = all(name in own.policy.find_granted(table, "texts") for table, name in behind)
            if (scan.query is not None or len(behind) > 1) and not is_granted:
                raise refused_by(
                    "values",
                    f"names of {opened.columns[number].name} leave as they are, and made of several columns or by a "
                    "subquery they would tell of single rows; take the text from the table itself, or ask the owner "
                    "to grant it as texts",
                )


def _without_histories(contract: Contract) -> Contract:
    """The contract over scans that can be read now: a history waits for its cutoffs (exchanges/history.py)."""
    kept = tuple(scan for scan in contract.scans if not any(moments.column < 0 for moments in scan.moments))
    return msgspec.structs.replace(contract, scans=kept)


def _without_budgeted(own: ClientState, contract: Contract, uses: Uses) -> Contract:
    """The contract over scans whose rows may be counted. A table with an analyst budget is left out: a refusal by an
    exact count would reveal whether a row is there."""
    if contract.analyst is None:
        return contract
    kept = [s for s in contract.scans if not analyst_budget.budgeted_tables(own.policy, uses[s.scan])]
    return msgspec.structs.replace(contract, scans=tuple(kept))


def _agree(own: ClientState, contract: Contract) -> Agreement:
    name, least = contract.hash, own.policy.minimum_rows * analyst_budget.rows_each(own.policy, contract)
    key = hmac.digest(own.secret, b"figures", hashlib.sha256) if least > 1 else b""
    return Agreement(contract=name, is_agreed=True, least_rows=least, figures_key=key, head=own.log.lasting_head)


def _first_prediction(own: ClientState, job: str, contract: Contract) -> None:
    """Refuses training, and its explanation, if the first exact prediction would be one too many."""
    training, is_noisy = contract.training, contract.prediction_privacy.mode == "local"
    if training is None or training.most_splits or is_noisy or not own.releases.limits_predictions(forbids=False):
        return
    for block in contract.blocks:
        scan = own.tables.scan(job, block.scan)
        columns = reads(scan, block.columns)
        shown = Spending(table=scan.table, what="predictions", name="", numbers=1, columns=columns)
        own.releases.check_exposure(shown, own.releases.unknowns(scan, block.columns, contract), "training")


def _wait(own: ClientState, name: str) -> Agreement:
    return Agreement(contract=name, is_agreed=False, waits_for=f"the owner of {own.name}")
