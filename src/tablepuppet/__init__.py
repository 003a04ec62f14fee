"""TablePuppet: train on a SQL join whose tables never leave their owners."""

from tablepuppet.algorithms.options import Admm, Centralized, Newton, Sgd
from tablepuppet.engine.result import Result
from tablepuppet.errors import TablePuppetError
from tablepuppet.estimators import RelationalClassifier, RelationalRegressor
from tablepuppet.federation import Federation
from tablepuppet.mapping.engines import Ray
from tablepuppet.plan.plan import Plan
from tablepuppet.prediction.model import Model
from tablepuppet.prediction.saved import load
from tablepuppet.tables.embedding import embed
from tablepuppet.tables.source import source
from tablepuppet.transport.meter import Network
from tablepuppet.version import __version__ as __version__

__all__ = [
    "Admm",
    "Centralized",
    "Federation",
    "Model",
    "Network",
    "Newton",
    "Plan",
    "Ray",
    "RelationalClassifier",
    "RelationalRegressor",
    "Result",
    "Sgd",
    "TablePuppetError",
    "embed",
    "load",
    "source",
]
