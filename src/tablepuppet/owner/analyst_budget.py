"""Tables with an analyst budget: everything that an asker sees of them carries noise and is charged to its account.

In: a contract, and the columns that its scans read. Out: nothing, or PolicyError where the job would show something
without noise; then the charge in the owner's log, and the asker's remaining ε. The server adds the noise. Owners
trust it with exact rows, as in every job; this module limits the server's answers to analysts (docs/guarantees.md).
"""

import math
import secrets
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from tablepuppet.errors import PolicyError
from tablepuppet.owner.owner_log import OwnerLog
from tablepuppet.owner.policy import Policy, refused_by
from tablepuppet.owner.scans import ScanUse
from tablepuppet.privacy.analyst import SHARES
from tablepuppet.privacy.ledger import Spending, TableBudget
from tablepuppet.protocol.contract import Contract, ScanTerms, Training

_ASK = 'explain, train, evaluate and compare take privacy={"analyst": {"epsilon": …}}'


def budgeted_tables(policy: Policy, use: ScanUse) -> list[str]:
    return [base.table for base in use.bases if _budget_of(policy, base.table) is not None]


def _budget_of(policy: Policy, table: str) -> TableBudget | None:
    budget = policy.budget.get(table)
    return None if budget is None or budget.analyst is None else budget


def _reads(policy: Policy, contract: Contract, uses: Mapping[int, ScanUse]) -> Iterator[tuple[ScanTerms, ScanUse]]:
    for scan in contract.scans:
        for base in uses[scan.scan].bases:
            if _budget_of(policy, base.table) is not None:
                yield scan, base


def rows_each(policy: Policy, contract: Contract) -> int:
    """The rows that stand for one of a minimum size, which counts subjects: (Σw)² / Σw² over rows is at most as many
    times that over subjects as a subject has rows."""
    met = [scan.table for scan in contract.scans if _budget_of(policy, scan.table) is None]
    return 1 if contract.analyst is None else max(map(policy.rows_per_subject, met), default=1)


def check_shown(policy: Policy, contract: Contract, uses: Mapping[int, ScanUse]) -> None:
    """Refuses a contract by which an analyst would see something of a table with a budget that has no noise."""
    if contract.analyst is not None and contract.purpose not in SHARES:
        raise PolicyError(f"the contract pays for noise, and a contract to {contract.purpose} has none; leave it out")
    found = list(_reads(policy, contract, uses))
    least = max(policy.minimum_rows, policy.difference) * rows_each(policy, contract)
    others = [use for use in uses.values() if not budgeted_tables(policy, use)]
    if contract.analyst is not None and others and least > 1:
        _check_partners(policy, contract, others, least)
    for scan, base in found:
        rule = f"budget.{base.table}.analyst"
        if contract.purpose == "predict":
            policy.rule(
                policy.predictions is True,
                rule,
                f"analysts see noisy figures of {base.table}, and scores are of single rows; its owner can allow them "
                "with predictions = true",
            )
            continue
        policy.rule(
            contract.purpose != "profile",
            rule,
            f"how keys of {base.table} meet others is exact; explain shows noisy sizes",
        )
        terms = contract.analyst
        if terms is None or terms.table != base.table or len(found) > 1:
            why = "reads two such tables, or one twice" if terms is not None else f"does not say how much; {_ASK}"
            raise refused_by(rule, f"what analysts see of {base.table} is noisy and counted, and the job {why}")
        subject = policy.subjects.get(base.table, "")
        policy.rule(
            not subject or terms.subject == subject,
            rule,
            f"the noise is to be for each {subject} of {base.table}, and the contract states another unit",
        )
        policy.rule(
            base.stability is not None and terms.rows >= base.stability * (scan.clients if subject else 1),
            rule,
            f"one row of {base.table} may change any number of the subquery's rows, and no noise covers that; use "
            "columns, WHERE and GROUP BY, without windows, LIMIT, DISTINCT ON, and joins inside",
        )
        is_plain = not contract.shuffles and not any(block.values for block in contract.blocks)
        is_plain = is_plain and contract.folds is None and not contract.others and not scan.numbers("weight")
        policy.rule(
            is_plain and not scan.merges and not scan.moments,
            rule,
            "permutation importance, partial dependence, search, weights, histories and merged groups have no noisy "
            "form; model.importance() of noisy trees costs nothing, and compare measures a model with and one without",
        )
        if contract.training is not None:
            _check_training(contract, contract.training, policy, rule)


def _check_partners(policy: Policy, contract: Contract, others: Sequence[ScanUse], least: int) -> None:
    """Rules about few rows of tables that meet one with a budget: noise must hide as many."""
    noise = contract.feature_privacy
    for base in (base for other in others for base in other.bases if base.table in policy.subjects):
        policy.rule(
            policy.tables[base.table].rows_per_subject is not None,
            f"tables.{base.table}.rows_per_subject",
            "the server counts rows that meet a table with an analyst budget, under noise, and not subjects; their "
            "rows need a limit",
        )
    policy.rule(
        contract.purpose != "train" or (noise is not None and noise.noise is not None and noise.noise >= least),
        "minimum_rows",
        f"leaves may hold few rows that meet a table with an analyst budget, and noise on them must then hide "
        f"{least}; ask for a smaller epsilon, or for more trees",
    )


def _check_training(contract: Contract, training: Training, policy: Policy, rule: str) -> None:
    """The one model that hides whether a row is there at all: trees that are drawn, with noise on their leaves."""
    options, noise = training.algorithm, contract.feature_privacy
    policy.rule(
        options.get("splits") == "random" and options.get("subsample") == 1.0 and not training.earlier_splits,
        rule,
        'a model hides whether a row is there if it is one of drawn trees; train with model="boosted", splits="random"',
    )
    due = (
        0.0
        if contract.analyst is None or contract.purpose != "train"
        else contract.analyst.leaf_noise(options["trees"])
    )
    policy.rule(
        noise is not None and noise.noise is not None and noise.noise >= due * (1 - 1e-9) and not training.has_weights,
        rule,
        "the contract has less noise on leaves than its ε needs",
    )


def charge(policy: Policy, log: OwnerLog, contract: Contract, uses: Mapping[int, ScanUse]) -> float | None:
    """Charges a contract to its asker's account, or refuses it. Out: the remaining ε; None: nothing is counted."""
    left = None
    for _, base in _reads(policy, contract, uses):
        budget = _budget_of(policy, base.table)
        if contract.analyst is None or budget is None or budget.analyst is None:
            continue  # scores, which the owner allows
        spending = Spending(
            table=base.table,
            what="analyst",
            name=secrets.token_hex(16),
            noise=contract.analyst.noise,
            steps=1,
            asker=contract.asker,
            period=budget.analyst.period(log.now),
        )
        whole = contract.analyst.noise / math.sqrt(1 + contract.analyst.ahead)  # of a search that has just begun
        log.account.check((replace(spending, noise=whole),), budget)
        log.spend(spending, budget=budget)
        left = log.account.left_for(spending, budget)
    return left
