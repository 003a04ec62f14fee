"""The best split of a node."""

from __future__ import annotations

from typing import Any

import numpy as np

from tablepuppet.algorithms.boosting.compiled.bits import Array, Codes, Integers, Sums, exact
from tablepuppet.algorithms.boosting.exchange import KNOWN_ONE_HOT, NUMBER, SORTED, SPARSE

__all__ = ["best_splits"]

CLOSE = 1 - 1e-9  # more than products and quotients are rounded by


@exact
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
    """Of every node the split with the largest gain, if that is more than gain[k] was: gain[k], and found[k] = (column,
    counted from `first`, bin, whether missing values go left, Σg and Σh of the left side).

    `sums[at[k]]` are (Σg, Σh) per bin in fixed point, `unit` their units, `rules` λ, the least Σh of a side, the least
    gain, what λ is raised by for sorted categories, what smooths their order, and the least Σh of one that is sorted;
    of sparse ones that is light[k]. The first in this order wins a tie: column, missing values right before left, bin.
    Bin 0 is "missing". Sorted categories: the left side is order[k, :bin]; one against the rest: `bin` itself is the
    left side. With `bounds`, leaves lie within bounds[k], and those of a column with a sign rise, or fall, with its
    values.
    """
    free = np.zeros(0)
    for k in range(len(at)):
        bound = bounds[k] if len(bounds) else free
        how = (unit, rules, bound, light[k], first, gain[k])
        gain[k] = _best(sums[at[k]], offsets, kinds, signs, allowed, *how, found[k], order[k])


@exact
def _value(G: Any, H: Any, bound: Array) -> Any:
    """−G/H within bounds."""
    return min(max(-G / H, bound[0]), bound[1])


@exact
def _worth(G: Any, H: Any, bound: Array) -> Any:
    """What a leaf gains: G²/H, or less where it is bound."""
    if len(bound) == 0:
        return G * G / H
    w = _value(G, H, bound)
    return -(2 * G * w + H * w * w)


@exact
def _best(
    sums: Sums,
    offsets: Integers,
    kinds: Codes,
    signs: Integers,
    allowed: Codes,
    unit: Array,
    rules: Array,
    bound: Array,
    light: Any,
    begin: int,
    best: Any,
    found: Sums,
    order: Codes,
) -> Any:
    penalty, least_h = rules[0], rules[1]
    total_g, total_h = np.int64(0), np.int64(0)
    if len(kinds):
        for b in range(offsets[0], offsets[1]):
            total_g += sums[b, 0]
            total_h += sums[b, 1]
    G, H = total_g * unit[0], total_h * unit[1]
    base = _worth(G, H + penalty, bound)
    for f in range(len(kinds)):
        if not allowed[f]:
            continue
        first, bins = offsets[f], offsets[f + 1] - offsets[f]
        if kinds[f] == NUMBER:
            missing_g, missing_h = sums[first, 0], sums[first, 1]
            for left in range(2):
                if left == 1 and missing_h == 0:
                    break
                gl = missing_g if left == 1 else np.int64(0)
                hl = missing_h if left == 1 else np.int64(0)
                for b in range(1, bins - (1 if missing_h == 0 else left)):
                    if sums[first + b, 1] == 0 and not (left == 1 and signs[f]):
                        continue  # the split before has the same sides, or its mirror image had, which has no sign
                    gl += sums[first + b, 0]
                    hl += sums[first + b, 1]
                    HL, HR = hl * unit[1], (total_h - hl) * unit[1]
                    if min(HL, HR) < least_h or hl == total_h:
                        continue
                    GL, GR = gl * unit[0], (total_g - gl) * unit[0]
                    whole = (HL + penalty) * (HR + penalty) * CLOSE * (best + base)
                    if len(bound) == 0 and GL * GL * (HR + penalty) + GR * GR * (HL + penalty) < whole:
                        continue  # surely less, without a division
                    gain = _worth(GL, HL + penalty, bound) + _worth(GR, HR + penalty, bound) - base
                    if gain > best:
                        if len(bound) and signs[f]:
                            rise = _value(GR, HR + penalty, bound) - _value(GL, HL + penalty, bound)
                            if rise * signs[f] < 0:
                                continue
                        best = gain
                        found[0], found[1], found[2], found[3], found[4] = begin + f, b, left, gl, hl
            continue
        is_sorted = kinds[f] == SORTED or kinds[f] == SPARSE
        least = light if kinds[f] == SPARSE else rules[5]
        ridge = penalty + rules[3] if is_sorted else penalty
        places = np.arange(bins)
        if is_sorted:
            ratio = np.full(bins, np.inf)
            for b in range(bins):
                if sums[first + b, 1] > 0 and sums[first + b, 1] * unit[1] >= least:
                    ratio[b] = sums[first + b, 0] * unit[0] / (sums[first + b, 1] * unit[1] + rules[4])
            places = np.argsort(ratio, kind="mergesort")
        gl, hl = np.int64(0), np.int64(0)
        for t in range(1 if kinds[f] == KNOWN_ONE_HOT else 0, bins):
            b = places[t]
            if sums[first + b, 1] == 0 or (is_sorted and sums[first + b, 1] * unit[1] < least):
                if is_sorted:
                    break
                continue
            if is_sorted:
                gl += sums[first + b, 0]
                hl += sums[first + b, 1]
            else:
                gl, hl = sums[first + b, 0], sums[first + b, 1]
            HL, HR = hl * unit[1], (total_h - hl) * unit[1]
            if min(HL, HR) < least_h or hl == total_h:
                continue
            GL, GR = gl * unit[0], (total_g - gl) * unit[0]
            gain = _worth(GL, HL + ridge, bound) + _worth(GR, HR + ridge, bound) - base
            if gain > best:
                best = gain
                found[0], found[1], found[2], found[3], found[4] = begin + f, (t + 1 if is_sorted else b), 0, gl, hl
                if is_sorted:
                    for p in range(t + 1):
                        order[p] = places[p]
    return best
