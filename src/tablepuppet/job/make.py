"""A checked job from a user's arguments: names, options objects, keyword arguments, TOML values."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tablepuppet.algorithms.algorithm import Algorithm
from tablepuppet.algorithms.boosting.messages import GrownTrees
from tablepuppet.algorithms.options import AlgorithmOptions
from tablepuppet.algorithms.registry import BY_NAME, DEFAULT, FEDERATED, KINKED, algorithm_of, options_of
from tablepuppet.errors import JobError, PrivacyWarning
from tablepuppet.job.checks import check_given, check_loss, check_search, hint
from tablepuppet.job.job import ARGUMENTS, Job, JobModel, Search, engine_of, job_of, loss_options, models
from tablepuppet.models.heads.base import HeadKind
from tablepuppet.models.heads.kinds import head_given, traits_of
from tablepuppet.models.losses import LOSSES, loss_of_model, usual_loss
from tablepuppet.models.spec import L2
from tablepuppet.privacy.options import privacy_of
from tablepuppet.protocol.contract import Folds

_OURS = ("module", "head_module")  # arguments of a job that nobody gives by hand
# Arguments that are options of a job: not those with a place of their own, nor those that the software sets.
_OPTIONS = frozenset(ARGUMENTS) - {"query", "label", "model", "algorithm", "options", "epochs_by_rows", "l2_by_rows"}
_PROBE_EPOCHS = 6


def make_job(query: str, *, label: str, model: Any, algorithm: Any, given: dict[str, Any]) -> Job:
    """A checked job from a user's arguments: names, options objects, keyword arguments, TOML values.

    >>> make_job("SELECT …", label="y", model="linear", algorithm="admm", given={"rho": 0.5}).options.rho
    0.5
    """
    _check_names(query, label, model)
    given = _normalize(given)
    if algorithm is None:
        is_sparse = bool(given.get("l1") or given.get("signs"))
        loss = next((x for x in LOSSES if x.name == given.get("loss")), loss_of_model(model))
        algorithm = usual_algorithm(given["head"], model, is_sparse=is_sparse, is_smooth=loss is None or loss.is_smooth)
    values, extra = _sort_arguments(given, algorithm)
    name, options = _algorithm(algorithm, extra)
    if model == "auto":
        model = algorithm_of(options).own_model or model
    job = job_of({"query": query, "label": label, "model": model, "algorithm": name, **values})
    check_loss(job)
    privacy = privacy_of(given.get("privacy"))
    options = options.resolve_defaults(is_linear=job.model.spec.is_linear, is_private=privacy.features is not None)
    if job.model.loss_class is not None and not job.model.loss_class.is_smooth:
        options = options.for_kinks()
    before = given.get("warm_start")
    if before is not None and not isinstance(before, GrownTrees):
        raise JobError("warm_start begins with an earlier model; it belongs to train")
    engine = engine_of(given.get("engine"))
    job = job.replace(options=options, privacy=privacy, engine=engine, warm_start=before)
    job = _choose_defaults(job, has_epochs=given.get("epochs") is not None, has_l2=given.get("l2") is not None)
    if job.privacy.keys == "sha256":
        warnings.warn(
            'keys="sha256" hides no key that somebody can guess: whoever lists the possible ids, a million a second, '
            'has the key of every row. Use keys="hmac" unless you compare with the paper',
            PrivacyWarning,
            stacklevel=3,
        )
    check_given(job, given)
    return job


def _check_names(query: Any, label: Any, model: Any) -> None:
    if not isinstance(query, str):
        raise JobError(f"query must be SQL text, not {type(query).__name__}")
    if not isinstance(label, str) or not label:
        found = "" if isinstance(label, str | None) else f", not {type(label).__name__}"
        raise JobError(
            f'label must be the name of a column in the SELECT list{found}; name what to predict: label="returned"'
        )
    if not isinstance(model, str) or model not in (*models(), "module"):
        raise JobError(
            f"unknown model {model!r}; choose one of {', '.join(models())}, or give a callable (width, outputs) → "
            f"torch.nn.Module{hint(model, models())}"
        )


def _normalize(given: dict[str, Any]) -> dict[str, Any]:
    """Plain numbers instead of NumPy's, classes as texts, and a known head."""
    given = {name: plain_value(value) for name, value in given.items()}
    if given.get("l2") == "auto":
        given["l2"] = None
    if isinstance(given.get("class_weight"), Mapping):
        given["class_weight"] = {class_text(c): plain_value(w) for c, w in given["class_weight"].items()}
    return given | head_given(given.get("head", "sum"))


def plain_value(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _sort_arguments(given: dict[str, Any], algorithm: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the job, and the others, which are the algorithm's."""
    values = {name: value for name, value in given.items() if name in _OPTIONS - {"privacy", "engine", "warm_start"}}
    extra = {name: value for name, value in given.items() if name not in _OPTIONS}
    if values.get("exposure") is not None:
        if values.get("weight") not in (None, values["exposure"]):
            raise JobError("exposure is the weight of the rate that is modelled; leave weight out")
        values["weight"] = values["exposure"]
    values["loss_options"] = dict(values.get("loss_options") or {})
    for option in [name for name in extra if name in loss_options()]:
        values["loss_options"][option] = extra.pop(option)
    declared = BY_NAME.get(algorithm) if isinstance(algorithm, str) else None
    if declared is not None and declared.own_model and isinstance(given.get("l2"), int | float):
        extra["l2"] = given["l2"]  # of leaves; the default is the algorithm's own
    if values.get("l2") is None:
        own_l2 = traits_of(given["head"]).l2
        values["l2"] = L2 if own_l2 is None else own_l2
    if values.get("epochs") is None:
        values["epochs"] = 1  # until `_choose_defaults`
    return values, extra


def _choose_defaults(job: Job, *, has_epochs: bool, has_l2: bool) -> Job:
    """The epochs and the penalty by rows of a job whose user left them open."""
    algorithm, traits = algorithm_of(job.options), traits_of(job.model.head)
    if not has_epochs:
        job = job.replace(epochs=_epochs(job, algorithm), epochs_by_rows=True)
    if has_l2 or not job.model.spec.is_linear:
        return job
    if traits.is_sum:
        # Private jobs keep a number: noise is sized by it before any row is counted, and a model by a penalty of 1/N
        # would reveal how many rows there are.
        is_noisy = job.is_private or job.privacy.label is not None
        return job if is_noisy else job.replace(l2=0.0, l2_by_rows=traits.l2_by_rows)
    is_open = job.model.shrinkage is None and job.chooses_steps
    if not is_open or algorithm.learns_shrinkage:
        return job
    more = 1 if has_epochs else traits.most_epochs  # few rows take more epochs, where ids and networks are kept small
    return job.replace(l2_by_rows=traits.l2_by_rows, epochs=more * job.epochs)


def probe_job(job: Job) -> Job:
    """A sum of the same tables, trained for a few rounds to measure its residuals; no owner releases anything of it."""
    if job.is_private or job.privacy.label is not None:
        raise JobError("probe looks at what a sum leaves of exact labels and features; leave it out of private jobs")
    if job.model.loss_class is not None and not job.model.loss_class.is_smooth:
        raise JobError(
            f"probe trains a sum by {DEFAULT}, and the {job.model.loss_name} loss has kinks; leave probe out"
        )
    name = "auto" if job.model.name in ("mlp", "module", "boosted") else job.model.name
    return Job(
        data=job.data,
        model=JobModel(name=name, loss=job.model.loss, loss_options=job.model.loss_options),
        split=job.split,
        privacy=job.privacy,
        options=BY_NAME[DEFAULT].options().resolve_defaults(is_linear=True, is_private=False),
        epochs=_PROBE_EPOCHS,
        seed=job.seed,
        wire=job.wire,
        release=False,
        probe=True,
    )


def search_job(jobs: Sequence[Job], settings: Sequence[dict[str, Any]], folds: Folds) -> Job:
    """A job that tries settings of one model on the same joined rows."""
    job = jobs[0].replace(search=Search(folds=folds, settings=tuple(settings), jobs=tuple(jobs)))
    check_search(job)
    return job


def usual_algorithm(head: HeadKind, model: str, *, is_sparse: bool = False, is_smooth: bool = True) -> str:
    """The algorithm of a job that names none: the model's own, of those for linear models the most particular.

    Networks have the one that trains them under every head.

    >>> usual_algorithm("sum", "linear"), usual_algorithm("sum", "quantile", is_smooth=False)
    ('newton', 'admm')
    """
    own = next((a.name for a in BY_NAME.values() if a.own_model == model), None)
    if own is not None:
        return own
    is_linear = model not in ("mlp", "module")
    if traits_of(head).is_sum and is_linear and (is_sparse or is_smooth):
        return KINKED[0].name if is_sparse else DEFAULT
    able = [a for a in FEDERATED if head in a.heads and (is_linear or not a.requires_linear)]
    able = [a for a in able if is_smooth or not a.requires_curvature]
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


def _algorithm(algorithm: Any, extra: dict[str, Any]) -> tuple[str, AlgorithmOptions]:
    if isinstance(algorithm, AlgorithmOptions):
        if extra:
            raise JobError(
                f"unknown argument {min(extra)!r}; options of the algorithm belong in tp.{type(algorithm).__name__}(…)"
            )
        return algorithm.name, algorithm
    if isinstance(algorithm, str):
        if algorithm not in BY_NAME:
            raise JobError(
                f"unknown algorithm {algorithm!r}; choose one of {', '.join(BY_NAME)}{hint(algorithm, BY_NAME)}"
            )
        known = _OPTIONS | set(BY_NAME[algorithm].options.__struct_fields__)
        for name in extra:
            if name not in known:
                near = hint(name, known | {"label", "model"}) or "."
                raise JobError(f"algorithm {algorithm} has no option {name!r}{near} {_options(algorithm)}")
        return algorithm, options_of(algorithm, extra)
    kinds = ", ".join(f"tp.{a.options.__name__}(…)" for a in FEDERATED)
    found = f"the class {algorithm.__name__}" if isinstance(algorithm, type) else type(algorithm).__name__
    raise JobError(f"algorithm must be a name or {kinds}, not {found}")


def _epochs(job: Job, algorithm: Algorithm[Any]) -> int:
    """How many epochs are usually enough; "auto" may turn out to be any of the usual losses."""
    if not job.model.spec.is_linear and algorithm.network_epochs:
        return algorithm.network_epochs
    if not job.model.is_sum and algorithm.head_epochs:
        return algorithm.head_epochs
    if algorithm.is_pooled:
        return algorithm.epochs if job.model.is_convex else Algorithm.epochs
    if algorithm.supports_nonsmooth:
        return algorithm.epochs
    losses = [usual_loss(classes) for classes in (0, 2, 3)] if job.model.loss_class is None else [job.model.loss_class]
    return max(loss.epochs.get(algorithm.uses, algorithm.epochs) for loss in losses)


def _options(algorithm: str) -> str:
    """The options to choose from: of the algorithm, and of every job."""
    others = sorted(_OPTIONS - set(_OURS))
    return f"It has {', '.join(BY_NAME[algorithm].options.__struct_fields__)}; every job has {', '.join(others)}"
