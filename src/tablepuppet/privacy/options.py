"""The privacy options of a job: frozen, checked, no unknown names (docs/privacy.md).

In: `privacy={"label": {"epsilon": 3}, …}` from Python or TOML. Out: a `Privacy`. A job gets only the protection that it
asks for, except for keys, which are tokens unless the job chooses otherwise.

Rounding, at the owners' request: shown metrics become multiples of a step, at random, and the same again for
the same number. A number is first moved by up to one step (triangular dither): the error has mean 0 and one spread,
whatever the number is. It follows from the number and the owners' key, so that asking again reveals nothing new.
"""

import hashlib
import hmac
import math
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec
import numpy as np
from msgspec import Meta

from tablepuppet.arrays import Array
from tablepuppet.errors import JobError, hint

EPSILON_STEP = 0.01  # of ε of labels
KeyMode = Literal["hmac", "dh", "sha256", "plain"]
Epsilon = Annotated[float, Meta(gt=0, le=100)]
Delta = Annotated[float, Meta(gt=0, lt=1, description="take less than one over the number of rows")]
Positive = Annotated[float, Meta(gt=0, lt=1e300)]
Cap = Annotated[int, Meta(ge=1)]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    def _check(self, is_fine: bool, rule: str) -> None:
        if not is_fine:
            raise JobError(f"privacy: {rule}")


class LabelPrivacy(_Part, frozen=True):
    """Labels are randomised by their owner, once per row, before anything leaves.

    - `krr`: k-ary randomised response.
    - `laplace`: the paper's mechanism, noise on the one-hot vector and argmax; on a number, noise on the number.
    - `bins`: a number is clipped, put in one of `bins` bins, and goes through k-RR.
    """

    epsilon: Epsilon
    mechanism: Literal["krr", "laplace", "bins"] = "krr"
    bounds: tuple[float, float] | None = None  # public; a number needs them
    bins: Annotated[int, Meta(ge=2, le=1000)] = 16
    classes: tuple[str | float, ...] | None = None  # public; None: those of the label's column, whatever rows are read

    def __post_init__(self) -> None:
        known = self.classes
        is_list = known is None or (1 < len(known) == len(set(known)) and len({isinstance(c, str) for c in known}) == 1)
        self._check(is_list, "label.classes must be two or more different texts, or numbers")
        steps = self.epsilon / EPSILON_STEP
        self._check(
            math.isfinite(steps) and abs(steps - round(steps)) < 1e-6,
            f"label.epsilon must be a multiple of {EPSILON_STEP}: labels are drawn once for each ε, and many that are "
            "almost equal would draw them many times",
        )
        if self.bounds is not None:
            low, high = self.bounds
            self._check(-1e300 < low < high < 1e300, "label.bounds must be two numbers, the lower one first")


class FeaturePrivacy(_Part, frozen=True):
    """Released models, all their blocks, are (ε, δ)-DP per base row of each table, by clipped gradients and noise.

    - `cap`: at most so many joined rows per base row of a table take part in training (κ); a number for all tables, or
      one per table. None: no cap, and the largest multiplicity is accounted for.
    - `noise`: σ in units of `clip`; None: the least that keeps within ε.
    - `bounds`: public (low, high) of numeric features by name; with them, numbers are scaled without reading the data.
    - `shared_noise`: where sums over a table's clients are masked, each client of three or more adds a share of the
      noise, enough if most of them are honest; False: each adds all of it.
    """

    epsilon: Epsilon | None = None
    delta: Delta = 1e-5
    clip: Positive | None = None  # C; None: from labels, multiplicities and the noise (privacy/gaussian.py)
    cap: Cap | dict[str, Cap] | None = None
    noise: Annotated[float, Meta(gt=0, lt=1e6)] | None = None
    local_steps: Cap = 20  # of an outer round, of algorithms that sample at the clients; inner rounds share them
    sample: Annotated[float, Meta(gt=0, le=1)] = 1.0  # Poisson rate of base rows in a local step
    learning_rate: Positive | None = None  # of a local step, falling to 0; None: from the clip and the noise
    bounds: dict[str, tuple[float, float]] = msgspec.field(default_factory=dict)
    shared_noise: bool = True

    def __post_init__(self) -> None:
        self._check((self.epsilon is None) != (self.noise is None), "features needs either epsilon or noise")
        for name, (low, high) in self.bounds.items():
            self._check(low < high, f"features.bounds of {name} must be two numbers, the lower one first")

    def cap_of(self, table: str) -> int | None:
        """κ of a table."""
        return self.cap.get(table) if isinstance(self.cap, dict) else self.cap

    def bounds_of(self, feature: str) -> tuple[float, float] | None:
        """The public bounds of a number, named with or without its alias."""
        return self.bounds.get(feature) or self.bounds.get(feature.rpartition(".")[2])


class PredictionPrivacy(_Part, frozen=True):
    """The server's view of predictions h, which read the raw rows in every round.

    - `trusted`: h as it is.
    - `local`: h with Gaussian noise for (ε, δ) over all rounds.
    - `bound`: H, to which h is clipped in mode `local` and under feature privacy. None: half of the slope of the loss
      over its curvature, from labels; 1.5 times it in mode `trusted` where no row has more than one joined row.
    """

    mode: Literal["trusted", "local"] = "trusted"
    epsilon: Positive | None = None
    delta: Delta = 1e-5
    bound: Positive | None = None

    def __post_init__(self) -> None:
        is_fine = (self.mode == "local") == (self.epsilon is not None)
        self._check(is_fine, 'predictions.epsilon belongs to mode="local", which needs it')


class AnalystPrivacy(_Part, frozen=True):
    """The part of an owner's analyst budget that a job spends (privacy/analyst.py).

    `cap`: joined rows that a row of the table is in, at the most; others are left out. `bounds`: public (low, high) of
    numeric features by name, and of a label that is a number. `fits`: models of a search that share ε, this one and
    `ahead` others still to come.
    """

    epsilon: Epsilon
    delta: Delta = 1e-5
    cap: Cap = 1
    bounds: dict[str, tuple[float, float]] = msgspec.field(default_factory=dict)
    fits: Cap = 1
    ahead: Annotated[int, Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        for name, (low, high) in self.bounds.items():
            self._check(low < high, f"analyst.bounds of {name} must be two numbers, the lower one first")


class Budget(_Part, frozen=True):
    """The most that a job may spend; more is refused before training, and stops it."""

    label: Annotated[float, Meta(ge=0)] | None = None  # ε of labels
    features: Annotated[float, Meta(ge=0)] | None = None  # ε of features towards outsiders, at features.delta


class Privacy(_Part, frozen=True):
    """All privacy options; `Privacy()` is the default."""

    label: LabelPrivacy | None = None
    features: FeaturePrivacy | None = None
    predictions: PredictionPrivacy = PredictionPrivacy()
    analyst: AnalystPrivacy | None = None
    keys: KeyMode = "hmac"
    max_keys: Annotated[int, Meta(ge=1, lt=2**40)] = 1_000_000  # of other owners, to blind where keys = "dh"
    secure_aggregation: bool | None = None  # masked sums: None: where a table has three or more clients; True: or two
    budget: Budget = Budget()
    allow_reconstruction: bool = False

    @property
    def key_options(self) -> dict[str, Any]:
        """The options that a model keeps: if its training blinded keys, its predictions do too."""
        return {"keys": {"keys": self.keys, "max_keys": self.max_keys}} if self.keys == "dh" else {}

    def masks(self, clients: int) -> bool:
        return clients > 1 and (clients > 2 if self.secure_aggregation is None else self.secure_aggregation)


def privacy_of(given: Any) -> Privacy:
    """Privacy from a user's argument: None, a mapping, or the struct itself.

    >>> privacy_of({"label": {"epsilon": 3}}).label.mechanism
    'krr'
    """
    if given is None:
        return Privacy()
    plain = msgspec.to_builtins(given) if isinstance(given, Privacy) else given
    try:
        return msgspec.convert(plain, Privacy, strict=True)
    except msgspec.ValidationError as error:
        raise JobError(_explain_error(error, plain)) from None


def _explain_error(error: msgspec.ValidationError, given: Any) -> str:
    """The invalid option and its error, as the user wrote it.

    >>> _explain_error(msgspec.ValidationError("Expected `float`, got `str` - at `$.label.epsilon`"), {})
    'privacy.label.epsilon: expected float, got str'
    >>> _explain_error(msgspec.ValidationError("Object contains unknown field `lable`"), {})
    "privacy has no option 'lable'; did you mean 'label'?"
    """
    what, _, where = str(error).replace("`", "").partition(" - at $")
    name = what.rpartition(" unknown field ")[2]
    if name != what:
        known = _SECTIONS.get(where, Privacy).__struct_fields__
        return f"privacy{where} has no option {name!r}; {hint(name, known)}"
    section, _, name = where.partition("[")[0].rpartition(".")
    types = get_type_hints(_SECTIONS.get(section, Privacy), include_extras=True)
    if ", got " not in what and (bounds := _describe_bounds(types.get(name))):
        found = (given[section[1:]] if section else given)[name]
        return f"privacy{section}.{name} must be {bounds}; it is {found!r}"
    if "enum value" in what:
        choices = [choice for part in get_args(types[name]) for choice in get_args(part) or (part,)]
        return (
            f"privacy{section}.{name} must be one of {', '.join(map(str, choices))}; {what.rpartition(' ')[2]} is none"
        )
    how = f"; write {name} = {{epsilon = 2.0}}" if where in (".label", ".features") else ""
    return f"privacy{where}: {what[0].lower()}{what[1:]}{how}".replace("expected object", "expected dict")


def _describe_bounds(kind: Any) -> str:
    """The bounds of an option's type, and advice.

    >>> _describe_bounds(Cap | None)
    'at least 1'
    """
    words = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    for part in (kind, *get_args(kind)):
        for meta in getattr(part, "__metadata__", ()):
            limits = [f"{word} {limit:g}" for name, word in words.items() if (limit := getattr(meta, name)) is not None]
            return " and ".join(limits) + (f" ({meta.description})" if meta.description else "")
    return ""


_SECTIONS: dict[str, type[msgspec.Struct]] = {
    ".label": LabelPrivacy,
    ".features": FeaturePrivacy,
    ".predictions": PredictionPrivacy,
    ".analyst": AnalystPrivacy,
    ".budget": Budget,
}


class Rounding(msgspec.Struct, frozen=True):
    """The rounding that the strictest owner of a job asks for. `least`: no metric may distinguish fewer rows; 1 leaves
    metrics as they are."""

    least: int = 1
    key: bytes = b""
    by_client: tuple[tuple[str, int], ...] = ()  # the rows that each asks for
    analyst_left: float | None = None  # ε that the asker has left of an analyst budget

    @property
    def is_on(self) -> bool:
        return self.least > 1

    def number(self, name: str, value: float, unit: float) -> float:
        """A multiple of `unit` near the value.

        >>> rounding = Rounding(20, b"secret")
        >>> rounding.number("accuracy", 0.8125, 0.05) == rounding.number("accuracy", 0.8125, 0.05)
        True
        """
        if not (math.isfinite(value) and unit > 0):
            return value
        digest = hmac.digest(self.key, f"{name} {value!r}".encode(), hashlib.sha256)
        first, second = (int.from_bytes(digest[k : k + 8], "big") / 2**64 for k in (0, 8))
        return unit * round(value / unit + first + second - 1.0)

    def counts(self, name: str, values: Array, unit: float) -> Array:
        found = np.array([self.number(f"{name} {place}", float(v), unit) for place, v in enumerate(values.ravel())])
        return np.asarray(np.maximum(found.reshape(values.shape), 0.0))
