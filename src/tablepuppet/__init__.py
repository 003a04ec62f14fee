"""TablePuppet: train on a SQL join whose tables never leave their owners.

The names below are loaded when they are first used: `import tablepuppet` and `tablepuppet --version` load no library.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tablepuppet.algorithms.admm.client import Admm as Admm
    from tablepuppet.algorithms.als.algorithm import Als as Als
    from tablepuppet.algorithms.boosting.options import Boosting as Boosting
    from tablepuppet.algorithms.centralized.algorithm import Centralized as Centralized
    from tablepuppet.algorithms.elastic.client import Elastic as Elastic
    from tablepuppet.algorithms.newton.client import Newton as Newton
    from tablepuppet.algorithms.sgd.rounds import Sgd as Sgd
    from tablepuppet.api import Federation as Federation
    from tablepuppet.api.estimators import RelationalClassifier as RelationalClassifier
    from tablepuppet.api.estimators import RelationalRegressor as RelationalRegressor
    from tablepuppet.api.history import history as history
    from tablepuppet.api.recommend import ranking_metrics as ranking_metrics
    from tablepuppet.api.search import cross_validate as cross_validate
    from tablepuppet.api.search import path as path
    from tablepuppet.api.search import search as search
    from tablepuppet.errors import TablePuppetError as TablePuppetError
    from tablepuppet.job.job import Ray as Ray
    from tablepuppet.plan.plan import Plan as Plan
    from tablepuppet.prediction.model import Model as Model
    from tablepuppet.prediction.saved import load as load
    from tablepuppet.sources.memory import embed as embed
    from tablepuppet.sources.source import source as source
    from tablepuppet.training.curves import Curves as Curves
    from tablepuppet.training.result import Result as Result
    from tablepuppet.training.search import SearchResult as SearchResult
    from tablepuppet.transport.meter import Network as Network

    __all__: list[str]

if not TYPE_CHECKING:
    _HOMES = {
        "Admm": "algorithms.admm.client",
        "Als": "algorithms.als.algorithm",
        "Boosting": "algorithms.boosting.options",
        "Elastic": "algorithms.elastic.client",
        "Centralized": "algorithms.centralized.algorithm",
        "Curves": "training.curves",
        "Federation": "api",
        "Model": "prediction.model",
        "Network": "transport.meter",
        "Newton": "algorithms.newton.client",
        "Plan": "plan.plan",
        "Ray": "job.job",
        "RelationalClassifier": "api.estimators",
        "RelationalRegressor": "api.estimators",
        "Result": "training.result",
        "SearchResult": "training.search",
        "Sgd": "algorithms.sgd.rounds",
        "TablePuppetError": "errors",
        "cross_validate": "api.search",
        "embed": "sources.memory",
        "history": "api.history",
        "load": "prediction.saved",
        "path": "api.search",
        "ranking_metrics": "api.recommend",
        "search": "api.search",
        "source": "sources.source",
    }
    __all__ = list(_HOMES)

    def __getattr__(name):
        if name in _HOMES:
            found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        elif not name[:1].isupper() or (found := _options().get(name)) is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found  # found directly next time
        return found

    def _options():
        """The options of every algorithm in the list, also of those that are not named above."""
        algorithms = import_module(f"{__name__}.algorithms.registry").ALGORITHMS
        return {algorithm.options.__name__: algorithm.options for algorithm in algorithms}

    def __dir__():
        return sorted({*globals(), *__all__})
