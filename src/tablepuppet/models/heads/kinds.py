"""Heads by their kind, and a job's options for its head.

In: keyword arguments. Out: an error of one sentence, or a HeadSpec once the blocks and the loss are known; then the
head. The server of this process knows a user's own modules by name.
"""

import math
from importlib import import_module
from typing import Any, get_args

from tablepuppet.errors import JobError, nearest
from tablepuppet.models.heads.base import Head, HeadKind, HeadModel, HeadSpec, HeadTraits, TrainedHead
from tablepuppet.models.modules import OWN


def make_head(spec: HeadSpec, seed: int = 0) -> Head:
    make = KINDS[spec.kind].make
    assert make is not None, "a sum has no head"
    return make(spec, seed)


def _make_network(spec: HeadSpec, seed: int) -> Head:
    if traits_of(spec.kind).is_own and spec.module not in OWN:
        raise JobError(
            "a head that is a torch module of your own stays in the process that made it: give it to train(head=…) or "
            'predict(head=…) of a federation in this process; head="mlp" works everywhere'
        )
    from tablepuppet.models.heads.network import network_head  # here, not above: torch is an extra

    return network_head(spec, seed, OWN.get(spec.module))


def trained_head(model: HeadModel | None) -> TrainedHead | None:
    """A saved head, ready to combine; None: a sum."""
    return None if model is None else TrainedHead(make_head(model.spec), model.own)


_WIDTH, _HIDDEN = 16, (64, 32)
_SUM_WEIGHT = 2.0  # outputs that a perceptron's head also sums: they learn twice as fast as the perceptron's inputs
SUM_BY_ROWS = _SUM_WEIGHT**2  # what their l2 gets besides, as in HeadTraits: 1/N of what they add to scores


def _network_widths(model: Any, blocks: int, outputs: int) -> tuple[int, ...]:
    if not isinstance(model.widths, tuple):
        return (model.widths or _WIDTH,) * blocks
    if len(model.widths) != blocks:
        raise JobError(f"widths has {len(model.widths)} numbers, and the join has {blocks} tables with features")
    return model.widths


SUM = HeadTraits(
    widths=lambda model, blocks, outputs: (outputs,) * blocks,
    is_sum=True,
    l2_by_rows=1.0,  # C = 1 of scikit-learn, and alpha = 1 of its Ridge
)
PERCEPTRON = HeadTraits(
    make=_make_network,
    widths=_network_widths,
    options=("widths", "head_hidden", "shrinkage"),
    is_network=True,
    has_layers=True,
    stands_beside_sum=True,
    l2_by_rows=60.0,
    enough_steps=500,  # in the usual epochs at least
    most_epochs=3,
)
MODULE = HeadTraits(
    make=_make_network,
    widths=_network_widths,
    options=("widths", "shrinkage"),
    is_network=True,
    is_own=True,
    l2_by_rows=300.0,
)
_HERE: dict[HeadKind, HeadTraits] = {"sum": SUM, "mlp": PERCEPTRON, "module": MODULE}
KINDS: dict[HeadKind, HeadTraits] = {  # of others, HEAD of the file of that name
    kind: _HERE.get(kind) or import_module(f"tablepuppet.models.heads.{kind}").HEAD for kind in get_args(HeadKind)
}
HEADS = tuple(kind for kind, traits in KINDS.items() if not traits.is_own)


def traits_of(kind: HeadKind) -> HeadTraits:
    return KINDS[kind]


def head_given(head: Any) -> dict[str, Any]:
    if isinstance(head, str) and head in KINDS:
        return {"head": head}
    near = nearest(head, list(HEADS)) if isinstance(head, str) else None
    hint = "" if near is None else f"; did you mean {near!r}?"
    found = repr(head) if isinstance(head, str) else f"a {type(head).__name__}"
    raise JobError(f"unknown head {found}; choose one of {', '.join(HEADS)}, or give a torch.nn.Module{hint}")


def check_head(job: Any, given: dict[str, Any], *, is_trained: bool, trained_by: str, needs_bound: bool) -> None:
    """Refuses a head with options that it cannot have, or with an algorithm that cannot train it.

    `is_trained`: whether the job's algorithm trains such a head. `trained_by`: the algorithms that do, in words.
    `needs_bound`: whether its steps rest on a bound of the curvature.
    """
    model = job.model
    traits = traits_of(model.head)
    for name in dict.fromkeys(option for kind in KINDS.values() for option in kind.options):
        heads = [kind for kind, known in KINDS.items() if name in known.options]
        if given.get(name) is not None and model.head not in heads:
            named = " or ".join(f'head="{h}"' for h in heads)
            raise JobError(f'{name} belongs to {named}, not to head="{model.head}"')
    if traits.is_sum:
        if not is_trained and not job.is_expanded:
            raise JobError(
                f'algorithm="{job.algorithm}" does not train a sum of table scores; give head="factor", or train the '
                f"sum with {trained_by}"
            )
        return
    if traits.is_own and not model.head_module:
        raise JobError("a head of your own is given as the module itself: head=torch.nn.Sequential(…)")
    if not is_trained:
        raise JobError(
            f'algorithm="{job.algorithm}" trains sums of table scores only, for it needs an objective that is convex '
            f'in all tables at once; train head="{model.head}" with {trained_by}'
        )
    if job.privacy.features is not None:
        raise JobError(
            "privacy.features bounds what one row can change in a sum of table scores; through a head its effect is "
            'not bounded. Use head="sum" under feature privacy'
        )
    if needs_bound:
        raise JobError(
            f'plain descent takes its learning rate from a bound on the curvature, and head="{model.head}" has none; '
            'give learning_rate, or use optimizer="adam"'
        )
    sizes = (model.widths,) if isinstance(model.widths, int) else model.widths or (1,)
    for is_fine, rule in (
        (model.rank is None or model.rank >= 1, "rank must be at least 1"),
        (min(sizes) >= 1, "widths must be at least 1: one number, or one for each table of the join"),
        (min(model.head_hidden or (1,)) >= 1, "head_hidden must list layer sizes of at least 1, for example (32,)"),
        (model.shrinkage is None or 0 <= model.shrinkage < math.inf, "shrinkage must be a number from 0 up"),
    ):
        if not is_fine:
            raise JobError(rule)


def head_spec(model: Any, blocks: int, outputs: int, unit: float, *, learns: bool = False) -> HeadSpec:
    """The head of a job's model over so many blocks; `learns`: whether the algorithm learns an open shrinkage."""
    traits = traits_of(model.head)
    widths = traits.widths(model, blocks, outputs)
    if traits.is_sum:
        return HeadSpec(outputs=outputs, widths=widths)
    is_open = learns or (traits.learns_shrinkage and model.l2_by_rows > 0)
    usual = None if is_open else traits.shrinkage
    shrinkage = usual if model.shrinkage is None else model.shrinkage
    has_sum = traits.stands_beside_sum and model.l2_by_rows > 0 and min(widths) > outputs
    return HeadSpec(
        kind=model.head,
        outputs=outputs,
        widths=widths,
        unit=unit,
        shrinkage=shrinkage,
        hidden=_HIDDEN if model.head_hidden is None else model.head_hidden,
        sum_weight=_SUM_WEIGHT if has_sum else 0.0,
        activation=model.activation,
        dtype=model.dtype,
        module=model.head_module,
    )
