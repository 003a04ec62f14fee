"""Every exchange has its bounds, disclosures, policy decision and contract check; what is not listed is refused."""

from __future__ import annotations

from typing import ClassVar, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa
import pytest

from tablepuppet.client import Client
from tablepuppet.errors import PolicyError
from tablepuppet.exchanges import registry
from tablepuppet.exchanges.base import BEFORE_CONTRACT, Exchange, NoCheck
from tablepuppet.exchanges.evaluation import Evaluation
from tablepuppet.exchanges.registry import EXCHANGES
from tablepuppet.owner.store import ClientTables
from tablepuppet.protocol.base import FieldDisclosures, Message, disclosures
from tablepuppet.sources.source import open_source

REQUESTS: list[type[Message]] = [get_origin(kind) or kind for kind in get_args(registry.REQUESTS)]
RESPONSES: list[type[Message]] = list(get_args(registry.RESPONSES))
CHECKS = ("permit", "enforce", "check_request", "check_answer")
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
    tells = [disclosed for kind in exchange.answers for disclosed in kind.discloses or ()]
    if tells:
        assert exchange.purposes != BEFORE_CONTRACT
        assert not isinstance(exchange.enforce, NoCheck)


@pytest.mark.parametrize("kind", [*REQUESTS, *RESPONSES])
def test_every_message_declares_what_its_fields_tell(kind: type[Message]) -> None:
    assert kind.discloses is not None
    assert {disclosed.field for disclosed in kind.discloses} <= set(kind.__struct_fields__)


def test_arrays_and_tables_in_answers_are_declared_or_known_to_tell_nothing() -> None:
    """An array that crosses from a client without a declaration would be a disclosure that nobody counts."""
    harmless = {("Labels", "is_validation"), ("Masked", "values")}  # the split, and what `exponents` counts
    for kind in RESPONSES:
        arrays = {f for f, t in kind.__annotations__.items() if "Array" in str(t) or "Table" in str(t)}
        undeclared = arrays - {disclosed.field for disclosed in kind.discloses or ()}
        assert {(kind.__name__, field) for field in undeclared} <= harmless


class Unheard(Message, frozen=True):
    """A message that somebody adds and nobody decides on."""

    discloses: ClassVar[FieldDisclosures] = ()
    job: str


def test_a_message_type_without_a_decision_is_refused() -> None:
    client = Client("a", ClientTables({"t": open_source(pa.table({"x": [1]}), "t")}))
    with pytest.raises(PolicyError, match="no rule decides whether a Unheard may be answered"):
        client.answer(Unheard(job="j"))


def test_disclosures_of_a_message_count_numbers_a_row() -> None:
    told = disclosures(Evaluation(test=np.zeros((4, 3)), train=None, norm=1.0))
    assert [(disclosed.what, width) for disclosed, width in told] == [("held-out predictions", 3), ("norms", 1)]
