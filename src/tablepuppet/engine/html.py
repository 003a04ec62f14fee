"""A result in a notebook: its metrics as a small table, its objective by epoch as a drawing (inline SVG)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tablepuppet.fragments import fragment, table

_WIDTH, _HEIGHT, _MARGIN = 320, 120, 8


def result_html(title: str, metrics: Mapping[str, Mapping[str, float]], objectives: Sequence[float]) -> str:
    """One self-contained fragment."""
    names = list(dict.fromkeys(name for values in metrics.values() for name in values))
    rows = [
        [side, *(f"{values[n]:.4g}" if n in values else "" for n in names)]
        for side, values in metrics.items()
        if values
    ]
    return fragment(title, table(["", *names], rows), _drawing(objectives))


def _drawing(objectives: Sequence[float]) -> str:
    """The objective by epoch, on a logarithmic scale where it can be."""
    finite = [v for v in objectives if math.isfinite(v)]
    if len(finite) < 2:
        return ""
    scaled = [math.log(v) for v in finite] if min(finite) > 0 else finite
    low, high = min(scaled), max(scaled)
    span = high - low or 1.0
    across = (_WIDTH - 2 * _MARGIN) / (len(scaled) - 1)
    points = " ".join(
        f"{_MARGIN + i * across:.1f},{_MARGIN + (high - v) / span * (_HEIGHT - 2 * _MARGIN):.1f}"
        for i, v in enumerate(scaled)
    )
    label = f"objective by epoch: {finite[0]:.5g} to {finite[-1]:.5g}"
    return (
        f'<figure><svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{label}">'
        f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.5"/></svg>'
        f"<figcaption>{label}</figcaption></figure>"
    )
