"""Federation: tables by name, each with one or several owners."""

from __future__ import annotations

import hmac
import itertools
import secrets
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import quote

import pyarrow as pa

from tablepuppet import train as story
from tablepuppet.allocation import fix_thresholds
from tablepuppet.engine.metrics import Metrics
from tablepuppet.engine.result import Result, RoundEvent
from tablepuppet.errors import JobError, ModelError, TablePuppetError
from tablepuppet.job import Job, make_job
from tablepuppet.mapping.profile import Profile
from tablepuppet.models.modules import Builder
from tablepuppet.operators.client import Client
from tablepuppet.plan.plan import Plan
from tablepuppet.prediction.answer import check_file, write
from tablepuppet.prediction.model import Model
from tablepuppet.prediction.predict import as_keys
from tablepuppet.prediction.predictor import Predictor
from tablepuppet.prediction.standing import Standing
from tablepuppet.privacy.policy import Policy
from tablepuppet.tables.parts import Shelf
from tablepuppet.tables.policy_file import read_policy
from tablepuppet.tables.source import Source, open_source, source
from tablepuppet.tables.store import ClientTables
from tablepuppet.transport.link import Link
from tablepuppet.transport.local import LocalTransport
from tablepuppet.writing import as_path, check_place

_NUMBERS = itertools.count(1)


class _Known(NamedTuple):
    """A model as a job can name it; its builder, where it is a callable."""

    model: Any
    given: dict[str, Any]
    builder: Builder | None


class Federation:
    """Tables and their owners, all in this process: each list entry is one client.

    `policies`: what an owner lets leave, by client or by table: the path of its policy.toml (docs/policy.md).
    `models`: a folder in which owners keep their parts of models that are not released (docs/prediction.md); without
    one they keep them as long as the federation is open.
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
        key: bytes | None = None,
        policies: Mapping[str, str | Path | Policy] | None = None,
        models: str | Path | None = None,
    ) -> None:
        fix_thresholds()
        if not isinstance(tables, Mapping) or not tables:
            found = "an empty one" if isinstance(tables, Mapping) else f"a {type(tables).__name__}"
            raise JobError(
                f"a federation is a mapping from table name to its source(s), not {found}; "
                'write tp.Federation({"orders": orders, "items": "items.parquet"})'
            )
        sources: dict[str, dict[str, Source]] = {}
        self._tables: dict[str, tuple[str, ...]] = {}
        for table, given in tables.items():
            if not isinstance(table, str) or not table:
                raise JobError(f"a table's name must be text, not {type(table).__name__}")
            owners = list(given) if isinstance(given, list | tuple) else [given]
            if not owners:
                raise JobError(f"table {table!r} has no source; give at least one")
            names = [table] if len(owners) == 1 else [f"{table}[{i}]" for i in range(len(owners))]
            for name, owner in zip(names, owners, strict=True):
                sources.setdefault(name, {})[table] = _opened(owner, table, sources)
            self._tables[table] = tuple(names)
        shared = secrets.token_bytes(32) if key is None else bytes(key)
        rules = self._policies(policies or {})
        self._clients = {
            name: Client(
                name,
                ClientTables(held),
                rules[name],
                may_reveal=True,
                key=shared,
                order_key=key or b"",
                secret=hmac.digest(shared, f"tablepuppet owner {name}".encode(), "sha256"),
                shelf=Shelf(None if models is None else as_path(models, "models") / quote(name, safe=" []")),
            )
            for name, held in sources.items()
        }
        self._standing = Standing()
        self._transport = LocalTransport({name: client.handle for name, client in self._clients.items()})

    @classmethod
    def from_toml(cls, path: str | Path) -> Federation:
        """A federation from a file: `[tables]`, each a path, a list of paths, or {url, table}; or a `[server]`."""
        given = read_toml(path)
        if "server" in given:
            return cls.connect(path)
        tables = given.get("tables")
        if not isinstance(tables, dict):
            raise JobError(f"{path}: a federation file needs a [tables] section")
        policies = given.get("policies", {})
        if not isinstance(policies, dict) or not all(isinstance(p, str) for p in policies.values()):
            raise JobError(f"{path}: [policies] maps a client or a table to the path of its policy file")
        folder = Path(path).parent
        models = given.get("models")
        if models is not None and not isinstance(models, str):
            raise JobError(f"{path}: models is the path of a folder")
        return cls(
            tables_from_toml(tables, folder),
            policies={name: folder / p for name, p in policies.items()},
            models=None if models is None else folder / models,
        )

    def _policies(self, given: Mapping[str, str | Path | Policy]) -> dict[str, Policy]:
        """Each client's policy: its own, or its table's, or none."""
        clients = {client: table for table, owners in self._tables.items() for client in owners}
        for name in given:
            if name not in clients and name not in self._tables:
                raise JobError(f"policies name {name!r}, which is no client; there are {', '.join(clients)}")
        read = {name: p if isinstance(p, Policy) else read_policy(p) for name, p in given.items()}
        return {client: read.get(client) or read.get(table) or Policy() for client, table in clients.items()}

    @classmethod
    def connect(cls, path: str | Path) -> Federation:
        """A federation of processes: its coordinator (`tablepuppet serve`) runs the jobs that are given here."""
        return ConnectedFederation(path)

    def explain(
        self, query: str, *, label: str, model: Any = "auto", algorithm: Any = "newton", **options: Any
    ) -> Plan:
        """What training would do and cost; `str(plan)` is the text."""
        with self._known(model) as known:
            job = make_job(query, label=label, model=known.model, algorithm=algorithm, given=options | known.given)
            return self._explain(job)

    def _explain(self, job: Job) -> Plan:
        return story.explain(job, self._tables, Link(self._transport, wire=job.wire))

    def profile(self, query: str, *, label: str) -> Profile:
        """How the keys of a query's tables meet: orphans, duplicates, NULL keys; `str(profile)` is the text."""
        return story.profile(query, label, self._tables, Link(self._transport))

    def train(
        self,
        query: str,
        *,
        label: str,
        model: Any = "auto",
        algorithm: Any = "newton",
        l2: float = 1e-4,
        test_fraction: float = 0.15,
        validation_fraction: float = 0.0,
        patience: int | None = None,
        weight: str | None = None,
        class_weight: str | Mapping[Any, float] | None = None,
        standardize: bool = True,
        seed: int = 0,
        epochs: int | None = None,
        batch_size: int | None = 10_240,
        privacy: Any = None,
        on_round: Callable[[RoundEvent], None] | None = None,
        resume: bool = False,
        **options: Any,
    ) -> Result:
        """Trains on the query's result without ever having it.

        `validation_fraction`: rows that are measured after every epoch and never trained on; with `patience`, training
        stops after so many epochs without a better validation loss, and the best epoch's parameters are the model.
        `weight`: a column of the label's table, or an expression over it, that says how much a row counts;
        `class_weight`: "balanced", or a weight for each class (docs/validation.md).
        `resume`: go on with an interrupted run of the same job, where clients are processes of their own.
        `options`: those of the algorithm (learning_rate, rho, …) where it is given by name, and test_where,
        validation_where, min_delta, monitor, max_categories, max_joined_rows, wire (docs/quickstart.md).
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
        with self._known(model) as known:
            job = make_job(query, label=label, model=known.model, algorithm=algorithm, given=options | known.given)
            result = self._train(job, on_round, resume)
        return replace(result, builder=known.builder)

    def _train(self, job: Job, on_round: Callable[[RoundEvent], None] | None, resume: bool) -> Result:
        if resume:
            raise JobError("a run in one process ends with it; only a federation of processes can resume runs")
        return story.train(job, self._tables, Link(self._transport, wire=job.wire), on_round)

    @contextmanager
    def _known(self, model: Any) -> Iterator[_Known]:
        """A builder of torch modules cannot travel: clients of this process are handed it under a name."""
        if not callable(model):
            yield _Known(model, {}, None)
            return
        name = f"{getattr(model, '__qualname__', type(model).__name__)}-{next(_NUMBERS)}"
        with self._offered(name, model):
            yield _Known("module", {"module": name}, model)

    @contextmanager
    def _offered(self, name: str, builder: Builder | None) -> Iterator[None]:
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
        to: str | Path | None = None,
        module: Builder | None = None,
        max_joined_rows: int | None = None,
    ) -> pa.Table:
        """One prediction per joined row of a query: the model's own by default, or one with the same features.

        The answer carries `key`, columns of the table that held the label (by default those that it is joined on),
        then `prediction` and its probability. `keys` asks for the rows with these values of the key only; `to` also
        writes the answer to a .parquet or .csv file. missing="zero": where an owner is away, the mean contribution of
        its table stands in, and the answer's column `assumed` says for which rows (docs/prediction.md). `module` is the
        builder of a saved model's own torch modules.
        """
        chosen = _model_of(model)
        if to is not None:
            check_place(check_file(to), "predictions")
        names = (key,) if isinstance(key, str) else key
        with self._offered(chosen.spec.module, chosen.builder if module is None else module):
            table = self._predict(
                chosen,
                chosen.query if query is None else query,
                key=names,
                only=None if keys is None else as_keys(keys),
                missing=missing,
                max_joined_rows=max_joined_rows,
            )
        if to is not None:
            write(table, to)
        return table

    def predictor(
        self, model: Model | Result, query: str | None = None, *, key: str | Sequence[str], **options: Any
    ) -> Predictor:
        """Answers single requests by key from memory: predicts all rows now, and again at each refresh()."""
        names = (key,) if isinstance(key, str) else tuple(key)
        return Predictor(lambda: self.predict(model, query, key=names, **options), names)

    def _predict(self, model: Model, query: str, **options: Any) -> pa.Table:
        link = Link(self._transport)
        return story.predict(model, query, self._tables, link, standing=self._standing, **options)

    def evaluate(self, model: Model | Result, query: str | None = None, *, module: Builder | None = None) -> Metrics:
        """A model's metrics on all labelled rows of a query: its own by default, or one with the same features."""
        chosen = _model_of(model)
        given = {"test_fraction": 0.0, "loss": "cross_entropy" if chosen.classes else "squared"}
        if query is None and chosen.metadata.get("weight") is not None:
            given["weight"] = chosen.metadata["weight"]  # an item of the query may be that, and no feature
        job = make_job(
            chosen.query if query is None else query,
            label=chosen.label,
            model="linear",
            algorithm="newton",
            given=given,
        )
        with self._offered(chosen.spec.module, chosen.builder if module is None else module):
            return self._evaluate(chosen, job)

    def _evaluate(self, model: Model, job: Job) -> Metrics:
        return story.evaluate(model, job, self._tables, Link(self._transport))

    def close(self) -> None:
        """Ends the clients' threads and closes their sources."""
        self._standing.clear()
        self._transport.close()
        for client in self._clients.values():
            client.tables.shutdown()

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        tables = (f"{t}: {len(c)} client{'s' * (len(c) != 1)}" for t, c in self._tables.items())
        return f"Federation({', '.join(tables)})"


class ConnectedFederation(Federation):
    """Tables of clients in processes of their own; a running coordinator does the work."""

    def __init__(self, path: str | Path) -> None:
        # Certificates and Arrow Flight, a tenth of a second and 17 MB: nobody else needs them.
        from tablepuppet.network.remote import Desk
        from tablepuppet.network.settings import read_federation

        settings = read_federation(path)
        self._tables = settings.tables
        self._clients = {}
        self._desk = Desk(settings)

    def status(self) -> dict[str, Any]:
        """Which clients are connected, which runs there are, and how far they are."""
        return self._desk.status()

    def cancel(self, run: str) -> None:
        """Stops a run; its checkpoints go."""
        self._desk.cancel(run)

    def close(self) -> None:
        """Nothing to end: the coordinator and its clients go on."""

    def _explain(self, job: Job) -> Plan:
        return cast(Plan, self._desk.do("explain", job))

    def profile(self, query: str, *, label: str) -> Profile:
        return cast(Profile, self._desk.do("profile", {"query": query, "label": label}))

    def _train(self, job: Job, on_round: Callable[[RoundEvent], None] | None, resume: bool) -> Result:
        return cast(Result, self._desk.do("train", job, resume=resume, on_round=on_round))

    def _predict(self, model: Model, query: str, **options: Any) -> pa.Table:
        return self._desk.do("predict", {"model": model, "query": query, "options": options})

    def _evaluate(self, model: Model, job: Job) -> Metrics:
        return cast(Metrics, self._desk.do("evaluate", {"model": model, "job": job}))

    @contextmanager
    def _offered(self, name: str, builder: Builder | None) -> Iterator[None]:
        if builder is not None:
            raise JobError('a builder of torch modules cannot travel to other processes; use model="mlp"')
        yield


def _model_of(model: Model | Result) -> Model:
    chosen = model.model if isinstance(model, Result) else model
    if not isinstance(chosen, Model):
        raise ModelError(f"predict needs a Result or a loaded model, not a {type(model).__name__}; see tp.load(path)")
    return chosen


def _opened(owner: Any, table: str, before: Mapping[str, Mapping[str, Source]]) -> Source:
    """A source, or an error that leaves none of those opened before it open."""
    try:
        return open_source(owner, table)
    except TablePuppetError:
        for source in (s for held in before.values() for s in held.values()):
            source.close()
        raise


def read_toml(path: str | Path) -> dict[str, Any]:
    """A TOML file's content; a clear error where there is none."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"cannot read {path}: {error.strerror if isinstance(error, OSError) else 'not text'}") from None
    except tomllib.TOMLDecodeError as error:
        raise JobError(f"{path} is not valid TOML: {error}") from None


def tables_from_toml(tables: Mapping[str, Any], folder: Path) -> dict[str, list[Any]]:
    """Sources as TOML writes them; relative paths are relative to the file's folder."""

    def one(table: str, given: Any) -> Any:
        if isinstance(given, str):
            is_url = "://" in given
            return source(given) if is_url else folder / given
        if isinstance(given, dict) and set(given) <= {"url", "table"} and isinstance(given.get("url"), str):
            return source(given["url"], given.get("table"))
        raise JobError(f"table {table!r}: a source is a path or {{url = …, table = …}}")

    return {
        t: [one(t, g) for g in (given if isinstance(given, Sequence) and not isinstance(given, str) else [given])]
        for t, given in tables.items()
    }
