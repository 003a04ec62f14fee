"""Job: everything a training run is a function of, besides the data."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec
import numpy as np

from tablepuppet.algorithms.algorithm import Algorithm
from tablepuppet.algorithms.options import AlgorithmOptions, explained
from tablepuppet.algorithms.registry import (
    BY_NAME,
    DEFAULT,
    FEDERATED,
    KINKED,
    Options,
    algorithm_of,
    is_expanded,
    named,
    options_of,
)
from tablepuppet.errors import JobError, PrivacyError, PrivacyWarning
from tablepuppet.mapping.engines import Engine, Local, engine_of
from tablepuppet.models.heads.base import HeadKind
from tablepuppet.models.heads.job import check_head, head_given, is_network
from tablepuppet.models.losses import (
    LOSSES,
    LabelFacts,
    Loss,
    loss_named,
    loss_of_model,
    metrics_by_name,
    usual_loss,
)
from tablepuppet.models.penalty import L2
from tablepuppet.models.spec import Activation, Dtype, ModelSpec
from tablepuppet.privacy.options import Privacy, privacy_of
from tablepuppet.protocol.codec import Wire
from tablepuppet.protocol.contract import automatic_batch
from tablepuppet.protocol.setup import Folds
from tablepuppet.suggest import nearest

OPEN_LOSSES = ("cross_entropy",)  # names that leave the loss to the label: here to the number of its classes
BatchSize = int | Literal["auto"] | None
_FACTOR_L2 = 1e-8  # factors are shrunk by how often a row appears; on each parameter, l2 · N would be far too much


class Search(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings that are tried on the same joined rows, each on all folds but one in turn."""

    folds: Folds
    settings: tuple[dict[str, Any], ...]  # as the user wrote them
    jobs: tuple[Job, ...]  # the same, made


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One training job; the same names in Python, in TOML and on the command line."""

    query: str
    label: str
    model: str = "auto"  # auto: what fits the label
    algorithm: str = DEFAULT
    options: Options = msgspec.field(default_factory=BY_NAME[DEFAULT].options)
    l2: float | dict[str, float] = (
        L2  # for all tables, or by table (or alias); others have the usual one; factor heads: 1e-8
    )
    l1: float = 0.0
    signs: dict[str, int] = {}  # of features: 1, a weight that is not negative; −1, none that is positive
    test_fraction: float = 0.15
    test_where: str | None = None  # a condition on the label table's rows, instead of a fraction
    validation_fraction: float = 0.0
    validation_where: str | None = None
    patience: int | None = None  # epochs without a better validation loss; None: train to the end
    min_delta: float = 0.0  # what counts as better
    monitor: str = "loss"  # the validation figure that patience watches
    weight: str | None = None  # of rows: a column of the label's table, or an expression over it
    class_weight: Literal["balanced"] | dict[str, float] | None = None
    standardize: bool = True
    seed: int = 0
    epochs: int = 20
    batch_size: BatchSize = "auto"  # joined rows, of algorithms with batches; auto: from how many there are, None: all
    max_categories: int | None = None
    max_joined_rows: int | None = None
    wire: Wire = "float64"
    loss: str | None = None  # None: what the model's name or the label says
    loss_options: dict[str, float] = {}  # what the loss declares: delta of huber, quantile
    intercept: bool | None = None  # None: for linear models; neural ones have biases of their own
    hidden: tuple[int, ...] = (16,)
    activation: Activation = "relu"
    dropout: float = 0.0
    dtype: Dtype = "float32"  # of a neural model's arithmetic
    privacy: Privacy = Privacy()
    engine: Engine = Local()  # where joined rows lie and are walked over
    release: bool = True  # False: every owner keeps the trained parameters of its own block
    module: str = ""  # model="module": the name under which clients know its builder
    head: HeadKind = "sum"  # how scores come from what tables say (docs/heads.md)
    rank: int | None = None  # of head="factor": the length of vectors; None: 16
    widths: int | tuple[int, ...] | None = None  # of a network head: numbers from each table; None: 16
    head_hidden: tuple[int, ...] | None = None  # layers of head="mlp"; None: (64, 32)
    shrinkage: float | None = (
        None  # of a head: λ of ½ λ ‖h‖² per joined row; None: learned by als, 0.05 for other factors, 0 for networks
    )
    head_module: str = ""  # head="module": the name under which the server knows it
    search: Search | None = None  # cross-validation of several settings, instead of one model

    @property
    def fits(self) -> int:
        """How many models are trained."""
        return 1 if self.search is None else self.search.folds.count * len(self.search.jobs)

    @property
    def spec(self) -> ModelSpec:
        """What every block's model is."""
        kind = self.model if self.model in ("mlp", "module", "boosted") else "linear"
        return ModelSpec(
            kind=cast(Any, kind),
            hidden=self.hidden,
            activation=self.activation,
            dropout=self.dropout,
            dtype=self.dtype,
            module=self.module,
        )

    def batch(self, rows: int) -> int | None:
        """How many of so many joined rows are a batch; None: all of them."""
        return automatic_batch(rows) if self.batch_size == "auto" else self.batch_size

    @property
    def chooses_steps(self) -> bool:
        """Whether the length of steps is left to the software: it begins at a constant, and takes the label's unit."""
        return algorithm_of(self.options).chooses_steps(
            self.options, is_linear=self.spec.is_linear, features=self.privacy.features
        )

    @property
    def is_centred(self) -> bool:
        """Whether networks without an intercept stand beside the best constant."""
        return self.chooses_steps and (not self.spec.is_linear or is_network(self.head)) and self.intercept is None

    @property
    def loss_name(self) -> str:
        """The loss; "auto": a number's is squared, classes have cross-entropy."""
        own = loss_of_model(self.model)
        return self.loss or ("auto" if own is None else own.name)

    @property
    def loss_class(self) -> type[Loss] | None:
        """The loss, where the job names it; None: the label decides."""
        return None if self.loss_name in ("auto", *OPEN_LOSSES) else loss_named(self.loss_name)

    @property
    def has_intercept(self) -> bool:
        return (self.spec.is_linear and not is_network(self.head)) if self.intercept is None else self.intercept

    @property
    def is_private(self) -> bool:
        """Whether features are promised to be private: nothing exact about them is released."""
        return self.privacy.features is not None or self.privacy.predictions.mode == "local"

    @property
    def blinded_options(self) -> AlgorithmOptions:
        """The options, with nothing left in them that looks at exact predictions beside noisy steps."""
        return self.options.blinded() if self.is_private else self.options

    @property
    def is_expanded(self) -> bool:
        """Whether blocks are expanded to joined rows first: the VFL baselines."""
        return is_expanded(self.algorithm)


def make_job(query: str, *, label: str, model: Any, algorithm: Any, given: dict[str, Any]) -> Job:
    """A checked job from what a user wrote: names, options objects, keyword arguments, TOML values.

    >>> make_job("SELECT …", label="y", model="linear", algorithm="admm", given={"rho": 0.5}).options.rho
    0.5
    """
    if not isinstance(query, str):
        raise JobError(f"query must be SQL text, not {type(query).__name__}")
    if not isinstance(label, str) or not label:
        raise JobError("label must be the name of a column in the SELECT list")
    if not isinstance(model, str) or model not in (*models(), "module"):
        raise JobError(
            f"unknown model {model!r}; choose one of {', '.join(models())}, or give a callable (width, outputs) → "
            f"torch.nn.Module{_hint(model, models())}"
        )
    given = {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}
    if isinstance(given.get("class_weight"), Mapping):
        weights = given["class_weight"].items()
        given["class_weight"] = {class_text(c): w.item() if isinstance(w, np.generic) else w for c, w in weights}
    given |= head_given(given.get("head", "sum"))
    if algorithm is None:
        algorithm = usual_algorithm(given["head"], model, is_sparse=bool(given.get("l1") or given.get("signs")))
    own = set(Job.__struct_fields__) - {"query", "label", "model", "algorithm", "options"}
    values = {name: value for name, value in given.items() if name in own - {"privacy", "engine"}}
    values["loss_options"] = dict(values.get("loss_options") or {})
    extra = {name: value for name, value in given.items() if name not in own}
    for option in [name for name in extra if name in loss_options()]:
        values["loss_options"][option] = extra.pop(option)
    declared = BY_NAME.get(algorithm) if isinstance(algorithm, str) else None
    if declared is not None and declared.own_model and isinstance(given.get("l2"), int | float):
        extra["l2"] = given["l2"]  # of leaves; the default is the algorithm's own
    if values.get("l2") is None:
        values["l2"] = _FACTOR_L2 if given["head"] == "factor" else L2
    name, options = _algorithm(algorithm, extra, own)
    if model == "auto":
        model = algorithm_of(options).own_model or model
    is_usual = values.get("epochs") is None
    values["epochs"] = 1 if is_usual else values["epochs"]
    try:
        job = msgspec.convert(
            {"query": query, "label": label, "model": model, "algorithm": name, **values}, Job, strict=True
        )
    except msgspec.ValidationError as error:
        raise JobError(explained(error, Job, values)) from None
    _check_loss(job)
    if is_usual:
        job = msgspec.structs.replace(job, epochs=_epochs(job, algorithm_of(options)))
    privacy = privacy_of(given.get("privacy"))
    options = options.settled(is_linear=job.spec.is_linear, is_private=privacy.features is not None)
    if job.loss_class is not None and not job.loss_class.is_smooth:
        options = options.for_kinks()
    job = msgspec.structs.replace(job, options=options, privacy=privacy, engine=engine_of(given.get("engine")))
    if job.privacy.keys == "sha256":
        warnings.warn(
            'keys="sha256" hides no key that somebody can guess: whoever lists the possible ids, a million a second, '
            'has the key of every row. Use keys="hmac" unless you compare with the paper',
            PrivacyWarning,
            stacklevel=3,
        )
    _check(job)
    _check_stopping(job)
    _check_model(job, given)
    algorithm = algorithm_of(options)
    able = named(tuple(a for a in FEDERATED if job.head in a.heads))
    check_head(
        job,
        given,
        is_trained=job.head in algorithm.heads and not job.is_expanded,
        trained_by=able,
        needs_bound=algorithm.figures_by(options, is_linear=True) == "power iteration",
    )
    _check_label_privacy(job)
    return job


_TRIED = ("l2", "l1", "signs", "options", "epochs", "batch_size", "hidden", "activation", "dropout")


def search_job(jobs: Sequence[Job], settings: Sequence[dict[str, Any]], folds: Folds) -> Job:
    """A job that tries settings of one model on the same joined rows."""
    job = msgspec.structs.replace(jobs[0], search=Search(folds=folds, settings=tuple(settings), jobs=tuple(jobs)))
    _check_search(job)
    return job


def _check_search(job: Job) -> None:
    search = job.search
    if search is None:
        return
    if not search.jobs or len(search.jobs) != len(search.settings):
        raise JobError("a search needs at least one setting")
    if not 2 <= search.folds.count <= 1000:
        raise JobError("folds must be a whole number from 2 up")
    if search.folds.by != "row" and search.folds.column is None:
        raise JobError(f"folds by {search.folds.by} need the column")
    for other in search.jobs:
        for name in Job.__struct_fields__:
            if name not in (*_TRIED, "search") and getattr(other, name) != getattr(job, name):
                raise JobError(
                    f"a search tries settings on the same joined rows and features, and {name} changes more than that; "
                    f"run one search for each, or vary {', '.join(_TRIED)} and options of the algorithm"
                )
        if other.search is not None:
            raise JobError("a setting of a search is no search itself")
    algorithm = algorithm_of(job.options)
    if algorithm.own_model or algorithm.is_pooled or job.is_expanded:
        able = named(tuple(a for a in (*FEDERATED, *KINKED) if "sum" in a.heads))
        raise JobError(
            f'a search shares one mapping among its models, which algorithm="{job.algorithm}" cannot; use {able}, or '
            'train each setting with validation_fraction=0.2 and compare result.metrics["validation"]'
        )
    if job.patience is not None or job.is_private or not isinstance(job.engine, Local):
        raise JobError("a search takes no patience, no privacy of features or predictions, and no engine; leave it out")


def check_job(job: Job) -> None:
    """What `make_job` promises, of a job that somebody else made."""
    try:
        msgspec.convert({name: getattr(job, name) for name in Job.__struct_fields__}, Job, strict=True)
    except msgspec.ValidationError as error:
        raise JobError(explained(error, Job, {})) from None
    if job.algorithm not in BY_NAME:
        raise JobError(f"unknown algorithm {job.algorithm[:64]!r}; choose one of {', '.join(BY_NAME)}")
    _check(job)
    _check_stopping(job)
    _check_model(job, {})
    _check_search(job)
    for other in () if job.search is None else job.search.jobs:
        check_job(other)


def usual_algorithm(head: str, model: str, *, is_sparse: bool = False) -> str:
    """The algorithm of a job that names none: the model's own, of those for linear models the most particular.

    Networks have the one that trains them under every head.
    """
    own = next((a.name for a in BY_NAME.values() if a.own_model == model), None)
    if own is not None:
        return own
    is_linear = model not in ("mlp", "module")
    if head == "sum" and is_linear:
        return KINKED[0].name if is_sparse else DEFAULT
    able = [a for a in FEDERATED if head in a.heads and (is_linear or not a.requires_linear)]
    able = [a for a in able if not (a.has_one_score and model == "softmax")]
    return (min if is_linear else max)(able, key=lambda a: len(a.heads)).name


def class_text(value: Any) -> str:
    """A class as TOML would spell its name.

    >>> class_text(True), class_text(2.0), class_text("late")
    ('true', '2', 'late')
    """
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, int | float | np.integer | np.floating):
        return f"{float(value):.17g}"
    return str(value)


def _algorithm(algorithm: Any, extra: dict[str, Any], own: set[str]) -> tuple[str, AlgorithmOptions]:
    if isinstance(algorithm, AlgorithmOptions):
        if extra:
            raise JobError(
                f"unknown argument {min(extra)!r}; options of the algorithm belong in tp.{type(algorithm).__name__}(…)"
            )
        return algorithm.name, algorithm
    if isinstance(algorithm, str):
        if algorithm not in BY_NAME:
            raise JobError(
                f"unknown algorithm {algorithm!r}; choose one of {', '.join(BY_NAME)}{_hint(algorithm, BY_NAME)}"
            )
        known = own | set(BY_NAME[algorithm].options.__struct_fields__)
        for name in extra:
            if name not in known:
                near = _hint(name, known) or "."
                raise JobError(f"algorithm {algorithm} has no option {name!r}{near} {_options(algorithm)}")
        return algorithm, options_of(algorithm, extra)
    kinds = ", ".join(f"tp.{a.options.__name__}(…)" for a in FEDERATED)
    raise JobError(f"algorithm must be a name or {kinds}, not {type(algorithm).__name__}")


def _check_model(job: Job, given: dict[str, Any]) -> None:
    """What the model cannot have, and what the algorithm cannot train."""
    algorithm, loss = algorithm_of(job.options), job.loss_class
    _check_penalties(job)
    if job.spec.is_boosted or algorithm.own_model:
        _check_boosted(job, given)
        return
    if algorithm.requires_curvature and loss is not None and not loss.is_smooth:
        able = named(tuple(a for a in FEDERATED if not a.requires_curvature))
        raise JobError(
            f'algorithm="{job.algorithm}" needs second derivatives, and the {loss.name} loss has kinks; train it with '
            f"{able}"
        )
    if job.spec.is_linear:
        for name in ("hidden", "activation", "dropout", "dtype", "module"):
            if name in given and not (name in ("activation", "dtype") and is_network(job.head)):
                raise JobError(f'{name} belongs to a neural model; use it with model="mlp", not model="{job.model}"')
        if job.loss is not None and job.model not in ("auto", "linear"):
            raise JobError(f'model="{job.model}" already names its loss; use model="linear" with loss="{job.loss}"')
        if job.intercept is False and not algorithm.can_omit_intercept:
            able = named(tuple(a for a in FEDERATED if a.can_omit_intercept))
            raise JobError(f"a linear model can do without its intercept under {able} only")
        _check_refusal(job)
        return
    if job.model == "module" and not job.module:
        raise JobError('model="module" needs module=…, the name under which the clients know the builder')
    if not 0 <= job.dropout < 1:
        raise JobError("dropout must lie in [0, 1)")
    if any(size < 1 for size in job.hidden):
        raise JobError("hidden must list layer sizes of at least 1, for example (16,)")
    if algorithm.requires_linear:
        able = named(tuple(a for a in FEDERATED if not a.requires_linear))
        raise JobError(
            f'algorithm="{job.algorithm}" trains linear models only, for {algorithm.requires_linear}; '
            f"train a neural model with {able}"
        )
    _check_refusal(job)


def _check_penalties(job: Job) -> None:
    algorithm = algorithm_of(job.options)
    if (job.l1 or job.signs) and not algorithm.takes_kinks:
        what = "l1" if job.l1 else "signs"
        raise JobError(
            f'algorithm="{job.algorithm}" cannot train with {what}: it needs a penalty without kinks; '
            f"train a linear model with {named(KINKED)}, or leave algorithm out"
        )
    if isinstance(job.l2, dict) and (algorithm.own_model or algorithm.is_pooled or job.head != "sum"):
        raise JobError(
            "an l2 for each table belongs to linear and neural models whose scores are sums, trained by "
            f"{named(FEDERATED)}; give one number"
        )


def _check_boosted(job: Job, given: dict[str, Any]) -> None:
    own = algorithm_of(job.options).own_model
    able = named(tuple(a for a in BY_NAME.values() if a.own_model))
    if job.model != own:
        raise JobError(
            f'model="boosted" is grown by {able} and by nothing else, not model="{job.model}" by '
            f'algorithm="{job.algorithm}"; use both, or neither'
        )
    plain = Job(query="", label="")
    for name in ("hidden", "activation", "dropout", "dtype", "module", "intercept", "standardize", "batch_size"):
        if name in given and getattr(job, name) != getattr(plain, name):
            raise JobError(f'{name} has no meaning for boosted trees; leave it out with model="boosted"')
    if given.get("epochs") is not None:
        raise JobError("boosted trees have no epochs; set trees instead")
    if job.privacy.features is not None:
        private = named(tuple(a for a in FEDERATED if a.why_not_private(a.options()) is None))
        raise JobError(
            "boosted trees tell the server bits of every row, and have no private form towards outsiders; leave "
            f"privacy.features out, or train a linear model with {private}"
        )


def _check_refusal(job: Job) -> None:
    why = algorithm_of(job.options).refusal(job.options, job.spec)
    if why is not None:
        raise JobError(why)


def _check_stopping(job: Job) -> None:
    """What early stopping needs, and cannot be had with."""
    if job.patience is None:
        return
    if not job.validation_fraction and job.validation_where is None:
        raise JobError("patience needs validation rows; add validation_fraction=0.1 or validation_where=…")
    if algorithm_of(job.options).is_pooled:
        raise JobError(f'algorithm="{job.algorithm}" is a baseline without epochs to stop at; leave patience out')
    if job.privacy.features is not None:
        raise JobError(
            "patience would choose an epoch by exact predictions of validation rows, outside the promise of "
            "privacy.features; leave it out and set epochs"
        )


def models() -> list[str]:
    """Names of models, those of the losses among them."""
    return ["auto", *dict.fromkeys(loss.model for loss in LOSSES), "mlp", "boosted"]


def loss_options() -> dict[str, str]:
    """What losses let a job set, and the loss that it belongs to."""
    return {option: loss.name for loss in LOSSES for option in loss.options}


def _epochs(job: Job, algorithm: Algorithm[Any]) -> int:
    """How many epochs are usually enough; "auto" may turn out to be any of the usual losses."""
    if algorithm.is_pooled or algorithm.takes_kinks:
        return algorithm.epochs
    losses = [usual_loss(classes) for classes in (0, 2, 3)] if job.loss_class is None else [job.loss_class]
    return max(loss.epochs.get(algorithm.uses, algorithm.epochs) for loss in losses)


def _check_loss(job: Job) -> None:
    """The loss is known, and takes the options that are given."""
    names = [*(loss.name for loss in LOSSES), *OPEN_LOSSES]
    if job.loss is not None and job.loss not in names:
        raise JobError(f"unknown loss {job.loss!r}; choose one of {', '.join(names)}{_hint(job.loss, names)}")
    loss = job.loss_class
    for option in job.loss_options:
        if loss is None or option not in loss.options:
            owner = loss_options().get(option)
            hint = f'it belongs to loss="{owner}"' if owner else f"there are {', '.join(loss_options())}"
            raise JobError(f"{option} is not an option of this model's loss; {hint}")
    if loss is not None:
        loss.of(LabelFacts(classes=2), **job.loss_options)  # which checks the options


def _check_label_privacy(job: Job) -> None:
    loss = job.loss_class
    if loss is not None and job.privacy.label is not None and loss.label_noise == "refused":
        raise PrivacyError(
            f"the {loss.name} loss has no private form for labels: noise on them would bias what it fits; use "
            'model="linear" with privacy.label, or train without it'
        )


def _hint(name: Any, known: Any) -> str:
    near = nearest(str(name), list(known))
    return "" if near is None else f"; did you mean {near!r}?"


def _options(algorithm: str) -> str:
    """What can be chosen: of the algorithm, and of every job."""
    others = sorted(
        set(Job.__struct_fields__) - {"query", "label", "model", "algorithm", "options", "module", "head_module"}
    )
    return f"It has {', '.join(BY_NAME[algorithm].options.__struct_fields__)}; every job has {', '.join(others)}"


def _check(job: Job) -> None:
    monitors = ["loss", *(name for name, metric in metrics_by_name().items() if metric.can_monitor)]
    rules = [
        (
            all(0 <= l2 < math.inf for l2 in (job.l2.values() if isinstance(job.l2, dict) else [job.l2])),
            "l2 must be a number from 0 up, or one for each table",
        ),
        (0 <= job.l1 < math.inf, "l1 must be a number from 0 up"),
        (all(sign in (-1, 1) for sign in job.signs.values()), "signs must be 1 (not negative) or -1 (not positive)"),
        (0 <= job.test_fraction < 1, "test_fraction must lie in [0, 1)"),
        (
            job.validation_fraction >= 0 and (job.test_where is None) * job.test_fraction + job.validation_fraction < 1,
            "validation_fraction must lie in [0, 1), and leave rows to train on beside test_fraction",
        ),
        (job.patience is None or job.patience >= 1, "patience must be at least 1, or None to train to the end"),
        (0 <= job.min_delta < math.inf, "min_delta must be a number from 0 up"),
        (
            not isinstance(job.class_weight, dict) or all(0 <= w < math.inf for w in job.class_weight.values()),
            "class_weight must give numbers from 0 up",
        ),
        (job.monitor in monitors, f"monitor must be one of {', '.join(monitors)}"),
        (job.epochs >= 1, "epochs must be at least 1"),
        (job.batch(1) is None or (job.batch(1) or 0) >= 1, 'batch_size must be at least 1, "auto", or None for all'),
        (0 <= job.seed < 2**63, "seed must be a whole number from 0 to 2**63 − 1"),
        (job.max_categories is None or job.max_categories >= 1, "max_categories must be at least 1, or None"),
        (job.max_joined_rows is None or job.max_joined_rows >= 1, "max_joined_rows must be at least 1, or None"),
    ]
    for is_fine, rule in rules:
        if not is_fine:
            raise JobError(rule)
    if not isinstance(job.engine, Local) and (job.is_expanded or algorithm_of(job.options).is_pooled):
        raise JobError(
            f'algorithm="{job.algorithm}" is a baseline and runs in one process; '
            f'engine="ray" runs {", ".join(a.name for a in FEDERATED)}'
        )
    if not isinstance(job.engine, Local) and algorithm_of(job.options).own_model:
        raise JobError(f'algorithm="{job.algorithm}" runs in one process; leave engine="ray" out')
