"""The best split of a node."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting.exchange import KNOWN_ONE_HOT, NUMBER, SETS, SPARSE
from tablepuppet.algorithms.boosting.plain.bits import Array, Codes, Integers, Sums

__all__ = ["best_splits"]


def best_splits(
    sums: Sums,
    at: Sums,
    offsets: Integers,
    kinds: Codes,
    signs: Integers,
    allowed: Codes,
    unit: Array,
    rules: Array,
    bounds: Array,
    light: Array,
    first: int,
    gain: Array,
    found: Sums,
    order: Codes,
) -> None:
    sums = sums[at]
    if not len(kinds):
        return
    total = sums[:, offsets[0] : offsets[1]].sum(axis=1)
    for f in range(len(kinds)):
        if allowed[f]:
            own = sums[:, offsets[f] : offsets[f + 1]]
            if kinds[f] == NUMBER:
                _numbers(first + f, own, total, unit, rules, bounds, int(signs[f]), gain, found)
            else:
                least = light if kinds[f] == SPARSE else np.full(len(at), rules[5])
                _categories(first + f, int(kinds[f]), own, total, unit, rules, bounds, least, gain, found, order)


def _value(G: Array, H: Array, bounds: Array) -> Array:
    """−G/H within the bounds of each node."""
    low, high = (bounds[:, k] if G.ndim == 1 else bounds[:, k, None] for k in (0, 1))
    return np.minimum(np.maximum(-G / H, low), high)


def _worth(G: Array, H: Array, bounds: Array) -> Array:
    """What a leaf gains: G²/H, or less where it is bound."""
    if not len(bounds):
        return np.asarray(G * G / H)
    w = _value(G, H, bounds)
    return np.asarray(-(2 * G * w + H * w * w))


def _gains(left: Sums, total: Sums, unit: Array, rules: Array, bounds: Array, ridge: float, sign: int = 0) -> Array:
    """Of every node and candidate; −∞ where a side is too light, or values go against the sign."""
    G, H = total[:, 0] * unit[0], total[:, 1] * unit[1]
    right = total[:, None] - left
    GL, HL, GR, HR = left[..., 0] * unit[0], left[..., 1] * unit[1], right[..., 0] * unit[0], right[..., 1] * unit[1]
    with np.errstate(all="ignore"):
        base = _worth(G, H + rules[0], bounds)
        gains = _worth(GL, HL + ridge, bounds) + _worth(GR, HR + ridge, bounds) - base[:, None]
        fits = (np.minimum(HL, HR) >= rules[1]) & (left[..., 1] > 0) & (right[..., 1] > 0)
        if sign and len(bounds):
            fits &= (_value(GR, HR + ridge, bounds) - _value(GL, HL + ridge, bounds)) * sign >= 0
    return np.where(fits & ~np.isnan(gains), gains, -np.inf)


def _take(f: int, gains: Array, at: int, to_left: int, left: Sums, gain: Array, found: Sums) -> NDArray[np.intp]:
    """Keeps the best candidate of each node where it is better than what there was; those nodes."""
    place = np.argmax(gains, axis=1)
    best = gains[np.arange(len(gains)), place]
    nodes = np.flatnonzero(best > gain)
    gain[nodes] = best[nodes]
    found[nodes, 0], found[nodes, 1], found[nodes, 2] = f, place[nodes] + at, to_left
    found[nodes, 3:] = left[nodes, place[nodes]]
    return nodes


def _numbers(
    f: int,
    own: Sums,
    total: Sums,
    unit: Array,
    rules: Array,
    bounds: Array,
    sign: int,
    gain: Array,
    found: Sums,
) -> None:
    bins = own.shape[1]
    missing = own[:, :1]
    for to_left in (0, 1):
        left = np.cumsum(own[:, 1:], axis=1) + to_left * missing
        gains = _gains(left, total, unit, rules, bounds, float(rules[0]), sign)
        if to_left:
            gains[missing[:, 0, 1] == 0] = -np.inf
            gains[:, bins - 2 :] = -np.inf
        else:
            gains[missing[:, 0, 1] == 0, bins - 2 :] = -np.inf
        if gains.shape[1]:
            _take(f, gains, 1, to_left, left, gain, found)


def _categories(
    f: int,
    kind: int,
    own: Sums,
    total: Sums,
    unit: Array,
    rules: Array,
    bounds: Array,
    least: Array,
    gain: Array,
    found: Sums,
    order: Codes,
) -> None:
    is_sorted = kind in SETS
    is_there = own[..., 1] > 0
    left, places = own, np.zeros((0, 0), np.int64)
    if is_sorted:
        is_there &= own[..., 1] * unit[1] >= least[:, None]
        ratio = np.where(is_there, own[..., 0] * unit[0] / (own[..., 1] * unit[1] + rules[4]), np.inf)
        places = np.asarray(np.argsort(ratio, axis=1, kind="stable"), np.int64)
        is_there = np.take_along_axis(is_there, places, axis=1)
        left = np.cumsum(np.take_along_axis(own, places[..., None], axis=1), axis=1)
    ridge = float(rules[0] + rules[3]) if is_sorted else float(rules[0])
    gains = np.where(is_there, _gains(left, total, unit, rules, bounds, ridge), -np.inf)
    if kind == KNOWN_ONE_HOT:
        gains[:, 0] = -np.inf
    nodes = _take(f, gains, 1 if is_sorted else 0, 0, left, gain, found)
    if is_sorted:
        order[nodes, : places.shape[1]] = places[nodes]
