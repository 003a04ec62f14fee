"""What metrics are made of: sums over joined rows, of scores beside labels.

In: the scores and labels of some rows. Out: sums from which the objective and all metrics but the area under the curve
follow (engine/metrics.py). Whoever has the scores at hand can add them up; no walk over joined rows is needed for them
alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.models.losses import Loss, Squared
from tablepuppet.models.weighted import Weighted
from tablepuppet.privacy.labels import Channel

Tally = dict[str, Any]


def tally(loss: Loss, scores: Array, labels: Array, channel: Channel | None, total: float | None = None) -> Tally:
    """The sums of some rows; `total` is Σ ℓ of the given loss, where it is known.

    Of labels that their owners made noisy, sums are estimates without bias of what the true labels would give.
    """
    sums: Tally = {"rows": len(labels)}
    if isinstance(loss, Weighted):
        sums |= {
            "loss": loss.plain.total(scores, labels),
            "weighted": loss.total(scores, labels) if total is None else total,
            "weight": float(loss.weights.sum()),
        }
    else:
        sums["loss"] = loss.total(scores, labels) if total is None else total
    if isinstance(loss.plain if isinstance(loss, Weighted) else loss, Squared):
        error = scores[:, 0] - labels
        squares = labels * labels
        extra = 0.0 if channel is None else float((channel.unbiased_square(labels) - squares).sum())
        return sums | {
            "squared": float(error @ error) + extra,
            "absolute": float(np.abs(error).sum()),
            "label": float(labels.sum()),
            "label_squared": float(squares.sum()) + extra,
        }
    guess = scores[:, 0] > 0 if loss.outputs == 1 else scores.argmax(axis=1)
    seen = labels if channel is None or loss.outputs > 1 else labels > 0.5
    return sums | {"correct": int(np.count_nonzero(guess == seen))}
