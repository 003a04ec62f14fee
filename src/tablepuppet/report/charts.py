"""The report's templates, and its charts as SVG text: lines, and convergence of runs.

Templates are Jinja2's. All text is escaped unless it is a template's own; a template gets data and formats it by
filters.

Charts. In: series of points, each with its text. Out: one `<svg>`. Colours are CSS variables of the page with
fallbacks: a chart follows the page's light or dark scheme, and also stands alone. A browser shows each point's text on
hover, without any script.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tablepuppet.formatting import number, plural, seconds, size, tick_text
from tablepuppet.models.losses import metrics_by_name
from tablepuppet.report.record import Epoch, RunRecord
from tablepuppet.transport.meter import NETWORKS, Network

# Distinct in light, dark and for colour-blind eyes; dashes distinguish lines in print.
COLOURS = ("#3b6fd4", "#d9730d", "#1f9d6b", "#b5479b", "#8a6d1d", "#c23b3b", "#2a93a8", "#6b5bd2")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 5", "1 4", "12 4", "6 2 1 2 1 2")


def render_template(name: str, **data: Any) -> Markup:
    """A template filled with data; safe to put into another one."""
    return Markup(_ENVIRONMENT.get_template(name).render(data))


def title_of(name: str) -> str:
    """A network's name for people: the profiles in capitals, a user's own as it was given."""
    return name.upper() if name in NETWORKS else name


_LOADER = PackageLoader("tablepuppet.report")
_ENVIRONMENT = Environment(
    loader=_LOADER,
    autoescape=lambda name: not str(name).endswith(".md"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {"number": number, "size": size, "seconds": seconds, "plural": plural}
_ENVIRONMENT.filters["in_script"] = lambda text: Markup(text.replace("<", "\\u003c"))  # no tag ends the element early
_ENVIRONMENT.globals["asset"] = lambda name: Markup(_LOADER.get_source(_ENVIRONMENT, name)[0])
_ENVIRONMENT.globals |= {"colours": COLOURS, "dashes": DASHES, "title_of": title_of}


class Axis(msgspec.Struct, frozen=True):
    """A range of values laid over a range of pixels."""

    low: float
    high: float
    start: float  # the pixel of `low`
    stop: float  # the pixel of `high`
    is_log: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value."""
        if self.is_log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """About so many round values inside the range.

        >>> Axis(0, 10, 0, 100).ticks()
        [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
        >>> Axis(1e-6, 1.0, 0, 100, is_log=True).ticks()
        [1e-06, 0.0001, 0.01, 1.0]
        """
        if self.is_log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            stride = max(1, math.ceil((last - first) / count))
            return [10.0**power for power in range(first, last + 1, stride)]
        least = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(least))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(k * step, 12) for k in range(first, last + 1)]


def axis_over(
    values: Sequence[float], start: float, stop: float, *, is_log: bool = False, from_zero: bool = False
) -> Axis:
    """An axis that holds all values, with a little room."""
    low, high = min(values), max(values)
    if is_log:
        bottom = math.floor(math.log10(low))
        top = max(math.ceil(math.log10(high)), bottom + 1)
        return Axis(10.0**bottom, 10.0**top, start, stop, is_log=True)
    if from_zero:
        low = min(low, 0.0)
    room = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    return Axis(low if from_zero else low - room, high + room, start, stop)


WIDTH, HEIGHT = 460, 290
LEFT, RIGHT, TOP, BOTTOM = 84, 24, 12, 46
MAX_POINTS = 240  # in one chart


class Point(msgspec.Struct, frozen=True):
    x: float
    y: float
    text: str


class Series(msgspec.Struct, frozen=True):
    """One line of a chart; `style` keeps a run's colour the same in all charts."""

    name: str
    style: int
    points: tuple[Point, ...]


class Cell(msgspec.Struct, frozen=True):
    """A field of a chart that is filled by its share."""

    x: tuple[float, float]
    y: tuple[float, float]
    share: float
    text: str


class Chart(msgspec.Struct, frozen=True):
    """A chart of lines and fields before it is drawn."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    is_log: bool = False  # the vertical axis
    is_log_x: bool = False
    x_from_zero: bool = True
    x_text: Callable[[float], str] = tick_text
    y_text: Callable[[float], str] = tick_text
    cells: tuple[Cell, ...] = ()
    guide: tuple[tuple[float, float], tuple[float, float]] | None = None  # a straight line to compare with
    limits: tuple[float, float] | None = None  # of both axes

    def svg(self) -> Markup:
        """The chart as one `<svg>` element; a note in its place where there is nothing to draw."""
        most = max(2, MAX_POINTS // max(1, len(self.series)))
        visible = [_visible(series, self, most) for series in self.series]
        points = [point for series in visible for point in series.points]
        if not points and not self.cells:
            return render_template("chart.svg", chart=self, lines=[], fields=[])
        if self.limits is not None:
            x, y = Axis(*self.limits, LEFT, WIDTH - RIGHT), Axis(*self.limits, HEIGHT - BOTTOM, TOP)
        else:
            x = axis_over([p.x for p in points], LEFT, WIDTH - RIGHT, is_log=self.is_log_x, from_zero=self.x_from_zero)
            y = axis_over([p.y for p in points], HEIGHT - BOTTOM, TOP, is_log=self.is_log)
        return render_template(
            "chart.svg",
            chart=self,
            lines=[(series.style, [(x.at(p.x), y.at(p.y), p.text) for p in series.points]) for series in visible],
            fields=[(*map(x.at, c.x), *map(y.at, c.y), c.share, c.text) for c in self.cells],
            guide=[(x.at(at), y.at(to)) for at, to in self.guide or ()],
            x_ticks=[(x.at(tick), self.x_text(tick)) for tick in x.ticks(4)],
            y_ticks=[(y.at(tick), self.y_text(tick)) for tick in y.ticks()],
            size=(WIDTH, HEIGHT),
            box=(LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM),
        )


def _visible(series: Series, chart: Chart, most: int) -> Series:
    """The finite points, thinned evenly where there are too many to distinguish."""

    def is_drawable(value: float, is_log: bool) -> bool:
        return math.isfinite(value) and (value > 0 or not is_log)

    points = [p for p in series.points if is_drawable(p.x, chart.is_log_x) and is_drawable(p.y, chart.is_log)]
    if len(points) > most:
        last = len(points) - 1
        points = [points[round(i * last / (most - 1))] for i in range(most)]
    return Series(series.name, series.style, tuple(points))


_PROBLEM = ("query", "label", "model", "l2", "test_fraction", "standardize", "seed", "max_categories")
TITLES = {name: metric.title for name, metric in metrics_by_name().items()}


class Quantity(msgspec.Struct, frozen=True):
    """An axis of a convergence chart."""

    key: str
    label: str
    value: Callable[[Epoch], Any]  # a number, or None
    text: Callable[[float], str] = tick_text
    unit: str = ""  # after a value in words
    is_log: bool = False


def scales(runs: Sequence[RunRecord], networks: Mapping[str, Network]) -> list[Quantity]:
    """Horizontal axes: epochs or trees, rounds, bytes, and communication time on each network."""
    steps = " or ".join(sorted({"trees" if run.trees else "epochs" for run in runs}))

    def on(net: Network) -> Callable[[Epoch], float]:
        return lambda e: net.seconds(e.slowest_bytes, e.rounds)

    return [
        Quantity("epochs", steps, lambda e: e.epoch, unit=f" {steps}"),
        Quantity("rounds", "communication rounds", lambda e: e.rounds, unit=" rounds"),
        Quantity("bytes", "bytes, up and down", lambda e: e.bytes, size),
        *(
            Quantity(f"network-{name}", f"communication time on {title_of(name)}", on(net), seconds)
            for name, net in networks.items()
        ),
    ]


def merits(runs: Sequence[RunRecord]) -> list[Quantity]:
    """Vertical axes: the test metrics of the runs (training metrics without any test rows), and the objective."""
    side = "test" if any(run.metrics.get("test") for run in runs) else "train"
    known = metrics_by_name()
    values = [(name, value) for run in runs for name, value in run.metrics.get(side, {}).items()]
    names = dict.fromkeys(name for name, value in values if value is not None and math.isfinite(value))
    found = [name for name in names if name not in known or known[name].is_headline]

    def metric(name: str) -> Callable[[Epoch], float | None]:
        return lambda e: e.metrics.get(side, {}).get(name)

    return [*(Quantity(name, f"{side} {TITLES.get(name, name)}", metric(name)) for name in found), _objective(runs)]


def _objective(runs: Sequence[RunRecord]) -> Quantity:
    """The objective; its gap to the lowest reached, on a log scale, where all runs minimise the same function."""
    reached = [e.objective for run in runs for e in run.history if e.objective is not None]
    problems = {repr([run.job.get(name) for name in _PROBLEM]) + str(run.data.train_rows) for run in runs}
    if len(runs) < 2 or not reached or len(problems) > 1:
        return Quantity("objective", "objective", lambda e: e.objective)
    best = min(reached)

    def gap(epoch: Epoch) -> float | None:
        return None if epoch.objective is None else max(epoch.objective - best, 1e-15)

    return Quantity("gap", "objective gap", gap, is_log=True)


def convergence(runs: Sequence[RunRecord], names: Sequence[str], merit: Quantity, scale: Quantity) -> Chart:
    """One metric of all runs on one horizontal axis."""
    lines = []
    for style, (run, name) in enumerate(zip(runs, names, strict=True)):
        points = []
        for epoch in run.history:
            y = merit.value(epoch)
            if y is not None:
                chosen = ", the model" if epoch.epoch == run.epoch != run.history[-1].epoch else ""
                where = scale.text(scale.value(epoch)) + scale.unit
                step = f"{'tree' if run.trees else 'epoch'} {epoch.epoch}{chosen}"
                text = f"{name}, {step}\n{merit.label} {number(y, 6)}\n{where}"
                points.append(Point(scale.value(epoch), y, text))
        lines.append(Series(name, style, tuple(points)))
    return Chart(
        f"{merit.label} against {scale.label}",
        scale.label,
        merit.label,
        tuple(lines),
        is_log=merit.is_log,
        is_log_x=scale.key != "epochs" and is_wide([p.x for line in lines for p in line.points]),
        x_text=scale.text,
    )


def is_wide(values: Sequence[float]) -> bool:
    """Whether values lie so far apart that a linear axis would hide the small ones."""
    return bool(values) and min(values) > 0 and max(values) > 30 * min(values)


def draw_objective(objectives: Sequence[float]) -> str:
    """The objective by epoch; nothing where there are fewer than two."""
    finite = [(epoch, value) for epoch, value in enumerate(objectives, 1) if math.isfinite(value)]
    if len(finite) < 2:
        return ""
    points = tuple(Point(epoch, value, f"epoch {epoch}\nobjective {value:.5g}") for epoch, value in finite)
    line, is_log = Series("objective", 0, points), is_wide([value for _, value in finite])
    chart = Chart("Objective by epoch", "epoch", "objective", (line,), is_log=is_log, x_from_zero=False)
    return f'<figure style="max-width: 30rem">{chart.svg()}</figure>'
