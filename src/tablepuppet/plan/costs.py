"""What training costs: rounds and bytes of every algorithm, counted from the shape of the job.

In: a Shape, an algorithm's name and options. Out: a Cost, to be compared with what the meter counts.
The formulae are those of docs/algorithms.md ("Communication"); every algorithm declares its own (`traffic`).
One epoch is an outer round to all blocks, and inner rounds for blocks with several clients.
"""

from __future__ import annotations

from dataclasses import dataclass

from tablepuppet.algorithms.options import AlgorithmOptions
from tablepuppet.algorithms.registry import BY_NAME, is_expanded
from tablepuppet.algorithms.shape import Shape
from tablepuppet.algorithms.traffic import Wave, agreement
from tablepuppet.transport.meter import Network, network

RUN_EPOCHS = 10  # what runs of different algorithms are compared by
HEADER_BYTES = 90  # of one message, all but its arrays


@dataclass(frozen=True, slots=True)
class Cost:
    """The estimated traffic of a run's training rounds."""

    algorithm: str
    epochs: int
    waves: tuple[Wave, ...]

    @property
    def rounds(self) -> int:
        return sum(wave.times for wave in self.waves)

    @property
    def payload_down(self) -> float:
        return sum(wave.times * wave.down for wave in self.waves)

    @property
    def payload_up(self) -> float:
        return sum(wave.times * wave.up for wave in self.waves)

    @property
    def payload(self) -> float:
        """Bytes of arrays, both ways."""
        return self.payload_down + self.payload_up

    @property
    def bytes(self) -> float:
        """All bytes, both ways: the arrays, and a header for every message."""
        return self.payload + sum(wave.times * wave.messages for wave in self.waves) * HEADER_BYTES

    def seconds(self, on: str | Network) -> float:
        """Communication time on a network."""
        net = network(on)
        return sum(wave.times * net.seconds(wave.slowest) for wave in self.waves)


def cost(
    shape: Shape,
    algorithm: str,
    options: AlgorithmOptions,
    epochs: int,
    batch_size: int | None = None,
    *,
    after: int = 0,
) -> Cost:
    """What `epochs` epochs of an algorithm cost, `after` so many others: the first may send more."""
    declared = BY_NAME[algorithm]
    own = shape.expanded if is_expanded(algorithm) else shape
    numbers = range(1) if declared.is_pooled else range(after, after + epochs)
    waves = [wave for epoch in numbers for wave in declared.traffic(own, options, epoch, batch_size)]
    agreed = agreement(shape) if after == 0 and not declared.is_pooled else []
    return Cost(algorithm, epochs, (*waves, *agreed))
