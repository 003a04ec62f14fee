"""The shared parts of all algorithms: the problem, their messages, a client half's setup, and the guard of its rows.

An algorithm has three pure steps. `join_step` runs at the server on shards of joined rows. `union_step` runs at the
coordinator on a sum over one block's clients. `client_step` runs at a client. A server half (`Server`) combines the
first two into rounds. It never sees the table mapping, only the results of walks over joined rows.

`PrivateGradient`: gradients under differential privacy. In: a part's model, a signal per base row, and its owner's clip
and noise (privacy/gaussian.py). Out: a sum over base rows, each clipped once whatever its multiplicity, plus noise.
Penalties are added after the noise, and sums are divided by the mean size of a sample, a constant: neither depends on
any row.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.errors import PrivacyError, TransportError
from tablepuppet.models.heads.base import TrainedHead
from tablepuppet.models.linear import LinearModel
from tablepuppet.models.losses import Loss
from tablepuppet.models.metrics import Sums
from tablepuppet.models.neural import Model
from tablepuppet.models.spec import Penalty
from tablepuppet.privacy.gaussian import GradientPrivacy, bounded, noised
from tablepuppet.privacy.labels import Channel
from tablepuppet.protocol.base import Message, Partial, Predictions

_FEW_ROWS, _FEW_PER_COLUMN, _LEAST_SHARE = 500, 5, 0.25  # joined rows to which a network's inputs keep their l2


class PrivateGradient(msgspec.Struct, eq=False):
    """The guard of a part's rows: everything that depends on them passes it; it counts, and stops at the limit."""

    privacy: GradientPrivacy
    generator: np.random.Generator
    taken: int = 0  # noisy gradients so far
    showings: int = 0  # of noisy predictions

    def gradient(
        self, model: Model, theta: Array, signal: Array, rows: RowNumbers | None, draw: int | None = None
    ) -> Array:
        """Σ_k clip((∂h_k/∂θ)ᵀ Y_k) + N(0, σ²C²)."""
        if not self.privacy.clips:
            return model.gradient(theta, signal, rows, draw)
        self.taken += 1
        if self.taken > self.privacy.limit:
            raise _past("gradients", self.privacy.limit)
        total = model.clipped_gradient(theta, signal, self.privacy, rows, draw)
        noisy = noised(total.astype(np.float64), self.privacy.deviation, self.generator)
        # Exactly on the grid of all parts' noise, where they share it; else a network's numbers may be of 32 bits.
        return noisy if self.is_shared else noisy.astype(total.dtype, copy=False)

    @property
    def is_shared(self) -> bool:
        """Whether the noise of one part alone is not enough: only the masked sum may be seen."""
        return self.privacy.summed_over > 1

    @property
    def remaining(self) -> float:
        """The share of all noisy gradients that is still to come, the latest included."""
        return 1.0 - (self.taken - 1) / self.privacy.limit

    @property
    def counts(self) -> tuple[int, int]:
        return self.taken, self.showings

    @counts.setter
    def counts(self, counts: tuple[int, int]) -> None:
        self.taken, self.showings = counts

    def disclose(self, predictions: Array) -> Array:
        """Predictions as the server may see them."""
        self.showings += self.privacy.hides_predictions
        if self.showings > self.privacy.prediction_limit and self.privacy.hides_predictions:
            raise _past("predictions", self.privacy.prediction_limit)
        return bounded(predictions, self.privacy, self.generator)

    def sample(self, rows: int) -> NDArray[np.int64]:
        """A Poisson sample of base rows, which nobody but this client knows."""
        size = int(self.generator.binomial(rows, self.privacy.rate))
        return np.sort(self.generator.choice(rows, size, replace=False, shuffle=False))


def _past(what: str, limit: int) -> PrivacyError:
    return PrivacyError(f"the job's ε covers {limit:,} noisy {what}, and one more was asked for; nothing is sent")


class Walkable(Protocol):
    """Joined rows that a join step can be run over (join/joined_rows.py)."""

    @property
    def rows(self) -> int: ...

    @property
    def indices(self) -> Sequence[Any]:
        """For each block, facts about p_i: its rows, whether it is the identity."""

    @property
    def labels(self) -> NDArray[Any]:
        """Per row of the label table."""

    @property
    def weights(self) -> Array | None:
        """Of the rows' losses, likewise; None: all one."""

    def allocate(self, name: str, outputs: int, dtype: type[np.floating[Any]] = ...) -> None: ...

    def run(
        self,
        step: Callable[..., Any],
        per_row: Sequence[Array],
        *,
        columns: Sequence[Array] = ...,
        signals: int = ...,
        writes: Collection[str] = ...,
        own: float = ...,
        **given: Any,
    ) -> Any: ...

    def take(self, joined: NDArray[np.int64]) -> tuple[Any, list[RowNumbers]]: ...

    def by_label(self) -> "Walkable":
        """The different labels as joined rows, each as heavy as all that have it."""

    def iterate_sorted(self, name: str) -> Iterator[Array]: ...


class LossSums(msgspec.Struct, frozen=True, eq=False):
    """The loss and its derivatives, summed over joined rows, and per row of each block, (n_i, 1)."""

    loss: float
    residual: float  # Σ ∂ℓ/∂a
    bend: float  # Σ ∂²ℓ/∂a²
    slopes: list[Array]
    curvatures: list[Array]


@runtime_checkable
class Summable(Protocol):
    """Joined rows that no step is run over: sums over all of them come from the join's tree (join/factorised/)."""

    @property
    def rows(self) -> int: ...

    @property
    def sample(self) -> Any:
        """Some of them that were drawn, or all, where there are few: a step can be run over those."""

    def differentiate(self, loss: Loss, per_row: Sequence[Array], intercept: float) -> LossSums: ...

    def multiply(self, block: int, direction: Array) -> list[Array]:
        """collapse_i of one block's expanded direction, weights included."""


class Problem(msgspec.Struct, frozen=True, eq=False):
    """F(θ) = (1/N) Σ ℓ(a; y) + β Σ R(θ_i) over the training rows."""

    loss: Loss
    l2: float | Sequence[float]  # β, one for all blocks or one for each
    joined: Walkable
    rows: tuple[int, ...]  # n_i
    clients: tuple[int, ...] = ()  # Q_i
    multiplicity: tuple[RowNumbers, ...] = ()  # G_i
    epochs: int = 1
    batch_size: int | None = None
    seed: int = 0
    is_private: bool = False  # gradients are noisy: batches are Poisson samples, and nothing else may look at features
    private_rates: tuple[float, ...] = ()  # of each block: rates of plain descent at which such noise costs little
    is_linear: bool = True  # whether every block is h = Tθ
    has_intercept: bool = True
    is_centred: bool = False  # networks have biases of their own; the best constant is added to them and stays fixed
    unit: float = 1.0  # of the label (ModelSpec.unit)
    widths: tuple[int, ...] = ()  # d_i, of linear models
    label_rows: int = 0  # that the joined rows have their labels from
    entries: tuple[int, ...] = ()  # how many of them are not 0 in a row, of heads
    channel: Channel | None = None  # that the labels went through
    head: TrainedHead | None = None  # that joined rows are seen through; None: their sum
    head_l2: float = 0.0  # β of the head's own parameters
    sum_l2: float | None = None  # of the outputs that a head also sums directly; None: as of the others
    l1: float = 0.0
    signs: tuple[tuple[int, ...], ...] = ()  # of each block's encoded columns; empty: any

    @property
    def blocks(self) -> int:
        return len(self.rows)

    @property
    def ridges(self) -> list[float]:
        """β of each block."""
        return [self.l2] * self.blocks if isinstance(self.l2, int | float) else list(self.l2)

    @property
    def slopes_tell_curvature(self) -> bool:
        """Whether ∂²ℓ/∂a² of a joined row follows from ∂ℓ/∂a: labels are as they are, and weigh the same."""
        return self.loss.slope_tells_curvature and self.channel is None and self.joined.weights is None

    def by_output(self, block: int) -> list[float]:
        """β of each output of a block, of a network's inputs less where there are many rows; empty: one for all."""
        if self.sum_l2 is None or self.head is None:
            return []
        spec, few = self.head.head.spec, max(_FEW_ROWS, _FEW_PER_COLUMN * sum(self.widths))
        share = min(1.0, max(_LEAST_SHARE, few / self.joined.rows))
        ridge = self.ridges[block]
        seen = ridge - (1.0 - share) * (ridge - self.sum_l2)
        return [self.sum_l2] * spec.outputs + [seen] * (spec.widths[block] - spec.outputs)

    def penalty(self, block: int) -> Penalty:
        return Penalty(self.ridges[block], self.l1, self.signs[block] if self.signs else ())

    def zeros(self) -> list[Array]:
        widths = [self.loss.outputs] * self.blocks if self.head is None else self.head.head.spec.widths
        return [np.zeros((n, k)) for n, k in zip(self.rows, widths, strict=True)]


class BlockUpdate(msgspec.Struct, frozen=True, eq=False):
    """The message to one block's clients: arrays over its rows are cut to each client's own."""

    kind: type[Message]
    per_row: dict[str, Array | None]
    common: dict[str, Any] = msgspec.field(default_factory=dict)
    rows: RowNumbers | None = None  # which rows per_row is about; None: all
    next_rows: RowNumbers | None = None  # whose predictions are wanted; None: all
    wants_rows: bool = False  # whether next_rows travels


class BlockAnswer(msgspec.Struct, frozen=True, eq=False):
    """The answer of a block's clients: predictions in row order, inner products of θ."""

    values: Array
    products: Array
    client: str = ""  # whose inner products these are; all of a block's clients have the same θ

    def products_of(self, count: int) -> Array:
        """The inner products of a step that has so many."""
        if len(self.products) != count:
            raise TransportError(
                f"client {self.client} answers a step with {len(self.products):,} inner products where {count:,} "
                "belong: what it was asked, or what it answered, was changed on the way"
            )
        return self.products


class Fitted(msgspec.Struct, frozen=True, eq=False):
    """The result of a baseline: parameters as blocks hold them, and how many steps were taken."""

    thetas: list[Array]
    intercept: Array
    steps: int
    value: float = 0.0  # F there, where it is convex


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Figures of a part that a client's half sends as it starts, to be summed over the block's clients: floats only.

    Where sums are masked, a part's own figures leave within a masked sum only, unless they are public.
    """

    is_public: ClassVar[bool] = False


class Server(ABC):
    """The server's half of an algorithm."""

    problem: Problem
    intercept: Array
    predictions: list[Array] | None = None  # h of all train rows, where the server knows them
    tally: Sums | None = None  # the sums for metrics at these predictions, if the last walk has computed them

    def rounds_per_epoch(self) -> int:
        """How many outer rounds an epoch is expected to have."""
        return 1

    def ends_epoch(self, rounds: int) -> bool:
        """Whether an epoch is over after so many rounds of it."""
        return rounds >= self.rounds_per_epoch()

    def sample_from(self, entropy: Sequence[int]) -> None:  # noqa: B027
        """Under feature privacy: chance that the clients drew, for whatever the server samples."""

    @abstractmethod
    def begin(self, predictions: list[Array], figures: Sequence[Any]) -> None:
        """The clients have started: their predictions, and the algorithm's figures of each block."""

    def opening(self) -> list[BlockUpdate] | None:
        """The messages to blocks before the first round, if any."""
        return None

    @abstractmethod
    def join_step(self) -> Sequence[BlockUpdate | None]:
        """One outer round: the message to each block; None: nothing."""

    def union_step(self, block: int, total: list[Array]) -> list[Array]:
        """One inner round of a block: the values for its clients, from the sum of theirs."""
        return total

    @abstractmethod
    def absorb(self, answers: Sequence[BlockAnswer]) -> None:
        """The end of the outer round: new predictions of the blocks that were asked."""

    def settle(self) -> list[dict[str, Any] | None]:
        """The last updates that bring the clients' θ in line with the server's."""
        return [None] * self.problem.blocks

    def finish(self) -> None:  # noqa: B027
        """Training is over: frees everything that only a further round would need."""

    def is_converged(self) -> bool:
        return False

    def residuals(self) -> dict[str, float]:
        """Figures of merit for the history."""
        return {}


class MultiModelServer(Server):
    """The server's half where it trains several models at once that differ in l2, on one fold after the other."""

    most: ClassVar[int] = 8  # models at once: a message holds a column for each

    @property
    @abstractmethod
    def continues(self) -> bool:
        """Whether clients continue from the state that the fold before left them."""

    @abstractmethod
    def turn(self, problems: Sequence[Problem], kept: Sequence[int]) -> None:
        """The next models: a problem for each, all without the same fold; `kept`: the folds that are trained on."""

    @abstractmethod
    def model(self, number: int) -> tuple[list[Array], Array]:
        """h of all rows by one of the models, and its intercept."""


class PartSetup(msgspec.Struct, frozen=True, eq=False):
    """The problem as a client's half knows it."""

    model: Model
    multiplicity: Array  # G of the part's train rows
    weights: Array  # the same, with each joined row counted by its weight
    outputs: int
    blocks: int  # M
    clients: int  # Q_i
    joined_rows: int  # N
    l2: float
    share: float = 1.0  # of the joined rows that the block has a row in: how many have one of the part
    seed: int = 0
    unit: float = 1.0  # of the label
    private: PrivateGradient | None = None  # where gradients are clipped and noised, or predictions are
    l1: float = 0.0
    signs: tuple[int, ...] = ()  # of each encoded column; empty: any
    l2_by_output: Array | None = None  # of linear blocks under a head whose outputs differ; None: l2
    start: Array | None = None  # parameters to begin with; None: the model's own
    before: Any = None  # the client half's last state, of the model that this one continues

    @property
    def linear(self) -> LinearModel:
        assert isinstance(self.model, LinearModel)  # as algorithms for linear blocks alone are given
        return self.model

    @property
    def initial(self) -> Array:
        return self.model.initial() if self.start is None else self.start

    @property
    def decay(self) -> float | Array:
        """β, of each output where they differ."""
        return self.l2 if self.l2_by_output is None else self.l2_by_output

    @property
    def penalty(self) -> Penalty:
        return Penalty(self.l2, self.l1, self.signs)

    @property
    def is_private(self) -> bool:
        """Whether nothing but clipped and noised gradients may shape θ."""
        return self.private is not None and self.private.privacy.clips


Answer = Predictions | Partial


def squared_norm(theta: Array) -> float:
    return float(np.vdot(theta, theta))
