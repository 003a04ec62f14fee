"""Every error that TablePuppet raises.

    TablePuppetError
    ├── JobError          an option of the job is missing, unknown or out of range
    ├── QueryError        the SQL text cannot be accepted (carries line and column)
    ├── CatalogError      a name or a type does not fit the federation's tables
    ├── SourceError       an owner's table cannot be read
    ├── MappingError      the join is empty, too large, or its labels are unusable
    ├── PrivacyError      the job would break a privacy promise or a budget
    ├── PolicyError       an owner's own policy refuses the request
    ├── TrainingError     a run cannot start or go on
    ├── TransportError    a client cannot be reached or answers out of protocol
    │   ├── DisconnectedError    a connection ended
    │   └── RunInterruptedError  a run stopped, and can be resumed from its checkpoint
    └── ModelError        a saved model cannot be read or does not fit

A message states the fault, the finding and the next step. It never holds a
row's value, a key, a label or a secret.
"""

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from tablepuppet.formatting import printable

_PACKAGE = os.path.dirname(__file__)


class TablePuppetError(Exception):
    """Base class of every error that TablePuppet raises."""

    def _render_traceback_(self) -> list[str]:
        """A notebook's view of the error: the message, and the user's own lines that led to it; no frame of ours.

        IPython calls this by its name. TABLEPUPPET_TRACEBACK=1 in the environment shows every frame.
        """
        import sysconfig  # not above: every command loads this module before it can answer an interrupt
        import traceback

        if os.environ.get("TABLEPUPPET_TRACEBACK"):
            return traceback.format_exception(self)
        libraries = (_PACKAGE, *(sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib")))
        frames = traceback.extract_tb(self.__traceback__)
        own = [frame for frame in frames if frame.line and not frame.filename.startswith(libraries)]
        lines = [f"  at line {frame.lineno}: {frame.line}" for frame in own]
        return [f"\x1b[31m{type(self).__name__}\x1b[0m: {self}", *(["", *lines] if lines else [])]


class JobError(TablePuppetError):
    """An option of the job is missing, unknown or out of range."""


class QueryError(TablePuppetError):
    """The SQL text cannot be accepted; the message shows where, with a caret."""

    def __init__(self, message: str, *, text: str = "", line: int | None = None, column: int | None = None) -> None:
        self.line = line
        self.column = column
        super().__init__(message + _excerpt(text, line, column))


class CatalogError(QueryError):
    """A name or a type in the query does not fit the federation's tables."""


class SourceError(TablePuppetError):
    """An owner's table cannot be read."""


class MappingError(TablePuppetError):
    """The join is empty or too large, or its labels cannot be used."""


class PrivacyError(TablePuppetError):
    """The job would break a privacy promise or go past a budget."""


class PrivacyWarning(UserWarning):
    """A job asks for less privacy than its author may think."""


class PolicyError(TablePuppetError):
    """An owner's own policy refuses the request."""


class ApprovalError(TablePuppetError):
    """A person must approve the job first."""


class TrainingError(TablePuppetError):
    """A run cannot start or cannot go on."""


class ScoreRangeError(TrainingError):
    """Scores reach farther than a series of the loss does."""


class TransportError(TablePuppetError):
    """A client cannot be reached or answers out of protocol."""


class DisconnectedError(TransportError):
    """A connection ended before the other side answered."""


class RunInterruptedError(TransportError):
    """A run stopped before its end; its checkpoints stay, and it can be resumed."""


class ModelError(TablePuppetError):
    """A saved model cannot be read or does not fit the federation."""


def _excerpt(text: str, line: int | None, column: int | None) -> str:
    """The line of SQL that an error points at, with a caret below the column (both 1-based)."""
    if line is None or column is None or not 1 <= line <= len(text.splitlines()):
        return ""
    source = text.splitlines()[line - 1]
    margin = f"  line {line}: "
    lead = "".join("\t" if c == "\t" else " " for c in source[: column - 1])
    return f"\n{margin}{source}\n{' ' * len(margin)}{lead}^"


_SHOWN = 12
_LONGEST_NAME = 100  # characters that are shown of a name, which may be another party's
# Names that other libraries give to our options and models, by ours.
_ELSEWHERE = {
    "boosted": "decisiontree gbdt gbm gradientboosting histgradientboosting lgbm lightgbm randomforest xgb xgboost",
    "class_weight": "is_unbalance scale_pos_weight",
    "depth": "max_depth",
    "epochs": "max_epochs max_iter n_epochs num_epochs",
    "feature_fraction": "colsample_bytree max_features",
    "hidden": "hidden_layer_sizes",
    "l1": "reg_alpha",
    "l2": "alpha c lambda penalty reg reg_lambda",
    "label": "target y",
    "learning_rate": "eta lr step_size",
    "leaves": "max_leaf_nodes num_leaves",
    "linear": "lasso linearregression ols ridge",
    "logistic": "logisticregression",
    "min_leaf_rows": "min_child_samples min_data_in_leaf min_samples_leaf",
    "mlp": "dnn neuralnetwork nn",
    "model": "modle",
    "monotone": "monotone_constraints monotonic_cst",
    "newton": "irls lbfgs liblinear saga",
    "patience": "early_stopping early_stopping_rounds n_iter_no_change",
    "search": "grid",
    "seed": "random_state",
    "sgd": "adam fedavg fedsgd",
    "squared": "mse",
    "test_fraction": "test_size",
    "tolerance": "tol",
    "trees": "iterations n_estimators n_trees num_boost_round",
    "validation_fraction": "validation_split",
    "weight": "sample_weight",
}


def nearest(name: str, known: Sequence[str], cutoff: float = 0.6) -> str | None:
    """The known name that is spelt most alike, whatever the case, or that means what another library calls so.

    >>> nearest("lr", ["decay", "learning_rate"])
    'learning_rate'
    >>> nearest("test", ["seed", "test_fraction"])
    'test_fraction'
    """
    plain = name.lower()
    kind = plain.removesuffix("classifier").removesuffix("regressor").replace("_", "")  # of a scikit-learn estimator
    for ours, theirs in _ELSEWHERE.items():
        if ours in known and {plain, kind} & set(theirs.split()):
            return ours
    by_lower = {k.lower(): k for k in known}
    near = get_close_matches(plain, list(by_lower), n=1, cutoff=cutoff)
    if len(plain) > 2:
        near += [k for k in by_lower if k.startswith(plain)]
    return by_lower[near[0]] if near else None


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """The nearest known name, or else all known ones.

    >>> did_you_mean("quantiy", ["price", "quantity"])
    'Did you mean quantity?'
    >>> did_you_mean("zzz", ["price", "quantity"])
    'Known: price, quantity.'
    """
    near = nearest(name, known)
    if near is not None:
        return f"Did you mean {printable(near, most=_LONGEST_NAME)}?"
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    names = ", ".join(printable(k, most=_LONGEST_NAME) for k in known[:_SHOWN])
    return f"Known: {names}{more}." if known else "There is none."


def hint(name: str, known: Sequence[str], whose: str = "it", shown: Sequence[str] = ()) -> str:
    """The hint after an unknown option: the nearest known one, or all of them, or those to be shown.

    >>> hint("epoch", ["epochs", "seed"])
    "did you mean 'epochs'?"
    >>> hint("zzz", ["epochs", "seed"], "a job")
    'a job has epochs, seed'
    """
    near = nearest(name, known)
    return f"did you mean {near!r}?" if near is not None else f"{whose} has {', '.join(shown or known) or 'none'}"


def error_class(name: str, otherwise: type[TablePuppetError]) -> type[TablePuppetError]:
    """The class of an error that another process names; another one where there is no such class of ours.

    >>> error_class("JobError", TransportError).__name__, error_class("os", TransportError).__name__
    ('JobError', 'TransportError')
    """
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, TablePuppetError) else otherwise


def unreadable(path: str | Path, error: Exception) -> str:
    """Why a file cannot be read, and what to do about it."""
    path = Path(path)
    if isinstance(error, FileNotFoundError):
        beside = path.parent.glob(f"*{path.suffix}") if path.parent.is_dir() else ()
        near = nearest(path.stem, [other.stem for other in beside if other.is_file()], cutoff=0.75)
        advice = "check the path" if near is None else f"did you mean {path.with_name(near + path.suffix)}?"
        where = "" if path.is_absolute() else f" (looked in {Path.cwd()})"
        return f"cannot read {path}: there is no such file{where}; {advice}"
    if isinstance(error, IsADirectoryError):
        return f"cannot read {path}: it is a folder; name a file in it"
    if isinstance(error, PermissionError):
        return f"cannot read {path}: this user may not; change the file's permissions"
    if isinstance(error, OSError):
        return f"cannot read {path}: {error.strerror or 'the path is no path'}; check the path"
    return f"cannot read {path}: it is not UTF-8 text; save it as such"
