"""centralized, declared."""

from __future__ import annotations

from tablepuppet.algorithms.algorithm import Optimum, PooledAlgorithm
from tablepuppet.algorithms.centralized.minimise import minimise
from tablepuppet.algorithms.centralized.options import Centralized
from tablepuppet.arrays import Array
from tablepuppet.models.losses import Loss


class CentralizedAlgorithm(PooledAlgorithm[Centralized]):
    """F minimised on the materialised join, to convergence."""

    options = Centralized
    summary = "the baseline: features are pooled in one process, and F is minimised on the materialised join"
    requires_linear = "it needs a convex objective with second derivatives in closed form"
    requires_curvature = True

    def fit(self, features: Array, labels: Array, loss: Loss, l2: float, options: Centralized) -> Optimum:
        return minimise(features, labels, loss, l2, options.tolerance)

    def why_not_private(self, options: Centralized) -> str:
        return "the centralised baseline pools all features; it has no private form"


ALGORITHM = CentralizedAlgorithm()
