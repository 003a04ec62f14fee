"""Federation: tables by name, each with one or several owners, and the verbs to train and predict."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

import pyarrow as pa
from msgspec.structs import replace

from tablepuppet import train as story
from tablepuppet.api.history import WINDOWS, Column, Wanted, Windows, split_by_time, suggest
from tablepuppet.api.model_verbs import ModelVerbs, with_start
from tablepuppet.api.owners import federation_from_toml, make_clients, name_owners, read_toml
from tablepuppet.calls import check_calls
from tablepuppet.errors import JobError
from tablepuppet.formatting import fragment, table
from tablepuppet.job import BatchSize, Job, make_job
from tablepuppet.join.profile import Profile
from tablepuppet.models.modules import Named, named_modules
from tablepuppet.owner.policy import Policy
from tablepuppet.plan.plan import Plan
from tablepuppet.prediction.cache import PredictionCache
from tablepuppet.prediction.model import Model
from tablepuppet.privacy.options import privacy_of
from tablepuppet.progress import show_progress
from tablepuppet.protocol.codec import Wire
from tablepuppet.protocol.evidence import read_asker_key, sign_contract
from tablepuppet.training.result import Result, RoundEvent
from tablepuppet.transport.link import Link, LocalTransport


@check_calls
class Federation(ModelVerbs):
    """Tables and their owners, all in this process.

    - `tables`: a source for each table, or a list of sources, one per client. A source is a path, a data frame, an
      Arrow table or `tp.source(…)` (docs/sources.md).
    - `owners`: the tables that one owner holds, so that its subqueries may span them: `{"bank": ["accounts",
      "transactions"]}`. Other tables have an owner each. A table with several sources is listed by as many owners, in
      the order of the sources.
    - `partitioned_by`: columns of tables with several owners whose values each lie with one of them (docs/sql.md).
    - `policies`: an owner's policy.toml, by client or by table (docs/policy.md).
    - `models`: the folder in which owners keep parts of models that are not released; by default memory
      (docs/prediction.md).
    - `asker_key`: a file with the private key that signs contracts, for policies with `askers` (docs/policy.md).
    - `key`: a secret that the clients share and the server never has (docs/privacy.md). By default key tokens get a
      random key, and the order of rows is public, so that a job repeats bit for bit.

    >>> import pyarrow as pa
    >>> Federation({"orders": [pa.table({"x": [1]}), pa.table({"x": [2]})]})
    Federation(orders: 2 clients)
    """

    @check_calls
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
        self._asker_key = None if asker_key is None else read_asker_key(asker_key)
        self._asker = "this process" if asker_key is None else Path(asker_key).stem
        self._tables = name_owners(tables, owners or {}, partitioned_by or {})
        self._clients = make_clients(self._tables, tables, key=key, policies=policies or {}, models=models)
        self._prediction_cache = PredictionCache()
        self._transport = LocalTransport({name: client.handle for name, client in self._clients.items()})

    @classmethod
    def from_toml(cls, path: str | Path) -> "Federation":
        """Reads a federation from the TOML file at `path`.

        The file has `[tables]`, each a path, a list of paths, or {url, table}; or a `[server]` to connect to.

        >>> import os, tempfile
        >>> file = os.path.join(tempfile.mkdtemp(), "federation.toml")
        >>> with open(file, "w") as out:
        ...     _ = out.write('[tables]\\nitems = "items.csv"')
        >>> with open(os.path.join(os.path.dirname(file), "items.csv"), "w") as out:
        ...     _ = out.write("item_id,price\\n1,9.5")
        >>> Federation.from_toml(file)
        Federation(items: 1 client)
        """
        given = read_toml(path)
        if "server" in given:
            return cls.connect(path)
        return cls(**federation_from_toml(path, given))

    @classmethod
    def connect(cls, path: str | Path, *, asker_key: str | Path | None = None) -> "Federation":
        """Connects to a federation of processes, whose coordinator (`tablepuppet serve`) runs the jobs.

        - `path`: the federation file, with `[server]` and `[user]` (docs/deployment.md).
        - `asker_key`: the private key that signs contracts; by default the one that `[user]` names.
        """
        from tablepuppet.api.connected import ConnectedFederation

        return ConnectedFederation(path, asker_key=asker_key)

    def explain(
        self,
        query: str,
        label: str = "",
        *,
        model: Any = "auto",
        algorithm: Any = None,
        progress: bool | None = None,
        **options: Any,
    ) -> Plan:
        """The plan of a job: cost and disclosures before training; `str(plan)` is the text (docs/explain.md).

        `query`, `label`, `model`, `algorithm` and `options` are those of `train`.

        - `probe`: also train a sum of tables for a few rounds, under its own contract, and estimate which model would
          explain more, at what cost (docs/heads.md).
        - `progress`: a bar on standard error; None: in a terminal or notebook, after two seconds.

        >>> plan = federation.explain(query, label="returned")
        >>> print(str(plan).splitlines()[0])
        Train returned (2 classes) by newton: model logistic, l2 0.0099 (1 / joined rows), at most 30 epochs
        """
        with show_progress("explaining", progress), self._make_job(query, label, model, algorithm, options) as job:
            return self._explain(job)

    @contextmanager
    def _make_job(self, query: str, label: str, model: Any, algorithm: Any, options: dict[str, Any]) -> Iterator[Job]:
        """A job from a user's arguments, while owners here know its torch modules."""
        query, options = self._split_rows(query, label, with_start(options))
        with self._name_modules(model, options) as (named, given):
            yield make_job(query, label=label, model=named, algorithm=algorithm, given=given)

    def _link(self, wire: Wire = "float64") -> Link:
        link, key = Link(self._transport, wire, asker=self._asker), self._asker_key
        if key is not None:
            link.sign = lambda contracts: {client: sign_contract(own, key) for client, own in contracts.items()}
        return link

    def _explain(self, job: Job) -> Plan:
        return story.explain(job, self._tables, self._link(job.wire))

    def profile(self, query: str, *, label: str | None = None, privacy: Any = None) -> Profile:
        """How the keys of a query's tables match: orphans, duplicates, NULL keys; `str(profile)` is the text.

        - `query`: the SQL text; `label`: the item to predict, not needed here.
        - `privacy`: as in a job, for how keys leave: `{"keys": "dh"}`.

        >>> print(str(federation.profile(query)).splitlines()[0])
        JOIN o.item_id = i.item_id: many-to-one
        """
        asked = privacy_of(privacy)
        keys = {"keys": asked.keys, "max_keys": asked.max_keys}
        return cast("Profile", self._ask("profile", query=query, label=label, privacy=keys))

    def train(
        self,
        query: str,
        label: str = "",
        *,
        model: Any = "auto",
        algorithm: Any = None,
        l2: float | Mapping[str, float] | Literal["auto"] | None = None,
        test_fraction: float = 0.15,
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
        """Trains a model on the query's result without building it; returns a `Result`.

        Common options; docs/options.md lists all of them:

        - `query`, `label`: the SQL text, and the item of its SELECT list to predict.
        - `model`: "linear", "logistic", "softmax", "poisson", "gamma", "huber", "quantile", "mlp", "boosted", a
          function that builds a torch module for a block, or "auto".
        - `algorithm`: a name, or an options object such as `tp.Admm(rho=0.5)`; None: the one that suits the model.
        - `l2`: the weight of the penalty; None: 1/N for linear models.
        - `test_fraction`: the share of test rows; `validation_fraction`: of rows measured after every epoch.
        - `patience`: stop after so many epochs without a better validation loss, and keep the best epoch's parameters.
        - `weight`: a column of the label's table, or an expression over it, that says how much a row counts;
          `class_weight`: "balanced", or a weight for each class (docs/validation.md).
        - `exposure`: a column of the label's table; the label per unit of it is modelled.
        - `test_where`: test rows by a condition over the label's table, instead of a fraction.
        - `split`: "time", or a column as in "t.ts": the latest rows are test rows; `gap`, as in "30 days": rows shortly
          before them are left out.
        - `standardize`: scale numbers to mean 0 and spread 1.
        - `seed`: the same data, job and seed give the same model.
        - `epochs`: at most so many; `batch_size`: joined rows in a batch of `sgd`.
        - `privacy`: noise, budgets and key tokens (docs/privacy.md).
        - `max_categories`: categories of a text column with their own weight; the others share one.
        - `max_joined_rows`: a larger join is refused before it is made.
        - `negatives`: joined rows count as seen; so many unseen pairs are drawn for each (docs/heads.md).
        - `wire`: number format on the wire: "float64", or "float32" for half the bytes ("…+zstd", "…+lz4": compressed).
        - `on_round`: called after every round; tablepuppet.report.callbacks has loggers.
        - `progress`: a bar on standard error; None: in a terminal or notebook, after two seconds.
        - `resume`: continue an interrupted run of the same job, in a federation of processes.
        - `warm_start`: a result, a model, or its folder to continue from (docs/prediction.md).
        - `options`: other options of the job, and those of an algorithm that is given by name.

        >>> result = federation.train(query, label="returned", model="logistic")
        >>> result.converged, sorted(result.metrics["test"])[:2]
        (True, ['accuracy', 'auc'])
        """
        options |= {"l2": l2, "test_fraction": test_fraction, "standardize": standardize, "seed": seed}
        options |= {"epochs": epochs, "batch_size": batch_size, "privacy": privacy}
        if on_round is not None and not callable(on_round):
            raise JobError(
                f"on_round is a function of one event, and not {type(on_round).__name__}; see docs/report.md"
            )
        with self._make_job(query, label, model, algorithm, options) as job:
            getattr(on_round, "start", lambda job: None)(job)  # a logger knows the job before its first round
            with show_progress("training", progress) as bar:
                result = self._train(job, bar.chain_callback(on_round), resume)
        head = options["head"] if job.model.head_module else None
        return replace(result, builder=model if callable(model) else None, head_module=head)

    def _name_modules(self, model: Any, options: dict[str, Any]) -> AbstractContextManager[Named]:
        """A job's model and options; torch modules of the user's own have names there, which owners here know."""
        return named_modules(model, options)

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

    def _predict(self, model: Model, query: str, **options: Any) -> pa.Table:
        link = self._link()
        return story.predict(model, query, self._tables, link, cache=self._prediction_cache, **options)

    def suggest_history(
        self,
        query: str,
        label: str = "",
        *,
        at: str | None = None,
        tables: Sequence[str] | None = None,
        windows: Windows = WINDOWS,
        prune: bool = False,
        **options: Any,
    ) -> str:
        """The query with features of histories, as text to read, edit and train on (docs/history.md).

        It adds features of every table with times and with a key of the label's table.

        - `query`, `label`: as in `train`; `at`: the moment, as in "t.ts", if the label's table has several times.
        - `tables`: only of these; name the label's own table for a history of earlier labels.
        - `windows`: how far back, as in "90 days"; None: without end.
        - `prune`: train boosted trees on it, with these `options`, and drop features whose permutation importance is
          not above 0.

        >>> import pyarrow as pa
        >>> days = pa.array([0, 400], pa.int32()).cast(pa.date32())
        >>> task = pa.table({"driver_id": [1, 1], "ts": days, "y": [0.5, 2.0]})
        >>> races = pa.table({"driver_id": [1, 1], "day": days, "points": [3, 7]})
        >>> with Federation({"task": task, "races": races}) as federation:
        ...     text = federation.suggest_history("SELECT t.y FROM task t", label="y", windows=[None])
        >>> "avg(past.points) AS points_mean" in text
        True
        """
        if not prune and options:
            raise JobError(f"{min(options)} is an option of training, which prune=True asks for")
        found = suggest(query, label, self._schemas(), Wanted(at, tables, windows))
        if not prune:
            return found.text()
        result = self.train(found.text(), label=label, model="boosted", **options)
        shown = self.importance(result)
        return found.text(dict(zip(shown["feature"], shown["importance"], strict=True)))

    def _schemas(self) -> dict[str, list[Column]]:
        given = self._ask("schemas", names=[])
        return {name: [Column(*column) for column in columns] for name, columns in given.items()}

    def _split_rows(self, query: str, label: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """split="time" as a condition on rows."""
        if options.get("split") is None and options.get("gap") is None:
            return query, {name: value for name, value in options.items() if name not in ("split", "gap")}
        return split_by_time(query, label, options, self._schemas(), self._tables)

    def _ask(self, question: story.Question, **given: Any) -> Any:
        return story.ask(question, given, self._tables, self._link())

    def close(self) -> None:
        """Ends the clients' threads and closes their sources."""
        self._prediction_cache.clear()
        self._transport.close()
        for client in self._clients.values():
            client.tables.shutdown()

    def __enter__(self) -> "Federation":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        """Refuses: a function that cuts arrays into folds, such as `cross_val_score`, gets an alternative."""
        raise JobError(
            "a federation is not an array: its tables stay with their owners, so scikit-learn's cross_val_score, "
            "GridSearchCV and the like cannot cut it into folds. tp.cross_validate(federation, query, label=…) and "
            'tp.search(federation, query, {"l2": [1e-4, 1e-2]}, label=…) do it where the rows are (docs/search.md)'
        )

    def _repr_html_(self) -> str:
        """The tables and who holds them, in a notebook."""
        rows = [
            [name, ", ".join(owners[:6]) + " …" * (len(owners) > 6), f"{len(owners):,}"]
            for name, owners in self._tables.items()
        ]
        return fragment("Federation", table(["table", "clients", "how many"], rows, text_columns=2))

    def __repr__(self) -> str:
        tables = (f"{t}: {len(c)} client{'s' * (len(c) != 1)}" for t, c in self._tables.items())
        return f"Federation({', '.join(tables)})"
