"""Job: all inputs of a training run but the data.

`Engine`: where the work over joined rows is done, in threads of this process or on a Ray cluster.
"""

from typing import Annotated, Any, Literal, cast

import msgspec

from tablepuppet.algorithms.boosting.messages import GrownTrees
from tablepuppet.algorithms.options import AlgorithmOptions, explain_error
from tablepuppet.algorithms.registry import BY_NAME, DEFAULT, Options, algorithm_of, is_expanded
from tablepuppet.errors import JobError
from tablepuppet.models.heads.base import HeadKind
from tablepuppet.models.heads.kinds import traits_of
from tablepuppet.models.losses import LOSSES, Loss, loss_named, loss_of_model
from tablepuppet.models.spec import L2, Activation, Dtype, ModelSpec
from tablepuppet.privacy.options import Privacy
from tablepuppet.protocol.base import Amount, Seed
from tablepuppet.protocol.codec import Wire
from tablepuppet.protocol.contract import Folds, automatic_batch

OPEN_LOSSES = ("cross_entropy",)  # names that leave the loss to the label: here to the number of its classes
Positive = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)]
BatchSize = Positive | Literal["auto"] | None
# Joined rows are written down, or summed over as the trees that make them, or some are drawn (docs/factorised.md).
Walk = Literal["materialised", "factorised", "drawn"]


class Local(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="name", tag="local"):
    """All joined rows in this process, walked by its threads."""


class Ray(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="name", tag="ray"):
    """Joined rows in pieces on a Ray cluster, with the same results bit for bit (docs/performance.md).

    - `address`: a running cluster ("auto": on this host); None: RAY_ADDRESS, or a cluster that is started for the run.
    - `storage`: a folder or a URI (s3://…) that all nodes reach, for pieces and the algorithm's state.
    - `workers`: the number of pieces, by default one per CPU.

    >>> Ray(workers=4).workers
    4
    """

    address: str | None = None
    storage: str | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise JobError("engine ray: workers must be at least 1, or None for one per CPU of the cluster")


Engine = Local | Ray
ENGINES = ("local", "ray")


def engine_of(given: Any) -> Engine:
    """An engine from a user's argument: a name, an object, or a table of a TOML file.

    >>> engine_of({"name": "ray", "workers": 4})
    Ray(address=None, storage=None, workers=4)
    """
    if given is None or isinstance(given, Local | Ray):
        return given or Local()
    table = given if isinstance(given, dict) else {"name": given}
    if table.get("name") not in ENGINES:
        raise JobError(f"unknown engine {table.get('name')!r}; choose one of {', '.join(ENGINES)}, or give tp.Ray(…)")
    try:
        engine: Engine = msgspec.convert(table, Engine, strict=True)
    except msgspec.ValidationError as error:
        raise JobError(f"engine {table['name']}: {error}") from None
    return engine


class Search(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings that are tried on the same joined rows, each on all folds but one in turn."""

    folds: Folds
    settings: tuple[dict[str, Any], ...]  # as the user wrote them
    jobs: "tuple[Job, ...]"  # the same, made


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One part of a job."""


class JobData(_Part, frozen=True):
    """The joined rows, their labels and features."""

    query: str
    label: str
    weight: str | None = None  # of rows: a column of the label's table, or an expression over it
    exposure: str | None = None  # how long, or of how many, a count is: its rate is modelled, weighted by it
    negatives: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0  # pairs that did not meet, drawn for each joined row
    class_weight: Literal["balanced"] | dict[str, Amount] | None = None
    standardize: bool = True
    max_categories: Positive | None = None
    ids: tuple[str, ...] | None = None  # texts that stay with their owner; None: under a head, those that owners find
    max_joined_rows: Positive | None = None
    walk: Walk | None = None  # None: as it costs least

    @property
    def has_weights(self) -> bool:
        return self.weight is not None or self.class_weight is not None


class JobModel(_Part, frozen=True):
    """The model of every block, the head over them, the loss and the penalties."""

    name: str = "auto"  # auto: by the kind of label
    loss: str | None = None  # None: by the model's name or the label
    loss_options: dict[str, float] = {}  # as the loss declares: delta of huber, quantile
    # For all tables, or by table (or alias); others have the usual one; factor heads: 1e-8; sums: 1 / joined rows.
    l2: Amount | dict[str, Amount] = L2
    l2_by_rows: float = 0.0  # where l2 is left open: so much more, divided by the joined rows
    l1: Amount = 0.0
    signs: dict[str, int] = {}  # of features: 1, a weight that is not negative; −1, none that is positive
    intercept: bool | None = None  # None: for linear models; neural ones have biases of their own
    hidden: tuple[int, ...] = (16,)
    activation: Activation = "relu"
    dropout: float = 0.0
    dtype: Dtype = "float32"  # of a neural model's arithmetic
    module: str = ""  # name="module": the name under which clients know its builder
    head: HeadKind = "sum"  # how scores come from the tables' predictions (docs/heads.md)
    rank: int | None = None  # of head="factor": the length of vectors; None: 16
    widths: int | tuple[int, ...] | None = None  # of a network head: numbers from each table; None: 16
    head_hidden: tuple[int, ...] | None = None  # layers of head="mlp"; None: (64, 32)
    shrinkage: float | None = None  # of a head: λ of ½ λ ‖h‖² per joined row; None: as in docs/heads.md
    head_module: str = ""  # head="module": the name under which the server knows it

    @property
    def spec(self) -> ModelSpec:
        """The specification of every block's model."""
        kind = self.name if self.name in ("mlp", "module", "boosted") else "linear"
        return ModelSpec(
            kind=cast("Any", kind),
            hidden=self.hidden,
            activation=self.activation,
            dropout=self.dropout,
            dtype=self.dtype,
            module=self.module,
        )

    @property
    def is_sum(self) -> bool:
        return traits_of(self.head).is_sum

    @property
    def is_convex(self) -> bool:
        """Whether scores are linear in all parameters at once."""
        return self.spec.is_linear and self.is_sum

    @property
    def has_intercept(self) -> bool:
        is_usual = self.spec.is_linear and not traits_of(self.head).is_network
        return is_usual if self.intercept is None else self.intercept

    @property
    def loss_name(self) -> str:
        """The loss; "auto": a number's is squared, classes have cross-entropy."""
        own = loss_of_model(self.name)
        return self.loss or ("auto" if own is None else own.name)

    @property
    def loss_class(self) -> type[Loss] | None:
        """The loss, where the job names it; None: the label decides."""
        return None if self.loss_name in ("auto", *OPEN_LOSSES) else loss_named(self.loss_name)


class JobSplit(_Part, frozen=True):
    """The rows of the label's table that are held out."""

    test_fraction: Share = 0.15
    test_where: str | None = None  # a condition on the label table's rows, instead of a fraction
    validation_fraction: Share = 0.0
    validation_where: str | None = None


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One training job: its data, its model, the rows to hold out, its privacy, and how to train it.

    Python, TOML and the command line give all of that under flat names: ARGUMENTS has the place of each.
    """

    data: JobData
    model: JobModel = JobModel()
    split: JobSplit = JobSplit()
    privacy: Privacy = Privacy()
    algorithm: str = DEFAULT
    options: Options = msgspec.field(default_factory=BY_NAME[DEFAULT].options)
    epochs: Positive = 20
    epochs_by_rows: bool = False  # whether the user left them open: fewer are enough where each has many batches
    batch_size: BatchSize = "auto"  # joined rows, of algorithms with batches; auto: from how many there are, None: all
    patience: Positive | None = None  # epochs without a better validation loss; None: train to the end
    min_delta: Amount = 0.0  # the least improvement that counts
    monitor: str = "loss"  # the validation metric that patience watches
    seed: Seed = 0
    wire: Wire = "float64"
    engine: Engine = Local()  # where joined rows lie and are walked over
    release: bool = True  # False: every owner keeps the trained parameters of its own block
    warm_start: GrownTrees | None = None  # boosted trees that more are added to
    start: dict[str, dict[str, list[float]]] = {}  # weights to begin with on the original scale, by feature and unit
    probe: bool = False  # explain: train a sum first, and estimate which model would gain on its residuals
    search: Search | None = None  # cross-validation of several settings, instead of one model

    def get(self, argument: str) -> Any:
        part, field = ARGUMENTS[argument]
        return getattr(getattr(self, part) if part else self, field)

    def arguments(self) -> dict[str, Any]:
        return {name: self.get(name) for name in ARGUMENTS}

    def replace(self, **arguments: Any) -> "Job":
        """The same job with other values of some of a user's arguments."""
        changes: dict[str, dict[str, Any]] = {}
        for name, value in arguments.items():
            part, field = ARGUMENTS[name]
            changes.setdefault(part, {})[field] = value
        own = changes.pop("", {})
        parts = {part: msgspec.structs.replace(getattr(self, part), **change) for part, change in changes.items()}
        return msgspec.structs.replace(self, **parts, **own)

    @property
    def fits(self) -> int:
        return 1 if self.search is None else self.search.folds.count * len(self.search.jobs)

    def batch(self, rows: int) -> int | None:
        """How many of so many joined rows are a batch; None: all of them."""
        return automatic_batch(rows) if self.batch_size == "auto" else self.batch_size

    def over(self, rows: int) -> "Job":
        """The same, with the epochs that so many joined rows need, unless the user set them."""
        if not self.epochs_by_rows:
            return self
        size = self.batch(rows)
        batches = 1 if size is None else -(-rows // size)
        epochs = algorithm_of(self.options).enough_epochs(
            self.epochs, batches, is_linear=self.model.spec.is_linear, head=self.model.head
        )
        return self.replace(epochs=epochs, epochs_by_rows=False)

    def with_penalty(self, rows: int) -> "Job":
        """The same, with the l2 of a sum over so many joined rows, unless the user set it. A search's folds differ in
        their rows."""
        if self.search is not None or not (self.model.is_sum and self.model.l2_by_rows):
            return self
        return self.replace(l2=self.model.l2_by_rows / max(1, rows), l2_by_rows=0.0)

    @property
    def chooses_steps(self) -> bool:
        """Whether the software chooses the step size: training begins at a constant, and takes the label's unit."""
        algorithm = algorithm_of(self.options)
        is_linear = self.model.is_convex if algorithm.is_pooled else self.model.spec.is_linear
        return algorithm.chooses_steps(self.options, is_linear=is_linear, features=self.privacy.features)

    @property
    def is_centred(self) -> bool:
        """Whether networks without an intercept are added to the best constant."""
        is_network = not self.model.spec.is_linear or traits_of(self.model.head).is_network
        return self.chooses_steps and is_network and self.model.intercept is None

    @property
    def is_private(self) -> bool:
        """Whether features are promised to be private: nothing exact about them is released."""
        return self.privacy.features is not None or self.privacy.predictions.mode == "local"

    @property
    def options_for_run(self) -> AlgorithmOptions:
        """The options; in a private run, without those that read exact predictions."""
        return self.options.for_private_run() if self.is_private else self.options

    @property
    def is_expanded(self) -> bool:
        """Whether blocks are expanded to joined rows first: the VFL baselines."""
        return is_expanded(self.algorithm)


PARTS: dict[str, type[_Part]] = {"data": JobData, "model": JobModel, "split": JobSplit}
# A user's argument → the part of a job that has it ("": the job itself), and the field there.
ARGUMENTS: dict[str, tuple[str, str]] = {
    "model" if field == "name" else field: (part, field)
    for part, fields in (*((part, kind.__struct_fields__) for part, kind in PARTS.items()), ("", Job.__struct_fields__))
    for field in fields
    if part or field not in PARTS
}


def job_of(arguments: dict[str, Any]) -> Job:
    """The job with these arguments of a user; their types are checked."""
    values: dict[str, dict[str, Any]] = {part: {} for part in (*PARTS, "")}
    for name, value in arguments.items():
        part, field = ARGUMENTS[name]
        values[part][field] = value
    for part, kind in PARTS.items():
        values[""][part] = _convert(values[part], kind)
    job: Job = _convert(values[""], Job)
    return job


def _convert(values: dict[str, Any], kind: type[msgspec.Struct]) -> Any:
    try:
        return msgspec.convert(values, kind, strict=True)
    except msgspec.ValidationError as error:
        raise JobError(explain_error(error, kind, values)) from None


def models() -> list[str]:
    return ["auto", *dict.fromkeys(loss.model for loss in LOSSES), "mlp", "boosted"]


def loss_options() -> dict[str, str]:
    return {option: loss.name for loss in LOSSES for option in loss.options}
