"""compare: two models on the same rows, side by side, and how sure one can be that one is better.

In: what both say of the same joined rows. Out: Comparison. Joined rows that share a row of the label's table are no
witnesses of their own: the standard error counts them as one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tablepuppet.engine.evaluate import Scored
from tablepuppet.engine.metrics import Metrics
from tablepuppet.errors import ModelError
from tablepuppet.mapping.mapping import rows_here

if TYPE_CHECKING:
    import pandas as pd

_SURE = 1.96  # standard errors


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two models on the same rows; `difference`: the mean loss of the second less that of the first."""

    first: Metrics
    second: Metrics
    rows: int
    difference: float
    standard_error: float

    @property
    def is_worse(self) -> bool:
        """Whether the second model is worse, beyond chance."""
        return self.difference > _SURE * self.standard_error

    @property
    def is_better(self) -> bool:
        return self.difference < -_SURE * self.standard_error

    @property
    def table(self) -> pd.DataFrame:
        """A row for every metric."""
        import pandas as pd

        names = list(dict.fromkeys([*self.first, *self.second]))
        nan = float("nan")
        pairs = [(self.first.get(name, nan), self.second.get(name, nan)) for name in names]
        return pd.DataFrame([(n, a, b, b - a) for n, (a, b) in zip(names, pairs, strict=True)], columns=_HEAD)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"is_worse": self.is_worse, "is_better": self.is_better}

    def _repr_html_(self) -> str:
        return str(self.table.to_html(index=False, float_format="%.4g"))

    def __str__(self) -> str:
        verdict = "better" if self.is_better else "worse" if self.is_worse else "neither better nor worse"
        return (
            f"The second model is {verdict}: its mean loss on {self.rows:,} rows differs by {self.difference:+.4g} "
            f"± {_SURE * self.standard_error:.2g}."
        )


_HEAD = ["metric", "first", "second", "difference"]


def compare(first: Scored, second: Scored) -> Comparison:
    """The same rows in the same order, seen by two models."""
    if type(first.model.loss) is not type(second.model.loss):
        raise ModelError("the two models have different losses, and their rows cannot be compared one by one")
    rows, others = rows_here(first.rows), rows_here(second.rows)
    if rows.rows != others.rows:
        raise ModelError("the tables changed between the two models; compare them again")
    labels = rows.joined_labels()
    loss = first.model.loss
    gained = loss.value(second.scores(), others.joined_labels()) - loss.value(first.scores(), labels)
    mean = float(gained.mean()) if rows.rows else float("nan")
    index = rows.label_index.numbers(rows.rows)
    witnesses = np.bincount(index, gained - mean, minlength=1)
    error = float(np.sqrt(np.square(witnesses).sum())) / max(1, rows.rows)
    return Comparison(first.measured().metrics, second.measured().metrics, rows.rows, mean, error)
