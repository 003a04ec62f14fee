"""The story of a training run: text → query → tables → mapping → plan → result."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import pyarrow as pa
from msgspec.structs import replace

from tablepuppet.algorithms.registry import own_model
from tablepuppet.contract import ModelUse, agree, job_contracts, key_contracts
from tablepuppet.errors import JobError, PrivacyError, RunInterruptedError
from tablepuppet.exchanges.schema import CloseJob
from tablepuppet.job import Job
from tablepuppet.job.make import probe_job
from tablepuppet.join.build import map_tables
from tablepuppet.join.cluster.cluster import Cluster, at_work
from tablepuppet.join.keys import gather_keys
from tablepuppet.join.labels import MappingRequest
from tablepuppet.join.mapping import TableMapping, summarise
from tablepuppet.join.negatives import with_negatives
from tablepuppet.join.profile import Profile, check_meetings, profile_keys
from tablepuppet.join.walk_choice import default_limit
from tablepuppet.models.losses import Logistic, Squared
from tablepuppet.plan.analyst import AnalystNoise, analyst_job, analyst_terms, label_bounds
from tablepuppet.plan.knowledge import check_exposure
from tablepuppet.plan.plan import Gain, Plan
from tablepuppet.plan.prepare import Prepared, has_sums, may_draw, prepare, task_of
from tablepuppet.prediction.cache import PredictionCache
from tablepuppet.prediction.missing_owners import reachable
from tablepuppet.prediction.model import Model
from tablepuppet.prediction.predict import predict_rows
from tablepuppet.prediction.split_record import RowSelection
from tablepuppet.privacy.options import privacy_of
from tablepuppet.protocol.columns import Encoder
from tablepuppet.protocol.contract import Purpose
from tablepuppet.sql import LabelColumns, bind
from tablepuppet.sql.across_owners import read_query
from tablepuppet.sql.binding import Key, Wanted, bind_features
from tablepuppet.sql.schemas import ask_schemas
from tablepuppet.sql.ucq import Tables
from tablepuppet.threads import one_blas_thread
from tablepuppet.training import inspection
from tablepuppet.training.convergence import find_copy
from tablepuppet.training.evaluate import Comparison, Evaluation, check_comparable, score_labelled, score_rows
from tablepuppet.training.evaluate import compare as compare_models
from tablepuppet.training.interactions import gains_of
from tablepuppet.training.noisy_metrics import NoisyMetrics
from tablepuppet.training.pooled import run_pooled
from tablepuppet.training.result import Result
from tablepuppet.training.rounding import RoundedResults, check_label_rows, hide_rows, partner_rules
from tablepuppet.training.run import OnRound, find_interactions, run
from tablepuppet.training.search import SearchResult, run_search
from tablepuppet.training.server import UnionOperator
from tablepuppet.training.start import gather_statistics, with_statistics
from tablepuppet.transport.link import Link

Question = Literal["profile", "schemas", "evaluate", "compare", "importance", "partial_dependence", "drift"]


class Session(NamedTuple):
    """A job among the clients: which of them hold each table, the link to them, and the job's name there."""

    tables: Tables
    link: Link
    job_id: str


def train(job: Job, tables: Tables, link: Link, on_round: OnRound | None = None, job_id: str | None = None) -> Any:
    """Trains a job's model on tables that stay with their clients; a resumed run keeps its id."""
    if job.probe:
        raise JobError("probe belongs to explain: it says which model would gain; leave it out of train")
    with _session(tables, link, job_id) as session, at_work(job.engine) as cluster:
        prepared = prepare_job(job, session, "train", cluster)
        shown = RoundedResults.of(prepared, prepared.plan.loss)
        follow = on_round if shown is None else shown.following(on_round)
        with hide_rows(prepared.noise):
            found = _run(prepared, link, session.job_id, follow if prepared.noise is None else None)
        if not isinstance(found, Result):
            return found if shown is None else shown.search(found)
        found = replace(found, heads=dict(link.heads))  # of owners' logs
        if prepared.noise is not None:
            return NoisyMetrics(prepared.noise).result(found)
        if shown is not None:
            return shown.result(found)
        return replace(found, notes=(*found.notes, *find_copy(found), *found.plan.leaks))


def _run(prepared: Prepared, link: Link, job_id: str, on_round: OnRound | None) -> Result | SearchResult:
    job = prepared.plan.job
    if prepared.plan.algorithm.is_pooled:
        return run_pooled(prepared, link, job_id, on_round)
    if job.search is not None:
        with one_blas_thread:
            return run_search(prepared, link, job_id, on_round)
    own = own_model(job.model.spec)
    if own is not None:
        return cast(Result, own.run(prepared, link, job_id, on_round))
    with one_blas_thread:
        return run(prepared, link, job_id, on_round)


def explain(job: Job, tables: Tables, link: Link, job_id: str | None = None) -> Plan:
    """The plan of a training run, and its cost."""
    if job.probe:
        probe_job(job)  # refuses before anything is read
    with _session(tables, link, job_id) as session, at_work(job.engine) as cluster:
        prepared = prepare_job(job, session, "explain", cluster)
        plan = prepared.plan
        if prepared.noise is not None:
            plan = replace(plan, notes=prepared.noise.lines())
        _ = plan.private  # refuses here whatever training would
        if own_model(job.model.spec) is None:
            plan = with_statistics(prepared, link, session.job_id)
        check_exposure(plan.exposures, plan.job)
        return plan if not job.probe else replace(plan, gains=_gains(plan, tables, link))


def _gains(plan: Plan, tables: Tables, link: Link) -> tuple[Gain, ...]:
    """The gains of models that are no sum. A sum is trained to estimate them, under a contract of its own."""
    job = probe_job(plan.job)
    with _session(tables, link) as session, one_blas_thread:
        prepared = prepare_job(job, session, "train")
        pairs = find_interactions(prepared, link, session.job_id)
    if not pairs:
        raise JobError(
            "a probe needs two tables with features, 2,000 joined rows to train on, and a label that differs and is a "
            "number or has two classes; leave probe out"
        )
    return gains_of(plan, pairs)


def profile(query: str, label: str | None, privacy: dict[str, Any], tables: Tables, link: Link) -> Profile:
    """How the keys of a query's tables match; `privacy`: the form in which they leave."""
    asked = privacy_of(privacy)
    with _session(tables, link) as session:
        bound = bind(read_query(query, tables, link), label=label, tables=tables, link=link, job=session.job_id)
        rounding = agree(key_contracts(bound, "profile", link.asker, asked), link, session.job_id)
        keys, _ = gather_keys(bound, link, session.job_id, asked)
        found = profile_keys(bound, keys)
        check_meetings(found, rounding.least)
        return found


def schemas(names: list[str], tables: Tables, link: Link) -> dict[str, list[tuple[str, str, bool]]]:
    """The columns of some tables, or of all: names, kinds, and whether their owner allows them as features."""
    found: dict[str, list[tuple[str, str, bool]]] = {}
    for name, given in ask_schemas(names or list(tables), tables, link).items():
        granted = None if given.features is None else {feature.lower() for feature in given.features}
        found[name] = [(c.name, c.kind, granted is None or c.name.lower() in granted) for c in given.columns]
    return found


def predict(
    model: Model,
    query: str,
    tables: Tables,
    link: Link,
    missing: str = "error",
    cache: PredictionCache | None = None,
    **options: Any,
) -> pa.Table:
    """A model's predictions on a query's rows; missing="zero": mean contributions stand for owners that are away.

    `cache`: answers repeated requests by key.
    """
    if missing not in ("error", "zero"):
        raise JobError(f'missing must be "error" or "zero", not {missing!r}')
    key, only, limit = options.get("key"), options.get("only"), options.get("max_joined_rows")
    if cache is not None and missing == "error" and not options.get("split") and key is not None and only is not None:

        def rows(keys: Sequence[Key] | None, limit: int | None) -> pa.Table:
            return predict(model, query, tables, link, key=key, only=keys, max_joined_rows=limit)

        return cache.answer(model, query, tables, link, rows, key=key, only=only, limit=limit)
    if missing == "error":
        with _session(tables, link) as session, one_blas_thread:
            return predict_rows(model, query, tables, link, session.job_id, **options)
    there = reachable(model, tables, link)
    with _session(there.tables, there.link) as session, one_blas_thread:
        return predict_rows(model, query, there.tables, there.link, session.job_id, there=there, **options)


def evaluate(model: Model, job: Job, tables: Tables, link: Link, *, rows: str = "test") -> Evaluation:
    """A model's metrics on labelled rows of a job's query."""
    measured = RowSelection.of(rows, model)
    with _session(tables, link) as session:
        prepared = prepare_job(job, session, "evaluate", measured=measured)
        noisy = None if prepared.noise is None else NoisyMetrics(prepared.noise)
        with hide_rows(prepared.noise):
            scored = score_labelled(model, prepared, link, session.job_id)
            found = scored.measure(noisy=noisy)
            if noisy is not None:
                if found.on is None:
                    raise JobError("too few rows are left for the noise on them")
                return Evaluation(found.metrics, replace(measured.count(prepared.mapping), joined=found.on.rows))
        shown = RoundedResults.of(prepared, model.loss)
        metrics = found.metrics if shown is None else shown.train.measured(found).metrics
        alone = scored.measure_constant()
        baseline = alone if shown is None else shown.train.metrics(alone)
        return Evaluation(metrics, measured.count(prepared.mapping), baseline)


def compare(model: Model, other: Model, job: Job, tables: Tables, link: Link, *, rows: str = "test") -> Comparison:
    """Two models on the same labelled rows, each asked for as an evaluation is."""
    check_comparable(model, other)
    measured = RowSelection.of(rows, model, other)
    with _session(tables, link) as session, one_blas_thread:
        prepared = prepare_job(job, session, "evaluate", measured=measured)
        with hide_rows(prepared.noise):
            first, second = (score_labelled(one, prepared, link, session.job_id) for one in (model, other))
            if prepared.noise is not None:
                return NoisyMetrics(prepared.noise).compare(first, second, measured.count(prepared.mapping))
        found = compare_models(first, second, measured.count(prepared.mapping))
        shown = RoundedResults.of(prepared, model.loss)
        return found if shown is None else shown.comparison(found, first.measure(), second.measure())


def importance(
    model: Model, job: Job, tables: Tables, link: Link, *, by: str, repeats: int, seed: int, rows: str = "test"
) -> inspection.Inspection:
    """How much worse a model gets where a feature or a table is shuffled."""
    if by not in ("feature", "table") or not isinstance(repeats, int) or not 1 <= repeats <= 100 or seed < 0:
        raise JobError('importance is by="feature" or by="table", repeated 1 to 100 times, with a seed from 0 up')
    if job.privacy.analyst is not None:
        raise PrivacyError("importance has no noisy form; train a model without the feature, and compare the two")
    shuffles = repeats if by == "feature" and own_model(model.spec) is None else 0
    measured = RowSelection.of(rows, model, shuffles=shuffles)
    with _session(tables, link) as session, one_blas_thread:
        prepared = prepare_job(job, session, "evaluate", measured=measured)
        scored = score_labelled(model, prepared, link, session.job_id)
        found = inspection.permutation_importance(scored, by=by, repeats=repeats, seed=seed)
        shown = RoundedResults.of(prepared, model.loss)
        found = found if shown is None else shown.rises(found, scored.measure().loss)
        return inspection.Inspection(found, measured.count(prepared.mapping))


def partial_dependence(
    model: Model,
    job: Job,
    tables: Tables,
    link: Link,
    *,
    feature: str,
    values: Sequence[Any] | None,
    points: int,
    rows: str = "test",
) -> inspection.Inspection:
    """A model's mean prediction where one feature has the same value in every row; no label is read."""
    given = inspection.vary_feature(model, feature, values, points)
    if values is None and len(given.values) == points and isinstance(given.values[0], str):
        encoders, _ = _gather_encoders(model, job.replace(max_categories=points), tables, link)
        frequent = tuple(getattr(encoders[given.block][given.feature], "categories", ()))
        given = replace(given, values=frequent or given.values)  # those that most rows have
    name = model.blocks[given.block].name
    fixed = (name, given.feature, len(given.values)) if own_model(model.spec) is None else None
    measured = RowSelection.of(rows, model, fixed=fixed)
    with _session(tables, link) as session, one_blas_thread:
        mapping = map_features(job, session, "evaluate", measured)
        union = UnionOperator(link, session.job_id, mapping, model.widths)
        found = inspection.partial_dependence(score_rows(model, mapping.train, union), given)
        return inspection.Inspection(found, measured.count(mapping))


def drift(model: Model, job: Job, tables: Tables, link: Link) -> inspection.Drift:
    """How a query's rows differ from those that a model was trained on; no label is read, but for an analyst, as one
    decides which rows count."""
    if job.privacy.analyst is None:
        encoders, mapping = _gather_encoders(model, job, tables, link)
        return inspection.measure_drift(model, encoders, summarise(mapping))
    if own_model(model.spec) is None or not isinstance(model.loss, Logistic | Squared):
        raise PrivacyError("under an analyst budget, drift compares trees of logistic or squared loss; use evaluate")
    with _session(tables, link) as session:
        prepared = prepare_job(job, session, "evaluate", measured=RowSelection.of("all", model))
        assert prepared.noise is not None
        with hide_rows(prepared.noise):
            return NoisyMetrics(prepared.noise).drift(score_labelled(model, prepared, link, session.job_id))


def _gather_encoders(model: Model, job: Job, tables: Tables, link: Link) -> tuple[list[list[Encoder]], TableMapping]:
    """The encoders that training on a query's rows would agree on, and the rows."""
    with _session(tables, link) as session:
        mapping = map_features(job, session, "explain", RowSelection.of("all", model))
        union = UnionOperator(link, session.job_id, mapping, 1, job.privacy)
        return gather_statistics(union, mapping, job), mapping


def ask(question: str, given: Mapping[str, Any], tables: Tables, link: Link) -> Any:
    """One of the questions above that train nothing, by its name; its keyword arguments are under "options"."""
    named = {name: value for name, value in given.items() if name != "options"}
    return _QUESTIONS[question](**named, **given.get("options", {}), tables=tables, link=link)


_QUESTIONS: dict[str, Callable[..., Any]] = {
    question.__name__: question
    for question in (profile, schemas, evaluate, compare, importance, partial_dependence, drift)
}


def prepare_job(
    job: Job,
    session: Session,
    purpose: Purpose = "train",
    cluster: Cluster | None = None,
    measured: RowSelection | None = None,
) -> Prepared:
    """Text → Ucq → BoundQuery → Contracts → TableMapping → Prepared; joined rows lie on the cluster, if any."""
    tables, link, job_id = session
    ucq = read_query(job.data.query, tables, link)
    where = job.split.test_where if measured is None else measured.condition
    folds = None if job.search is None else job.search.folds
    beside = LabelColumns(job.data.weight, where, job.split.validation_where, None if folds is None else folds.column)
    bound = bind(ucq, label=job.data.label, tables=tables, link=link, job=job_id, beside=beside)
    use = ModelUse() if measured is None else measured.use(bound)
    terms = analyst_terms(bound, job, purpose)
    if terms is not None and measured is None:
        job = analyst_job(job, terms)
    rounding = agree(job_contracts(bound, job, purpose, link.asker, replace(use, analyst=terms)), link, job_id)
    noise = None if terms is None else AnalystNoise(terms, rounding.least, rounding.analyst_left, label_bounds(job))
    request = _map_request(job, job_id)
    if measured is None:
        request = replace(request, folds=folds, walk=job.data.walk, has_sums=partial(has_sums, job))
    with hide_rows(noise):
        choice = None if measured is None else measured.choice(bound, link, job_id)
        if noise is not None:
            capped = replace(request, walk="materialised", may_draw=False, has_sums=None, analyst_cap=noise.terms.cap)
            mapping = map_tables(bound, link, capped, choice=choice)
            is_split = measured is None and bool(job.split.test_where or job.split.test_fraction)
            noise.check_partners((mapping.train, *[mapping.test] * is_split), *partner_rules(mapping, rounding))
            return replace(prepare(mapping, job, noise), rounding=rounding)
    mapping = map_tables(bound, link, request, cluster=cluster, choice=choice)
    if job.data.negatives:
        mapping = with_negatives(mapping, job.data.negatives, job.seed, job.data.max_joined_rows or default_limit())
    check_label_rows(mapping, job, rounding)
    return replace(prepare(mapping, job), rounding=rounding)


def map_features(job: Job, session: Session, purpose: Purpose, measured: RowSelection) -> TableMapping:
    """The rows of a query with the features of a model, whether or not they have labels."""
    tables, link, job_id = session
    model = measured.models[0]
    wanted = Wanted(
        blocks=tuple((block.name, block.features) for block in model.blocks),
        label=model.label,
        bases=model.label_aliases,
        key=(),
        beside=LabelColumns(None, measured.condition),
    )
    bound = bind_features(read_query(job.data.query, tables, link), wanted, tables=tables, link=link, job=job_id).bound
    if any(scan.budgeted for scan in bound.scans):
        raise PrivacyError(
            "a table has an analyst budget: partial dependence has no noisy form, and drift and evaluate take "
            'privacy={"analyst": {"epsilon": …}}; model.importance() follows from noisy trees, and costs nothing'
        )
    agree(job_contracts(bound, job, purpose, link.asker, measured.use(bound)), link, job_id)
    return map_tables(bound, link, _map_request(job, job_id), choice=measured.choice(bound, link, job_id))


def _map_request(job: Job, job_id: str) -> MappingRequest:
    return MappingRequest(
        job=job_id,
        task=task_of(job),
        seed=job.seed,
        test_fraction=job.split.test_fraction,
        max_joined_rows=job.data.max_joined_rows,
        privacy=job.privacy,
        may_draw=may_draw(job),
    )


def new_job_id() -> str:
    return secrets.token_hex(8)


@contextmanager
def _session(tables: Tables, link: Link, given: str | None = None) -> Iterator[Session]:
    """A job's name among the clients; they forget it afterwards, unless it is to be resumed."""
    job_id, is_over = given or new_job_id(), True
    try:
        yield Session(tables, link, job_id)
    except RunInterruptedError:
        is_over = False
        raise
    finally:
        if is_over:
            clients = sorted({client for owners in tables.values() for client in owners})
            link.tell({client: [CloseJob(job=job_id)] for client in clients})
