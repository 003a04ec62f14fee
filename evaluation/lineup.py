"""Who is compared: the paper's seven algorithms under the paper's names, and Newton."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Group = Literal["baseline", "VFL and RFL-V", "RFL"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One algorithm of the comparison; `clients` is how many owners each table has."""

    name: str
    algorithm: str
    clients: int
    group: Group
    searched: Literal["learning_rate", "rho", None] = None

    @property
    def key(self) -> str:
        return self.name.lower()


CENTRALISED = Entry("Centralised", "centralized", 1, "baseline")
LINEUP = (
    CENTRALISED,
    Entry("VFL-SGD", "vfl-sgd", 1, "VFL and RFL-V", "learning_rate"),
    Entry("VFL-ADMM", "vfl-admm", 1, "VFL and RFL-V", "rho"),
    Entry("RFL-SGD-V", "sgd", 1, "VFL and RFL-V", "learning_rate"),
    Entry("RFL-ADMM-V", "admm", 1, "VFL and RFL-V", "rho"),
    Entry("RFL-Newton-V", "newton", 1, "VFL and RFL-V"),
    Entry("RFL-SGD", "sgd", 2, "RFL", "learning_rate"),
    Entry("RFL-ADMM", "admm", 2, "RFL", "rho"),
    Entry("RFL-Newton", "newton", 2, "RFL"),
)

# Communication time of one epoch of MovieLens-1M on US-UK, in seconds, as the paper reports or implies it.
PAPER_SECONDS = {
    "VFL-SGD": 25.2,
    "VFL-ADMM": 1.66,
    "RFL-SGD-V": 24.0,
    "RFL-ADMM-V": 0.38,
    "RFL-SGD": 47.7,
    "RFL-ADMM": 1.75,
}
