"""The server halves by algorithm."""

from __future__ import annotations

from tablepuppet.algorithms.admm.server import AdmmServer
from tablepuppet.algorithms.base import Problem, Server
from tablepuppet.algorithms.newton.server import NewtonServer
from tablepuppet.algorithms.options import Admm, Newton, Options, Sgd
from tablepuppet.algorithms.sgd.server import SgdServer
from tablepuppet.errors import JobError


def make_server(options: Options, problem: Problem) -> Server:
    """The server half of the algorithm that the options belong to."""
    if isinstance(options, Sgd):
        return SgdServer(problem, options)
    if isinstance(options, Admm):
        return AdmmServer(problem, options)
    if isinstance(options, Newton):
        return NewtonServer(problem, options)
    raise JobError("the centralised baseline has no server half")
