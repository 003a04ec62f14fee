"""Every message says what it is and what it tells; what is not decided is refused."""

from __future__ import annotations

from typing import ClassVar, get_args, get_origin

import numpy as np
import pyarrow as pa
import pytest

from tablepuppet import protocol as m
from tablepuppet.algorithms import registry
from tablepuppet.client.client import ANSWERS, Client
from tablepuppet.client.policy_decisions import DECISIONS
from tablepuppet.errors import PolicyError
from tablepuppet.tables.source import open_source
from tablepuppet.tables.store import ClientTables

REQUESTS: list[type[m.Message]] = [get_origin(kind) or kind for kind in get_args(registry.REQUESTS)]
RESPONSES: list[type[m.Message]] = list(get_args(registry.RESPONSES))


@pytest.mark.parametrize("kind", REQUESTS)
def test_every_request_has_a_stage_that_policies_decide_on_and_an_answer(kind: type[m.Message]) -> None:
    assert kind.stage in get_args(m.Stage)
    assert kind.stage in DECISIONS
    assert kind in ANSWERS


@pytest.mark.parametrize("kind", [*REQUESTS, *RESPONSES])
def test_every_message_declares_what_its_fields_tell(kind: type[m.Message]) -> None:
    assert kind.discloses is not None
    assert {disclosed.field for disclosed in kind.discloses} <= set(kind.__struct_fields__)


def test_arrays_and_tables_in_answers_are_declared_or_known_to_tell_nothing() -> None:
    """An array that crosses from a client without a declaration would be a disclosure that nobody counts."""
    harmless = {("Labels", "is_validation"), ("Masked", "values")}  # the split, and what `exponents` counts
    for kind in RESPONSES:
        arrays = {f for f, t in kind.__annotations__.items() if "Array" in str(t) or "Table" in str(t)}
        undeclared = arrays - {disclosed.field for disclosed in kind.discloses or ()}
        assert {(kind.__name__, field) for field in undeclared} <= harmless


class Unheard(m.Message, frozen=True):
    """A message that somebody adds and nobody decides on."""

    discloses: ClassVar[m.FieldDisclosures] = ()
    job: str


def test_a_message_type_without_a_decision_is_refused() -> None:
    client = Client("a", ClientTables({"t": open_source(pa.table({"x": [1]}), "t")}))
    with pytest.raises(PolicyError, match="no rule decides whether a Unheard may be answered"):
        client.answer(Unheard(job="j"))


def test_disclosures_of_a_message_count_numbers_a_row() -> None:
    told = m.disclosures(m.Evaluation(test=np.zeros((4, 3)), train=None, norm=1.0))
    assert [(disclosed.what, width) for disclosed, width in told] == [("held-out predictions", 3), ("norms", 1)]
