"""TablePuppet: train on a SQL join whose tables never leave their owners.

The names below are loaded when they are first used: `import tablepuppet` and `tablepuppet --version` load no library.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tablepuppet.version import __version__ as __version__

if TYPE_CHECKING:
    from tablepuppet.algorithms.admm.options import Admm
    from tablepuppet.algorithms.als.rounds import Als
    from tablepuppet.algorithms.boosting.options import Boosting
    from tablepuppet.algorithms.centralized.algorithm import Centralized
    from tablepuppet.algorithms.elastic.client import Elastic
    from tablepuppet.algorithms.newton.client import Newton
    from tablepuppet.algorithms.sgd.rounds import Sgd
    from tablepuppet.api import Federation
    from tablepuppet.api.estimators import RelationalClassifier, RelationalRegressor
    from tablepuppet.api.history import history
    from tablepuppet.api.recommend import ranking_metrics
    from tablepuppet.api.search import cross_validate, path, search
    from tablepuppet.errors import TablePuppetError
    from tablepuppet.job.job import Ray
    from tablepuppet.plan.plan import Plan
    from tablepuppet.prediction.model import Model
    from tablepuppet.prediction.saved import load
    from tablepuppet.sources.embedding import embed
    from tablepuppet.sources.source import source
    from tablepuppet.training.curves import Curves
    from tablepuppet.training.result import Result
    from tablepuppet.training.search import SearchResult
    from tablepuppet.transport.meter import Network

__all__ = [
    "Admm",
    "Als",
    "Boosting",
    "Centralized",
    "Curves",
    "Elastic",
    "Federation",
    "Model",
    "Network",
    "Newton",
    "Plan",
    "Ray",
    "RelationalClassifier",
    "RelationalRegressor",
    "Result",
    "SearchResult",
    "Sgd",
    "TablePuppetError",
    "cross_validate",
    "embed",
    "history",
    "load",
    "path",
    "ranking_metrics",
    "search",
    "source",
]

if not TYPE_CHECKING:
    _HOMES = {
        "Admm": "algorithms.admm.options",
        "Als": "algorithms.als.rounds",
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
        "embed": "sources.embedding",
        "history": "api.history",
        "load": "prediction.saved",
        "path": "api.search",
        "ranking_metrics": "api.recommend",
        "search": "api.search",
        "source": "sources.source",
    }

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
