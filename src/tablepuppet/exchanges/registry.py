"""The one list of all exchanges: nothing else passes between the server and a client.

A subject's exchanges are all that its module declares; an algorithm declares its updates (`Algorithm.requests`). Both
ends decode only the requests and answers in this list, and find every check in it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Union

from tablepuppet.algorithms.boosting import exchanges as boosting
from tablepuppet.algorithms.registry import ALGORITHMS
from tablepuppet.exchanges import steps
from tablepuppet.exchanges.base import Exchange
from tablepuppet.owner.policy import refused_by
from tablepuppet.protocol.base import Failure, Message
from tablepuppet.protocol.bounds import Known, WrongError

_BEFORE_TRAINING = ("schema", "proposal", "groups", "history", "keys", "labels", "features")
_NAMES = (*_BEFORE_TRAINING, "parts", "start", "steps", "prediction")
_SUBJECTS = [*(import_module(f"tablepuppet.exchanges.{name}") for name in _NAMES), boosting]
_DECLARED = [found for subject in _SUBJECTS for found in vars(subject).values() if isinstance(found, Exchange)]
_UPDATES = [steps.update_exchange(kind, *algorithm.answers) for algorithm in ALGORITHMS for kind in algorithm.requests]
EXCHANGES: dict[type[Message], Exchange] = {exchange.request: exchange for exchange in (*_DECLARED, *_UPDATES)}

if TYPE_CHECKING:
    REQUESTS = Message
    RESPONSES = Message
else:
    REQUESTS = Union[tuple(EXCHANGES)]  # noqa: UP007
    RESPONSES = Union[(*dict.fromkeys(kind for e in EXCHANGES.values() for kind in e.answers), Failure)]


def find_exchange(request: Message) -> Exchange:
    """The exchange that a request begins; a request without one is refused."""
    exchange = EXCHANGES.get(type(request))
    if exchange is None:
        raise refused_by("none", f"no rule decides whether a {type(request).__name__} may be answered")
    return exchange


def check_answer(request: Message, answer: Any, known: Known) -> None:
    """Raises WrongError unless this can be an honest answer; `known`: earlier answers of the same client."""
    if isinstance(answer, Failure):
        return
    exchange = EXCHANGES[type(request)]
    if not isinstance(answer, exchange.answers):
        names = " or ".join(kind.__name__ for kind in exchange.answers)
        raise WrongError(type(answer).__name__, f"is no answer to {type(request).__name__}, which asks for {names}")
    exchange.check_answer(request, answer, known)
