"""Training and prediction: what the rounds of all algorithms share, how a run ends, and what a trained model is asked.

Updates (each algorithm declares its own, algorithms/) go to a part and bring its predictions, or one client's summand
of what all clients of the block share.
"""

from __future__ import annotations

from typing import ClassVar, Generic, Literal, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.models.spec import ModelSpec
from tablepuppet.privacy.gaussian import GradientPrivacy
from tablepuppet.privacy.masks import MaskKey
from tablepuppet.protocol.base import FieldDisclosure, FieldDisclosures, Message, Stage
from tablepuppet.protocol.features import Encoder

_Options = TypeVar("_Options")


class StartPart(Message, Generic[_Options], frozen=True):
    """Make the part's model and start the algorithm's client half. → Started"""

    stage: ClassVar[Stage] = "start"
    discloses: ClassVar[FieldDisclosures] = (
        FieldDisclosure("weights", "summed weights", is_per_row=True),
        FieldDisclosure("multiplicity", "multiplicities", is_per_row=True),
    )
    job: str
    part: int
    algorithm: _Options  # of one of the algorithms in the list (algorithms/registry.py)
    model: ModelSpec
    block: int  # its number, which the initial values of a neural model depend on
    name: str  # the block's
    outputs: int  # d_c, or the width that a head wants of the block
    blocks: int  # M
    clients: int  # how many parts the block has
    joined_rows: int  # N, training rows
    share: float  # of those that rows of the block take part in: how many are the part's
    l2: float
    seed: int
    privacy: GradientPrivacy | None = None
    weights: Array | None = None  # of each train row, summed over its joined rows; None: their number
    peers: list[MaskKey] = msgspec.field(
        default_factory=list
    )  # keys of all the block's parts, where summands leave under masks only
    spread: list[float] = msgspec.field(
        default_factory=list
    )  # of each output of a linear block before training, drawn from (seed, block); none: it begins at zero
    l1: float = 0.0
    signs: list[int] = msgspec.field(default_factory=list)  # of each encoded column's parameters; none: any
    l2_by_output: list[float] = msgspec.field(default_factory=list)  # of a linear block under a head; none: l2 for all
    multiplicity: RowNumbers | None = None  # G over the folds that are trained on; None: all joined rows
    starts: bool = False  # begin with the weights of the contract
    continues: bool = False  # begin with the parameters of the model before, of the same part


class Started(Message, frozen=True):
    discloses: ClassVar[FieldDisclosures] = (
        FieldDisclosure("values", "predictions", is_per_row=True),
        FieldDisclosure("figures", "figure"),
    )
    values: Array | None  # predictions of all train rows; None: all zero
    figures: dict[str, float]  # what the algorithm's server half wants to know of the part, by name; empty: nothing, or
    # only within a masked sum: SendFigures
    width: int  # of θ
    entropy: int = 0  # under privacy: chance for the server's samples, which a journal can repeat and nobody foretell


class SendFigures(Message, frozen=True):
    """The figures that Started held back, as a summand. → Masked"""

    stage: ClassVar[Stage] = "figure"
    discloses: ClassVar[FieldDisclosures] = ()
    job: str
    part: int


class MultiplyGram(Message, frozen=True):
    """Tᵀ diag(G) T v, to bound the objective's curvature. → Partial | Masked"""

    stage: ClassVar[Stage] = "second moments"
    discloses: ClassVar[FieldDisclosures] = ()
    job: str
    part: int
    vector: Array


class Move(Message, frozen=True):
    """The step coefficients chosen for the last directions. → Done"""

    stage: ClassVar[Stage] = "settle"
    discloses: ClassVar[FieldDisclosures] = ()
    job: str
    part: int
    coefficients: Array


class Partial(Message, frozen=True):
    """One client's summand: the union operator adds those of all clients of the block."""

    discloses: ClassVar[FieldDisclosures] = (FieldDisclosure("values", "sums"),)
    values: list[Array]


class Masked(Message, frozen=True):
    """One client's summand in fixed point and under masks that cancel in the sum (privacy/masks.py).

    Without a scale that fits, only how large it is: `Seal` names one.
    """

    discloses: ClassVar[FieldDisclosures] = (FieldDisclosure("exponents", "sums"),)
    values: list[NDArray[np.int64]]
    exponents: list[int]  # of each array: the power of two above its largest entry
    scales: list[int]  # of each array: the power of two that the integers are in units of
    kinds: list[Literal["<f8", "<f4"]]  # what each array was


class Seal(Message, frozen=True):
    """Send the last summand once more, at this scale and under new masks. → Masked"""

    stage: ClassVar[Stage] = "seal"
    discloses: ClassVar[FieldDisclosures] = ()
    repeats: ClassVar[bool] = True
    job: str
    part: int
    scales: list[int]


class Combined(Message, frozen=True):
    """What the union step made of the sum. → Predictions | Partial | Masked"""

    stage: ClassVar[Stage] = "combine"
    discloses: ClassVar[FieldDisclosures] = (FieldDisclosure("values", "agreed values"),)
    job: str
    part: int
    values: list[Array]
    scales: list[int] = msgspec.field(default_factory=list)  # of the next masked summand


class Predictions(Message, frozen=True):
    """h of the rows asked for, and inner products of the parameters (‖θ‖² first)."""

    discloses: ClassVar[FieldDisclosures] = (
        FieldDisclosure("values", "predictions", is_per_row=True),
        FieldDisclosure("products", "norms"),
    )
    values: Array
    products: Array


class Evaluate(Message, frozen=True):
    """Predict the part's test rows, and its train rows where asked. → Evaluation"""

    stage: ClassVar[Stage] = "evaluate"
    discloses: ClassVar[FieldDisclosures] = ()
    job: str
    part: int
    train: bool


class Evaluation(Message, frozen=True):
    discloses: ClassVar[FieldDisclosures] = (
        FieldDisclosure("test", "held-out predictions", is_per_row=True),
        FieldDisclosure("train", "predictions", is_per_row=True),
        FieldDisclosure("norm", "norms"),
        FieldDisclosure("absolute", "norms"),
        FieldDisclosure("ridged", "norms"),
    )
    test: Array
    train: Array | None
    norm: float  # ‖θ‖²
    absolute: float | None = None  # ‖θ‖₁, where it is penalised
    ridged: float | None = None  # Σ β θ², where each output has a β of its own


class Keep(Message, frozen=True):
    """Remember the part's parameters: no others were better so far. → Done"""

    stage: ClassVar[Stage] = "keep"
    discloses: ClassVar[FieldDisclosures] = ()
    job: str
    part: int


class Restore(Message, frozen=True):
    """Training is over, and the parameters kept last are the part's. → Done"""

    stage: ClassVar[Stage] = "keep"
    discloses: ClassVar[FieldDisclosures] = ()
    job: str
    part: int


class Release(Message, frozen=True):
    """Send the trained parameters. → Parameters"""

    stage: ClassVar[Stage] = "release"
    discloses: ClassVar[FieldDisclosures] = ()
    job: str
    part: int


class Parameters(Message, frozen=True):
    discloses: ClassVar[FieldDisclosures] = (FieldDisclosure("values", "parameters"),)
    values: Array


class HoldPart(Message, frozen=True):
    """Keep the trained parameters yourself, as your part of a model; they do not leave. → Done"""

    stage: ClassVar[Stage] = "hold"
    discloses: ClassVar[FieldDisclosures] = ()
    job: str
    part: int
    model: str
    block: int
    features: list[str]
    readers: list[str] = msgspec.field(default_factory=list)  # users who may apply it besides who asked


class ScoreRows(Message, frozen=True):
    """Encode these rows of a scan like this and predict them with θ. → Scores"""

    stage: ClassVar[Stage] = "score"
    discloses: ClassVar[FieldDisclosures] = (FieldDisclosure("theta", "model"),)
    job: str
    scan: int
    columns: list[int]
    rows: RowNumbers
    encoders: list[Encoder]
    theta: Array
    model: ModelSpec
    name: str  # the block's
    outputs: int  # d_c
    shuffled: tuple[int, ...] = ()  # features whose values change rows, in an order that the owner draws
    fixed: int = -1  # a feature that has the same value in all rows
    value: float | str | None = None  # of it; None: missing


class ScoreOwnRows(Message, frozen=True):
    """Predict these rows of a scan with the part of a model that you hold. → Scores"""

    stage: ClassVar[Stage] = "score own"
    discloses: ClassVar[FieldDisclosures] = ()
    job: str
    scan: int
    columns: list[int]
    rows: RowNumbers
    model: str
    name: str  # the block's
    shuffled: tuple[int, ...] = ()


class Scores(Message, frozen=True):
    discloses: ClassVar[FieldDisclosures] = (FieldDisclosure("values", "scores", is_per_row=True),)
    values: Array  # h of the rows asked for


class SendIdentifiers(Message, frozen=True):
    """Send the columns that name the rows of a scan in the answer to a prediction. → Identifiers"""

    stage: ClassVar[Stage] = "identify"
    discloses: ClassVar[FieldDisclosures] = ()
    job: str
    scan: int
    columns: list[int]


class Identifiers(Message, frozen=True):
    discloses: ClassVar[FieldDisclosures] = (FieldDisclosure("columns", "identifiers"),)
    columns: pa.Table
