"""Charts: points where they belong, ticks round, nothing drawn from nothing."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablepuppet.report.charts import HEIGHT, MAX_POINTS, WIDTH, Chart, Point, Series, axis_over

numbers = st.floats(-1e12, 1e12, allow_nan=False).map(lambda x: round(x, 6))


def chart(values: list[tuple[float, float]], *, is_log: bool = False) -> Chart:
    points = tuple(Point(x, y, f"{x} < {y}") for x, y in values)
    return Chart("title", "x", "y", (Series("line & co", 0, points),), is_log)


@given(st.lists(st.tuples(st.floats(0, 1e9).map(lambda x: round(x, 6)), numbers), min_size=1, max_size=30))
def test_every_point_lies_inside_the_drawing(values: list[tuple[float, float]]) -> None:
    circles = re.findall(r'cx="([^"]+)" cy="([^"]+)"', chart(values).svg())
    assert len(circles) == len(values)
    assert all(0 <= float(x) <= WIDTH and 0 <= float(y) <= HEIGHT for x, y in circles)


@given(st.lists(numbers, min_size=1, max_size=10))
def test_ticks_are_few_ordered_and_inside_the_range(values: list[float]) -> None:
    axis = axis_over(values, 0, 100)
    ticks = axis.ticks()
    assert ticks == sorted(ticks)
    assert len(ticks) <= 8
    assert all(axis.low - 1e-6 * abs(axis.low) <= t <= axis.high + 1e-6 * abs(axis.high) for t in ticks)


@pytest.mark.parametrize("value", [1e-300, 1e-15, 0.3, 1.0, 1e17])
def test_one_value_on_a_log_scale_has_an_axis(value: float) -> None:
    ElementTree.fromstring(chart([(1.0, value)], is_log=True).svg())


def test_a_chart_is_well_formed_and_escapes_what_it_is_told() -> None:
    root = ElementTree.fromstring(chart([(1.0, 2.0), (2.0, 3.0)]).svg())
    assert "1.0 < 2.0" in "".join(root.itertext())


def test_values_that_cannot_be_drawn_are_left_out() -> None:
    drawn = chart([(1.0, math.nan), (2.0, 0.0), (3.0, 1.0)], is_log=True).svg()
    assert drawn.count("<circle") == 1
    assert "nothing to draw" in chart([(1.0, math.inf)]).svg()


def test_a_long_line_is_thinned_and_keeps_its_ends() -> None:
    drawn = chart([(float(i), float(i)) for i in range(1000)]).svg()
    assert drawn.count("<circle") == MAX_POINTS
    assert "0.0 &lt; 0.0" in drawn
    assert "999.0 &lt; 999.0" in drawn
