"""Did you mean …? One sentence that helps after an unknown name."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

_SHOWN = 12
# What other libraries call options that we have under another name.
_ELSEWHERE = {
    "alpha": "l2",
    "eta": "learning_rate",
    "hidden_layer_sizes": "hidden",
    "lr": "learning_rate",
    "max_epochs": "epochs",
    "max_iter": "epochs",
    "n_epochs": "epochs",
    "n_iter_no_change": "patience",
    "num_epochs": "epochs",
    "random_state": "seed",
    "reg": "l2",
    "sample_weight": "weight",
    "step_size": "learning_rate",
    "target": "label",
    "test_size": "test_fraction",
    "tol": "tolerance",
    "validation_split": "validation_fraction",
    "y": "label",
}


def nearest(name: str, known: Sequence[str], cutoff: float = 0.6) -> str | None:
    """The known name that is spelt most alike, whatever the case, or that means what another library calls so.

    >>> nearest("lr", ["decay", "learning_rate"])
    'learning_rate'
    """
    elsewhere = _ELSEWHERE.get(name.lower())
    if elsewhere in known:
        return elsewhere
    by_lower = {k.lower(): k for k in known}
    near = get_close_matches(name.lower(), list(by_lower), n=1, cutoff=cutoff)
    return by_lower[near[0]] if near else None


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """The nearest known name, or else what is known.

    >>> did_you_mean("quantiy", ["price", "quantity"])
    'Did you mean quantity?'
    >>> did_you_mean("zzz", ["price", "quantity"])
    'Known: price, quantity.'
    """
    near = nearest(name, known)
    if near is not None:
        return f"Did you mean {near}?"
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return f"Known: {', '.join(known[:_SHOWN])}{more}." if known else "There is none."


def hint(name: str, known: Sequence[str], whose: str = "it") -> str:
    """What to say after an unknown option: the nearest known one, or all of them.

    >>> hint("epoch", ["epochs", "seed"])
    "did you mean 'epochs'?"
    >>> hint("zzz", ["epochs", "seed"], "a job")
    'a job has epochs, seed'
    """
    near = nearest(name, known)
    return f"did you mean {near!r}?" if near is not None else f"{whose} has {', '.join(known) or 'none'}"
