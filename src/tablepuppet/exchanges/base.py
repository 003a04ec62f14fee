"""An exchange: one question of the server, the owner's answer, and every check on the way.

At the client a request passes, in this order,

    enforce         the contract that the owner agreed to
    check_request   sizes and shapes, by what the client holds
    handle          which computes the answer

The owner's policy judges the contract (proposal.py), and every later request must be in it. At the server an answer
passes `check_answer` before any of it is used or kept on a disk. Messages mark themselves which fields disclose
something (`Discloses`). A `NoCheck` gives the reason why nothing is checked.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, get_args, get_type_hints

from tablepuppet.owner.enforcement import JobUnderContract
from tablepuppet.owner.state import ClientState
from tablepuppet.protocol.base import Message
from tablepuppet.protocol.bounds import Known
from tablepuppet.protocol.contract import Purpose

Purposes = frozenset[Purpose]
BEFORE_CONTRACT: Purposes = frozenset()  # nothing of them reads a row
ALL_PURPOSES: Purposes = frozenset({"profile", "explain", "train", "evaluate", "predict"})
WITH_LABELS: Purposes = frozenset({"explain", "train", "evaluate"})
WITH_STATISTICS: Purposes = frozenset({"explain", "train"})
TRAINING: Purposes = frozenset({"train"})
SCORING: Purposes = frozenset({"evaluate", "predict"})
PREDICTING: Purposes = frozenset({"predict"})


@dataclass(frozen=True, slots=True)
class NoCheck:
    """There is nothing to check, and why."""

    reason: str

    def __call__(self, *given: Any) -> None:
        """Lets pass what comes."""


Handler = Callable[[ClientState, Any], Message]


@dataclass(frozen=True)
class Rules:
    """The checks of a request and its answer. As a decorator of the client's handler they make an exchange of it: the
    handler's signature names the request and all its possible answers."""

    purposes: Purposes  # of contracts that have it
    enforce: Callable[[JobUnderContract, Any], None]
    check_request: Callable[[ClientState, Any], None] = NoCheck(
        "its fields have bounds, and the contract names the rest"
    )
    check_answer: Callable[[Any, Any, Known], object] = NoCheck("Done says nothing")
    _: KW_ONLY
    leaves_state: bool = False  # outside a part's state: the request is answered again when a checkpoint is restored
    is_fixed: bool = False  # for a run: asked again, it must be answered as before

    def __call__(self, handle: Handler) -> "Exchange":
        hints = get_type_hints(handle)
        request, answers = hints["request"], hints["return"]
        return self.over(request, get_args(answers) or (answers,), handle)

    def over(self, request: type[Message], answers: tuple[type[Message], ...], handle: Handler) -> "Exchange":
        """The exchange of a request whose handler has several."""
        return Exchange(**vars(self), request=request, answers=answers, handle=handle)


@dataclass(frozen=True, kw_only=True)
class Exchange(Rules):
    """A request, its answers, and who decides on both."""

    request: type[Message]
    answers: tuple[type[Message], ...]
    handle: Handler
