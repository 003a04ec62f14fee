"""What a request must be: sizes, ranges and shapes of its fields, by what this client holds.

In: a request that the contract has. Out: nothing, or a refusal that names the field, before anything is computed or
allocated for it. (Types of fields are the codec's; answers are judged by protocol/rules.py in the same words.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tablepuppet import protocol as m
from tablepuppet.algorithms.boosting import messages as trees
from tablepuppet.algorithms.boosting.exchange import NUMBER, WHOLE, CategoryBins, Check, NumberBins, Outline
from tablepuppet.algorithms.registry import UPDATES
from tablepuppet.client.state import ClientState, Part
from tablepuppet.errors import TransportError
from tablepuppet.protocol.rules import LONGEST_TEXT, MOST_CATEGORIES, WrongError, array, finite, require
from tablepuppet.tables.columns import STRING_KINDS
from tablepuppet.tables.tokens import POINT_SIZE

_SEEDS = 2**63
_MOST_ROWS = 2**62
_MOST_EXPONENT = 1200  # of floats, subnormal ones included, and some room
_MOST_CLIENTS = 100_000
_PIECE = 1 << 17  # pairs of rows and cells that are sent together
_CODES = 256  # of a column in bins
_INTEGERS = frozenset("i")
Rule = Callable[[ClientState, Any], None]


def check_request(own: ClientState, request: Any) -> None:
    """Raises TransportError unless this client can do what it is asked to."""
    rule = _RULES.get(type(request))
    if rule is None:
        return
    try:
        rule(own, request)
    except WrongError as wrong:
        raise TransportError(f"{type(request).__name__}.{wrong.field} {wrong.what}") from None


def _within(number: float, name: str, least: float, most: float) -> None:
    if not least <= number <= most:
        raise WrongError(name, f"is {number:,}, outside {least:,} to {most:,}")


def _row_numbers(rows: Any, name: str, count: int, *, least: int = -1) -> None:
    array(rows, name, (None,), kinds=_INTEGERS)
    if least == 0:  # one look at them: a negative number is a very large one without its sign
        is_inside = not len(rows) or int(rows.view(f"u{rows.itemsize}").max()) < count
    else:
        is_inside = not len(rows) or (int(rows.min()) >= least and int(rows.max()) < count)
    if not is_inside:
        raise WrongError(name, f"hold a row that there is not; there are {count:,}")


# -- set-up -----------------------------------------------------------------------------


def _keys(own: ClientState, request: m.SendKeys) -> None:
    due = 0 if request.tokens == "plain" else len(request.columns)
    require(request.tokens == "plain" or len(request.domains) == due, "domains", f"are not one for each of {due} keys")
    require(all(len(d) <= LONGEST_TEXT for d in request.domains), "domains", "hold a text too long")
    if request.order is not None:
        _within(request.order.seed, "order", 0, _SEEDS)
        _within(request.order.offset, "order", 0, _MOST_ROWS)


def _sum_groups(own: ClientState, request: m.SumGroups) -> None:
    groups, parties = own.tables.partials(request.job, request.scan), len(request.peers)
    _within(request.place, "place", 0, parties - 1)
    require(len({peer.client for peer in request.peers}) == parties, "peers", "name one client twice")
    require(request.peers[request.place].client == own.name, "place", "is another client's")
    array(request.holders, "holders", (None,), kinds=frozenset("i"))
    shared = len(request.holders)
    is_inside = not shared or (int(request.holders.min()) >= 0 and int(request.holders.max()) < parties)
    require(is_inside, "holders", "name a client that there is not")
    array(request.rows, "rows", (shared,), kinds=frozenset("i"))
    _row_numbers(request.rows, "rows", groups.count)
    own_rows = request.rows[request.rows >= 0]
    require(len(np.unique(own_rows)) == len(own_rows), "rows", "name one group twice")
    require(bool((request.rows[request.holders == request.place] >= 0).all()), "holders", "hold what they do not have")
    due = sum(map(m.scales_of, groups.kinds))
    require(len(request.scales) == due, "scales", f"are {len(request.scales)} where {due} are due")
    _scales(request.scales)
    is_one_each = len(request.commitments) == parties and all(len(c) == 32 for c in request.commitments)
    require(is_one_each, "commitments", "are not one of 32 bytes for each client")


def _hold_groups(own: ClientState, request: m.HoldGroups) -> None:
    agreed = own.tables.agreed(request.job, request.scan)
    groups, held = own.tables.partials(request.job, request.scan), int((agreed.holders == agreed.place).sum())
    sums, extremes = (sum(m.words_of(kind)[i] for kind in groups.kinds[1:]) for i in (0, 1))
    array(request.sums, "sums", (held, sums), kinds=frozenset("i"))
    require((request.extremes is not None) == (extremes > 0), "extremes", "come where none are due, or not")
    if request.extremes is not None:
        array(request.extremes, "extremes", (held, len(agreed.peers) - 1, extremes), kinds=frozenset("i"))


def _blind(own: ClientState, request: m.BlindKeys) -> None:
    array(request.points, "points", (None, POINT_SIZE), kinds=frozenset("u"))


def _sides(own: ClientState, request: m.SendLabels | m.SendSides) -> None:
    _within(request.seed, "seed", 0, _SEEDS)
    _within(request.offset, "offset", 0, _MOST_ROWS)
    _within(request.test_fraction, "test_fraction", 0, 1)
    _within(request.validation_fraction, "validation_fraction", 0, 1 - request.test_fraction)


def _labels(own: ClientState, request: m.SendLabels) -> None:
    _sides(own, request)
    classes = request.classes
    if classes is not None:
        require(len({type(c) for c in classes}) <= 1, "classes", "mix texts and numbers")
        require(len(set(classes)) == len(classes), "classes", "name one class twice")


# -- features ---------------------------------------------------------------------------


def _open_part(own: ClientState, request: m.OpenPart) -> None:
    rows = own.tables.scan(request.job, request.scan).num_rows
    if request.train_rows is not None:
        _row_numbers(request.train_rows, "train_rows", rows)
    _row_numbers(request.test_rows, "test_rows", rows)
    require(len(request.id_salt) <= 64, "id_salt", "is too long")
    require(all(0 <= i < len(request.columns) for i in request.ids), "ids", "name a feature that there is not")
    if request.multiplicity is not None:
        due = rows if request.train_rows is None else len(request.train_rows)
        array(request.multiplicity, "multiplicity", (due,), kinds=frozenset("i"))
        require(not len(request.multiplicity) or int(request.multiplicity.min()) >= 0, "multiplicity", "is negative")


def _sum_statistics(own: ClientState, request: m.SumStatistics) -> None:
    part = own.part(request)
    due = len(part.statistics)
    require(len(request.columns) == due, "columns", f"are {len(request.columns)} where {due} are due")
    for agreed in request.columns:
        if isinstance(agreed, m.NumberStatistics):
            array(agreed.mean, "columns.mean", (None,))
            finite(agreed.mean, "columns.mean")


def _encode(own: ClientState, request: m.EncodeFeatures) -> None:
    _encoders(request.encoders, len(own.part(request).request.columns))


def _encoders(encoders: Sequence[m.Encoder], due: int) -> None:
    require(len(encoders) == due, "encoders", f"are {len(encoders)} where {due} are due")
    for one in encoders:
        if isinstance(one, m.NumberEncoder):
            array(one.mean, "encoders.mean", (None,))
            for name in ("mean", "scale", "fill"):
                array(getattr(one, name), f"encoders.{name}", (one.mean.size,))
                finite(getattr(one, name), f"encoders.{name}")
            require(not (one.scale < 0).any(), "encoders.scale", "is negative")
        elif isinstance(one, m.IdEncoder):
            _within(one.count, "encoders.count", 0, MOST_CATEGORIES)
            if one.tokens is not None:
                array(one.tokens, "encoders.tokens", (one.count,), kinds=frozenset("i"))
                is_ascending = bool((one.tokens[1:] > one.tokens[:-1]).all())
                require(is_ascending, "encoders.tokens", "are not ascending")
        else:
            require(len(set(one.categories)) == len(one.categories), "encoders.categories", "name one category twice")


# -- training ---------------------------------------------------------------------------


def _start(own: ClientState, request: m.StartPart[Any]) -> None:
    _within(request.clients, "clients", 1, _MOST_CLIENTS)
    _within(request.blocks, "blocks", 1, _MOST_CLIENTS)
    _within(request.block, "block", 0, _MOST_CLIENTS)
    _within(request.joined_rows, "joined_rows", 0, _MOST_ROWS)
    _within(request.share, "share", 0, 1 + 1e-9)
    _within(request.l2, "l2", 0, float(np.finfo(np.float64).max))
    _within(request.seed, "seed", 0, _SEEDS - _MOST_CLIENTS)
    spread = request.spread
    require(len(spread) in (0, request.outputs), "spread", f"has {len(spread)} numbers where {request.outputs} are due")
    require(all(np.isfinite(s) and s >= 0 for s in spread), "spread", "is negative or not finite")
    ridges = request.l2_by_output
    require(len(ridges) in (0, request.outputs), "l2_by_output", f"has {len(ridges)} numbers for {request.outputs}")
    require(not ridges or request.model.is_linear, "l2_by_output", "belongs to linear blocks")
    part = own.part(request)
    if request.weights is not None and part.train is not None:
        array(request.weights, "weights", (part.train.rows, None))
        finite(request.weights, "weights")
        require(not (request.weights < 0).any(), "weights", "are negative")


def _multiply_gram(own: ClientState, request: m.MultiplyGram) -> None:
    part = own.started(request)
    array(request.vector, "vector", (None if part.train is None else part.train.width, None))


def _seal(own: ClientState, request: m.Seal) -> None:
    _scales(request.scales)


def _scales(scales: Sequence[int]) -> None:
    require(all(-_MOST_EXPONENT <= s <= _MOST_EXPONENT for s in scales), "scales", "are no exponents of floats")


def _combined(own: ClientState, request: m.Combined) -> None:
    theta = own.started(request).state.theta
    _scales(request.scales)
    require(0 < len(request.values) <= 2, "values", f"are {len(request.values)} arrays where one or two are due")
    array(request.values[0], "values", theta.shape)
    for more in request.values[1:]:
        array(more, "values", (0, 0))


def _move(own: ClientState, request: m.Move) -> None:
    _coefficients(own.started(request), request.coefficients)


def _coefficients(part: Part, given: Any) -> None:
    trail = getattr(part.state, "trail", None)
    array(given, "coefficients", (1 if trail is None else 1 + len(trail.constants) + len(trail.earlier),))


def _update(own: ClientState, request: Any) -> None:
    """An algorithm's step: what is per row has the rows that were predicted last; numbers are finite."""
    part = own.started(request)
    assert part.train is not None
    assert part.setup is not None
    batch = getattr(part.state, "rows", None)
    rows, outputs = part.train.rows if batch is None else len(batch), part.setup.outputs
    kind = type(request)
    for disclosed in kind.discloses or ():
        value = getattr(request, disclosed.field)
        if value is not None and disclosed.is_per_row:
            array(value, disclosed.field, (rows, None))
            due = (outputs,) if disclosed.what == "signals" else (1, outputs * (outputs + 1) // 2)
            width = value.shape[1]
            if width not in due:
                raise WrongError(disclosed.field, f"has {width} numbers a row where {due[-1]} are due")
    fields = kind.__struct_fields__
    for name in fields:
        value = getattr(request, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise WrongError(name, "is not finite")
    if "next_rows" in fields and request.next_rows is not None:
        _row_numbers(request.next_rows, "next_rows", part.train.rows, least=0)
    if "count" in fields and getattr(request, "signal", None) is not None:
        _within(request.count, "count", 1, _MOST_ROWS)
    if "ridge" in fields:
        is_one_each = len(request.ridge) == outputs and all(math.isfinite(r) and r >= 0 for r in request.ridge)
        require(is_one_each, "ridge", f"is not {outputs} numbers from 0 up")
    if "union_rho" in fields:
        require(request.union_rho > 0 or part.setup.clients == 1, "union_rho", "is not positive")
    if "follows" in fields and request.follows:
        require(not (np.abs(request.signal) > 1.0).any(), "signal", "has slopes that no curvature follows from")
    if "coefficients" in fields and request.coefficients is not None:
        _coefficients(part, request.coefficients)


# -- prediction -------------------------------------------------------------------------


def _score(own: ClientState, request: m.ScoreRows) -> None:
    _scored_rows(own, request)
    _fixed(own, request)
    _encoders(request.encoders, len(request.columns))
    finite(request.theta, "theta")
    if request.model.is_linear:
        array(request.theta, "theta", (None, request.outputs))
    else:
        array(request.theta, "theta", (None,))


def _fixed(own: ClientState, request: m.ScoreRows) -> None:
    """One value, of the feature's own kind."""
    value = request.value
    if request.fixed < 0:
        require(request.fixed == -1 and value is None, "fixed", "is no feature")
        return
    require(request.fixed < len(request.columns), "fixed", "is no feature")
    kind = own.tables.columns(request.job, request.scan)[request.columns[request.fixed]].kind
    require(kind != "vector", "fixed", "is a vector, which is set to no single value")
    if isinstance(value, float):
        require(bool(np.isfinite(value)), "value", "is not finite")
    is_text = kind in STRING_KINDS
    require(value is None or isinstance(value, str) == is_text, "value", f"is not a {'text' if is_text else 'number'}")


def _scored_rows(own: ClientState, request: m.ScoreRows | m.ScoreOwnRows) -> None:
    _asked_rows(own, request)
    require(all(0 <= f < len(request.columns) for f in request.shuffled), "shuffled", "names what is no feature")


def _asked_rows(own: ClientState, request: Any) -> None:
    _row_numbers(request.rows, "rows", own.tables.scan(request.job, request.scan).num_rows)


def _ask_rows(own: ClientState, request: trees.AskRows) -> None:
    _asked_rows(own, request)
    for rule in request.rules:
        require(rule.border is None or bool(np.isfinite(rule.border)), "rules.border", "is not finite")


# -- trees ------------------------------------------------------------------------------


def _sketch(own: ClientState, request: trees.SketchFeatures) -> None:
    _within(request.bins, "bins", 2, _CODES - 1)


def _start_trees(own: ClientState, request: trees.StartTrees) -> None:
    _within(request.outputs, "outputs", 1, 10_000)
    _within(request.clients, "clients", 1, _MOST_CLIENTS)
    _within(request.block, "block", 0, _MOST_CLIENTS)
    require(all(sign in (-1, 0, 1) for sign in request.signs), "signs", "hold what is no sign")
    for bins in request.bins or ():
        _within(bins.size, "bins", 1, _CODES)
        if isinstance(bins, NumberBins):
            array(bins.borders, "bins.borders", (None,))
            finite(bins.borders, "bins.borders")
            require(bool((bins.borders[1:] > bins.borders[:-1]).all()), "bins.borders", "are not ascending")
        else:
            assert isinstance(bins, CategoryBins)
            require(len(set(bins.categories)) == len(bins.categories), "bins.categories", "name one category twice")


def _check_trees(own: ClientState, request: trees.CheckTrees | trees.SumTrees) -> None:
    part, check = own.part(request), request.check
    grown = part.trees
    if grown is None:
        raise TransportError("a part's trees must be started before they are grown")
    array(check.columns, "check.columns", (len(grown.bins),), kinds=frozenset("b"))
    most = grown.request.outputs
    require(len(check.trees) <= most, "check.trees", f"are {len(check.trees)} where there are {most} outputs")
    _unions(check, len(grown.bins))
    for outline in check.trees:
        _outline(outline, 2 * grown.request.algorithm.most_leaves, len(grown.train))


def _unions(check: Check, columns: int) -> None:
    for union in check.unions:
        require(0 <= union.column < columns, "check.unions.column", "is none of the part's")
        array(union.rows, "check.unions.rows", (None, None), kinds=frozenset("u"))
        require(len(union.rows) <= _CODES, "check.unions.rows", f"are more than {_CODES}")


_OF_NODES = [
    (name, frozenset(kind))
    for name, kind in (("asks", "b"), ("gain", "f"), ("block", "i"), ("key", "i"), ("to_left", "b"))
]


def _outline(outline: Outline, most: int, rows: int) -> None:
    """A tree no deeper than agreed, and sums of no more pairs than it has rows and cells."""
    nodes = len(outline.left) if outline.left.ndim == 1 else 0
    array(outline.left, "check.trees.left", (None,), kinds=frozenset("i"))
    require(0 < nodes <= most, "check.trees.left", f"has {nodes:,} nodes where at most {most:,} are due")
    for name, kinds in _OF_NODES:
        array(getattr(outline, name), f"check.trees.{name}", (nodes,), kinds=kinds)
    finite(outline.gain, "check.trees.gain")
    array(outline.light, "check.trees.light", (nodes,))
    array(outline.bounds, "check.trees.bounds", (nodes if len(outline.bounds) else 0, 2))
    require(all(0 < u < math.inf for u in outline.unit), "check.trees.unit", "is not a positive number")
    cells = int(np.count_nonzero(outline.left < 0))
    pairs = 0
    for piece in outline.pieces:
        require(0 <= piece.size <= max(_PIECE, cells), "check.trees.pieces", "hold too many pairs at once")
        pairs += piece.size
    require(pairs <= rows * cells, "check.trees.pieces", f"hold {pairs:,} pairs where there are {rows * cells:,}")


def _reveal_keys(own: ClientState, request: trees.RevealKeys) -> None:
    grown = own.part(request).trees
    if grown is None:
        raise TransportError("a part's trees must be started before they are grown")
    require(len(request.keys) <= sum(b.size for b in grown.bins), "keys", "are more than there can be")
    for key in request.keys:
        require(0 <= key.column < len(grown.bins), "keys.column", "is none of the part's")
        bins = grown.bins[key.column]
        if bins.kind == NUMBER:
            is_whole = key.border == WHOLE and bins.size > 2
            is_border = is_whole or 1 <= key.border < bins.size
            require(is_border and not key.left, "keys.border", "is none of the column's")
        else:
            is_inside = all(0 <= code < bins.size for code in key.left) and len(set(key.left)) == len(key.left)
            require(is_inside and key.border == -1, "keys.left", "holds what is no category of the column")


_RULES: dict[type, Rule] = {
    m.SendKeys: _keys,
    m.BlindKeys: _blind,
    m.SumGroups: _sum_groups,
    m.HoldGroups: _hold_groups,
    m.SendLabels: _labels,
    m.SendSides: _sides,
    m.OpenPart: _open_part,
    m.SumStatistics: _sum_statistics,
    m.EncodeFeatures: _encode,
    m.StartPart: _start,
    m.MultiplyGram: _multiply_gram,
    m.Seal: _seal,
    m.Combined: _combined,
    m.Move: _move,
    **dict.fromkeys(UPDATES, _update),
    m.ScoreRows: _score,
    m.ScoreOwnRows: _scored_rows,
    trees.SketchFeatures: _sketch,
    trees.StartTrees: _start_trees,
    trees.CheckTrees: _check_trees,
    trees.SumTrees: _check_trees,
    trees.RevealKeys: _reveal_keys,
    trees.AskRows: _ask_rows,
    trees.AskOwnRows: _asked_rows,
}
