"""The rules for a job: every rule that needs no query and no data, each with an alternative for the user."""

from typing import Any

from tablepuppet.algorithms.registry import BY_NAME, FEDERATED, KINKED, algorithm_of, name_algorithms, own_model
from tablepuppet.errors import JobError, PrivacyError, nearest
from tablepuppet.job.job import ARGUMENTS, OPEN_LOSSES, Job, JobData, Local, job_of, loss_options
from tablepuppet.models.heads.kinds import check_head, traits_of
from tablepuppet.models.losses import LOSSES, LabelFacts
from tablepuppet.privacy.options import privacy_of

_TRIED = ("l2", "l1", "signs", "options", "epochs", "batch_size", "hidden", "activation", "dropout")


def check_job(job: Job) -> None:
    """Checks a job from elsewhere as `make_job` does."""
    job_of(job.arguments())
    privacy_of(job.privacy)
    if job.algorithm not in BY_NAME:
        raise JobError(f"unknown algorithm {job.algorithm[:64]!r}; choose one of {', '.join(BY_NAME)}")
    if job.options.name != job.algorithm:
        raise JobError(f'algorithm="{job.algorithm}" was given the options of "{job.options.name}"; give its own')
    check_given(job, {})
    check_search(job)
    for other in () if job.search is None else job.search.jobs:
        check_job(other)


def check_given(job: Job, given: dict[str, Any]) -> None:
    """Checks a job that is being made; `given` has the user's arguments, without defaults."""
    _check(job)
    _check_stopping(job)
    _check_model(job, given)
    algorithm = algorithm_of(job.options)
    check_head(
        job,
        given,
        is_trained=job.model.head in algorithm.heads and not job.is_expanded,
        trained_by=name_algorithms(a for a in FEDERATED if job.model.head in a.heads),
        needs_bound=algorithm.figures_by(job.options, is_linear=True) == "power iteration",
    )
    _check_negatives(job)
    _check_walk(job)


def _check(job: Job) -> None:
    monitors = dict.fromkeys(metric.name for loss in LOSSES for metric in loss.metrics if metric.can_monitor)
    if job.monitor not in ("loss", *monitors):
        raise JobError(f"monitor must be one of loss, {', '.join(monitors)}, not {job.monitor!r}")
    if not all(sign in (-1, 1) for sign in job.model.signs.values()):
        raise JobError("signs must be 1 (not negative) or -1 (not positive)")
    held_out = (job.split.test_where is None) * job.split.test_fraction + job.split.validation_fraction
    if held_out >= 1:
        raise JobError("validation_fraction must leave rows to train on beside test_fraction")
    if not isinstance(job.engine, Local) and (job.is_expanded or algorithm_of(job.options).is_pooled):
        raise JobError(
            f'algorithm="{job.algorithm}" is a baseline and runs in one process; '
            f'engine="ray" runs {", ".join(a.name for a in FEDERATED)}'
        )


def _check_walk(job: Job) -> None:
    if job.data.walk in (None, "materialised"):
        return
    reasons = {"negatives": bool(job.data.negatives), "privacy.features and local predictions": job.is_private}
    for name, is_given in reasons.items():
        if is_given:
            raise JobError(f'walk="{job.data.walk}" makes no list of joined rows, which {name} needs; leave walk out')


def _check_negatives(job: Job) -> None:
    if not job.data.negatives:
        return
    loss, privacy = job.model.loss_class, job.privacy
    if loss is not None and loss.task != "binary":
        raise JobError(
            f"negatives tell joined rows from pairs that did not meet, two classes, and the {loss.name} loss has "
            "others; leave model and loss out"
        )
    if job.is_private or privacy.label is not None:
        raise JobError(
            "negatives let rows take part in more joined rows than private training bounds, and make labels that no "
            "owner knows; leave privacy.features, privacy.predictions and privacy.label out, or negatives"
        )
    if job.data.exposure is not None:
        raise JobError("exposure belongs to a label that is a number, and negatives make classes; leave it out")
    if not isinstance(job.engine, Local):
        raise JobError("negatives are drawn in one process; leave engine out")


def check_loss(job: Job) -> None:
    """The loss is known, and takes the options that are given."""
    names = [*(loss.name for loss in LOSSES), *OPEN_LOSSES]
    if job.model.loss is not None and job.model.loss not in names:
        raise JobError(
            f"unknown loss {job.model.loss!r}; choose one of {', '.join(names)}{hint(job.model.loss, names)}"
        )
    loss = job.model.loss_class
    for option in job.model.loss_options:
        if loss is None or option not in loss.options:
            owner = loss_options().get(option)
            where = f'it belongs to loss="{owner}"' if owner else f"there are {', '.join(loss_options())}"
            raise JobError(f"{option} is not an option of this model's loss; {where}")
    if loss is not None:
        loss.of(LabelFacts(classes=2), **job.model.loss_options)  # which checks the options


def _check_model(job: Job, given: dict[str, Any]) -> None:
    """Refuses options that do not fit the model, and models that the algorithm cannot train."""
    algorithm, loss = algorithm_of(job.options), job.model.loss_class
    _check_penalties(job)
    if loss is not None and job.privacy.label is not None and loss.label_noise == "refused":
        raise PrivacyError(
            f"the {loss.name} loss has no private form for labels: noise on them would bias what it fits; use "
            'model="linear" with privacy.label, or train without it'
        )
    if job.warm_start is not None and not algorithm.can_go_on(job.options):
        raise JobError(
            "warm_start adds boosted trees to those of a model; leave it out of other models, and of forests"
        )
    _check_ids(job)
    if own_model(job.model.spec) is not None or algorithm.own_model:
        _check_boosted(job, given)
        return
    if algorithm.requires_curvature and loss is not None and not loss.is_smooth:
        able = name_algorithms(a for a in FEDERATED if not a.requires_curvature)
        raise JobError(
            f'algorithm="{job.algorithm}" needs second derivatives, and the {loss.name} loss has kinks; train it with '
            f"{able}"
        )
    if job.model.spec.is_linear:
        for name in ("hidden", "activation", "dropout", "dtype", "module"):
            if name in given and not (name in ("activation", "dtype") and traits_of(job.model.head).is_network):
                raise JobError(
                    f'{name} belongs to a neural model; use it with model="mlp", not model="{job.model.name}"'
                )
        if job.model.loss is not None and job.model.name not in ("auto", "linear"):
            raise JobError(
                f'model="{job.model.name}" already names its loss; use model="linear" with loss="{job.model.loss}"'
            )
        if job.model.intercept is False and not algorithm.can_omit_intercept:
            able = name_algorithms(a for a in FEDERATED if a.can_omit_intercept)
            raise JobError(f"a linear model can do without its intercept under {able} only")
        _check_refusal(job)
        return
    if job.model.name == "module" and not job.model.module:
        raise JobError('model="module" needs module=…, the name under which the clients know the builder')
    if not 0 <= job.model.dropout < 1:
        raise JobError("dropout must lie in [0, 1)")
    if any(size < 1 for size in job.model.hidden):
        raise JobError("hidden must list layer sizes of at least 1, for example (16,)")
    if algorithm.requires_linear:
        able = name_algorithms(a for a in FEDERATED if not a.requires_linear)
        raise JobError(
            f'algorithm="{job.algorithm}" trains linear models only, for {algorithm.requires_linear}; '
            f"train a neural model with {able}"
        )
    _check_refusal(job)


def _check_ids(job: Job) -> None:
    algorithm = algorithm_of(job.options)
    if job.data.ids and (algorithm.own_model or algorithm.is_pooled or job.is_expanded):
        raise JobError(f'algorithm="{job.algorithm}" takes texts as categories; leave ids out')
    if job.data.ids and job.privacy.features is not None:
        raise JobError(
            "ids stay with their owner, and so do their parameters: privacy.features has nothing to protect there; "
            "leave one of them out"
        )


def _check_penalties(job: Job) -> None:
    algorithm = algorithm_of(job.options)
    if job.start and not (algorithm.takes_start and job.model.is_sum and not job.is_private):
        able = name_algorithms(a for a in BY_NAME.values() if a.takes_start)
        raise JobError(
            f"warm_start with a linear model gives the weights that another begins with, under {able} and without "
            "privacy.features; leave it out"
        )
    if (job.model.l1 or job.model.signs) and not algorithm.supports_nonsmooth:
        what = "l1" if job.model.l1 else "signs"
        raise JobError(
            f'algorithm="{job.algorithm}" cannot train with {what}: it needs a penalty without kinks; '
            f"train a linear model with {name_algorithms(KINKED)}, or leave algorithm out"
        )
    if isinstance(job.model.l2, dict) and (algorithm.own_model or algorithm.is_pooled or not job.model.is_sum):
        raise JobError(
            "an l2 for each table belongs to linear and neural models whose scores are sums, trained by "
            f"{name_algorithms(FEDERATED)}; give one number"
        )


def _check_boosted(job: Job, given: dict[str, Any]) -> None:
    own = algorithm_of(job.options).own_model
    able = name_algorithms(a for a in BY_NAME.values() if a.own_model)
    if job.model.name != own:
        raise JobError(
            f'model="boosted" is grown by {able} and by nothing else, not model="{job.model.name}" by '
            f'algorithm="{job.algorithm}"; use both, or neither'
        )
    plain = Job(data=JobData(query="", label=""))
    for name in ("hidden", "activation", "dropout", "dtype", "module", "intercept", "standardize", "batch_size"):
        if name in given and job.get(name) != plain.get(name):
            raise JobError(f'{name} has no meaning for boosted trees; leave it out with model="boosted"')
    if given.get("epochs") is not None:
        raise JobError("boosted trees have no epochs; set trees instead")
    if job.privacy.predictions.mode == "local":
        raise JobError("boosted trees have no predictions to hide in training; leave privacy.predictions out")
    why = algorithm_of(job.options).why_not_private(job.options)
    if job.privacy.features is not None and why is not None:
        raise JobError(f"{why}, or leave privacy.features out")
    if job.privacy.features is not None and job.warm_start is not None:
        raise JobError("trees that there were are outside the promise of privacy.features; leave warm_start out")


def _check_refusal(job: Job) -> None:
    why = algorithm_of(job.options).refusal(job.options, job.model.spec)
    if why is not None:
        raise JobError(why)


def _check_stopping(job: Job) -> None:
    if job.patience is None:
        return
    if not job.split.validation_fraction and job.split.validation_where is None:
        raise JobError("patience needs validation rows; add validation_fraction=0.1 or validation_where=…")
    if algorithm_of(job.options).is_pooled:
        raise JobError(f'algorithm="{job.algorithm}" is a baseline without epochs to stop at; leave patience out')
    if not algorithm_of(job.options).can_stop_early(job.options):
        raise JobError("a forest is the mean of all its trees, in no order; leave patience out, or forest")
    if job.privacy.features is not None:
        raise JobError(
            "patience would choose an epoch by exact predictions of validation rows, outside the promise of "
            "privacy.features; leave it out and set epochs"
        )


def check_search(job: Job) -> None:
    search = job.search
    if search is None:
        return
    if not search.jobs or len(search.jobs) != len(search.settings):
        raise JobError("a search needs at least one setting")
    if not isinstance(search.folds.count, int) or not 2 <= search.folds.count <= 1000:
        raise JobError("folds must be a whole number from 2 to 1,000")
    if search.folds.by != "row" and search.folds.column is None:
        raise JobError(f"folds by {search.folds.by} need the column")
    for other in search.jobs:
        for name in ARGUMENTS:
            if name not in (*_TRIED, "l2_by_rows", "search") and other.get(name) != job.get(name):
                raise JobError(
                    f"a search tries settings on the same joined rows and features, and {name} changes more than that; "
                    f"run one search for each, or vary {', '.join(_TRIED)} and options of the algorithm"
                )
        if other.search is not None:
            raise JobError("a setting of a search cannot be a search itself")
    algorithm = algorithm_of(job.options)
    if algorithm.own_model or algorithm.is_pooled or job.is_expanded:
        able = name_algorithms(a for a in (*FEDERATED, *KINKED) if "sum" in a.heads)
        raise JobError(
            f'a search shares one mapping among its models, which algorithm="{job.algorithm}" cannot; use {able}, or '
            'train each setting with validation_fraction=0.2 and compare result.metrics["validation"]'
        )
    if job.start:
        raise JobError("a search begins its models by itself; leave warm_start out")
    if job.patience is not None or job.is_private or not isinstance(job.engine, Local):
        raise JobError("a search takes no patience, no privacy of features or predictions, and no engine; leave it out")


def hint(name: Any, known: Any) -> str:
    near = nearest(str(name), list(known))
    return "" if near is None else f"; did you mean {near!r}?"
