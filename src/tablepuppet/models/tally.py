"""What metrics are made of: sums over joined rows, of scores beside labels.

In: the scores and labels of some rows. Out: sums from which the objective and all metrics but those of scores in order
follow (metrics.py). Whoever has the scores at hand can add them up; no walk over joined rows is needed for them alone.
"""

from __future__ import annotations

from tablepuppet.arrays import Array
from tablepuppet.models.losses.base import Loss
from tablepuppet.models.losses.weighted import Weighted
from tablepuppet.models.metrics import Moment, Sums, sums_of
from tablepuppet.privacy.labels import Channel

Tally = Sums


def tally(
    loss: Loss,
    scores: Array,
    labels: Array,
    channel: Channel | None,
    total: float | None = None,
    moment: Moment = Moment.EPOCH,
) -> Tally:
    """The sums of some rows; `total` is Σ ℓ of the given loss, where it is known.

    Of labels that their owners made noisy, sums are estimates without bias of what the true labels would give.
    """
    sums: Tally = {"rows": len(labels)}
    if isinstance(loss, Weighted):
        plain = loss.plain
        sums |= {
            "loss": plain.total(scores, labels),
            "weighted": loss.total(scores, labels) if total is None else total,
            "weight": float(loss.weights.sum()),
        }
    else:
        plain = loss
        sums["loss"] = loss.total(scores, labels) if total is None else total
    for part in sums_of(plain.metrics, moment):
        sums |= part(plain, scores, labels, channel)
    return sums
