"""How much of a gradient is kept and how far a step goes under noise, from what is public.

    t = r √F g                           a base row whose g joined rows in a sample all pull one way, with the slope r
    e = L² F (Σ_t η_t²) (σC / (r D))²    what noise adds to the loss at most, as a share of where the loss starts

In: of each block, F (‖x‖² is at most F), g, σ, the number of steps, the divisor D of its sums and the largest rate that
is stable; the slope r of the loss and its curvature L before training, which follow from labels alone. Out: C and η.

A tight clip bends gradients, and the tables of a join then pull against each other; a loose one brings more noise. So C
is as loose as a small share e allows, between t and 3t, and η makes up for the rest: the fewer rows a table has and the
more epochs there are, the smaller its steps (docs/decisions/0025).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_SHARE = 0.01  # of the first loss, that all blocks' noise may cost
_LOOSEST = 3.0  # clip, in units of t


@dataclass(frozen=True, slots=True)
class NoisySteps:
    """One block's noisy descent; its rate falls to zero linearly, so that Σ_t η_t² is a third of steps · η²."""

    features: float  # F
    rows: float  # g
    noise: float  # σ
    steps: int
    divisor: float  # D
    rate: float  # the largest stable η
    momentum: float = 0.0

    def cost(self, clip: float, slope: float, curvature: float) -> float:
        """e."""
        deviation = self.noise * clip / (slope * self.divisor)
        length = self.rate / (1.0 - self.momentum)
        return float(curvature**2 * self.features * self.steps / 3.0 * (length * deviation) ** 2)

    def typical(self, slope: float) -> float:
        """t."""
        return slope * math.sqrt(self.features) * self.rows

    def clip(self, slope: float, curvature: float, share: float) -> float:
        """C."""
        typical = self.typical(slope)
        affordable = math.sqrt(share / self.cost(1.0, slope, curvature))
        return min(max(affordable, typical), _LOOSEST * typical)


def tuned(
    blocks: Sequence[NoisySteps], slope: float, curvature: float, clips: Sequence[float] | None
) -> list[tuple[float, float]]:
    """C and η of every block, each within its part of the share; clips that are given stay.

    >>> steps = NoisySteps(features=2.0, rows=1.0, noise=1.0, steps=100, divisor=1e6, rate=0.1)
    >>> [(round(c, 3), rate) for c, rate in tuned([steps], 1.0, 1.0, None)]
    [(4.243, 0.1)]
    """
    share = _SHARE / max(1, len(blocks))
    found = []
    for number, block in enumerate(blocks):
        chosen = block.clip(slope, curvature, share) if clips is None else clips[number]
        cost = block.cost(chosen, slope, curvature)
        found.append((chosen, block.rate * min(1.0, math.sqrt(share / cost))))
    return found
