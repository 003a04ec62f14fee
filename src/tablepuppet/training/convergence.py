"""When a run stops early, and a verdict on it: has it converged, does it beat a constant, and what to do next?

In: the plan with its labels, the history and the metrics of a run. Out: a Verdict: a flag, and a sentence for each
problem. Nothing here asks a client, or walks over joined rows: the best constant follows from the labels.
"""

import math
import re
from collections.abc import Sequence

import msgspec
import numpy as np

from tablepuppet.algorithms.registry import DEFAULT
from tablepuppet.arrays import Array
from tablepuppet.errors import TrainingError
from tablepuppet.formatting import plural
from tablepuppet.join.joined_rows import Joined
from tablepuppet.models.losses import Loss, metrics_by_name
from tablepuppet.models.metrics import Moment
from tablepuppet.plan.plan import Plan
from tablepuppet.plan.prepare import Prepared
from tablepuppet.protocol.columns import CategoryEncoder, Encoder
from tablepuppet.training.metrics import Criterion, Metrics, measure_constant
from tablepuppet.training.result import Result

_STILL = 0.01  # the last epochs may bring this share of the objective's whole fall below a constant's
_NEARLY_STILL = 0.1  # likewise, where that is next to nothing of the objective
_FLAT = 1e-3  # of the objective: likewise, as where the label is mostly noise, kinks or heads
_AT_OPTIMUM = 1e-6  # of the objective: likewise, of an algorithm that would have ended by itself at a smooth optimum
_NEGLIGIBLE = 1e-3  # of a constant's loss: to be worse by less is to be as good
_PERFECT, _FEW_ROWS = 0.9995, 30  # R² that only a copy of the label has, in no fewer test rows
_ORDERED = 0.9999  # AUC of two classes, likewise
_GOOD, _MOST_WEIGHT = 0.85, 0.95  # share of a label's variance that one feature explains, and what it weighs of all
_SURE = 1.96  # standard errors
_FEW_WRONG = 0.05  # of the rows that the majority class misses, likewise
_MANY_ORPHANS = 0.05  # of the rows of the label's table
_MOSTLY = 0.8  # of a text column's values, which are numbers
_FEW_NAMES = 20  # that a text column may have in any table
_CONSTANT = (
    "the label is the same in all training rows, and so is what the model predicts; choose another label, or, where "
    "test or validation rows have others, another split (test_where, test_fraction, validation_where)"
)

_SAME = (
    "all test rows have the same label, so that they tell little about the model, and some metrics cannot be measured; "
    "choose another split (seed, test_fraction, test_where)"
)


class Verdict(msgspec.Struct, frozen=True):
    """Whether a run has converged, and notes for its user."""

    converged: bool
    notes: tuple[str, ...] = ()
    baseline: Metrics = msgspec.field(default_factory=dict)  # of the best constant, on test rows, or on training rows


def judge(
    prepared: Prepared,
    objectives: Sequence[float],
    metrics: dict[str, Metrics],
    encoders: Sequence[Sequence[Encoder]],
    *,
    is_settled: bool,
) -> Verdict:
    """The verdict on a run; `is_settled`: whether its algorithm reports the end."""
    plan, train = prepared.plan, prepared.mapping.train
    seen = seen_labels(train, train.weights)
    different = seen[0] if train.weights is None else seen_labels(train, None)[0]
    constant = plan.loss.best_constant(*seen)
    rows = prepared.mapping.test if prepared.mapping.test.rows else train
    baseline = measure_constant(rows, constant, Criterion(plan.loss, Moment.HELD_OUT, prepared.mapping.label.channel))
    if different.min() == different.max():
        return Verdict(converged=True, notes=(_CONSTANT,), baseline=baseline)
    start = _mean_loss(*seen, plan.loss, constant)
    converged = is_settled or _is_still(plan, start, objectives)
    notes = [] if converged else [_describe_unfinished(plan, start, objectives)]
    is_told = not prepared.rounding.is_on and prepared.noise is None
    if metrics.get("test"):
        is_same = is_told and len(seen_labels(prepared.mapping.test, None)[0]) == 1
        notes += [_SAME] if is_same else _worse(prepared, constant, metrics, is_told=is_told)
    elif plan.job.split.test_fraction:
        notes.append("no joined row is a test row, so metrics are those of training rows; raise test_fraction")
    notes += _noisy_metrics(prepared) if is_told else []
    notes += [*_rows_without_partner(prepared), *_keys_as_features(prepared), *_names_of_rows(prepared, encoders)]
    notes += _classes_alike(prepared)
    return Verdict(converged, tuple(notes), baseline)


def _noisy_metrics(prepared: Prepared) -> list[str]:
    """A sentence where owners made labels noisy: by how much an accuracy may be off."""
    channel, mapping = prepared.mapping.label.channel, prepared.mapping
    if channel is None:
        return []
    rows, side, off = mapping.test, "test", ""
    if not rows.rows:
        rows, side = mapping.train, "training"
    if mapping.label.classes:
        counts = rows.label_counts().astype(np.float64)  # joined rows of a label have one noise
        spread = 0.5 * math.sqrt(float(counts @ counts)) / float(counts.sum()) / (channel.truth - channel.other)
        off = f"; the accuracy of {side} rows may be off by {min(1.0, _SURE * spread):.2g}"
    return [f"labels are noisy, so that metrics are estimates, which may lie beyond their range{off}"]


def constant_loss(rows: Joined, loss: Loss, constant: Array) -> float:
    """The mean loss of a constant on joined rows, from how many there are of each label."""
    return _mean_loss(*seen_labels(rows, None), loss, constant)


def _mean_loss(labels: Array, counts: Array, loss: Loss, constant: Array) -> float:
    scores = np.tile(constant, (len(labels), 1))
    return float(counts @ loss.value(scores, labels) / max(float(counts.sum()), 1e-300))


def seen_labels(rows: Joined, weights: Array | None) -> tuple[Array, Array]:
    """The labels that joined rows have, and how many of them have each."""
    found = rows.with_weights(weights).by_label()
    assert found.weights is not None
    occurs = found.weights > 0
    return found.labels[occurs], found.weights[occurs]


def _is_still(plan: Plan, start: float, objectives: Sequence[float]) -> bool:
    """Whether the last epochs brought little, where all of them ran."""
    (_, before, change), last = _last_change(plan, start, objectives), objectives[-1]
    tolerance = getattr(plan.job.options, "tolerance", 0.0)
    if (tolerance is None or tolerance > 0) and not plan.job.is_private:
        is_promised = plan.job.model.is_convex and plan.loss.is_smooth
        return len(objectives) > 1 and change <= (_AT_OPTIMUM if is_promised else _FLAT)
    fallen = start - last
    if fallen <= 1e-12 * abs(start):
        return change <= _FLAT
    return abs(before - last) <= (_NEARLY_STILL if change <= _FLAT else _STILL) * fallen


def _last_change(plan: Plan, start: float, objectives: Sequence[float]) -> tuple[int, float, float]:
    """How many epochs are the last ones: a fifth, or half of them where steps become shorter, and only that may be
    seen. The objective before them, and the share of it by which it changed."""
    epochs = max(1, len(objectives) // (2 if plan.algorithm.takes_many_rounds and plan.job.model.is_convex else 5))
    before, last = [start, *objectives][-1 - epochs], objectives[-1]
    return epochs, before, abs(before - last) / max(abs(before), abs(last), 1e-300)


def _describe_unfinished(plan: Plan, start: float, objectives: Sequence[float]) -> str:
    name, (last, _, change) = plan.job.algorithm, _last_change(plan, start, objectives)
    when = "the last epoch" if last == 1 else f"the last {last} epochs"
    how = f"train longer, with epochs={2 * plan.job.epochs}"
    if plan.algorithm.takes_many_rounds and plan.job.model.is_convex and plan.job.privacy.features is None:
        how += f', or by algorithm="{DEFAULT}", which needs few rounds'
    return f"{name} did not converge: the objective changed by {100 * change:.2g} % in {when}; {how}"


def _worse(prepared: Prepared, constant: Array, metrics: dict[str, Metrics], *, is_told: bool) -> list[str]:
    """A sentence where test rows are predicted no better than by a constant; `is_told`: with its figures."""
    plan, test, train = prepared.plan, metrics["test"], metrics["train"]
    own = next((metric for metric in plan.loss.metrics if metric.of_loss and metric.name in test), None)
    if plan.loss.is_quadratic:
        if test["r2"] >= -_NEGLIGIBLE:
            return []
        figures, fits = f"R² {test['r2']:.3g}", train["r2"] > 0.0
    elif own is None:
        return []
    else:
        alone = own.of_loss * constant_loss(prepared.mapping.test, plan.loss, constant)
        if test[own.name] <= (1.0 + _NEGLIGIBLE) * alone:
            return []
        base = own.of_loss * constant_loss(prepared.mapping.train, plan.loss, constant)
        figures, fits = f"{own.title.lower()} {test[own.name]:.4g} against {alone:.4g}", train[own.name] < base
    few = prepared.mapping.test.rows
    ways = [f"of {plural(few, 'row')} this may be chance: cross-validate"] if few < _FEW_ROWS and is_told else []
    ways += ["raise l2, or select fewer features: the model fits training rows and not others"] if fits else []
    if plan.algorithm.own_model:
        ways.append("grow fewer or smaller trees, or stop early (validation_fraction, patience)")
    if not plan.job.model.spec.is_linear:
        ways.append(f'compare model="auto", a linear model by {DEFAULT}')
    elif not plan.job.model.is_sum:
        ways.append(f"leave head out: {DEFAULT} then trains the sum of tables")
    elif plan.algorithm.untuned:
        ways.append(f'{plan.algorithm.untuned}, or train by algorithm="{DEFAULT}"')
    if plan.job.privacy.features is not None:
        ways.append("more noise than signal may have come through: allow a larger ε, or bring more rows")
    what = "; ".join(ways) if ways else "the features may be unrelated to the label"
    shown = f" ({figures})" if is_told else ""
    return [f"the model predicts test rows worse than a constant would{shown}; {what}"]


def _rows_without_partner(prepared: Prepared) -> list[str]:
    """A sentence where many rows of the label's table are not in the join, for their keys meet no other."""
    bound = prepared.mapping.bound
    if len(bound.branches) > 1 or any(join.kind not in ("inner", "left") for join in bound.branches[0].joins):
        return []
    alias = bound.branches[0].relations[bound.branches[0].label_relation].alias
    return [
        f"{fit.orphans:,} of {plural(fit.rows, 'row')} of {fit.table} ({fit.alias}) found no partner and are left out; "
        "if that is too many, compare the keys (federation.profile, or explain --profile) for spaces, case and leading "
        "zeros, or write LEFT JOIN"
        for fit in prepared.plan.mapping.fits
        if fit.alias == alias and fit.orphans > _MANY_ORPHANS * fit.rows
    ]


def _keys_as_features(prepared: Prepared) -> list[str]:
    """A sentence where SELECT * makes features of the keys that tables are joined by."""
    bound = prepared.mapping.bound
    if not re.search(r"\bselect\s+\*|\.\s*\*", bound.text, re.IGNORECASE):
        return []
    pairs = bound.branches[0].pairs
    keys = {(p.left, p.left_column) for p in pairs} | {(p.right, p.right_column) for p in pairs}
    names = [
        name
        for block in bound.blocks
        for name, column in zip(block.features, block.members[0].columns, strict=True)
        if (block.members[0].relation, column) in keys
    ]
    if not names:
        return []
    return [
        f"SELECT * makes features of the keys {', '.join(names)}, which do not generalise; leave them out, as "
        f"in * EXCLUDE ({names[0].split('.')[-1]})"
    ]


def _classes_alike(prepared: Prepared) -> list[str]:
    """A sentence where classes of the label differ in spaces or case only."""
    label = prepared.mapping.bound.label
    classes = prepared.mapping.label.classes
    if len({str(name).strip().lower() for name in classes}) == len(classes):
        return []
    return [
        f"the label {label} has {len(classes)} classes, of which some differ in spaces or case only; to make one of "
        f"them, select lower(trim({label})) AS {label}"
    ]


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _names_of_rows(prepared: Prepared, encoders: Sequence[Sequence[Encoder]]) -> list[str]:
    """A sentence for each text column whose values hardly come twice: dates, numbers and names, written as text."""
    joined, notes = prepared.mapping.train.rows, []
    for block, of_block in zip(prepared.mapping.bound.blocks, encoders, strict=True):
        for name, encoder in zip(block.features, of_block, strict=False):  # a block without rows has none
            names = encoder.categories if isinstance(encoder, CategoryEncoder) else ()
            count, numbers = len(names), sum(map(_is_number, names))
            if sum(_is_number(text.replace(",", "")) for text in names) == count > numbers:
                notes.append(
                    f"{name} is text: numbers with a comma. Write CAST(replace({name}, ',', '') AS DOUBLE) if it "
                    "separates thousands, and with '.' instead of '' if it separates decimals"
                )
            elif count > numbers > _MOSTLY * count:
                notes.append(
                    f"{name} is text, and {numbers:,} of its {count:,} values are numbers; where it should be a "
                    f"number, write TRY_CAST({name} AS DOUBLE), which makes NULL of the others"
                )
            elif count > _FEW_NAMES and 2 * count > joined:
                notes.append(
                    f"{name} has {count:,} different texts in {joined:,} joined rows, which do not generalise; "
                    "if they are dates or numbers, write CAST(… AS DATE) or CAST(… AS DOUBLE), else leave them out or "
                    "set max_categories"
                )
    return notes


def find_copy(result: "Result") -> list[str]:
    """A sentence where test rows are predicted perfectly, or well by one feature alone: it may be the label itself."""
    held, plan, known = result.metrics.get("test", {}), result.plan, result.plan.job.model.is_convex or result.trees
    if plan.mapping.test_rows < _FEW_ROWS or plan.job.privacy.label is not None:
        return []
    ordered = held.get("auc", 0.0) if "pr_auc" in held else 0.0  # of two classes
    is_perfect = held.get("accuracy", 0.0) == 1.0 or ordered > _ORDERED or held.get("r2", 0.0) > _PERFECT
    if not is_perfect and not (known and _predicts_well(result)):
        return []
    first, share = _weighs_most(result) if known else ("", 0.0)
    if not is_perfect and not share > _MOST_WEIGHT:
        return []
    weighs = f", and {first} weighs most" if first else ""
    almost = "" if held.get("accuracy", held.get("r2")) == 1.0 else "almost "
    how = f"{almost}perfectly{weighs}: is a feature" if is_perfect else f"well by {first} alone: is it"
    return [
        f"test rows are predicted {how} the label under another name, or known only after it? Then leave it out of "
        "the SELECT list"
    ]


def _predicts_well(result: "Result") -> bool:
    """Whether predictions tell the labels of test rows: few classes are wrong, or each prediction's numbers alike."""
    held, alone = result.metrics["test"], result.baseline
    if "accuracy" in held and "accuracy" in alone:
        return bool(1.0 - held["accuracy"] < _FEW_WRONG * (1.0 - alone["accuracy"]))
    curves = result.curves.get("test")
    if curves is None or curves.numbers is None:
        return held.get("r2", 0.0) > _GOOD
    cells = np.asarray(curves.numbers.cells, np.float64)
    steps, rows = np.arange(len(cells)), cells.sum(axis=0)
    apart = np.square(steps[:, None] - (steps @ cells) / np.maximum(rows, 1.0))
    whole = np.square(steps - (cells.sum(axis=1) @ steps) / rows.sum()) @ cells.sum(axis=1)
    return max(held.get("r2", 0.0), 1.0 - float((cells * apart).sum()) / max(float(whole), 1e-300)) > _GOOD


def _weighs_most(result: "Result") -> tuple[str, float]:
    """The feature that does, and its share of all; none where owners keep weights, or there is no other feature."""
    found = result.importance()
    weights = np.square(found["importance"]) if not result.trees else found["importance"].to_numpy()
    if len(found) < 2 or not weights.sum() > 0 or not (result.trees or result.plan.job.data.standardize):
        return "", 0.0
    return str(found["feature"].iloc[0]), float(weights[0] / weights.sum())


class Patience(msgspec.Struct, eq=False):
    """Watches one metric; `epochs` epochs without an improvement by `min_delta` are enough."""

    monitor: str
    epochs: int
    min_delta: float = 0.0
    best_epoch: int = 0  # 0: there is none yet
    intercept: Array | None = None  # the server's own parameters then
    _best: float = math.inf
    _seen: int = 0

    def sees(self, epoch: int, figures: dict[str, float], intercept: Array) -> bool:
        """Whether this epoch is the best so far.

        >>> import numpy as np
        >>> patience = Patience("loss", epochs=1)
        >>> [patience.sees(epoch, {"loss": loss}, np.zeros(1)) for epoch, loss in ((1, 0.5), (2, 0.4), (3, 0.41))]
        [True, True, False]
        >>> patience.is_over, patience.best_epoch
        (True, 2)
        """
        if self.monitor not in figures:
            raise TrainingError(
                f"{self.monitor} of validation rows cannot be measured in epoch {epoch}; choose another monitor"
            )
        value = figures[self.monitor]
        metric = metrics_by_name().get(self.monitor)  # None: the loss
        cost = -value if metric is not None and metric.is_higher_better else value
        self._seen = epoch
        if not (cost < self._best - self.min_delta or (self.best_epoch == 0 and not math.isnan(cost))):
            return False
        self._best, self.best_epoch, self.intercept = cost, epoch, intercept.copy()
        return True

    @property
    def is_over(self) -> bool:
        return self._seen - self.best_epoch >= self.epochs
