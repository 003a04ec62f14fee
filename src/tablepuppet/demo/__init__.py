"""The demo: New York's flights of 2013, as tables of nineteen owners who pool nothing.

In: the Parquet files in this folder (tools/make_demo_data.py documents their origin). Out: a Federation. Sixteen
airlines hold one table, each its own flights and their delays; a weather service, an aircraft registry and an airport
authority hold one each.

The question: will a flight arrive more than a quarter of an hour late? Features are known at the
scheduled departure, so there is no departure delay and no arrival time.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from tablepuppet.api import Federation

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
_DATA = Path(__file__).parent / "data"
_OTHERS = ("weather", "planes", "airports")


def open_flights(limit: int | None = None) -> Federation:
    """The owners of the flights' data, all in this process; `limit`: the number of flights, spread over the year."""
    flights, others = read_flights()
    if limit is not None and limit < flights.num_rows:
        flights = flights.take(pa.array(range(0, flights.num_rows, -(-flights.num_rows // limit))))
    return Federation({"flights": by_airline(flights), **others})


def read_flights() -> tuple[pa.Table, dict[str, pa.Table]]:
    read = {name: parquet.read_table(_DATA / f"{name}.parquet") for name in ("flights", *_OTHERS)}
    return read.pop("flights"), read


def by_airline(flights: pa.Table) -> list[pa.Table]:
    carriers = sorted(pc.unique(flights["carrier"]).to_pylist())
    return [flights.filter(pc.equal(flights["carrier"], carrier)) for carrier in carriers]
