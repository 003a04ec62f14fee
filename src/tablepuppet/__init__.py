"""TablePuppet: train on a SQL join whose tables never leave their owners.

The names below are loaded when they are first used: `import tablepuppet` and `tablepuppet --version` load no library.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tablepuppet.version import __version__ as __version__

if TYPE_CHECKING:
    from tablepuppet.algorithms.options import Admm, Centralized, Newton, Sgd
    from tablepuppet.api import Federation
    from tablepuppet.api.estimators import RelationalClassifier, RelationalRegressor
    from tablepuppet.engine.result import Result
    from tablepuppet.errors import TablePuppetError
    from tablepuppet.mapping.engines import Ray
    from tablepuppet.plan.plan import Plan
    from tablepuppet.prediction.model import Model
    from tablepuppet.prediction.saved import load
    from tablepuppet.tables.embedding import embed
    from tablepuppet.tables.source import source
    from tablepuppet.transport.meter import Network

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

if not TYPE_CHECKING:
    _HOMES = {
        "Admm": "algorithms.options",
        "Centralized": "algorithms.options",
        "Federation": "api",
        "Model": "prediction.model",
        "Network": "transport.meter",
        "Newton": "algorithms.options",
        "Plan": "plan.plan",
        "Ray": "mapping.engines",
        "RelationalClassifier": "api.estimators",
        "RelationalRegressor": "api.estimators",
        "Result": "engine.result",
        "Sgd": "algorithms.options",
        "TablePuppetError": "errors",
        "embed": "tables.embedding",
        "load": "prediction.saved",
        "source": "tables.source",
    }

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = found  # the next look-up does not come here
        return found

    def __dir__():
        return sorted({*globals(), *__all__})
