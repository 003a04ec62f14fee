"""Every exchange has its bounds, disclosures and contract check; what is not listed is refused."""

from __future__ import annotations

from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa
import pytest

from tablepuppet.client import Client
from tablepuppet.errors import PolicyError
from tablepuppet.exchanges import registry
from tablepuppet.exchanges.base import BEFORE_CONTRACT, Exchange, NoCheck
from tablepuppet.exchanges.parts import Evaluation
from tablepuppet.exchanges.registry import EXCHANGES
from tablepuppet.owner.tables import ClientTables
from tablepuppet.protocol.base import Message, disclosures, marked_fields
from tablepuppet.sources.source import open_source

REQUESTS: list[type[Message]] = [get_origin(kind) or kind for kind in get_args(registry.REQUESTS)]
RESPONSES: list[type[Message]] = list(get_args(registry.RESPONSES))
CHECKS = ("enforce", "check_request", "check_answer")
every_exchange = pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=lambda e: e.request.__name__)


@every_exchange
def test_every_exchange_is_checked_or_says_why_there_is_nothing_to_check(exchange: Exchange) -> None:
    for name in CHECKS:
        check = getattr(exchange, name)
        assert callable(check)
        assert not isinstance(check, NoCheck) or len(check.reason.split()) > 2, name


@every_exchange
def test_whatever_has_fields_is_bounded(exchange: Exchange) -> None:
    has_fields = any(kind.__struct_fields__ for kind in exchange.answers)
    assert has_fields != isinstance(exchange.check_answer, NoCheck)
    hints = {name: str(hint) for name, hint in get_type_hints(exchange.request).items() if "ClassVar" not in str(hint)}
    arrays = [name for name, hint in hints.items() if "ndarray" in hint or "Table" in hint]
    assert not (arrays and isinstance(exchange.check_request, NoCheck)), arrays


@every_exchange
def test_whatever_is_disclosed_is_in_a_contract(exchange: Exchange) -> None:
    tells = [disclosed for kind in exchange.answers for disclosed in marked_fields(kind)]
    if tells:
        assert exchange.purposes != BEFORE_CONTRACT
        assert not isinstance(exchange.enforce, NoCheck)


HARMLESS = {
    # what the server chooses: rows of the receiver's own, steps, places
    *("OpenPart.train_rows", "OpenPart.test_rows", "ScoreRows.rows", "ScoreOwnRows.rows", "AskRows.rows"),
    *("AskOwnRows.rows", "SgdUpdate.next_rows", "SumGroups.holders", "MultiplyGram.vector", "Move.coefficients"),
    *("NewtonUpdate.coefficients", "AdmmUpdate.coefficients", "ElasticUpdate.coefficients", "BasisUpdate.points"),
    # what is of a model, and counted with another field or told before
    *("ScoreRows.encoders", "StartTrees.bins", "ReleaseSplits.unions", "HoldSplits.unions"),
    *("Labels.is_validation", "Masked.values", "RevealedFeatures.train_codes", "RevealedFeatures.test_codes"),
}


def test_every_array_and_table_of_a_message_is_declared_or_known_to_tell_nothing() -> None:
    """An array that crosses without a declaration would be a disclosure that nobody counts."""
    undeclared = set()
    for kind in (*REQUESTS, *RESPONSES):
        declared = set(marked_fields(kind))
        hints = get_type_hints(kind)
        holders = {name for name in kind.__struct_fields__ if _holds_arrays(hints[name])}
        undeclared |= {f"{kind.__name__}.{name}" for name in holders - declared}
    assert undeclared == HARMLESS


def _holds_arrays(kind: Any) -> bool:
    """Whether a value of this type has an array or a table in it, however deep."""
    if (get_origin(kind) or kind) in (np.ndarray, pa.Table):
        return True
    fields = get_type_hints(kind).values() if hasattr(kind, "__struct_fields__") else ()
    return any(map(_holds_arrays, (*get_args(kind), *fields)))


class Unheard(Message, frozen=True):
    """A message that somebody adds and nobody decides on."""

    job: str


def test_a_message_type_without_a_decision_is_refused() -> None:
    client = Client("a", ClientTables({"t": open_source(pa.table({"x": [1]}), "t")}))
    with pytest.raises(PolicyError, match="no rule decides whether a Unheard may be answered"):
        client.answer(Unheard(job="j"))


def test_disclosures_of_a_message_count_numbers_a_row() -> None:
    told = disclosures(Evaluation(test=np.zeros((4, 3)), train=None, norm=1.0))
    assert [(disclosed.what, width) for disclosed, width in told] == [("held-out predictions", 3), ("norms", 1)]
