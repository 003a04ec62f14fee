"""Result: the outcome of a training run, as data and for notebooks."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from tablepuppet.algorithms.boosting.messages import Tree
from tablepuppet.algorithms.registry import require_ability
from tablepuppet.arrays import Array
from tablepuppet.calls import check_calls
from tablepuppet.errors import ModelError
from tablepuppet.formatting import fragment, number, plural, size, table
from tablepuppet.join.mapping import Class
from tablepuppet.models.heads.base import HeadModel
from tablepuppet.models.modules import Builder, build_module
from tablepuppet.models.neural import trained_module
from tablepuppet.plan.plan import Plan
from tablepuppet.prediction.model import BlockModel, Model, ModelContent, TableUse
from tablepuppet.prediction.split_record import split_of
from tablepuppet.privacy.ledger import Ledger
from tablepuppet.protocol.evidence import TreeHead
from tablepuppet.sources.guard import columns_of
from tablepuppet.sql.bound import BoundQuery, Scan
from tablepuppet.training.curves import Curves
from tablepuppet.training.metrics import MeasuredOn, Metrics, describe_walk
from tablepuppet.transport.meter import Network, Traffic

if TYPE_CHECKING:
    import pandas as pd
    import torch


def metric_rows(sides: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    """A table of metrics: the names, and a row for each side of the split that has some."""
    names = list(dict.fromkeys(name for values in sides.values() for name in values))
    rows = [[side, *(number(v[n], 5) if n in v else "" for n in names)] for side, v in sides.items() if v]
    return [["", *names], *rows]


_CONSTANTS = {"squared": "mean", "poisson": "mean", "gamma": "mean"}
_NO_FIGURES = (
    "metrics and the objective of a private job come from exact predictions, and stay with the server; measure the "
    "model on rows of your own"
)


@dataclasses.dataclass(frozen=True)
class EpochRecord:
    epoch: int
    objective: float
    metrics: dict[str, Metrics]
    rounds: int  # training rounds so far
    bytes: int  # training bytes so far, both ways
    seconds: float  # since training began
    residuals: dict[str, float] = dataclasses.field(default_factory=dict)

    def without_figures(self) -> "EpochRecord":
        """The same without any measurement on rows."""
        return dataclasses.replace(self, objective=math.nan, metrics={}, residuals={})


class RoundEvent(msgspec.Struct, frozen=True):
    """The argument of `on_round` after every round; it has a `record` at the end of an epoch."""

    epoch: int
    round: int
    rounds: int  # planned in all
    record: EpochRecord | None

    def for_release(self, *, is_private: bool) -> "RoundEvent":
        """The event that leaves the server during a job: of a private one, no number from exact predictions."""
        if not is_private or self.record is None:
            return self
        return replace(self, record=self.record.without_figures())


@check_calls
class Result(ModelContent, frozen=True):
    """A trained model, its quality, and its cost. `federation.train` returns it.

    - `metrics`, `baseline`, `curves`: by side of the split ("train", "validation", "test"); of the best constant.
    - `objective`, `history`, `converged`, `epoch`: the training objective, a record per epoch, whether more epochs
      would change little, and the epoch of these parameters.
    - `traffic`: rounds and bytes; `privacy`: the ledger of ε; `plan`: the plan with its job; `notes`: remarks.

    >>> sorted(result.metrics), result.converged
    (['test', 'train'], True)
    """

    plan: Plan
    objective: float
    metrics: dict[str, Metrics]
    history: tuple[EpochRecord, ...]
    traffic: Traffic
    blocks: tuple[BlockModel, ...]
    encoded_intercept: Array
    classes: tuple[Class, ...]
    privacy: Ledger = msgspec.field(default_factory=Ledger)  # spending by table and observer
    builder: Builder | None = None  # of the user's own torch modules
    epoch: int = 0  # whose parameters these are: the last one, or the best one where training was stopped early
    id: str = ""  # under which owners hold the parts that are withheld
    converged: bool = True  # whether more epochs would change little
    head: HeadModel | None = None  # None: a sum
    head_module: Any = None  # of a head of the user's own
    notes: tuple[str, ...] = ()  # problems, and how to proceed (training/convergence.py)
    trees: tuple[tuple[Tree, ...], ...] = ()  # of a boosted model
    heads: dict[str, TreeHead] = msgspec.field(default_factory=dict)  # of owners' logs that agreed to this run
    curves: dict[str, Curves] = msgspec.field(default_factory=dict)  # by side: confusion, calibration, residuals, …
    baseline: Metrics = msgspec.field(default_factory=dict)  # of a constant: the majority class, or the mean
    measured: dict[str, MeasuredOn] = msgspec.field(default_factory=dict)  # by side: the measured rows, if not all

    def for_release(self) -> "Result":
        """The result that leaves the server: of a private job, no number from exact predictions without an ε."""
        if not self.plan.job.is_private or self.plan.job.privacy.analyst is not None:
            return self
        history = tuple(record.without_figures() for record in self.history)
        notes = (_NO_FIGURES,)
        none: dict[str, Any] = {"metrics": {}, "baseline": {}, "curves": {}}
        return replace(self, objective=math.nan, history=history, notes=notes, converged=True, **none)

    @property
    def withheld(self) -> tuple[str, ...]:
        """Blocks whose parameters stay with their owners: their coefficients are NaN here."""
        return tuple(block.name for block in self.blocks if block.is_held)

    def module(self, block: str) -> "torch.nn.Module":
        """A block's trained torch module: encoded features in, scores out, in evaluation mode. `block`: its name."""
        spec = self.plan.spec
        known = [b.name for b in self.blocks]
        if block not in known:
            raise ModelError(f"there is no block {block!r}; there are {', '.join(known)}")
        require_ability(spec, "module")
        if spec.is_linear:
            raise ModelError("a linear model has no torch module; see coefficients()")
        number = known.index(block)
        model = self.blocks[number]
        outputs, seed = self.plan.head.widths[number], self.plan.job.seed + number
        module = build_module(spec, model.width, outputs, seed=seed, name=block, builder=self.builder)
        if model.is_held:
            raise ModelError(f"the parameters of block {block} stay with the owners of table {model.table}")
        return trained_module(module, spec, model.theta, outputs).eval()

    @property
    def baseline_name(self) -> str:
        loss = self.plan.loss
        return "majority class" if loss.task != "number" else _CONSTANTS.get(loss.name, "best constant")

    @property
    def sides(self) -> dict[str, Metrics]:
        """The metrics of each side of the split, and last those of a constant, under its name."""
        return {**self.metrics, self.baseline_name: self.baseline}

    def __repr__(self) -> str:
        side = "test" if self.metrics.get("test") else "train"
        first = {metric.name for metric in self.plan.loss.metrics if metric.is_headline}
        found, alone = self.metrics.get(side, {}), self.baseline_name
        shown = "".join(f", {name} {value:.4g}" for name, value in found.items() if name in first and value == value)
        known = next((name for name in found if name in self.baseline), None)
        shown += f" ({alone}: {known} {self.baseline[known]:.4g})" if known else ""
        job = self.plan.job
        quality = f"{side} {shown[2:]}; " if found else ""
        return f"Result({job.model.name} by {job.algorithm}: {quality}{self._took()})"

    @property
    def epochs(self) -> str:
        """How many epochs, and whose parameters these are where not the last one's; of trees, how many trees."""
        ran = len(self.history)
        if self.trees:
            return f"{len(self.trees)}"
        return f"{ran}" if self.epoch in (0, ran) else f"{self.epoch} of {ran}"

    def _took(self) -> str:
        """The objective reached, and its cost."""
        ran = f"epoch {self.epochs}" if " of " in self.epochs else plural(len(self.history), "epoch")
        ran = plural(len(self.trees), "tree") if self.trees else ran
        if self.plan.job.model.l1 and not self.withheld:
            sizes = [block.theta for block in self.blocks]
            kept, whole = sum(int((theta != 0).sum()) for theta in sizes), sum(theta.size for theta in sizes)
            ran += f", {kept:,} of {whole:,} weights not zero"
        withheld = f"; weights of {', '.join(self.withheld)} withheld" if self.withheld else ""
        objective = "" if math.isnan(self.objective) else f"objective {self.objective:.6g}; "
        return f"{objective}{ran}, {plural(self.traffic.rounds, 'round')}, {size(self.traffic.bytes)}{withheld}"

    def __str__(self) -> str:
        """The same, and the problems below it."""
        return "\n".join([repr(self), *(f"Note: {note}" for note in self.remarks)])

    @property
    def remarks(self) -> list[str]:
        """Remarks for a reader: the rows that were measured, and the notes."""
        return [*describe_walk(self.plan.mapping, self.measured, self.metrics), *self.notes]

    def _repr_html_(self) -> str:
        title = f"{self.plan.job.model.name} by {self.plan.job.algorithm}: {self._took()}"
        title = ". ".join([title, *self.remarks])
        from tablepuppet.report.charts import draw_objective  # here and below: not loaded every run

        head, *rows = metric_rows(self.sides)
        objectives = [record.objective for record in self.history]
        return fragment(title, table(head, rows), draw_objective(objectives))

    def explain(self) -> str:
        """The plan as text, with counted rounds and bytes next to the estimates.

        >>> "Estimated and counted" in result.explain()
        True
        """
        if self.trees:
            return self.plan.explain(self.traffic, len(self.trees))
        plan = replace(self.plan, widths=tuple(block.width for block in self.blocks))
        return plan.explain(self.traffic, len(self.history))

    def threshold(self, best: str = "f1", *, side: str | None = None, **wanted: Any) -> float:
        """The best probability from which to predict the second class; chosen as `Curves.threshold` does.

        - `best`: "f1", "accuracy" or "youden"; or give `precision`, `recall` or `costs` as `wanted`.
        - `side`: whose rows decide; None: validation rows, or training rows if there are none. Test rows judge the
          choice.

        >>> 0.0 <= result.threshold("accuracy") <= 1.0
        True
        """
        chosen = side or ("validation" if "validation" in self.curves else "train")
        if chosen not in self.curves:
            raise ModelError(
                f"there are no predicted classes of {chosen} rows; there are {', '.join(self.curves) or 'none'}"
            )
        return self.curves[chosen].threshold(best, **wanted)

    @cached_property
    def model(self) -> Model:
        """The model, to be saved, or given to `federation.predict`."""
        job = self.plan.job
        bound = self.plan.mapping.bound
        return Model(
            kind=job.model.name,
            query=job.data.query,
            label=bound.label,
            label_aliases=tuple(branch.relations[branch.label_relation].alias for branch in bound.branches),
            classes=self.classes,
            encoded_intercept=self.encoded_intercept,
            blocks=tuple(replace(block, uses=_block_uses(bound, number)) for number, block in enumerate(self.blocks)),
            tables=tuple(TableUse(s.table, s.expressions, s.columns, _names(s)) for s in bound.scans),
            metadata={
                "algorithm": job.algorithm,
                "l2": job.model.l2,
                "seed": job.seed,
                "weight": job.data.weight,
                "exposure": job.data.exposure,
                # The metrics of a private run come from exact predictions, and stay with the person who ran it.
                **({} if job.is_private else {"objective": self.objective, "metrics": self.metrics}),
                "training_rows": self.plan.mapping.train_rows,
                "split": split_of(job, self.plan.mapping),
                **job.privacy.key_options,
                **({"is_private": True} if job.is_private or job.privacy.label is not None else {}),
                **({"heads": msgspec.to_builtins(self.heads)} if self.heads else {}),
                "joins": [{"alias": f.alias, "rows": f.rows, "matched": f.matched} for f in self.plan.mapping.fits],
            },
            spec=self.plan.spec,
            builder=self.builder,
            id=self.id,
            head=self.head,
            head_module=self.head_module,
            loss_name=self.plan.loss.name,
            loss_options=job.model.loss_options,
            trees=self.trees,
        )

    def predict(self, federation: Any, query: str | None = None, **options: Any) -> pa.Table:
        """Predicts the rows of `query` (the trained one) in `federation`; `options` are those of `Federation.predict`.

        >>> result.predict(federation).num_rows
        120
        """
        if not hasattr(federation, "predict"):
            raise ModelError(f"predict takes a Federation, not a {type(federation).__name__}: owners keep the rows")
        return federation.predict(self.model, query, **options)

    def report(
        self,
        path: str | Path,
        *,
        beside: "Sequence[Result]" = (),
        networks: Mapping[str, Network] | None = None,
        dependence: "Mapping[str, pd.DataFrame] | None" = None,
    ) -> Path:
        """Writes one HTML file that shows this run; returns its path (docs/report.md).

        - `path`: the file; `beside`: other results to show too.
        - `networks`: also show times on these, `{"office": tp.Network(latency=0.02, bandwidth=0.1)}`.
        - `dependence`: curves to draw, `{"i.price": federation.partial_dependence(result, feature="i.price")}`.

        >>> import os, tempfile
        >>> result.report(os.path.join(tempfile.mkdtemp(), "report.html")).name
        'report.html'
        """
        from tablepuppet.report.page import write_report
        from tablepuppet.report.recording import dependence_of, records_of

        first, *others = records_of(self, beside)
        return write_report(path, [replace(first, dependence=dependence_of(dependence or {})), *others], networks)

    def to_json(self) -> str:
        """The run's record as JSON text, which `tablepuppet report` reads.

        >>> import json
        >>> json.loads(result.to_json())["format"]
        'tablepuppet-run/1'
        """
        from tablepuppet.report.record import to_json
        from tablepuppet.report.recording import record_of

        return to_json(record_of(self))

    def card(self) -> str:
        """A model card in Markdown: data, quality, and the knowledge of each party.

        >>> result.card().startswith("#")
        True
        """
        from tablepuppet.report.page import model_card
        from tablepuppet.report.recording import record_of

        return model_card(record_of(self))

    def write_history(self, path: str | Path) -> None:
        """Writes the history to `path`, one row per epoch, as .csv or .json.

        >>> import os, tempfile
        >>> result.write_history(os.path.join(tempfile.mkdtemp(), "history.csv"))
        """
        from tablepuppet.report.recording import write_history

        write_history(self.history, path)


def _block_uses(bound: BoundQuery, block: int) -> tuple[tuple[str, ...], ...]:
    """The features of a block as SQL over its table's columns, in each branch."""
    members = zip(bound.branches, bound.blocks[block].members, strict=True)
    scans = [(bound.scans[branch.relations[m.relation].scan], m.columns) for branch, m in members]
    found = [
        (*(scan.expressions[c] for c in columns), *(() if scan.query is None else (f"FROM {scan.query}",)))
        for scan, columns in scans
    ]
    return tuple(dict.fromkeys(found))


def _names(scan: Scan) -> tuple[str, ...]:
    texts = [*scan.expressions, *([] if scan.filter is None else [scan.filter])]
    return tuple(sorted(frozenset[str]().union(*map(columns_of, texts))))
