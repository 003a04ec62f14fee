"""A result in a notebook: its metrics as a small table, its objective by epoch as a drawing (inline SVG)."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

_WIDTH, _HEIGHT, _MARGIN = 320, 120, 8


def result_html(title: str, metrics: Mapping[str, Mapping[str, float]], objectives: Sequence[float]) -> str:
    """One self-contained fragment."""
    names = list(dict.fromkeys(name for values in metrics.values() for name in values))
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    rows = "".join(
        f"<tr><th>{html.escape(side)}</th>"
        + "".join(f"<td>{values[n]:.4g}</td>" if n in values else "<td></td>" for n in names)
        + "</tr>"
        for side, values in metrics.items()
        if values
    )
    table = f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<div><p>{html.escape(title)}</p>{table}{_drawing(objectives)}</div>"


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
