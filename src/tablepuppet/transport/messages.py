"""Every message that may pass between the server and a client: the whitelist.

The server asks, a client answers; nothing else ever crosses. Each request below names
its answer. A message is a frozen struct that rejects unknown fields; arrays travel as
raw buffers beside it (codec.py), never as pickles.

Words: a *scan* is one client's reading of one table under one filter; a *part* is one
client's share of a block (some feature columns of a scan, for the rows that matter).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.algorithms.options import Options
from tablepuppet.models.spec import ModelSpec
from tablepuppet.privacy.gaussian import GradientPrivacy
from tablepuppet.privacy.masks import MaskKey
from tablepuppet.privacy.options import KeyMode, LabelPrivacy

Array = NDArray[np.float64]
RowNumbers = NDArray[np.signedinteger[Any]]  # int32 where it fits, else int64

Kind = Literal["integer", "float", "decimal", "boolean", "date", "timestamp", "string", "uuid", "vector", "other"]


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True, kw_only=True):
    """Base of all messages; the tag is the class name."""


# -- what a table looks like ---------------------------------------------------------------


class ColumnInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column's name and its kind; `detail` is the owner's own name for the type."""

    name: str
    kind: Kind
    detail: str = ""
    size: int = 0  # length of a vector
    nullable: bool = True  # as far as its owner's database says


class DescribeTable(Message, frozen=True):
    """Which columns does your table have? → TableSchema"""

    table: str


class TableSchema(Message, frozen=True):
    columns: list[ColumnInfo]
    withholds: bool = False  # whether the owner keeps the parameters that are trained on its table
    stamp: bytes = b""  # another one whenever the table may have changed; none: there is no telling


class OpenScan(Message, frozen=True):
    """Prepare to read these expressions of a table, for the rows that pass the filter. → ScanSchema

    Nothing is read yet: the answer gives the type of each expression.
    """

    job: str
    scan: int
    table: str
    columns: list[str]
    filter: str | None = None


class ScanSchema(Message, frozen=True):
    columns: list[ColumnInfo]


# -- the table mapping ---------------------------------------------------------------------


class CountRows(Message, frozen=True):
    """How many rows does a scan have? → RowCount"""

    job: str
    scan: int


class RowCount(Message, frozen=True):
    rows: int


class RowOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Number the rows of a scan in an order that only the clients know (tables/order.py)."""

    seed: int
    offset: int  # of the client's first row in the whole table
    is_shared: bool  # whether the table has other clients, so that the server must merge their orders


class SendKeys(Message, frozen=True):
    """Send the key columns of a scan, one row per row number. → Keys

    Unless they are plain, keys come as tokens (tables/tokens.py), a dictionary of 16 bytes each. With an order, rows
    are numbered in it from now on and for the whole job.
    """

    job: str
    scan: int
    columns: list[int]
    tokens: KeyMode = "hmac"
    domains: list[str] = []  # one per column; columns that are compared share theirs
    order: RowOrder | None = None


class Keys(Message, frozen=True):
    rows: int
    columns: pa.Table
    order: NDArray[np.int64] | None = None  # ascending, where the order is shared


class DescribeLabels(Message, frozen=True):
    """Which classes, or which kind of number, is the label? → LabelSummary"""

    job: str
    scan: int
    column: int
    wants_classes: bool = True  # the distinct values, where they are numbers


class LabelSummary(Message, frozen=True):
    kind: Literal["number", "boolean", "class"]
    classes: list[str | float] = []  # distinct values; numbers only if there are at most 1000
    missing: int = 0


class SendLabels(Message, frozen=True):
    """Send one label per row, as a class number or a number, and each row's side of the split. → Labels"""

    job: str
    scan: int
    column: int
    classes: list[str | float] | None  # None: a number
    offset: int  # this client's first row number in the label table
    seed: int
    test_fraction: float
    validation_fraction: float = 0.0
    test_column: int | None = None  # a predicate of the scan that says which are test rows, instead of a fraction
    validation_column: int | None = None
    privacy: LabelPrivacy | None = None  # what the owner does to its labels before they leave


class Labels(Message, frozen=True):
    values: Array  # class numbers or numbers; NaN where the label is missing
    is_test: NDArray[np.bool_]
    is_validation: NDArray[np.bool_] | None = None  # None: no row


class SendWeights(Message, frozen=True):
    """Send the sample weight of each row of the label table. → Weights"""

    job: str
    scan: int
    column: int


class Weights(Message, frozen=True):
    values: Array  # NaN where it is missing


# -- features ------------------------------------------------------------------------------


class OpenPart(Message, frozen=True):
    """These columns of a scan are a share of block `part`; these of its rows take part. → FeatureStatistics

    Row −1 stands for a row that does not exist (an outer join found none): zeros.
    """

    job: str
    part: int
    scan: int
    columns: list[int]
    train_rows: RowNumbers | None  # None: all, in order
    test_rows: RowNumbers
    multiplicity: RowNumbers | None  # G of the train rows; None: all one
    wants_moments: bool = True  # False: no mean and no spread of any number
    wants_key: bool = False  # whether the block's sums are masked: then names of categories come, and no figure


class NumberStatistics(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Join-weighted moments of a number (or of each entry of a vector) over this part's rows."""

    weight: float  # Σ G over rows with a value
    missing: float  # Σ G over rows without one
    mean: Array
    spread: Array  # Σ G (x − mean)²


class CategoryStatistics(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Join-weighted counts of each category over this part's rows."""

    categories: list[str]
    weights: Array
    missing: float


class FeatureStatistics(Message, frozen=True):
    columns: list[NumberStatistics | CategoryStatistics]
    key: MaskKey | None = None  # for masks; None: not wanted, or the client has no secret to vouch for it


class SumStatistics(Message, frozen=True):
    """Counts and sums over the block's categories and numbers, as summands (tables/summands.py). → Masked"""

    job: str
    part: int
    columns: list[NumberStatistics | CategoryStatistics]  # agreed categories and lengths; the second time also means
    peers: list[MaskKey]  # keys of all the block's parts
    is_second: bool = False  # moments about the means


class NumberEncoder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """(x − mean) / scale; a scale of 0 makes the column 0. One indicator column if any is missing.

    A missing number is `fill`, the mean over those present, before it is scaled.
    """

    mean: Array
    scale: Array
    fill: Array
    has_missing: bool


class CategoryEncoder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """One 0/1 column per category, then one for NULL and one for all others where asked."""

    categories: list[str]
    has_missing: bool
    has_other: bool


Encoder = NumberEncoder | CategoryEncoder


class EncodeFeatures(Message, frozen=True):
    """Encode the part's features like this, as all clients of the block do. → Encoded"""

    job: str
    part: int
    encoders: list[Encoder]


class Encoded(Message, frozen=True):
    width: int


class Done(Message, frozen=True):
    """The answer to a request that only asks for an action."""


class CloseJob(Message, frozen=True):
    """Forget everything about a job. → Done"""

    job: str


class Failure(Message, frozen=True):
    """The answer when a request cannot be met: which error, and its message."""

    error: str
    message: str


# -- training ------------------------------------------------------------------------------


class StartPart(Message, frozen=True):
    """Make the part's model and start the algorithm's client half. → Started"""

    job: str
    part: int
    algorithm: Options
    model: ModelSpec
    block: int  # its number, which the initial values of a neural model depend on
    name: str  # the block's
    outputs: int  # d_c
    blocks: int  # M
    clients: int  # how many parts the block has
    joined_rows: int  # N, training rows
    l2: float
    seed: int
    privacy: GradientPrivacy | None = None
    weights: Array | None = None  # of each train row, summed over its joined rows; None: their number
    peers: list[MaskKey] = []  # keys of all the block's parts, where summands leave under masks only


class Started(Message, frozen=True):
    values: Array | None  # predictions of all train rows; None: all zero
    figure: float  # admm: mean diagonal of the part's share of XᵀX/N; newton: 1 if its features span the constant;
    # 0 where the first could only be told under masks: SendFigure
    width: int  # of θ
    entropy: int = 0  # under privacy: chance for the server's samples, which a journal can repeat and nobody foretell


class SendFigure(Message, frozen=True):
    """The figure that Started held back, as a summand. → Masked"""

    job: str
    part: int


class MultiplyGram(Message, frozen=True):
    """Tᵀ diag(G) T v, to bound the objective's curvature. → Partial | Masked"""

    job: str
    part: int
    vector: Array


class SgdUpdate(Message, frozen=True):
    """Y of the last batch, and the rows whose predictions are wanted next. → Predictions | Partial | Masked"""

    job: str
    part: int
    signal: Array | None  # None: nothing to learn yet
    count: int  # joined rows in the last batch
    learning_rate: float
    next_rows: RowNumbers | None  # None: all


class AdmmUpdate(Message, frozen=True):
    """Y of all train rows, and the weight of G‖h‖²/2. → Predictions | Partial | Masked"""

    job: str
    part: int
    signal: Array
    factor: float  # Mρ
    union_rho: float  # ρ_u of the consensus rounds
    coefficients: Array | None  # of the last step of the reported model


class NewtonUpdate(Message, frozen=True):
    """Y and the collapsed curvature (None where the client can know it). → Predictions | Partial | Masked"""

    job: str
    part: int
    signal: Array
    curvature: Array | None
    bound: float  # the curvature per joined row where `curvature` is None
    coefficients: Array | None


class Move(Message, frozen=True):
    """The step coefficients chosen for the last directions. → Done"""

    job: str
    part: int
    coefficients: Array


class Partial(Message, frozen=True):
    """One client's summand: the union operator adds those of all clients of the block."""

    values: list[Array]


class Masked(Message, frozen=True):
    """One client's summand in fixed point and under masks that cancel in the sum (privacy/masks.py).

    Without a scale that fits, only how large it is: `Seal` names one.
    """

    values: list[NDArray[np.int64]]
    exponents: list[int]  # of each array: the power of two above its largest entry
    scales: list[int]  # of each array: the power of two that the integers are in units of
    kinds: list[Literal["<f8", "<f4"]]  # what each array was


class Seal(Message, frozen=True):
    """Send the last summand once more, at this scale and under new masks. → Masked"""

    job: str
    part: int
    scales: list[int]


class Combined(Message, frozen=True):
    """What the union step made of the sum. → Predictions | Partial | Masked"""

    job: str
    part: int
    values: list[Array]
    scales: list[int] = []  # of the next masked summand


class Predictions(Message, frozen=True):
    """h of the rows asked for, and inner products of the parameters (‖θ‖² first)."""

    values: Array
    products: Array


class Evaluate(Message, frozen=True):
    """Predict the part's test rows, and its train rows where asked. → Evaluation"""

    job: str
    part: int
    train: bool


class Evaluation(Message, frozen=True):
    test: Array
    train: Array | None
    norm: float  # ‖θ‖²


class Keep(Message, frozen=True):
    """Remember the part's parameters: no others were better so far. → Done"""

    job: str
    part: int


class Restore(Message, frozen=True):
    """Training is over, and the parameters kept last are the part's. → Done"""

    job: str
    part: int


class Release(Message, frozen=True):
    """Send the trained parameters. → Parameters"""

    job: str
    part: int


class Parameters(Message, frozen=True):
    values: Array


class HoldPart(Message, frozen=True):
    """Keep the trained parameters yourself, as your part of a model; they do not leave. → Done"""

    job: str
    part: int
    model: str
    block: int
    features: list[str]


class RevealFeatures(Message, frozen=True):
    """Send the encoded features of all rows: the centralised baseline only. → RevealedFeatures"""

    job: str
    part: int


class RevealedFeatures(Message, frozen=True):
    train: Array
    test: Array


# -- prediction ----------------------------------------------------------------------------


class ScoreRows(Message, frozen=True):
    """Encode these rows of a scan like this and predict them with θ. → Scores"""

    job: str
    scan: int
    columns: list[int]
    rows: RowNumbers
    encoders: list[Encoder]
    theta: Array
    model: ModelSpec
    name: str  # the block's
    outputs: int  # d_c


class ScoreOwnRows(Message, frozen=True):
    """Predict these rows of a scan with the part of a model that you hold. → Scores"""

    job: str
    scan: int
    columns: list[int]
    rows: RowNumbers
    model: str
    name: str  # the block's


class Scores(Message, frozen=True):
    values: Array  # h of the rows asked for


class SendIdentifiers(Message, frozen=True):
    """Send the columns that name the rows of a scan in the answer to a prediction. → Identifiers"""

    job: str
    scan: int
    columns: list[int]


class Identifiers(Message, frozen=True):
    columns: pa.Table


REQUESTS = (
    DescribeTable
    | OpenScan
    | CountRows
    | SendKeys
    | DescribeLabels
    | SendLabels
    | SendWeights
    | OpenPart
    | SumStatistics
    | EncodeFeatures
    | StartPart
    | SendFigure
    | MultiplyGram
    | Seal
    | SgdUpdate
    | AdmmUpdate
    | NewtonUpdate
    | Move
    | Combined
    | Evaluate
    | Keep
    | Restore
    | Release
    | HoldPart
    | RevealFeatures
    | ScoreRows
    | ScoreOwnRows
    | SendIdentifiers
    | CloseJob
)
RESPONSES = (
    TableSchema
    | ScanSchema
    | RowCount
    | Keys
    | LabelSummary
    | Labels
    | Weights
    | FeatureStatistics
    | Encoded
    | Started
    | Partial
    | Masked
    | Predictions
    | Evaluation
    | Parameters
    | RevealedFeatures
    | Scores
    | Identifiers
    | Done
    | Failure
)
