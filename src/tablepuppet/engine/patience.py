"""Early stopping: which epoch was the best on the validation rows, and when there is no hope of a better one.

In: the validation figure after each epoch. Out: whether it is the best so far, and whether to stop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tablepuppet.arrays import Array
from tablepuppet.models.losses import metrics_by_name


@dataclass(slots=True, eq=False)
class Patience:
    """Watches one figure; `epochs` of them without one that is better by `min_delta` are enough."""

    monitor: str
    epochs: int
    min_delta: float = 0.0
    best_epoch: int = 0  # 0: there is none yet
    intercept: Array | None = None  # the server's own parameters then
    _best: float = math.inf
    _seen: int = 0

    def sees(self, epoch: int, figures: dict[str, float], intercept: Array) -> bool:
        """Whether this epoch is the best so far.

        >>> import numpy as np
        >>> patience = Patience("loss", epochs=1)
        >>> [patience.sees(epoch, {"loss": loss}, np.zeros(1)) for epoch, loss in ((1, 0.5), (2, 0.4), (3, 0.41))]
        [True, True, False]
        >>> patience.is_over, patience.best_epoch
        (True, 2)
        """
        value = figures[self.monitor]
        metric = metrics_by_name().get(self.monitor)  # None: the loss
        cost = -value if metric is not None and metric.is_higher_better else value
        self._seen = epoch
        if not (cost < self._best - self.min_delta or (self.best_epoch == 0 and not math.isnan(cost))):
            return False
        self._best, self.best_epoch, self.intercept = cost, epoch, intercept.copy()
        return True

    @property
    def is_over(self) -> bool:
        return self._seen - self.best_epoch >= self.epochs
