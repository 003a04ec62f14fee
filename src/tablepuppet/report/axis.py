"""Axes: from values to round ticks and positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values laid over a range of pixels."""

    low: float
    high: float
    start: float  # the pixel of `low`
    stop: float  # the pixel of `high`
    is_log: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value."""
        if self.is_log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """About so many round values inside the range.

        >>> Axis(0, 10, 0, 100).ticks()
        [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
        >>> Axis(1e-6, 1.0, 0, 100, is_log=True).ticks()
        [1e-06, 0.0001, 0.01, 1.0]
        """
        if self.is_log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            stride = max(1, math.ceil((last - first) / count))
            return [10.0**power for power in range(first, last + 1, stride)]
        step = _round_step((self.high - self.low) / count)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(k * step, 12) for k in range(first, last + 1)]


def axis_over(
    values: Sequence[float], start: float, stop: float, *, is_log: bool = False, from_zero: bool = False
) -> Axis:
    """An axis that holds all values, with a little room."""
    low, high = min(values), max(values)
    if is_log:
        bottom = math.floor(math.log10(low))
        top = max(math.ceil(math.log10(high)), bottom + 1)
        return Axis(10.0**bottom, 10.0**top, start, stop, is_log=True)
    if from_zero:
        low = min(low, 0.0)
    room = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    return Axis(low if from_zero else low - room, high + room, start, stop)


def _round_step(step: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))
