"""Algorithm: the declaration that makes an algorithm one folder and one line in the list (registry.py).

A folder's `algorithm.py` subclasses `Algorithm`. It declares the options, the requirements of a model, the two halves,
the cost and the disclosures. It also declares the form under feature privacy, or why there is none. The job, the plan
and its text, the engine, the client, policies and owners' limits ask the declaration; none of them knows an algorithm
by name. Only the options, the summary and the halves have no default. The defaults fit an algorithm for any model whose
round sends one signal per row down and one prediction per row up. docs/extending.md explains how to add one.

`OwnModel`: an algorithm's own model (`Algorithm.own_model`), and functions that stand for those of other packages. A
model whose score is no sum, or head, of table scores has rounds, a plan and predictions of its own. The packages ask
`registry.own_model` for them and find None for all other models. `registry.require_ability` refuses whatever such a
model cannot do, so no package names an algorithm.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, TypeVar

import msgspec

from tablepuppet.algorithms.base import Answer, Figures, MultiModelServer, PartSetup, Problem, Server, Walkable
from tablepuppet.algorithms.options import AlgorithmOptions
from tablepuppet.algorithms.shape import BlockShape, Exchanges, OuterRound, PartShape, RoundTraffic, RunShape, Shape
from tablepuppet.arrays import Array
from tablepuppet.errors import TransportError
from tablepuppet.models.heads.base import HeadKind
from tablepuppet.models.heads.kinds import traits_of
from tablepuppet.models.losses import Loss
from tablepuppet.models.spec import ModelSpec
from tablepuppet.privacy.ledger import Release
from tablepuppet.privacy.options import FeaturePrivacy
from tablepuppet.protocol.base import Done, Message, Update

FLOAT = 8  # bytes
_IN_TREE, _FREQUENCY = 120e-9, 8e-9  # for a row in a walk over the join's tree, and for each frequency of a series
_LOSS, _MOVED = 18e-9, 9e-9  # CPU seconds for a joined row in a walk: its loss, and each block's value there and back
_CELL = 1.7e-9  # for an encoded number of a table: predictions and a gradient
_PRODUCT = 0.04e-9  # for a product of two of them, in second moments
_EPOCH = 2e-3  # whatever the rows
_CALLED, _PASSED, _WEIGHED = 0.08e-3, 80e-9, 0.3e-9  # a network's step, each row there and back, each parameter of it


def network_seconds(rows: float, parameters: int, steps: float = 0.0) -> float:
    """CPU seconds of a network that so many rows go through, there and back, in so many steps."""
    return _CALLED * steps + rows * (_PASSED + _WEIGHED * parameters)


def moments_seconds(block: BlockShape, matrices: int = 1) -> float:
    """CPU seconds of a block's second moments, under so many weights."""
    return _PRODUCT * block.rows * block.entries**2 * matrices


_Options = TypeVar("_Options", bound=AlgorithmOptions)

# How a server half gets its figures of each block before the first round:
# told             from each client as it starts
# summed           the same, but within masked sums where sums are masked
# power iteration  the largest eigenvalue of Tᵀ diag(w) T / N, over the block's clients
FiguresBy = Literal["none", "told", "summed", "power iteration"]


class PrivateForm(msgspec.Struct, frozen=True):
    """How noisy gradients come about under feature privacy (algorithms/noise.py counts them).

    If clients sample (`options.samples_at_clients`), an outer round takes `local_steps` on samples of base rows. A
    table with several clients divides them among its `inner_rounds`. Otherwise an outer round is one gradient of a
    batch of joined rows.
    """

    local_steps: int = 1
    inner_rounds: int = 1
    curvature: float = 1.0  # of what steps descend, in units of the loss's curvature times ‖x‖² …
    blocks: int | None = None  # … of so many blocks like this one; None: of all blocks and the intercept together
    momentum: float = 0.0
    learning_rate: float | None = None  # of local steps; None: from the clip and the noise


class Merit(msgspec.Struct, frozen=True):
    """How good an algorithm is for a job: of those with the highest rank, the first that is not slow is advised."""

    rank: int  # 2: reaches the optimum; 1: comes near it; 0: better not
    why: str  # "it …"
    burden: str = ""  # the reason where it is slow


# A network takes 1,200 steps, in ten epochs at least and thirty at most.
_NETWORK_STEPS = 1200


def tree_seconds(shape: Shape) -> float:
    """CPU seconds of a walk over the join's tree."""
    return sum(block.rows for block in shape.blocks) * (_IN_TREE + _FREQUENCY * (shape.frequencies or 0))


class Algorithm(Generic[_Options]):
    """One algorithm, declared."""

    # -- what it is ------------------------------------------------------------------------

    options: ClassVar[type[AlgorithmOptions]]
    summary: ClassVar[str]  # one line of a table
    requests: ClassVar[tuple[type[Update], ...]] = ()  # the messages that its client half answers, besides common ones
    answers: ClassVar[tuple[type[Message], ...]] = ()  # what only it answers with
    figures: ClassVar[type[Figures]] = Figures  # that the server half needs of a block before the first round
    figures_come: ClassVar[FiguresBy] = "none"
    remedy: ClassVar[str] = "check the features for extreme values"  # for a run that diverges
    untuned: ClassVar[str] = ""  # advice if a linear model is worse than a constant
    epochs: ClassVar[int] = 10  # default of a job with most losses
    network_epochs: ClassVar[int] = 0  # the same where blocks are networks; 0: no more
    head_epochs: ClassVar[int] = 0  # and of linear blocks under a head; 0: no more
    epoch: ClassVar[str] = "epoch"  # its name in texts
    takes_many_rounds: ClassVar[bool] = False  # whether others are done sooner with a linear model

    # -- what it requires and can do -------------------------------------------------------

    own_model: ClassVar[str] = ""  # a model that only it trains, in rounds of its own; empty: any of the others
    is_pooled: ClassVar[bool] = False  # a baseline that fits pooled features at the server: training/pooled.py
    requires_linear: ClassVar[str] = ""  # why it trains linear models only; empty: any model
    forms_second_moments: ClassVar[bool] = False  # of linear models: Tᵀ diag(w) T, whose width is limited
    heads: ClassVar[tuple[HeadKind, ...]] = ("sum",)  # that it trains
    is_expanded: ClassVar[bool] = False  # a baseline on expanded blocks, BASELINE of the folder of another algorithm
    has_one_score: ClassVar[bool] = False  # whether it trains one score a row only: numbers and two classes
    takes_turns: ClassVar[bool] = False  # whether a round is one block's, and an epoch a round for each of them
    learns_shrinkage: ClassVar[bool] = False  # of a head, where the user leaves it open
    uses_batches: ClassVar[bool] = False  # whether `batch_size` means something
    takes_trees: ClassVar[bool] = False  # whether sums over the join's tree are all that it asks of joined rows
    requires_curvature: ClassVar[bool] = False  # of the loss: one with kinks has none
    uses_proximal_map: ClassVar[bool] = False  # of the loss, which takes long
    takes_start: ClassVar[bool] = False  # whether a linear model may begin with other weights than zero
    supports_nonsmooth: ClassVar[bool] = False  # of the penalty: l1 and signs, and nothing but jobs that have them
    can_omit_intercept: ClassVar[bool] = False  # of a linear model
    sums: ClassVar[str] = "the gradient"  # that clients of a table send to be summed, where no second moments go
    no_private_form: ClassVar[str] = ""  # why it has no form under feature privacy
    stops_when_flat: ClassVar[bool] = False  # whether options.tolerance is about the objective, for lack of residuals

    @property
    def name(self) -> str:
        return self.options.name

    @property
    def uses(self) -> Literal["curvature", "proximal map", "gradient", "bound"]:
        """The part of the loss that it uses: some losses then take more epochs."""
        return "curvature" if self.requires_curvature else "proximal map" if self.uses_proximal_map else "gradient"

    def refusal(self, options: _Options, spec: ModelSpec) -> str | None:
        """Why these options cannot train a model; None: they can."""
        return None

    def chooses_steps(self, options: _Options, *, is_linear: bool, features: FeaturePrivacy | None) -> bool:
        """Whether steps have no length that the user gave: a run then begins at a constant and takes the label's
        unit."""
        return False

    def steps(self, options: _Options, batches: str, unit: float) -> str | None:
        """How steps are taken, for a plan's title; `batches`: "4 steps an epoch on batches of 64 joined rows"."""
        return None

    def title(self, options: _Options) -> str | None:
        """The trained model, for a plan's title; None: the model, the penalty and the epochs."""
        return None

    def can_go_on(self, options: _Options) -> bool:
        """Whether a run may begin with a model that there is."""
        return False

    def can_stop_early(self, options: _Options) -> bool:
        """Whether a run that ends after some epochs is a run of fewer."""
        return True

    def enough_epochs(self, most: int, batches: int, *, is_linear: bool, head: HeadKind = "sum") -> int:
        """How many of the usual epochs suffice if each has `batches` batches."""
        traits = traits_of(head)
        if is_linear and traits.enough_steps and self.head_epochs:
            least = self.head_epochs if traits.is_network else self.epochs
            return min(most, max(least, -(-traits.enough_steps // batches)))
        if is_linear or not self.network_epochs:
            return most
        return min(most, max(self.network_epochs // 3, -(-_NETWORK_STEPS // batches)))

    def run_epochs(self, options: _Options, usual: int) -> int:
        """How many epochs a run has where costs are compared."""
        return usual

    # -- the halves, of all that train in these rounds ---------------------------------------

    def server(self, problem: Problem, options: _Options) -> Server:
        raise self._without_halves()

    def start(self, setup: PartSetup, options: _Options) -> tuple[Any, Figures]:
        """The client half's first state, a frozen msgspec.Struct with `theta`, and its figures for the server."""
        raise self._without_halves()

    def step(self, setup: PartSetup, options: _Options, state: Any, message: Any) -> tuple[Any, Answer | Done]:
        """The client half's next state and its answer to a message: one of `requests`, `Combined` or `Move`."""
        raise self._without_halves()

    def _without_halves(self) -> TransportError:
        return TransportError(f"{self.name} has no halves: it pools features, or has rounds of its own")

    def can_continue(self, problem: Problem) -> bool:
        """Whether it may begin with another model's parameters: it ends where it would from anywhere."""
        return False

    def multi_model_server(
        self, problem: Problem, options: _Options, folds: Sequence[Walkable]
    ) -> MultiModelServer | None:
        """A server half that trains several models of these folds at once; None: they are trained one by one."""
        return None

    def figures_by(self, options: _Options, *, is_linear: bool) -> FiguresBy:
        return self.figures_come

    def public_figures(self, features: int) -> Figures:
        """Under feature privacy: the figures without reading the data, of a block whose |x| is at most 1."""
        return self.figures()

    # -- what it costs ---------------------------------------------------------------------

    def traffic(self, shape: Shape, options: _Options, epoch: int, batch_size: int | None) -> list[RoundTraffic]:
        """The rounds of an epoch; the first is number 0."""
        precision = shape.model_bytes / shape.value_bytes
        outer = OuterRound(
            update=lambda block, part: part.rows * block.outputs,
            answer=lambda block, part: part.rows * block.outputs * precision + 1,
            inner=lambda block: [(block.parameters * precision, block.parameters * precision)],
        )
        return outer.traffic(shape)

    def round_range(self, shape: Shape, options: _Options, estimate: int) -> tuple[int, int]:
        """The least and the largest number of rounds of a run, if it depends on the data."""
        return estimate, estimate

    walks: ClassVar[float] = 2.0  # over the joined rows, of an epoch
    row_seconds: ClassVar[float] = 0.0  # of CPU time that an epoch takes for a joined row besides walks
    class_seconds: ClassVar[tuple[float, float]] = (0.0, 0.0)  # more for one of several classes, and for each of them

    def cpu(self, shape: Shape, options: _Options, epoch: int, batches: int = 1) -> float:
        """CPU seconds of the epoch of this number, of the server and all clients, messages apart: as measured where
        docs/performance.md was. `batches`: how many it has."""
        given = sum(block.outputs for block in shape.blocks)
        moved = self.walks * (_LOSS * shape.outputs + _MOVED * given) + self.row_seconds
        if shape.outputs > 1:
            moved += self.class_seconds[0] + self.class_seconds[1] * shape.outputs
        tables = sum(
            _CELL * block.rows * block.entries * block.outputs
            if shape.is_linear
            else network_seconds(block.rows, block.parameters) / 2
            for block in shape.blocks
        )
        joined = shape.joined * moved if shape.frequencies is None else self.walks * tree_seconds(shape)
        return _EPOCH + joined + tables

    def server_memory(self, shape: Shape, options: _Options) -> int:
        """Bytes of vectors over the rows of all blocks."""
        return 4 * FLOAT * sum(block.rows * block.outputs for block in shape.blocks)

    def state_memory(self, shape: Shape, options: _Options) -> int:
        """Bytes of state for each joined row, where joined rows lie."""
        return 0

    def client_memory(self, shape: Shape, options: _Options, block: BlockShape, part: PartShape) -> float:
        """Bytes of a part, besides its encoded rows and vectors over them."""
        return 4 * FLOAT * block.parameters

    # -- what it discloses -----------------------------------------------------------------

    def exchanges(self, options: _Options, run: RunShape) -> Exchanges:
        """The number of each kind of message with a part in a run."""
        return Exchanges(run.epochs, has_start=not run.is_linear, evaluates_train=True)

    def why_not_private(self, options: _Options) -> str | None:
        """Why there is no form of it under feature privacy; None: there is."""
        return self.no_private_form or f"{self.name} has no private form"

    def noisy_sums(self, options: _Options) -> int | None:
        """How many sums over rows a model consists of, if they can all be noisy; None: exact rows decide more."""
        return None

    def private_form(self, options: _Options, features: FeaturePrivacy, *, is_linear: bool, blocks: int) -> PrivateForm:
        """How gradients are noised, where `why_not_private` has no objection."""
        return PrivateForm()

    def signal_change(self, options: _Options, loss: Loss, move: float, weight: float, *, is_linear: bool) -> float:
        """How much a joined row's signal changes at most where its score moves by so much, in every round so far."""
        return weight * loss.slope_change(move)

    # -- when to take it -------------------------------------------------------------------

    def merit(self, shape: Shape) -> Merit:
        return Merit(0, "it is there")


Ability = Literal["coefficients", "drift", "export", "module"]


class OwnNoise(msgspec.Struct, frozen=True):
    """How the noise on a whole model keeps feature privacy; such a run is not cut short."""

    rounds: int  # releases of a run
    releases: Sequence[Release]  # of the model to outsiders
    form: Any  # for the algorithm's own use


class Root(msgspec.Struct, frozen=True):
    """The first split of a tree."""

    block: int
    feature: int
    now: tuple[float, float]  # the weight of joined rows on its left and right
    then: tuple[float, float]  # the same of training rows, as the model has it


class OwnModel(msgspec.Struct, frozen=True):
    """Types of later rooms are not named here: each function has those of the one whose place it takes."""

    exposure_title: str  # of the list of a row's facts that the server may see
    too_much: str  # what "the server would" do where these reconstruct a row
    unmatched: str  # the values of a row without a partner in a LEFT JOIN
    refusals: Mapping[Ability, str]  # messages about abilities that it lacks; {what}: the form that users asked for
    run: Callable[[Any, Any, str, Any], Any]  # training/run.py: a job that is prepared, link, job's name, callback
    continue_from: Callable[[Any], Any]  # of a model or its folder: the state from which a job continues it

    # plan/: of the shape of a job, and the job or its options
    advise: Callable[[Shape, Any], Any]
    insights: Callable[[Any, Shape, Any], list[Any]]  # who learns what
    exposures: Callable[[Shape, Any], list[Any]]  # facts about a row that the server may see
    plan_noise: Callable[[Any, Any, Loss, float, float], OwnNoise]  # of a job, its mapping, a typical slope and weight

    # prediction/
    fingerprints: Callable[[Any], dict[str, str]]  # of a model: of its part for each block, by name
    ask_rows: Callable[[Any, Sequence[Any], Sequence[int], Any, str], list[Any]]  # owners' answers, by block
    check_columns: Callable[[Any, Sequence[Any]], None]  # refuses other types than those a block was trained on
    scores: Callable[[Any, Sequence[Any], Sequence[Any], int], Array]  # of joined rows, from the owners' answers
    importance: Callable[[Any], Any]  # how far each feature moves the score, as a data frame
    root_sums: Callable[[Any, Sequence[Any], Sequence[Any], int], list[Root]]  # of the same rows as their scores

    # training/inspection.py: answers of a block's owners once a feature is changed
    set_feature: Callable[[Any, int, Any, int, Any], Any]  # one value in all rows
    part_feature: Callable[[Any, int, int], Any]  # the model whose trees ask one more block for a feature
    usual_values: Callable[[Any, int, int, int], Sequence[Any]]  # of a feature; none: the model knows none
