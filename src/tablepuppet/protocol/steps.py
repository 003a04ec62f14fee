"""What the two halves of any algorithm say to each other in a round, besides the updates that it declares itself.

A part answers an update with its predictions, or with one client's summand of what all clients of the block share:
in plain numbers (`Partial`) or under masks (`Masked`). The rules of these exchanges are in exchanges/steps.py.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.protocol.base import MOST_COLUMNS, Exponent, FieldDisclosure, FieldDisclosures, Message, PartRequest


class Update(PartRequest, frozen=True):
    """What an algorithm's server half sends a part in a round. → Predictions | Partial | Masked"""

    keeps_trail: ClassVar[bool] = False  # whether predictions come with inner products of θ and all directions so far

    def check(self, outputs: int, clients: int) -> None:
        """Raises a WrongError where a field does not fit the others, or the part that it is for."""


class Partial(Message, frozen=True):
    """One client's summand: the union operator adds those of all clients of the block."""

    discloses: ClassVar[FieldDisclosures] = (FieldDisclosure("values", "sums"),)
    values: Annotated[list[Array], Meta(max_length=MOST_COLUMNS)]


class Masked(Message, frozen=True):
    """One client's summand in fixed point and under masks that cancel in the sum (privacy/masks.py).

    Without a scale that fits, only how large it is: `Seal` names one.
    """

    discloses: ClassVar[FieldDisclosures] = (FieldDisclosure("exponents", "sums"),)
    values: list[NDArray[np.int64]]
    exponents: list[Exponent]  # of each array: the power of two above its largest entry
    scales: list[Exponent]  # of each array: the power of two that the integers are in units of
    kinds: Annotated[list[Literal["<f8", "<f4"]], Meta(max_length=MOST_COLUMNS)]  # what each array was


class Combined(PartRequest, frozen=True):
    """What the union step made of the sum. → Predictions | Partial | Masked"""

    discloses: ClassVar[FieldDisclosures] = (FieldDisclosure("values", "agreed values"),)
    values: Annotated[list[Array], Meta(min_length=1, max_length=2)]
    scales: list[Exponent] = msgspec.field(default_factory=list)  # of the next masked summand


class Move(PartRequest, frozen=True):
    """The step coefficients chosen for the last directions. → Done"""

    coefficients: Array


class Predictions(Message, frozen=True):
    """h of the rows asked for, and inner products of the parameters (‖θ‖² first)."""

    discloses: ClassVar[FieldDisclosures] = (
        FieldDisclosure("values", "predictions", is_per_row=True),
        FieldDisclosure("products", "norms"),
    )
    values: Array
    products: Array
