"""Federation: tables by name, each with one or several owners, and what can be asked of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, Protocol, cast, runtime_checkable

import pyarrow as pa

from tablepuppet import train as story
from tablepuppet.algorithms.registry import own_model
from tablepuppet.api.history import WINDOWS, Column, Wanted, Windows, suggest
from tablepuppet.api.models import labelled_job, model_of, own_head, with_start
from tablepuppet.api.owners import federation_from_toml, make_clients, name_owners, read_toml
from tablepuppet.api.recommend import best, candidates
from tablepuppet.api.time_split import split_by_time
from tablepuppet.errors import JobError
from tablepuppet.formatting import fragment, table
from tablepuppet.job import BatchSize, Job, make_job, search_job
from tablepuppet.join.profile import Profile
from tablepuppet.models.heads.kinds import known_head
from tablepuppet.models.modules import Builder
from tablepuppet.output_files import check_place
from tablepuppet.owner.policy import Policy
from tablepuppet.plan.plan import Plan
from tablepuppet.prediction.cache import PredictionCache, Predictor
from tablepuppet.prediction.model import Model
from tablepuppet.prediction.predict import as_keys, at_threshold, check_file, write
from tablepuppet.prediction.split import RowsWanted
from tablepuppet.privacy.options import privacy_of
from tablepuppet.progress import show_progress
from tablepuppet.protocol.codec import Wire
from tablepuppet.protocol.contract import FoldBy, Folds
from tablepuppet.protocol.signatures import read_asker_key, sign_contract
from tablepuppet.sql.grammar import open_parser_early
from tablepuppet.training.evaluate import Comparison, Evaluation
from tablepuppet.training.inspection import Drift, Inspection
from tablepuppet.training.result import Result, RoundEvent
from tablepuppet.training.search import SearchResult, check_apart, search_apart
from tablepuppet.transport.link import Link, LocalTransport

if TYPE_CHECKING:
    import pandas as pd

_NUMBERS = itertools.count(1)


@runtime_checkable
class Logger(Protocol):
    """An `on_round` that wants to know the job before its first round."""

    def start(self, job: Job) -> None: ...


class _Known(NamedTuple):
    """A model as a job can name it; its builder, where it is a callable."""

    model: Any
    given: dict[str, Any]
    builder: Builder | None


class Federation:
    """Tables and their owners, all in this process: each list entry is one client.

    `owners`: which tables one owner holds together, so that a subquery may span them: `owners={"bank": ["accounts",
    "transactions"]}`. Tables that are not listed have an owner each. A table with several sources is listed by as many
    owners, in the order of the sources.
    `partitioned_by`: of tables with several owners, the columns whose values each lie with one of them
    (`{"transactions": ["account_id"]}`), so that owners may join their own rows on them in a subquery (docs/sql.md).
    `policies`: what an owner lets leave, by client or by table: the path of its policy.toml (docs/policy.md).
    `models`: a folder in which owners keep their parts of models that are not released (docs/prediction.md); without
    one they keep them as long as the federation is open.
    `asker_key`: a file with the private key that signs contracts, for owners whose policies name `askers`; the asker is
    called as the file is (docs/policy.md).
    `key`: a secret that the clients share and the server never has (docs/privacy.md). Without one, tokens of join keys
    get a random key, and rows are numbered by a permutation that is public, so that a job repeats bit for bit.

    >>> import pyarrow as pa
    >>> Federation({"orders": [pa.table({"x": [1]}), pa.table({"x": [2]})]})
    Federation(orders: 2 clients)
    """

    def __init__(
        self,
        tables: Mapping[str, Any],
        *,
        owners: Mapping[str, Sequence[str]] | None = None,
        partitioned_by: Mapping[str, Sequence[str]] | None = None,
        key: bytes | None = None,
        policies: Mapping[str, str | Path | Policy] | None = None,
        models: str | Path | None = None,
        asker_key: str | Path | None = None,
    ) -> None:
        open_parser_early()
        self._asker_key = None if asker_key is None else read_asker_key(asker_key)
        self._asker = "this process" if asker_key is None else Path(asker_key).stem
        self._tables = name_owners(tables, owners or {}, partitioned_by or {})
        self._clients = make_clients(self._tables, tables, key=key, policies=policies or {}, models=models)
        self._prediction_cache = PredictionCache()
        self._transport = LocalTransport({name: client.handle for name, client in self._clients.items()})

    @classmethod
    def from_toml(cls, path: str | Path) -> Federation:
        """A federation from a file: `[tables]`, each a path, a list of paths, or {url, table}; or a `[server]`."""
        given = read_toml(path)
        if "server" in given:
            return cls.connect(path)
        return cls(**federation_from_toml(path, given))

    @classmethod
    def connect(cls, path: str | Path, *, asker_key: str | Path | None = None) -> Federation:
        """A federation of processes: its coordinator (`tablepuppet serve`) runs the jobs that are given here.

        `asker_key`: as above; else the file that `asker_key` under [user] names.
        """
        from tablepuppet.api.connected import ConnectedFederation

        return ConnectedFederation(path, asker_key=asker_key)

    def explain(
        self,
        query: str,
        *,
        label: str,
        model: Any = "auto",
        algorithm: Any = None,
        progress: bool | None = None,
        **options: Any,
    ) -> Plan:
        """What training would do and cost; `str(plan)` is the text.

        `probe`: train a sum of the tables for a few rounds, under a contract of its own, and say what tables would say
        together, which model would learn it, and at what cost (docs/heads.md).
        """
        query, options = self._split_rows(query, label, with_start(options))
        with show_progress("explaining", progress), self._name_model(model) as known, known_head(options) as given:
            job = make_job(query, label=label, model=known.model, algorithm=algorithm, given=given | known.given)
            return self._explain(job)

    def _link(self, wire: Wire = "float64") -> Link:
        link, key = Link(self._transport, wire, asker=self._asker), self._asker_key
        if key is not None:
            link.sign = lambda contracts: {client: sign_contract(own, key) for client, own in contracts.items()}
        return link

    def _explain(self, job: Job) -> Plan:
        return story.explain(job, self._tables, self._link(job.wire))

    def profile(self, query: str, *, label: str | None = None, privacy: Any = None) -> Profile:
        """How the keys of a query's tables meet: orphans, duplicates, NULL keys; `str(profile)` is the text.

        `privacy`: as in a job; of it, as what keys leave ("keys": "dh").
        """
        asked = privacy_of(privacy)
        keys = {"keys": asked.keys, "max_keys": asked.max_keys}
        return cast("Profile", self._ask("profile", query=query, label=label, privacy=keys))

    def train(
        self,
        query: str,
        *,
        label: str,
        model: Any = "auto",
        algorithm: Any = None,
        l2: float | Mapping[str, float] | Literal["auto"] | None = None,
        test_fraction: float = 0.15,
        validation_fraction: float = 0.0,
        patience: int | None = None,
        weight: str | None = None,
        class_weight: str | Mapping[Any, float] | None = None,
        standardize: bool = True,
        seed: int = 0,
        epochs: int | None = None,
        batch_size: BatchSize = "auto",
        privacy: Any = None,
        on_round: Callable[[RoundEvent], None] | None = None,
        progress: bool | None = None,
        resume: bool = False,
        **options: Any,
    ) -> Result:
        """Trains on the query's result without ever having it.

        `algorithm`: by name, or its options; None: newton, and for heads other than the sum the one that suits them.
        `validation_fraction`: rows that are measured after every epoch and never trained on; with `patience`, training
        stops after so many epochs without a better validation loss, and the best epoch's parameters are the model.
        `weight`: a column of the label's table, or an expression over it, that says how much a row counts;
        `class_weight`: "balanced", or a weight for each class (docs/validation.md). `exposure`: a column of the label's
        table, too: the label per unit of it is modelled, weighted by it; of counts that is an offset.
        `test_where`: which rows are for the test, instead of a fraction: a condition over the label table's columns.
        `split`: "time", or a column as in "t.ts": the latest rows are for the test; with `gap`, as in "30 days", rows
        so shortly before them are left out.
        `max_categories`: of a text column, so many categories have a weight of their own, the others share one.
        `max_joined_rows`: a join with more rows is refused before it is made.
        `negatives`: joined rows are what was seen, and so many pairs that did not meet are drawn beside each of them.
        `wire`: how numbers travel, "float64", or "float32" for half the bytes ("…+zstd", "…+lz4": compressed).
        `on_round`: called after every round; tablepuppet.report.callbacks has loggers.
        `progress`: a bar on standard error; None: in a terminal or a notebook, where training takes over two seconds.
        `resume`: go on with an interrupted run of the same job, where clients are processes of their own.
        `warm_start`: a result, a model, or the folder of one: a linear model begins with its weights, also on other
        rows and categories (docs/prediction.md#again-and-again), boosted trees are added to (docs/boosting.md).
        `options`: those of the algorithm (learning_rate, rho, …) where it is given by name, and what else a job has
        (docs/options.md).
        """
        options |= {
            "l2": l2,
            "test_fraction": test_fraction,
            "validation_fraction": validation_fraction,
            "patience": patience,
            "weight": weight,
            "class_weight": class_weight,
            "standardize": standardize,
            "seed": seed,
            "epochs": epochs,
            "batch_size": batch_size,
            "privacy": privacy,
        }
        if on_round is not None and not callable(on_round):
            raise JobError(
                f"on_round is a function of one event, and not {type(on_round).__name__}; see docs/report.md"
            )
        query, options = self._split_rows(query, label, with_start(options))
        with self._name_model(model) as known, known_head(options) as given:
            job = make_job(query, label=label, model=known.model, algorithm=algorithm, given=given | known.given)
            if isinstance(on_round, Logger):
                on_round.start(job)
            with show_progress("training", progress) as bar:
                result = self._train(job, bar.chain_callback(on_round), resume)
        return replace(result, builder=known.builder, head_module=options["head"] if job.model.head_module else None)

    def _train(self, job: Job, on_round: Callable[[RoundEvent], None] | None, resume: bool) -> Result:
        if resume:
            raise JobError("a run in one process ends with it; only a federation of processes can resume runs")
        result = cast("Result", story.train(job, self._tables, self._link(job.wire), on_round))
        return result if job.search is not None else self._with_ids(result)

    def _with_ids(self, result: Result) -> Result:
        """The blocks whose ids stayed with their owner, who is in this process: with them, for saving and export."""
        blocks = list(result.blocks)
        for number, places in enumerate(result.plan.ids):
            client = self._clients[result.plan.mapping.parts_of(number)[0].client] if "here" in places else None
            if client is not None and result.plan.job.release and client.policy.release_parameters:
                part = client.part_store.take_out(result.id, blocks[number].name)
                blocks[number] = replace(blocks[number], encoders=part.encoders, theta=part.theta, is_held=False)
        is_whole = not any(block.is_held for block in blocks)
        return replace(result, blocks=tuple(blocks), id="" if is_whole else result.id)

    def search(
        self,
        query: str,
        *,
        label: str,
        settings: Sequence[Mapping[str, Any]],
        folds: int = 5,
        group: str | None = None,
        time: str | None = None,
        metric: str | None = None,
        model: Any = "auto",
        algorithm: Any = None,
        progress: bool | None = None,
        **options: Any,
    ) -> SearchResult:
        """Cross-validates settings on the same joined rows: what `tp.search` and `tp.cross_validate` call."""
        if group is not None and time is not None:
            raise JobError("folds are drawn by group or by time, not by both")
        by: FoldBy = "group" if group is not None else "time" if time is not None else "row"
        drawn = Folds(count=folds, by=by, column=group or time)
        tried = [dict(setting) for setting in settings or [{}]]
        with self._name_model(model) as known:
            shared = {"test_fraction": 0.0, **options, **known.given}

            def jobs(by: Any) -> list[Job]:
                given = {"label": label, "model": known.model, "algorithm": by}
                return [make_job(query, **given, given=shared | setting) for setting in tried]

            made = jobs(algorithm)
            if algorithm is None and len({job.algorithm for job in made}) > 1:  # that of kinks trains without them too
                made = jobs(next((job.algorithm for job in made if job.model.l1 or job.model.signs), None))
            with show_progress("searching", progress) as bar:
                on_round = bar.chain_callback(None)
                if all(own_model(job.model.spec) is not None for job in made):
                    check_apart(made, drawn)
                    found = search_apart(made, tried, drawn, lambda job: self._train(job, on_round, False))
                else:
                    found = cast("SearchResult", self._train(search_job(made, tried, drawn), on_round, False))
        return found.by(found.metric if metric is None else metric)

    @contextmanager
    def _name_model(self, model: Any) -> Iterator[_Known]:
        """A builder of torch modules cannot travel: clients of this process are handed it under a name."""
        if not callable(model):
            yield _Known(model, {}, None)
            return
        name = f"{getattr(model, '__qualname__', type(model).__name__)}-{next(_NUMBERS)}"
        with self._offer_builder(name, model):
            yield _Known("module", {"module": name}, model)

    @contextmanager
    def _offer_builder(self, name: str, builder: Builder | None) -> Iterator[None]:
        """While inside, every client knows the builder under the name."""
        if builder is None:
            yield
            return
        for client in self._clients.values():
            client.modules[name] = builder
        try:
            yield
        finally:
            for client in self._clients.values():
                client.modules.pop(name, None)

    def predict(
        self,
        model: Model | Result,
        query: str | None = None,
        *,
        key: str | Sequence[str] | None = None,
        keys: Sequence[Any] | None = None,
        missing: Literal["error", "zero"] = "error",
        threshold: float | None = None,
        to: str | Path | None = None,
        module: Builder | None = None,
        head: Any = None,
        max_joined_rows: int | None = None,
        split: bool = False,
        progress: bool | None = None,
    ) -> pa.Table:
        """One prediction per joined row of a query: the model's own by default, or one with the same features.

        The answer carries `key`, columns of the table that held the label (by default those that it is joined on),
        then `prediction` and its probability. `keys` asks for the rows with these values of the key only; `to` also
        writes the answer to a .parquet or .csv file. missing="zero": where an owner is away, the mean contribution of
        its table stands in, and the answer's column `assumed` says for which rows (docs/prediction.md). `threshold`:
        the probability from which on a row is predicted to be of the second class (`result.threshold()`). `module` is
        the builder of a saved model's own torch modules, `head` the torch module of a saved model whose head was one.
        split=True adds the column `split`: whether a row was for training, validation or the test.
        """
        chosen = model_of(model)
        if to is not None:
            check_place(check_file(to), "predictions")
        names = (key,) if isinstance(key, str) else key
        builder = chosen.builder if module is None else module
        offered = own_head(chosen, head)
        with show_progress("predicting", progress), self._offer_builder(chosen.spec.module, builder), offered:
            table = self._predict(
                chosen,
                chosen.query if query is None else query,
                key=names,
                only=None if keys is None else as_keys(keys),
                missing=missing,
                max_joined_rows=max_joined_rows,
                split=split,
            )
        if threshold is not None:
            table = at_threshold(chosen, table, threshold)
        if to is not None:
            write(table, to)
        return table

    def recommend(
        self,
        model: Model | Result,
        *,
        user: Any,
        n: int = 10,
        by: str | None = None,
        met: bool = False,
        head: Any = None,
    ) -> pa.Table:
        """The n items that the model predicts most for a user: the item's key and the prediction, the best first.

        For a model over a label's table that joins users with items (docs/heads.md). `user` is the key by which the
        label's table is joined with the user's, `by` the alias of that table, by default the first in the query. Items
        that the user has met in the label's table are left out, unless `met`. What is asked of owners is a prediction,
        and their rules for it hold.
        """
        if n < 1:
            raise JobError("n must be at least 1")
        chosen = model_of(model)
        asked = candidates(chosen, user, by)
        found = self.predict(chosen, asked.query, key=asked.key, head=head, progress=False)
        if not found.num_rows:
            raise JobError(
                "no row of the user's table has this key, or there is no item; see `by` for which table it is"
            )
        known = None if met else self.predict(chosen, asked.met, key=asked.met_key, head=head, progress=False)
        return best(found, asked.key, known, asked.met_key, n)

    def predictor(
        self, model: Model | Result, query: str | None = None, *, key: str | Sequence[str], **options: Any
    ) -> Predictor:
        """Answers single requests by key from memory: predicts all rows now, and again at each refresh()."""
        names = (key,) if isinstance(key, str) else tuple(key)
        return Predictor(lambda: self.predict(model, query, key=names, **options), names)

    def _predict(self, model: Model, query: str, **options: Any) -> pa.Table:
        link = self._link()
        return story.predict(model, query, self._tables, link, cache=self._prediction_cache, **options)

    def evaluate(
        self,
        model: Model | Result,
        query: str | None = None,
        *,
        rows: RowsWanted = "test",
        module: Builder | None = None,
        head: Any = None,
    ) -> Evaluation:
        """A model's metrics on labelled rows of a query: its own by default, or one with the same features.

        `rows`: "test", those that the model was not trained on; "train"; or "all" (docs/validation.md). `.rows` of the
        answer says which rows were measured.
        """
        chosen = model_of(model)
        builder = chosen.builder if module is None else module
        with self._offer_builder(chosen.spec.module, builder), own_head(chosen, head):
            given = {"model": chosen, "job": labelled_job(chosen, query), "options": {"rows": rows}}
            return cast(Evaluation, self._ask("evaluate", **given))

    def compare(
        self, first: Model | Result, second: Model | Result, query: str | None = None, *, rows: RowsWanted = "test"
    ) -> Comparison:
        """Two models on the same labelled rows, by default those of the second one's query that neither was trained on:
        metrics side by side, and the difference of their losses row by row (`.difference`, `.standard_error`,
        `.is_worse`). `rows`: as in `evaluate`."""
        old, new = model_of(first), model_of(second)
        given = {"model": old, "other": new, "job": labelled_job(new, query), "options": {"rows": rows}}
        return cast(Comparison, self._ask("compare", **given))

    def importance(
        self,
        model: Model | Result,
        query: str | None = None,
        *,
        by: Literal["feature", "table"] = "feature",
        repeats: int = 3,
        seed: int = 0,
        rows: RowsWanted = "test",
    ) -> pd.DataFrame:
        """Permutation importance: how much the mean loss rises where a feature or a table is shuffled among its rows.

        by="table" asks owners for nothing more than `evaluate` does; by="feature" for the scores of their rows once
        more, for each feature and repetition (docs/prediction.md#importance). `rows`: as in `evaluate`.
        """
        chosen = model_of(model)
        options = {"by": by, "repeats": repeats, "seed": seed, "rows": rows}
        job = labelled_job(chosen, query)
        return cast(Inspection, self._ask("importance", model=chosen, job=job, options=options)).frame()

    def partial_dependence(
        self,
        model: Model | Result,
        query: str | None = None,
        feature: str = "",
        *,
        values: Sequence[Any] | None = None,
        points: int = 11,
        rows: RowsWanted = "test",
    ) -> pd.DataFrame:
        """What the model says on average where `feature` has the same value in all rows: a row for each of `values`, by
        default up to `points` that the model knows of (docs/prediction.md#partial-dependence). Rows need no label.

        The feature's owner scores its rows once more for each value; boosted trees are asked for no more than by
        `evaluate`. `rows`: as in `evaluate`.
        """
        chosen = model_of(model)
        named = None if values is None else list(values)
        options = {"feature": feature, "values": named, "points": points, "rows": rows}
        job = labelled_job(chosen, query)
        return cast(Inspection, self._ask("partial_dependence", model=chosen, job=job, options=options)).frame()

    def drift(self, model: Model | Result, query: str | None = None) -> Drift:
        """How a query's rows differ from those that a model was trained on: means, spreads, categories, and how many
        rows find partners. `.found()` says what is beyond its limits."""
        chosen = model_of(model)
        return cast("Drift", self._ask("drift", model=chosen, job=labelled_job(chosen, query)))

    def suggest_history(
        self,
        query: str,
        *,
        label: str,
        at: str | None = None,
        tables: Sequence[str] | None = None,
        windows: Windows = WINDOWS,
        prune: bool = False,
        **options: Any,
    ) -> str:
        """The query with features of histories: of every table with times and with a key of the label's table.

        It returns text, to read, edit and train on (docs/history.md). `at`: the moment, as in "t.ts", where the label's
        table has several times. `tables`: only of these; name the label's own table for a history of earlier labels.
        `windows`: how far back, as in "90 days"; None: without end. prune=True trains boosted trees on it, with these
        `options`, and drops the features whose permutation importance is not above 0.

        >>> import pyarrow as pa
        >>> days = pa.array([0, 400], pa.int32()).cast(pa.date32())
        >>> task = pa.table({"driver_id": [1, 1], "ts": days, "y": [0.5, 2.0]})
        >>> races = pa.table({"driver_id": [1, 1], "day": days, "points": [3, 7]})
        >>> with Federation({"task": task, "races": races}) as federation:
        ...     text = federation.suggest_history("SELECT t.y FROM task t", label="y", windows=[None])
        >>> "avg(past.points) AS points_mean" in text
        True
        """
        found = suggest(query, label, self._schemas(), Wanted(at, tables, windows))
        if not prune:
            return found.text()
        result = self.train(found.text(), label=label, model="boosted", **options)
        shown = self.importance(result)
        return found.text(dict(zip(shown["feature"], shown["importance"], strict=True)))

    def _schemas(self) -> dict[str, list[Column]]:
        """The columns of all tables."""
        given = self._ask("schemas", names=[])
        return {name: [Column(*column) for column in columns] for name, columns in given.items()}

    def _split_rows(self, query: str, label: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """split="time" as a condition on rows."""
        if options.get("split") is None and options.get("gap") is None:
            return query, {name: value for name, value in options.items() if name not in ("split", "gap")}
        return split_by_time(query, label, options, self._schemas(), self._tables)

    def _ask(self, question: story.Question, **given: Any) -> Any:
        """What train.py answers without training: a profile, metrics, a comparison, importance, dependence, drift."""
        return story.ask(question, given, self._tables, self._link())

    def close(self) -> None:
        """Ends the clients' threads and closes their sources."""
        self._prediction_cache.clear()
        self._transport.close()
        for client in self._clients.values():
            client.tables.shutdown()

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        """No array: whatever cuts arrays into folds, as `cross_val_score` does, learns here what to do instead."""
        raise JobError(
            "a federation is not an array: its tables stay with their owners, so scikit-learn's cross_val_score, "
            "GridSearchCV and the like cannot cut it into folds. tp.cross_validate(federation, query, label=…) and "
            'tp.search(federation, query, {"l2": [1e-4, 1e-2]}, label=…) do it where the rows are (docs/search.md)'
        )

    def _repr_html_(self) -> str:
        """What a notebook shows: the tables and who holds them."""
        rows = [
            [name, ", ".join(owners[:6]) + " …" * (len(owners) > 6), f"{len(owners):,}"]
            for name, owners in self._tables.items()
        ]
        return fragment("Federation", table(["table", "clients", "how many"], rows, text_columns=2))

    def __repr__(self) -> str:
        tables = (f"{t}: {len(c)} client{'s' * (len(c) != 1)}" for t, c in self._tables.items())
        return f"Federation({', '.join(tables)})"
